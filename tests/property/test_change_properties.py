"""Whatever changes come, frames of both kinds give them back, under every later schema."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.errors import CorruptionError, InvalidRequest
from frazil.log import Payload
from frazil.log import format as fmt
from frazil.model import OP_DELETE, OP_INSERT, OP_NAMES, OP_UPDATE, OP_UPSERT
from frazil.schema import (
    AddColumn,
    DebeziumReader,
    DropColumn,
    RenameColumn,
    WidenColumn,
    bitmap_bytes,
    column_id,
    evolve,
    positions_of,
)
from frazil.topic import Move, merged
from tests.unit.schema.keyed_topic import codec_of, frame_of, frame_of_changes, topic_codec, use

FLAGS = fmt.FLAG_OP | fmt.FLAG_PRESENT
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
COLUMNS = {
    "id": "int",
    "kind": "string",
    "name": "string not null",
    **{f"c{number}": "int" for number in range(7)},
    "data": "binary",
}
KEY = ("kind", "id")
INT = st.integers(-(2**31), 2**31 - 1)
KEYS = st.fixed_dictionaries({"id": st.integers(0, 3), "kind": st.sampled_from(["a", "b"])})
OPTIONAL = {f"c{number}": st.none() | INT for number in range(7)} | {
    "data": st.none() | st.binary(max_size=5)
}
NAMED = st.fixed_dictionaries({}, optional={"name": TEXT, **OPTIONAL}).filter(bool)
WHOLE = st.fixed_dictionaries({"name": TEXT}, optional=OPTIONAL)
OPERATION = st.one_of(
    st.tuples(st.sampled_from([OP_INSERT, OP_UPSERT]), KEYS, WHOLE),
    st.tuples(st.just(OP_UPDATE), KEYS, NAMED),
    st.tuples(st.just(OP_DELETE), KEYS, st.just({})),
)
STEPS = st.lists(
    st.one_of(
        st.builds(DropColumn, st.sampled_from(["name", "c0", "c3", "c6", "data"])),
        st.builds(WidenColumn, st.sampled_from(["c1", "c2"]), st.just("long")),
        st.builds(RenameColumn, st.sampled_from(["c4", "id"]), st.sampled_from(["r1", "r2"])),
        st.builds(AddColumn, st.sampled_from(["c0", "n1", "n2"]), st.just("string")),
    ),
    max_size=5,
)


def evolved(schema, steps):
    """Take those steps that are legal one after another."""
    for step in steps:
        try:
            schema = evolve(schema, [step], fixed_ids=(1, 2))
        except InvalidRequest:
            continue
    return schema


def prepared(codec, operations):
    changes = codec.columns.keyed.changes
    return [changes.prepare(op, key, {**key, **row}) for op, key, row in operations]


def by_id(schema, operation):
    """Say an operation in column ids: what it names, and the values that are not null."""
    op, key, row = operation
    ids = {field.name: column_id(field) for field in schema}
    values = {ids[name]: value for name, value in {**key, **row}.items()}
    return op, set(values) if op == OP_UPDATE else None, values


def read_by_id(schema, row):
    """Say a row that was read in column ids."""
    ids = [column_id(schema.field(index)) for index in range(len(schema) - 2)]
    values = {number: row[name] for number, name in zip(ids, schema.names, strict=False)}
    present = row["_present"]
    if present is not None:
        assert len(present) == bitmap_bytes(len(ids))
        present = {ids[position] for position in positions_of(present)}
    return row["_op"], present, {number: v for number, v in values.items() if v is not None}


@given(st.lists(OPERATION, min_size=1, max_size=6), STEPS, st.sampled_from([1, 100]))
def test_changes_come_back_under_any_later_schema(operations, steps, rows_arrow_min):
    """Operation, named columns and values are those given, of the columns that are still there."""
    codec, schema = topic_codec(COLUMNS, KEY, rows_arrow_min=rows_arrow_min)
    frame = frame_of_changes(codec, prepared(codec, operations))
    wanted = evolved(schema, steps)
    now = codec_of({1: schema, 2: wanted}, (2, 1))
    kept = {column_id(field) for field in wanted}
    expected = []
    for operation in operations:
        op, named, values = by_id(schema, operation)
        left = {n: v for n, v in values.items() if v is not None and n in kept}
        expected.append((op, named and named & kept, left))
    batches = [now.decode(frame)]
    if frame.head.kind == fmt.KIND_ROWS:
        batches.append(now.decode_small([frame]))
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(now.columns.keyed.schema, check_metadata=True)
        assert [read_by_id(batch.schema, row) for row in batch.to_pylist()] == expected


@given(st.lists(OPERATION, min_size=1, max_size=6), STEPS)
def test_upgrading_before_writing_equals_reading_after(operations, steps):
    """A change that waits while the columns change is stored as its old frame would be read."""
    codec, schema = topic_codec(COLUMNS, KEY)
    changes = prepared(codec, operations)
    bulk = codec.columns.keyed.arrow
    old = codec.columns.keyed.changes
    rows = [
        dict(zip(codec.columns.keyed.schema.names, (*c.values, c.op, c.present), strict=True))
        for c in changes
    ]
    payload = bulk.payload(pa.RecordBatch.from_pylist(rows, schema=codec.columns.keyed.schema))
    frame = frame_of_changes(codec, changes)
    use(codec, 2, evolved(schema, steps))
    expected = codec.decode(frame)
    current, fresh = old.upgraded(changes, many=True)
    count = len(changes)
    assert codec.decode(frame_of(current.encode(fresh), count=count, version=2)).equals(expected)
    data = bulk.fresh().upgraded(payload, many=True)[1]
    assert codec.decode(frame_of(data, count=count, version=2)).equals(expected)


@given(st.lists(OPERATION, min_size=1, max_size=8))
def test_bulk_and_single_changes_are_the_same(operations):
    """Arrow data with an operation column gives what one call for each gives."""
    codec, _schema = topic_codec(COLUMNS, KEY)
    given_columns = sorted({name for _op, key, row in operations for name in (*key, *row)})
    if "name" not in given_columns:
        given_columns.append("name")
    types = {field.name: field.type for field in codec.schema}
    rows, same = [], []
    for op, key, row in operations:
        values = {name: {**key, **row}.get(name) for name in given_columns}
        if op != OP_DELETE and values["name"] is None:
            values["name"] = "given"
        rows.append({**values, "_op": OP_NAMES[op]})
        same.append((op, key, {} if op == OP_DELETE else values))
    fields = [pa.field(name, types[name]) for name in given_columns]
    data = pa.Table.from_pylist(rows, schema=pa.schema([*fields, pa.field("_op", pa.string())]))
    (batch,) = codec.columns.keyed.input.batches(data, bytes_max=1 << 20, rows_max=100)
    changes = prepared(codec, same)
    assert batch.equals(codec.decode(frame_of_changes(codec, changes)))
    keys = codec.columns.keyed.changes.shape.keys(batch)
    assert keys == [change.key for change in changes]


@given(KEYS, WHOLE, st.lists(NAMED, max_size=4))
def test_merging_equals_updating_a_dict(key, first, updates):
    """One update after another sets what it names and leaves the rest."""
    codec = topic_codec(COLUMNS, KEY)[0].columns.keyed.changes
    change = codec.prepare_row({**key, **first}, OP_UPSERT)
    model = {**dict.fromkeys(COLUMNS), **key, **first}
    for named in updates:
        change = merged(codec.prepare_update(key, named), change.values, codec)
        model |= named
    assert dict(zip(COLUMNS, change.values, strict=True)) == model
    assert codec.prepare_row(model, OP_UPSERT).values == change.values


@given(st.binary(max_size=60), st.integers(1, 3), st.sampled_from([fmt.KIND_ROWS, fmt.KIND_ARROW]))
def test_junk_never_becomes_changes(data, count, kind):
    """Bytes that are no changes are damage, whatever they are."""
    codec, _schema = topic_codec(COLUMNS, KEY)
    frame = frame_of(Payload(kind, FLAGS, data, len(data)), count=count)
    with pytest.raises(CorruptionError):
        codec.decode(frame)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "op",
                    "before",
                    "after",
                    "payload",
                    "schema",
                    "fields",
                    "field",
                    "name",
                    "id",
                    "kind",
                ]
            ),
            inner | st.sampled_from(["c", "u", "d", "r", "after"]),
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(JSON, JSON)
def test_no_event_crashes_the_reader(value, key):
    """It is read, and then prepared, or refused as an invalid request."""
    codec = topic_codec(COLUMNS, KEY)[0].columns.keyed.changes
    try:
        for raw in DebeziumReader(codec.schema, KEY).read(value, key):
            step = codec.prepare(raw.op, raw.key, raw.row)
            assert isinstance(step, Move) or step.op == raw.op
    except InvalidRequest as error:
        assert error.message
