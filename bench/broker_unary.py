"""SendMessage, 1 KiB, answered when it is synced: against servers whose calls do nothing.

One connection, load from another process: one in C, and one on grpc-go, which is what clients cost.
Each call in flight is a producer of its own, and each message is distinct. All servers run at once
and are measured in turn; those that are not measured wait. grpcio's side is the faster of its two
servers.
"""

from __future__ import annotations

import contextlib
import itertools

from bench.broker_load import Client, all_built
from bench.broker_world import SEND, producer_body, running_broker
from bench.harness import Bench, Row, compare, in_turn
from bench.noop_servers import KINDS, PATH, Running, running

IN_FLIGHT = (64, 256)
GRPCIO_RATIO_MIN = 5
OWN_RATIO_MIN = 0.4
TOPIC = "/default/unary"


def run(bench: Bench) -> list[Row]:
    seconds = 1.0
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(running_broker(bench.fresh("data")))
        producers = broker.producers(TOPIC, max(IN_FLIGHT))
        noop = [producer_body(TOPIC, 1 + n, f"p-{n}", broker.url) for n in range(max(IN_FLIGHT))]
        servers = {kind: stack.enter_context(running(kind)) for kind in KINDS}
        programs = stack.enter_context(all_built())
        for in_flight, program in itertools.product(IN_FLIGHT, programs):
            sides = {
                kind: side(program, server, PATH, noop[:in_flight], seconds=seconds)
                for kind, server in servers.items()
            }
            sides["send"] = side(program, broker, SEND, producers[:in_flight], seconds=seconds)
            found = in_turn(sides, bench.pick(7, 1), warm_up=bench.pick(1, 0))
            rows += _rows(found, f"{in_flight} in flight ({program.name})")
    return rows


def side(program: Client, server: Running, path: str, bodies: list[bytes], *, seconds: float):
    """Return a function that measures calls a second, and the server's CPU time for each in us."""

    def measure() -> tuple[float, float]:
        before = server.cpu_seconds()
        found = program.calls(server.port, path, bodies, in_flight=len(bodies), seconds=seconds)
        return found["rate"], (server.cpu_seconds() - before) / found["answered"] * 1e6

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
