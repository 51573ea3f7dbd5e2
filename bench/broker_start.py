"""How long `frazil serve` takes on an empty directory, from its command to the first answer."""

from __future__ import annotations

import time

from bench.broker_world import running_broker
from bench.harness import Bench, Row, absolute

START_S_MAX = 2


def run(bench: Bench) -> list[Row]:
    found = []
    # The first one reads the programs from the disk.
    for number in range(bench.pick(6, 2)):
        begun = time.perf_counter()
        with running_broker(bench.fresh(f"data-{number}")) as broker:
            broker.send_body("/default/first")
            found.append(time.perf_counter() - begun)
    title = "start on an empty directory, to the answer of a first call"
    return [absolute(title, found[1:], "s", value_max=START_S_MAX)]
