"""What a name of a topic stands for in one query: SQL over Arrow tables and files.

The text of a relation is the only place that names files; users never see it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from attrs import define, field

from frazil.model import OP_DELETE, OP_NAMES
from frazil.query.pool import quoted_text
from frazil.query.pruning import Known
from frazil.query.views import TIME_TYPE, ViewColumn, column_id, quoted_name

if TYPE_CHECKING:
    import numpy.typing as npt

    from frazil.query.guard import Node
    from frazil.query.pruning import Limits
    from frazil.query.views import ChunkView, SnapshotFile, TopicSnapshot

__all__ = [
    "EVERY_FILTER",
    "LIVE",
    "OPERATION",
    "FileGroup",
    "HotChunk",
    "Registry",
    "RelationFacts",
    "ScanRules",
    "TierFacts",
    "WarmFile",
    "as_scanned",
    "empty_relation",
    "file_groups",
    "float_sign",
    "group_sql",
    "hot_table",
    "kept_chunks",
    "kept_files",
    "lookup_relation",
    "operation_sql",
    "relation_facts",
    "rows_table",
    "scan_rules",
    "scanned",
    "scanned_type",
    "topic_relation",
    "without_dead",
]

_MICROSECONDS: Final = pa.timestamp("us", "UTC")
_JOINS: Final = frozenset(
    {
        *("JOIN", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "SHOW_REF", "PIVOT"),
        *("SUBQUERY", "WINDOW", "COMPARE_IN", "COMPARE_NOT_IN"),
    }
)
_FILTERS: Final = frozenset(
    {*_JOINS, "COMPARISON", "BETWEEN", "LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER"}
)


class ScanRules(NamedTuple):
    """Which filters a statement can lead to: those of lists and joins, and any at all."""

    joins: bool
    filters: bool


EVERY_FILTER: Final = ScanRules(joins=True, filters=True)


def scan_rules(statement: Node) -> ScanRules:
    """Find out what a statement consists of."""
    joins = filters = False
    todo: list[Any] = [statement]
    while todo and not (joins and filters):
        item = todo.pop()
        if isinstance(item, list):
            todo += item
        elif isinstance(item, dict):
            kinds = {kind for kind in (item.get("type"), item.get("class")) if type(kind) is str}
            joins = joins or not kinds.isdisjoint(_JOINS)
            filters = filters or not kinds.isdisjoint(_FILTERS)
            todo += item.values()
    return ScanRules(joins, filters)


def _is_number(data_type: pa.DataType, rules: ScanRules) -> bool:
    """Tell whether timestamps are scanned as numbers."""
    if not pt.is_timestamp(data_type):
        return False
    if data_type.tz is None:
        return bool(data_type.unit == "ns")
    return rules.joins or data_type.unit != "us"


def scanned_type(data_type: pa.DataType, rules: ScanRules) -> pa.DataType:
    """Return the type that a column has in the scan of an Arrow table."""
    return pa.int64() if _is_number(data_type, rules) else data_type


def as_scanned(array: pa.Array, rules: ScanRules) -> pa.Array:
    """Return an array as the scan of an Arrow table gives it."""
    if not _is_number(array.type, rules):
        return array
    if array.type.tz is not None and array.type.unit != "us":
        array = array.cast(_MICROSECONDS, safe=False)
    return array.view(pa.int64())


def scanned(name: str, data_type: pa.DataType, rules: ScanRules) -> str:
    """Return the SQL that makes a column of what the scan of an Arrow table gives."""
    column = quoted_name(name)
    if _is_number(data_type, rules):
        function = "make_timestamp_ns" if data_type.tz is None else "make_timestamptz"
        return f"{function}({column}) AS {column}"
    sign = float_sign(data_type, rules)
    return f"{sign}{column} AS {column}" if sign else column


def float_sign(data_type: pa.DataType, rules: ScanRules) -> str:
    """Return what must stand before a column so that its comparisons are DuckDB's own."""
    return "+" if rules.filters and pt.is_floating(data_type) else ""


BLOCK_SHIFT: Final = 6
"""A block of rows has as many as an integer has bits."""
BLOCKS_PER_DEAD_MAX: Final = 2
"""Dead rows are told by bits when there is at least one in so many blocks."""


def without_dead(
    dead: npt.NDArray[np.int64],
    *,
    first: int,
    last: int,
    register: Callable[[pa.Table], str],
) -> tuple[str, list[str]]:
    """Return the join, and the conditions behind it, that leave dead rows out of a scan `f`.

    `dead` are offsets in `[first, last]`, and so are the rows'. Where many are dead, one bit for
    each row and a join by blocks of rows is much less than a list of them: its hash table stays in
    the processor's caches.
    """
    block = first >> BLOCK_SHIFT
    blocks = (last >> BLOCK_SHIFT) - block + 1
    if blocks > BLOCKS_PER_DEAD_MAX * len(dead):
        marks = register(pa.table({"_offset": pa.array(dead, pa.int64())}))
        return f"ANTI JOIN {marks} AS d ON f._offset = d._offset", []
    flags = np.zeros(blocks << BLOCK_SHIFT, np.bool_)
    flags[dead - (block << BLOCK_SHIFT)] = True
    words = np.packbits(flags, bitorder="little").view("<i8")
    numbers = np.arange(block, block + blocks, dtype=np.int64)
    marks = register(pa.table({"block": pa.array(numbers), "bits": pa.array(words)}))
    join = f"JOIN {marks} AS d ON (f._offset >> {BLOCK_SHIFT}) = d.block"
    return join, [f"(d.bits >> (f._offset & {(1 << BLOCK_SHIFT) - 1})) & 1 = 0"]


LIVE: Final = "_live"
OPERATION: Final = "_op"
PRESENT: Final = "_present"
_OPERATION_TYPE: Final = pa.int8()


class HotChunk(NamedTuple):
    """A chunk and the part of the topic that it belongs to."""

    chunk: ChunkView
    part: int | None


def kept_chunks(snapshots: Sequence[TopicSnapshot], limits: Limits) -> list[HotChunk]:
    """Return the chunks that can have rows within the limits, in order."""
    return [
        HotChunk(chunk, snapshot.part)
        for snapshot in snapshots
        for chunk in snapshot.chunks
        if limits.may_match(_ChunkBounds(chunk, snapshot.part).of)
    ]


def hot_table(
    chunks: Sequence[HotChunk],
    columns: Sequence[ViewColumn],
    *,
    operation: bool,
    live: bool,
    rules: ScanRules,
) -> pa.Table:
    """Return the columns of the chunks; `operation` adds the coded one, `live` the marks.

    `rules` say which of its timestamps are numbers (`arrow_scan.py`).
    """
    visible = [column for column in columns if column.name != OPERATION]
    fields = [pa.field(column.name, scanned_type(column.type, rules)) for column in visible]
    if operation:
        fields.append(pa.field(OPERATION, _OPERATION_TYPE))
    if live:
        fields.append(pa.field(LIVE, pa.bool_()))
    schema = pa.schema(fields)
    batches = []
    places = _Places(visible)
    for chunk, part in chunks:
        found = places.of(chunk.batch.schema)
        arrays = [
            as_scanned(
                _system_column(chunk, part, column.name)
                if column.field is None
                else _own_column(chunk.batch, place, column.type),
                rules,
            )
            for column, place in zip(visible, found, strict=True)
        ]
        if operation:
            arrays.append(chunk.batch.column(OPERATION))
        if live:
            arrays.append(pa.array(chunk.live))
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return pa.Table.from_batches(batches, schema=schema)


def rows_table(
    rows: Sequence[tuple[int | None, Any]], columns: Sequence[ViewColumn], *, rules: ScanRules
) -> pa.Table:
    """Return rows that were looked up by key, with the part each was found in, as a table."""
    arrays = []
    for column in columns:
        if column.name == "_part":
            values = [part for part, _ in rows]
        else:
            values = [row[column.name] for _, row in rows]
        arrays.append(as_scanned(pa.array(values, column.type), rules))
    return pa.Table.from_arrays(arrays, names=[column.name for column in columns])


def _system_column(chunk: ChunkView, part: int | None, name: str) -> pa.Array:
    rows = chunk.batch.num_rows
    if name == "_offset":
        return pa.array(np.arange(chunk.offset, chunk.offset + rows, dtype=np.int64))
    if name == "_time":
        counts = [count for count, _ in chunk.times]
        times = np.repeat(np.array([us for _, us in chunk.times], dtype=np.int64), counts)
        return pa.array(times).view(TIME_TYPE)
    assert name == "_part"
    return pa.repeat(pa.scalar(part, pa.int32()), rows)


def _own_column(batch: pa.RecordBatch, place: int, data_type: pa.DataType) -> pa.Array:
    """Return a column; it is null in a batch from before it was added."""
    if place < 0:
        return pa.nulls(batch.num_rows, data_type)
    array = batch.column(place)
    return array if array.type.equals(data_type) else array.cast(data_type)


class _Places:
    """Where the columns stand in a batch; most batches of a topic have one schema."""

    def __init__(self, columns: Sequence[ViewColumn]) -> None:
        self._columns = columns
        self._schema: pa.Schema | None = None
        self._places: list[int] = []

    def of(self, schema: pa.Schema) -> list[int]:
        if self._schema is None or not schema.equals(self._schema, check_metadata=True):
            self._schema = schema
            self._places = [
                -1 if column.field is None else _place_of(schema, column.field)
                for column in self._columns
            ]
        return self._places


def _place_of(schema: pa.Schema, field: pa.Field) -> int:
    """Find a field by id where both have one, else by name."""
    place: int = schema.get_field_index(field.name)
    number = column_id(field)
    if number is None:
        return place
    if place >= 0 and column_id(schema.field(place)) in {number, None}:
        return place
    for index, other in enumerate(schema):
        if column_id(other) == number:
            return index
    return -1


class _ChunkBounds:
    """The least and greatest values in a chunk."""

    def __init__(self, chunk: ChunkView, part: int | None) -> None:
        self._chunk = chunk
        self._part = part

    def of(self, column: ViewColumn) -> Known | None:
        chunk = self._chunk
        if column.field is not None:
            return self._own(column.field)
        if column.name == "_offset":
            last = chunk.offset + chunk.batch.num_rows - 1
            return Known(chunk.offset, last, column.type, nulls=0)
        if column.name == "_time" and chunk.times:
            times = [us for _, us in chunk.times]
            return Known(min(times), max(times), column.type, nulls=0)
        if column.name == "_part":
            return Known(self._part, self._part, column.type)
        return None

    def _own(self, field: pa.Field) -> Known | None:
        schema = self._chunk.batch.schema
        if self._chunk.bounds is None:
            return None
        place = _place_of(schema, field)
        if place < 0:
            return None
        found = self._chunk.bounds(schema.field(place).name)
        return None if found is None else Known(*found, schema.field(place).type)


Register = Callable[[pa.Table], str]
"""Makes a table known to the connection and returns its name."""

OFFSET: Final = "_offset"


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
        conditions.append(f"f.{OPERATION} <> {OP_DELETE} AND f.{PRESENT} IS NULL")
    if group.in_place:
        source = _parquet_scan(group.files)
    else:
        needed = [name for name in names.values() if name is not None]
        if group.cut is not None or dead is not None:
            needed.append(OFFSET)
        if group.has_deletes:
            needed += [OPERATION, PRESENT]
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
    for each in schema:
        if column_id(each) == number:
            name: str = each.name
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


class Registry:
    """The Arrow tables of one query, by the names under which its text knows them."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.tables: dict[str, pa.Table] = {}

    def add(self, table: pa.Table) -> str:
        """Keep a table for the query and return its name."""
        name = f"{self._prefix}t{len(self.tables)}_"
        self.tables[name] = table
        return name


@define
class TierFacts:
    """What a tier has of a topic, and what of it the query reads."""

    items: int = 0
    rows: int = 0
    bytes: int = 0
    items_read: int = 0
    rows_read: int = 0
    bytes_read: int = 0

    def as_dict(self, what: str) -> dict[str, int]:
        """Return the facts for `explain`; `what` the tier is made of."""
        return {
            what: self.items,
            "rows": self.rows,
            "bytes": self.bytes,
            f"{what}_pruned": self.items - self.items_read,
            f"{what}_read": self.items_read,
            "rows_read": self.rows_read,
            "bytes_read": self.bytes_read,
        }


@define
class RelationFacts:
    """What stands behind one name of a topic in a query."""

    memory: TierFacts = field(factory=TierFacts)
    disk: TierFacts = field(factory=TierFacts)
    files_read: list[str] = field(factory=list)


def topic_relation(
    snapshots: Sequence[TopicSnapshot],
    columns: Sequence[ViewColumn],
    limits: Limits,
    registry: Registry,
    *,
    keyed: bool,
    log: bool,
    rules: ScanRules,
) -> tuple[str, list[HotChunk], list[WarmFile]]:
    """Return the SQL of the view, and which chunks and files it reads."""
    state = keyed and not log
    files = kept_files(snapshots, limits)
    by_part = any(column.name == "_part" for column in columns)
    branches = [
        group_sql(group, dead, columns, registry.add, keyed=keyed, rules=rules)
        for group, dead in file_groups(files, keyed=state, by_part=by_part)
    ]
    chunks = kept_chunks(snapshots, limits)
    whole = [hot for hot in chunks if not state or hot.chunk.live is None]
    marked = [hot for hot in chunks if state and hot.chunk.live is not None]
    for group, live in ((whole, False), (marked, True)):
        if group:
            branches.append(_hot_sql(group, columns, registry, keyed=keyed, live=live, rules=rules))
    if not branches:
        branches.append(empty_relation(columns))
    return " UNION ALL ".join(branches), chunks, files


def empty_relation(columns: Sequence[ViewColumn]) -> str:
    """Return the SQL of the view's columns without any row."""
    shown = ", ".join(
        f"CAST(NULL AS {column.sql_type}) AS {quoted_name(column.name)}" for column in columns
    )
    return f"SELECT {shown} WHERE false"


def lookup_relation(
    rows: Sequence[tuple[int | None, Any]],
    columns: Sequence[ViewColumn],
    registry: Registry,
    *,
    rules: ScanRules,
) -> str:
    """Return the SQL of a few rows that were found by key."""
    shown = ", ".join(scanned(c.name, c.type, rules) for c in columns)
    table = rows_table(rows, columns, rules=rules)
    return " ".join(("SELECT", shown, "FROM", registry.add(table)))


def relation_facts(
    snapshots: Sequence[TopicSnapshot], chunks: Sequence[HotChunk], files: Sequence[WarmFile]
) -> RelationFacts:
    """Count what there is and what is read of it."""
    facts = RelationFacts()
    for snapshot in snapshots:
        for chunk in snapshot.chunks:
            facts.memory.items += 1
            facts.memory.rows += chunk.batch.num_rows
            facts.memory.bytes += chunk.batch.nbytes
        for file in snapshot.files:
            if file.offset_first < snapshot.cut:
                facts.disk.items += 1
                facts.disk.rows += file.rows
                facts.disk.bytes += file.bytes
    for hot in chunks:
        facts.memory.items_read += 1
        facts.memory.rows_read += hot.chunk.batch.num_rows
        facts.memory.bytes_read += hot.chunk.batch.nbytes
    for warm in files:
        facts.disk.items_read += 1
        facts.disk.rows_read += warm.file.rows
        facts.disk.bytes_read += warm.file.bytes
        facts.files_read.append(warm.file.name)
    return facts


def _hot_sql(
    chunks: Sequence[HotChunk],
    columns: Sequence[ViewColumn],
    registry: Registry,
    *,
    keyed: bool,
    live: bool,
    rules: ScanRules,
) -> str:
    named = any(column.field is None and column.name == OPERATION for column in columns)
    table = hot_table(chunks, columns, operation=named and keyed, live=live, rules=rules)
    shown = ", ".join(_hot_expression(column, keyed=keyed, rules=rules) for column in columns)
    clauses = ["SELECT", shown, "FROM", registry.add(table)]
    if live:
        clauses += ["WHERE", LIVE]
    return " ".join(clauses)


def _hot_expression(column: ViewColumn, *, keyed: bool, rules: ScanRules) -> str:
    if column.field is None and column.name == OPERATION:
        name = operation_sql(OPERATION) if keyed else "'append'"
        return f"{name} AS {OPERATION}"
    return scanned(column.name, column.type, rules)
