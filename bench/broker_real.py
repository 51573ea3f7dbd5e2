"""Real traffic: producers of their own names, a payload, request id, time and attributes a message.

The other side is Frazil's server with calls that do nothing, the same client and messages.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial

from bench.broker_client import _sync_times
from bench.broker_load import Client, built_go
from bench.broker_world import SEND, World, producer_body, running_broker
from bench.harness import Bench, Row, absolute, compare, in_turn, percentile
from bench.noop_servers import PATH, Running, running

PRODUCERS = (16, 64, 256)
OWN_RATIO_MIN = 0.5
CPU_US_MAX = {16: None, 64: 40, 256: 40}
LONE_CPU_US_MAX = 300
LONE_SWITCHES_MAX = 4
SYNCS_MAX = 3
WAY_P50_MS_MAX, WAY_P99_MS_MAX = 2, 5
BEHIND_S_MAX = 0.2
WAY_RATIO_MAX = 2
HERE = os.path.dirname(os.path.abspath(__file__))


def run(bench: Bench) -> list[Row]:
    with (
        built_go() as go,
        running_broker(bench.fresh("data")) as broker,
        running("own") as own,
    ):
        rows = _lone(bench, go, broker, own)
        for count in PRODUCERS:
            rows += _many(bench, go, broker, own, count)
        return rows + _received(bench, broker, own)


def _side(go: Client, server: Running, path: str, bodies: list[bytes], seconds: float):
    """Return a function that measures calls a second, p50, and what a call costs the server."""

    def measure() -> dict[str, float]:
        cpu, switches = server.cpu_seconds(), server.switches()
        found = go.calls(server.port, path, bodies, in_flight=len(bodies), seconds=seconds)
        calls = found["answered"]
        return {
            "rate": found["rate"],
            "p50": found["ack_p50_ms"],
            "cpu": (server.cpu_seconds() - cpu) / calls * 1e6,
            "switches": (server.switches() - switches) / calls,
        }

    return measure


def _taken(bench: Bench, go: Client, broker: World, own: Running, count: int) -> dict:
    topic = f"/default/real-{count}"
    seconds = bench.pick(3.0, 0.5)
    noop = [producer_body(topic, 1 + n, f"producer-{n}", broker.url) for n in range(count)]
    sides = {
        "send": _side(go, broker, SEND, broker.producers(topic, count), seconds),
        "own": _side(go, own, PATH, noop, seconds),
    }
    if count == 1:
        sides["sync"] = lambda: percentile(_sync_times(bench.path("raw"), 1000), 0.5) * 1e3
    return in_turn(sides, bench.pick(5, 1), warm_up=bench.pick(1, 0))


def _values(found: dict, side: str, name: str) -> list[float]:
    return [each[name] for each in found[side]]


def _lone(bench: Bench, go: Client, broker: World, own: Running) -> list[Row]:
    found = _taken(bench, go, broker, own, 1)
    floor = [
        noop + SYNCS_MAX * sync
        for noop, sync in zip(_values(found, "own", "p50"), found["sync"], strict=True)
    ]
    title = "distinct messages, 1 producer, 1 in flight"
    return [
        compare(
            f"{title}: p50, against no-op + {SYNCS_MAX} fdatasync",
            _values(found, "send", "p50"),
            floor,
            "ms",
            ratio_max=1,
        ),
        absolute(
            f"{title}: broker CPU a call",
            _values(found, "send", "cpu"),
            "us",
            value_max=LONE_CPU_US_MAX,
        ),
        absolute(
            f"{title}: context switches a call",
            _values(found, "send", "switches"),
            "",
            value_max=LONE_SWITCHES_MAX,
        ),
        absolute(f"{title}: rate", _values(found, "send", "rate"), "calls/s"),
    ]


def _many(bench: Bench, go: Client, broker: World, own: Running, count: int) -> list[Row]:
    found = _taken(bench, go, broker, own, count)
    title = f"distinct messages, {count} producers, 1 in flight each"
    cpu_max = CPU_US_MAX[count]
    bars = {} if cpu_max is None else {"value_max": cpu_max}
    return [
        compare(
            f"{title}: against the own no-op",
            _values(found, "send", "rate"),
            _values(found, "own", "rate"),
            "calls/s",
            ratio_min=OWN_RATIO_MIN,
        ),
        absolute(f"{title}: broker CPU a call", _values(found, "send", "cpu"), "us", **bars),
    ]


def _received(bench: Bench, broker: World, own: Running) -> list[Row]:
    """Measure the published Python client: publish to receive, and a consumer with acks.

    The other side is a relay without a log: what the client itself takes.
    """
    sides = {
        (mode, name): partial(
            _danube, url, f"/default/{mode}", mode, bench.pick(count, count // 10)
        )
        for mode, count in (("way", 1500), ("busy", 5000), ("turns", 5000))
        for name, url in (("broker", broker.url), ("relay", f"http://127.0.0.1:{own.port}"))
    }
    found = in_turn(sides, bench.pick(5, 1), warm_up=0)
    way, title = found["way", "broker"], "danube-client, publish to receive, 200 records/s"
    p50 = [each[0] for each in way]
    rows = [
        absolute(f"{title}: p50", p50, "ms", value_max=WAY_P50_MS_MAX),
        compare(
            f"{title}: p50, against the client's no-op call",
            p50,
            [each[3] for each in found["way", "relay"]],
            "ms",
            ratio_max=WAY_RATIO_MAX,
        ),
        absolute(f"{title}: p99", [each[1] for each in way], "ms", value_max=WAY_P99_MS_MAX),
    ]
    for mode, acks, bars in (
        ("busy", "16 acks in flight", {"value_max": BEHIND_S_MAX}),
        ("turns", "each ack awaited", {}),
    ):
        title = f"danube-client, a consumer beside a producer with 16 in flight, {acks}"
        for name in ("broker", "relay"):
            behind = [each[2] for each in found[mode, name]]
            measure = f"{title}: behind at the end" + (", of a relay" if name == "relay" else "")
            rows.append(absolute(measure, behind, "s", **(bars if name == "broker" else {})))
    return rows


def _danube(url: str, topic: str, mode: str, count: int) -> list[float]:
    script = os.path.join(HERE, "danube_way.py")
    topic += f"-{time.monotonic_ns()}"
    command = [sys.executable, script, url, topic, mode, str(count)]
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [float(word) for word in ended.stdout.split()]
