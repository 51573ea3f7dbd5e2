"""Names and values of tables: properties, watermarks, a table's definition and its state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa
from attrs import field, frozen

from frazil.errors import InvalidRequest
from frazil.lake.plan import TableName
from frazil.model import WHOLE, PartitionField, full_topic_name

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "OFFSET_BEGIN",
    "OFFSET_END",
    "PROTOCOL_VERSION",
    "REJECTS_WINDOW",
    "ROWS_DROPPED",
    "ROWS_IN",
    "ROWS_OUT",
    "ROWS_REJECTED",
    "SCHEMA_VERSION",
    "TOPIC_ID",
    "Ends",
    "RejectRatio",
    "Rows",
    "TableDefinition",
    "TableState",
    "check_lake_name",
    "end_key",
    "ends_of",
    "fold_name",
    "table_of",
]

TOPIC_ID: Final = "frazil.topic-id"
OFFSET_END: Final = "frazil.offset-end"
OFFSET_BEGIN: Final = "frazil.offset-begin"
"""The first offset of a table created after older records were released; it never changes."""
ROWS_IN: Final = "frazil.rows-in"
ROWS_OUT: Final = "frazil.rows-out"
ROWS_REJECTED: Final = "frazil.rows-rejected"
ROWS_DROPPED: Final = "frazil.rows-dropped"
PROTOCOL: Final = "frazil.protocol-version"
PROTOCOL_VERSION: Final = "1"
SCHEMA_VERSION: Final = "frazil.schema-version"

REJECTS_WINDOW: Final = 10_000
"""The reject ratio is of a batch, and of about so many records up to and with it."""
REJECTS_MIN: Final = 100
REJECTS_ONE_OF: Final = 100

TARGET_FILE_BYTES: Final = 128 << 20

Ends: TypeAlias = dict[int, int]
"""The offset after the last committed one, by part; the part of a whole topic is -1."""
Rows: TypeAlias = object
"""Rows to write: a DataFrame for Spark; only the stages and the writer use its content."""


def end_key(part: int, key: str = OFFSET_END) -> str:
    """Return the key of a part's watermark in summaries and properties."""
    return key if part < 0 else f"{key}.{part}"


def ends_of(properties: Mapping[str, str], of: str = OFFSET_END) -> Ends:
    """Return the watermarks that a summary or a table's properties have, or its begins."""
    ends: Ends = {}
    for key, value in properties.items():
        if key == of:
            ends[-1] = int(value)
        elif key.startswith(f"{of}."):
            ends[int(key.removeprefix(f"{of}."))] = int(value)
    return ends


@frozen(kw_only=True)
class TableDefinition:
    """The specification of a new table.

    `schema` has the topic's columns at `schema_version`, the version of the first records of a new
    table, with their ids. `parts` is the number of parts of a partitioned topic, 0 for other
    topics. `begin` is the first offset of the binding; the table gets nothing below it. `sort_by`
    are the columns by which a rewrite of the table sorts. `root` is the warehouse; each table has
    its own directory in it.
    """

    topic: str
    uid: str
    schema: pa.Schema
    schema_version: int
    root: str = ""
    partition_by: tuple[PartitionField, ...] = ()
    parts: int = 0
    sort_by: tuple[str, ...] = ()
    begin: Ends = field(factory=dict)
    target_file_bytes: int = TARGET_FILE_BYTES

    @property
    def table(self) -> TableName:
        """Return the table's name."""
        return table_of(self.topic)

    @property
    def ends(self) -> Ends:
        """Return where each part begins."""
        parts = range(self.parts) if self.parts else (WHOLE,)
        return {part: self.begin.get(part, 0) for part in parts}


class RejectRatio(NamedTuple):
    """The number of records, and of those that the table rejected."""

    records: int = 0
    rejects: int = 0

    @property
    def too_many(self) -> bool:
        """Return whether the ratio of rejects stops a table."""
        return self.rejects >= REJECTS_MIN and self.rejects * REJECTS_ONE_OF > self.records


class TableState(msgspec.Struct, frozen=True, kw_only=True):
    """A table's state by one version of its metadata.

    `summary_ends` are, by part, the highest in the summaries along the ancestors of `main`, None if
    none is left that has any. (The newest is not enough: a snapshot without rows does not conflict
    with a zombie's, so the newest may have a lower end than an older one.) In that case
    `bound_ends` are the highest `_offset` in the live files plus one, by part (from the files'
    metadata, by scan where a file has no bound; empty for a table without rows).
    """

    sid: int | None
    """The current snapshot of `main`; None for a table without one."""
    topic_id: str | None
    schema_version: int | None
    summary_ends: Ends | None
    property_ends: Ends
    begin_ends: Ends = {}
    """The table's first offsets, by part; empty if its properties have none."""
    bound_ends: Ends = {}
    strays: dict[int, tuple[int, int]] = {}
    """By part, the offsets that commits for another topic took since the table is `topic_id`'s."""
    recent: RejectRatio = RejectRatio()
    """The rejects among the last 10,000 records, in whole commits."""
    commits_since_property: int = 0
    """Snapshots along `main` since the one at which the property's watermark was true."""
    snapshots: int = 0
    metadata_bytes: int = 0


SIDE_SUFFIXES: Final = ("__log", "__rejects")
RESERVED_NAMESPACES: Final = frozenset({"information_schema", "pg_catalog"})
"""Schemas that SQL engines have in every catalog."""


def table_of(topic: str) -> TableName:
    """Return the table of a topic."""
    _, namespace, name = full_topic_name(topic).split("/")
    return TableName(namespace, name)


def check_lake_name(topic: str, others: Iterable[str] = ()) -> None:
    """Refuse a topic whose table name collides with another's; `others` already have a lake.

    Raises:
        InvalidRequest: with the colliding name.
    """
    table = table_of(topic)
    name, namespace = fold_name(table.name), fold_name(table.namespace)
    suffix = next((each for each in SIDE_SUFFIXES if name.endswith(each)), None)
    if suffix is not None:
        raise InvalidRequest(
            "topic with a lake cannot have the name of a side table, choose another",
            topic=topic,
            suffix=suffix,
        )
    if namespace in RESERVED_NAMESPACES:
        raise InvalidRequest(
            "namespace is reserved by SQL engines, choose another for a topic with a lake",
            topic=topic,
            namespace=table.namespace,
        )
    for other in others:
        theirs = table_of(other)
        if theirs == table or fold_name(theirs.namespace) != namespace:
            continue
        if theirs.namespace != table.namespace:
            raise InvalidRequest(
                "namespace differs from that of another topic with a lake in case only",
                topic=topic,
                other=other,
            )
        if fold_name(theirs.name) == name:
            raise InvalidRequest(
                "topic differs from another one with a lake in case only, choose another name",
                topic=topic,
                other=other,
            )


def fold_name(name: str) -> str:
    """Return a key that is equal for names that Spark, Java or DuckDB treat as equal.

    In addition to Unicode's case folding, Java compares single characters, so that both Turkish
    letters, i without its dot and I with one, are an `i`.
    """
    return name.upper().casefold().replace("i\u0307", "i")
