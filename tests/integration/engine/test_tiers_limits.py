"""Limits of the tiers at work: who may touch files, what counts, and what is let go."""

from __future__ import annotations

import gc
import os
import signal

import numpy as np
import pyarrow as pa
import pytest

from frazil.clock import SystemClock
from frazil.engine import Engine
from frazil.errors import Closed, Unavailable
from frazil.fs import RealFileSystem
from frazil.query import EngineSnapshot
from tests.integration.engine.opening import open_small, small_settings

CHILD_S = 30
CHILDREN_MAX = 3


def in_child(work):
    """Run something in a forked child; return whether it said yes.

    A lock that another thread, of Arrow or of the collector's finds, had at the moment of the fork
    is locked for ever in the child: one that hangs is given up, and another one is tried.
    """
    for _ in range(CHILDREN_MAX):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(CHILD_S)
                status = 0 if work() else 2
            finally:
                os._exit(status)
        _pid, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code != -signal.SIGALRM:
            return code == 0
    return False


def parquet_files(path):
    """Return the names of the data files below a directory."""
    return sorted(each.name for each in path.glob("disk/*/*.parquet"))


def refused(call):
    """Tell whether a call says that the engine belongs to another process."""
    try:
        call()
    except Closed as error:
        return "fork" in str(error)
    return False


# -- forks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["dropped", "closed"])
def test_a_child_that_drops_its_copy_of_a_snapshot_removes_nothing(tmp_path, way):
    """A retired file that the parent still pins stays, and goes when the parent lets it go."""
    with open_small(tmp_path) as db:
        topic = db.create_topic("t", {"k": "int64"})
        for number in range(50):
            topic.append(k=number)
        db.tiers.flush()
        db.tiers.evict()
        held = [EngineSnapshot(topic.runtime.tiers, 50, state=True)]
        db.tiers.disk.space.expire(topic.runtime.state.id, 50)
        names = parquet_files(tmp_path)
        assert names

        def drop():
            snapshot = held.pop()
            if way == "closed":
                snapshot.close()
            del snapshot
            gc.collect()
            db.tiers.disk.space.usage()
            return True

        assert in_child(drop)
        assert parquet_files(tmp_path) == names
        held.pop().close()
        assert parquet_files(tmp_path) == []


def test_a_child_moves_nothing_of_its_parents_engine(tmp_path):
    """Flush, evict and SQL of a child are refused; the parent's go on."""
    with open_small(tmp_path) as db:
        topic = db.create_topic("t", {"k": "int64"})
        topic.append(k=1)
        assert db.query("select k from t").rows() == [(1,)]
        calls = [
            db.tiers.flush,
            db.tiers.evict,
            lambda: db.query("select k from t"),
            lambda: db.tiers.describe_files("t"),
        ]
        for call in calls:
            assert in_child(lambda call=call: refused(call))
        picture = db.tiers.disk.picture(topic.runtime.state.id)
        change = db.tiers.disk.catalog.change
        assert in_child(lambda: refused(lambda: change(picture, picture.marks)))
        assert in_child(lambda: db.close() is None)
        assert parquet_files(tmp_path) == []
        assert db.tiers.flush() == {"/default/t": 1}
        assert len(parquet_files(tmp_path)) == 1
        assert db.query("select k from t").rows() == [(1,)]


# -- memory --------------------------------------------------------------------------------------


def test_a_deletion_vector_that_nothing_frees_does_not_stop_other_topics(tmp_path):
    """A topic with more superseded rows in files than the budget could hold stops nobody."""
    memory = {"budget_bytes": 16 << 20, "wait_s": 0.5}
    with open_small(tmp_path, memory=memory, tiers={"rss_base_bytes": 8 << 30}) as db:
        keyed = db.create_topic("t", {"k": "int64"}, primary_key="k")
        other = db.create_topic("z", {"k": "int64"})
        keyed.append_arrow(pa.table({"k": [1]}))
        vector = keyed.runtime.tiers.keyed.vectors.files
        db.tiers.flush()
        db.tiers.evict()
        count = 2_500_000
        with keyed.runtime.tiers.memory.lock:
            vector.add(np.arange(count) + (1 << 30), np.arange(count) + (1 << 31))
        assert vector.nbytes == 16 * count
        pressure = db.tiers.pressure
        pressure.refresh()
        found = pressure.snapshot()
        assert found.sources["deletion_vectors"] > found.budget_bytes
        assert found.zone == "green"
        assert other.append(k=1).offset == 0


# -- what is left behind -------------------------------------------------------------------------


def test_waiting_in_vain_leaves_nothing_behind(tmp_path):
    """A wait for an offset that does not come takes its waiter out again; the others stay."""
    with open_small(tmp_path) as db:
        topic = db.create_topic("t", {"k": "int64"})
        waiters = topic.runtime.state.waiters
        for _ in range(3):
            assert not topic.runtime.wait_visible(0, timeout_s=0.01)
        assert topic.runtime.state.waiters == waiters == []
        topic.append(k=1)
        assert topic.runtime.wait_visible(0, timeout_s=10)


@pytest.mark.parametrize("directory", ["duckdb", "duckdb-3"])
def test_what_a_killed_process_spilled_is_removed(tmp_path, directory):
    """Files of DuckDB that a process left behind are gone once SQL is used again."""
    spilled = tmp_path / "run" / directory
    with open_small(tmp_path) as db:
        topic = db.create_topic("t", {"k": "int64"})
        topic.append(k=1)
        spilled.mkdir(parents=True, exist_ok=True)
        (spilled / "duckdb_temp_storage_DEFAULT-0.tmp").write_bytes(b"left behind")
        assert db.query("select count(*) from t").rows() == [(1,)]
        assert not spilled.exists() or list(spilled.iterdir()) == []


# -- time ----------------------------------------------------------------------------------------


class CancellingFileSystem(RealFileSystem):
    """A disk that has all queries cancelled when a data file is opened for reading."""

    opened = 0
    queries = None

    def open(self, path, mode):
        """Cancel, then open."""
        if path.endswith(".parquet") and mode == "read" and self.queries is not None:
            self.opened += 1
            self.queries.cancel_all()
        return super().open(path, mode)


def test_a_query_ends_between_files(tmp_path):
    """A query that verifies many files after a restart ends behind the one that it reads."""
    disk = CancellingFileSystem()
    settings = small_settings(tmp_path)
    with Engine(settings, file_system=disk, clock=SystemClock(), threads=False) as db:
        topic = db.create_topic("t", {"k": "int64"})
        for number in range(20):
            topic.append(k=number)
            db.tiers.flush()
    with Engine(settings, file_system=disk, clock=SystemClock(), threads=False) as db:
        disk.queries = db.queries()
        with pytest.raises(Unavailable, match="cancelled"):
            db.query("select sum(k) from t")
        assert disk.opened == 1
        disk.queries = None
        assert db.query("select sum(k) from t").rows() == [(sum(range(20)),)]
