"""Arrow types as Iceberg types: only those that Arrow, Iceberg and Spark all have exactly.

`docs/types.md` has the table; each line is tested with Spark, PyIceberg and DuckDB. The check of a
topic's columns needs none of them, so it also works without the lake's packages.
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.types as pt

from frazil.errors import InvalidRequest
from frazil.lake.table import fold_name
from frazil.schema import RESERVED_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType

    from frazil.model import PartitionField

__all__ = [
    "OFFSET",
    "PART",
    "TIME",
    "check_lake_schema",
    "iceberg_schema",
    "iceberg_type",
    "inner_fields",
    "partition_names",
    "rejects_schema",
    "topic_column_id",
]

OFFSET: Final = "_offset"
TIME: Final = "_time"
PART: Final = "_part"
RESERVED_NAMES: Final = frozenset(
    {
        "_commit_snapshot_id",
        "_deleted",
        "_file",
        "_last_updated_sequence_number",
        "_metadata",
        "_offset",
        "_op",
        "_part",
        "_partition",
        "_pos",
        "_present",
        "_row_id",
        "_spec_id",
        "_time",
    }
)
"""Columns that Frazil adds, and those that Iceberg and Spark add to a table's own."""
_ID_KEY: Final = b"frazil.id"

_SCALARS: Final[dict[pa.DataType, str]] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.uint8(): "int",
    pa.uint16(): "int",
    pa.uint32(): "long",
    pa.int64(): "long",
    pa.uint64(): "decimal(20, 0)",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.date32(): "date",
}
_INSTEAD: Final[tuple[tuple[Callable[[pa.DataType], bool], str], ...]] = (
    (pt.is_timestamp, "timestamp or timestamptz, which count microseconds"),
    (pt.is_time, "long with the microseconds of the day, or string"),
    (pt.is_float16, "float"),
    (pt.is_date64, "date"),
    (pt.is_duration, "long with a unit in the name"),
    (pt.is_interval, "long with a unit in the name"),
    (pt.is_decimal, "decimal with 1 to 38 digits and 0 <= scale <= precision"),
    (pt.is_dictionary, "the type of the dictionary's values"),
    (pt.is_union, "a struct with one nullable field for each kind"),
    (pt.is_null, "the type that the values will have"),
    (pt.is_fixed_size_list, "list"),
    (pt.is_large_list, "list"),
    (pt.is_string_view, "string"),
    (pt.is_binary_view, "bytes"),
)
_PARTITION_SUFFIX: Final = {
    "bucket": "_bucket",
    "day": "_day",
    "hour": "_hour",
    "identity": "",
    "month": "_month",
    "truncate": "_trunc",
    "year": "_year",
}


def iceberg_type(data_type: pa.DataType) -> IcebergType:
    """Return the Iceberg type for every value of an Arrow type; nested ids count from 1.

    Raises:
        InvalidRequest: if there is none that Spark has too; the details name a replacement.
    """
    from pyiceberg.types import NestedField

    described = _type_json(data_type, itertools.count(1), path="")
    field = {"id": 0, "name": "column", "required": False, "type": described}
    return NestedField.model_validate(field).field_type


def iceberg_schema(schema: pa.Schema, *, partitioned: bool) -> Schema:
    """Return the columns of a topic's table: the system's first, then the topic's by name."""
    return _schema_of([*_system_fields(partitioned=partitioned), *schema])


def rejects_schema(*, partitioned: bool) -> Schema:
    """Return the columns of the side table of records that could not be converted.

    `original` is the whole record in the form that `encoding` names, so that it can be published
    again; `field` is the column that failed, where it is one.
    """
    return _schema_of(
        [
            *_system_fields(partitioned=partitioned),
            pa.field("stage", pa.string(), nullable=False),
            pa.field("reason", pa.string(), nullable=False),
            pa.field("field", pa.string()),
            pa.field("schema_version", pa.int32(), nullable=False),
            pa.field("encoding", pa.string(), nullable=False),
            pa.field("original", pa.binary(), nullable=False),
        ]
    )


def check_lake_schema(
    schema: pa.Schema,
    partition_by: Sequence[PartitionField] = (),
    *,
    former: Sequence[pa.Schema] = (),
) -> None:
    """Refuse columns, types or partitions that an Iceberg table for Spark cannot have.

    `former` are the topic's earlier columns: a partition keeps the name of its source column from
    before a rename.

    Raises:
        InvalidRequest: with the column and a replacement.
    """
    for field in schema:
        lowered = field.name.lower()
        if lowered in RESERVED_NAMES or lowered.startswith(RESERVED_PREFIX):
            raise InvalidRequest(
                "column name is reserved in a topic with a lake, choose another", column=field.name
            )
        _type_json(field.type, itertools.count(1), path=field.name)
    _check_names(list(schema), path="")
    _check_paths(schema)
    for each in (schema, *former):
        _check_partition_names(schema, each, partition_by)
    _check_transforms(schema, partition_by)


def partition_names(schema: pa.Schema, partition_by: Sequence[PartitionField]) -> list[str]:
    """Return the name of each partition field as Iceberg's writers call it: `ts_day`.

    Raises:
        InvalidRequest: if a column of the spec does not exist, or Iceberg lacks the transform.
    """
    columns = {topic_column_id(field): field.name for field in schema}
    names: list[str] = []
    for field in partition_by:
        name = columns.get(field.column_id)
        if name is None:
            raise InvalidRequest(
                "partition column does not exist, let partition_by name one that does",
                column_id=field.column_id,
                columns=",".join(schema.names),
            )
        suffix = _PARTITION_SUFFIX.get(field.transform.partition("[")[0])
        if suffix is None:
            raise InvalidRequest(
                "partition transform is not known to Iceberg",
                column=name,
                transform=field.transform,
                transforms=",".join(_PARTITION_SUFFIX),
            )
        names.append(name + suffix)
    return names


def topic_column_id(field: pa.Field) -> int:
    """Return the id of a topic's column, which renames do not change; -1 if it has none."""
    return int((field.metadata or {}).get(_ID_KEY, b"-1"))


def _system_fields(*, partitioned: bool) -> list[pa.Field]:
    fields = [
        pa.field(OFFSET, pa.int64(), nullable=False),
        pa.field(TIME, pa.timestamp("us", "UTC"), nullable=False),
    ]
    return [*fields, pa.field(PART, pa.int32(), nullable=False)] if partitioned else fields


def _schema_of(fields: Sequence[pa.Field]) -> Schema:
    from pyiceberg.schema import Schema, assign_fresh_schema_ids

    ids = itertools.count(1)
    described = [_field_json(field, ids, path=field.name) for field in fields]
    # Numbered as every catalog numbers a new table's columns, so that the ids are the table's.
    return assign_fresh_schema_ids(Schema.model_validate({"type": "struct", "fields": described}))


def _field_json(field: pa.Field, ids: Iterator[int], *, path: str) -> dict[str, Any]:
    return {
        "id": next(ids),
        "name": field.name,
        "required": not field.nullable,
        "type": _type_json(field.type, ids, path=path),
    }


def _type_json(data_type: pa.DataType, ids: Iterator[int], *, path: str) -> str | dict[str, Any]:
    """Return a type as Iceberg's metadata has it."""
    if pt.is_struct(data_type) and data_type.num_fields:
        fields = list(data_type)
        _check_names(fields, path=f"{path}.")
        return {
            "type": "struct",
            "fields": [_field_json(field, ids, path=f"{path}.{field.name}") for field in fields],
        }
    if pt.is_list(data_type):
        return {
            "type": "list",
            "element-id": next(ids),
            "element": _type_json(data_type.value_type, ids, path=f"{path}.element"),
            "element-required": not data_type.value_field.nullable,
        }
    if pt.is_map(data_type):
        return {
            "type": "map",
            "key-id": next(ids),
            "key": _type_json(data_type.key_type, ids, path=f"{path}.key"),
            "value-id": next(ids),
            "value": _type_json(data_type.item_type, ids, path=f"{path}.value"),
            "value-required": not data_type.item_field.nullable,
        }
    text = _scalar_text(data_type)
    if text is None:
        raise InvalidRequest(
            "column type is not supported in a topic with a lake",
            column=path,
            type=data_type,
            instead=_instead_of(data_type),
        )
    return text


def _scalar_text(data_type: pa.DataType) -> str | None:
    if pt.is_timestamp(data_type) and data_type.unit != "ns":
        return "timestamp" if data_type.tz is None else "timestamptz"
    if pt.is_decimal128(data_type) and 0 <= data_type.scale <= data_type.precision:
        return f"decimal({data_type.precision}, {data_type.scale})"
    if pt.is_fixed_size_binary(data_type) and data_type.byte_width > 0:
        return f"fixed[{data_type.byte_width}]"
    return _SCALARS.get(data_type)


def _instead_of(data_type: pa.DataType) -> str:
    if isinstance(data_type, pa.BaseExtensionType):
        return f"its storage type, {data_type.storage_type}"
    return next((text for test, text in _INSTEAD if test(data_type)), "another type")


def _check_names(fields: Sequence[pa.Field], *, path: str) -> None:
    """Refuse sibling fields whose names are equal to Spark or to the files' writer."""
    seen: dict[str, str] = {}
    for field in fields:
        for form in {fold_name(field.name), fold_name(_stored_name(field.name))}:
            other = seen.setdefault(form, field.name)
            if other != field.name:
                raise InvalidRequest(
                    "two columns have names that Spark cannot distinguish, rename one",
                    column=f"{path}{field.name}",
                    other=f"{path}{other}",
                )


def _stored_name(name: str) -> str:
    """Return Iceberg's name of a column in Parquet files."""
    first = f"_{name[0]}" if name[0].isdigit() else _stored_character(name[0])
    return first + "".join(_stored_character(character) for character in name[1:])


def _stored_character(character: str) -> str:
    return character if character == "_" or character.isalnum() else f"_x{ord(character):X}"


def _check_paths(schema: pa.Schema) -> None:
    """Refuse a column `a.b` next to a field `b` of a struct `a`: Iceberg names are such paths."""
    seen: set[str] = set()
    for field in schema:
        for path in _paths(field, field.name):
            if path in seen:
                raise InvalidRequest(
                    "two columns have one path, rename the one with a dot in its name", column=path
                )
            seen.add(path)


def _paths(field: pa.Field, path: str) -> Iterator[str]:
    yield path
    for name, child in inner_fields(field.type):
        yield from _paths(child, f"{path}.{name}")


@functools.singledispatch
def inner_fields(data_type: pa.DataType) -> list[tuple[str, pa.Field]]:
    """Return the fields inside of a type with their names in paths; none of a scalar."""
    del data_type
    return []


@inner_fields.register(pa.StructType)
def _(data_type: Any) -> list[tuple[str, pa.Field]]:
    return [(field.name, field) for field in data_type]


@inner_fields.register(pa.ListType)
def _(data_type: Any) -> list[tuple[str, pa.Field]]:
    return [("element", data_type.value_field)]


@inner_fields.register(pa.MapType)
def _(data_type: Any) -> list[tuple[str, pa.Field]]:
    return [("key", data_type.key_field), ("value", data_type.item_field)]


def _check_partition_names(
    schema: pa.Schema, named: pa.Schema, partition_by: Sequence[PartitionField]
) -> None:
    names = partition_names(named, partition_by)
    columns = {fold_name(field.name): topic_column_id(field) for field in schema}
    for field, name in zip(partition_by, names, strict=True):
        other = columns.get(fold_name(name))
        if other is not None and (field.transform != "identity" or other != field.column_id):
            raise InvalidRequest(
                "column has the name of a partition of the table, choose another",
                column=name,
                transform=field.transform,
            )
        if names.count(name) > 1:
            raise InvalidRequest("two partitions of the table get one name", name=name)


def _check_transforms(schema: pa.Schema, partition_by: Sequence[PartitionField]) -> None:
    """Refuse the two transforms that the specification has and its readers or writers have not."""
    types = {topic_column_id(field): field for field in schema}
    for each in partition_by:
        field = types[each.column_id]
        if each.transform == "identity" and pt.is_fixed_size_binary(field.type):
            # PyIceberg fails on such a table and DuckDB finds no rows in it.
            instead = "bucket[n], or bytes as the column's type"
        elif each.transform.startswith("truncate") and pt.is_decimal(field.type):
            # Spark fails on the lowest values: truncated, they have one digit too many.
            instead = "bucket[n] or identity"
        else:
            continue
        raise InvalidRequest(
            "partition transform of this type is not supported in a topic with a lake",
            column=field.name,
            transform=each.transform,
            type=field.type,
            instead=instead,
        )
