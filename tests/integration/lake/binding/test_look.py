"""The look at a table in a real catalog: which mark counts, and what is left without any."""

from __future__ import annotations

import pyarrow as pa
import pytest

from frazil.clock import SystemClock
from frazil.errors import Conflict, NotFound, Unavailable
from frazil.lake import TableName, table_of
from frazil.lake.binding import bind
from frazil.lake.table_state import look
from tests.integration.lake.binding.tables import TIME, append, defined

CLOCK = SystemClock()
END = "frazil.offset-end"


def bound_table(catalog, served, topic, **options):
    bind(catalog, defined(topic, served, **options), clock=CLOCK)
    return table_of(topic)


def expire_all_but_last(table):
    """Expire every snapshot but the newest, as somebody else's maintenance does."""
    newest = table.metadata.current_snapshot_id
    old = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id != newest]
    table.maintenance.expire_snapshots().by_ids(old).commit()


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
