"""From a producer to a consumer on an idle system: 1 KiB, synced before anybody sees it."""

from __future__ import annotations

from bench.broker_load import built
from bench.broker_world import ACK, RECEIVE, SEND, running_broker
from bench.harness import Bench, Row, absolute

PER_SECOND = 100
P50_MS_MAX = 3
P99_MS_MAX = 10
TOPIC = "/default/way"


def run(bench: Bench) -> list[Row]:
    seconds = bench.pick(8.0, 2.0)
    found = []
    with built() as client, running_broker(bench.fresh("data")) as broker:
        body = broker.send_body(TOPIC)
        opening = broker.receive_body(TOPIC, "subscription-0")
        for _ in range(bench.pick(5, 1)):
            measured = client.way(
                broker.port,
                send=(SEND, body),
                receive=(RECEIVE, opening),
                ack_path=ACK,
                rate=PER_SECOND,
                seconds=seconds,
            )
            found.append(measured)
    title = f"publish to receive, idle system ({PER_SECOND} records/s)"
    p50 = [each["way_p50_ms"] for each in found]
    p99 = [each["way_p99_ms"] for each in found]
    acks = [each["ack_p50_ms"] for each in found]
    return [
        absolute(f"{title}: p50", p50, "ms", value_max=P50_MS_MAX),
        absolute(f"{title}: p99", p99, "ms", value_max=P99_MS_MAX),
        absolute(f"{title}: p50 of the producer's answer", acks, "ms"),
    ]
