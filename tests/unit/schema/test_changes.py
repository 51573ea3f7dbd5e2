"""Changes from users: keys, whole rows, named columns, and what builds on what."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from frazil.errors import Conflict, InvalidRequest
from frazil.log import format as fmt
from frazil.model import OP_DELETE, OP_INSERT, OP_UPDATE, OP_UPSERT
from frazil.schema.columns import IngestLimits
from frazil.schema.evolution import AddColumn, DropColumn, RenameColumn, WidenColumn, evolve
from frazil.schema.present import positions_of
from frazil.topic import completed, merged
from tests.unit.schema.keyed_topic import frame_of, topic_codec, use

ROW = {
    "id": 7,
    "name": "seven",
    "score": 1.5,
    "at": dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC),
    "price": Decimal("1.25"),
}
MOMENT_NS = 7_000
MOMENT = dt.datetime.fromisoformat("1970-01-01T00:00:00.000007")
PAIR = {"a": "string", "b": "date", "v": "int"}


def changes(*args, **kwargs):
    return topic_codec(*args, **kwargs)[0].columns.keyed.changes


@pytest.mark.parametrize("op", [OP_INSERT, OP_UPSERT])
def test_a_whole_row_is_packed_with_its_operation(op):
    """The packed record is the row's values, the operation and no bitmap."""
    codec = changes()
    change = codec.prepare_row(ROW, op)
    assert (change.key, change.op, change.present) == (7, op, None)
    assert change.values == tuple(ROW.values())
    assert change.packed == msgspec.msgpack.encode([*ROW.values(), op, None])


@pytest.mark.parametrize("count", [1, 13, 14, 15, 16, 17, 40])
def test_the_packed_form_is_right_for_any_number_of_columns(count):
    """The array's head changes its size at 16 elements; two more than columns are in it."""
    columns = {"id": "long", **{f"c{number}": "int" for number in range(count - 1)}}
    codec = changes(columns)
    row = dict.fromkeys(columns, 3)
    assert msgspec.msgpack.decode(codec.prepare_row(row, OP_UPSERT).packed) == [3] * count + [
        3,
        None,
    ]


def test_an_update_names_its_columns():
    """Values are as wide as the schema; the bitmap names the key and what was given, null too."""
    change = changes().prepare_update(7, {"score": None, "price": Decimal(2)})
    assert change.op == OP_UPDATE
    assert change.values == (7, None, None, None, Decimal(2))
    assert positions_of(change.present) == [0, 2, 4]
    assert msgspec.msgpack.decode(change.packed)[-2:] == [OP_UPDATE, change.present]


def test_an_update_of_all_columns_is_still_partial():
    """It changes a row and must not make one, so it is no whole row."""
    change = changes().prepare_update(7, ROW)
    assert positions_of(change.present) == [0, 1, 2, 3, 4]


def test_a_delete_has_its_key_alone():
    """Every other column is null, and there is no bitmap."""
    change = changes().prepare_delete(7)
    assert (change.key, change.op, change.present) == (7, OP_DELETE, None)
    assert change.values == (7, None, None, None, None)


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({}, "at least one column"),
        ([("name", "x")], "must be a dict"),
        ({"nam": "x"}, "does not exist.*nearest=name"),
        ({"name": None}, "must not be null.*name"),
        ({"score": "high"}, "wrong type.*score"),
        ({"name": "\ud800"}, "lone surrogate"),
        ({3: "x"}, "must be a string"),
    ],
)
def test_a_wrong_update_is_refused(columns, why):
    """The same checks as of rows, and the key stays."""
    with pytest.raises(InvalidRequest, match=why):
        changes().prepare_update(7, columns)


def test_the_key_may_be_named_if_it_stays():
    """A row that brings its key along is an update of the others."""
    assert changes().prepare_update(7, {"id": 7, "score": 2.0}).values[2] == 2.0


@pytest.mark.parametrize("key", [7, (7,), [7], {"id": 7}])
def test_a_key_of_one_column_comes_in_four_forms(key):
    """As it is, in a tuple or list, or by name."""
    assert changes().key_of(key) == 7


@pytest.mark.parametrize("key", [("x", dt.date(1970, 1, 3)), {"b": dt.date(1970, 1, 3), "a": "x"}])
def test_a_key_of_several_columns_comes_in_order_or_by_name(key):
    """Its normal form has storage numbers and equals the key of a whole row."""
    codec = changes(PAIR, ["a", "b"])
    assert codec.key_of(key) == ("x", 2)
    row = {"v": 1, "a": "x", "b": dt.date(1970, 1, 3)}
    assert codec.prepare_row(row, OP_UPSERT).key == codec.prepare_delete(key).key == ("x", 2)


def test_the_order_of_a_key_is_its_own_not_that_of_the_columns():
    """A key declared as (b, a) is given as (b, a)."""
    codec = changes(PAIR, ["b", "a"])
    change = codec.prepare_delete((dt.date(1970, 1, 3), "x"))
    assert change.key == (2, "x")
    assert change.values == ("x", dt.date(1970, 1, 3), None)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("x", "several columns.*a, b"),
        (("x",), "wrong number"),
        (("x", dt.date(2026, 1, 1), 1), "wrong number"),
        ({"a": "x"}, "name each key column"),
        ({"a": "x", "b": dt.date(2026, 1, 1), "v": 1}, "name each key column"),
        (("x", None), "must not be null.*b"),
        (("x", "2026-01-01"), "wrong type.*b"),
        ((1, dt.date(2026, 1, 1)), "wrong type.*a"),
    ],
)
def test_a_wrong_key_is_refused_with_what_it_needs(key, why):
    """The error names the key's columns, or the one that does not fit."""
    with pytest.raises(InvalidRequest, match=why):
        changes(PAIR, ["a", "b"]).prepare_delete(key)


@pytest.mark.parametrize("key", [True, 1.0, "7", None, 2**63])
def test_a_key_is_checked_like_a_cell(key):
    """No bool, float or text passes for a long, nor a number that it cannot hold."""
    with pytest.raises(InvalidRequest):
        changes().key_of(key)


def test_a_change_above_the_limit_is_refused():
    """The limit of rows holds for partial changes and whole ones."""
    codec = changes(limits=IngestLimits(message_bytes_max=100))
    with pytest.raises(InvalidRequest, match="too large"):
        codec.prepare_update(7, {"name": "x" * 200})
    with pytest.raises(InvalidRequest, match="too large"):
        codec.prepare_row({**ROW, "name": "x" * 200}, OP_UPSERT)


# -- building on the row that is there -------------------------------------------------------------


def test_a_move_is_a_delete_and_an_insert():
    """The insert takes what the update does not name from the old row."""
    codec = changes()
    delete, rest = codec.prepare_update(7, {"id": 8, "name": "eight"})
    assert (delete.op, delete.key) == (OP_DELETE, 7)
    insert = merged(rest, codec.prepare_row(ROW, OP_UPSERT).values, codec)
    assert (insert.op, insert.key, insert.present) == (OP_INSERT, 8, None)
    assert insert.values == (8, "eight", 1.5, ROW["at"], ROW["price"])


def test_an_unknown_key_is_completed_with_nulls():
    """Unless a column that must not be null is absent."""
    codec = changes()
    whole = completed(codec.prepare_update(9, {"name": "n"}))
    assert (whole.values, whole.present) == ((9, "n", None, None, None), None)
    with pytest.raises(InvalidRequest, match=r"needs this column.*name"):
        completed(codec.prepare_update(9, {"score": 1.0}))


def test_a_stored_row_is_an_image_as_a_user_would_have_given_it():
    """Read back from Arrow, a row is packed to the same bytes."""
    topic, _schema = topic_codec({"id": "long", "at": "timestamp", "l": "list<int>"})
    codec = topic.columns.keyed.changes
    row = {"id": 1, "at": MOMENT, "l": [1, None]}
    change = codec.prepare_row(row, OP_UPSERT)
    batch = topic.rows.encoder.batch([(0, None, None), change.values])
    assert codec.whole(codec.image(batch, 1), OP_UPSERT).packed == change.packed


def test_nanoseconds_of_an_image_are_counted():
    """Nothing is rounded, and a change of such a row is written as Arrow."""
    topic, _schema = topic_codec({"id": "long", "at": "timestamp[ns]"})
    codec = topic.columns.keyed.changes
    stamps = pa.array([MOMENT_NS, MOMENT_NS + 1, None], pa.timestamp("ns"))
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2, 3]), stamps], names=["id", "at"])
    images = [codec.image(batch, row) for row in range(3)]
    assert images == [(1, MOMENT_NS), (2, MOMENT_NS + 1), (3, None)]
    for image, kind in zip(images, [fmt.KIND_ARROW, fmt.KIND_ARROW, fmt.KIND_ROWS], strict=True):
        payload = codec.encode([codec.whole(image, OP_UPSERT)])
        assert payload.kind == kind
        found = topic.decode(frame_of(payload, count=1))
        assert found.column("at").cast(pa.int64()).to_pylist() == [image[1]]
    given = codec.prepare_row({"id": 1, "at": MOMENT}, OP_UPSERT)
    assert codec.as_stored(codec.whole((1, MOMENT_NS), OP_UPSERT).values) == (1, MOMENT_NS)
    assert codec.encode([given, codec.whole(images[1], OP_UPSERT)]).kind == fmt.KIND_ARROW


# -- the journal -----------------------------------------------------------------------------------


def test_what_builds_on_a_failed_change_is_refused_in_turn():
    """A chain fails from its first link on, in any order of answers; others are not concerned."""
    codec = changes()
    first, other = codec.prepare_row(ROW, OP_UPSERT), codec.prepare_row({**ROW, "id": 1}, OP_UPSERT)
    second = merged(codec.prepare_update(7, {"name": "b"}), first.values, codec)
    third = merged(codec.prepare_update(7, {"name": "c"}), second.values, codec)
    second.base, third.base = first, second
    codec.encode([first, second, third])
    codec.settled(first, many=False, written=False)
    with pytest.raises(Conflict, match="builds on failed"):
        codec.encode([other, second])
    with pytest.raises(Conflict, match="builds on failed"):
        codec.encode([third])
    assert not other.failed
    assert codec.encode([other]).size


def test_a_written_change_ends_the_chain():
    """It no longer holds what it was built on, and what builds on it may be written."""
    codec = changes()
    first = codec.prepare_row(ROW, OP_UPSERT)
    second = merged(codec.prepare_update(7, {"name": "b"}), first.values, codec)
    second.base = first
    codec.settled([first, second], many=True, written=True)
    assert first.done
    assert second.done
    assert second.base is None
    assert codec.encode([second]).flags == fmt.FLAG_OP | fmt.FLAG_PRESENT


EVOLVED = [
    DropColumn("score"),
    RenameColumn("name", "title"),
    AddColumn("extra", "string"),
]


def test_queued_changes_are_copied_to_new_columns():
    """Values go by column id, bitmaps follow, and the original learns what became of its copy."""
    topic, schema = topic_codec()
    codec = topic.columns.keyed.changes
    whole, part = (
        codec.prepare_row(ROW, OP_UPSERT),
        codec.prepare_update(7, {"name": "x", "score": 2.0}),
    )
    part.base = whole
    use(topic, 2, evolve(schema, EVOLVED))
    current, fresh = codec.upgraded([whole, part], many=True)
    assert current is topic.columns.keyed.changes
    assert [change.version for change in (whole, part, *fresh)] == [1, 1, 2, 2]
    assert fresh[0].values == (7, "seven", ROW["at"], ROW["price"], None)
    assert fresh[1].values == (7, "x", None, None, None)
    assert positions_of(fresh[1].present) == [0, 1]
    assert fresh[1].base is whole
    assert msgspec.msgpack.decode(fresh[1].packed)[-1] == fresh[1].present
    current.settled(fresh[0], many=False, written=False)
    assert whole.failed
    with pytest.raises(Conflict):
        current.encode([fresh[1]])
    single = codec.upgraded(codec.prepare_delete(3), many=False)[1]
    current.settled(single, many=False, written=True)
    assert single.values == (3, None, None, None, None)
    assert single.origin.done


def test_merging_goes_to_the_newer_of_both_versions():
    """An update prepared under old columns keeps what its base has in new ones, and vice versa."""
    topic, schema = topic_codec({"id": "long", "a": "int", "b": "string"})
    old = topic.columns.keyed.changes
    image = old.prepare_row({"id": 1, "a": 5, "b": "b"}, OP_UPSERT).values
    update = old.prepare_update(1, {"a": 6})
    use(
        topic, 2, evolve(schema, [DropColumn("b"), WidenColumn("a", "long"), AddColumn("z", "int")])
    )
    new = topic.columns.keyed.changes
    newer = new.prepare_row({"id": 1, "a": 5, "z": 9}, OP_UPSERT)
    result = merged(update, newer.values, new)
    assert (result.codec, result.values) == (new, (1, 6, 9))
    result = merged(new.prepare_update(1, {"z": 3}), image, old)
    assert (result.codec, result.values) == (new, (1, 5, 3))


def test_a_key_is_found_by_an_equal_number():
    """An int finds a decimal's row, and NumPy's integers those of Python's."""
    whole = topic_codec({"id": "long", "v": "int"}, ["id"])[0].columns.keyed.changes
    assert whole.key_of(np.int64(7)) == whole.key_of(7)
    exact = topic_codec({"id": "decimal(10,2)", "v": "int"}, ["id"])[0].columns.keyed.changes
    wanted = exact.key_of(Decimal("100.00"))
    assert exact.key_of(100) == exact.key_of(np.int16(100)) == wanted
    assert exact.prepare_row({"id": 100, "v": 1}, OP_UPSERT).key == wanted
    for wrong in (10**8, 100.0, True):
        with pytest.raises(InvalidRequest):
            exact.key_of(wrong)
