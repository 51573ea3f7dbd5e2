"""Load a table's state, with its watermarks, from one version of its metadata.

The watermark is the highest one in the summaries of `main`'s ancestors. If another program expired
all of those snapshots, it is the highest `_offset` of the live files: from their bounds, or by
reading the column if a file has no bound or has rows of several parts.
"""

from __future__ import annotations

import itertools
import operator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile, ManifestContent, read_manifest_list
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.types import IntegerType, LongType

from frazil.errors import Conflict
from frazil.lake.connection import calls, load
from frazil.lake.iceberg import ADOPTED, decode_ranges, parse_metadata, ranges_between, readable
from frazil.lake.table import (
    OFFSET_BEGIN,
    REJECTS_WINDOW,
    ROWS_IN,
    ROWS_REJECTED,
    SCHEMA_VERSION,
    TOPIC_ID,
    Ends,
    RejectRatio,
    TableState,
    ends_of,
)
from frazil.lake.types import OFFSET, PART
from frazil.model import WHOLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO

    from frazil.lake.connection import Loaded
    from frazil.lake.iceberg import Snapshot, TableMetadata
    from frazil.lake.plan import TableName

__all__ = ["look", "state_of"]

UNBOUNDED: Final = 1 << 63
"""The marker for a bound that a file's metadata lacks."""


def look(catalog: Catalog, table: TableName) -> TableState:
    """Return a table's state.

    Raises:
        NotFound: there is no such table.
        Unavailable: catalog or storage cannot be reached.
        CorruptionError: the metadata cannot be read, or a watermark of Frazil in it is not a
            number.
    """
    return state_of(catalog, table, load(catalog, table))


def state_of(catalog: Catalog, table: TableName, loaded: Loaded) -> TableState:
    """Return the state from loaded metadata; files are read only if it has no watermark."""
    metadata = parse_metadata(loaded.metadata, table)
    with readable(table):
        property_ends = ends_of(metadata.properties)
        begin_ends = ends_of(metadata.properties, OFFSET_BEGIN)
        version = metadata.properties.get(SCHEMA_VERSION)
        schema_version = None if version is None else int(version)
        line = list(metadata.ancestors())
        summary_ends = _highest_ends(line)
        since = _since(line, property_ends)
        recent = _recent(line)
        adopted = decode_ranges(metadata.properties, ADOPTED)
        settled = dict(property_ends)
        _merge(settled, {part: ranges[-1][1] for part, ranges in adopted.items() if ranges})
    bounds: Ends = {}
    if summary_ends is None and line:
        with calls("read the table's files", table=table):
            bounds = _bound_ends(catalog, table, loaded, metadata, line[0])
    return TableState(
        sid=line[0].snapshot_id if line else None,
        topic_id=metadata.properties.get(TOPIC_ID),
        schema_version=schema_version,
        summary_ends=summary_ends,
        property_ends=property_ends,
        begin_ends=begin_ends,
        bound_ends=bounds,
        strays=_strays(line, metadata.properties.get(TOPIC_ID), settled),
        recent=recent,
        commits_since_property=since,
        snapshots=len(metadata.snapshots),
        metadata_bytes=len(loaded.metadata),
    )


def _highest_ends(line: list[Snapshot]) -> Ends | None:
    """Return the highest watermark of each part.

    The newest may be lower: a snapshot without rows is no conflict for a late one without rows.
    """
    found: Ends = {}
    for snapshot in line:
        _merge(found, snapshot.ends)
    return found or None


def _strays(line: list[Snapshot], owner: str | None, known: Ends) -> dict[int, tuple[int, int]]:
    """Return the offsets that another topic's commits used since the table belongs to `owner`.

    Such a commit was running when the table was adopted or created again. `known` are, by part, the
    offsets below which no offset is a stray: the adopted ones, and the table's property.
    """
    highest: Ends = {}
    below: Ends = dict(known)
    for snapshot in line:
        ends = snapshot.ends
        if not ends:
            continue
        own = snapshot.summary.get(TOPIC_ID) in {None, owner}
        if own or all(end <= known.get(part, 0) for part, end in ends.items()):
            _merge(below, ends)
            break
        _merge(highest, ends)
    return {part: each for part, (each,) in ranges_between(below, highest).items()}


def _recent(line: list[Snapshot]) -> RejectRatio:
    """Return how many of the last 10,000 records were rejected; the oldest commit counts whole."""
    records = rejects = 0
    for snapshot in line:
        if records >= REJECTS_WINDOW:
            break
        records += snapshot.number(ROWS_IN)
        rejects += snapshot.number(ROWS_REJECTED)
    return RejectRatio(records, rejects)


def _since(line: list[Snapshot], property_ends: Ends) -> int:
    """Count the snapshots since the one with watermarks that the table's property has reached."""
    for count, snapshot in enumerate(line):
        ends = snapshot.ends
        if ends and all(property_ends.get(part, -1) >= end for part, end in ends.items()):
            return count
    return len(line)


def _bound_ends(
    catalog: Catalog, table: TableName, loaded: Loaded, metadata: TableMetadata, head: Snapshot
) -> Ends:
    """Return the highest `_offset` of the live files plus one, by part."""
    # The field ids of the columns for offset and part; without parts there is no second one.
    schema = next(s for s in metadata.schemas if s.schema_id == metadata.current_schema_id)
    ids = {field.name: field.id for field in schema.fields}
    if OFFSET not in ids:
        raise Conflict(
            "table has lost its column of offsets, restore it or bind the topic to another table",
            table=table,
            column=OFFSET,
        )
    columns = (ids[OFFSET], ids.get(PART))
    io = load_file_io({**catalog.properties, **loaded.config}, metadata.location)
    ends: Ends = {}
    unclear: list[tuple[int, range, DataFile]] = []
    for file in _live_files(io, head):
        high, parts = _bounds(file, columns)
        if high < UNBOUNDED and len(parts) == 1:
            _merge(ends, {parts[0]: high + 1})
        elif file.record_count:
            unclear.append((high, parts, file))
    # The highest first: its bound may make reading the others needless.
    for high, parts, file in sorted(unclear, key=operator.itemgetter(0), reverse=True):
        if high >= min((ends.get(part, 0) for part in parts), default=0):
            _merge(ends, _scanned(io, loaded, file, columns))
    return ends


def _live_files(io: FileIO, head: Snapshot) -> Iterator[DataFile]:
    for manifest in read_manifest_list(io.new_input(head.manifest_list)):
        if manifest.content == ManifestContent.DATA:
            for entry in manifest.fetch_manifest_entry(io, discard_deleted=True):
                yield entry.data_file


def _bounds(file: DataFile, columns: tuple[int, int | None]) -> tuple[int, range]:
    """Return a file's highest offset, if its metadata has it, and the parts it may have."""
    lower, upper = file.lower_bounds or {}, file.upper_bounds or {}
    offset, part = columns
    high = int(from_bytes(LongType(), upper[offset])) if offset in upper else UNBOUNDED
    if part is None:
        return high, range(WHOLE, WHOLE + 1)
    if part not in lower or part not in upper:
        return high, range(0)
    first, last = (int(from_bytes(IntegerType(), each[part])) for each in (lower, upper))
    return high, range(first, last + 1)


def _scanned(io: FileIO, loaded: Loaded, file: DataFile, columns: tuple[int, int | None]) -> Ends:
    """Read the highest offsets of a file's rows, deleted rows included."""
    metadata = TableMetadataUtil.parse_raw(loaded.metadata.decode())
    names = [OFFSET] if columns[1] is None else [OFFSET, PART]
    scan = ArrowScan(metadata, io, metadata.schema().select(*names), AlwaysTrue())
    rows = scan.to_table([FileScanTask(file)])
    if columns[1] is None:
        highest = pc.max(rows.column(OFFSET)).as_py()
        return {} if highest is None else {WHOLE: highest + 1}
    found: dict[str, list[Any]] = (
        pa.TableGroupBy(rows, PART).aggregate([(OFFSET, "max")]).to_pydict()
    )
    pairs = itertools.zip_longest(found[PART], found[f"{OFFSET}_max"])
    return {part: high + 1 for part, high in pairs if high is not None}


def _merge(ends: Ends, found: Ends) -> None:
    for part, end in found.items():
        ends[part] = max(ends.get(part, 0), end)
