"""Parquet files through the seam give back what was written, and notice damage."""

from __future__ import annotations

import datetime as dt
import random
import re
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from frazil.errors import CorruptionError
from frazil.tiers.disk.parquet import (
    RowsWriter,
    file_crc,
    open_parquet,
    read_facts,
    stored_schema,
)
from tests.support import SimulatedFileSystem

PATH = "/disk/file.parquet"
SYSTEM = [
    pa.field("_offset", pa.int64(), nullable=False),
    pa.field("_time", pa.timestamp("us", "UTC"), nullable=False),
]
NUMBERS = pa.schema([*SYSTEM, pa.field("n", pa.int64())])
CHANGE = [pa.field("_op", pa.int8(), nullable=False), pa.field("_present", pa.binary())]


def _when(*parts):
    """Return a time without a zone, as columns without one hold it."""
    return dt.datetime(*parts, tzinfo=dt.UTC).replace(tzinfo=None)


def file_system():
    """Return an empty simulated disk."""
    system = SimulatedFileSystem()
    system.make_directory("/disk")
    return system


def rows(schema, count, first=0, **columns):
    """Return a batch with offsets from `first` on, other columns as given or null."""
    arrays = []
    for field in schema:
        if field.name == "_offset":
            arrays.append(pa.array(range(first, first + count), pa.int64()))
        elif field.name == "_time":
            arrays.append(pa.array([1000 + n for n in range(first, first + count)], field.type))
        else:
            arrays.append(pa.array(columns.get(field.name, [None] * count), field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def write(system, schema, batches, *, metadata=None, **options):
    """Write a file and return its facts."""
    writer = RowsWriter(system, PATH, schema, **options)
    for batch in batches:
        writer.write(batch)
    return writer.finish(metadata or {})


def test_facts_tell_what_a_file_holds():
    """Rows, offsets, times, ranges, deletes and partial changes are counted, and read back."""
    system = file_system()
    schema = pa.schema([*SYSTEM, *CHANGE, pa.field("s", pa.string()), pa.field("n", pa.int32())])
    batch = rows(
        schema,
        4,
        first=7,
        _op=[1, 4, 2, 4],
        _present=[None, None, b"\x01", None],
        s=["b", "a" * 100, "c", None],
        n=[5, -5, None, 0],
    )
    facts = write(system, schema, [batch], metadata={"frazil": "x"}, key_names=["s"])
    assert (facts.rows, facts.offset_first, facts.offset_last) == (4, 7, 10)
    assert (facts.time_first, facts.time_last) == (1007, 1010)
    assert (facts.deletes, facts.unmatched) == (2, 1)
    assert (facts.columns["n"].low, facts.columns["n"].high, facts.columns["n"].nulls) == (-5, 5, 1)
    assert (facts.columns["s"].low, facts.columns["s"].high) == ("a" * 64, "c")
    assert facts.bytes == len(system.read_bytes(PATH, durable=True))
    assert facts.crc == file_crc(system, PATH)
    again, metadata = read_facts(system, PATH)
    assert again == facts
    assert metadata["frazil"] == "x"


def test_every_type_comes_back():
    """Columns read back as they were written, also where Parquet has other units and names."""
    system = file_system()
    nested = pa.list_(pa.field("item", pa.int32(), metadata={"frazil.id": "9"}))
    schema = pa.schema(
        [
            *SYSTEM,
            pa.field("ts", pa.timestamp("s"), metadata={"frazil.id": "1"}),
            pa.field("tn", pa.timestamp("ns", "UTC")),
            pa.field("d", pa.decimal128(38, 4)),
            pa.field("u", pa.uint32()),
            pa.field("l", nested),
            pa.field("m", pa.map_(pa.string(), pa.int64())),
            pa.field("a.b", pa.large_binary()),
            pa.field("f", pa.float64()),
            pa.field("t", pa.time64("us")),
        ]
    )
    batch = rows(
        schema,
        2,
        ts=[_when(2020, 1, 1), _when(1960, 1, 1)],
        tn=[1, 2],
        d=[Decimal("1.5000"), Decimal("-2.0000")],
        u=[4294967295, 0],
        l=[[1, None], None],
        m=[[("k", 1)], []],
        t=[dt.time(1), None],
        f=[float("nan"), 1.0],
        **{"a.b": [b"x", b"y" * 65]},
    )
    facts = write(system, schema, [batch])
    file, source = open_parquet(system, PATH)
    stored = stored_schema(file)
    assert stored.equals(schema, check_metadata=True)
    table = file.read().cast(stored)
    assert repr(table.to_pylist()) == repr(pa.Table.from_batches([batch]).to_pylist())
    source.release()
    ranges = {name: (found.low, found.high) for name, found in facts.columns.items()}
    assert ranges["ts"] == (-315619200, 1577836800)
    assert ranges["d"] == ("-2.0000", "1.5000")
    assert ranges["u"] == (0, 4294967295)
    assert ranges["a.b"] == (b"x", None)
    assert ranges["f"] == (1.0, None), "what is not a number sorts above all"
    assert ranges["t"] == (3_600_000_000, 3_600_000_000)
    assert "l" not in ranges


def test_row_groups_are_full_and_memory_is_bounded():
    """Small batches become row groups of the set size, and never more than one is held."""
    system = file_system()
    writer = RowsWriter(system, PATH, NUMBERS, group_rows=100)
    held = 0
    for first in range(0, 1050, 30):
        writer.write(rows(NUMBERS, 30, first=first, n=list(range(30))))
        held = max(held, writer.held_bytes)
    assert held < 100 * 24 + 30 * 24
    facts = writer.finish({})
    file, source = open_parquet(system, PATH)
    groups = [file.metadata.row_group(n).num_rows for n in range(file.metadata.num_row_groups)]
    assert groups == [100] * 10 + [50]
    assert file.read(["_offset"]).column(0).to_pylist() == list(range(1050))
    assert facts.rows == 1050
    source.release()


def test_a_row_group_ends_when_its_rows_are_large():
    """Wide rows end a row group by bytes before its number of rows is reached."""
    system = file_system()
    schema = pa.schema([*SYSTEM, pa.field("s", pa.string())])
    batches = [rows(schema, 1, first=n, s=["x" * 4000]) for n in range(9)]
    write(system, schema, batches, group_rows=1000, group_bytes=10_000)
    file, source = open_parquet(system, PATH)
    assert file.metadata.num_row_groups == 3
    source.release()


def test_other_readers_can_read_it(tmp_path):
    """Plain pyarrow reads the file, with page checksums, a bloom filter's place and field ids."""
    system = file_system()
    schema = pa.schema(
        [*SYSTEM, pa.field("k", pa.string(), nullable=False, metadata={"PARQUET:field_id": "3"})]
    )
    write(system, schema, [rows(schema, 9, k=list("abcdefghi"))], key_names=["k"])
    system.dump(tmp_path, "/disk")
    table = pq.read_table(tmp_path / "file.parquet", page_checksum_verification=True)
    assert table.column("k").to_pylist() == list("abcdefghi")
    assert table.schema.field("k").metadata[b"PARQUET:field_id"] == b"3"


def test_every_flipped_bit_is_noticed():
    """A flipped bit is found by a page's checksum, or by the footer's, or changes nothing read."""
    system = file_system()
    schema = pa.schema([*SYSTEM, pa.field("s", pa.string()), pa.field("f", pa.float64())])
    texts = [f"value {n % 7}" for n in range(300)]
    batch = rows(schema, 300, s=texts, f=[n / 3 for n in range(300)])
    facts = write(system, schema, [batch], group_rows=100)
    good = system.read_bytes(PATH)
    generator = random.Random(4)
    unnoticed = 0
    flips = [(generator.randrange(len(good)), generator.randrange(8)) for _ in range(400)]
    # A column's name in the footer that is no text any more.
    flips += [(found.start(), 7) for found in re.finditer(b"_offset", good)]
    for place, bit in flips:
        system.corrupt(PATH, lambda data, p=place, b=bit: data.__setitem__(p, data[p] ^ (1 << b)))
        assert file_crc(system, PATH) != facts.crc
        try:
            file, source = open_parquet(system, PATH)
            if source.footer_crc() == facts.footer_crc:
                assert file.read().to_batches(300)[0].to_pylist() == batch.to_pylist()
                unnoticed += 1
        except (CorruptionError, OSError, pa.ArrowException):
            pass
        system.write_bytes(PATH, good)
    assert unnoticed < 200, "most of the bytes are pages, whose checksums must find it"


def test_cut_and_foreign_files_are_refused():
    """A file that is cut short, empty or not ours raises CorruptionError, never anything else."""
    system = file_system()
    write(system, NUMBERS, [rows(NUMBERS, 9)])
    good = system.read_bytes(PATH)
    for size in (0, 3, 8, 12, len(good) // 2, len(good) - 1):
        system.write_bytes(PATH, good[:size])
        with pytest.raises(CorruptionError):
            read_facts(system, PATH)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": [1]}), sink)
    system.write_bytes(PATH, sink.getvalue().to_pybytes())
    with pytest.raises(CorruptionError):
        read_facts(system, PATH)
