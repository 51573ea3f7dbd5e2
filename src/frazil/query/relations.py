"""Relations: the SQL over Arrow tables and files that replaces a topic's name in one query.

Only the text of a relation names files; users never see it.

DuckDB's scan of an Arrow table pushes filters on timestamps down to Arrow as Python values, which
lose nanoseconds and zones. It also compares floats as Arrow does, which sorts NaN differently. So
timestamps are scanned as integers and floats with a sign: filters on neither are pushed down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from frazil.model import OP_DELETE, OP_NAMES
from frazil.query.pool import quoted_text
from frazil.query.pruning import Known
from frazil.query.views import TIME_TYPE, ViewColumn, quoted_name
from frazil.schema.keys import column_id

if TYPE_CHECKING:
    import numpy.typing as npt

    from frazil.query.pruning import Limits
    from frazil.query.snapshots import EngineSnapshot
    from frazil.query.views import Bounds, ChunkView
    from frazil.tiers import DiskFile

    Offsets = npt.NDArray[np.int64]

OFFSET: Final = "_offset"
LIVE: Final = "_live"
OPERATION: Final = "_op"
PRESENT: Final = "_present"
_MICROSECONDS: Final = pa.timestamp("us", "UTC")


class ArrowTables:
    """The Arrow tables of one query, by their names in its text."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.tables: dict[str, pa.Table] = {}

    def add(self, table: pa.Table) -> str:
        """Keep a table for the query and return its name."""
        name = f"{self._prefix}t{len(self.tables)}_"
        self.tables[name] = table
        return name


class WarmFile(NamedTuple):
    """A file, the snapshot that pins it, and its path if DuckDB can read it."""

    file: DiskFile
    snapshot: EngineSnapshot
    path: str | None


class FileGroup(NamedTuple):
    """Files that one scan can read; `cut` is None if no row has to be cut off."""

    files: list[WarmFile]
    part: int | None
    cut: int | None
    has_dead: bool
    has_deletes: bool
    in_place: bool


# -- relations -------------------------------------------------------------------------------------


def topic_relation(
    snapshots: Sequence[EngineSnapshot],
    columns: Sequence[ViewColumn],
    limits: Limits,
    tables: ArrowTables,
    *,
    keyed: bool,
    log: bool,
) -> tuple[str, list[ChunkView], list[WarmFile]]:
    """Return the SQL of the view, and the chunks and files that it reads."""
    state = keyed and not log
    files = [file for snapshot in snapshots for file in _files_to_read(snapshot, limits)]
    chunks = [chunk for snapshot in snapshots for chunk in _chunks_to_read(snapshot, limits)]
    by_part = any(column.name == "_part" for column in columns)
    groups = _file_groups(files, keyed=state, by_part=by_part)
    branches = [_group_sql(group, columns, tables, keyed=keyed) for group in groups]
    for live, group in _hot_groups(chunks, state=state):
        branches.append(_hot_sql(group, columns, tables, keyed=keyed, live=live))
    return " UNION ALL ".join(branches or [empty_relation(columns)]), chunks, files


def _files_to_read(snapshot: EngineSnapshot, limits: Limits) -> list[WarmFile]:
    return [
        WarmFile(file, snapshot, snapshot.file_path(file))
        for file in snapshot.files
        if file.offset_first < snapshot.cut
        and file.rows
        and limits.may_match(partial(_known_of_file, file, snapshot))
    ]


def _chunks_to_read(snapshot: EngineSnapshot, limits: Limits) -> list[ChunkView]:
    return [chunk for chunk in snapshot.chunks if limits.may_match(partial(_known_of_chunk, chunk))]


def empty_relation(columns: Sequence[ViewColumn]) -> str:
    """Return the SQL of the view's columns without any row."""
    shown = ", ".join(
        f"CAST(NULL AS {column.sql_type}) AS {quoted_name(column.name)}" for column in columns
    )
    return f"SELECT {shown} WHERE false"


def lookup_relation(
    rows: Sequence[tuple[int | None, Mapping[str, Any]]],
    columns: Sequence[ViewColumn],
    tables: ArrowTables,
) -> str:
    """Return the SQL of rows that were looked up by key, each with its part."""
    shown = ", ".join(_scanned(c.name, c.type) for c in columns)
    arrays = []
    for column in columns:
        own = [part if column.name == "_part" else row[column.name] for part, row in rows]
        arrays.append(_as_scanned(pa.array(own, column.type)))
    table = pa.Table.from_arrays(arrays, names=[column.name for column in columns])
    return " ".join(("SELECT", shown, "FROM", tables.add(table)))


def _hot_groups(
    chunks: Sequence[ChunkView], *, state: bool
) -> Iterator[tuple[bool, list[ChunkView]]]:
    """Divide chunks by whether their marks of live rows are needed."""
    for live in (False, True):
        group = [chunk for chunk in chunks if (state and chunk.live is not None) is live]
        if group:
            yield live, group


# -- the scan of an Arrow table --------------------------------------------------------------------


def _is_number(data_type: pa.DataType) -> bool:
    """Return whether a type is scanned as integers."""
    return pt.is_timestamp(data_type) and (data_type.tz is not None or data_type.unit == "ns")


def _scanned_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type of a column in the scan of an Arrow table."""
    return pa.int64() if _is_number(data_type) else data_type


def _as_scanned(array: pa.Array) -> pa.Array:
    """Return an array in the type of the scan of an Arrow table."""
    if not _is_number(array.type):
        return array
    if array.type.tz is not None and array.type.unit != "us":
        array = array.cast(_MICROSECONDS, safe=False)
    return array.view(pa.int64())


def _scanned(name: str, data_type: pa.DataType) -> str:
    """Return the SQL that converts a scanned column back to the view's type."""
    column = quoted_name(name)
    if _is_number(data_type):
        function = "make_timestamp_ns" if data_type.tz is None else "make_timestamptz"
        return f"{function}({column}) AS {column}"
    return f"+{column} AS {column}" if pt.is_floating(data_type) else column


# -- chunks ----------------------------------------------------------------------------------------


def _hot_sql(
    chunks: Sequence[ChunkView],
    columns: Sequence[ViewColumn],
    tables: ArrowTables,
    *,
    keyed: bool,
    live: bool,
) -> str:
    """Return the SELECT over chunks; with `live` only of the rows that are marked live."""
    operation = operation_sql(OPERATION) if keyed else "'append'"
    shown = ", ".join(
        f"{operation} AS {OPERATION}"
        if column.name == OPERATION
        else _scanned(column.name, column.type)
        for column in columns
    )
    table = _hot_table(chunks, columns, keyed=keyed, live=live)
    clauses = ["SELECT", shown, "FROM", tables.add(table)]
    return " ".join([*clauses, "WHERE", LIVE] if live else clauses)


def _hot_table(
    chunks: Sequence[ChunkView], columns: Sequence[ViewColumn], *, keyed: bool, live: bool
) -> pa.Table:
    """Return the columns of the chunks; with `live` also the marks of live rows."""
    visible = [column for column in columns if column.name != OPERATION]
    fields = [pa.field(column.name, _scanned_type(column.type)) for column in visible]
    coded = keyed and len(visible) < len(columns)
    extras = [(OPERATION, pa.int8(), coded), (LIVE, pa.bool_(), live)]
    fields += [pa.field(name, data_type) for name, data_type, wanted in extras if wanted]
    schema = pa.schema(fields)
    batches = []
    written, positions = pa.schema([]), [-1] * len(visible)
    for chunk in chunks:
        if not chunk.batch.schema.equals(written, check_metadata=True):
            # Most batches of a topic have the same schema.
            written = chunk.batch.schema
            positions = [_position_of(written, column.field) for column in visible]
        pairs = zip(visible, positions, strict=True)
        arrays = [_hot_column(chunk, column, position) for column, position in pairs]
        if coded:
            arrays.append(chunk.batch.column(OPERATION))
        if live:
            arrays.append(pa.array(chunk.live))
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return pa.Table.from_batches(batches, schema=schema)


def _hot_column(chunk: ChunkView, column: ViewColumn, position: int) -> pa.Array:
    if column.field is None:
        return _as_scanned(_system_column(chunk, column.name))
    return _as_scanned(_own_column(chunk.batch, position, column.type))


def _system_column(chunk: ChunkView, name: str) -> pa.Array:
    rows = chunk.batch.num_rows
    if name == OFFSET:
        return pa.array(np.arange(chunk.offset, chunk.offset + rows, dtype=np.int64))
    if name == "_time":
        counts = [count for count, _ in chunk.times]
        times = np.repeat(np.array([us for _, us in chunk.times], dtype=np.int64), counts)
        return pa.array(times).view(TIME_TYPE)
    assert name == "_part"
    return pa.repeat(pa.scalar(chunk.part, pa.int32()), rows)


def _own_column(batch: pa.RecordBatch, position: int, data_type: pa.DataType) -> pa.Array:
    """Return a column; it is null in a batch that is older than the column."""
    if position < 0:
        return pa.nulls(batch.num_rows, data_type)
    array = batch.column(position)
    return array if array.type.equals(data_type) else array.cast(data_type)


def _position_of(schema: pa.Schema, field: pa.Field | None) -> int:
    """Find a field by id where both have one, else by name; -1 if there is none."""
    if field is None:
        return -1
    position: int = schema.get_field_index(field.name)
    number = column_id(field)
    if number < 0 or (position >= 0 and column_id(schema.field(position)) in {number, -1}):
        return position
    return next((index for index, other in enumerate(schema) if column_id(other) == number), -1)


def _known_of_chunk(chunk: ChunkView, column: ViewColumn) -> Known | None:
    """Return the least and greatest values in a chunk."""
    if column.field is None:
        times = [us for _, us in chunk.times]
        offsets = (chunk.offset, chunk.offset + chunk.batch.num_rows - 1)
        return _known_of_system(column, offsets, (min(times), max(times)), chunk.part)
    schema = chunk.batch.schema
    position = _position_of(schema, column.field)
    if chunk.bounds is None or position < 0:
        return None
    found = chunk.bounds(schema.field(position).name)
    return None if found is None else Known(*found, schema.field(position).type)


def _known_of_system(
    column: ViewColumn, offsets: Bounds, times: Bounds, part: int | None
) -> Known | None:
    bounds = {OFFSET: offsets, "_time": times, "_part": (part, part)}.get(column.name)
    return None if bounds is None else Known(*bounds, column.type, nulls=0)


# -- files -----------------------------------------------------------------------------------------


def _file_groups(files: Sequence[WarmFile], *, keyed: bool, by_part: bool) -> list[FileGroup]:
    """Group files that one scan can read."""
    found: dict[tuple[Any, ...], FileGroup] = {}
    for warm in files:
        file, snapshot, path = warm
        low, high = file.offset_first, file.offset_last
        has_dead = keyed and len(_between(snapshot.dead, low, high)) > 0
        cut = snapshot.cut if high >= snapshot.cut else None
        has_deletes = keyed and file.deletes + file.unmatched > 0
        in_place = path is not None
        separate = id(snapshot) if by_part or has_dead else 0
        key = (file.schema, separate, cut, has_dead, has_deletes, in_place)
        part = snapshot.part if separate else None
        group = found.setdefault(key, FileGroup([], part, cut, has_dead, has_deletes, in_place))
        group.files.append(warm)
    return list(found.values())


def _between(dead: Offsets, low: int, high: int) -> Offsets:
    """Return the dead offsets from `low` to `high`."""
    first, end = np.searchsorted(dead, [low, high + 1])
    return dead[first:end]


def _group_sql(
    group: FileGroup, columns: Sequence[ViewColumn], tables: ArrowTables, *, keyed: bool
) -> str:
    """Return the SELECT that reads a group of files as the view's columns."""
    first = group.files[0]
    schema = first.snapshot.file_schema(first.file)
    names = {column.name: _source_name(column, schema) for column in columns}
    shown = ", ".join(
        f"{_expression(column, names[column.name], group.part, keyed=keyed)} AS "
        f"{quoted_name(column.name)}"
        for column in columns
    )
    # A scan needs at least one column to count the rows.
    needed = [name for name in names.values() if name is not None] or [OFFSET]
    joins: list[str] = []
    conditions: list[str] = []
    if group.cut is not None:
        needed.append(OFFSET)
        conditions.append(f"f.{OFFSET} < {group.cut}")
    if group.has_deletes:
        needed += [OPERATION, PRESENT]
        conditions.append(f"f.{OPERATION} <> {OP_DELETE} AND f.{PRESENT} IS NULL")
    if group.has_dead:
        needed.append(OFFSET)
        low = min(warm.file.offset_first for warm in group.files)
        high = max(warm.file.offset_last for warm in group.files)
        dead = _between(first.snapshot.dead, low, high)
        join, alive = without_dead(dead, first=low, last=high, register=tables.add)
        joins.append(join)
        conditions += alive
    source = _source_sql(group, needed, tables)
    where = ["WHERE", " AND ".join(conditions)] if conditions else []
    return " ".join(["SELECT", shown, "FROM", source, "AS f", *joins, *where])


def _source_sql(group: FileGroup, names: Sequence[str], tables: ArrowTables) -> str:
    """Return DuckDB's scan of files, or the Arrow table of files that Frazil reads itself."""
    if group.in_place:
        listed = ", ".join(quoted_text(warm.path) for warm in group.files if warm.path is not None)
        return f"read_parquet([{listed}], hive_partitioning = false)"
    wanted = list(dict.fromkeys(names))
    table = pa.concat_tables([warm.snapshot.read_file(warm.file, wanted) for warm in group.files])
    arrays = [
        pa.chunked_array(
            [_as_scanned(chunk) for chunk in column.chunks], _scanned_type(column.type)
        )
        for column in table.columns
    ]
    shown = ", ".join(_scanned(f.name, f.type) for f in table.schema)
    name = tables.add(pa.Table.from_arrays(arrays, names=table.column_names))
    return " ".join(("(SELECT", shown, "FROM", f"{name})"))


def operation_sql(source: str) -> str:
    """Return the expression for the name of a coded operation."""
    names = sorted(OP_NAMES.items())
    cases = " ".join(f"WHEN {code} THEN {quoted_text(name)}" for code, name in names)
    return f"CASE {source} {cases} END"


def _source_name(column: ViewColumn, schema: pa.Schema) -> str | None:
    """Return the column of the file that a view's column comes from, None if there is none."""
    if column.field is None:
        return None if column.name == "_part" else column.name
    number = column_id(column.field)
    if number < 0:
        return column.name if column.name in schema.names else None
    return next((each.name for each in schema if column_id(each) == number), None)


def _expression(column: ViewColumn, source: str | None, part: int | None, *, keyed: bool) -> str:
    if column.name == "_part":
        return "NULL::INTEGER" if part is None else f"{part}::INTEGER"
    if column.name == OPERATION:
        return operation_sql(f"f.{OPERATION}") if keyed else "'append'"
    if source is None:
        return f"CAST(NULL AS {column.sql_type})"
    # DuckDB drops a cast to the type that the value already has, so it costs nothing.
    sign = "+" if pt.is_floating(column.type) else ""
    return f"CAST({sign}f.{quoted_name(source)} AS {column.sql_type})"


def _known_of_file(file: DiskFile, snapshot: EngineSnapshot, column: ViewColumn) -> Known | None:
    """Return the least and greatest values in a file, from its statistics."""
    if column.field is None:
        offsets = (file.offset_first, file.offset_last)
        return _known_of_system(column, offsets, (file.time_first, file.time_last), snapshot.part)
    schema = snapshot.file_schema(file)
    name = _source_name(column, schema)
    if name is None:
        # The column was added after the file was written.
        return Known(None, None, column.type, nulls=file.rows, rows=file.rows)
    facts = file.columns.get(name)
    if facts is None:
        return None
    return Known(facts.low, facts.high, schema.field(name).type, facts.nulls, file.rows)


BLOCK_SHIFT: Final = 6
"""A block has as many rows as an integer has bits."""
BLOCKS_PER_DEAD_MAX: Final = 2
"""Dead rows are a bitmap if at least one block in this many has a dead row."""


def without_dead(
    dead: Offsets,
    *,
    first: int,
    last: int,
    register: Callable[[pa.Table], str],
) -> tuple[str, list[str]]:
    """Return the join, and the conditions after it, that remove dead rows from a scan `f`.

    `dead` and the rows' offsets are in `[first, last]`. If many rows are dead, a bitmap that is
    joined by blocks of rows is much smaller than a list of offsets: its hash table fits into the
    processor's caches.
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
