"""An engine whose lake has a real catalog, and a worker without Spark; looks at its tables."""

from __future__ import annotations

import contextlib
import shutil

import pytest

import frazil
from frazil.lake import runtime as engine_lake
from frazil.lake.connection import connect
from tests.integration.engine.lake_stand_in import StandIn
from tests.integration.engine.opening import wait_until

COLUMNS = {"id": "long", "text": "string"}
SETTINGS = {
    "lake.catalog.port": 0,
    "lake.writer.flush_interval": "1h",
    "lake.ack_timeout_s": "60s",
    "log.ballast_bytes": 0,
    "log.free_bytes_min": 0,
    "log.free_ratio_min": 0,
}


@contextlib.contextmanager
def opened(path, **settings):
    """Open an engine whose lake has a worker without Spark; yield both."""
    stand_in = StandIn()
    patch = pytest.MonkeyPatch()
    patch.setattr(engine_lake, "launcher", lambda *_, **__: stand_in.launch)
    try:
        with frazil.open(path, **{**SETTINGS, **settings}) as db:
            yield db, stand_in
    finally:
        patch.undo()


def table_of(db, topic, namespace="default"):
    """Load a topic's table."""
    return connect(db.lake.catalog.address()).load_table((namespace, topic))


def rows_of(db, topic):
    """Return a table's rows by offset, parts first."""
    found = table_of(db, topic).scan().to_arrow().to_pylist()
    return sorted(found, key=lambda row: (row.get("_part", -1), row["_offset"]))


def ids_of(db, topic):
    """Return a table's column `id` in the order of offsets."""
    return [row["id"] for row in rows_of(db, topic)]


def status_of(db, topic):
    """Return what the lake says of one topic."""
    return db.lake.status()["topics"][f"/default/{topic}"]


def looked_at(db, name):
    """Have the lake look at a topic's table again; return its state."""
    db.lake.pause(name)
    db.lake.resume(name)
    wait_until(lambda: status_of(db, name)["state"] != "starting")
    return status_of(db, name)["state"]


def taken(db, name, old=5, new=4):
    """Make a topic whose table has rows of another one; return it."""
    first = db.create_topic(name, COLUMNS, lake=True)
    first.append_many([{"id": n, "text": "old"} for n in range(old)], ack="committed")
    db.delete_topic(name)
    topic = db.create_topic(name, COLUMNS, lake=True)
    for number in range(new):
        topic.append(id=10 + number, text="new")
    wait_until(lambda: status_of(db, name)["state"] == "stopped: foreign_table")
    return topic


def side_is_ahead(db, name, end, owner=None):
    """Let a topic's table of rejects say that it has all below `end`, by default for its owner."""
    side = table_of(db, f"{name}__rejects")
    facts = {"frazil.topic-id": owner or side.properties["frazil.topic-id"]}
    empty = side.schema().as_arrow().empty_table()
    side.append(empty, snapshot_properties={**facts, "frazil.offset-end": str(end)})


def an_older_copy(tmp_path, name):
    """Return a data directory whose table has five rows, of which the log has one."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    with opened(data) as (db, _stand_in):
        db.create_topic(name, COLUMNS, lake=True).append(id=0, text="old", ack="committed")
    shutil.copytree(data, copy, ignore=shutil.ignore_patterns("warehouse", "catalog.db*", "run"))
    with opened(data) as (db, _stand_in):
        more = [{"id": n, "text": "old"} for n in range(1, 5)]
        db.topic(name).append_many(more, ack="committed")
    for path in copy.iterdir():
        target = data / path.name
        if path.is_dir():
            shutil.rmtree(target)
            shutil.copytree(path, target)
        else:
            shutil.copy(path, target)
    return data
