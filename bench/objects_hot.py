"""Acks of single records while a backlog is uploaded, against the same with uploads at rest.

The store is in this process, keeps nothing, and takes 20 MB a second in all: what is measured is
what uploading costs the publishers, not what a server beside them does. For the other side the
store takes nothing for a while.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from bench import objects_world as world
from bench import workload
from bench.harness import Bench, Row, absolute, compare, in_turn
from frazil.errors import NotFound
from frazil.objects import TRAILER_BYTES, ObjectMeta
from frazil.objects import runtime as engine_objects

if TYPE_CHECKING:
    from typing_extensions import Buffer

RATIO_MAX = 1.5
RATE_BYTES = 20_000_000
MB = 1_000_000
TASKS = 8
TAIL_BYTES = 4 << 20
"""So much of an object's end is kept: what is written is read back in part."""


class SlowStore:
    """Takes objects at a fixed rate while it is open; keeps the end of each."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.bytes_taken = 0
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[int, bytes]] = {}
        self._free_at = 0.0

    def _take(self, data: Buffer) -> bytes:
        size = memoryview(data).nbytes
        self.open.wait()
        with self._lock:
            now = time.monotonic()
            self._free_at = max(now, self._free_at) + size / RATE_BYTES
            pause = self._free_at - now
            self.bytes_taken += size
        time.sleep(pause)
        return bytes(data)

    def put(self, key: str, data: Buffer) -> ObjectMeta:
        return self.put_stream(key, (data,))

    def put_stream(self, key: str, pieces: Iterable[Buffer]) -> ObjectMeta:
        end, size = b"", 0
        for piece in pieces:
            taken = self._take(piece)
            size += len(taken)
            end = (end + taken)[-TAIL_BYTES:]
        self._objects[key] = (size, end)
        return ObjectMeta(key, size, "", 0)

    def get(self, key: str, *, start: int, length: int) -> bytes:
        size, end = self._objects[key]
        first = start - (size - len(end))
        if first < 0:
            raise NotFound("the measure keeps the end of objects only", key=key)
        return end[first : first + length]

    def head(self, key: str) -> ObjectMeta | None:
        found = self._objects.get(key)
        return None if found is None else ObjectMeta(key, found[0], "", 0)

    def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[ObjectMeta]:
        keys = sorted(key for key in self._objects if key.startswith(prefix) and key > after)
        return [ObjectMeta(key, self._objects[key][0], "", 0) for key in keys[:limit]]

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._objects.pop(key, None)

    def close(self) -> None:
        self.open.set()


def run(bench: Bench) -> list[Row]:
    assert TRAILER_BYTES < TAIL_BYTES
    rounds, each = bench.pick(9, 2), bench.pick(4_000, 500)
    backlog = bench.pick(900, 60) * MB
    store = SlowStore()
    engine_objects.open_store = lambda *_given, **_named: store
    settings = {
        "objects.store": "memory",
        "objects.root": "bench",
        "objects.interval_s": 1.0,
        **world.LOG_ALONE,
    }
    records = [bytes([number]) * 1024 for number in range(64)]
    taken: list[float] = []
    with workload.open_engine(bench.fresh("engine"), **settings) as engine:
        world.fill(engine, ("a", "b"), backlog)
        engine.create_topic("hot", objects=False)

        def measured() -> float:
            before, begin = store.bytes_taken, time.perf_counter()
            _rate, _p50, p99 = workload.crowd_on(engine, "hot", records, tasks=TASKS, each=each)
            seconds = time.perf_counter() - begin
            if store.open.is_set():
                taken.append((store.bytes_taken - before) / MB / seconds)
            return p99 * 1000

        def uploading() -> float:
            store.open.set()
            return measured()

        def at_rest() -> float:
            store.open.clear()
            return measured()

        found = in_turn({"uploading": uploading, "at rest": at_rest}, rounds)
        store.open.set()
    what = f"fsynced ack of 1 KiB, {TASKS} in flight, while uploading"
    return [
        compare(f"{what}: p99", found["uploading"], found["at rest"], "ms", ratio_max=RATIO_MAX),
        absolute(f"{what}: uploaded meanwhile", taken, "MB/s", value_min=RATE_BYTES / MB / 2),
    ]
