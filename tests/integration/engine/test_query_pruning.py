"""Files that cannot have a row of the answer are not read: by bounds, by nulls."""

from __future__ import annotations

import datetime as dt

import duckdb
import pyarrow as pa
import pytest

from tests.integration.engine.opening import open_small


@pytest.fixture
def db(tmp_path):
    with open_small(tmp_path) as engine:
        yield engine


def files_read(db, sql, params=None):
    """Return how many files a query reads, after a look that none of its rows is lost."""
    count = db.query(f"SELECT count(*) FROM ({sql})", params).rows()
    everything = sql.replace("FROM t ", "FROM (SELECT * FROM t OFFSET 0) ")
    assert count == db.query(f"SELECT count(*) FROM ({everything})", params).rows()
    assert count != [(0,)]
    return db.explain(sql, params)["tables"][0]["disk"]["files_read"]


def filled(db, columns, rows, **options):
    topic = db.create_topic("t", columns, **options)
    topic.append_many(rows)
    db.tiers.flush()
    db.tiers.evict()
    return len(db.tiers.describe_files("t"))


VALUES = [
    (pa.int32(), [-5, 0, 7, 1 << 30]),
    (pa.string(), ["", "a", "é", "zz"]),
    (pa.binary(), [b"", b"\x00", b"ab"]),
    (pa.date32(), [dt.date(1969, 1, 1), dt.date(2026, 1, 1)]),
    (pa.timestamp("us", "UTC"), [dt.datetime(1969, 1, 1, tzinfo=dt.UTC), dt.datetime.now(dt.UTC)]),
]


@pytest.mark.parametrize(("data_type", "values"), VALUES, ids=[str(each) for each, _ in VALUES])
def test_the_partition_of_a_constant_is_read_alone(db, data_type, values):
    """A file of one value is left out by the constants that differ from it, for each type."""
    rows = [{"c": value} for value in [*values, None]]
    assert filled(db, {"c": data_type}, rows, partition_by=["c"]) == len(rows)
    for value in values:
        assert files_read(db, "SELECT * FROM t WHERE c = ?", [value]) == 1


def test_nulls_are_read_for_null_alone(db):
    """A partition of nulls is left out by a comparison, all others by IS NULL."""
    rows = [{"c": country, "v": 1} for country in ("DE", "FR", None)]
    assert filled(db, {"c": pa.string(), "v": pa.int64()}, rows, partition_by=["c"]) == 3
    assert files_read(db, "SELECT * FROM t WHERE c = 'DE'") == 1
    assert files_read(db, "SELECT * FROM t WHERE c >= 'DE'") == 2
    assert files_read(db, "SELECT * FROM t WHERE c IS NULL") == 1
    assert files_read(db, "SELECT * FROM t WHERE c IS NOT NULL") == 2
    assert files_read(db, "SELECT * FROM t WHERE v IS NOT NULL") == 3


def test_outer_joins_keep_the_rows_that_are_not_null(db):
    """IS NULL behind an outer join leaves out nothing: it asks for rows that were not found."""
    rows = [{"c": country} for country in ("DE", None)]
    filled(db, {"c": pa.string()}, rows, partition_by=["c"])
    sql = "SELECT x FROM (VALUES ('DE'), ('FR')) AS l(x) LEFT JOIN t ON t.c = x WHERE t.c IS NULL"
    assert db.query(sql).rows() == [("FR",)]


@pytest.fixture
def eight(db):
    """A topic of eight files with 125 numbers each, which nobody merges."""
    db.tiers.stop()
    topic = db.create_topic("t", {"n": pa.int64(), "v": pa.int64()})
    for first in range(0, 1000, 125):
        topic.append_many([{"n": number, "v": 0} for number in range(first, first + 125)])
        db.tiers.flush()
    db.tiers.evict()
    assert len(db.tiers.describe_files("t")) == 8
    return db


def files_read_for_all(db, sql):
    """Return how many files a query reads, after a look that it gives what DuckDB gives."""
    plain = duckdb.connect()
    plain.execute("CREATE TABLE t AS SELECT range n, 0 v FROM range(1000)")
    count = f"SELECT count(*) FROM ({sql})"
    expected = plain.execute(count).fetchall()
    assert expected != [(0,)]
    assert db.query(count).rows() == expected
    return db.explain(sql)["tables"][0]["disk"]["files_read"]


SUBQUERIES = [
    "SELECT * FROM (SELECT * FROM t ORDER BY n DESC LIMIT 900) WHERE n < 500",
    "SELECT * FROM (SELECT n, row_number() OVER (ORDER BY n) r FROM t ) WHERE n = 500",
    "SELECT * FROM (SELECT n + 1 n FROM t ) WHERE n = 500",
    "SELECT * FROM (SELECT v n, n v FROM t ) WHERE n = 0",
    "SELECT * FROM (SELECT max(n) n FROM t ) WHERE n = 999",
    "SELECT * FROM (SELECT n v, * FROM t ) WHERE n = 500",
    "SELECT * FROM (SELECT DISTINCT v, n FROM t ) WHERE n = 500",
    "SELECT * FROM (SELECT n, v FROM t ) q(v, n) WHERE n = 0",
    "WITH x(v, n) AS (SELECT n, v FROM t ) SELECT * FROM x WHERE n = 0",
    "WITH x AS (SELECT * FROM t ) SELECT * FROM x WHERE n = 500 AND 1000 = (SELECT count(*) FROM x)",
    "WITH x AS (SELECT * FROM t ) SELECT * FROM x a, x b WHERE a.n = 500 AND b.n = 3",
    "SELECT * FROM (SELECT * EXCLUDE (v) FROM t ) WHERE n = 500",
    "SELECT * FROM (SELECT min(n) n FROM t GROUP BY n % 10) WHERE n = 3",
]


def test_conditions_around_a_subquery_leave_nothing_out(eight):
    """What counts, orders, limits, renames or computes rows is given all of them."""
    for sql in SUBQUERIES:
        assert files_read_for_all(eight, sql) == 8, sql


def test_qualified_names_read_the_columns_that_they_name(eight):
    """A name with its table before it does not stand for the table's whole rows; that alone does."""

    def columns(sql):
        assert eight.query(sql).rows()
        return eight.explain(sql)["tables"][0]["columns"]

    assert columns("SELECT t.n FROM t WHERE t.n = 500") == ["n"]
    assert columns("SELECT e.v FROM t e ORDER BY e.n LIMIT 1") == ["n", "v"]
    assert columns('SELECT "default".t.v FROM "default".t LIMIT 1') == ["v"]
    assert columns("SELECT t FROM t LIMIT 1") == ["_offset", "_time", "n", "v"]
    assert columns("SELECT t.n, e FROM t, t e LIMIT 1") == ["n"]
