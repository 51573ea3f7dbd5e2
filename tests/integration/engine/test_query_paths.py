"""Which way a statement is answered: index or scan, when memory is short, and in what types."""

from __future__ import annotations

import datetime as dt
import gc
from decimal import Decimal

import pyarrow as pa
import pytest

from frazil.errors import InvalidRequest, NotFound, Overloaded
from tests.integration.engine.opening import wait_until

COLUMNS = {
    "id": pa.int64(),
    "d": pa.date32(),
    "fixed": pa.binary(2),
    "s": pa.timestamp("s"),
    "z": pa.timestamp("ms", "UTC"),
    "n": pa.timestamp("ns", "UTC"),
    "amount": pa.decimal128(8, 2),
    "tags": pa.list_(pa.string()),
    "inner": pa.struct([("a", pa.int32()), ("b", pa.binary(1))]),
}
MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
ROW = {
    "id": 1,
    "d": MOMENT.date(),
    "fixed": b"ab",
    "s": MOMENT.replace(tzinfo=None),
    "z": MOMENT,
    "n": MOMENT,
    "amount": Decimal("1.50"),
    "tags": ["x", None],
    "inner": {"a": 1, "b": b"c"},
}


@pytest.fixture
def db(engine):
    return engine


@pytest.fixture
def parts(db):
    topic = db.create_topic(
        "p", {"id": pa.int64(), "v": pa.int64()}, primary_key="id", partitions=4
    )
    topic.append_many([{"id": number, "v": number * 10} for number in range(20)])
    return topic


def make_red(db):
    """Let a source take the whole budget, so that publishes are refused."""
    pressure = db.tiers.pressure
    held = [2 * pressure.zones.budget_bytes]
    pressure.add_source("test", lambda: held[0])
    pressure.refresh()
    assert pressure.snapshot().zone == "red"
    return held


def test_queries_are_refused_in_red_and_look_ups_are_not(db):
    """In red a query that scans is refused before it begins; keys are looked up all the same."""
    topic = db.create_topic("t", {"id": pa.int64(), "v": pa.int64()}, primary_key="id")
    topic.upsert(id=1, v=2)
    held = make_red(db)
    with pytest.raises(Overloaded, match="publishes come first"):
        db.query("SELECT sum(v) FROM t")
    assert db.query("SELECT v FROM t WHERE id = 1").rows() == [(2,)]
    held[0] = 0
    assert db.query("SELECT sum(v) FROM t").rows() == [(2,)]


def test_results_read_ahead_count_as_memory(db):
    """What a result holds is a source of pressure until it is closed or gone."""
    db.query("SELECT 1").close()
    pressure = db.tiers.pressure

    def counted():
        # Counting gives way while another thread counts.
        pressure.recount()
        return pressure.snapshot().sources["queries"]

    kept = db.query("SELECT range AS n FROM range(100000)")
    lost = db.query("SELECT range AS n FROM range(100000)")
    wait_until(lambda: counted() >= 2 * 800_000)
    kept.close()
    wait_until(lambda: 800_000 <= counted() < 2 * 800_000)
    del lost
    gc.collect()
    wait_until(lambda: counted() == 0)
    assert pressure.snapshot().sources["queries"] == 0


@pytest.mark.parametrize("moved", [False, True])
def test_one_statement_has_one_schema(db, moved):
    """Index and scan give a row with the same Arrow types and the same values."""
    topic = db.create_topic("t", pa.schema(list(COLUMNS.items())), primary_key="id")
    topic.append_arrow(pa.Table.from_pylist([ROW], pa.schema(list(COLUMNS.items()))))
    if moved:
        db.tiers.flush()
        db.tiers.evict()
    found = db.query("SELECT * FROM t WHERE id = 1")
    scanned = db.query("SELECT * FROM t WHERE id + 0 = 1")
    assert found.schema == scanned.schema
    assert found.arrow().equals(scanned.arrow())
    assert found.rows() == scanned.rows()
    assert db.query("SELECT * FROM t WHERE id = 2").arrow().schema == scanned.schema


@pytest.mark.parametrize(
    ("sql", "params"),
    [
        ("SELECT d FROM t WHERE d = DATE '2026-01-02'", None),
        ("SELECT d FROM t WHERE d = '2026-01-02'", None),
        ("SELECT d FROM t WHERE d = CAST(? AS DATE)", ["2026-01-02"]),
        ("SELECT d FROM t WHERE d = '2026-01-02' AND v > 0", None),
        ("SELECT d + 0 FROM t WHERE d = DATE '2026-01-02'", None),
    ],
)
def test_dates_take_the_index(db, sql, params):
    """Typed literals, texts, casts, further conditions and expressions all look up the key."""
    topic = db.create_topic("t", {"d": pa.date32(), "v": pa.int64()}, primary_key="d")
    topic.append_many([{"d": dt.date(2026, 1, day), "v": day} for day in (1, 2, 3)])
    facts = db.explain(sql, params)
    assert facts["path"] == "index"
    assert facts["tables"][0]["keys"] == 1
    assert len(db.query(sql, params).rows()) == 1


def test_keys_of_parts_are_looked_up_in_their_part(db, parts):
    """A partitioned topic answers from the index of the part that a key belongs to."""
    assert db.explain("SELECT v FROM p WHERE id = 3")["path"] == "index"
    scanned = db.query("SELECT * FROM p WHERE id + 0 < 20").rows()
    assert len(scanned) == 20
    for row in scanned:
        assert db.query("SELECT * FROM p WHERE id = ?", [row[3]]).rows() == [row]
    listed = ", ".join(map(str, range(25)))
    found = db.query(f"SELECT * FROM p WHERE id IN ({listed})").rows()
    assert sorted(found) == sorted(scanned)
    assert parts.part_of_key(3) == db.query("SELECT _part FROM p WHERE id = 3").rows()[0][0]


@pytest.mark.parametrize("sql", ["SELECT v FROM t WHERE id = 1", "SELECT -v FROM t WHERE id = 1"])
def test_explain_tells_where_a_key_lies(db, sql):
    """The tier of each row that was found is shown, and the file if it is in one."""
    topic = db.create_topic("t", {"id": pa.int64(), "v": pa.int64()}, primary_key="id")
    topic.upsert(id=1, v=2)
    found = db.explain(sql)["tables"][0]["found"]
    assert found == {"memory_rows": 1, "disk_rows": 0, "files": [], "file_bytes": 0}
    db.tiers.flush()
    db.tiers.evict()
    (file,) = db.tiers.describe_files("t")
    found = db.explain(sql)["tables"][0]["found"]
    assert found["disk_rows"] == 1
    assert found["files"] == [file["file"]]
    assert found["file_bytes"] > 0


def test_a_part_is_a_view_that_is_not_listed(db, parts):
    """Each part can be asked for its own rows; the catalog names the partitioned topic alone."""
    counts = [db.query(f'SELECT count(*) FROM "p-part-{n}"').rows()[0][0] for n in range(4)]
    assert sum(counts) == 20
    assert counts == [part.stats()["message_count"] for part in parts.parts]
    home = parts.part_of_key(3)
    for number in range(4):
        found = db.query(f'SELECT v FROM "p-part-{number}" WHERE id = 3').rows()
        assert found == ([(30,)] if number == home else [])
    assert db.query("SHOW TABLES").rows() == [("p",)]


@pytest.mark.parametrize("timeout_s", [-1, 0, float("nan"), float("inf"), "5", True])
def test_a_time_limit_is_a_number_above_zero(db, timeout_s):
    """A limit that is no time is refused, whichever way the statement would be answered."""
    db.create_topic("t", {"id": pa.int64()}, primary_key="id").upsert(id=1)
    for sql in ("SELECT count(*) FROM t", "SELECT id FROM t WHERE id = 1"):
        with pytest.raises(InvalidRequest, match="timeout_s"):
            db.query(sql, timeout_s=timeout_s)
    assert db.query("SELECT count(*) FROM t", timeout_s=5).rows() == [(1,)]


@pytest.mark.parametrize("call", ["flush", "evict"])
def test_a_topic_that_is_just_deleted_is_named(db, call):
    """A move of a topic whose tiers are gone already says which topic it was."""
    topic = db.create_topic("t", {"id": pa.int64()})
    db.tiers.stop()
    db.tiers.unbind(topic.runtime.state.id)
    with pytest.raises(NotFound) as caught:
        getattr(db.tiers, call)("t")
    assert caught.value.details["topic"] == "/default/t"
