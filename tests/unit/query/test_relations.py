"""A view shows each record once, wherever it lies and under whatever schema it was written."""

from __future__ import annotations

import datetime as dt
import random

import duckdb
import pyarrow as pa
import pytest

from frazil.errors import CorruptionError
from frazil.model import OP_DELETE, OP_INSERT, OP_NAMES, OP_UPDATE, OP_UPSERT
from frazil.query.views import duckdb_type
from tests.unit.query.small_tiers import EPOCH, SmallTiers

PAIR = {"id": pa.int64(), "v": pa.string()}


def fill(part, count, *, start=0):
    for number in range(start, start + count):
        part.append({"id": number, "v": f"v{number}"}, time_us=number)


@pytest.mark.parametrize("in_place", [True, False])
def test_files_and_chunks_are_one_table(tiers, engine, in_place):
    """Records in files and in memory appear once, in the order of their offsets."""
    part = tiers.create("events", PAIR)
    part.in_place = in_place
    fill(part, 10)
    part.flush(4)
    part.flush(7)
    rows = engine.query("SELECT _offset, id, v FROM events").rows()
    assert rows == [(n, n, f"v{n}") for n in range(10)]
    assert bool(part.opened) is not in_place


@pytest.mark.parametrize("in_place", [True, False])
def test_a_file_that_reaches_into_memory_is_read_up_to_the_cut(tiers, engine, in_place):
    """What memory serves is not read again from a file that holds it too."""
    part = tiers.create("events", PAIR)
    part.in_place = in_place
    fill(part, 10)
    part.flush(8, overlap=3)
    assert engine.query("SELECT _offset FROM events").rows() == [(n,) for n in range(10)]
    found = engine.query("SELECT count(*), max(_time) FROM events WHERE id > 3").rows()
    assert found == [(6, EPOCH + dt.timedelta(microseconds=9))]
    assert engine.query("SELECT count(*) FROM events", as_of_offset=6).rows() == [(6,)]


@pytest.mark.parametrize("seed", range(8))
def test_a_keyed_view_is_the_fold_of_its_changes(tiers, engine, seed):
    """Random changes and flushes: state, log and every past state equal a dictionary's."""
    chance = random.Random(seed)
    part = tiers.create("users", {"a": pa.int32(), "b": pa.string(), "v": pa.int64()}, key="ab")
    part.in_place = chance.random() < 0.7
    part.chunk_rows = chance.randrange(1, 6)
    states, state, log = [{}], {}, []
    for offset in range(40):
        key = (chance.randrange(4), f"k{chance.randrange(3)}")
        op = chance.choice([OP_INSERT, OP_UPDATE, OP_UPSERT, OP_UPSERT, OP_DELETE])
        value = None if op == OP_DELETE else offset
        part.append({"a": key[0], "b": key[1], "v": value}, op=op)
        state = {k: v for k, v in state.items() if k != key}
        if op != OP_DELETE:
            state[key] = (offset, *key, value)
        states.append(state)
        log.append((offset, OP_NAMES[op], *key, value))
        if chance.random() < 0.15:
            part.flush(overlap=chance.randrange(3))
    sql = "SELECT _offset, a, b, v FROM users ORDER BY 1"
    for end in chance.sample(range(41), 6):
        assert engine.query(sql, as_of_offset=end).rows() == sorted(states[end].values())
    found = engine.query('SELECT _offset, _op, a, b, v FROM "users$log" ORDER BY 1')
    assert found.rows() == log
    counted = engine.query("SELECT count(*), count(v) FROM users WHERE a < 3").rows()
    expected = sum(1 for row in state.values() if row[1] < 3)
    assert counted == [(expected, expected)]
    asked = [(a, f"k{b}") for a in range(4) for b in range(3)]
    for a, b in asked:
        found = engine.query("SELECT _offset, a, b, v FROM users WHERE b = ? AND a = ?", [b, a])
        assert found.rows() == ([state[a, b]] if (a, b) in state else [])


def test_state_and_log_of_one_topic_in_one_statement(tiers, engine):
    """Both views of a topic can be joined; each shows its own rows."""
    part = tiers.create("users", {"id": pa.int64(), "v": pa.int64()}, key=["id"])
    part.append({"id": 1, "v": 1}, {"id": 2, "v": 2}, {"id": 1, "v": 3})
    part.flush(2)
    sql = """
        SELECT u.id, l._op, l.v FROM users u JOIN "users$log" l USING (id)
        WHERE l._offset < u._offset ORDER BY 1
    """
    assert engine.query(sql).rows() == [(1, "upsert", 1)]


@pytest.mark.parametrize("in_place", [True, False])
def test_older_schemas_are_read_by_column_id(tiers, engine, in_place):
    """Renamed columns keep their values, new ones are null, reused names do not inherit any."""
    part = tiers.create(
        "events", {"a": (1, pa.int32()), "b": (2, pa.string()), "c": (3, pa.int8())}
    )
    part.in_place = in_place
    part.append({"a": 1, "b": "x", "c": 1})
    part.append({"a": 2, "b": "y", "c": 2})
    part.flush(1)
    newer = {"new": (4, pa.float64()), "b2": (2, pa.string()), "a": (1, pa.int64()), "b": (5, TEXT)}
    tiers.evolve(part, newer)
    part.append({"new": 0.5, "b2": "z", "a": 3, "b": "fresh"})
    rows = engine.query("SELECT new, b2, a, b FROM events ORDER BY _offset").rows()
    assert rows == [(None, "x", 1, None), (None, "y", 2, None), (0.5, "z", 3, "fresh")]
    assert engine.query("SELECT a FROM events WHERE b2 = 'x'").rows() == [(1,)]
    assert engine.query("SELECT count(*) FROM events WHERE b IS NULL").rows() == [(2,)]
    part.flush()
    assert engine.query("SELECT new, b2, a, b FROM events ORDER BY _offset").rows() == rows


TEXT = pa.string()


@pytest.mark.parametrize("in_place", [True, False])
def test_parts_are_one_table_with_their_numbers(tiers, engine, in_place):
    """A partitioned topic shows the records of all parts, each with its part's own offsets."""
    parts = tiers.create("events", PAIR, partitions=3)
    for index, part in enumerate(parts):
        part.in_place = in_place
        fill(part, 4, start=10 * index)
        part.flush(index)
    rows = engine.query("SELECT _part, _offset, id FROM events ORDER BY 1, 2").rows()
    assert rows == [(p, n, 10 * p + n) for p in range(3) for n in range(4)]
    assert engine.query("SELECT * FROM events").columns == ["_offset", "_time", "_part", "id", "v"]
    assert engine.query("SELECT sum(id) FROM events").rows() == [(138,)]
    (table,) = engine.explain("SELECT id FROM events WHERE _part = 2")["tables"]
    assert (table["memory"]["chunks_read"], table["disk"]["files_read"]) == (1, 1)


def test_parts_of_a_keyed_topic_have_their_own_dead_rows(tiers, engine):
    """An offset that is dead in one part is alive in another."""
    parts = tiers.create("users", {"id": pa.int64(), "v": pa.int64()}, key=["id"], partitions=2)
    parts[0].append({"id": 1, "v": 1}, {"id": 1, "v": 2}, {"id": 3, "v": 3})
    parts[1].append({"id": 2, "v": 4}, {"id": 4, "v": 5}, {"id": 4, "v": 6})
    for part in parts:
        part.flush()
    sql = "SELECT _part, id, v FROM users ORDER BY 1, 2"
    assert engine.query(sql).rows() == [(0, 1, 2), (0, 3, 3), (1, 2, 4), (1, 4, 6)]
    assert engine.query("SELECT sum(v) FROM users").rows() == [(15,)]
    assert engine.query("SELECT _part, v FROM users WHERE id = 4").rows() == [(1, 6)]
    assert engine.query("SELECT v FROM users WHERE id = 9").rows() == []


def test_lists_and_joins_on_timestamps_find_their_rows(tiers, engine):
    """Filters that DuckDB would hand to Arrow as Python values lose no nanosecond and no zone."""
    columns = {"ts": pa.timestamp("us", "UTC"), "ns": pa.timestamp("ns"), "id": pa.int64()}
    part = tiers.create("events", columns)
    for number in range(8):
        moment = EPOCH + dt.timedelta(microseconds=number)
        part.append({"ts": moment, "ns": number, "id": number})
    for flushed in (0, 4):
        part.flush(flushed)
        rows = engine.query(
            "SELECT id FROM events WHERE ts IN (make_timestamptz(2), make_timestamptz(6))"
        ).rows()
        assert rows == [(2,), (6,)]
        rows = engine.query(
            "SELECT id FROM events WHERE ns IN (make_timestamp_ns(2), make_timestamp_ns(6))"
        ).rows()
        assert rows == [(2,), (6,)]
        for column in ("ts", "ns"):
            rows = engine.query(
                f"SELECT a.id FROM events a JOIN events b USING ({column}) WHERE b.id < 5 ORDER BY 1"
            ).rows()
            assert rows == [(number,) for number in range(5)]


@pytest.mark.parametrize("flushed", [0, 6])
def test_not_a_number_is_the_greatest_in_every_tier(tiers, engine, flushed):
    """NaN is found by the comparisons that DuckDB's own tables would find it by."""
    part = tiers.create("events", {"id": pa.int64(), "f": pa.float64(), "g": pa.float32()})
    for number in range(6):
        value = float("nan") if number == 3 else float(number)
        part.append({"id": number, "f": value, "g": value})
    part.flush(flushed)
    for column in ("f", "g"):
        assert engine.query(f"SELECT id FROM events WHERE {column} > 100").rows() == [(3,)]
        assert engine.query(f"SELECT id FROM events WHERE {column} = 'nan'").rows() == [(3,)]
        top = engine.query(f"SELECT id FROM events ORDER BY {column} DESC LIMIT 1").rows()
        assert top == [(3,)]


def test_paths_with_the_characters_of_patterns_are_read(tmp_path):
    """Brackets, stars, quotes and equals signs in a directory's name are no pattern."""
    directory = tmp_path / "a[1]*'b=c"
    directory.mkdir()
    tiers = SmallTiers(directory)
    part = tiers.create("events", PAIR)
    fill(part, 3)
    part.flush()
    engine = tiers.engine()
    assert engine.query("SELECT * EXCLUDE (_time) FROM events").rows()[2] == (2, 2, "v2")
    assert "b" not in engine.query("SELECT * FROM events").columns
    engine.close()


def test_a_damaged_file_is_corruption_not_a_mistake(tiers, engine):
    """The error names the file that cannot be read; the statement is not blamed."""
    part = tiers.create("events", PAIR)
    fill(part, 3)
    part.flush()
    part.files[0].path.write_bytes(b"not parquet at all")
    with pytest.raises(CorruptionError, match=part.files[0].name):
        engine.query("SELECT * FROM events")


TYPES = [
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.float32(), pa.float64()),
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(4)),
    *(pa.date32(), pa.time64("us"), pa.decimal128(20, 3), pa.decimal128(38, 0)),
    *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
    *(pa.timestamp(unit, "UTC") for unit in ("s", "ms", "us", "ns")),
    pa.list_(pa.int32()),
    pa.list_(pa.list_(pa.string())),
    pa.struct([("a", pa.int64()), ('odd "name', pa.list_(pa.timestamp("us", "UTC")))]),
    pa.map_(pa.string(), pa.struct([("x", pa.float64())])),
]


def test_types_are_named_as_duckdb_names_them(tiers, engine):
    """Every type that a column can have is described as DuckDB describes an Arrow column."""
    columns = {f"c{number}": data_type for number, data_type in enumerate(TYPES)}
    schema = pa.schema(list(columns.items()))
    plain = duckdb.connect()
    plain.register("arrow_rows", schema.empty_table())
    described = [row[1] for row in plain.execute("DESCRIBE arrow_rows").fetchall()]
    for data_type, name in zip(TYPES, described, strict=True):
        ours = plain.execute(f"SELECT typeof(CAST(NULL AS {duckdb_type(data_type)}))").fetchone()
        assert ours == (name,)


def test_every_type_is_the_same_in_memory_and_in_files(tiers, engine):
    """The types of a view do not depend on where its records lie."""
    columns = {f"c{number}": data_type for number, data_type in enumerate(TYPES)}
    part = tiers.create("wide", columns)
    part.append(dict.fromkeys(columns))
    hot = engine.query("SELECT * FROM wide").schema
    joined = engine.query("SELECT a.* FROM wide a JOIN wide b USING (_offset)").schema
    part.flush()
    assert engine.query("SELECT * FROM wide").schema == hot == joined
    part.append(dict.fromkeys(columns))
    assert engine.query("SELECT * FROM wide").schema == hot
