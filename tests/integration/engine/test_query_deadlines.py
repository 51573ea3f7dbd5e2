"""A query's time is watched while changes are folded for it, before DuckDB is asked."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa
import pytest

from frazil.errors import Unavailable
from frazil.tiers import TopicTiers
from tests.integration.engine.opening import open_small
from tests.integration.engine.tier_world import World

ROWS = 400_000
KEYS = 300_000
COUNT = "SELECT count(*), max(v) FROM t"
LOOK_UP = "SELECT v FROM t WHERE k = 7"


@pytest.fixture
def unfolded(tmp_path):
    """An engine and a topic whose many changes nobody has folded."""
    sizes = {"write_bytes_max": 4 << 20, "segment_bytes_max": 256 << 20}
    with open_small(tmp_path, **sizes) as engine:
        engine.tiers.stop()
        topic = engine.create_topic("t", {"k": "long", "v": "long"}, primary_key="k")
        numbers = np.arange(ROWS)
        topic.append_arrow(pa.table({"k": numbers % KEYS, "v": numbers}))
        assert topic.runtime.tiers.keyed.folded_to < 0
        yield engine, topic.runtime.tiers


def is_free(lock):
    """Tell whether another thread gets a lock."""
    taken = []

    def take():
        taken.append(lock.acquire(timeout=5))
        if taken[0]:
            lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return taken == [True]


@pytest.mark.parametrize("sql", [COUNT, LOOK_UP])
def test_a_fold_ends_with_the_time_of_its_query(unfolded, sql):
    """A query ends with its time long before all is folded, and the next one goes on."""
    engine, tiers = unfolded
    folded = []
    for _turn in range(2):
        with pytest.raises(Unavailable, match="took too long"):
            engine.query(sql, timeout_s=0.02)
        folded.append(tiers.keyed.folded_to)
        assert is_free(tiers.memory.lock)
    assert 0 <= folded[0] < folded[1] < ROWS
    assert engine.query(COUNT).rows() == [(KEYS, ROWS - 1)]
    assert engine.query(LOOK_UP).rows() == [(KEYS + 7,)]


def test_others_get_at_the_topic_while_a_query_folds(unfolded):
    """A look-up that comes during the fold of a query is answered before that has ended."""
    engine, tiers = unfolded
    query = threading.Thread(target=engine.query, args=(COUNT,))
    waits = threading.Event()
    query.start()
    while tiers.keyed.folded_to < 0:
        waits.wait(0.0001)
    seen = []
    while tiers.keyed.folded_to < ROWS:
        with tiers.memory.lock:
            seen.append(tiers.keyed.folded_to)
        waits.wait(0.0001)
    query.join()
    assert len(set(seen)) > 2, seen


def test_records_without_a_key_are_not_decoded_either(tmp_path):
    """Nor are rows made Arrow for a query that was cancelled."""
    with open_small(tmp_path) as engine:
        engine.tiers.stop()
        topic = engine.create_topic("t", {"k": "long", "v": "long"})
        topic.append_many([{"k": n, "v": n} for n in range(100)])
        queries = engine.queries()
        with pytest.raises(Unavailable, match="cancelled"):
            queries.query(COUNT, on_begin=queries.cancel)
        assert topic.runtime.tiers.memory.settled == 0
        assert engine.query(COUNT).rows() == [(100, 99)]


def test_files_are_not_read_for_a_query_that_must_stop():
    """After a start the rows of files are read; a cancelled query ends that, too."""
    world = World()
    topic = world.db.create_topic("t", {"k": "long", "v": "long"}, primary_key="k")
    for n in range(6):
        topic.upsert(k=n % 4, v=n)
        world.db.tiers.flush()
    world.db.close()
    with world.open() as engine:
        tiers, queries = engine.topic("t").runtime.tiers, engine.queries()
        for _turn in range(2):
            with pytest.raises(Unavailable, match="cancelled"):
                queries.query(COUNT, on_begin=queries.cancel)
            assert not tiers.loaded
        assert engine.query(COUNT).rows() == [(4, 5)]
        assert engine.query("SELECT k, v FROM t ORDER BY k").rows() == [
            (0, 4),
            (1, 5),
            (2, 2),
            (3, 3),
        ]


def test_a_query_does_not_wait_for_a_load_beyond_its_time(tmp_path, monkeypatch):
    """While another thread loads a topic after a start, a query ends with its time."""
    with open_small(tmp_path) as engine:
        topic = engine.create_topic("t", {"k": "long", "v": "long"}, primary_key="k")
        topic.append_many([{"k": n, "v": n} for n in range(100)])
    entered, go_on = threading.Event(), threading.Event()
    load = TopicTiers._load_some

    def slow(tiers):
        entered.set()
        assert go_on.wait(20)
        load(tiers)

    monkeypatch.setattr(TopicTiers, "_load_some", slow)
    with open_small(tmp_path) as engine:
        assert entered.wait(20)
        try:
            with pytest.raises(Unavailable, match="took too long"):
                engine.query(COUNT, timeout_s=0.1)
        finally:
            go_on.set()
        assert engine.query(COUNT).rows() == [(100, 99)]


def test_a_load_ends_with_the_time_of_its_query():
    """A query that loads a topic itself is left between two pieces of the log."""
    world = World()
    topic = world.db.create_topic("t", {"k": "long", "v": "long"})
    topic.append_many([{"k": n, "v": n} for n in range(100)])
    world.db.close()
    with world.open() as engine:
        tiers, queries = engine.topic("t").runtime.tiers, engine.queries()
        with pytest.raises(Unavailable, match="cancelled"):
            queries.query(COUNT, on_begin=queries.cancel)
        assert not tiers.loaded
        assert tiers.memory.settled == 0
        assert engine.query(COUNT).rows() == [(100, 99)]
