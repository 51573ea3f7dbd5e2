"""One producer of the published client, 1 KiB, one message in flight, answered when it is synced.

The other side is the same client against a server that answers at once, plus one raw fdatasync of
a file that is as long as it gets before, as the journal's are.
"""

from __future__ import annotations

import os
import time

from bench.broker_world import running_broker
from bench.danube_sender import PAYLOAD, times
from bench.harness import Bench, Row, absolute, compare, in_turn, percentile
from bench.noop_servers import running

RATIO_MAX = 2
P99_MS_MAX = 10
TOPIC = "/default/client"


def run(bench: Bench) -> list[Row]:
    count = bench.pick(3000, 300)
    with running_broker(bench.fresh("data")) as broker, running("own") as own:
        sides = {
            "send": lambda: times(broker.url, TOPIC, count),
            "own": lambda: times(f"http://127.0.0.1:{own.port}", TOPIC, count),
            "sync": lambda: _sync_times(bench.path("raw"), count),
        }
        found = in_turn(sides, bench.pick(5, 1), warm_up=bench.pick(1, 0))
    p50 = {side: [percentile(each, 0.5) * 1e3 for each in got] for side, got in found.items()}
    p99 = [percentile(each, 0.99) * 1e3 for each in found["send"]]
    floor = [one + other for one, other in zip(p50["own"], p50["sync"], strict=True)]
    title = "danube-client, 1 KiB, synced, 1 in flight"
    return [
        compare(
            f"{title}: p50, against the own no-op and one fdatasync",
            p50["send"],
            floor,
            "ms",
            ratio_max=RATIO_MAX,
        ),
        absolute(f"{title}: p99", p99, "ms", value_max=P99_MS_MAX),
        absolute(f"{title}: p50 of the own no-op", p50["own"], "ms"),
        absolute(f"{title}: p50 of one fdatasync", p50["sync"], "ms"),
    ]


def _sync_times(path: str, count: int) -> list[float]:
    """Return the seconds of writing one message and syncing it, again and again."""
    clock = time.perf_counter
    found: list[float] = []
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, bytes(count * len(PAYLOAD)))
        os.fsync(descriptor)
        for number in range(count):
            begin = clock()
            os.pwrite(descriptor, PAYLOAD, number * len(PAYLOAD))
            os.fdatasync(descriptor)
            found.append(clock() - begin)
    finally:
        os.close(descriptor)
    return found
