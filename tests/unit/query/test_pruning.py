"""Chunks and files that cannot matter are left closed, and nothing else is."""

from __future__ import annotations

import datetime as dt
import math
import random

import duckdb
import pyarrow as pa
import pytest

from frazil.tiers.disk.format import ColumnRange
from tests.unit.query.small_tiers import EPOCH, SmallTiers

HOUR = dt.timedelta(hours=1)
COLUMNS = {
    "i": pa.int64(),
    "small": pa.int16(),
    "f": pa.float64(),
    "single": pa.float32(),
    "s": pa.string(),
    "b": pa.binary(),
    "flag": pa.bool_(),
    "ts": pa.timestamp("us", "UTC"),
    "ns": pa.timestamp("ns"),
    "ms": pa.timestamp("ms"),
    "d": pa.date32(),
    "t": pa.time64("us"),
    "money": pa.decimal128(12, 2),
}
LITERALS = {
    "i": ["{n}", "{n}.5", "{n}::DOUBLE", "'{n}'", "-{n}", "{n} + 1", "NULL", "9223372036854775808"],
    "small": ["{n}", "{n}.0", "100000", "'{n}'::SMALLINT"],
    "f": ["{n}", "{n}.25", "'nan'::DOUBLE", "'inf'::DOUBLE", "0.1"],
    "single": ["{n}", "0.1", "{n}.3::FLOAT"],
    "s": ["'s{n}'", "'s'", "''", "'s' || '{n}'", "'é'"],
    "b": ["'b{n}'::BLOB", "encode('b{n}')"],
    "flag": ["true", "false"],
    "ts": [
        "TIMESTAMPTZ '1970-01-01 {n}:00:00+00'",
        "'1970-01-01 {n}:30:00'",
        "TIMESTAMP '1970-01-01 {n}:00:00'",
        "DATE '1970-01-01'",
        "now() - INTERVAL {n} HOURS",
        "make_timestamptz({n} * 3600000000)",
        "current_timestamp",
    ],
    "ns": ["TIMESTAMP_NS '1970-01-01 {n}:00:00.000000001'", "'1970-01-01 {n}:00:00'"],
    "ms": ["TIMESTAMP '1970-01-01 {n}:00:00.0005'", "'1970-01-01 {n}:00:00'"],
    "d": ["DATE '1970-01-02'", "'1970-01-01'", "TIMESTAMP '1970-01-01 {n}:00:00'", "current_date"],
    "t": ["TIME '{n}:00:00'", "'{n}:30:00'"],
    "money": ["{n}", "{n}.25", "{n}::DOUBLE"],
    "_offset": ["{n}", "{n} - 2", "{n}.5"],
    "_time": ["make_timestamptz({n})", "'1970-01-01 00:00:00.00000{d}'", "now()"],
}


def record(number, chance):
    moment = EPOCH + number * HOUR
    local = moment.replace(tzinfo=None)
    row = {
        "i": number,
        "small": number - 5,
        "f": math.nan if number % 9 == 4 else number / 2,
        "single": number + 0.1,
        "s": f"s{number}" if number % 5 else "é",
        "b": f"b{number}".encode(),
        "flag": number % 2 == 0,
        "ts": moment,
        "ns": local,
        "ms": local,
        "d": moment.date(),
        "t": local.time(),
        "money": number,
    }
    return {name: None if chance.random() < 0.1 else value for name, value in row.items()}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """An engine over many small chunks and files, and a DuckDB with the same rows."""
    chance = random.Random(4)
    tiers = SmallTiers(tmp_path_factory.mktemp("tiers"))
    part = tiers.create("rows", COLUMNS)
    for number in range(24):
        part.append(record(number, chance), time_us=number)
        if number % 4 == 3 and number < 16:
            part.flush()
    engine = tiers.engine()
    plain = duckdb.connect()
    plain.execute("SET TimeZone = 'UTC'")
    first = {
        "_offset": pa.array(range(24), pa.int64()),
        "_time": pa.array(range(24), pa.int64()).cast(pa.timestamp("us", "UTC")),
    }
    values = {
        name: pa.array([row[3][name] for row in part.records], data_type)
        for name, data_type in COLUMNS.items()
    }
    plain.register("arrow_rows", pa.table(first | values))
    plain.execute("CREATE TABLE rows AS SELECT * FROM arrow_rows")
    yield engine, plain
    engine.close()
    plain.close()


def condition(chance):
    column = chance.choice(sorted(LITERALS))

    def literal():
        number = chance.randrange(24)
        return chance.choice(LITERALS[column]).format(n=number, d=number % 10)

    shape = chance.randrange(8)
    if shape == 0:
        return f"{column} IN ({literal()}, {literal()})"
    if shape == 1:
        return f"{column} BETWEEN {literal()} AND {literal()}"
    if shape == 2:
        return f"NOT ({column} < {literal()})"
    if shape == 3:
        return f"({column} = {literal()} OR i = 3)"
    operator = chance.choice(["=", "<", "<=", ">", ">=", "<>"])
    if shape == 4:
        return f"{literal()} {operator} {column}"
    return f"r.{column} {operator} {literal()}"


@pytest.mark.parametrize("seed", range(10))
def test_pruning_never_hides_a_row(both, seed):
    """Random conditions over random constants find the rows that DuckDB finds in a table."""
    engine, plain = both
    chance = random.Random(seed)
    for _ in range(20):
        where = " AND ".join(condition(chance) for _ in range(chance.randrange(1, 4)))
        sql = f"SELECT _offset FROM rows r WHERE {where} ORDER BY 1"
        try:
            expected = plain.execute(sql).fetchall()
        except duckdb.Error:
            continue
        assert engine.query(sql).rows() == expected, f"seed={seed} {sql}"


def read_of(engine, sql, params=None, **options):
    """Which chunks and files a statement reads, of how many."""
    (table,) = engine.explain(sql, params, **options)["tables"]
    memory, disk = table["memory"], table["disk"]
    assert memory["chunks_read"] + memory["chunks_pruned"] == memory["chunks"]
    return (memory["chunks_read"], memory["chunks"]), (disk["files_read"], disk["files"])


@pytest.mark.parametrize(
    ("where", "chunks", "files"),
    [
        ("true", 3, 4),
        ("i >= 8 AND i <= 9", 0, 1),
        ("i = 5", 0, 1),
        ("i IN (1, 22)", 1, 1),
        ("22 < i", 1, 0),
        ("i BETWEEN 2 AND 5", 0, 2),
        ("_offset < 4", 0, 1),
        ("_offset >= 16", 3, 0),
        ("_time > make_timestamptz(11)", 3, 1),
        ("s = 'r' AND s > 'a'", 0, 0),
        ("ts > TIMESTAMPTZ '1970-01-01 21:30:00+00'", 1, 0),
        ("ts > '1970-01-01 21:30:00'", 1, 0),
        ("ts > now() - INTERVAL 5 MINUTES", 0, 0),
        ("ts < now() - INTERVAL 5 MINUTES", 3, 4),
        ("d = DATE '2020-01-01'", 0, 0),
        ("t >= TIME '23:00:00'", 1, 0),
        ("ns <= '1970-01-01 00:30:00'", 0, 1),
        ("f < 1", 0, 1),
        ("f > 1000", 3, 4),
        ("small = 100000", 0, 0),
        ("i + 0 = 5", 3, 4),
        ("i = 5 OR i = 6", 3, 4),
        ("i = random()", 3, 4),
        ("i = CASE WHEN true THEN 5 END", 3, 4),
        ("single = 0.1", 3, 4),
    ],
)
def test_what_cannot_match_is_not_opened(both, where, chunks, files):
    """Each kind of condition excludes the chunks and files that it can, and no others."""
    engine, _ = both
    found = read_of(engine, f"SELECT count(*) FROM rows WHERE {where}")
    assert found == ((chunks, 3), (files, 4))


def test_parameters_prune_like_literals(both):
    """A value of the call excludes what the same literal would, also within an expression."""
    engine, _ = both
    assert read_of(engine, "FROM rows WHERE i > ?", [21]) == ((1, 3), (0, 4))
    assert read_of(engine, "FROM rows WHERE i > $n + 1", {"n": 20}) == ((1, 3), (0, 4))
    moment = EPOCH + 21 * HOUR
    assert read_of(engine, "FROM rows WHERE ts > ?", [moment]) == ((1, 3), (0, 4))
    local = moment.replace(tzinfo=None)
    assert read_of(engine, "FROM rows WHERE ts > ?", [local]) == ((1, 3), (0, 4))
    assert read_of(engine, "FROM rows WHERE d > ?", [dt.date(1980, 1, 1)]) == ((0, 3), (0, 4))
    assert read_of(engine, "FROM rows WHERE t > ?", [dt.time(22, 30)]) == ((1, 3), (0, 4))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM rows a POSITIONAL JOIN rows b WHERE a.i = 20",
        "SELECT * FROM rows a ASOF JOIN rows b ON a.i >= b.i WHERE b.small = 0",
        "SELECT * FROM rows a LEFT JOIN rows b USING (i) WHERE i = 20",
        "SELECT 1 FROM rows a ANTI JOIN rows b ON a.small = b.i WHERE i = 20",
        "SELECT * FROM rows TABLESAMPLE 100% WHERE i = 20",
        "SELECT * FROM rows AS r(i, o) WHERE r.o = EPOCH_MS(0) AND i = 20",
    ],
)
def test_where_rows_count_elsewhere_nothing_is_left_out(both, sql):
    """Joins by position or nearness, merged columns, samples and renamed columns read all."""
    engine, _ = both
    for table in engine.explain(sql)["tables"]:
        assert table["memory"]["chunks_pruned"] == 0
        assert table["disk"]["files_pruned"] == 0


def test_each_table_of_a_join_is_pruned_by_its_own_conditions(both):
    """The sides of a join read different files."""
    engine, _ = both
    sql = "SELECT count(*) FROM rows a JOIN rows b ON a.s = b.s WHERE a.i < 3 AND b._offset > 21"
    tables = engine.explain(sql)["tables"]
    assert [(t["memory"]["chunks_read"], t["disk"]["files_read"]) for t in tables] == [
        (0, 1),
        (1, 0),
    ]


def test_a_column_hides_the_word_current_date(tiers, engine):
    """A column may be called like a word for the present; then it is the column."""
    part = tiers.create("odd", {"ts": pa.date32(), "current_date": pa.date32()})
    part.append({"ts": dt.date(2000, 1, 2), "current_date": dt.date(2000, 1, 1)})
    part.flush()
    assert engine.query("SELECT count(*) FROM odd WHERE ts > current_date").rows() == [(1,)]


def date(*parts):
    return dt.datetime(*parts, tzinfo=dt.UTC).replace(tzinfo=None)


def test_facts_of_an_older_type_are_compared_by_its_unit(tiers, engine):
    """A file from before a timestamp was widened is pruned by its own unit, not the new one."""
    part = tiers.create("wide", {"n": pa.int32(), "ts": pa.timestamp("ms")})
    part.append({"n": 1, "ts": date(2020, 1, 1)}, {"n": 2, "ts": date(2020, 1, 2)})
    part.flush()
    tiers.evolve(part, {"n": pa.int64(), "ts": pa.timestamp("us")})
    part.append({"n": 3, "ts": date(2021, 1, 1)})
    sql = "SELECT n FROM wide WHERE ts >= '2020-01-02' AND ts < '2020-06-01'"
    assert engine.query(sql).rows() == [(2,)]
    assert read_of(engine, sql) == ((0, 1), (1, 1))


def test_facts_of_another_kind_exclude_nothing(tiers, engine):
    """Facts that cannot be compared with the column leave the file open."""
    part = tiers.create("strange", {"n": pa.int64()})
    part.append({"n": 1})
    part.flush()
    part.files[0].columns["n"] = ColumnRange("a", b"b", 0)
    assert engine.query("SELECT n FROM strange WHERE n > 0").rows() == [(1,)]
