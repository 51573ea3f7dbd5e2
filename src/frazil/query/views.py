"""The views of topics: the SQL names and types of their columns.

Every topic is a view of its state (a keyed topic's newest row per key, all records of another) and
`name$log` is a view of all its changes. System columns come first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.types as pt

from frazil.errors import InvalidRequest

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

TopicName = tuple[str, str]
"""A namespace and a name within it."""

Bounds = tuple[Any, Any]
"""The least and the greatest value of a column, None where it is not known.

Temporal values are storage integers in the unit of the column's type, as in a file's facts.
"""


class TopicInfo(NamedTuple):
    """A topic as SQL describes it: `partitions` is 0 unless it has parts.

    A statement can name a topic that is not `listed`, but the catalog does not show it.
    """

    schema: pa.Schema
    key_names: tuple[str, ...] = ()
    partitions: int = 0
    listed: bool = True


class ChunkView(NamedTuple):
    """The records of `batch` in memory, at consecutive offsets from `offset` on.

    `batch` has the topic's columns in the current schema or in an older version (then its fields
    have field ids); for a keyed topic `_op` and `_present` follow. `times` are runs of (records,
    microseconds). `live` marks the rows that are their key's state at the snapshot; None means all
    rows. `bounds` returns a column's least and greatest value by its name in `batch`, if they are
    cheap to compute. `part` is the index of the topic's part.
    """

    batch: pa.RecordBatch
    offset: int
    times: Sequence[tuple[int, int]]
    live: npt.NDArray[np.bool_] | None = None
    bounds: Callable[[str], Bounds | None] | None = None
    part: int | None = None


LOG_SUFFIX: Final = "$log"
TIME_TYPE: Final = pa.timestamp("us", "UTC")

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
    """A column of a view. `field` is the topic's field, None for a system column."""

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
    write = next((write for is_kind, write in _COMPOSED if is_kind(data_type)), None)
    if write is None:
        raise InvalidRequest("column has a type that SQL does not support", type=data_type)
    return write(data_type)


def _list_type(data_type: pa.DataType) -> str:
    return f"{duckdb_type(data_type.value_type)}[]"


def _array_type(data_type: pa.DataType) -> str:
    return f"{duckdb_type(data_type.value_type)}[{data_type.list_size}]"


def _struct_type(data_type: pa.DataType) -> str:
    fields = (f"{quoted_name(field.name)} {duckdb_type(field.type)}" for field in data_type)
    return f"STRUCT({', '.join(fields)})"


_COMPOSED: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], str]], ...]] = (
    (pt.is_timestamp, lambda _type: "TIMESTAMP WITH TIME ZONE"),
    (pt.is_fixed_size_binary, lambda _type: "BLOB"),
    (pt.is_decimal, lambda kind: f"DECIMAL({kind.precision},{kind.scale})"),
    (pt.is_list, _list_type),
    (pt.is_large_list, _list_type),
    (pt.is_fixed_size_list, _array_type),
    (pt.is_map, lambda m: f"MAP({duckdb_type(m.key_type)}, {duckdb_type(m.item_type)})"),
    (pt.is_struct, _struct_type),
)


def quoted_name(name: str) -> str:
    """Return `name` as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
