"""Columns with names that need escapes, and topics that an opening cannot use."""

from __future__ import annotations

import pytest

from frazil.errors import Conflict, Unavailable
from frazil.topic import schema_control
from tests.integration.engine.opening import open_small, rows_of

NAMES = ['a"b', "a\\b"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("key", [(), ("id",)])
def test_a_name_that_needs_escapes_is_a_name_like_others(tmp_path, name, key):
    """Rows of a column whose name has quotes or backslashes are stored and read after a restart."""
    with open_small(tmp_path) as engine:
        topic = engine.create_topic("odd", {"id": "long", name: "long"}, primary_key=key)
        topic.append({"id": 1, name: 7})
        topic.append_many([{"id": 2, name: 8}, {"id": 3, name: None}])
    with open_small(tmp_path) as engine:
        rows = rows_of(engine.topic("odd"))
        assert [(row["id"], row[name]) for row in rows] == [(1, 7), (2, 8), (3, None)]
        engine.tiers.flush()
        engine.tiers.evict()
        found = engine.query("select * from odd order by id").rows()
        assert [row[-1] for row in found] == [7, 8, None]


def test_a_topic_that_cannot_be_used_keeps_no_other_from_being_opened(tmp_path):
    """An opening passes over a topic with columns that nobody understands, and says so."""
    with open_small(tmp_path) as engine:
        engine.create_topic("good", {"id": "long"}).append(id=1)
        bad = engine.create_topic("bad", {"id": "long"})
        bad.append(id=1)
        control = schema_control(bad.runtime.state.id, 2, b"no columns at all")
        engine.log.control(control)
    for _again in range(2):
        with open_small(tmp_path) as engine:
            assert engine.topics() == ["/default/good"]
            assert [row["id"] for row in rows_of(engine.topic("good"))]
            assert any("/default/bad" in warning for warning in engine.warnings)
            with pytest.raises(Unavailable, match="could not be opened"):
                engine.topic("bad")
            with pytest.raises(Conflict):
                engine.create_topic("bad", {"id": "long"})
            engine.topic("good").append(id=2)
            engine.tiers.flush()


def test_a_creation_that_fails_for_any_reason_leaves_nothing(tmp_path, monkeypatch):
    """A topic whose making breaks half way is gone, and its name is free."""
    with open_small(tmp_path) as engine:

        def broken(_spec):
            raise ValueError("broken")

        with monkeypatch.context() as patch:
            patch.setattr(engine, "_bind", broken)
            with pytest.raises(Unavailable, match="broken"):
                engine.create_topic("t", {"id": "long"})
        engine.create_topic("t", {"id": "long"}).append(id=1)
    with open_small(tmp_path) as engine:
        assert engine.topics() == ["/default/t"]
        assert [row["id"] for row in rows_of(engine.topic("t"))] == [1]
