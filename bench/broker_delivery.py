"""Delivery to one client, 1 KiB: a backlog with acks, and what waits for it without storage.

Measured with the client in C and with the one on grpc-go. The other side is the own server, without
an engine, that puts the same messages together; beside an acked stream the client makes one call
that does nothing for each message. A topic without storage has no backlog: its consumer's window is
closed while as many messages are sent as its queue holds, then opened; the bare stream is begun in
the same way.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

from bench.broker_load import Client, all_built
from bench.broker_world import ACK, RECEIVE, SEND, UNACKED_MAX, World, running_broker
from bench.harness import Bench, Row, absolute, compare, in_turn
from bench.noop_servers import KINDS, PATH, STREAM_PATH, Running, running, stream_request

ACKED_RATIO_MIN = 0.5
BARE_RATIO_MIN = 0.6
GRPCIO_RATIO_MIN = 5
SUBSCRIPTION = "subscription-0"
SECONDS_MAX = 120


def run(bench: Bench) -> list[Row]:
    acked = bench.pick(100_000, 5_000)
    queued = UNACKED_MAX * 9 // 10
    with contextlib.ExitStack() as stack:
        clients = stack.enter_context(all_built())
        broker = stack.enter_context(running_broker(bench.fresh("data")))
        servers = {kind: stack.enter_context(running(kind)) for kind in KINDS}
        numbers = itertools.count()
        rows: list[Row] = []
        for client in clients:
            sides = _sides(client, broker, servers, numbers, acked=acked, queued=queued)
            found = in_turn(sides, bench.pick(5, 1), warm_up=bench.pick(1, 0))
            rows += _rows(found, client.name)
    return rows


def _sides(
    client: Client,
    broker: World,
    servers: dict[str, Running],
    numbers: Iterator[int],
    *,
    acked: int,
    queued: int,
):
    return {
        "acked": lambda: _acked(client, broker, next(numbers), acked),
        "queued": lambda: _queued(client, broker, next(numbers), queued),
        "bare acked": lambda: _bare(client, servers["own"].port, acked, ack_path=PATH),
        "bare": lambda: _bare(client, servers["own"].port, queued, is_held=True),
        "sync": lambda: _bare(client, servers["sync"].port, queued),
        "aio": lambda: _bare(client, servers["aio"].port, queued),
    }


def _acked(client: Client, broker: World, number: int, messages: int) -> float:
    """Return the records a second from a backlog, each acked, until the last ack is durable."""
    topic = f"/default/delivery-{number}"
    body = broker.send_body(topic)
    opening = broker.receive_body(topic, SUBSCRIPTION)
    client.calls(broker.port, SEND, [body], seconds=SECONDS_MAX, in_flight=256, count=messages)
    found = client.stream(
        broker.port,
        RECEIVE,
        [opening],
        messages=messages,
        seconds_max=SECONDS_MAX,
        ack_path=ACK,
    )
    if found["gaps"] or found["repeats"]:
        raise RuntimeError(f"records are missing or came twice: {found}")
    return found["rate"]


def _queued(client: Client, broker: World, number: int, messages: int) -> float:
    """Return the messages a second of what waited for a consumer of a topic without storage."""
    topic = f"/default/delivery-{number}"
    body = broker.send_body(topic, reliable=False)
    opening = broker.receive_body(topic, SUBSCRIPTION, reliable=False)

    def fill() -> None:
        client.calls(broker.port, SEND, [body], seconds=SECONDS_MAX, in_flight=256, count=messages)

    return client.stream(
        broker.port, RECEIVE, [opening], messages=messages, seconds_max=SECONDS_MAX, before=fill
    )["rate"]


def _bare(
    client: Client, port: int, messages: int, *, ack_path: str = "-", is_held: bool = False
) -> float:
    return client.stream(
        port,
        STREAM_PATH,
        [stream_request(messages, SUBSCRIPTION)],
        messages=messages,
        seconds_max=SECONDS_MAX,
        ack_path=ack_path,
        before=(lambda: None) if is_held else None,
    )["rate"]


def _rows(found: dict[str, list[float]], name: str) -> list[Row]:
    grpcio = [max(pair) for pair in zip(found["sync"], found["aio"], strict=True)]
    unit = "records/s"
    backlog = f"delivery of a backlog, 1 KiB, with acks ({name})"
    return [
        compare(
            f"{backlog}, against the own server without an engine",
            found["acked"],
            found["bare acked"],
            unit,
            ratio_min=ACKED_RATIO_MIN,
        ),
        compare(
            f"delivery without storage, 1 KiB ({name}), against the own server's bare stream",
            found["queued"],
            found["bare"],
            unit,
            ratio_min=BARE_RATIO_MIN,
        ),
        compare(
            f"delivery without storage, 1 KiB ({name}), against grpcio's bare stream",
            found["queued"],
            grpcio,
            unit,
            ratio_min=GRPCIO_RATIO_MIN,
        ),
        compare(
            f"{backlog}, against grpcio's bare stream without them",
            found["acked"],
            grpcio,
            unit,
        ),
        absolute(f"the own server's bare stream, 1 KiB ({name})", found["bare"], unit),
    ]
