"""Queries beside producers, flushes and evictions: each sees one snapshot."""

from __future__ import annotations

import threading
import time
from random import Random

import pytest

from frazil.engine import Engine
from frazil.errors import FrazilError, Overloaded
from tests.integration.engine.opening import open_small

SECONDS = 5.0
PRODUCERS = 8
QUERIES = 8
KEYS = 40
TIERS = {
    "memory": {"flush_offsets": 400, "retention_s": 1.0},
    "disk": {"log_keep_s": 0.0},
    "tiers": {"merge_rows": 500, "file_bytes": 400_000, "small_file_bytes": 200_000},
}


class Load:
    """Producers of an append topic, a keyed one and two that are written in turn; and queries."""

    def __init__(self, db):
        self.db = db
        self.events = db.create_topic("events", {"n": "long", "p": "int"}, partition_by=["p"])
        self.keyed = db.create_topic("keyed", {"id": "long", "v": "long"}, primary_key="id")
        self.first = db.create_topic("first", {"n": "long"})
        self.second = db.create_topic("second", {"n": "long"})
        self.errors = []
        self.states = []
        """What queries of the keyed topic saw: (largest offset, rows)."""
        self.answers = 0
        self.stop = threading.Event()

    def run(self):
        """Run everything for a while; whatever goes wrong fails the test."""
        works = [(self._produce, number) for number in range(PRODUCERS)]
        works += [(self._ask, number) for number in range(QUERIES)]
        works += [(self._move, 0)]
        threads = [threading.Thread(target=self._guarded, args=work) for work in works]
        for thread in threads:
            thread.start()
        self.stop.wait(SECONDS)
        self.stop.set()
        for thread in threads:
            thread.join(60)
        assert self.errors == []

    def _guarded(self, work, number):
        random = Random(number)
        try:
            while not self.stop.is_set():
                work(number, random)
        except (AssertionError, FrazilError) as error:
            self.errors.append(error)
            self.stop.set()

    def _produce(self, number, random):
        count = random.choice((1, 3, 20))
        self.events.append_many([{"n": each, "p": number % 3} for each in range(count)])
        key = random.randrange(KEYS)
        if random.random() < 0.1:
            self.keyed.delete(key)
        elif random.random() < 0.4:
            self.keyed.update(key, {"v": random.randrange(1000)})
        else:
            self.keyed.upsert(id=key, v=random.randrange(1000))
        if number == 0:
            self.first.append(n=count)
            self.second.append(n=count)
        time.sleep(0.001)

    def _move(self, number, random):
        self.db.tiers.flush()
        if random.random() < 0.5:
            self.db.tiers.evict()
        time.sleep(0.02)

    def _ask(self, number, random):
        question = (self._count, self._state, self._pair, self._join)[number % 4]
        try:
            question(random)
        except Overloaded:
            # Its turn did not come in time.
            return
        self.answers += 1

    def _count(self, random):
        sql = "SELECT count(*), max(_offset), count(DISTINCT _offset), sum(1) FROM events"
        [(rows, last, different, total)] = self.db.query(sql).rows()
        assert rows == different == (total or 0)
        assert rows == (0 if last is None else last + 1)

    def _state(self, random):
        rows = self.db.query("SELECT _offset, id, v FROM keyed").rows()
        assert len({row[1] for row in rows}) == len(rows)
        self.states.append((max((row[0] for row in rows), default=-1), sorted(rows)))

    def _pair(self, random):
        sql = "SELECT (SELECT count(*) FROM first), (SELECT count(*) FROM second)"
        [(first, second)] = self.db.query(sql).rows()
        assert first - second in {0, 1}

    def _join(self, random):
        sql = """SELECT count(*), max(f._offset), (SELECT count(*) FROM second)
                 FROM first f JOIN second s ON f._offset = s._offset"""
        [(joined, last, second)] = self.db.query(sql).rows()
        assert joined == second
        assert joined == (0 if last is None else last + 1)


def check_states(load):
    """Each answer about the keyed topic is its changes folded up to one offset."""
    changes = list(load.keyed.changes())
    assert [change["offset"] for change in changes] == list(range(len(changes)))
    wanted = {}
    for last, rows in load.states:
        wanted.setdefault(last, []).append(rows)
    state = {}
    for change in changes:
        # A delete shows nothing: an answer may be from before or behind it.
        left = [rows for rows in wanted.get(_newest(state), ()) if rows != _rows(state)]
        wanted[_newest(state)] = left
        if change["after"] is None:
            state.pop(change["key"]["id"], None)
        else:
            state[change["key"]["id"]] = (change["offset"], change["after"]["v"])
    left = [rows for answers in wanted.values() for rows in answers if rows != _rows(state)]
    assert left == []


def _newest(state):
    return max((offset for offset, _v in state.values()), default=-1)


def _rows(state):
    return sorted((offset, key, value) for key, (offset, value) in state.items())


def test_every_query_sees_one_snapshot(tmp_path):
    """Counts, states and joins are those of one instant, whatever moves meanwhile."""
    with open_small(tmp_path, **TIERS) as db:
        load = Load(db)
        load.run()
        assert load.answers > 2 * QUERIES
        assert len(load.states) > 2
        check_states(load)
        assert db.tiers.errors == {}
        assert load.events.runtime.tiers.flushes > 2
    with open_small(tmp_path, **TIERS) as db:
        [(rows, last)] = db.query("SELECT count(*), max(_offset) FROM events").rows()
        assert rows == last + 1


def test_topics_are_joined_wherever_their_rows_lie(tmp_path):
    """A join of two topics has the same answer in memory, in files, and with rows in both."""
    sql = "SELECT count(*), sum(f.n) FROM first f JOIN second s ON f._offset = s._offset"
    with open_small(tmp_path) as db:
        first = db.create_topic("first", {"n": "long"})
        second = db.create_topic("second", {"n": "long"})
        total = 0
        for number in range(40):
            for topic in (first, second):
                topic.append_many([{"n": number}] * 7)
            total += 7 * number
            if number % 10 == 3:
                db.tiers.flush("first")
            elif number % 10 == 5:
                db.tiers.flush("second")
            elif number % 10 == 7:
                db.tiers.evict()
            assert db.query(sql).rows() == [(7 * (number + 1), total)]


def test_a_snapshot_of_two_instants_is_found(tmp_path, monkeypatch):
    """The checks above fail if a query takes the ends of its topics one after the other."""

    def visible_ends(self, runtimes):
        ends = []
        for runtime in runtimes:
            ends.append(runtime.state.durable)
            time.sleep(0.01)
        return ends

    monkeypatch.setattr(Engine, "visible_ends", visible_ends)
    with open_small(tmp_path, **TIERS) as db, pytest.raises(AssertionError):
        Load(db).run()
