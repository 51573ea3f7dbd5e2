"""Consumers that lag beside producers at full rate: one far behind, one that never reads.

The producers' p99 is compared with that of a broker without such consumers, which gets the same
records before: memory is as full, and as much of it is being moved to disk. The one that
catches up must receive every record, once and in order; memory must not grow with what they owe.
"""

from __future__ import annotations

import time

from bench.broker_load import Client, built
from bench.broker_world import ACK, RECEIVE, SEND, World, running_broker
from bench.harness import Bench, Row, absolute, compare, in_turn

BEHIND = 100_000
IN_FLIGHT = 64
RATIO_MAX = 1.5
GROWTH_MB_MAX = 64
"""Two windows of 10,000 records of 1 KiB, what a connection may hold, and some room."""
CATCH_UP_S_MAX = 120
SETTINGS = {"memory.budget_bytes": str(256 << 20)}
"""Small, so that both brokers have all the memory that they may have before they are measured."""


def run(bench: Bench) -> list[Row]:
    seconds, behind = bench.pick(3.0, 1.0), bench.pick(BEHIND, 2_000)
    alone, beside = bench.fresh("alone"), bench.fresh("beside")
    with (
        built() as client,
        running_broker(alone, **SETTINGS) as single,
        running_broker(beside, **SETTINGS) as crowded,
    ):
        for broker in (single, crowded):
            _fill(client, broker, bench.pick(250_000, 2_000))
        lags = Lags(client, crowded, behind=behind, seconds=seconds)
        body = single.send_body("/default/alone")

        def measure_alone() -> dict:
            client.calls(
                single.port, SEND, [body], seconds=CATCH_UP_S_MAX, in_flight=256, count=behind
            )
            return _load(client, single, body, seconds)

        sides = {
            "alone": measure_alone,
            "beside": lags.measure,
        }
        found = in_turn(sides, bench.pick(5, 1), warm_up=bench.pick(1, 0))
    title = f"one {behind:,} records behind, one that never reads, producers at full rate"
    return [
        compare(
            f"{title}: ack p99",
            [each["ack_p99_ms"] for each in found["beside"]],
            [each["ack_p99_ms"] for each in found["alone"]],
            "ms",
            ratio_max=RATIO_MAX,
        ),
        absolute(f"{title}: records lost", [float(lags.lost)], "records", value_max=0),
        absolute(
            f"{title}: memory that they take",
            [each["growth_mb"] for each in found["beside"]],
            "MB",
            value_max=GROWTH_MB_MAX,
        ),
        compare(
            f"{title}: acks",
            [each["rate"] for each in found["beside"]],
            [each["rate"] for each in found["alone"]],
            "acks/s",
        ),
        absolute(f"{title}: records received", [float(lags.received)], "records"),
    ]


class Lags:
    """A broker whose topic has two consumers that lag, anew for each round."""

    def __init__(self, client: Client, broker: World, *, behind: int, seconds: float) -> None:
        self._client = client
        self._broker = broker
        self._behind = behind
        self._seconds = seconds
        self._rounds = 0
        self.lost = 0
        self.received = 0

    def measure(self) -> dict:
        """Publish at full rate beside the two; then let the one that reads catch up."""
        client, broker = self._client, self._broker
        self._rounds += 1
        topic = f"/default/beside-{self._rounds}"
        body = broker.send_body(topic)
        reader = broker.receive_body(topic, "behind")
        stopped = broker.receive_body(topic, "stopped")
        before = broker.resident_bytes()
        client.calls(
            broker.port, SEND, [body], seconds=CATCH_UP_S_MAX, in_flight=256, count=self._behind
        )
        with client.stalled(broker.port, RECEIVE, stopped):
            catching_up = client.reading(
                broker.port, RECEIVE, reader, ack_path=ACK, seconds=self._seconds
            )
            with catching_up as end:
                found = _load(client, broker, body, self._seconds)
                first = end()
            growth = broker.resident_bytes() - before
            published = self._behind + found["answered"]
            self._check(reader, published, first)
        return {**found, "growth_mb": growth / 1e6}

    def _check(self, reader: bytes, published: int, first: dict) -> None:
        """Have the reader take the rest; what comes again was not acked before."""
        left = published - first["answered"]
        last = self._client.stream(
            self._broker.port,
            RECEIVE,
            [reader],
            messages=left,
            seconds_max=CATCH_UP_S_MAX,
            ack_path=ACK,
        )
        self.received += first["answered"] + last["received"]
        self.lost += first["gaps"] + last["gaps"] + published - first["answered"] - last["answered"]


def _load(client: Client, broker: World, body: bytes, seconds: float) -> dict:
    return client.calls(broker.port, SEND, [body], seconds=seconds, in_flight=IN_FLIGHT)


def _fill(client: Client, broker: World, records: int) -> None:
    """Have a broker take as much memory as it may."""
    body = broker.send_body("/default/fill")
    client.calls(broker.port, SEND, [body], seconds=CATCH_UP_S_MAX, in_flight=256, count=records)
    time.sleep(1)
