"""An engine whose lake has a real catalog, and a worker without Spark; looks at its tables."""

from __future__ import annotations

import contextlib
import threading

import pytest

import frazil
from frazil.lake import runtime as engine_lake
from frazil.lake.connection import connect
from tests.integration.engine.lake_stand_in import StandIn

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


def wait_for(condition):
    """Wait until something is so."""
    pause = threading.Event()
    for _attempt in range(1200):
        if condition():
            return
        pause.wait(0.05)
    pytest.fail("it never came")
