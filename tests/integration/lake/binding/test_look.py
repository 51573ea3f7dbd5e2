"""The look at a table in a real catalog: which mark counts, and what is left without any."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate

from frazil.clock import SystemClock
from frazil.errors import Conflict, CorruptionError, NotFound, Unavailable
from frazil.lake import TableName, table_of
from frazil.lake.binding import bind
from frazil.lake.connection import connect
from frazil.lake.table_state import look
from tests.integration.lake.binding.tables import TIME, append, defined

CLOCK = SystemClock()
END = "frazil.offset-end"
_SUMMARY_KEYS = (
    "frazil.rows-in",
    "frazil.rows-out",
    "frazil.rows-rejected",
    "frazil.rows-dropped",
    "added-data-files",
    "added-records",
    "added-files-size",
    "total-records",
    "total-files-size",
    "total-data-files",
    "total-delete-files",
    "total-position-deletes",
    "total-equality-deletes",
    "changed-partition-count",
    "app-id",
    "spark.app.id",
    "engine-version",
    "iceberg-version",
)


def bound_table(catalog, served, topic, **options):
    bind(catalog, defined(topic, served, **options), clock=CLOCK)
    return table_of(topic)


def expire_all_but_last(table):
    """Expire every snapshot but the newest, as somebody else's maintenance does."""
    newest = table.metadata.current_snapshot_id
    old = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id != newest]
    table.maintenance.expire_snapshots().by_ids(old).commit()


def test_a_new_table_has_nothing(catalog, served, topic):
    """A table without rows has no snapshot, no mark but the property, and no bound."""
    view = look(catalog, bound_table(catalog, served, topic))
    assert view.sid is None
    assert view.summary_ends is None
    assert view.property_ends == {-1: 0}
    assert view.bound_ends == {}
    assert (view.snapshots, view.commits_since_property, view.schema_version) == (0, 0, 1)
    assert view.metadata_bytes > 500


def test_the_newest_mark_counts(catalog, served, topic):
    """The watermark is that of the newest summary, also behind snapshots without any."""
    table = bound_table(catalog, served, topic)
    append(catalog, table, [(-1, 0)], **{END: "1"})
    append(catalog, table, [(-1, 1)], **{END: "2"})
    found = append(catalog, table, [(-1, 9)])
    view = look(catalog, table)
    assert view.sid == found.metadata.current_snapshot_id
    assert view.summary_ends == {-1: 2}
    assert view.bound_ends == {}
    assert view.snapshots == 3


def test_a_branch_does_not_count(catalog, served, topic):
    """Marks on another branch are not main's."""
    table = bound_table(catalog, served, topic)
    found = append(catalog, table, [(-1, 0)], **{END: "1"})
    with found.manage_snapshots() as changes:
        changes.create_branch(found.metadata.current_snapshot_id, "side")
    rows = pa.Table.from_pylist([{"_offset": 7, "_time": TIME}], schema=found.schema().as_arrow())
    catalog.load_table(tuple(table)).append(rows, {END: "8"}, branch="side")
    assert look(catalog, table).summary_ends == {-1: 1}


def test_a_rolled_back_table_says_so(catalog, served, topic):
    """After a rollback the mark is that of the older snapshot, although the newer one exists."""
    table = bound_table(catalog, served, topic)
    first = append(catalog, table, [(-1, 0)], **{END: "1"}).metadata.current_snapshot_id
    found = append(catalog, table, [(-1, 1)], **{END: "2"})
    with found.manage_snapshots() as changes:
        changes.rollback_to_snapshot(first)
    view = look(catalog, table)
    assert (view.sid, view.summary_ends, view.snapshots) == (first, {-1: 1}, 2)


def test_bounds_tell_where_no_mark_is_left(catalog, served, topic):
    """After a foreign expiry the highest offset of the live files is what is left."""
    table = bound_table(catalog, served, topic)
    append(catalog, table, [(-1, 0), (-1, 41)], **{END: "50"})
    expire_all_but_last(append(catalog, table, []))
    view = look(catalog, table)
    assert view.snapshots == 1
    assert view.summary_ends is None
    assert view.bound_ends == {-1: 42}


def test_bounds_tell_each_part(catalog, served, topic):
    """Files of one part tell by their bounds; one of several parts is read."""
    table = bound_table(catalog, served, topic, parts=4)
    append(catalog, table, [(0, 3), (0, 10)])
    append(catalog, table, [(1, 100), (2, 7), (1, 101)])
    append(catalog, table, [(2, 20)])
    assert look(catalog, table).bound_ends == {0: 11, 1: 102, 2: 21}


def test_only_files_that_can_matter_are_read(catalog, served, topic):
    """A file of several parts is read if its highest offset is beyond what is known, else not."""
    table = bound_table(catalog, served, topic, parts=2)
    append(catalog, table, [(0, 9)])
    append(catalog, table, [(1, 9)])
    append(catalog, table, [(0, 10), (1, 3)])
    assert look(catalog, table).bound_ends == {0: 11, 1: 10}
    found = append(catalog, table, [(0, 8), (1, 9)])
    for manifest in found.current_snapshot().manifests(found.io):
        for entry in manifest.fetch_manifest_entry(found.io):
            if entry.data_file.upper_bounds[1] == (9).to_bytes(8, "little"):
                found.io.delete(entry.data_file.file_path)
    assert look(catalog, table).bound_ends == {0: 11, 1: 10}


def test_files_without_a_bound_are_read(catalog, served, topic, tmp_path):
    """A live file whose metadata tells nothing of its offsets is read for them."""
    table = bound_table(catalog, served, topic)
    found = catalog.load_table(tuple(table))
    with found.transaction() as changes:
        changes.set_properties(
            {
                "write.metadata.metrics.column._offset": "none",
                "write.metadata.metrics.default": "none",
            }
        )
    found = append(catalog, table, [(-1, 5), (-1, 77), (-1, 6)])
    entry = found.current_snapshot().manifests(found.io)[0].fetch_manifest_entry(found.io)[0]
    assert 1 not in (entry.data_file.upper_bounds or {})
    assert look(catalog, table).bound_ends == {-1: 78}


def test_files_without_a_bound_are_read_by_part(catalog, served, topic):
    """The same for a table of several parts, where neither offset nor part has a bound."""
    table = bound_table(catalog, served, topic, parts=2)
    with catalog.load_table(tuple(table)).transaction() as changes:
        changes.set_properties(
            {
                "write.metadata.metrics.column._offset": "none",
                "write.metadata.metrics.column._part": "none",
            }
        )
    append(catalog, table, [(0, 5), (1, 2)])
    append(catalog, table, [(0, 4)])
    assert look(catalog, table).bound_ends == {0: 6, 1: 3}


def test_a_wide_table_keeps_its_bound(catalog, served, topic):
    """A table of 150 columns has the bound of its offsets, which come first."""
    columns = {f"c{number}": "int" for number in range(150)}
    table = bound_table(catalog, served, topic, columns=columns)
    append(catalog, table, [(-1, 12)])
    assert look(catalog, table).bound_ends == {-1: 13}


def test_commits_since_the_property(catalog, served, topic):
    """Counted are the snapshots since the one that the property's mark was true at."""
    table = bound_table(catalog, served, topic)
    for offset in range(4):
        append(catalog, table, [(-1, offset)], **{END: str(offset + 1)})
    assert look(catalog, table).commits_since_property == 4
    with catalog.load_table(tuple(table)).transaction() as changes:
        changes.set_properties({END: "3"})
    assert look(catalog, table).commits_since_property == 1


def test_a_mark_that_is_no_number_is_damage(catalog, served, topic):
    """A property that somebody spoilt is told as damage, not taken for zero."""
    table = bound_table(catalog, served, topic)
    with catalog.load_table(tuple(table)).transaction() as changes:
        changes.set_properties({END: "many"})
    with pytest.raises(CorruptionError, match="cannot be read"):
        look(catalog, table)


def test_a_table_without_offsets_is_refused(catalog, served, topic):
    """Where the column of offsets is gone there is no bound to fall back upon."""
    table = bound_table(catalog, served, topic)
    append(catalog, table, [(-1, 1)])
    with catalog.load_table(tuple(table)).update_schema() as update:
        update.rename_column("_offset", "elsewhere")
    with pytest.raises(Conflict, match="lost its column of offsets"):
        look(catalog, table)


def test_a_missing_table_and_a_missing_catalog_differ(catalog):
    """A table that is not there is not found; a catalog that is not there is unavailable."""
    with pytest.raises(NotFound):
        look(catalog, TableName("bound", "absent"))
    with pytest.raises(NotFound):
        look(catalog, TableName("nowhere", "absent"))


def test_lost_files_are_unavailable(catalog, served, topic, tmp_path):
    """A manifest that cannot be read is no empty table."""
    table = bound_table(catalog, served, topic)
    found = append(catalog, table, [(-1, 1)])
    found.io.delete(found.current_snapshot().manifest_list)
    with pytest.raises(Unavailable, match=r"lake\.warehouse"):
        look(catalog, table)


def test_a_look_makes_no_object_of_pyiceberg_of_500_snapshots(served, address, topic, monkeypatch):
    """A look reads what it needs of the metadata: PyIceberg's model of it takes ten times as long."""
    catalog = connect(address)
    table = bound_table(catalog, served, topic)
    for offset in range(3):
        append(catalog, table, [(-1, offset)], **{END: str(offset + 1)})
    _grow(catalog, table, 500)
    made, make = [], Summary.__init__

    def counted(self, *arguments, **fields):
        made.append(1)
        make(self, *arguments, **fields)

    monkeypatch.setattr(Summary, "__init__", counted)
    assert look(catalog, table).snapshots == 500
    assert made == []
    # They are made where PyIceberg reads the table itself, so they would have been counted.
    assert len(catalog.load_table(tuple(table)).metadata.snapshots) == 500
    assert len(made) >= 500


def _grow(catalog, table, count):
    """Give a table snapshots with summaries as Spark writes them, in one commit."""
    found = catalog.load_table(tuple(table))
    head = found.current_snapshot()
    updates = []
    for number in range(count - len(found.metadata.snapshots)):
        summary = Summary(
            Operation.APPEND,
            **{f"{key}": str(number) for key in _SUMMARY_KEYS},
            **{END: str(number + 10)},
        )
        head = head.model_copy(
            update={
                "parent_snapshot_id": head.snapshot_id,
                "snapshot_id": head.snapshot_id + 1,
                "sequence_number": head.sequence_number + 1,
                "timestamp_ms": head.timestamp_ms + 1,
                "summary": summary,
            }
        )
        updates.append(AddSnapshotUpdate(snapshot=head))
    updates.append(
        SetSnapshotRefUpdate.model_validate(
            {"ref-name": "main", "type": "branch", "snapshot-id": head.snapshot_id}
        )
    )
    catalog.commit_table(found, (), tuple(updates))
