"""Debezium's changes of a key: the row moves, with what the event does not carry."""

from __future__ import annotations

import pytest

from frazil.errors import Conflict, NotFound
from frazil.schema import UNAVAILABLE
from frazil.topic import STEPS_MAX

COLUMNS = {"a": "long", "b": "string", "v": "long", "note": "string"}


def create(engine, **options):
    return engine.create_topic("t", COLUMNS, primary_key=["a", "b"], **options)


@pytest.fixture
def topic(engine):
    """Return a topic with a key of two columns."""
    return create(engine)


def moved(old, new, **columns):
    """Return the event of a row that gets another first key column."""
    return {"op": "u", "before": {"a": old, "b": "x"}, "after": {"a": new, "b": "x", **columns}}


def test_a_row_moves_with_what_the_event_does_not_carry(topic):
    """A change of the key keeps the columns that another update would keep."""
    topic.upsert(a=1, b="x", v=1, note="keep me")
    ack = topic.append_changes([moved(1, 2, v=3), moved(2, 3), moved(3, 4, v=5)])
    assert (ack.offset, ack.offset_last) == (1, 6)
    assert topic.get((4, "x")) == {"a": 4, "b": "x", "v": 5, "note": "keep me"}
    assert topic.get_many([(1, "x"), (2, "x"), (3, "x")]) == [None] * 3


def test_a_large_value_that_was_not_sent_moves_too(topic):
    """A value that the source left out because it is large is that of the old row."""
    topic.upsert(a=1, b="x", v=1, note="large")
    topic.append_changes([moved(1, 2, v=2, note=UNAVAILABLE)])
    assert topic.get((2, "x")) == {"a": 2, "b": "x", "v": 2, "note": "large"}


@pytest.mark.parametrize("policy", ["ignore", "insert", "error"])
def test_a_move_of_an_unknown_row_is_what_update_makes_of_it(engine, policy):
    """The topic's policy decides once about an event, as about the call."""
    topic = create(engine, unknown_key=policy)
    ways = [
        lambda: topic.append_changes([moved(1, 2, v=3)]),
        lambda: topic.update((11, "x"), {"a": 12, "v": 3}),
    ]
    for way in ways:
        if policy == "error":
            with pytest.raises(NotFound):
                way()
        else:
            way()
    assert [row and row["v"] for row in topic.get_many([(2, "x"), (12, "x")])] == (
        [3, 3] if policy == "insert" else [None, None]
    )
    assert topic.stats()["head"] == (0 if policy == "error" else 4)


def test_a_strict_bulk_is_refused_before_its_first_write(engine):
    """A move onto a row, or of none, in a later piece of a bulk leaves nothing written."""
    topic = create(engine, unknown_key="error")
    topic.insert(a=1, b="x", v=1)
    topic.insert(a=2, b="x", v=1)
    many = [{"op": "c", "after": {"a": 100 + n, "b": "x"}} for n in range(STEPS_MAX)]
    with pytest.raises(Conflict):
        topic.append_changes([*many, moved(1, 2)])
    with pytest.raises(NotFound):
        topic.append_changes([*many, moved(1, 3), moved(1, 4)])
    assert topic.stats()["head"] == 2
    topic.append_changes([*many, moved(1, 3), moved(2, 1), moved(3, 2)])
    assert [row["a"] for row in topic.get_many([(1, "x"), (2, "x")])] == [1, 2]


@pytest.mark.parametrize("known", [True, False])
def test_a_producers_sequence_counts_a_move_twice(topic, known):
    """Whether there was a row to move or not, so that the next piece and call know their numbers."""
    if known:
        topic.upsert(a=0, b="x", v=0, note="keep me")
    events = [moved(n, n + 1, v=n) for n in range(STEPS_MAX + 5)]
    first = topic.append_changes(events, producer="p", sequence=0)
    count = 2 * len(events)
    assert first.offset_last - first.offset + 1 == count
    assert topic.append_changes(events, producer="p", sequence=0) == first
    after = topic.append_changes([moved(0, 1)], producer="p", sequence=count)
    assert after.offset == first.offset_last + 1
    row = topic.get((STEPS_MAX + 5, "x"))
    assert row == (
        {"a": STEPS_MAX + 5, "b": "x", "v": STEPS_MAX + 4, "note": "keep me"} if known else None
    )
