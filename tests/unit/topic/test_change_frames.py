"""Frames of keyed topics: both kinds, mixed with plain rows, under other columns, damaged."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

from frazil.errors import CorruptionError, InvalidRequest
from frazil.log import Payload
from frazil.log import format as fmt
from frazil.model import OP_INSERT, OP_UPSERT
from frazil.schema import (
    AddColumn,
    DropColumn,
    RenameColumn,
    WidenColumn,
    evolve,
    join_packed,
    positions_of,
)
from frazil.topic.payloads import arrow_payload
from tests.unit.schema.keyed_topic import codec_of, frame_of, frame_of_changes, topic_codec, use

COLUMNS = {"id": "long", "name": "string not null", "n": "int"}
FLAGS = fmt.FLAG_OP | fmt.FLAG_PRESENT


def some_changes(codec):
    changes = codec.columns.keyed.changes
    return [
        changes.prepare_row({"id": 1, "name": "a", "n": 1}, OP_INSERT),
        changes.prepare_row({"id": 2, "name": "b"}, OP_UPSERT),
        changes.prepare_update(1, {"n": None}),
        changes.prepare_delete(2),
    ]


EXPECTED = {
    "id": [1, 2, 1, 2],
    "name": ["a", "b", None, None],
    "n": [1, None, None, None],
    "_op": [1, 3, 2, 4],
    "_present": [None, None, b"\x05", None],
}


@pytest.mark.parametrize(("rows_arrow_min", "kind"), [(9, fmt.KIND_ROWS), (1, fmt.KIND_ARROW)])
def test_changes_come_back_from_both_kinds_of_frames(rows_arrow_min, kind):
    """Operations and bitmaps stand behind the columns, of which the key alone is never null."""
    codec, _schema = topic_codec(COLUMNS, rows_arrow_min=rows_arrow_min)
    frame = frame_of_changes(codec, some_changes(codec))
    assert (frame.head.kind, frame.head.flags) == (kind, FLAGS)
    batch = codec.decode(frame)
    batch.validate(full=True)
    assert batch.to_pydict() == EXPECTED
    assert batch.schema.equals(codec.columns.keyed.schema, check_metadata=True)
    assert [field.nullable for field in batch.schema] == [False, True, True, False, True]
    assert [field.nullable for field in codec.schema] == [False, False, True]


def test_nested_columns_go_as_arrow():
    """They have no packed form, in changes as in rows."""
    codec, _schema = topic_codec({"id": "long", "l": "list<int>"}, rows_arrow_min=100)
    change = codec.columns.keyed.changes.prepare_update(1, {"l": [1, None]})
    frame = frame_of_changes(codec, [change])
    assert frame.head.kind == fmt.KIND_ARROW
    assert codec.decode(frame).to_pylist() == [
        {"id": 1, "l": [1, None], "_op": 2, "_present": b"\x03"}
    ]


def test_frames_without_operations_hold_upserts():
    """Rows and Arrow batches as every version so far wrote them."""
    codec, _schema = topic_codec(COLUMNS)
    rows = [codec.rows.encoder.encode({"id": i, "name": "x"}) for i in range(2)]
    packed = codec.decode(frame_of(codec.rows.encode(rows), count=2))
    batch = codec.rows.encoder.batch([row[0] for row in rows])
    arrow = codec.decode(frame_of(arrow_payload(batch, codec.options), count=2))
    for found in (packed, arrow):
        assert found.schema.equals(codec.columns.keyed.schema, check_metadata=True)
        assert found.to_pydict() == {
            "id": [0, 1],
            "name": ["x", "x"],
            "n": [None, None],
            "_op": [OP_UPSERT] * 2,
            "_present": [None, None],
        }


def test_a_topic_without_a_key_has_neither_column():
    """Its batches are what they were, and a flag on its rows is no business of this version."""
    codec, schema = topic_codec(COLUMNS, keyed=False)
    rows = [codec.rows.encoder.encode({"id": 1, "name": "x"})]
    frame = frame_of(codec.rows.encode(rows), count=1)
    for batch in (codec.decode(frame), codec.decode_small([frame, frame])):
        assert batch.schema.equals(schema, check_metadata=True)
    assert codec.columns.keyed is None
    assert codec.columns.keyed is None
    odd = frame_of(codec.rows.encode(rows)._replace(flags=fmt.FLAG_OP), count=1)
    for decode in (codec.decode, lambda frame: codec.decode_small([frame, frame])):
        with pytest.raises(InvalidRequest, match="newer Frazil"):
            decode(odd)


def test_small_frames_are_joined_with_and_without_operations():
    """In their order; the plain ones count as upserts."""
    codec, _schema = topic_codec(COLUMNS)
    plain = frame_of(
        codec.rows.encode([codec.rows.encoder.encode({"id": 5, "name": "p"})]), count=1
    )
    changes = some_changes(codec)
    frames = [frame_of_changes(codec, changes[:2]), plain, frame_of_changes(codec, changes[2:])]
    assert {frame.head.kind for frame in frames} == {fmt.KIND_ROWS}
    batch = codec.decode_small(frames)
    assert batch.schema.equals(codec.columns.keyed.schema, check_metadata=True)
    assert batch.column("_op").to_pylist() == [1, 3, 3, 2, 4]
    assert batch.column("id").to_pylist() == [1, 2, 5, 1, 2]
    assert batch.column("_present").to_pylist() == [None, None, None, b"\x05", None]
    assert codec.decode_small([plain, plain]).column("_op").to_pylist() == [3, 3]


@pytest.mark.parametrize("rows_arrow_min", [9, 1])
def test_old_changes_read_under_new_columns(rows_arrow_min):
    """Operations stay, and a bitmap names the same columns wherever they are now."""
    old, schema = topic_codec(COLUMNS, rows_arrow_min=rows_arrow_min)
    frame = frame_of_changes(old, some_changes(old))
    added = [AddColumn(f"x{number}", "int") for number in range(9)]
    steps = [DropColumn("name"), RenameColumn("n", "m"), WidenColumn("m", "long"), *added]
    wanted = evolve(schema, steps)
    codec = codec_of({1: schema, 2: wanted}, (1,))
    batches = [codec.decode(frame)]
    if frame.head.kind == fmt.KIND_ROWS:
        batches.append(codec.decode_small([frame]))
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(codec.columns.keyed.schema, check_metadata=True)
        assert batch.column("m").to_pylist() == EXPECTED["n"]
        assert batch.column("_op").to_pylist() == EXPECTED["_op"]
        assert batch.column("_present").to_pylist() == [None, None, b"\x03\x00", None]
        assert batch.column("x8").null_count == 4


def test_a_batch_that_waits_is_rewritten_when_the_columns_change():
    """Changes in bulk and plain batches alike; the first codec learns what became of them."""
    codec, schema = topic_codec(COLUMNS)
    bulk = codec.columns.keyed.arrow
    rows = [(*change.values, change.op, change.present) for change in some_changes(codec)]
    names = codec.columns.keyed.schema.names
    changes = pa.RecordBatch.from_pylist(
        [dict(zip(names, row, strict=True)) for row in rows], schema=codec.columns.keyed.schema
    )
    plain = codec.rows.encoder.batch([(1, "a", 2)])
    use(codec, 2, evolve(schema, [DropColumn("name")]))
    for batch, flags in ((changes, FLAGS), (plain, 0)):
        payload = bulk.payload(batch)
        assert payload.flags == flags
        first = bulk.fresh()
        fresh, data = first.upgraded(payload, many=True)
        assert (first.version, fresh.version) == (1, 2)
        found = codec.decode(frame_of(fresh.encode(data), count=batch.num_rows, version=2))
        assert found.column("n").to_pylist() == batch.column("n").to_pylist()
        fresh.settled(data, many=True, written=True)
        assert (first.done, first.failed, fresh.done) == (True, False, True)
    data = bulk.fresh().upgraded(bulk.payload(changes), many=True)[1]
    found = codec.decode(frame_of(data, count=4, version=2))
    assert positions_of(found.column("_present")[2].as_py()) == [0, 1]


@pytest.mark.parametrize(
    "record",
    [
        [1, "a", 1, 5, None],
        [1, "a", 1, 0, None],
        [1, "a", 1, None, None],
        [1, "a", 1, 2, b""],
        [1, "a", 1, 2, b"\x01\x00"],
        [1, "a", 1, 2],
    ],
)
def test_packed_operations_that_cannot_be_are_damage(record):
    """An unknown operation, none, or a bitmap of another width."""
    codec, _schema = topic_codec(COLUMNS)
    data = join_packed([msgspec.msgpack.encode(record)])
    frame = frame_of(Payload(fmt.KIND_ROWS, FLAGS, data, len(data)), count=1)
    for decode in (codec.decode, lambda frame: codec.decode_small([frame, frame])):
        with pytest.raises(CorruptionError):
            decode(frame)


@pytest.mark.parametrize(("op", "present"), [(5, None), (0, None), (None, None), (2, b"\1\0")])
def test_operations_in_arrow_that_cannot_be_are_damage(op, present):
    """As in packed rows; the good one beside it does not hide it."""
    codec, _schema = topic_codec(COLUMNS)
    arrays = [[1, 1], ["a", "a"], [1, 1], [1, op], [None, present]]
    arrays = [pa.array(a, t) for a, t in zip(arrays, codec.columns.keyed.schema.types, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=codec.columns.keyed.schema)
    frame = frame_of(arrow_payload(batch, codec.options, FLAGS), count=2)
    with pytest.raises(CorruptionError, match="damaged"):
        codec.decode(frame)


@pytest.mark.parametrize(
    "flags", [fmt.FLAG_OP, fmt.FLAG_PRESENT, fmt.FLAG_TIME, fmt.FLAG_PLAIN, 16]
)
def test_packed_rows_with_other_flags_are_left_to_a_newer_version(flags):
    """Packed records have both system columns or none."""
    codec, _schema = topic_codec(COLUMNS)
    payload = codec.columns.keyed.changes.encode(some_changes(codec)[:2])._replace(flags=flags)
    frame = frame_of(payload, count=2)
    good = frame_of_changes(codec, some_changes(codec)[:2])
    for decode in (codec.decode, lambda frame: codec.decode_small([good, frame])):
        with pytest.raises(InvalidRequest, match="newer Frazil"):
            decode(frame)


def test_a_time_column_of_an_arrow_frame_is_left_out():
    """The flag is known, so the columns before it are found; the batch has its one form."""
    codec, _schema = topic_codec(COLUMNS)
    fields = [
        *codec.schema,
        pa.field("_op", pa.int8()),
        pa.field("_time", pa.timestamp("us", "UTC")),
    ]
    arrays = [pa.array([v], f.type) for v, f in zip([1, "a", 2, 4, 0], fields, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
    payload = arrow_payload(batch, codec.options, fmt.FLAG_OP | fmt.FLAG_TIME)
    found = codec.decode(frame_of(payload, count=1))
    assert found.schema.equals(codec.columns.keyed.schema, check_metadata=True)
    assert found.to_pylist() == [{"id": 1, "name": "a", "n": 2, "_op": 4, "_present": None}]
