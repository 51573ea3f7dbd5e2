"""The other side of each measure: the same bytes through the least code that could do it."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import zlib
from collections.abc import Sequence

PIECE_BYTES = 4 << 20


def append_latencies(path: str, payload: bytes, count: int) -> list[float]:
    """Append and sync `count` times with one write and one fdatasync each; return the seconds."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    clock = time.perf_counter
    latencies: list[float] = []
    try:
        for _ in range(count):
            begin = clock()
            os.write(descriptor, payload)
            os.fdatasync(descriptor)
            latencies.append(clock() - begin)
    finally:
        os.close(descriptor)
    return latencies


def write_in_pieces(path: str, *, piece_bytes: int, total_bytes: int) -> float:
    """Write a new file in pieces, each synced; return bytes per second."""
    piece = os.urandom(piece_bytes)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    written = 0
    begin = time.perf_counter()
    try:
        while written < total_bytes:
            written += os.write(descriptor, piece)
            os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
    seconds = time.perf_counter() - begin
    os.unlink(path)
    return written / seconds


def read_and_sum(paths: Sequence[str]) -> tuple[int, float]:
    """Read files in pieces and take the CRC32 of all bytes; return the bytes and the seconds."""
    size = 0
    begin = time.perf_counter()
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            position = crc = 0
            while data := os.pread(descriptor, PIECE_BYTES, position):
                crc = zlib.crc32(data, crc)
                position += len(data)
            size += position
        finally:
            os.close(descriptor)
    return size, time.perf_counter() - begin


class GroupCommitLoop:
    """The least group commit for asyncio: a queue, one writer thread, futures. No topics, no CRC."""

    def __init__(self, path: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._waiting: list[tuple[bytes, asyncio.Future[int]]] = []
        self._lock = threading.Lock()
        self._wake = threading.Lock()
        self._wake.acquire()
        self._sleeping = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def append(self, record: bytes) -> asyncio.Future[int]:
        """Queue a record; the future is done when its group is synced."""
        future = self._loop.create_future()
        with self._lock:
            self._waiting.append((record, future))
            if self._sleeping:
                self._sleeping = False
                self._wake.release()
        return future

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            self._stopping = True
            if self._sleeping:
                self._sleeping = False
                self._wake.release()
        self._thread.join()
        os.close(self._descriptor)

    def _run(self) -> None:
        while True:
            with self._lock:
                group, self._waiting = self._waiting, []
                if not group:
                    if self._stopping:
                        return
                    self._sleeping = True
            if not group:
                self._wake.acquire()
                continue
            os.write(self._descriptor, b"".join([record for record, _ in group]))
            os.fdatasync(self._descriptor)
            self._loop.call_soon_threadsafe(_settle, [future for _, future in group])


def _settle(futures: list[asyncio.Future[int]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(0)
