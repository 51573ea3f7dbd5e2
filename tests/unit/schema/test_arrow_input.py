"""Arrow data of any producer as batches of a schema."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from frazil.errors import InvalidRequest
from frazil.schema.arrow_input import ArrowInput, to_batches
from frazil.schema.columns import IngestLimits, declare_schema, strip_ids

SCHEMA = declare_schema({"id": "long not null", "name": "string", "ts": "timestamp[ms, UTC]"})
NOON = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)


def convert(data, schema=SCHEMA, **limits):
    """Return the rows of `data` after conversion, with every batch checked."""
    batches = to_batches(
        data, schema=schema, limits=IngestLimits(**limits), bytes_max=1 << 20, rows_max=1000
    )
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(schema, check_metadata=True)
    return [row for batch in batches for row in batch.to_pylist()]


class _Stream:
    """A foreign table with nothing but the C stream interface."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


class _Array:
    """A foreign batch with nothing but the C array interface."""

    def __init__(self, batch):
        self._batch = batch

    def __arrow_c_array__(self, requested_schema=None):
        return self._batch.__arrow_c_array__(requested_schema)


def test_every_producer_gives_the_same_rows():
    """A batch, table, reader, C stream and C array of the same data convert to the same rows."""
    batch = pa.record_batch({"name": ["x", None], "id": [1, 2]})
    table = pa.Table.from_batches([batch])
    expected = [{"id": 1, "name": "x", "ts": None}, {"id": 2, "name": None, "ts": None}]
    for data in (batch, table, table.to_reader(), _Stream(table), _Array(batch)):
        assert convert(data) == expected


def test_an_exact_batch_is_passed_on_without_a_copy():
    """A batch with the declared columns shares its buffers, with or without ids."""
    exact = pa.RecordBatch.from_pydict({"id": [1], "name": ["x"], "ts": [NOON]}, schema=SCHEMA)
    plain = pa.RecordBatch.from_arrays(exact.columns, schema=strip_ids(SCHEMA))
    source = ArrowInput(SCHEMA)
    assert next(source.batches(exact, bytes_max=1 << 20, rows_max=10)) is exact
    (found,) = source.batches(plain, bytes_max=1 << 20, rows_max=10)
    for before, after in zip(exact.columns, found.columns, strict=True):
        assert before.buffers()[-1].address == after.buffers()[-1].address


@pytest.mark.parametrize(
    ("wanted", "given", "values"),
    [
        ("long", pa.array([1, None], pa.int8()), [1, None]),
        ("int", pa.array([1, 2], pa.uint64()), [1, 2]),
        ("double", pa.array([1.5], pa.float32()), [1.5]),
        ("double", pa.array([2**53], pa.int64()), [2.0**53]),
        ("string", pa.array(["x"], pa.large_string()), ["x"]),
        ("string", pa.array(["x", None], pa.string_view()), ["x", None]),
        ("string", pa.array(["x", "y", "x", None]).dictionary_encode(), ["x", "y", "x", None]),
        ("bytes", pa.array([b"x"], pa.large_binary()), [b"x"]),
        ("fixed[2]", pa.array([b"xy"], pa.binary()), [b"xy"]),
        ("date", pa.array([NOON.date()], pa.date64()), [NOON.date()]),
        ("time", pa.array([dt.time(1, 2)], pa.time32("s")), [dt.time(1, 2)]),
        ("timestamptz", pa.array([NOON], pa.timestamp("ns", "Europe/Zurich")), [NOON]),
        ("timestamp[s, UTC]", pa.array([NOON], pa.timestamp("us", "UTC")), [NOON]),
        ("list<long>", pa.array([[1], None], pa.large_list(pa.int32())), [[1], None]),
        ("struct<a:long>", pa.array([{"a": 1}], pa.struct([("a", pa.int8())])), [{"a": 1}]),
        ("string", pa.nulls(2), [None, None]),
        ("fixed[16]", pa.array([b"0123456789abcdef"], pa.uuid()), [b"0123456789abcdef"]),
    ],
)
def test_a_lossless_cast_is_made(wanted, given, values):
    """A column of a related type converts when each value stays what it was."""
    rows = convert(pa.record_batch({"c": given}), declare_schema({"c": wanted}))
    assert [row["c"] for row in rows] == values


@pytest.mark.parametrize(
    ("wanted", "given", "row"),
    [
        ("int8", pa.array([1, 2, 128, 300]), 2),
        ("long", pa.array([0, 2**63], pa.uint64()), 1),
        ("double", pa.array([1, 2**53 + 1]), 1),
        ("timestamp[s, UTC]", pa.array([NOON, NOON.replace(microsecond=1)]), 1),
        ("fixed[2]", pa.array([b"xy", b"z"]), 1),
        ("list<int8>", pa.array([[1], [2, 300]]), 1),
    ],
)
def test_a_value_that_would_change_is_refused_with_its_row(wanted, given, row):
    """The first value that the declared type cannot hold is named by column and row."""
    data = pa.table({"c": pa.chunked_array([given.slice(0, 1), given.slice(1)])})
    with pytest.raises(InvalidRequest) as caught:
        convert(data, declare_schema({"c": wanted}))
    assert caught.value.details["column"] == "c"
    assert caught.value.details["row"] == row


@pytest.mark.parametrize(
    ("wanted", "given"),
    [
        ("long", pa.array(["1"])),
        ("long", pa.array([1.0])),
        ("long", pa.array([True])),
        ("boolean", pa.array([1])),
        ("float", pa.array([1.5])),
        ("string", pa.array([b"x"])),
        ("string", pa.array([1])),
        ("bytes", pa.array(["x"])),
        ("timestamp", pa.array([NOON])),
        ("timestamptz", pa.array([NOON.replace(tzinfo=None)])),
        ("timestamptz", pa.array([1])),
        ("date", pa.array([NOON])),
        ("list<long>", pa.array([["x"]])),
        ("struct<a:long>", pa.array([{"b": 1}])),
        ("long", pa.array([[1]])),
    ],
)
def test_a_type_of_another_kind_is_refused(wanted, given):
    """Nothing is parsed, rounded or reinterpreted, even where each value would fit."""
    with pytest.raises(InvalidRequest, match="another type"):
        convert(pa.record_batch({"c": given}), declare_schema({"c": wanted}))


def test_nulls_in_a_required_column_are_refused_with_their_row():
    """The first null is named by its row in the whole input, not in its chunk."""
    column = pa.chunked_array([[1, 2], [3, None]])
    with pytest.raises(InvalidRequest) as caught:
        convert(pa.table({"id": column}))
    assert caught.value.details == {"column": "id", "row": 3}


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [
        ("struct<a:int not null>", [{"a": 1}, None], {"a": None}),
        ("list<int not null>", [[1, 2], [], None], [1, None]),
        ("map<string,int not null>", [[("k", 1)], None], [("k", 1), ("j", None)]),
        ("list<struct<a:int not null>>", [[{"a": 1}, None], None], [{"a": 1}, {"a": None}]),
    ],
)
def test_nulls_in_required_nested_fields_are_refused_with_their_row(text, good, bad):
    """A null inside is refused, one of its nullable parent is not."""
    schema = declare_schema({"c": text})
    loose = declare_schema({"c": text.replace(" not null", "")}).field("c").type
    column = pa.array([*good, bad, *good], loose)
    assert len(convert(pa.record_batch({"c": pa.array(good, loose)}), schema)) == len(good)
    for data, row in ((column, len(good)), (column.slice(1), len(good) - 1)):
        with pytest.raises(InvalidRequest) as caught:
            convert(pa.record_batch({"c": data}), schema)
        assert caught.value.details["row"] == row


def test_columns_must_be_the_declared_ones():
    """Unknown, missing required and doubled columns are refused."""
    with pytest.raises(InvalidRequest, match="does not exist"):
        convert(pa.record_batch({"id": [1], "nope": [1]}))
    with pytest.raises(InvalidRequest, match="missing"):
        convert(pa.record_batch({"name": ["x"]}))
    double = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"])
    with pytest.raises(InvalidRequest, match="twice"):
        convert(double)
    for data in (5, None, [1], {"id": [1]}, "x"):
        with pytest.raises(InvalidRequest, match="not Arrow"):
            convert(data)


def _strings(offsets, data):
    buffers = [None, pa.array(offsets, pa.int32()).buffers()[1], pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)


@pytest.mark.parametrize(
    ("column", "row"),
    [(_strings([0, 1, 2, 3], b"a\xffb"), 1), (_strings([0, 2, 1, 3], b"abc"), 1)],
)
def test_invalid_buffers_are_refused_with_their_row(column, row):
    """Bad UTF-8 and decreasing offsets are found before anything is stored."""
    with pytest.raises(InvalidRequest) as caught:
        convert(pa.record_batch({"id": [1, 2, 3], "name": column}))
    assert caught.value.details["column"] == "name"
    assert caught.value.details["row"] in {row - 1, row}


def test_large_input_is_split_in_order():
    """Pieces keep the order, the limits hold, and none drags the others' bytes along."""
    count = 10_000
    data = pa.record_batch({"id": list(range(count)), "name": ["x" * 100] * count})
    pieces = to_batches(data, schema=SCHEMA, bytes_max=100_000, rows_max=700)
    assert [value for piece in pieces for value in piece.column(0).to_pylist()] == list(
        range(count)
    )
    assert max(piece.num_rows for piece in pieces) <= 700
    assert max(piece.nbytes for piece in pieces) <= 100_000
    assert max(piece.serialize().size for piece in pieces) <= 101_000


def test_a_slice_of_empty_lists_does_not_drag_its_parent():
    """A piece whose lists are all empty serialises small, though its parent is large."""
    schema = declare_schema({"c": "list<string>"})
    data = pa.record_batch({"c": [[]] * 10 + [["abc"] * 100] * 1000})
    pieces = to_batches(data, schema=schema, bytes_max=1 << 24, rows_max=10)
    assert pieces[0].serialize().size < 1000
    assert pieces[0].to_pydict() == {"c": [[]] * 10}
    assert sum(piece.num_rows for piece in pieces) == 1010


def test_a_row_above_the_limit_is_refused_with_its_number():
    """One huge row among small ones is found, and rows at the limit pass."""
    names = ["x"] * 100 + ["y" * 5000] + ["x"] * 100
    data = pa.table({"id": pa.array(range(201)), "name": pa.array(names)})
    assert len(convert(data, message_bytes_max=6000)) == 201
    with pytest.raises(InvalidRequest, match="too large") as caught:
        convert(data, message_bytes_max=4000)
    assert caught.value.details["row"] == 100
    with pytest.raises(InvalidRequest, match="larger than a batch") as caught:
        to_batches(data, schema=SCHEMA, bytes_max=3000, rows_max=1000)
    assert caught.value.details["row"] == 100


def test_empty_input_gives_no_batch():
    """Empty batches and tables are nothing, not an error."""
    assert convert(pa.record_batch({"id": pa.array([], pa.int64())})) == []
    assert convert(pa.table({"id": pa.chunked_array([], pa.int64())})) == []


@pytest.mark.parametrize("library", ["pandas", "polars", "duckdb"])
def test_data_frames_are_accepted(library):
    """Frames of pandas, Polars and DuckDB convert through the C stream interface."""
    module = pytest.importorskip(library, reason=f"{library} is not installed")
    rows = {"id": [1, 2], "name": ["x", None]}
    if library == "duckdb":
        frame = module.sql("select 1::bigint as id, 'x' as name union all select 2, null")
    else:
        frame = module.DataFrame(rows)
    found = sorted(convert(frame), key=lambda row: row["id"])
    assert [(row["id"], row["name"]) for row in found] == [(1, "x"), (2, None)]
