"""1,000 topics against 1 at the same rate, open loop: an ack counts from its scheduled time."""

from __future__ import annotations

from bench.broker_load import Client, built
from bench.broker_world import SEND, World, running_broker
from bench.harness import Bench, Row, absolute, compare, in_turn

TOPICS = 1000
PER_SECOND = 1000
RATIO_MAX = 1.5


def run(bench: Bench) -> list[Row]:
    seconds = bench.pick(5.0, 1.0)
    topics = bench.pick(TOPICS, 50)
    one, many = bench.fresh("one"), bench.fresh("many")
    with built() as client, running_broker(one) as single, running_broker(many) as crowded:
        body = single.send_bodies(["/default/topic-0"])
        bodies = crowded.send_bodies([f"/default/topic-{number}" for number in range(topics)])
        sides = {
            "one": lambda: _acks(client, single, body, seconds),
            "many": lambda: _acks(client, crowded, bodies, seconds),
        }
        found = in_turn(sides, bench.pick(5, 1), warm_up=bench.pick(1, 0))
    p50 = {side: [pair[0] for pair in pairs] for side, pairs in found.items()}
    p99 = {side: [pair[1] for pair in pairs] for side, pairs in found.items()}
    title = f"{topics:,} topics against 1 at {PER_SECOND:,} records/s: ack"
    return [
        compare(f"{title} p99", p99["many"], p99["one"], "ms", ratio_max=RATIO_MAX),
        absolute(f"{title} p50 of many", p50["many"], "ms"),
        absolute(f"{title} p50 of one", p50["one"], "ms"),
    ]


def _acks(
    client: Client, broker: World, bodies: list[bytes], seconds: float
) -> tuple[float, float]:
    found = client.calls(broker.port, SEND, bodies, seconds=seconds, rate=PER_SECOND)
    return found["ack_p50_ms"], found["ack_p99_ms"]
