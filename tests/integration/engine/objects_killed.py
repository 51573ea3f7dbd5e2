"""A process that dies at a step of an upload, or publishes until it is killed.

python -m … DIRECTORY STEP, where the step "load" is the second.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from tests.integration.engine.objects_world import WAIT_S, open_with_objects


def main(path, step):
    """Publish ten records, then die at a step of their upload."""
    # Nothing is uploaded before all ten are there: the first upload is begun by hand.
    db = open_with_objects(path, objects={"interval_s": 3600, "default": False})
    topic = db.create_topic("killed")
    for number in range(10):
        topic.append(b"%d" % number)

    def reached(name):
        if name == step:
            os._exit(9)

    db.objects.uploader._on_step = reached
    db.alter_topic("killed", objects=True)
    time.sleep(WAIT_S)


def load(path):
    """Publish to two topics for ever, and tell of each ack what it promises."""
    db = open_with_objects(path)
    topics = [db.create_topic(f"load{number}", exist_ok=True) for number in range(2)]
    number = topics[0].describe()["watermarks"]["head"]
    while True:
        for which, topic in enumerate(topics):
            waits = number % 5 == which
            ack = topic.append(b"%d" % number, ack="uploaded" if waits else "fsynced")
            print(which, ack.offset, number, int(waits), flush=True)
        number += 1


if __name__ == "__main__":
    if sys.argv[2] == "load":
        load(Path(sys.argv[1]))
    else:
        main(Path(sys.argv[1]), sys.argv[2])
