"""SendMessage, 1 KiB, answered when it is synced: against servers whose calls do nothing.

One connection, load from another process: h2load, and a program on grpc-go, which is what clients
cost. All servers run at once and are measured in turn; those that are not measured wait. grpcio's
side is the faster of its two servers.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable

from bench.broker_load import Client, built_go
from bench.broker_world import SEND, running_broker
from bench.h2_load import client, load
from bench.harness import Bench, Row, compare, in_turn
from bench.noop_servers import KINDS, PATH, Running, running

IN_FLIGHT = (64, 256)
GRPCIO_RATIO_MIN = 5
OWN_RATIO_MIN = 0.4
MESSAGE = bytes(1024)


Load = Callable[..., float]
"""Makes calls to a port and a path with a message; returns the calls a second."""


def loads(go: Client) -> dict[str, Load]:
    """Return the programs that make calls, by their names."""

    def through_go(port: int, path: str, message: bytes, **given: float) -> float:
        return go.calls(port, path, [message], **given)["rate"]

    return {client(): load, go.name: through_go}


def run(bench: Bench) -> list[Row]:
    seconds = 1.0
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(running_broker(bench.fresh("data")))
        message = broker.send_body("/default/unary")
        servers = {kind: stack.enter_context(running(kind)) for kind in KINDS}
        programs = loads(stack.enter_context(built_go()))
        for in_flight, (name, make) in itertools.product(IN_FLIGHT, programs.items()):
            sides = {
                kind: side(make, server, PATH, MESSAGE, in_flight=in_flight, seconds=seconds)
                for kind, server in servers.items()
            }
            sides["send"] = side(make, broker, SEND, message, in_flight=in_flight, seconds=seconds)
            found = in_turn(sides, bench.pick(7, 1), warm_up=bench.pick(1, 0))
            rows += _rows(found, f"{in_flight} in flight ({name})")
    return rows


def side(make: Load, server: Running, path: str, message: bytes, *, in_flight: int, seconds: float):
    """Return a function that measures calls a second, and the server's CPU time for each in us."""

    def measure() -> tuple[float, float]:
        before = server.cpu_seconds()
        rate = make(server.port, path, message, in_flight=in_flight, seconds=seconds)
        return rate, (server.cpu_seconds() - before) / (rate * seconds) * 1e6

    return measure


def _rows(found: dict[str, list], way: str) -> list[Row]:
    title = f"SendMessage, 1 KiB, synced, {way}"
    send = [rate for rate, _ in found["send"]]
    own = [rate for rate, _ in found["own"]]
    grpcio = [max(pair)[0] for pair in zip(found["sync"], found["aio"], strict=True)]
    return [
        compare(
            f"{title}, against grpcio's no-op",
            send,
            grpcio,
            "calls/s",
            ratio_min=GRPCIO_RATIO_MIN,
        ),
        compare(f"{title}, against the own no-op", send, own, "calls/s", ratio_min=OWN_RATIO_MIN),
        compare(
            f"{title}, CPU time of a call, against the own no-op",
            [cpu for _, cpu in found["send"]],
            [cpu for _, cpu in found["own"]],
            "us",
        ),
    ]
