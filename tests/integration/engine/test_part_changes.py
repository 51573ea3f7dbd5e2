"""Changes and look-ups of keyed topics with parts: every key has one part, and one order there."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal

import pyarrow as pa
import pytest

from frazil.errors import Conflict, InvalidRequest, NotFound
from tests.integration.engine.opening import LOG_ALONE, open_small

COLUMNS = {"id": "long", "n": "long", "s": "string"}
PARTS = 4


def create(db, name="p", **options):
    return db.create_topic(name, COLUMNS, primary_key="id", partitions=PARTS, **options)


@pytest.fixture
def topic(engine):
    """Return a topic with parts."""
    return create(engine)


def state_of(db, name="p"):
    """Return all rows of a topic as SQL gives them, by key."""
    return {row[0]: row[1:] for row in db.query(f'SELECT id, n, s FROM "{name}"').rows()}


def two_keys(topic, *, same_part):
    """Return two keys that share a part, or do not."""
    first = topic.part_of_key(0)
    return 0, next(key for key in range(1, 100) if (topic.part_of_key(key) == first) is same_part)


def test_changes_go_to_the_part_of_their_key(engine, topic):
    """Every form of every change of a key meets the others in one part, whose row they make."""
    for key in range(20):
        part = topic.part_of_key(key)
        acks = [
            topic.insert(id=key, n=1, s="a"),
            topic.upsert({"id": key, "n": 2, "s": "b"}),
            topic.update(key, {"n": 3}),
            topic.update("id", key, {"n": 4}),
            topic.update(id=key, n=5),
            topic.append(id=key, n=5, s="c"),
            topic.update({"id": key, "n": key}),
        ]
        assert {ack.part for ack in acks} == {part}
        assert topic.get(key) == {"id": key, "n": key, "s": "c"}
        assert topic.parts[part].get({"id": key}) == topic.get(key)
    for key, call in ((0, (0,)), (1, ("id", 1)), (2, ({"id": 2},))):
        assert topic.delete(*call).part == topic.part_of_key(key)
    topic.delete(id=3, ack="fsynced")
    assert state_of(engine) == {key: (key, "c") for key in range(4, 20)}
    assert [row and row["id"] for row in topic.get_many([19, 0, 4, 19, (5,)])] == [
        *(19, None, 4, 19, 5)
    ]
    assert topic.get_many([]) == []
    assert topic.get_many(iter([7]))[0]["id"] == 7


@pytest.mark.parametrize(
    ("kind", "forms"),
    [
        ("decimal(10,2)", [Decimal("1.5"), Decimal("1.50"), Decimal("1.500")]),
        (
            "timestamptz",
            [
                dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC),
                dt.datetime(2026, 1, 1, 14, tzinfo=dt.timezone(dt.timedelta(hours=2))),
            ],
        ),
        ("binary", [b"x", bytearray(b"x"), memoryview(b"x")]),
        ("date", [dt.date(2026, 1, 1)]),
    ],
)
def test_equal_keys_meet_in_whatever_form_they_come(engine, kind, forms):
    """A key written in one form is updated, found and deleted in every other one."""
    topic = engine.create_topic("p", {"k": kind, "n": "long"}, primary_key="k", partitions=64)
    for first in forms:
        for other in forms:
            topic.upsert(k=first, n=1)
            topic.update(other, {"n": 2})
            assert topic.get(other)["n"] == 2
            assert topic.delete(other).part == topic.part_of_key(first)
            assert topic.get(first) is None
    assert sum(bool(part.stats()["head"]) for part in topic.parts) == 1


def test_a_key_of_several_columns_is_routed_whole(engine):
    """Tuples and dicts of a composite key lead to the same part as its row."""
    columns = {"a": "long", "b": "string", "n": "long"}
    topic = engine.create_topic("p", columns, primary_key=["a", "b"], partitions=16)
    for number in range(10):
        part = topic.insert(a=number, b="x", n=0).part
        assert topic.update((number, "x"), {"n": 1}).part == part
        assert topic.update(["a", "b"], [number, "x"], {"n": 2}).part == part
        assert topic.get({"b": "x", "a": number})["n"] == 2
    with pytest.raises(InvalidRequest, match="several columns"):
        topic.get(1)


def test_a_row_does_not_move_to_another_part(engine, topic):
    """A new key in the same part moves the row; one of another part is refused, nothing changes."""
    old, near = two_keys(topic, same_part=True)
    _, far = two_keys(topic, same_part=False)
    topic.insert(id=old, n=1, s="x")
    topic.update(old, {"id": near, "n": 2})
    assert state_of(engine) == {near: (2, "x")}
    with pytest.raises(InvalidRequest, match="another part") as caught:
        topic.update(near, {"id": far})
    assert caught.value.details["part"] == topic.part_of_key(near)
    assert caught.value.details["part_new"] == topic.part_of_key(far)
    assert state_of(engine) == {near: (2, "x")}


def test_an_event_that_moves_a_row_to_another_part_is_refused(engine, topic):
    """A bulk with such an event is refused as a whole, with the event's number."""
    one, two = two_keys(topic, same_part=False)
    topic.upsert(id=one, n=1)
    event = {"op": "u", "before": {"id": one}, "after": {"id": two}}
    with pytest.raises(InvalidRequest, match="another part") as caught:
        topic.append_changes([{"op": "c", "after": {"id": 77}}, event])
    assert caught.value.details["change"] == 1
    assert state_of(engine) == {one: (1, None)}


def test_a_part_takes_no_change_of_another_parts_key(engine, topic):
    """Changes given to a part itself are refused unless their key belongs there."""
    _, key = two_keys(topic, same_part=False)
    wrong = topic.parts[topic.part_of_key(0)]
    envelope = {"op": "c", "before": None, "after": {"id": key, "n": 1, "s": None}}
    for call in (
        lambda: wrong.insert(id=key, n=1),
        lambda: wrong.upsert(id=key, n=1),
        lambda: wrong.update(key, {"n": 1}),
        lambda: wrong.update(0, {"id": key}),
        lambda: wrong.delete(key),
        lambda: wrong.append_changes([envelope]),
        lambda: wrong.append_changes(pa.table({"id": [key], "n": [1], "_op": ["insert"]})),
    ):
        with pytest.raises(InvalidRequest, match="another part"):
            call()
    assert engine.stats()["message_count"] == 0
    wrong.upsert(id=0, n=1)
    assert topic.get(0)["n"] == 1


def test_policies_of_unknown_keys_hold_in_parts(engine):
    """Conflict and NotFound come from the part that has, or lacks, the key."""
    topic = create(engine, unknown_key="error")
    topic.insert(id=1, n=1)
    with pytest.raises(Conflict):
        topic.insert(id=1, n=2)
    with pytest.raises(NotFound):
        topic.update(2, {"n": 1})
    with pytest.raises(NotFound):
        topic.delete(2)
    assert state_of(engine) == {1: (1, None)}


def test_changes_in_bulk_are_split_over_parts(engine, topic):
    """Arrow changes and events leave each key with its last change, one ack for each part."""
    ids = [key for key in range(60) for _ in range(2)]
    ops = [op for key in range(60) for op in ("insert", "delete" if key % 3 else "update")]
    table = pa.table({"id": ids, "n": range(120), "_op": ops})
    acks = topic.append_changes(table, ack="fsynced")
    assert [ack.part for ack in acks] == list(range(PARTS))
    assert sum(ack.offset_last - ack.offset + 1 for ack in acks) == 120
    assert state_of(engine) == {key: (2 * key + 1, None) for key in range(0, 60, 3)}
    events = [
        {"op": "c", "before": None, "after": {"id": 100, "n": 1, "s": "x"}},
        json.dumps({"op": "u", "before": None, "after": {"id": 100, "n": 2}}),
        {"op": "d", "before": {"id": 0}, "after": None},
        None,
        (b'{"id": 3}', b'{"op": "d", "before": null, "after": null}'),
    ]
    acks = topic.append_changes(iter(events))
    assert {ack.part for ack in acks} == {topic.part_of_key(key) for key in (100, 0, 3)}
    assert topic.get(100) == {"id": 100, "n": 2, "s": "x"}
    assert topic.get_many([0, 3]) == [None, None]


def test_a_bulk_larger_than_a_step_keeps_each_parts_order(engine):
    """Thousands of changes that need their key's state end in the state of the last ones."""
    topic = create(engine, unknown_key="error")
    topic.append_changes(pa.table({"id": range(50), "n": [0] * 50, "_op": ["insert"] * 50}))
    ids = [number % 50 for number in range(5000)]
    topic.append_changes(pa.table({"id": ids, "n": range(5000), "_op": ["update"] * 5000}))
    assert state_of(engine) == {key: (4950 + key, None) for key in range(50)}
    events = [{"op": "u", "after": {"id": key, "n": n}} for n, key in enumerate(ids)]
    topic.append_changes(events)
    assert state_of(engine) == {key: (4950 + key, None) for key in range(50)}


def test_a_bulk_with_a_wrong_change_writes_nothing(engine, topic):
    """The error names the change by its place in the call, whichever part it is for."""
    good = [{"op": "c", "after": {"id": key, "n": 1}} for key in range(8)]
    for bad, why in (
        ({"op": "c", "after": {"n": 1}}, "primary key"),
        ({"op": "c", "after": {"id": 1, "n": "x"}}, "column"),
        ({"op": "x"}, "operation"),
    ):
        with pytest.raises(InvalidRequest, match=why) as caught:
            topic.append_changes([*good, bad])
        assert caught.value.details["change"] == 8
    with pytest.raises(InvalidRequest) as caught:
        topic.append_changes(pa.table({"id": [1, 2], "n": [1, 1], "_op": ["insert", "x"]}))
    assert caught.value.details["row"] == 1
    for nothing in ([], pa.table({"id": pa.array([], "int64"), "_op": pa.array([], "string")})):
        with pytest.raises(InvalidRequest, match="no changes"):
            topic.append_changes(nothing)
    with pytest.raises(InvalidRequest, match="iterable"):
        topic.append_changes(5)
    assert engine.stats()["message_count"] == 0


def test_a_bulk_costs_few_syncs(engine):
    """Parts of one call share their syncs."""
    topic = engine.create_topic("p", COLUMNS, primary_key="id", partitions=32)
    before = engine.stats()["journal"]["syncs"]
    table = pa.table({"id": range(500), "n": range(500), "_op": ["upsert"] * 500})
    assert len(topic.append_changes(table)) == 32
    assert engine.stats()["journal"]["syncs"] - before <= 4


@pytest.mark.parametrize("columns", [None, {"id": "long"}])
def test_parts_without_a_key_take_no_changes(engine, columns):
    """Changes and look-ups need a primary key, in partitioned topics too."""
    topic = engine.create_topic("p", columns, partitions=2)
    for call in (
        lambda: topic.insert(id=1),
        lambda: topic.upsert(id=1),
        lambda: topic.update(1, {"id": 2}),
        lambda: topic.delete(1),
        lambda: topic.get(1),
        lambda: topic.get_many([1]),
        lambda: topic.append_changes([]),
    ):
        with pytest.raises(InvalidRequest, match="primary key"):
            call()


def test_wrong_forms_are_refused_as_by_a_topic(engine):
    """A call of the wrong shape has the error that a topic without parts would give."""
    parted = create(engine)
    plain = engine.create_topic("q", COLUMNS, primary_key="id")
    for call in (
        lambda topic: topic.insert({"n": 1}),
        lambda topic: topic.insert({"id": 1}, n=1),
        lambda topic: topic.upsert(b"x"),
        lambda topic: topic.update(),
        lambda topic: topic.update(1),
        lambda topic: topic.update(n=1),
        lambda topic: topic.update("n", 1, {"s": "x"}),
        lambda topic: topic.update(1, {"x": 1}),
        lambda topic: topic.delete(),
        lambda topic: topic.delete("n", 1),
        lambda topic: topic.delete("x"),
        lambda topic: topic.upsert(id=1, ack="soon"),
        lambda topic: topic.get("x"),
        lambda topic: topic.get_many([1, None]),
    ):
        errors = []
        for topic in (plain, parted):
            with pytest.raises(InvalidRequest) as caught:
                call(topic)
            errors.append(caught.value.message)
        assert errors[0] == errors[1]
    assert engine.stats()["message_count"] == 0


def test_without_the_tiers_whole_rows_still_go_to_their_parts(tmp_path):
    """The log alone takes upserts and deletes, and says what look-ups need."""
    with open_small(tmp_path, memory=LOG_ALONE) as db:
        topic = create(db)
        assert topic.upsert(id=1, n=1).part == topic.delete(1).part
        with pytest.raises(InvalidRequest, match=r"memory\.enabled"):
            topic.get(1)


def test_an_update_is_refused_where_no_tier_knows_the_row(tmp_path):
    """With the tiers off an update of some columns is an error, and the row stays as it was."""
    columns = {"id": "long", "a": "string", "b": "long"}
    with open_small(tmp_path, memory=LOG_ALONE) as db:
        topic = db.create_topic("u", columns, primary_key="id")
        topic.insert(id=1, a="keep", b=1)
        with pytest.raises(InvalidRequest, match=r"memory\.enabled"):
            topic.update(1, {"b": 2})
    with open_small(tmp_path) as db:
        assert db.topic("u").get(1) == {"id": 1, "a": "keep", "b": 1}


def test_rows_are_found_after_files_and_a_restart(tmp_path):
    """Look-ups find rows of all parts in files, also of an engine that was opened again."""
    with open_small(tmp_path) as db:
        topic = create(db)
        topic.append_changes(pa.table({"id": range(40), "n": range(40), "_op": ["insert"] * 40}))
        db.tiers.flush("p")
        db.tiers.evict("p")
        topic.update(7, {"s": "x"})
        assert topic.get(7) == {"id": 7, "n": 7, "s": "x"}
    with open_small(tmp_path) as db:
        topic = db.topic("p")
        assert [row["n"] for row in topic.get_many(range(40))] == list(range(40))
        assert topic.get(7)["s"] == "x"
