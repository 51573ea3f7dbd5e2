"""`topic.get(key)` among 1 M keys in memory: alone, and beside 20,000 writes a second."""

from __future__ import annotations

import itertools
import random
from functools import partial
from typing import TYPE_CHECKING

from bench import people, workload
from bench.harness import Bench, Row, absolute
from bench.pacing import PacedWriter, Timed, percentiles_us, timed
from bench.quiet import freeze, wait_until_quiet

if TYPE_CHECKING:
    import frazil

WRITES_PER_SECOND = 20_000
IDLE_P99_MAX_US = 100.0
BUSY_P99_MAX_US = 2_000.0


def run(bench: Bench) -> list[Row]:
    count = bench.pick(1_000_000, 100_000)
    ids = people.keys_in_random_order(count)
    with workload.open_engine(bench.fresh("engine")) as engine:
        topic = engine.create_topic("people", people.COLUMNS, primary_key=["id"])
        people.publish(topic, ids)
        wait_until_quiet(engine)
        _check(topic, count)
        freeze()
        seconds, rounds = bench.pick(4.0, 0.5), bench.pick(9, 3)
        idle: list[Timed] = []
        busy: list[Timed] = []
        rates: list[float] = []
        for number in range(-1, rounds):
            alone = _gets(topic, count, seed=number, seconds=seconds)
            writer = PacedWriter(
                topic, lambda n: people.row(n * 7919 % count * 2, n), WRITES_PER_SECOND
            )
            with writer:
                beside = _gets(topic, count, seed=number, seconds=seconds, beside=True)
            if number >= 0:
                idle.append(alone)
                busy.append(beside)
                rates.append(writer.acks_per_second)
    title = f"get(key), {count:,} keys"
    return [
        absolute(
            f"{title}, idle: p99", percentiles_us(idle, 0.99), "us", value_max=IDLE_P99_MAX_US
        ),
        absolute(f"{title}, idle: p99, CPU time", percentiles_us(idle, 0.99, cpu=True), "us"),
        absolute(f"{title}, idle: p50", percentiles_us(idle, 0.5), "us"),
        absolute(
            f"{title}, beside {WRITES_PER_SECOND:,} writes/s: p99",
            percentiles_us(busy, 0.99),
            "us",
            value_max=BUSY_P99_MAX_US,
        ),
        absolute(
            f"{title}, beside {WRITES_PER_SECOND:,} writes/s: p50", percentiles_us(busy, 0.5), "us"
        ),
        absolute(f"{title}, beside {WRITES_PER_SECOND:,} writes/s: acks", rates, "acks/s"),
    ]


def _check(topic: frazil.Topic, count: int) -> None:
    for key in (0, 2 * (count // 2), 2 * count - 2):
        if topic.get(key) != people.row(key):
            raise SystemExit(f"key {key} has another row than was published")
    if topic.get(1) is not None:
        raise SystemExit("key 1 was never published and has a row")


def _gets(
    topic: frazil.Topic, count: int, *, seed: int, seconds: float, beside: bool = False
) -> Timed:
    """Time look-ups of keys drawn at random, every tenth absent."""
    draw = random.Random(seed)
    keys = [draw.randrange(count) * 2 + (number % 10 == 0) for number in range(100_000)]
    calls = (partial(topic.get, key) for key in itertools.cycle(keys))
    return timed(calls, seconds=seconds, beside=beside)
