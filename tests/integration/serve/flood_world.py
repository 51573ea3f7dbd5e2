"""A gRPC server in a process of its own, whose memory and CPU are looked at from outside.

`python -m tests.integration.serve.flood_world` serves until its standard input ends; the first line
of its output is its port, and each line that it reads is answered with what it has counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import subprocess
import sys
import threading
import time

import attrs
import grpc

from frazil.serve.grpc.server import Server
from frazil.serve.h2.limits import ServerLimits
from frazil.serve.process import fastest_loop
from tests.integration.serve.grpc_world import Handlers

SECONDS_MAX = 60
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


async def _serve(limits):
    server = Server(Handlers().router(), limits)
    _, port = await server.start("127.0.0.1", 0)
    print(port, flush=True)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        facts = attrs.asdict(server.counters)
        sums = {"unanswered": server.unanswered, "streams": server.streams, "held": server.held}
        print(json.dumps({**facts, **sums}), flush=True)
    server.close()


def main():
    limits = attrs.evolve(ServerLimits(), **json.loads(sys.argv[1]))
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        runner.run(_serve(limits))


class FloodWorld:
    """The server's process as the tests see it."""

    host = "127.0.0.1"

    def __init__(self, **limits):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.serve.flood_world", json.dumps(limits)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        self.port = int(self._process.stdout.readline())

    def close(self):
        """End the server, which must still be alive."""
        assert self._process.poll() is None
        self._process.stdin.close()
        assert self._process.wait(SECONDS_MAX) == 0
        self._process.stdout.close()

    def facts(self):
        """Return what the server has counted."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def resident_bytes(self):
        with open(f"/proc/{self._process.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    def cpu_seconds(self):
        """Return the processor time that the server has used."""
        with open(f"/proc/{self._process.pid}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND

    def channel(self):
        options = [("grpc.use_local_subchannel_pool", 1)]
        return grpc.insecure_channel(f"127.0.0.1:{self.port}", options)


class Bystander:
    """A client that calls one after the other all the time, from a thread."""

    def __init__(self, world):
        self.answered = 0
        self.error = None
        self._channel = world.channel()
        self._is_over = threading.Event()
        self._may_call = threading.Event()
        self._may_call.set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.wait_for(3)

    def _run(self):
        echo = self._channel.unary_unary("/t.T/Echo")
        try:
            while self._may_call.wait(SECONDS_MAX) and not self._is_over.is_set():
                assert echo(b"%d" % self.answered, timeout=SECONDS_MAX) == b"%d" % self.answered
                self.answered += 1
        except (grpc.RpcError, AssertionError) as error:
            self.error = error

    def wait_for(self, count):
        """Wait until so many more calls were answered."""
        target = self.answered + count
        last = time.monotonic() + SECONDS_MAX
        while self.answered < target and self.error is None and time.monotonic() < last:
            time.sleep(0.005)
        assert self.error is None, self.error
        assert self.answered >= target

    def pause(self):
        self._may_call.clear()

    def go_on(self):
        self._may_call.set()

    def close(self):
        self._is_over.set()
        self._may_call.set()
        self._thread.join(SECONDS_MAX)
        self._channel.close()


@contextlib.contextmanager
def flooded(**limits):
    """Yield a server and a client that must not notice what is done to it."""
    world = FloodWorld(**limits)
    try:
        bystander = Bystander(world)
        try:
            yield world, bystander
            bystander.wait_for(20)
        finally:
            bystander.close()
    finally:
        world.close()


if __name__ == "__main__":
    main()
