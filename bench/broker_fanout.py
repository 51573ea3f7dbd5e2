"""One topic to ten subscriptions, 1 KiB, against the own server that sends the same to ten clients.

The records wait for the subscriptions, whose windows take all of them; nobody acks. The other side
has its messages ready and sends each to every client. Measured with both clients.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from functools import partial

from bench.broker_load import Client, all_built
from bench.broker_world import RECEIVE, SEND, UNACKED_MAX, World, running_broker
from bench.harness import Bench, Row, absolute, compare, in_turn
from bench.noop_servers import SHARED_PATH, running, stream_request

SUBSCRIPTIONS = 10
RATIO_MIN = 0.7
SECONDS_MAX = 120
NAMES = tuple(f"subscription-{number}" for number in range(SUBSCRIPTIONS))


def run(bench: Bench) -> list[Row]:
    messages = bench.pick(UNACKED_MAX * 9 // 10, 1_000)
    with contextlib.ExitStack() as stack:
        clients = stack.enter_context(all_built())
        broker = stack.enter_context(running_broker(bench.fresh("data")))
        own = stack.enter_context(running("own"))
        numbers = itertools.count()
        rows: list[Row] = []
        for client in clients:
            sides = {
                "broker": partial(_fan_out, client, broker, numbers, messages),
                "bare": partial(_bare, client, own.port, messages),
            }
            found = in_turn(sides, bench.pick(21, 1), warm_up=bench.pick(1, 0))
            rows += _rows(found, client.name)
    return rows


def _rows(found: dict[str, list], name: str) -> list[Row]:
    title = f"fan-out to {SUBSCRIPTIONS} subscriptions, 1 KiB ({name})"
    return [
        compare(
            f"{title}, against the own server without an engine",
            [rate for rate, _ in found["broker"]],
            found["bare"],
            "records/s",
            ratio_min=RATIO_MIN,
        ),
        absolute(
            f"{title}: times a record is decoded",
            [decoded for _, decoded in found["broker"]],
            "times",
            value_min=1,
            value_max=1,
        ),
    ]


def _fan_out(
    client: Client, broker: World, numbers: Iterator[int], messages: int
) -> tuple[float, float]:
    """Return the deliveries a second, and how often each record was decoded for them."""
    topic = f"/default/fan-out-{next(numbers)}"
    body = broker.send_body(topic)
    openings = [broker.receive_body(topic, name) for name in NAMES]
    client.calls(broker.port, SEND, [body], seconds=SECONDS_MAX, in_flight=256, count=messages)
    before = broker.decoded()
    found = client.stream(
        broker.port, RECEIVE, openings, messages=messages, seconds_max=SECONDS_MAX
    )
    if found["gaps"] or found["repeats"]:
        raise RuntimeError(f"records are missing or came twice: {found}")
    return found["rate"], (broker.decoded() - before) / messages


def _bare(client: Client, port: int, messages: int) -> float:
    return client.stream(
        port,
        SHARED_PATH,
        [stream_request(messages, name) for name in NAMES],
        messages=messages,
        seconds_max=SECONDS_MAX,
    )["rate"]
