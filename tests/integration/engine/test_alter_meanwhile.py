"""Columns that change, and topics that go, while calls are under way."""

from __future__ import annotations

import pyarrow as pa
import pytest

from frazil.errors import NotFound

COLUMNS = {"id": "long", "a": "string", "b": "long"}


def between(monkeypatch, owner, name, act):
    """Do something once, right before a method of an object runs."""
    call, left = getattr(owner, name), [act]

    def wrapped(*arguments, **options):
        while left:
            left.pop()()
        return call(*arguments, **options)

    monkeypatch.setattr(owner, name, wrapped)


@pytest.mark.parametrize("change", [{"add": {"c": "long"}}, {"drop": ["a"]}])
@pytest.mark.parametrize("key", [(), ("id",)])
def test_a_feed_goes_on_over_columns_that_change(engine, change, key):
    """A change feed that is half read tells the rest of the changes after the columns changed."""
    topic = engine.create_topic("u", COLUMNS, primary_key=key)
    for number in range(3):
        # Frames of their own, read together.
        for text in ("x", "y"):
            topic.append_arrow(pa.table({"id": [number], "a": [text], "b": [number]}))
    feed = iter(topic.changes())
    changes = [next(feed)]
    engine.alter_topic("u", **change)
    topic.append({"id": 0, "b": 9})
    changes += list(feed)
    assert [each["after"]["b"] for each in changes] == [0, 0, 1, 1, 2, 2]
    if key:
        assert [each["before"] is None for each in changes] == [True, False] * 3


def test_a_feed_finds_rows_before_a_renaming_under_their_names(engine):
    """The feed shows the row before a change under the columns of the change's batch."""
    topic = engine.create_topic("u", COLUMNS, primary_key="id")
    topic.append(id=1, a="old", b=1)
    engine.alter_topic("u", rename={"a": "z"})
    topic.append(id=1, z="new", b=2)
    (last,) = topic.changes(from_offset=1)
    assert last["before"] == {"id": 1, "z": "old", "b": 1}


@pytest.mark.parametrize("change", [{"add": {"c": "long"}}, {"drop": ["a"]}])
def test_a_row_is_found_though_the_columns_change_meanwhile(engine, monkeypatch, change):
    """A look-up by key, and one of SQL, answer when a column comes or goes half way."""
    topic = engine.create_topic("u", COLUMNS, primary_key="id")
    topic.append(id=1, a="x", b=1)
    topic.append(id=2, a="x", b=2)
    engine.tiers.flush()
    engine.tiers.evict()
    tiers = topic.runtime.tiers
    between(monkeypatch, tiers, "row_batch", lambda: engine.alter_topic("u", **change))
    assert topic.get(1)["b"] == 1
    assert engine.query("select b from u where id = 2").rows() == [(2,)]


@pytest.mark.parametrize("call", ["flush", "evict"])
def test_moving_all_topics_passes_over_one_that_goes(engine, monkeypatch, call):
    """A flush or an eviction of all topics does the others when one is deleted meanwhile."""
    for name in ("a", "b", "c"):
        engine.create_topic(name, {"id": "long"}).append(id=1)
    first = engine.topic("a").runtime.tiers
    between(monkeypatch, first, call, lambda: engine.delete_topic("b"))
    assert sorted(getattr(engine.tiers, call)()) == ["/default/a", "/default/c"]
    with pytest.raises(NotFound):
        getattr(engine.tiers, call)("b")
