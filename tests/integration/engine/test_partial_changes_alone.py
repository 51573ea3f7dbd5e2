"""Partial changes and a log without tiers: none are taken, and those of old are read right."""

from __future__ import annotations

import pytest

from frazil.errors import InvalidRequest
from frazil.log import Pending
from tests.integration.engine.opening import LOG_ALONE, open_small

COLUMNS = {"id": "long", "a": "string", "b": "long"}


def write_partial(topic, key, columns):
    """Put a partial change into the log as it is, as a log without tiers once took it."""
    runtime = topic.runtime
    change = runtime.changes.columns.changes.prepare_update(key, columns)
    pending = Pending()
    prepared = [(change.codec, change, 0, len(change.packed))]
    runtime.queue.submit_waiting(*runtime.entries(prepared, [pending], None))
    return pending.result()


@pytest.fixture
def written(tmp_path):
    """A directory with two rows, one of which has two partial changes in the log."""
    with open_small(tmp_path, memory=LOG_ALONE) as engine:
        topic = engine.create_topic("u", COLUMNS, primary_key="id")
        topic.insert(id=1, a="keep", b=1)
        topic.insert(id=2, a="other", b=1)
        write_partial(topic, 1, {"b": 2})
        write_partial(topic, 1, {"b": 3})
        write_partial(topic, 9, {"b": 3})
    return tmp_path


def test_an_update_is_refused_where_no_tier_knows_the_row(tmp_path):
    """With the tiers off an update of some columns is an error, and the row stays as it was."""
    with open_small(tmp_path, memory=LOG_ALONE) as engine:
        topic = engine.create_topic("u", COLUMNS, primary_key="id")
        topic.insert(id=1, a="keep", b=1)
        with pytest.raises(InvalidRequest, match=r"memory\.enabled"):
            topic.update(1, {"b": 2})
    with open_small(tmp_path) as engine:
        assert engine.topic("u").get(1) == {"id": 1, "a": "keep", "b": 1}


def test_sql_sees_the_whole_row_after_partial_changes_in_the_log(written):
    """A query has the columns that partial changes did not name, at every offset."""
    with open_small(written) as engine:
        sql = "select id, a, b from u where b > 0 order by id"
        assert engine.query(sql).rows() == [(1, "keep", 3), (2, "other", 1)]
        then = engine.query(sql, as_of_offset=3).rows()
        assert then == [(1, "keep", 2), (2, "other", 1)]


def test_a_flush_writes_the_whole_row_after_partial_changes(written):
    """Once in files, and after eviction and a restart, a row has all of its columns."""
    for _again in range(2):
        with open_small(written) as engine:
            topic = engine.topic("u")
            engine.tiers.flush()
            engine.tiers.evict()
            assert topic.get(1) == {"id": 1, "a": "keep", "b": 3}
            assert topic.get(9) is None
            rows = engine.query("select id, a, b from u where b > 0 order by id").rows()
            assert rows == [(1, "keep", 3), (2, "other", 1)]
    with open_small(written) as engine:
        engine.topic("u").update(1, {"b": 4})
        assert engine.topic("u").get(1) == {"id": 1, "a": "keep", "b": 4}


def test_partial_changes_are_whole_under_columns_that_came_later(written):
    """A row that partial changes made is read with a column that was added since."""
    with open_small(written) as engine:
        engine.alter_topic("u", add={"c": "long"})
        assert engine.topic("u").get(1) == {"id": 1, "a": "keep", "b": 3, "c": None}
        engine.tiers.flush()
        engine.tiers.evict()
        assert engine.topic("u").get(1) == {"id": 1, "a": "keep", "b": 3, "c": None}
