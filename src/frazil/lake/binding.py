"""Bind a topic to its table: create it with everything the protocol needs, or check it.

PyIceberg does this, without Spark, before the first plan. Binding is idempotent, also from two
programs at once or after a crash in the middle: existing parts are checked, missing parts are
created.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionSpec
from pyiceberg.partitioning import PartitionField as SpecField
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform, parse_transform

from frazil.errors import CommitUnknown, Conflict, InvalidRequest, NotFound, Unavailable
from frazil.lake.connection import calls, load
from frazil.lake.evolve import compare, match
from frazil.lake.table import (
    OFFSET_BEGIN,
    PROTOCOL,
    PROTOCOL_VERSION,
    SCHEMA_VERSION,
    TOPIC_ID,
    end_key,
)
from frazil.lake.types import (
    OFFSET,
    PART,
    TIME,
    check_lake_schema,
    iceberg_schema,
    partition_names,
    rejects_schema,
    topic_column_id,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata

    from frazil.clock import Clock
    from frazil.lake.connection import Loaded
    from frazil.lake.plan import TableName
    from frazil.lake.table import TableDefinition

__all__ = ["bind", "table_properties"]

FORMAT_VERSION: Final = 2


def bind(
    catalog: Catalog,
    definition: TableDefinition,
    *,
    clock: Clock,
    columns: Callable[[int], pa.Schema] | None = None,
) -> int:
    """Create or check the table of a topic and its side table; return the version of its columns.

    An existing table may have an earlier version of the topic's columns, which `columns` then
    returns; `evolve` updates the table. Changed properties stay as they are.

    Raises:
        InvalidRequest: a type, name or partition column that a table cannot have.
        Conflict: the table exists and belongs to another topic, or has other columns; with the fix.
        Unavailable: catalog or warehouse cannot be reached or written; with the setting.
    """
    check_lake_schema(definition.schema, definition.partition_by)
    table = definition.table
    with calls("create namespace", namespace=table.namespace):
        catalog.create_namespace_if_not_exists((table.namespace,))
    main = _made(catalog, table, lambda: _create_main(catalog, definition, clock))
    version = _check_columns(table, _checked(table, main, definition), definition, columns)
    # Only for a table that is this topic's: another's would get a side table of ours.
    side = _made(catalog, table.rejects, lambda: _create_rejects(catalog, definition, clock))
    side_metadata = _checked(table.rejects, side, definition)
    compare(table.rejects, side_metadata.schema(), rejects_schema(partitioned=definition.parts > 0))
    return version


def table_properties(definition: TableDefinition, *, side: bool = False) -> dict[str, str]:
    """Return the properties that a new table gets."""
    properties = {
        "format-version": str(FORMAT_VERSION),
        # Without it Iceberg stores no bounds after the hundredth column; this one may be later.
        f"write.metadata.metrics.column.{OFFSET}": "full",
        # Metadata stays small: the catalog removes old files of it with each commit.
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": "50",
        # The worker itself decides how many files a commit makes.
        "write.distribution-mode": "none",
        "write.target-file-size-bytes": str(definition.target_file_bytes),
        # Each try is checked against the newest state, so that trying on is safe.
        "commit.retry.num-retries": "10",
        "commit.retry.min-wait-ms": "50",
        "commit.retry.max-wait-ms": "2000",
        TOPIC_ID: definition.uid,
        PROTOCOL: PROTOCOL_VERSION,
        **{end_key(part): str(end) for part, end in definition.ends.items()},
        **{end_key(part, OFFSET_BEGIN): str(end) for part, end in definition.ends.items()},
    }
    if definition.partition_by and not side:
        # A partition value too long for a directory name would stop the topic permanently.
        properties["write.object-storage.enabled"] = "true"
        properties["write.object-storage.partitioned-paths"] = "false"
    if definition.parts:
        properties[f"write.metadata.metrics.column.{PART}"] = "full"
    if not side:
        properties[SCHEMA_VERSION] = str(definition.schema_version)
    return properties


def _made(catalog: Catalog, table: TableName, create: Callable[[], None]) -> Loaded:
    """Load a table, made first if there is none; another program may make it first."""
    with contextlib.suppress(NotFound):
        return load(catalog, table)
    unknown: CommitUnknown | None = None
    try:
        with calls("create table", writes=True, table=table):
            create()
    except TableAlreadyExistsError:
        pass
    except CommitUnknown as error:
        # It is there, or it is not: a table is made with all its properties or not at all.
        unknown = error
    try:
        return load(catalog, table)
    except NotFound:
        raise Unavailable(
            "table could not be made, check lake.warehouse", table=table, reason=unknown
        ) from unknown


def _create_main(catalog: Catalog, definition: TableDefinition, clock: Clock) -> None:
    schema = iceberg_schema(definition.schema, partitioned=definition.parts > 0)
    catalog.create_table(
        tuple(definition.table),
        schema=schema,
        location=_new_location(definition, clock),
        partition_spec=_partition_spec(definition, schema),
        sort_order=_sort_order(definition, schema),
        properties=table_properties(definition),
    )


def _create_rejects(catalog: Catalog, definition: TableDefinition, clock: Clock) -> None:
    catalog.create_table(
        tuple(definition.table.rejects),
        schema=rejects_schema(partitioned=definition.parts > 0),
        location=_new_location(definition, clock, suffix="-rejects"),
        properties=table_properties(definition, side=True),
    )


def _new_location(definition: TableDefinition, clock: Clock, *, suffix: str = "") -> str:
    """Return a new directory in the warehouse, without the topic's name."""
    name = f"{definition.uid}-{clock.random_bytes(2).hex()}{suffix}"
    return f"{definition.root.rstrip('/')}/{name}"


def _partition_spec(definition: TableDefinition, schema: Schema) -> PartitionSpec:
    """Return the table's partitions: the topic's.

    A topic's parts are not partitions: they would multiply the files of every commit. They would
    only save reading the offsets of files with several parts, which happens only if all of Frazil's
    watermarks are lost.
    """
    names = partition_names(definition.schema, definition.partition_by)
    columns = {topic_column_id(each): each.name for each in definition.schema}
    return PartitionSpec(
        *(
            SpecField(
                source_id=schema.find_field(columns[each.column_id]).field_id,
                field_id=PARTITION_FIELD_ID_START + number,
                transform=parse_transform(each.transform),
                name=name,
            )
            for number, (each, name) in enumerate(zip(definition.partition_by, names, strict=True))
        )
    )


def _sort_order(definition: TableDefinition, schema: Schema) -> SortOrder:
    """Return the order that rows have within a file; without one, that of the offsets."""
    if not definition.sort_by:
        return UNSORTED_SORT_ORDER
    fields: list[SortField] = []
    for name in definition.sort_by:
        if name not in definition.schema.names and name not in {OFFSET, TIME}:
            raise InvalidRequest(
                "sort column does not exist, let sort_by name one that does",
                column=name,
                columns=",".join(definition.schema.names),
            )
        found = schema.find_field(name)
        fields.append(SortField(source_id=found.field_id, transform=IdentityTransform()))
    return SortOrder(*fields, order_id=1)


def _checked(table: TableName, loaded: Loaded, definition: TableDefinition) -> TableMetadata:
    """Return a table's metadata if it belongs to this topic and has a known format."""
    metadata = TableMetadataUtil.parse_raw(loaded.metadata.decode())
    owner = metadata.properties.get(TOPIC_ID)
    if owner is None:
        raise Conflict(
            "table exists and was not made by frazil: rename it, or give the topic another name",
            table=table,
            topic=definition.topic,
        )
    if owner != definition.uid:
        adopt = "or take it over with frazil lake adopt"
        advice = adopt if table == definition.table else "then frazil lake resume"
        raise Conflict(
            "table belongs to another topic, perhaps an earlier one of that name: rename or drop it, "
            f"{advice}",
            table=table,
            topic=definition.topic,
            topic_id=definition.uid,
            found=owner,
        )
    protocol = metadata.properties.get(PROTOCOL)
    if protocol != PROTOCOL_VERSION:
        raise Conflict(
            "table was written by another version of frazil, use that one",
            table=table,
            protocol=protocol,
            known=PROTOCOL_VERSION,
        )
    if metadata.format_version != FORMAT_VERSION:
        raise Conflict(
            "table has another format version than topics with a lake use: recreate it or give the "
            "topic another name",
            table=table,
            format_version=metadata.format_version,
            expected=FORMAT_VERSION,
        )
    return metadata


def _check_columns(
    table: TableName,
    metadata: TableMetadata,
    definition: TableDefinition,
    columns: Callable[[int], pa.Schema] | None,
) -> int:
    """Compare a table's columns with the topic's at the version that the table has; return it."""
    text = metadata.properties.get(SCHEMA_VERSION, "")
    if not text.isdecimal():
        raise Conflict(
            "table has no property with the version of its columns, set it",
            table=table,
            property=SCHEMA_VERSION,
            found=text,
        )
    version = int(text)
    if version == definition.schema_version:
        schema = definition.schema
    elif columns is None or version > definition.schema_version:
        raise Conflict(
            "table has other columns than the topic: an older copy of the topic, or another's table",
            table=table,
            schema_version=version,
            expected=definition.schema_version,
        )
    else:
        schema = columns(version)
    match(table, metadata.schema(), schema, partitioned=definition.parts > 0)
    return version
