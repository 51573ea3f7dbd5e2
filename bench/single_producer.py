"""One producer that waits for each ack, against one write + fdatasync of the same bytes."""

from __future__ import annotations

import asyncio
import os
import time

import frazil
from bench import workload
from bench.baselines import append_latencies
from bench.harness import Bench, Row, absolute, compare, in_turn, percentile

VALUE_MAX_MS = 1.0


def run(bench: Bench) -> list[Row]:
    count = bench.pick(400, 100)
    with workload.open_engine(bench.fresh("engine")) as engine:
        engine.create_topic("bytes")
        table = engine.create_topic("rows", workload.COLUMNS)
        codec, packed, _count, _size = table.runtime.prepare(workload.row(1), {})
        cases = {
            "bytes of 100 B": ("bytes", os.urandom(100), 108, 2.0),
            "bytes of 1 KB": ("bytes", os.urandom(1000), 1008, 2.0),
            "dict of 5 columns": ("rows", workload.row(1), codec.encode([packed]).size, 3.0),
        }
        sides = {}
        for name, (topic, record, size, _bar) in cases.items():
            sides[f"raw {name}"] = _raw(bench.path(f"raw-{size}"), size, count)
            sides[f"sync {name}"] = _sync(engine, topic, record, count)
            sides[f"asyncio {name}"] = _asyncio(engine, topic, record, count)
        results = in_turn(sides, bench.pick(15, 5))
    rows = []
    for api in ("sync", "asyncio"):
        for name, (_topic, _record, _size, bar) in cases.items():
            values, raw = results[f"{api} {name}"], results[f"raw {name}"]
            title = f"1 producer, {name}, {api}: p50"
            rows.append(compare(title, values, raw, "ms", ratio_max=bar))
            rows.append(absolute(f"{title}, by itself", values, "ms", value_max=VALUE_MAX_MS))
    return rows


def _p50_ms(latencies: list[float]) -> float:
    return percentile(latencies, 0.5) * 1e3


def _raw(path: str, size: int, count: int):
    payload = os.urandom(size)
    return lambda: _p50_ms(append_latencies(path, payload, count))


def _sync(engine: frazil.Engine, topic: str, record: object, count: int):
    def side() -> float:
        append = engine.topic(topic).append
        clock = time.perf_counter
        latencies = []
        for _ in range(count):
            begin = clock()
            append(record)
            latencies.append(clock() - begin)
        return _p50_ms(latencies)

    return side


def _asyncio(engine: frazil.Engine, topic: str, record: object, count: int):
    async def publish() -> float:
        append = frazil.AsyncEngine(engine).topic(topic).append
        clock = time.perf_counter
        latencies = []
        for _ in range(count):
            begin = clock()
            await append(record)
            latencies.append(clock() - begin)
        return _p50_ms(latencies)

    return lambda: asyncio.run(publish())
