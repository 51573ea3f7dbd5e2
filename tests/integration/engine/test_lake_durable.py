"""A commit that is found at the start: its files are whole and synced before its records go."""

from __future__ import annotations

from pathlib import Path

import pytest

from frazil.errors import Unavailable
from frazil.fs import RealFileSystem
from frazil.lake import tables as lake_tables
from tests.integration.engine.lake_engine import (
    COLUMNS,
    ids_of,
    opened,
    status_of,
    table_of,
    wait_until,
)
from tests.support import FaultyFileSystem


@pytest.fixture
def seam(monkeypatch):
    """Return what takes note of the engine's syncs in tables."""
    found = FaultyFileSystem(RealFileSystem())
    monkeypatch.setattr(lake_tables, "RealFileSystem", lambda: found)
    return found


def hold_of(db):
    return db.topic("landed").runtime.state.holds["lake"]


def left_landed(path):
    """Commit a record, then one whose answer is lost with the engine; return what that wrote."""
    with opened(path) as (db, stand_in):

        def reached(step):
            if step == "committed":
                stand_in.refuse = Unavailable("not now")

        topic = db.create_topic("landed", COLUMNS, lake=True)
        topic.append(id=0, text="", ack="committed")
        root = Path(table_of(db, "landed").location().removeprefix("file://"))
        before = set(root.rglob("*"))
        stand_in.die_at, stand_in.reached = "committed", reached
        topic.append(id=1, text="x")
        with pytest.raises(Unavailable):
            db.lake.flush("landed", timeout_s=2)
        assert ids_of(db, "landed") == [0, 1]
        assert hold_of(db) == 1
        return {str(each) for each in set(root.rglob("*")) - before if each.is_file()}


def test_a_commit_found_at_the_start_is_synced_before_its_records_go(tmp_path, seam):
    """The first look of the next life syncs every file of it, then moves hold and watermark."""
    files = left_landed(tmp_path)
    assert len(files) == 4
    seam.trace.clear()
    with opened(tmp_path) as (db, _stand_in):
        db.lake.start()
        wait_until(lambda: hold_of(db) == 2)
        assert {call.path for call in seam.trace if call.verb == "sync"} == files
        assert db.lake.committed("landed") == {-1: 2}


def test_a_commit_that_the_power_took_is_made_again(tmp_path):
    """A cut file stops the table with its record held; rolled back, the record is moved again."""
    (path,) = [each for each in left_landed(tmp_path) if each.endswith(".parquet")]
    Path(path).write_bytes(b"")
    with opened(tmp_path) as (db, _stand_in):
        db.lake.start()
        wait_until(lambda: status_of(db, "landed")["state"] == "stopped: corruption")
        assert "lost before it was synced" in status_of(db, "landed")["why"]
        assert hold_of(db) == 1
        table = table_of(db, "landed")
        first = table.metadata.snapshots[0].snapshot_id
        table.manage_snapshots().rollback_to_snapshot(first).commit()
        db.lake.resume("landed")
        db.lake.flush("landed")
        assert ids_of(db, "landed") == [0, 1]
        assert hold_of(db) == 2
