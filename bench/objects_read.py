"""Reading a topic back from objects, through checksums and Arrow, against a plain download."""

from __future__ import annotations

import time

import obstore

from bench import objects_world as world
from bench import workload
from bench.harness import Bench, Row, absolute, compare, in_turn
from frazil.objects import ObjectsSource

RATIO_MIN = 0.7
MB = 1_000_000
RANGE_BYTES = 8 << 20
READ_BYTES = 1 << 20


def run(bench: Bench) -> list[Row]:
    total = bench.pick(500, 60) * MB
    with (
        workload.open_engine(bench.fresh("engine"), **world.LOG_ALONE) as engine,
        world.s3(bench) as store,
    ):
        world.fill(engine, ("a",), total)
        [topic] = world.topic_ids(engine, ("a",))
        uploader, catalog = store.uploader(engine, world.new_broker())
        world.upload_all(uploader, catalog, [topic])
        runtime = engine.topic_runtime("a")
        descriptors = catalog.topic(topic).descriptors
        size = sum(found.size for found in descriptors)

        def read() -> tuple[float, float]:
            source = ObjectsSource(catalog, store.objects, lambda _topic: runtime.state.codec)
            begin = time.perf_counter()
            offset = records = 0
            while offset < runtime.state.durable:
                piece = source.read(topic, offset=offset, bytes_max=READ_BYTES)
                records += sum(batch.count for batch in piece.batches)
                offset = piece.offset_next
            seconds = time.perf_counter() - begin
            source.close()
            assert records == runtime.state.durable
            return size / MB / seconds, records / seconds

        def download() -> float:
            client = store.objects._client  # noqa: SLF001 - the same connection settings
            begin = time.perf_counter()
            for found in descriptors:
                for at in range(0, found.size, RANGE_BYTES):
                    length = min(RANGE_BYTES, found.size - at)
                    assert len(obstore.get_range(client, found.key, start=at, length=length))
            return size / MB / (time.perf_counter() - begin)

        found = in_turn({"read": read, "download": download}, bench.pick(5, 2))
    rates = [rate for rate, _records in found["read"]]
    what = "sequential read from objects, S3 server"
    return [
        compare(what, rates, found["download"], "MB/s", ratio_min=RATIO_MIN),
        absolute(f"{what}: records", [records for _rate, records in found["read"]], "records/s"),
    ]
