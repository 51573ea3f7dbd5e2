"""Taking over tables that others filled, and side tables that are not what they should be."""

from __future__ import annotations

import pytest

from frazil.errors import InvalidRequest, Unavailable
from frazil.lake import ADOPTED, decode_ranges
from frazil.lake.tables import CatalogTables
from tests.integration.engine.lake_engine import (
    COLUMNS,
    an_older_copy,
    ids_of,
    looked_at,
    opened,
    rows_of,
    side_is_ahead,
    status_of,
    table_of,
    taken,
    wait_until,
)


@pytest.mark.parametrize("step", ["advance", "take_over"])
def test_an_adoption_that_was_cut_off_is_done_again(db, monkeypatch, step):
    """The table is this topic's only when the head is raised; calling again does the rest."""
    name = f"cut_off_{step}"
    topic = taken(db, name)
    with pytest.raises(InvalidRequest) as caught:
        db.lake.adopt(name)
    assert caught.value.details["left_out"] == 4
    with monkeypatch.context() as patch:
        patch.setattr(CatalogTables, step, _power_cut)
        with pytest.raises(Unavailable, match="power"):
            db.lake.adopt(name, confirm=True)
    assert table_of(db, name).properties["frazil.topic-id"] != db.lake.topics[topic.name].uid
    done = db.lake.adopt(name, confirm=True)
    assert (done["raised"], done["left_out"]) == ({}, {"-1": [[0, 4]]})
    assert (done["taken_over"], done["ends"]) == (True, {"-1": 5})
    assert [(gap["first"], gap["end"]) for gap in topic.describe()["gaps"]] == [(4, 5)]
    topic.append(id=20, text="new", ack="committed")
    rows = [(row["_offset"], row["id"]) for row in rows_of(db, name)]
    assert rows == [*((n, n) for n in range(5)), (5, 20)]
    assert decode_ranges(table_of(db, name).properties, ADOPTED) == {-1: ((0, 5),)}
    kept = [row["id"] for batch in topic.read(0) for row in batch.data.to_pylist()]
    assert kept == [10, 11, 12, 13, 20]


def test_a_side_table_ahead_of_the_log_is_found_when_the_topic_is_bound(db):
    """Not with the first reject; adopting goes on behind its end too."""
    topic = db.create_topic("sideways", COLUMNS, lake=True)
    topic.append(id=0, text="", ack="committed")
    side_is_ahead(db, "sideways", 7)
    assert looked_at(db, "sideways") == "stopped: ahead_of_log"
    assert "sideways__rejects" in status_of(db, "sideways")["why"]
    assert db.lake.adopt("sideways")["raised"] == {"-1": 6}
    assert topic.append(id=7, text="", ack="committed").offset == 7
    assert ids_of(db, "sideways") == [0, 7]


def test_a_side_table_that_was_ahead_of_the_adopted_table_doubles_nothing(db):
    """Its owner died between the rejects and the rows: no own record gets to these offsets."""
    taken(db, "between", old=2, new=5)
    side_is_ahead(db, "between", 4)
    assert db.lake.adopt("between", confirm=True)["left_out"] == {"-1": [[0, 4]]}
    db.lake.flush("between")
    rows = [(row["_offset"], row["id"]) for row in rows_of(db, "between")]
    assert rows == [(0, 0), (1, 1), (4, 14)]


def test_a_side_table_of_another_topic_is_found_when_the_topic_is_bound(db):
    """The message names it and what to do."""
    topic = db.create_topic("mixed", COLUMNS, lake=True)
    topic.append(id=0, text="", ack="committed")
    with table_of(db, "mixed__rejects").transaction() as change:
        change.set_properties({"frazil.topic-id": "0123456789abcdef"})
    assert looked_at(db, "mixed").startswith("stopped")
    why = status_of(db, "mixed")["why"]
    assert "mixed__rejects" in why
    assert "rename or drop it" in why
    assert "adopt" not in why
    with table_of(db, "mixed__rejects").transaction() as change:
        change.set_properties({"frazil.topic-id": db.lake.topics["/default/mixed"].uid})
    db.lake.resume("mixed")
    topic.append(id=1, text="", ack="committed")
    assert ids_of(db, "mixed") == [0, 1]


@pytest.mark.parametrize("lives", [1, 2])
def test_an_older_copy_that_published_past_its_table_doubles_nothing(tmp_path, lives):
    """It stops, also if it was looked at in a later life only; adopting names what it leaves out."""
    name = "branched"
    data = an_older_copy(tmp_path, name)
    for life in range(lives - 1):
        with opened(data) as (db, _stand_in):
            db.topic(name).append_many(
                [{"id": 100 * life + n, "text": "new"} for n in range(10, 14)]
            )
            wait_until(
                lambda: db.lake.plans.overrides(db.lake.topics[f"/default/{name}"].uid).lineage_ends
            )
    with opened(data) as (db, _stand_in):
        topic = db.topic(name)
        topic.append_many([{"id": n, "text": "last"} for n in range(1000, 1008)])
        db.lake.start()
        wait_until(lambda: status_of(db, name)["state"] == "stopped: ahead_of_log")
        db.lake.resume(name)
        wait_until(lambda: status_of(db, name)["state"] == "stopped: ahead_of_log")
        with pytest.raises(InvalidRequest, match="do not get into the table") as caught:
            db.lake.adopt(name)
        assert caught.value.details["left_out"] == 4
        done = db.lake.adopt(name, confirm=True)
        assert (done["taken_over"], done["left_out"]) == (False, {"-1": [[1, 5]]})
        topic.append(id=9, text="", ack="committed")
        early = [100 * life + n for life in range(lives - 1) for n in range(10, 14)]
        found = ids_of(db, name)
        assert found == [0, 1, 2, 3, 4, *[*early, *range(1000, 1008)][4:], 9]
        assert [row["_offset"] for row in rows_of(db, name)] == list(range(len(found)))
        assert decode_ranges(table_of(db, name).properties, ADOPTED) == {-1: ((1, 5),)}
        assert db.lake.plans.overrides(db.lake.topics[topic.name].uid).lineage_ends == {}


def test_an_adoption_of_an_older_copy_that_was_cut_off_is_still_needed(tmp_path, monkeypatch):
    """A crash after the head was raised is not taken for a table that fits."""
    name = "branched"
    data = an_older_copy(tmp_path, name)
    with opened(data) as (db, _stand_in):
        db.topic(name).append_many([{"id": n, "text": "new"} for n in range(10, 13)])
        with monkeypatch.context() as patch:
            patch.setattr(CatalogTables, "advance", _power_cut)
            with pytest.raises(Unavailable, match="power"):
                db.lake.adopt(name, confirm=True)
    with opened(data) as (db, _stand_in):
        db.lake.start()
        wait_until(lambda: status_of(db, name)["state"] == "stopped: ahead_of_log")
        db.lake.adopt(name, confirm=True)
        db.topic(name).append(id=13, text="new", ack="committed")
        assert ids_of(db, name) == [0, 1, 2, 3, 4, 13]


def _power_cut(*_arguments):
    raise Unavailable("power is gone")
