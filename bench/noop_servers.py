"""Servers whose only call does nothing: Frazil's own, grpcio's with threads, grpcio's on asyncio.

`python bench/noop_servers.py own|sync|aio` prints the port and serves until it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import attrs

KINDS = ("own", "sync", "aio")
PATH = "/bench.Noop/Call"
ANSWER = bytes(10)
_THREADS = 8
_TICKS = os.sysconf("SC_CLK_TCK")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@attrs.frozen
class Running:
    """A server in a process of its own."""

    port: int
    process: int

    def cpu_seconds(self) -> float:
        """Return the CPU time the process has used, in user and system mode."""
        with open(f"/proc/{self.process}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS


@contextlib.contextmanager
def running(kind: str) -> Iterator[Running]:
    """Start a server, and end it afterwards."""
    environment = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "src")}
    command = [sys.executable, os.path.abspath(__file__), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        try:
            assert child.stdout is not None
            yield Running(int(child.stdout.readline()), child.pid)
        finally:
            child.kill()


def main(kind: str) -> None:
    {"own": _own, "sync": _sync, "aio": _aio}[kind]()


def _own() -> None:
    from frazil.serve.grpc.router import Router, Unary
    from frazil.serve.grpc.server import Server, fastest_loop

    def answer(call, _message):
        call.ok(ANSWER)

    async def serve() -> None:
        server = Server(Router({PATH: Unary(answer)}))
        print((await server.start("127.0.0.1", 0))[1], flush=True)
        await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        runner.run(serve())


def _handlers(method):
    """Return grpcio's form of a router, with messages as bytes."""
    import grpc

    _, service, name = PATH.split("/")
    handler = grpc.unary_unary_rpc_method_handler(method)
    return grpc.method_handlers_generic_handler(service, {name: handler})


def _sync() -> None:
    import grpc

    server = grpc.server(ThreadPoolExecutor(_THREADS))
    server.add_generic_rpc_handlers((_handlers(lambda _message, _context: ANSWER),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    threading.Event().wait()


def _aio() -> None:
    import grpc.aio

    async def answer(_message, _context):
        return ANSWER

    async def serve() -> None:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((_handlers(answer),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        print(port, flush=True)
        await server.wait_for_termination()

    asyncio.run(serve())


if __name__ == "__main__":
    main(sys.argv[1])
