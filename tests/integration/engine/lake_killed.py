"""A program that publishes into a lake and is killed when a commit reaches a step.

    python lake_killed.py DIRECTORY STEP

It prints the last offset that was acked before the commit that is its end.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import frazil
from frazil.lake import runtime as engine_lake
from tests.integration.engine.lake_stand_in import StandIn


class Deadly(StandIn):
    """A worker whose progress is the end of everything, worker and engine."""

    step = ""
    armed = False

    def reached(self, step):
        if self.armed and step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def main(path, step):
    stand_in = Deadly()
    stand_in.step = step
    engine_lake.launcher = lambda *_, **__: stand_in.launch
    settings = {"lake.catalog.port": 0, "log.ballast_bytes": 0, "lake.writer.flush_interval": "1h"}
    db = frazil.open(path, **settings)
    topic = db.create_topic("t", {"id": "long"}, partitions=2, lake=True)
    acks = topic.append_many([{"id": n} for n in range(10)], ack="committed")
    stand_in.armed = True
    acks += topic.append_many([{"id": n} for n in range(10, 20)])
    print(sum(ack.offset_last - ack.offset + 1 for ack in acks), flush=True)
    db.lake.flush()
    # A step that this commit does not have: the end comes all the same.
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
