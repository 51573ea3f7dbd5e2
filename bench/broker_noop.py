"""The own server against grpcio's, both with a handler that does nothing: what a transport costs.

One connection, 1 KiB in, 10 bytes out, load from another process, as for SendMessage. The baseline
of each repetition is the faster of grpcio's two servers. With one call in flight the loop itself is
most of the cost: there the own server is measured on uvloop, too, which it takes where that is
installed.
"""

from __future__ import annotations

import contextlib
import itertools

from bench.broker_load import all_built
from bench.broker_unary import TOPIC, side
from bench.broker_world import producer_body
from bench.harness import Bench, Row, absolute, compare, in_turn
from bench.noop_servers import KINDS, PATH, installed, running

RATIOS_MIN = {1: 4, 16: 8, 64: 8, 256: 8}


def run(bench: Bench) -> list[Row]:
    seconds = 1.0
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        servers = {kind: stack.enter_context(running(kind)) for kind in KINDS}
        uvloop = stack.enter_context(installed("uvloop"))
        servers["uvloop"] = stack.enter_context(running("own", uvloop))
        programs = stack.enter_context(all_built())
        bodies = [producer_body(TOPIC, 1 + n, f"producer-{n}", "") for n in range(max(RATIOS_MIN))]
        for in_flight, program in itertools.product(RATIOS_MIN, programs):
            sides = {
                kind: side(program, server, PATH, bodies[:in_flight], seconds=seconds)
                for kind, server in servers.items()
                if kind != "uvloop" or in_flight == 1
            }
            # Scheduling varies most with one in flight.
            rounds = 11 if in_flight == 1 else 5
            found = in_turn(sides, bench.pick(rounds, 1), warm_up=bench.pick(1, 0))
            way = f"{in_flight} in flight ({program.name})"
            rows += _rows(found, "own", way, RATIOS_MIN[in_flight])
            if "uvloop" in sides:
                rows += _rows(found, "uvloop", f"{way}, on uvloop", RATIOS_MIN[in_flight])[:2]
    return rows


def _rows(found: dict[str, list], kind: str, way: str, ratio_min: float) -> list[Row]:
    title = f"no-op calls, {way}"
    own = found[kind]
    best = [max(pair) for pair in zip(found["sync"], found["aio"], strict=True)]
    return [
        compare(
            f"{title}, own server against grpcio",
            [rate for rate, _ in own],
            [rate for rate, _ in best],
            "calls/s",
            ratio_min=ratio_min,
        ),
        compare(
            f"{title}, CPU time of a call", [cpu for _, cpu in own], [cpu for _, cpu in best], "us"
        ),
        absolute(f"{title}, grpcio with threads", [rate for rate, _ in found["sync"]], "calls/s"),
        absolute(f"{title}, grpcio on asyncio", [rate for rate, _ in found["aio"]], "calls/s"),
    ]
