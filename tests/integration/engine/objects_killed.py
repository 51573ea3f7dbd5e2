"""A process that dies at a step of an upload: python -m … DIRECTORY STEP."""

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


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
