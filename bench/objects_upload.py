"""Upload of the journal's frames, against obstore copying the same bytes from files.

Four topics at once on both sides, then one alone. The other side has the client's own defaults:
it sends several parts of a file at once, where Frazil has one in flight an object.
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING, Self

import obstore

from bench import objects_world as world
from bench import workload
from bench.harness import Bench, Row, absolute, compare, in_turn, resident_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

RATIO_MIN = 0.8
MEMORY_MAX_MB = 64.0
TOPICS = ("a", "b", "c", "d")
MB = 1_000_000


def run(bench: Bench) -> list[Row]:
    total = bench.pick(800, 100) * MB
    rows: list[Row] = []
    with (
        workload.open_engine(bench.fresh("engine"), **world.LOG_ALONE) as engine,
        world.s3(bench) as store,
    ):
        world.fill(engine, TOPICS, total)
        for what, names in (("four topics", TOPICS), ("one topic", TOPICS[:1])):
            topics = world.topic_ids(engine, names)
            rows += _rows(bench, store, engine, topics, f"upload of {what}")
    return rows


def _rows(bench, store, engine, topics, what: str) -> list[Row]:
    paths = [bench.path(f"object-{topic}") for topic in topics]
    uploader, catalog = store.uploader(engine, world.new_broker())
    world.upload_all(uploader, catalog, topics)
    for topic, path in zip(topics, paths, strict=True):
        [descriptor] = catalog.topic(topic).descriptors
        world.fetch_to_file(store.objects, descriptor, path, 8 << 20)
    numbers = itertools.count()
    growth: list[float] = []

    def upload() -> float:
        fresh, pictures = store.uploader(engine, world.new_broker())
        with _Watched() as watched:
            begin = time.perf_counter()
            size = world.upload_all(fresh, pictures, topics)
            seconds = time.perf_counter() - begin
        growth.append(watched.growth / MB)
        return size / MB / seconds

    def copy() -> float:
        number = next(numbers)
        client = store.objects._client  # noqa: SLF001 - the same connection settings on both sides

        def one(path: str) -> None:
            with open(path, "rb") as file:
                obstore.put(client, f"copies/{number}/{path.rpartition('/')[2]}", file)

        begin = time.perf_counter()
        world.in_parallel([lambda path=path: one(path) for path in paths])
        seconds = time.perf_counter() - begin
        return _size(paths) / MB / seconds

    found = in_turn({"upload": upload, "copy": copy}, bench.pick(5, 2))
    return [
        compare(f"{what}, S3 server", found["upload"], found["copy"], "MB/s", ratio_min=RATIO_MIN),
        absolute(f"{what}: memory it takes", [max(growth)], "MB", value_max=MEMORY_MAX_MB),
    ]


def _size(paths: list[str]) -> int:
    sizes = []
    for path in paths:
        with open(path, "rb") as file:
            sizes.append(file.seek(0, 2))
    return sum(sizes)


class _Watched:
    """Looks at the process's memory every few milliseconds."""

    def __init__(self) -> None:
        self._before = resident_bytes()
        self._most = self._before
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    @property
    def growth(self) -> int:
        """How much more memory there was than at the start."""
        return self._most - self._before

    def _watch(self) -> None:
        look: Callable[[], int] = resident_bytes
        while not self._done.wait(0.005):
            self._most = max(self._most, look())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_failure: object) -> None:
        self._done.set()
        self._thread.join()
