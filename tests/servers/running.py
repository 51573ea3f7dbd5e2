"""A server as a child process: started, waited for, paused, killed, started again."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

START_S = 90
"""A server that does not answer by then has failed; machines of CI are slow."""
PORTS = (10_000, 32_768)
_RANDOM = random.SystemRandom()
"""Tests that run beside each other begin with the same seed."""


class Failed(Exception):
    """The server did not start; the text has its last words."""


def free_ports(count):
    """Return so many ports that nobody listens on now.

    They lie below those that the system gives to connections: one of the many that other tests
    make must not have a server's port before it listens, or while it is down.
    """
    chosen = []
    while len(chosen) < count:
        port = _RANDOM.randrange(*PORTS)
        with contextlib.closing(socket.socket()) as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            chosen += [port] if port not in chosen else []
    return chosen


def free_port():
    """Return one such port."""
    return free_ports(1)[0]


def listens(port):
    """Tell whether a connection to the port is taken."""
    with contextlib.closing(socket.socket()) as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def asked(port, method, path, headers=None, timeout=10):
    """Return status and body of a server's answer; 0 if there is none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    return 0, b""


def program(name):
    """Return the path of a program that is installed beside this Python."""
    return str(Path(sys.executable).parent / name)


class Server:
    """One server with its directory; subclasses say what to run and when it is ready.

    `kill` is SIGKILL to the whole process group; `restart` has the same ports and directory.
    """

    name = "server"

    def __init__(self, directory):
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.process = None
        self.starts = 0

    def command(self):
        """Return the program with its arguments."""
        raise NotImplementedError

    def is_ready(self):
        """Tell whether the server serves."""
        raise NotImplementedError

    def environment(self):
        """Return the variables of the process: nothing of AWS's, Google's or Azure's."""
        return {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("AWS_", "GOOGLE_", "AZURE_", "FRAZIL_"))
        }

    @property
    def output(self):
        """What the server said, in all its lives."""
        path = self.directory / f"{self.name}.log"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def start(self):
        """Start the process and wait until it serves."""
        assert self.process is None
        self.starts += 1
        with (self.directory / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                cwd=self.directory,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_S
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise Failed(f"{self.name} did not start: {self.output[-2000:]}")
            time.sleep(0.05)
        return self

    def _signal(self, number):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def kill(self):
        """End the process at once, as a power failure of its machine would."""
        if self.process is not None:
            self._signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def restart(self):
        """Kill it if it lives, then start it on the same ports and directory."""
        self.kill()
        return self.start()

    def pause(self):
        """Let it neither answer nor die (SIGSTOP); return once all its threads have stopped."""
        self._signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self):
        """Let it go on (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def __enter__(self):
        return self if self.process is not None else self.start()

    def __exit__(self, *failure):
        self.kill()
