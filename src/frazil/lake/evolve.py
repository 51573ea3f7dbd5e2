"""Bring a table's columns to the topic's next version: one catalog commit for each version.

The topic's column ids identify the columns, so a rename stays a rename, and a new column under an
old name does not get the old one's values. Iceberg's field ids stay.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from pyiceberg.schema import Schema
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssertCurrentSchemaId,
    AssertLastAssignedFieldId,
    AssertTableUUID,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
)
from pyiceberg.types import (
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StructType,
)

from frazil.errors import CommitUnknown, Conflict, InvalidRequest, Unavailable
from frazil.lake.connection import calls
from frazil.lake.table import SCHEMA_VERSION, TOPIC_ID, fold_name
from frazil.lake.types import iceberg_schema, iceberg_type, topic_column_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.update import TableRequirement, TableUpdate
    from pyiceberg.types import IcebergType

    from frazil.lake.plan import TableName

__all__ = ["compare", "evolve", "match", "next_schema"]

ATTEMPTS_MAX: Final = 5
_PROMOTIONS: Final[frozenset[tuple[type[IcebergType], type[IcebergType]]]] = frozenset(
    {(IntegerType, LongType), (FloatType, DoubleType)}
)

_CHILDREN: Final[dict[type[IcebergType], tuple[str, ...]]] = {
    ListType: ("element",),
    MapType: ("key", "value"),
}


def evolve(
    catalog: Catalog,
    table: TableName,
    *,
    topic_id: str,
    wanted: int,
    columns: Callable[[int], pa.Schema],
    partitioned: bool,
) -> int:
    """Bring a table to version `wanted` of its topic, one commit a version; return the version.

    `columns` returns the topic's columns at a version. A table with this version or a later one is
    not changed. This may run on two machines at once: each version is committed once.

    Raises:
        Conflict: the table belongs to another topic, or another program changed its columns. The
            failed step changed nothing.
        NotFound: there is no such table.
        Unavailable: the catalog cannot be reached, or others keep changing the table.
    """
    failures, reached = 0, -1
    while True:
        with calls("load table", table=table):
            loaded = catalog.load_table(tuple(table))
        version = _version(table, loaded, topic_id)
        if version >= wanted:
            return version
        if version > reached:
            failures, reached = 0, version
        updates, requirements = _step(
            table,
            loaded,
            columns(version),
            columns(version + 1),
            version=version + 1,
            partitioned=partitioned,
        )
        try:
            with calls("change columns", writes=True, table=table):
                catalog.commit_table(loaded, requirements, updates)
        except (Conflict, CommitUnknown) as error:
            # The table decides: it is loaded again, and the step made only if it is missing.
            failures += 1
            if failures >= ATTEMPTS_MAX:
                raise Unavailable(
                    "others keep changing the table", table=table, attempts=failures
                ) from error


def _version(table: TableName, loaded: Table, topic_id: str) -> int:
    properties = loaded.metadata.properties
    if properties.get(TOPIC_ID) != topic_id:
        raise Conflict(
            "table belongs to another topic",
            table=table,
            topic_id=properties.get(TOPIC_ID),
            expected=topic_id,
        )
    try:
        return int(properties[SCHEMA_VERSION])
    except (KeyError, ValueError) as error:
        raise Conflict(
            "table has no property with the version of its columns, set it",
            table=table,
            property=SCHEMA_VERSION,
        ) from error


def _step(
    table: TableName,
    loaded: Table,
    before: pa.Schema,
    after: pa.Schema,
    *,
    version: int,
    partitioned: bool,
) -> tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...]]:
    """Return the one commit that leads to `version`."""
    metadata = loaded.metadata
    found = loaded.schema()
    match(table, found, before, partitioned=partitioned)
    changed = next_schema(table, found, before, after, last_id=metadata.last_column_id)
    _check_partition_names(table, loaded, found, changed)
    updates: list[TableUpdate] = []
    if changed.as_struct() != found.as_struct():
        updates += [AddSchemaUpdate(schema=changed), SetCurrentSchemaUpdate()]
    updates.append(SetPropertiesUpdate(updates={SCHEMA_VERSION: str(version)}))
    requirements: tuple[TableRequirement, ...] = (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
        AssertLastAssignedFieldId.model_validate(
            {"last-assigned-field-id": metadata.last_column_id}
        ),
    )
    return tuple(updates), requirements


def next_schema(
    table: TableName, found: Schema, before: pa.Schema, after: pa.Schema, *, last_id: int
) -> Schema:
    """Return a table's columns after a change of its topic's from `before` to `after`.

    Columns that the topic does not know stay as they are. New ones get ids above `last_id`.

    Raises:
        Conflict: another program added a column of a name that the topic uses now.
        InvalidRequest: a topic cannot make this change.
    """
    ids = itertools.count(last_id + 1)
    fields = _Change(table, ids).fields(found.fields, list(before), list(after), path="")
    return Schema(*fields, identifier_field_ids=found.identifier_field_ids)


class _Change:
    """Walks a table's type, the topic's at one version and at the next, side by side."""

    def __init__(self, table: TableName, ids: Iterator[int]) -> None:
        self._table = table
        self._ids = ids

    def fields(
        self,
        found: Sequence[NestedField],
        before: Sequence[pa.Field],
        after: Sequence[pa.Field],
        *,
        path: str,
    ) -> list[NestedField]:
        """Return the fields of a struct after the change: those there in their order, then new."""
        known = {each.name: each for each in before}
        wanted = {topic_column_id(each): each for each in after}
        result: list[NestedField] = []
        for each in found:
            own = known.get(each.name)
            if own is None:
                result.append(each)
                continue
            target = wanted.pop(topic_column_id(own), None)
            if target is not None:
                kind = self._type(each.field_type, own.type, target.type, path + own.name)
                result.append(_with(each, name=target.name, field_type=kind))
        result += [self._added(each, path) for each in wanted.values()]
        self._check_names(result, path)
        return result

    def _type(
        self, found: IcebergType, before: pa.DataType, after: pa.DataType, path: str
    ) -> IcebergType:
        if isinstance(found, StructType):
            return StructType(
                *self.fields(found.fields, list(before), list(after), path=f"{path}.")
            )
        if isinstance(found, ListType):
            element = self._type(
                found.element_type, before.value_type, after.value_type, f"{path}.element"
            )
            return found.model_copy(update={"element_type": element})
        if isinstance(found, MapType):
            key = self._type(found.key_type, before.key_type, after.key_type, f"{path}.key")
            value = self._type(found.value_type, before.item_type, after.item_type, f"{path}.value")
            return found.model_copy(update={"key_type": key, "value_type": value})
        wanted = iceberg_type(after)
        if found != wanted and (type(found), type(wanted)) not in _PROMOTIONS:
            raise InvalidRequest(
                "column of a table cannot get this type",
                table=self._table,
                column=path,
                type=found,
                wanted=wanted,
            )
        return wanted

    def _added(self, column: pa.Field, path: str) -> NestedField:
        if not column.nullable:
            raise InvalidRequest(
                "added column must be nullable", table=self._table, column=path + column.name
            )
        field_id = next(self._ids)
        kind = _renumbered(iceberg_type(column.type), self._ids)
        return NestedField(field_id, column.name, kind, required=False)

    def _check_names(self, fields: Sequence[NestedField], path: str) -> None:
        seen: dict[str, str] = {}
        for each in fields:
            other = seen.setdefault(fold_name(each.name), each.name)
            if other is not each.name:
                raise Conflict(
                    "another program added a column to the table whose name the topic uses now: rename "
                    "theirs, then frazil lake resume",
                    table=self._table,
                    column=path + each.name,
                    other=path + other,
                )


def _with(field: NestedField, *, name: str, field_type: IcebergType) -> NestedField:
    return field.model_copy(update={"name": name, "field_type": field_type})


def _renumbered(kind: IcebergType, ids: Iterator[int]) -> IcebergType:
    """Return a new type with ids that no column of the table ever had."""
    if isinstance(kind, StructType):
        fields = [each.model_copy(update={"field_id": next(ids)}) for each in kind.fields]
        return StructType(
            *(
                _with(each, name=each.name, field_type=_renumbered(each.field_type, ids))
                for each in fields
            )
        )
    if isinstance(kind, ListType):
        return ListType(
            next(ids), _renumbered(kind.element_type, ids), element_required=kind.element_required
        )
    if isinstance(kind, MapType):
        return MapType(
            next(ids),
            _renumbered(kind.key_type, ids),
            next(ids),
            _renumbered(kind.value_type, ids),
            value_required=kind.value_required,
        )
    return kind


def _check_partition_names(table: TableName, loaded: Table, found: Schema, new: Schema) -> None:
    """Refuse a new column of a partition's name: Spark could not open the table any more."""
    names = {each.name for spec in loaded.metadata.partition_specs for each in spec.fields}
    there = {each.name for each in found.fields}
    for each in new.fields:
        if each.name in names and each.name not in there:
            raise Conflict(
                "column has the name of a partition of the table, rename it",
                table=table,
                column=each.name,
            )


def match(table: TableName, found: Schema, topic: pa.Schema, *, partitioned: bool) -> None:
    """Compare a table's columns with a topic's; other programs may have added nullable ones.

    Raises:
        Conflict: a column is missing, of another type, or required.
    """
    compare(table, found, iceberg_schema(topic, partitioned=partitioned))


def compare(table: TableName, found: Schema, wanted: Schema) -> None:
    """Compare a table's columns with those it should have, as `match` does."""
    _compare(table, found.as_struct(), wanted.as_struct(), path="")


def _compare(table: TableName, found: IcebergType, wanted: IcebergType, *, path: str) -> None:
    if isinstance(found, StructType) and isinstance(wanted, StructType):
        _compare_fields(table, found, wanted, path=f"{path}." if path else "")
    elif type(found) in _CHILDREN and type(found) is type(wanted):
        for name in _CHILDREN[type(found)]:
            theirs, own = (getattr(each, f"{name}_field") for each in (found, wanted))
            _compare_field(table, theirs, own, path=f"{path}.{name}")
    elif found != wanted:
        raise _other_type(table, path, wanted, found)


def _compare_field(table: TableName, found: NestedField, wanted: NestedField, *, path: str) -> None:
    if found.required and not wanted.required:
        raise _other_type(table, path, "nullable", "required")
    _compare(table, found.field_type, wanted.field_type, path=path)


def _compare_fields(table: TableName, found: StructType, wanted: StructType, *, path: str) -> None:
    """Compare the fields of two structs by name."""
    fields = {each.name: each for each in found.fields}
    for each in wanted.fields:
        theirs = fields.pop(each.name, None)
        if theirs is None:
            raise Conflict(
                "column of the topic is not in the table, another program dropped or renamed it: "
                "undo that, then frazil lake resume",
                table=table,
                column=f"{path}{each.name}",
            )
        _compare_field(table, theirs, each, path=f"{path}{each.name}")
    for name, theirs in fields.items():
        if theirs.required:
            raise Conflict(
                "column that another program added to the table cannot be empty: make it nullable "
                "or drop it, then frazil lake resume",
                table=table,
                column=f"{path}{name}",
            )


def _other_type(table: TableName, path: str, wanted: object, found: object) -> Conflict:
    return Conflict(
        "column of the table has another type than the topic's: undo that, then frazil lake resume",
        table=table,
        column=path,
        expected=wanted,
        found=found,
    )
