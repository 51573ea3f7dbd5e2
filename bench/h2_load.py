"""Load for a gRPC server, from a process of its own: h2load, or a small client in its place.

The client keeps a number of equal unary calls in flight on one connection: it writes prepared
frames and counts the ends of streams, which is far less than any gRPC library does.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time

_HEAD = struct.Struct(">HBBBI")
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FINISHED = re.compile(r"finished in .*?, ([0-9.]+) req/s")
_GOOD = re.compile(r"(\d+) done, (\d+) succeeded, (\d+) failed")
_WINDOW = 1 << 30
_TE = b"\x00\x02te\x08trailers"
CLIENTS = ("h2load", "frames")


def client() -> str:
    """Return which of the two this machine has."""
    return CLIENTS[0] if shutil.which("h2load") else CLIENTS[1]


def load(port: int, path: str, message: bytes, *, in_flight: int, seconds: float) -> float:
    """Return the calls a second that a server on this machine answers, as its client sees it."""
    if client() == "h2load":
        return _with_h2load(port, path, message, in_flight, seconds)
    command = [sys.executable, os.path.abspath(__file__), str(port), path, str(len(message))]
    command += [str(in_flight), str(seconds)]
    ended = subprocess.run(command, capture_output=True, check=True, text=True)
    return float(json.loads(ended.stdout)["rate"])


def _with_h2load(port: int, path: str, message: bytes, in_flight: int, seconds: float) -> float:
    with tempfile.NamedTemporaryFile() as body:
        body.write(b"\0" + len(message).to_bytes(4) + message)
        body.flush()
        command = ["h2load", "-D", f"{max(1, round(seconds))}", "-c1", f"-m{in_flight}"]
        command += ["-d", body.name, "-H", "content-type: application/grpc", "-H", "te: trailers"]
        command.append(f"http://127.0.0.1:{port}{path}")
        text = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    rate, counts = _FINISHED.search(text), _GOOD.search(text)
    if rate is None or counts is None or counts[1] != counts[2] or counts[3] != "0":
        raise RuntimeError(text)
    return float(rate[1])


class Frames:
    """One connection that keeps calls in flight."""

    def __init__(self, port: int, path: str, size: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        settings = struct.pack(">HI", 4, _WINDOW)
        update = _frame(8, 0, 0, _WINDOW.to_bytes(4))
        self._socket.sendall(_PREFACE + _frame(4, 0, 0, settings) + update)
        # POST, http, then literals that no table keeps: every call has the same bytes.
        fields = [(1, b"localhost"), (4, path.encode()), (31, b"application/grpc")]
        self._block = b"\x83\x86" + b"".join(_literal(*field) for field in fields) + _TE
        self._data = b"\0" + size.to_bytes(4) + bytes(size)
        self._sid = -1
        self._left = b""

    def run(self, in_flight: int, seconds: float) -> float:
        """Return the answered calls a second."""
        begin = time.perf_counter()
        self._start(in_flight)
        done = 0
        while (passed := time.perf_counter() - begin) < seconds:
            ended = self._ended()
            done += ended
            self._start(ended)
        return done / passed

    def _start(self, count: int) -> None:
        if not count:
            return
        parts: list[bytes] = []
        block, data = self._block, self._data
        for _ in range(count):
            self._sid += 2
            parts += (
                _HEAD.pack(0, len(block), 1, 4, self._sid),
                block,
                _HEAD.pack(len(data) >> 8, len(data) & 0xFF, 0, 1, self._sid),
                data,
            )
        self._socket.sendall(b"".join(parts))

    def _ended(self) -> int:
        """Read once; return how many streams ended."""
        data = self._left + self._socket.recv(1 << 18)
        ended = position = 0
        while len(data) - position >= 9:
            high, low, kind, flags, _ = _HEAD.unpack_from(data, position)
            stop = position + 9 + (high << 8 | low)
            if stop > len(data):
                break
            if kind in {3, 7}:
                raise RuntimeError(f"the server refused: kind {kind} {data[position:stop]!r}")
            if kind == 1 and flags & 1:
                ended += 1
            elif not flags & 1 and kind in {4, 6}:
                self._socket.sendall(_frame(kind, 1, 0, data[position + 9 : stop] * (kind == 6)))
            position = stop
        self._left = data[position:]
        return ended


def _frame(kind: int, flags: int, sid: int, payload: bytes) -> bytes:
    return _HEAD.pack(len(payload) >> 8, len(payload) & 0xFF, kind, flags, sid) + payload


def _literal(name: int, value: bytes) -> bytes:
    """Return a field with a name of the static table that is not put into the other one."""
    index = bytes((name,)) if name < 15 else bytes((15, name - 15))
    return index + bytes((len(value),)) + value


def main() -> int:
    port, path, size, in_flight, seconds = sys.argv[1:]
    found = Frames(int(port), path, int(size)).run(int(in_flight), float(seconds))
    print(json.dumps({"rate": found}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
