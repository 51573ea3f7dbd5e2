"""Which mark in a table's metadata counts: the highest along main, for each part."""

from __future__ import annotations

import msgspec
import pytest

from frazil.errors import CorruptionError
from frazil.lake.connection import Loaded
from frazil.lake.plan import TableName
from frazil.lake.table_state import state_of
from frazil.lake.watermark import watermarks

TABLE = TableName("a", "b")
END = "frazil.offset-end"


def viewed(*summaries, properties=None, refs=None, **changes):
    """Look at metadata whose snapshots have the summaries given, oldest first, ids from 1."""
    snapshots = [
        {
            "snapshot-id": number,
            **({"parent-snapshot-id": number - 1} if number > 1 else {}),
            "summary": {"operation": "append", **summary},
            "manifest-list": "",
        }
        for number, summary in enumerate(summaries, start=1)
    ]
    metadata = {
        "location": "/nowhere",
        "properties": properties or {},
        "current-snapshot-id": len(snapshots) or -1,
        "snapshots": snapshots,
        "refs": {"main": {"snapshot-id": len(snapshots)}} if refs is None else refs,
        **changes,
    }
    return state_of(None, TABLE, Loaded(msgspec.json.encode(metadata)))


def test_parts_are_put_together_from_several_summaries():
    """A part's mark is the highest that names it; a commit of some parts hides no other's."""
    view = viewed({f"{END}.0": "5", f"{END}.1": "7"}, {f"{END}.0": "6"}, {"added-records": "3"})
    assert view.summary_ends == {0: 6, 1: 7}


def test_a_late_commit_without_rows_hides_no_higher_mark():
    """Two batches of rejects only are no conflict: the one that landed late may be the shorter."""
    assert viewed({END: "9"}, {END: "4"}, {}).summary_ends == {-1: 9}
    assert viewed({f"{END}.0": "9"}, {f"{END}.0": "4"}).summary_ends == {0: 9}
    assert viewed({END: "4"}, {END: "9"}, {}).summary_ends == {-1: 9}


def test_a_late_commit_for_another_topic_is_a_stray():
    """One that was under way when the table was taken over, or made again under its name."""
    own, other = {"frazil.topic-id": "own"}, {"frazil.topic-id": "other"}
    late = {END: "9", **other}
    assert viewed({END: "5", **own}, late, properties=own).strays == {-1: (5, 9)}
    assert viewed({END: "5", **own}, {}, late, {END: "7", **other}, properties=own).strays == {
        -1: (5, 9)
    }
    assert viewed(late, properties={END: "0", **own}).strays == {-1: (0, 9)}
    assert viewed({END: "5", **own}, late, {END: "12", **own}, properties=own).strays == {}
    parts = {f"{END}.0": "5", f"{END}.1": "6", **own}
    late = {f"{END}.0": "5", f"{END}.1": "8", **other}
    assert viewed(parts, late, properties=own).strays == {1: (6, 8)}


def test_a_table_that_was_replaced_stands_where_it_began():
    """Its properties outlive its rows: what the watermark's says is not there any more."""
    left = {END: "500", "frazil.offset-begin": "20"}
    view = viewed(refs={}, properties=left)
    assert watermarks(view, {-1: 600}) == ({-1: 20}, True)
    assert watermarks(viewed(refs={}, properties={END: "5"}), {}) == ({-1: 5}, True)


def test_the_newest_commits_count_as_recent():
    """As far as 10,000 records go, in whole commits; snapshots of others have none."""
    old = {END: "1", "frazil.rows-in": "9000", "frazil.rows-rejected": "7"}
    new = {END: "2", "frazil.rows-in": "1000", "frazil.rows-rejected": "5"}
    assert viewed(old, {}, new).recent == viewed(new, old, {}).recent == (10_000, 12)
    assert (viewed(old, old, new).recent, viewed(old, old).recent) == ((10_000, 12), (18_000, 14))
    assert viewed({END: "1"}).recent == (0, 0)


def test_rows_that_were_adopted_are_no_strays():
    """What the table had when it was taken over is declared; what came behind it is not."""
    own = {"frazil.topic-id": "own", "frazil.adopted": '{"-1":[[0,5]]}'}
    old = {END: "5", "frazil.topic-id": "other"}
    assert viewed({END: "3", "frazil.topic-id": "other"}, old, properties=own).strays == {}
    assert viewed(old, {**old, END: "6"}, properties=own).strays == {-1: (5, 6)}


def test_a_table_without_refs_has_its_current_snapshot():
    """Metadata without a ref for main means the snapshot that is current."""
    assert viewed({END: "1"}, {END: "2"}, refs={}).sid == 2


def test_no_snapshot_is_written_in_two_ways():
    """A table without rows has no current snapshot or the number that stands for none."""
    assert viewed(refs={}).sid is None
    assert viewed(refs={}, **{"current-snapshot-id": None}).sid is None


def test_ancestors_that_go_in_a_circle_end():
    """Spoilt metadata does not hang the look."""
    ring = [
        {"snapshot-id": 1, "parent-snapshot-id": 2, "summary": {END: "1"}},
        {"snapshot-id": 2, "parent-snapshot-id": 1, "summary": {}},
    ]
    view = viewed(refs={"main": {"snapshot-id": 2}}, snapshots=ring)
    assert view.summary_ends == {-1: 1}


def test_commits_are_counted_since_the_property():
    """Snapshots count until the one whose every mark the property has reached."""
    marks = [{END: "10"}, {END: "20"}, {}, {END: "30"}]
    assert viewed(*marks, properties={END: "30"}).commits_since_property == 0
    assert viewed(*marks, properties={END: "20"}).commits_since_property == 2
    assert viewed(*marks, properties={END: "0"}).commits_since_property == 4
    parts = [{f"{END}.0": "1", f"{END}.1": "1"}, {f"{END}.0": "1", f"{END}.1": "2"}]
    properties = {f"{END}.0": "1", f"{END}.1": "1"}
    assert viewed(*parts, properties=properties).commits_since_property == 1


@pytest.mark.parametrize("key", [END, f"{END}.0", f"{END}.x", "frazil.schema-version"])
def test_spoilt_marks_are_damage(key):
    """A mark of ours that is no number stops, in a property and in a summary."""
    with pytest.raises(CorruptionError, match="cannot be read"):
        viewed({END: "1"}, properties={key: "x"})
    if key.startswith(END):
        with pytest.raises(CorruptionError, match="cannot be read"):
            viewed({key: "x"})


def test_what_is_no_metadata_is_damage():
    """An answer that is no table's metadata is damage, not an empty table."""
    with pytest.raises(CorruptionError):
        state_of(None, TABLE, Loaded(b"{}"))
