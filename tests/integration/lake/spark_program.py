"""A program with an engine and a real lake worker, to be killed during a commit.

    python spark_program.py DIRECTORY PORT COUNT

It commits what an earlier life left, prints the number of its worker, and waits for a line. Then it
publishes COUNT records, prints the offset of the first one, and commits them.
"""

from __future__ import annotations

import sys
import time

import pyarrow as pa

import frazil

COLUMNS = {"id": "long", "at": "timestamp[ms, UTC]"}
BEYOND_MS = 1 << 60
MISFIT = 4
"""This one of the records of each life cannot be converted."""


def settings_of(port):
    """Return the settings: the catalog keeps its address over all lives."""
    return {
        "lake.catalog.port": int(port),
        "lake.writer.flush_interval": "1h",
        "lake.ack_timeout_s": "600s",
        "lake.spark.conf": {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"},
        "log.ballast_bytes": 0,
        "log.free_bytes_min": 0,
        "log.free_ratio_min": 0,
    }


def main(path, port, count):
    """Live until killed."""
    db = frazil.open(path, **settings_of(port))
    new = "/default/t" not in db.topics()
    topic = db.create_topic("t", COLUMNS, lake=True) if new else db.topic("t")
    db.lake.start()
    db.lake.flush("t")
    # The flush of an empty topic needs no worker.
    while not db.lake.status()["worker"].get("java_pid"):
        time.sleep(0.1)
    print(db.lake.status()["worker"]["pid"], flush=True)
    sys.stdin.readline()
    head = topic.describe()["watermarks"]["head"]
    times = [BEYOND_MS if number == MISFIT else number for number in range(int(count))]
    data = {
        "id": pa.array([1000 + head + number for number in range(int(count))], pa.int64()),
        "at": pa.array(times, pa.int64()).view(pa.timestamp("ms", "UTC")),
    }
    print(topic.append_arrow(pa.table(data)).offset, flush=True)
    db.lake.flush("t")
    # Only a step that this commit does not have lets it come so far.
    print("flushed", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
