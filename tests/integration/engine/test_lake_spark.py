"""The whole way with real Spark: publish, commit, kill the worker, commit on; two JVMs."""

from __future__ import annotations

import json
import os
import signal

import pyarrow as pa
import pytest

import frazil
from tests.integration.engine import lake_engine
from tests.integration.engine.opening import wait_until
from tests.support.processes import is_alive

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    # A worker that was silent for too long, on a slow machine, is given up while it still runs.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SETTINGS = {
    "lake.catalog.port": 0,
    "lake.writer.flush_interval": "2s",
    "lake.ack_timeout_s": "300s",
    "lake.spark.conf": {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"},
    "log.ballast_bytes": 0,
    "log.free_bytes_min": 0,
    "log.free_ratio_min": 0,
}
READINGS = {"id": "long not null", "day": "date", "tags": "list<string>", "price": "decimal(10,2)"}


def rows_of(db, topic, column):
    """Return where each row is, and one column, in the order of parts and offsets."""
    found = lake_engine.rows_of(db, topic)
    return [(row.get("_part", -1), row["_offset"]) for row in found], [r[column] for r in found]


def test_records_survive_the_death_of_spark_exactly_once(tmp_path):
    """Published at once, committed when Spark is there; a killed worker doubles and loses nothing."""
    with frazil.open(tmp_path, **SETTINGS) as db:
        messages = db.create_topic("messages", lake=True)
        readings = db.create_topic("readings", READINGS, partition_by=["day"], lake=True)
        shared = db.create_topic("shared", {"id": "long"}, partitions=2, lake=True)
        for number in range(100):
            messages.append(b"m%d" % number, key=str(number))
        assert db.lake.status()["state"] == "starting"
        readings.append({"id": 0, "tags": ["a", None], "price": None}, ack="committed")
        shared.append_many([{"id": n} for n in range(10)], ack="committed")
        status = db.lake.status()
        assert status["state"] == "running"
        first = status["worker"]
        assert first["versions"]["spark"].startswith("4.1.")
        os.kill(first["pid"], signal.SIGKILL)
        readings.append_arrow(pa.table({"id": pa.array(range(1, 50), pa.int64())}))
        db.alter_topic("readings", add={"note": "string"})
        readings.append({"id": 50, "note": "new"})
        for number in range(100, 150):
            messages.append(b"m%d" % number)
        db.lake.flush()
        second = db.lake.status()["worker"]
        assert second["pid"] != first["pid"]
        assert second["epoch"] > first["epoch"]
        wait_until(lambda: not is_alive(first["java_pid"]))
        places, payloads = rows_of(db, "messages", "payload")
        assert payloads == [b"m%d" % number for number in range(150)]
        assert places == [(-1, number) for number in range(150)]
        places, notes = rows_of(db, "readings", "note")
        assert places == [(-1, number) for number in range(51)]
        assert notes == [None] * 50 + ["new"]
        places, ids = rows_of(db, "shared", "id")
        assert sorted(ids) == list(range(10))
        assert len(set(places)) == 10
        db.lake.pause()
        for name, rows in (("messages", 150), ("readings", 51), ("shared", 10)):
            # By the worker of the engine: the files of the disk tier are compared, parts included.
            found = db.lake.verify(name)
            assert (found.verdict, found.exit_code, found.problems) == ("good", 0, ())
            assert (found.rows, found.compared) == (rows, rows)
        status = json.dumps(db.stats()["lake"])
        assert "paused" in status
    assert not is_alive(second["pid"])
    assert not is_alive(second["java_pid"])
