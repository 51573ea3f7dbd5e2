"""Files of the disk tier as SQL: which of them are read, and how their rows become the view's.

Files of one schema version are one scan. Columns are found by id: one that a file does not have is
null, one with an older name or type is renamed and cast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from frazil.model import OP_DELETE, OP_NAMES
from frazil.query.arrow_scan import as_scanned, float_sign, scanned, scanned_type
from frazil.query.dead_rows import without_dead
from frazil.query.lockdown import quoted_text
from frazil.query.pruning import Known
from frazil.query.views import ViewColumn, column_id, quoted_name

if TYPE_CHECKING:
    import numpy.typing as npt

    from frazil.query.arrow_scan import ScanRules
    from frazil.query.pruning import Limits
    from frazil.query.sources import SnapshotFile, TopicSnapshot

__all__ = ["FileGroup", "WarmFile", "file_groups", "group_sql", "kept_files", "operation_sql"]

Register = Callable[[pa.Table], str]
"""Makes a table known to the connection and returns its name."""

OFFSET: Final = "_offset"
OPERATION: Final = "_op"


class WarmFile(NamedTuple):
    """A file, the snapshot that pins it, and where it lies unless it must be read for DuckDB."""

    file: SnapshotFile
    snapshot: TopicSnapshot
    path: str | None


class FileGroup(NamedTuple):
    """Files that one scan can read: `cut` is None if no row lies beyond it."""

    files: list[WarmFile]
    part: int | None
    cut: int | None
    has_dead: bool
    has_deletes: bool
    in_place: bool


def kept_files(snapshots: Sequence[TopicSnapshot], limits: Limits) -> list[WarmFile]:
    """Return the files that can have rows within the limits and below the cut, in order."""
    return [
        WarmFile(file, snapshot, snapshot.file_path(file))
        for snapshot in snapshots
        for file in snapshot.files
        if file.offset_first < snapshot.cut
        and file.rows
        and limits.partitions.may_match(file, snapshot)
        and limits.may_match(_FileBounds(file, snapshot).of)
    ]


def file_groups(
    files: Sequence[WarmFile], *, keyed: bool, by_part: bool
) -> list[tuple[FileGroup, npt.NDArray[np.int64] | None]]:
    """Divide files by how they must be read, each group with the offsets that are dead in it."""
    dead_of: dict[int, npt.NDArray[np.int64]] = {}
    found: dict[tuple[Any, ...], FileGroup] = {}
    for warm in files:
        file, snapshot, path = warm
        if keyed and id(snapshot) not in dead_of:
            dead_of[id(snapshot)] = snapshot.dead()
        has_dead = keyed and _count_dead(dead_of[id(snapshot)], file) > 0
        cut = snapshot.cut if file.offset_last >= snapshot.cut else None
        has_deletes = keyed and file.deletes > 0
        in_place = path is not None
        separate = id(snapshot) if by_part or has_dead else 0
        key = (file.schema, separate, cut, has_dead, has_deletes, in_place)
        group = found.get(key)
        if group is None:
            part = snapshot.part if separate else None
            group = FileGroup([], part, cut, has_dead, has_deletes, in_place)
            found[key] = group
        group.files.append(warm)
    return [
        (group, _dead_in(group, dead_of) if group.has_dead else None) for group in found.values()
    ]


def group_sql(
    group: FileGroup,
    dead: npt.NDArray[np.int64] | None,
    columns: Sequence[ViewColumn],
    register: Register,
    *,
    keyed: bool,
    rules: ScanRules,
) -> str:
    """Return the SELECT that reads a group of files as the view's columns."""
    first = group.files[0]
    schema = first.snapshot.file_schema(first.file)
    names = {column.name: _source_name(column, schema) for column in columns}
    shown = ", ".join(
        f"{_expression(column, names[column.name], group.part, keyed=keyed, rules=rules)} AS "
        f"{quoted_name(column.name)}"
        for column in columns
    )
    conditions = []
    if group.cut is not None:
        conditions.append(f"f.{OFFSET} < {group.cut}")
    if group.has_deletes:
        conditions.append(f"f.{OPERATION} <> {OP_DELETE}")
    if group.in_place:
        source = _parquet_scan(group.files)
    else:
        needed = [name for name in names.values() if name is not None]
        if group.cut is not None or dead is not None:
            needed.append(OFFSET)
        if group.has_deletes:
            needed.append(OPERATION)
        table = _read_tables(group.files, needed or [OFFSET])
        source = _scan_sql(table, register, rules=rules)
    clauses = ["SELECT", shown, "FROM", source, "AS f"]
    if dead is not None:
        low, high = _range(group)
        join, alive = without_dead(dead, first=low, last=high, register=register)
        clauses.append(join)
        conditions += alive
    if conditions:
        clauses += ["WHERE", " AND ".join(conditions)]
    return " ".join(clauses)


def operation_sql(source: str) -> str:
    """Return the expression for the name of a coded operation."""
    cases = " ".join(f"WHEN {code} THEN {quoted_text(name)}" for code, name in _names())
    return f"CASE {source} {cases} END"


def _names() -> Iterable[tuple[int, str]]:
    return sorted(OP_NAMES.items())


def _parquet_scan(files: Sequence[WarmFile]) -> str:
    listed = ", ".join(quoted_text(warm.path) for warm in files if warm.path is not None)
    return f"read_parquet([{listed}], hive_partitioning = false)"


def _read_tables(files: Sequence[WarmFile], names: Sequence[str]) -> pa.Table:
    wanted = list(dict.fromkeys(names))
    return pa.concat_tables([warm.snapshot.read_file(warm.file, wanted) for warm in files])


def _scan_sql(table: pa.Table, register: Register, *, rules: ScanRules) -> str:
    """Return the source that scans rows which were read from files into memory."""
    arrays = [
        pa.chunked_array(
            [as_scanned(chunk, rules) for chunk in column.chunks],
            scanned_type(column.type, rules),
        )
        for column in table.columns
    ]
    shown = ", ".join(scanned(f.name, f.type, rules) for f in table.schema)
    name = register(pa.Table.from_arrays(arrays, names=table.column_names))
    return " ".join(("(SELECT", shown, "FROM", f"{name})"))


def _source_name(column: ViewColumn, schema: pa.Schema) -> str | None:
    """Return the column of the file that a view's column comes from, None if there is none."""
    if column.field is None:
        return None if column.name == "_part" else column.name
    number = column_id(column.field)
    if number is None:
        return column.name if column.name in schema.names else None
    for field in schema:
        if column_id(field) == number:
            name: str = field.name
            return name
    return None


def _expression(
    column: ViewColumn, source: str | None, part: int | None, *, keyed: bool, rules: ScanRules
) -> str:
    if column.name == "_part":
        return "NULL::INTEGER" if part is None else f"{part}::INTEGER"
    if column.field is None and column.name == OPERATION:
        return operation_sql(f"f.{OPERATION}") if keyed else "'append'"
    if source is None:
        return f"CAST(NULL AS {column.sql_type})"
    # A cast to the type that a value has already costs nothing: DuckDB leaves it out.
    sign = float_sign(column.type, rules)
    return f"CAST({sign}f.{quoted_name(source)} AS {column.sql_type})"


def _count_dead(dead: npt.NDArray[np.int64], file: SnapshotFile) -> int:
    first, end = np.searchsorted(dead, [file.offset_first, file.offset_last + 1])
    return int(end - first)


def _dead_in(group: FileGroup, dead_of: dict[int, npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Return the dead offsets within the range of the group's files."""
    dead = dead_of[id(group.files[0].snapshot)]
    low, high = _range(group)
    first, end = np.searchsorted(dead, [low, high + 1])
    return dead[first:end]


def _range(group: FileGroup) -> tuple[int, int]:
    """Return the first and the last offset of a group's files."""
    low = min(warm.file.offset_first for warm in group.files)
    return low, max(warm.file.offset_last for warm in group.files)


class _FileBounds:
    """The least and greatest values in a file, as its facts say."""

    def __init__(self, file: SnapshotFile, snapshot: TopicSnapshot) -> None:
        self._file = file
        self._snapshot = snapshot
        self._columns: Mapping[str, Sequence[Any]] | None = None

    def of(self, column: ViewColumn) -> Known | None:
        file = self._file
        if column.field is None:
            if column.name == OFFSET:
                return Known(file.offset_first, file.offset_last, column.type, nulls=0)
            if column.name == "_time":
                return Known(file.time_first, file.time_last, column.type, nulls=0)
            if column.name == "_part":
                part = self._snapshot.part
                return Known(part, part, column.type)
            return None
        schema = self._snapshot.file_schema(file)
        name = _source_name(column, schema)
        if name is None:
            # The column is younger than the file.
            return Known(None, None, column.type, nulls=file.rows, rows=file.rows)
        if self._columns is None:
            self._columns = file.columns
        facts = self._columns.get(name)
        if facts is None:
            return None
        least, greatest, nulls = facts
        return Known(least, greatest, schema.field(name).type, nulls, file.rows)
