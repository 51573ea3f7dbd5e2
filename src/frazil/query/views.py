"""The views of topics: their columns, as SQL names and types them.

Every topic is a view of its state (a keyed topic's newest row per key, all records of another) and
`name$log` is a view of all its changes. System columns come first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.types as pt

from frazil.errors import InvalidRequest

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from frazil.model import PartitionField

__all__ = [
    "LOG_SUFFIX",
    "TIME_TYPE",
    "Bounds",
    "ChunkView",
    "Request",
    "SnapshotFile",
    "Sources",
    "TopicInfo",
    "TopicName",
    "TopicSnapshot",
    "ViewColumn",
    "column_id",
    "duckdb_type",
    "quoted_name",
    "view_columns",
]

TopicName = tuple[str, str]
"""A namespace and a name within it."""

Bounds = tuple[Any, Any]
"""The least and the greatest value of a column, None where it is not known.

Temporal values are storage integers in the unit of the column's type, as in a file's facts.
"""


class TopicInfo(NamedTuple):
    """A topic as SQL describes it: `partitions` is 0 unless it has parts.

    `partition_by` is the spec of the partitions that its files are divided by. One that is not
    `listed` can be named, but the catalog does not show it.
    """

    schema: pa.Schema
    key_names: tuple[str, ...] = ()
    partitions: int = 0
    partition_by: tuple[PartitionField, ...] = ()
    listed: bool = True


class Request(NamedTuple):
    """Which topic a query reads, and how: its state, its log of changes, or both."""

    topic: TopicName
    state: bool = True
    log: bool = False


class ChunkView(NamedTuple):
    """The records of `batch` in memory, from `offset` on without a hole.

    `batch` has the topic's columns, under the current schema or an older version of it (then its
    fields carry their ids); a keyed topic's has `_op` and `_present` behind them. `times` are runs
    of (records, microseconds). `live` marks the rows that are their key's state at the snapshot:
    None if all of them are. `bounds` tells a column's least and greatest value by its name in
    `batch`, if that is cheap to know.
    """

    batch: pa.RecordBatch
    offset: int
    times: Sequence[tuple[int, int]]
    live: npt.NDArray[np.bool_] | None = None
    bounds: Callable[[str], Bounds | None] | None = None


class SnapshotFile(Protocol):
    """What a query needs to know about a Parquet file of the disk tier to leave it closed."""

    @property
    def name(self) -> str: ...
    @property
    def offset_first(self) -> int: ...
    @property
    def offset_last(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def schema(self) -> int:
        """The schema version it was written under."""

    @property
    def time_first(self) -> int:
        """The least `_time` in it, microseconds."""

    @property
    def time_last(self) -> int:
        """The greatest `_time` in it, microseconds."""

    @property
    def columns(self) -> Mapping[str, Sequence[Any]]:
        """(least, greatest, number of nulls) of scalar columns, by the file's own names."""

    @property
    def partition_values(self) -> Sequence[Any]:
        """The values of its partition by the spec's fields; empty if its rows are of several."""

    @property
    def deletes(self) -> int:
        """How many of its rows are deletions, or updates of keys without a row."""


class TopicSnapshot(Protocol):
    """One topic, or one part of it, at one instant. Used by one query, closed once."""

    check: Callable[[], None]
    """Called before each file, and before keys are looked up; it raises to stop the query."""

    @property
    def part(self) -> int | None:
        """The index of the part, None for a topic without parts."""

    @property
    def end(self) -> int: ...
    @property
    def cut(self) -> int: ...
    @property
    def chunks(self) -> Sequence[ChunkView]: ...
    @property
    def files(self) -> Sequence[SnapshotFile]:
        """Files with records below `cut`, pinned until `close`; they may reach beyond `cut`."""

    def file_path(self, file: Any, /) -> str | None:
        """Return where the file lies for DuckDB, None if it must be read through `read_file`."""

    def read_file(self, file: Any, columns: Sequence[str], /) -> pa.Table:
        """Read columns of a file, in their own types; `_offset` and others are columns, too."""

    def file_schema(self, file: Any, /) -> pa.Schema:
        """Return the topic's columns, with their ids, in the schema version of the file."""

    def dead(self) -> npt.NDArray[np.int64]:
        """Return, ascending, the offsets below `cut` of changes that are superseded at `end`.

        Deletions need not be among them: they are known by their operation.
        """

    def get_many(self, keys: Sequence[tuple[Any, ...]], /) -> Sequence[Mapping[str, Any] | None]:
        """Return the row of each key at this snapshot, with `_offset` and `_time`."""

    def close(self) -> None:
        """Release what is pinned. A second call does nothing."""


class Sources(Protocol):
    """All topics. All methods may be called from any thread."""

    @property
    def version(self) -> int:
        """A number that changes whenever `topics` does."""

    def topics(self) -> Mapping[TopicName, TopicInfo]:
        """Return the topics that SQL can name; parts of partitioned ones are not listed."""

    def wait(self, requests: Sequence[Request], min_offset: Any) -> None:
        """Wait until the topics have the offsets; `check_watch` is asked meanwhile."""

    def snapshot(
        self,
        requests: Sequence[Request],
        *,
        as_of_offset: Any = None,
        as_of_time: Any = None,
        min_offset: Any = None,
    ) -> Mapping[TopicName, Sequence[TopicSnapshot]]:
        """Take snapshots of the topics at one instant; a partitioned topic gives one a part.

        `min_offset` waits until the topics have that offset. If it raises, nothing is pinned.
        """

    def lookup(
        self, topic: TopicName, keys: Sequence[tuple[Any, ...]], *, min_offset: Any = None
    ) -> Sequence[Mapping[str, Any] | None]:
        """Return the newest row of each key, with `_offset` and `_time`: the way of `get`.

        Asked for keyed topics only; each key of a partitioned one is looked for in its own part,
        all parts at one instant, and rows have `_part`, too. A key is the tuple of the values of the key
        columns: int, str, bytes, bool, Decimal, date, time or datetime (in UTC with a time zone
        where the column has one).
        """


LOG_SUFFIX: Final = "$log"
TIME_TYPE: Final = pa.timestamp("us", "UTC")
_ID_KEYS: Final = (b"frazil.id", b"PARQUET:field_id")

_SIMPLE: Final[dict[pa.DataType, str]] = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.large_string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.large_binary(): "BLOB",
    pa.date32(): "DATE",
    pa.time64("us"): "TIME",
    pa.time64("ns"): "TIME_NS",
    pa.timestamp("s"): "TIMESTAMP_S",
    pa.timestamp("ms"): "TIMESTAMP_MS",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("ns"): "TIMESTAMP_NS",
}


class ViewColumn(NamedTuple):
    """A column of a view. `field` is the topic's own, None for a column of the system."""

    name: str
    type: pa.DataType
    sql_type: str
    field: pa.Field | None = None


_OFFSET: Final = ViewColumn("_offset", pa.int64(), "BIGINT")
_TIME: Final = ViewColumn("_time", TIME_TYPE, "TIMESTAMP WITH TIME ZONE")
_PART: Final = ViewColumn("_part", pa.int32(), "INTEGER")
_OP: Final = ViewColumn("_op", pa.string(), "VARCHAR")


def view_columns(info: TopicInfo, *, log: bool) -> tuple[ViewColumn, ...]:
    """Return the columns of a topic's view, or of its log's, in order."""
    system = [_OFFSET, _TIME]
    if info.partitions:
        system.append(_PART)
    if log:
        system.append(_OP)
    own = (
        ViewColumn(field.name, field.type, duckdb_type(field.type), field) for field in info.schema
    )
    return (*system, *own)


def duckdb_type(data_type: pa.DataType) -> str:
    """Return the name of the type that DuckDB gives to values of an Arrow type."""
    simple = _SIMPLE.get(data_type)
    if simple is not None:
        return simple
    if pt.is_timestamp(data_type):
        return "TIMESTAMP WITH TIME ZONE"
    if pt.is_fixed_size_binary(data_type):
        return "BLOB"
    if pt.is_decimal(data_type):
        return f"DECIMAL({data_type.precision},{data_type.scale})"
    if pt.is_list(data_type) or pt.is_large_list(data_type):
        return f"{duckdb_type(data_type.value_type)}[]"
    if pt.is_fixed_size_list(data_type):
        return f"{duckdb_type(data_type.value_type)}[{data_type.list_size}]"
    if pt.is_map(data_type):
        return f"MAP({duckdb_type(data_type.key_type)}, {duckdb_type(data_type.item_type)})"
    if pt.is_struct(data_type):
        fields = (f"{quoted_name(field.name)} {duckdb_type(field.type)}" for field in data_type)
        return f"STRUCT({', '.join(fields)})"
    raise InvalidRequest("column has a type that SQL does not know", type=data_type)


def quoted_name(name: str) -> str:
    """Write `name` as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def column_id(field: pa.Field) -> bytes | None:
    """Return the id of a topic's column, None if the field carries none."""
    metadata = field.metadata
    if metadata:
        for key in _ID_KEYS:
            if key in metadata:
                number: bytes = metadata[key]
                return number
    return None
