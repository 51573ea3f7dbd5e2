"""Look-ups by key take the index, in whatever words they are written; others do not."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from frazil.errors import InvalidRequest
from frazil.model import OP_DELETE
from frazil.query.plan import template_of
from tests.unit.query.small_tiers import EPOCH, SmallTiers


@pytest.fixture(scope="module")
def tiers(tmp_path_factory):
    tiers = SmallTiers(tmp_path_factory.mktemp("tiers"))
    users = tiers.create("users", {"id": pa.int64(), "name": pa.string()}, key=["id"])
    for number in range(6):
        users.append({"id": number, "name": f"it's {number}"})
    users.append({"id": 3}, op=OP_DELETE)
    users.flush(3)
    pairs = tiers.create(
        "app.pairs", {"k": pa.string(), "n": pa.int32(), "v": pa.int64()}, key=["k", "n"]
    )
    pairs.append({"k": "a", "n": 1, "v": 1}, {"k": "a", "n": 2, "v": 2}, {"k": "b", "n": 1, "v": 3})
    tiers.create("events", {"id": pa.int64()}).append({"id": 1})
    return tiers


@pytest.fixture(scope="module")
def engine(tiers):
    engine = tiers.engine()
    yield engine
    engine.close()


def ask(tiers, engine, sql, params=None):
    """Return the rows, and whether DuckDB was asked."""
    before = tiers.snapshots
    rows = engine.query(sql, params).rows()
    return rows, tiers.snapshots != before


FORMS = [
    ("SELECT name FROM users WHERE id = 2", None),
    ("select NAME from USERS where ID=2;", None),
    ('SELECT "name" FROM "users" WHERE "id" = 2', None),
    ("SELECT u.name FROM users u WHERE u.id = 2", None),
    ("SELECT u.name FROM users AS u WHERE 2 = u.id", None),
    ("SELECT users.name FROM users WHERE users.id = 2", None),
    ('SELECT "default".users.name FROM "default".users WHERE id = 2', None),
    ("SELECT name AS name FROM users WHERE (id = (2))", None),
    ("FROM users SELECT name WHERE id = 2 LIMIT 1", None),
    ("SELECT name FROM users WHERE id IN (2)", None),
    ("SELECT name FROM users WHERE id IN (2, 2, 77, 3)", None),
    ("SELECT name /* which */ FROM users -- where\n WHERE id = 2", None),
    ("SELECT name FROM users WHERE id = ?", [2]),
    ("SELECT name FROM users WHERE id = $1 LIMIT $2", [2, 5]),
    ("SELECT name FROM users WHERE id = $key", {"key": 2}),
    ("SELECT name FROM users WHERE id IN (?, ?)", (2, 99)),
    ("SELECT name FROM users WHERE id = 2.0", None),
    ("SELECT name FROM users WHERE id IN (?)", [2]),
]
CASTS = [
    ("SELECT name FROM users WHERE id = '2'", None),
    ("SELECT name FROM users WHERE id = ?", ["2"]),
    ("SELECT name FROM users WHERE id = 2::BIGINT", None),
    ("SELECT name FROM users WHERE id = CAST('2' AS INTEGER)", None),
    ("SELECT name FROM users WHERE id = CAST(? AS BIGINT)", [2]),
]


@pytest.mark.parametrize(("sql", "params"), CASTS)
def test_casts_are_left_to_duckdb(tiers, engine, sql, params):
    """A key that must be cast is compared by DuckDB, with the same answer."""
    assert ask(tiers, engine, sql, params) == ([("it's 2",)], True)


@pytest.mark.parametrize(("sql", "params"), FORMS)
def test_textual_forms_of_a_look_up_never_ask_duckdb(tiers, engine, sql, params):
    """Aliases, quotes, case, comments, lists, limits and parameters change nothing."""
    assert ask(tiers, engine, sql, params) == ([("it's 2",)], False)
    assert engine.explain(sql, params)["path"] == "index"


PAIRS = "SELECT v FROM app.pairs WHERE n = {} AND k = {}"


@pytest.mark.parametrize(
    ("sql", "params", "rows"),
    [
        ("SELECT * FROM users WHERE id = 2", None, [(2, EPOCH, 2, "it's 2")]),
        ("SELECT id FROM users WHERE id = 3", None, []),
        ("SELECT id FROM users WHERE id = 77", None, []),
        ("SELECT id FROM users WHERE id IN (5, 1, 5)", None, [(5,), (1,)]),
        ("SELECT id FROM users WHERE id IN (5, 1) LIMIT 1", None, [(5,)]),
        ("SELECT id FROM users WHERE id IN (5, 1) LIMIT 0", None, []),
        (PAIRS.format(2, "'a'"), None, [(2,)]),
        (PAIRS.format("?", "?"), [1, "b"], [(3,)]),
        ("SELECT v FROM app.pairs WHERE k IN ('a', 'b') AND n = 1", None, [(1,), (3,)]),
    ],
)
def test_other_look_ups_show_what_they_ask_for(tiers, engine, sql, params, rows):
    """Stars, several keys, absent and deleted keys, composite keys, limits never ask DuckDB."""
    assert ask(tiers, engine, sql, params) == (rows, False)


def test_columns_of_a_look_up_have_their_aliases(engine):
    """A look-up names its columns as the statement does."""
    result = engine.query("SELECT id AS key, name title, _offset FROM users WHERE id = 4")
    assert (result.columns, result.rows()) == (["key", "title", "_offset"], [(4, "it's 4", 4)])
    assert result.arrow().to_pylist() == [{"key": 4, "title": "it's 4", "_offset": 4}]


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT upper(name) FROM users WHERE id = 2", [("IT'S 2",)]),
        ("SELECT name FROM users WHERE id = 1 + 1", [("it's 2",)]),
        ("SELECT name FROM users WHERE id = 2 AND name LIKE 'it%'", [("it's 2",)]),
        ("SELECT name FROM users WHERE id = 2 AND name = 'no'", []),
        ("SELECT id FROM users WHERE id IN (4, 2) ORDER BY id", [(2,), (4,)]),
        ("SELECT id FROM users WHERE id IN (4, 2) ORDER BY id OFFSET 1", [(4,)]),
        ("SELECT count(*) FROM users WHERE id IN (4, 2, 9)", [(2,)]),
        ("SELECT id, id FROM users WHERE id = 2", [(2, 2)]),
        ("SELECT * EXCLUDE (_time) FROM users WHERE id = 2", [(2, 2, "it's 2")]),
        ("SELECT e.id FROM events e, users u WHERE u.id = 1 AND e.id = u.id", [(1,)]),
        ("WITH one AS (SELECT name FROM users WHERE id = 2) SELECT * FROM one", [("it's 2",)]),
        ("SELECT name FROM users WHERE id = '2' AND name <> ''", [("it's 2",)]),
        ("SELECT name FROM users WHERE id = 2 AND id = 4", []),
    ],
)
def test_more_than_a_look_up_runs_on_the_rows_that_were_found(tiers, engine, sql, rows):
    """DuckDB gets the rows of the keys, not the topic, and gives the same answer."""
    assert ask(tiers, engine, sql) == (rows, True)


@pytest.mark.parametrize(
    ("sql", "keys"),
    [
        ("SELECT upper(name) FROM users WHERE id = 2", 1),
        ("SELECT u.name FROM users u JOIN events e ON true WHERE u.id IN (1, 2, 9)", 3),
        ("SELECT name FROM users WHERE id = 1 OR id = 2", None),
        ("SELECT name FROM users WHERE id > 2", None),
        ("SELECT name FROM users WHERE id = id", None),
        ("SELECT name FROM users WHERE NOT id = 2", None),
        ("SELECT v + 0 FROM app.pairs WHERE k = 'a'", None),
        ("SELECT v + 0 FROM app.pairs WHERE k = 'a' AND n IN (1, 2)", 2),
        ("SELECT v + 0 FROM app.pairs WHERE k = 'a' AND n = 3000000000", 0),
        ('SELECT _op FROM "users$log" WHERE id = 2', None),
    ],
)
def test_the_index_serves_whole_keys_only(engine, sql, keys):
    """The index is asked where conditions name whole keys, and says how many."""
    table = next(t for t in engine.explain(sql)["tables"] if "events" not in t["topic"])
    assert table.get("keys") == keys
    if keys is not None:
        assert table["memory"]["chunks_read"] == table["disk"]["files_read"] == 0


@pytest.mark.parametrize(
    ("value", "rows", "by_duckdb"),
    [
        ("+2", [(2,)], True),
        ("2.4", [(2,)], True),
        (2.0, [(2,)], True),
        (True, [(1,)], True),
        (Decimal("2.5"), [], False),
        (None, [], False),
        (1 << 70, [], False),
    ],
)
def test_values_of_another_type_mean_what_they_mean_to_duckdb(
    tiers, engine, value, rows, by_duckdb
):
    """A value that is not of the column's type is compared by DuckDB unless nothing equals it."""
    assert ask(tiers, engine, "SELECT id FROM users WHERE id = ?", [value]) == (rows, by_duckdb)


@pytest.mark.parametrize(
    ("sql", "params"),
    [
        ("SELECT id FROM users WHERE id = ?", ["x"]),
        ("SELECT id FROM users WHERE id = 'x'", None),
    ],
)
def test_a_key_that_cannot_be_cast_is_refused(engine, sql, params):
    """DuckDB says what is wrong with it."""
    with pytest.raises(InvalidRequest, match="Could not convert"):
        engine.query(sql, params)


KEYS = [
    (pa.string(), "é'\"", ["'é''\"'"]),
    (pa.binary(), b"\x00a", ["'\\x00a'::BLOB"]),
    (pa.bool_(), True, ["true"]),
    (pa.int8(), -128, ["-128"]),
    (pa.uint32(), (1 << 32) - 1, ["4294967295"]),
    (pa.decimal128(6, 2), Decimal("1.50"), ["1.5", "1.500"]),
    (pa.date32(), dt.date(2026, 11, 15), ["DATE '2026-11-15'"]),
    (pa.time64("us"), dt.time(1, 2, 3, 4), ["TIME '01:02:03.000004'"]),
    (
        pa.timestamp("us", "UTC"),
        dt.datetime(2026, 11, 15, 1, 2, 3, 4, tzinfo=dt.UTC),
        ["TIMESTAMPTZ '2026-11-15 03:02:03.000004+02'", "TIMESTAMP '2026-11-15 01:02:03.000004'"],
    ),
    (
        pa.timestamp("ms"),
        dt.datetime(2026, 11, 15, 1, 2, 3, 4000, tzinfo=dt.UTC).replace(tzinfo=None),
        ["TIMESTAMP '2026-11-15 01:02:03.004'"],
    ),
]


@pytest.mark.parametrize(("data_type", "key", "literals"), KEYS, ids=lambda v: str(v)[:20])
def test_keys_of_every_type_are_found(tmp_path, data_type, key, literals):
    """A key is found by parameter and by literal, with the type that the index knows."""
    tiers = SmallTiers(tmp_path)
    part = tiers.create("keyed", {"k": data_type, "v": pa.int64()}, key=["k"])
    part.append({"k": key, "v": 7})
    engine = tiers.engine()
    assert engine.query("SELECT v FROM keyed WHERE k = ?", [key]).rows() == [(7,)]
    assert tiers.lookups == [(("default", "keyed"), [(key,)])]
    for literal in literals:
        sql = f"SELECT v FROM keyed WHERE k = {literal}"
        assert engine.query(sql).rows() == [(7,)]
        assert engine.query(f"SELECT v + 0 FROM keyed WHERE k = {literal}").rows() == [(7,)]
    engine.close()


def test_the_past_is_not_looked_up_in_the_present(tiers, engine):
    """With as_of_offset a look-up is answered at that snapshot."""
    sql = "SELECT name FROM users WHERE id = 3"
    assert engine.query(sql, as_of_offset=5).rows() == [("it's 3",)]
    assert engine.query(sql).rows() == []


def test_plans_follow_the_topics(tmp_path):
    """A new column, a new key and a new topic are seen by texts that were planned before."""
    tiers = SmallTiers(tmp_path)
    part = tiers.create("users", {"id": (1, pa.int64())}, key=["id"])
    part.append({"id": 1})
    engine = tiers.engine()
    sql = "SELECT * FROM users WHERE id = 1"
    assert engine.query(sql).columns == ["_offset", "_time", "id"]
    tiers.evolve(part, {"id": (1, pa.int64()), "more": (2, pa.string())})
    assert engine.query(sql).columns == ["_offset", "_time", "id", "more"]
    engine.close()


@pytest.mark.parametrize(
    ("sql", "template"),
    [
        ("SELECT a1 FROM t WHERE k = 'it''s' AND n = 5", ("a1 ... k = $1 AND n = $2", ["it's", 5])),
        ('SELECT "5" FROM t WHERE k = 6', ('"5" ... k = $1', [6])),
        ("SELECT 1 -- 'x'", None),
        ("SELECT /* 1 */ 2", None),
        ("SELECT ? = 1", None),
        ("SELECT $1 = 1", None),
        ("SELECT -1", None),
        ("SELECT 'open", None),
        ("SELECT a FROM t", None),
        ("SELECT $$x$$", None),
        ("SELECT 1" + " " * 3_000, None),
    ],
)
def test_templates_take_literals_out_of_simple_texts_only(sql, template):
    """Numbers and strings become parameters; comments, signs and parameters keep their text."""
    found = template_of(sql)
    if template is None:
        assert found is None
    else:
        text, values = template
        first, last = text.split(" ... ")
        assert found == (f"SELECT {first} FROM t WHERE {last}", values)


def test_a_literal_that_is_part_of_a_name_is_no_parameter(tmp_path):
    """`e'x'` is a string with escapes, and stays one beside a column called e$1."""
    tiers = SmallTiers(tmp_path)
    part = tiers.create("odd", {"id": pa.int64(), "e$1": pa.string()}, key=["id"])
    part.append({"id": 2, "e$1": "column"})
    engine = tiers.engine()
    assert engine.query("SELECT e'x' FROM odd WHERE id = 2").rows() == [("x",)]
    engine.close()
