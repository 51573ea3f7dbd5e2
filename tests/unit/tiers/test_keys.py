"""Keys: one normal form and one hash however a key comes, and maps that never miss a row."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.errors import CorruptionError, InvalidRequest
from frazil.schema import BLOCK_ENTRIES, KeyFile, KeyMap, KeyShape
from tests.support import SimulatedFileSystem

UTC = dt.UTC
COLUMNS = {
    "bool": (pa.bool_(), [True, False]),
    "int8": (pa.int8(), [-128, 0, 127]),
    "uint32": (pa.uint32(), [0, 2**32 - 1]),
    "int64": (pa.int64(), [-(2**63), -1, 0, 1, 2**63 - 1]),
    "string": (pa.string(), ["", "a", "zürich", "\U0001f9ca"]),
    "large_string": (pa.large_string(), ["", "zürich"]),
    "binary": (pa.binary(), [b"", b"\x00\xff"]),
    "large_binary": (pa.large_binary(), [b"", b"\x00\xff"]),
    "fixed": (pa.binary(3), [b"abc", b"\0\0\0"]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)]),
    "time": (pa.time64("us"), [dt.time(0), dt.time(23, 59, 59, 999999)]),
    "ts_us": (pa.timestamp("us", "UTC"), [dt.datetime(1960, 2, 3, 4, 5, 6, 7, UTC)]),
    "ts_s": (pa.timestamp("s"), [dt.datetime(1960, 2, 3, 4, 5, 6), dt.datetime(2026, 11, 15)]),  # noqa: DTZ001
    "ts_ms": (pa.timestamp("ms", "UTC"), [dt.datetime(1969, 12, 31, 23, 59, 59, 999000, UTC)]),
    "ts_ns": (pa.timestamp("ns", "UTC"), [dt.datetime(1700, 2, 3, 4, 5, 6, 7, UTC)]),
    "decimal": (pa.decimal128(38, 4), [Decimal("-0.5"), Decimal("1.5000"), Decimal(10) ** 30]),
}


def field(name, data_type, number):
    return pa.field(name, data_type, nullable=False, metadata={"frazil.id": str(number)})


def batch_of(*columns):
    """A batch of (name, type, values) with column ids 1, 2, ..."""
    fields = [field(name, kind, number) for number, (name, kind, _) in enumerate(columns, 1)]
    arrays = [pa.array(values, kind) for _, kind, values in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


@pytest.mark.parametrize("name", sorted(COLUMNS))
def test_a_key_is_the_same_from_a_batch_a_row_and_a_cell(name):
    """A key given as a value equals the key and the hash that Arrow's copy of it has."""
    kind, values = COLUMNS[name]
    batch = batch_of(("k", kind, values))
    shape = KeyShape(batch.schema, (1,))
    keys = shape.keys(batch)
    assert keys == [shape.key_of((value,)) for value in values]
    assert keys == [shape.row_key((value,)) for value in values]
    assert len(set(keys)) == len(values)
    assert shape.hashes(batch).tolist() == [shape.hash_of(key) for key in keys]
    assert shape.hashes_of(keys).tolist() == shape.hashes(batch).tolist()
    part = batch.slice(len(values) // 2)
    assert shape.keys(part) == keys[len(values) // 2 :]
    assert shape.hashes(part).tolist() == shape.hashes(batch).tolist()[len(values) // 2 :]


def test_a_composite_key_takes_its_columns_by_id_in_key_order():
    """The key's order is that of the ids, whatever the order and the names of the columns."""
    day = dt.date(1970, 1, 3)
    batch = batch_of(
        ("a", pa.int32(), [7]), ("other", pa.float64(), [0.5]), ("d", pa.date32(), [day])
    )
    shape = KeyShape(batch.schema, (3, 1))
    assert shape.names == ("d", "a")
    assert shape.positions == (2, 0)
    assert shape.keys(batch) == [(2, 7)]
    assert shape.row_key((7, 0.5, day)) == (2, 7)
    assert shape.key_of((day, 7)) == (2, 7)
    assert shape.hash_of((2, 7)) == shape.hashes(batch)[0]
    assert shape.hash_of((7, 2)) != shape.hash_of((2, 7))


def test_equal_decimals_of_another_exponent_are_one_key():
    """1.5 and 1.5000 hash alike and compare equal."""
    batch = batch_of(("k", pa.decimal128(38, 4), [Decimal("1.5")]))
    shape = KeyShape(batch.schema, (1,))
    assert shape.keys(batch) == [Decimal("1.5")]
    assert shape.hash_of(Decimal("1.5")) == shape.hash_of(Decimal("1.5000")) == shape.hashes(batch)


def test_fields_of_a_parquet_file_are_found_by_their_id():
    """A schema read back from Parquet carries its ids under Parquet's own name."""
    schema = pa.schema([pa.field("k", pa.int64(), metadata={"PARQUET:field_id": "9"})])
    assert KeyShape(schema, (9,)).names == ("k",)


def test_what_cannot_be_a_key_is_refused():
    """A missing column and a float are errors when the shape is made, not later."""
    with pytest.raises(InvalidRequest, match="lacks a key column"):
        KeyShape(pa.schema([field("k", pa.int64(), 1)]), (2,))
    with pytest.raises(InvalidRequest, match="cannot be a key"):
        KeyShape(pa.schema([field("k", pa.float64(), 1)]), (1,))


def test_hashes_of_plain_integers_spread():
    """100,000 consecutive or far-apart integers collide no more than chance would have it."""
    for step in (1, 1 << 20, 1 << 32, 1 << 40):
        keys = np.arange(100_000, dtype=np.int64) * step
        batch = batch_of(("k", pa.int64(), keys))
        hashes = KeyShape(batch.schema, (1,)).hashes(batch)
        assert len(np.unique(hashes)) > 99_000


def brute(hashes, wanted):
    return [(q, r) for q, h in enumerate(wanted) for r, other in enumerate(hashes) if other == h]


def key_file(data):
    """The bytes of a map as a file of a simulated file system, opened."""
    file_system = SimulatedFileSystem(1)
    file_system.make_directory("/d")
    file = file_system.open("/d/f.keys", "create")
    file.write_at(0, [bytes(data)])
    file.close()
    return KeyFile(file_system, "/d/f.keys")


def rows_of(found, *hashes):
    """Return the rows that a map has for hashes."""
    return found.find_many(np.array(hashes, np.uint32))[1].tolist()


edge_hashes = st.sampled_from([0, 1, 5, 6, 2**31, 2**32 - 2, 2**32 - 1])


@settings(max_examples=60, deadline=None)
@given(st.lists(edge_hashes, max_size=60), st.lists(edge_hashes, max_size=40))
def test_a_map_finds_exactly_the_rows_of_a_hash(hashes, wanted):
    """Map and file find what a search through all rows finds, one hash at a time as well."""
    key_map = KeyMap.build(np.array(hashes, np.uint32))
    for found in (key_map, key_file(key_map.to_bytes())):
        queries, rows = found.find_many(np.array(wanted, np.uint32))
        assert list(zip(queries.tolist(), rows.tolist(), strict=True)) == brute(hashes, wanted)
        for one in wanted:
            assert rows_of(found, one) == [n for n, other in enumerate(hashes) if other == one]


def test_a_run_over_many_blocks_is_found_whole():
    """The rows of a key that was changed thousands of times span blocks."""
    count = 5 * BLOCK_ENTRIES + 17
    hashes = np.full(count, 77, np.uint32)
    hashes[::3] = 5
    hashes[1] = 2**32 - 1
    file = key_file(KeyMap.build(hashes).to_bytes())
    wanted = np.array([77, 4, 5, *range(100, 140), 2**32 - 1], np.uint32)
    queries, rows = file.find_many(wanted)
    assert list(zip(queries.tolist(), rows.tolist(), strict=True)) == brute(hashes, wanted)
    file.close()


def test_many_lookups_cross_stripes(monkeypatch):
    """Lookups that go stripe by stripe lose no match at a stripe's border."""
    monkeypatch.setattr("frazil.schema.keys._STRIPE_BLOCKS", 2)
    hashes = np.arange(10 * BLOCK_ENTRIES, dtype=np.uint32) // 700
    file = key_file(KeyMap.build(hashes).to_bytes())
    wanted = np.arange(0, 9, dtype=np.uint32).repeat(3)
    queries, rows = file.find_many(wanted)
    assert list(zip(queries.tolist(), rows.tolist(), strict=True)) == brute(hashes, wanted)


def test_every_flipped_bit_and_every_cut_is_noticed():
    """Damage raises; it never makes a key look absent."""
    hashes = np.arange(BLOCK_ENTRIES + 3, dtype=np.uint32)
    data = KeyMap.build(hashes).to_bytes()
    for position in [*range(72), 100, 4000, 4170, len(data) - 1]:
        if 32 <= position < 40:
            continue  # Reserved, always zero, never read.
        bad = bytearray(data)
        bad[position] ^= 4
        with pytest.raises(CorruptionError):
            rows_of(key_file(bad), *hashes)
    for length in (0, 10, 39, 60, len(data) - 1):
        with pytest.raises((CorruptionError, OSError)):
            key_file(data[:length])
    assert rows_of(key_file(data), *hashes) == list(range(len(hashes)))


def test_a_damaged_block_is_refused_by_the_lookup_that_needs_it():
    """A flipped bit in one block fails lookups there and leaves the others served."""
    data = bytearray(KeyMap.build(np.arange(3 * BLOCK_ENTRIES, dtype=np.uint32)).to_bytes())
    data[-1] ^= 1
    found = key_file(data)
    assert rows_of(found, 3) == [3]
    with pytest.raises(CorruptionError, match="block is damaged"):
        rows_of(found, 3 * BLOCK_ENTRIES - 1)
