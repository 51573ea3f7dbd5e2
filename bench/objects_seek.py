"""The first record at a random offset of a large object, against one range request."""

from __future__ import annotations

import random
import time
from typing import Any

from bench import objects_world as world
from bench import workload
from bench.harness import Bench, Row, absolute, compare
from frazil.objects import ObjectsSource, Uploader

RATIO_MAX = 2.0
MB = 1_000_000


class Counting:
    """A store that counts what is read through it."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.bytes_read = 0
        self.requests = 0

    def get(self, key: str, *, start: int, length: int) -> bytes:
        """Count, then ask the store."""
        self.bytes_read += length
        self.requests += 1
        found: bytes = self._store.get(key, start=start, length=length)
        return found


def run(bench: Bench) -> list[Row]:
    total = bench.pick(1024, 100) * MB
    with (
        workload.open_engine(
            bench.fresh("engine"), **world.LOG_ALONE, **{"log.retention_bytes": 4 << 30}
        ) as engine,
        world.s3(bench) as store,
    ):
        world.fill(engine, ("a",), total)
        [topic] = world.topic_ids(engine, ("a",))
        uploader, catalog = store.uploader(engine, world.new_broker())
        world.upload_all(uploader, catalog, [topic])
        runtime = engine.topic_runtime("a")
        descriptor = max(catalog.topic(topic).descriptors, key=lambda found: found.size)
        interval = Uploader.index_bytes
        chance = random.Random(7)
        seeks: list[float] = []
        requests: list[float] = []
        read: list[float] = []
        for _ in range(bench.pick(200, 20)):
            counting = Counting(store.objects)
            # A reader of its own each time: nothing is fetched ahead or kept from before.
            source = ObjectsSource(catalog, counting, lambda _topic: runtime.state.codec, threads=0)
            offset = chance.randrange(descriptor.first, descriptor.end)
            begin = time.perf_counter()
            piece = source.read(topic, offset=offset, bytes_max=1)
            seeks.append((time.perf_counter() - begin) * 1000)
            source.close()
            assert piece.batches[0].offset == offset
            read.append(counting.bytes_read / interval)
            at = chance.randrange(0, descriptor.size - interval)
            begin = time.perf_counter()
            store.objects.get(descriptor.key, start=at, length=interval)
            requests.append((time.perf_counter() - begin) * 1000)
    size = f"{descriptor.size / 1e9:.2f} GB"
    return [
        compare(
            f"seek to a random offset in an object of {size}: first record, against one request",
            seeks,
            requests,
            "ms",
            ratio_max=RATIO_MAX,
        ),
        absolute(
            f"seek in an object of {size}: most bytes read, in index intervals",
            [max(read)],
            "x",
            value_max=2.0,
        ),
    ]
