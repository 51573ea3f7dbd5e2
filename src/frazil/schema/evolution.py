"""Schema changes of a live topic, and the reading of old batches under a newer schema.

Columns are matched by id, never by name: a renamed column keeps its values, and a column added
under a dropped one's name does not inherit them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.types as pt
from attrs import frozen

from frazil.errors import InvalidRequest
from frazil.schema.columns import (
    LIMITS_DEFAULT,
    IngestLimits,
    check_schema,
    column_id,
    column_of,
    field_with_ids,
    last_id,
    normal_name,
    parse_type,
    schema_with,
    type_name,
)

__all__ = [
    "AddColumn",
    "Change",
    "DropColumn",
    "RenameColumn",
    "WidenColumn",
    "evolve",
    "plan_read",
]


@frozen
class AddColumn:
    """Add a column that is null in every record published before."""

    name: str
    type: str | pa.DataType


@frozen
class WidenColumn:
    """Give a column a wider type of the same kind: int to long, float to double."""

    name: str
    type: str | pa.DataType


@frozen
class DropColumn:
    """Drop a column from now on; its id is never reused."""

    name: str


@frozen
class RenameColumn:
    """Rename a column; its id and values stay."""

    name: str
    new_name: str


Change = AddColumn | WidenColumn | DropColumn | RenameColumn
Reader = Callable[[pa.RecordBatch], pa.RecordBatch]
_Convert = Callable[[pa.Array], pa.Array]
_Step = tuple[int, pa.DataType, _Convert | None]

_WIDER: Final[dict[pa.DataType, frozenset[pa.DataType]]] = {
    pa.int8(): frozenset({pa.int16(), pa.int32(), pa.int64()}),
    pa.int16(): frozenset({pa.int32(), pa.int64()}),
    pa.int32(): frozenset({pa.int64()}),
    pa.uint8(): frozenset({pa.uint16(), pa.uint32(), pa.int16(), pa.int32(), pa.int64()}),
    pa.uint16(): frozenset({pa.uint32(), pa.int32(), pa.int64()}),
    pa.uint32(): frozenset({pa.int64()}),
    pa.float32(): frozenset({pa.float64()}),
}


def evolve(
    schema: pa.Schema,
    changes: Sequence[Change],
    *,
    limits: IngestLimits = LIMITS_DEFAULT,
    fixed_ids: Collection[int] = (),
) -> pa.Schema:
    """Return `schema` after `changes`, in order; all of them are legal or none is applied.

    `fixed_ids` are the ids of key and partition columns, which cannot be dropped or retyped.

    Raises:
        InvalidRequest: for any change other than these four, with the reason.
    """
    fields = list(schema)
    last = last_id(schema)
    for change in changes:
        match change:
            case AddColumn():
                added, next_id = field_with_ids(_added_field(change), next_id=last + 1)
                last = next_id - 1
                fields.append(added)
            case RenameColumn(name, new_name):
                index = _index_of(fields, name)
                fields[index] = fields[index].with_name(normal_name(new_name))
            case DropColumn(name):
                del fields[_unfixed(fields, name, fixed_ids)]
            case WidenColumn(name):
                index = _unfixed(fields, name, fixed_ids)
                fields[index] = fields[index].with_type(_widened(fields[index], change))
        # After each change: a later change must not hide a duplicate name.
        check_schema(pa.schema(fields), limits=limits)
    return schema_with(fields, last=last)


def _unfixed(fields: list[pa.Field], name: str, fixed_ids: Collection[int]) -> int:
    index = _index_of(fields, name)
    if column_id(fields[index]) in fixed_ids:
        raise InvalidRequest("key and partition columns cannot be dropped or retyped", column=name)
    return index


PLANS_MAX: Final = 1024
_plans: dict[tuple[int, int], tuple[pa.Schema, pa.Schema, Reader]] = {}


def plan_read(written: pa.Schema, wanted: pa.Schema) -> Reader:
    """Return a function that reads a batch of `written` as `wanted`.

    Columns with equal types are shared, not copied. The function is cached for these two schema
    objects; it may be called from any thread.
    """
    key = (id(written), id(wanted))
    known = _plans.get(key)
    if known is not None:
        return known[2]
    reader = _identity if written.equals(wanted, check_metadata=True) else _reader(written, wanted)
    if len(_plans) >= PLANS_MAX:
        _plans.clear()
    # The entry keeps both schemas alive, so that no other object can get their ids.
    _plans[key] = (written, wanted, reader)
    return reader


def _identity(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _reader(written: pa.Schema, wanted: pa.Schema) -> Reader:
    steps = _steps(written, wanted)

    def read(batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = _columns(steps, batch.num_rows, batch.column)
        return pa.RecordBatch.from_arrays(arrays, schema=wanted)

    return read


def _steps(written: Iterable[pa.Field], wanted: Iterable[pa.Field]) -> list[_Step]:
    """Return for each wanted field its position, -1 if it is new, its type and its conversion."""
    fields = list(written)
    places = {column_id(field): index for index, field in enumerate(fields)}
    steps: list[_Step] = []
    for field in wanted:
        index = places.get(column_id(field), -1)
        convert = None if index < 0 else _converter(fields[index].type, field.type)
        steps.append((index, field.type, convert))
    return steps


def _columns(steps: list[_Step], rows: int, column: Callable[[int], pa.Array]) -> list[pa.Array]:
    arrays = []
    for index, data_type, convert in steps:
        array = pa.nulls(rows, data_type) if index < 0 else column(index)
        arrays.append(array if convert is None else convert(array))
    return arrays


def _converter(written: pa.DataType, wanted: pa.DataType) -> _Convert | None:
    """Return the converter of an array between the types, or None if none is needed."""
    if not pt.is_nested(wanted):
        return None if written == wanted else lambda array: array.cast(wanted)
    if written.equals(wanted, check_metadata=True):
        return None
    if pt.is_struct(written) and pt.is_struct(wanted):
        return _struct_converter(written, wanted)
    if pt.is_map(written) and pt.is_map(wanted):
        return _map_converter(written, wanted)
    if pt.is_list(written) and pt.is_list(wanted):
        return _list_converter(written, wanted)
    raise InvalidRequest(
        "column cannot be read as another kind of type",
        written=type_name(written),
        wanted=type_name(wanted),
    )


def _struct_converter(written: pa.DataType, wanted: pa.DataType) -> _Convert:
    steps = _steps(written, wanted)
    fields = list(wanted)

    def convert_struct(array: pa.Array) -> pa.Array:
        children = _columns(steps, len(array), array.field)
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)

    return convert_struct


def _list_converter(written: pa.DataType, wanted: pa.DataType) -> _Convert:
    convert = _converter(written.value_type, wanted.value_type)

    def convert_list(array: pa.Array) -> pa.Array:
        values = array.values if convert is None else convert(array.values)
        return pa.Array.from_buffers(
            wanted, len(array), array.buffers()[:2], offset=array.offset, children=[values]
        )

    return convert_list


def _map_converter(written: pa.DataType, wanted: pa.DataType) -> _Convert:
    convert_key = _converter(written.key_type, wanted.key_type)
    convert_item = _converter(written.item_type, wanted.item_type)
    fields = [wanted.key_field, wanted.item_field]

    def convert_map(array: pa.Array) -> pa.Array:
        keys = array.keys if convert_key is None else convert_key(array.keys)
        items = array.items if convert_item is None else convert_item(array.items)
        entries = pa.StructArray.from_arrays([keys, items], fields=fields)
        return pa.Array.from_buffers(
            wanted, len(array), array.buffers()[:2], offset=array.offset, children=[entries]
        )

    return convert_map


def _added_field(change: AddColumn) -> pa.Field:
    text = change.type
    if isinstance(text, str) and text.lower().split()[-2:] == ["not", "null"]:
        raise InvalidRequest(
            "added column must be nullable, older records have no value for it", column=change.name
        )
    return pa.field(normal_name(change.name), _type_of(text))


def _widened(field: pa.Field, change: WidenColumn) -> pa.DataType:
    wanted = _type_of(change.type)
    if field.type == wanted:
        return field.type
    if wanted not in _WIDER.get(field.type, frozenset()):
        raise InvalidRequest(
            "column type can only be widened (int to long, float to double), add a column instead",
            column=field.name,
            type=type_name(field.type),
            wanted=type_name(wanted),
        )
    return wanted


def _type_of(declared: str | pa.DataType) -> pa.DataType:
    return declared if isinstance(declared, pa.DataType) else parse_type(declared)


def _index_of(fields: list[pa.Field], name: str) -> int:
    found = column_of(pa.schema(fields), name).name
    return next(index for index, field in enumerate(fields) if field.name == found)
