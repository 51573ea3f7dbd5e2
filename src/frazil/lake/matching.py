"""Whether a table still has the columns of its topic: by name, at one version of the topic.

A column that somebody else added is allowed, and filled with null. One that was dropped, renamed or
given another type is not: rows would get lost in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.types import ListType, MapType, StructType

from frazil.errors import Conflict
from frazil.lake.types import iceberg_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType, NestedField

    from frazil.lake.plan import TableName

__all__ = ["compare", "match"]


def match(
    table: TableName, found: Schema, topic: pa.Schema, *, partitioned: bool
) -> tuple[str, ...]:
    """Compare a table's columns with a topic's; return the paths of those that others added.

    Raises:
        Conflict: a column is gone, of another type, or cannot be left empty; with the fact.
    """
    wanted = iceberg_schema(topic, partitioned=partitioned)
    return compare(table, found, wanted)


def compare(table: TableName, found: Schema, wanted: Schema) -> tuple[str, ...]:
    """Compare a table's columns with those it should have, as `match` does."""
    comparison = _Comparison(table)
    comparison.structs(found.as_struct(), wanted.as_struct(), path="")
    return tuple(comparison.foreign)


class _Comparison:
    """Walks two types side by side."""

    def __init__(self, table: TableName) -> None:
        self._table = table
        self.foreign: list[str] = []

    def structs(self, found: StructType, wanted: StructType, *, path: str) -> None:
        """Compare the fields of two structs by name."""
        fields = {each.name: each for each in found.fields}
        for each in wanted.fields:
            theirs = fields.pop(each.name, None)
            name = f"{path}{each.name}"
            if theirs is None:
                raise Conflict(
                    "column of the topic is not in the table, somebody dropped or renamed it: "
                    "undo that, then frazil lake resume",
                    table=self._table,
                    column=name,
                )
            if theirs.required and not each.required:
                raise self._other(name, "nullable", "required")
            self._types(theirs.field_type, each.field_type, path=name)
        for name, theirs in fields.items():
            if theirs.required:
                raise Conflict(
                    "column that somebody added to the table cannot be empty: make it nullable "
                    "or drop it, then frazil lake resume",
                    table=self._table,
                    column=f"{path}{name}",
                )
            self.foreign.append(f"{path}{name}")

    def _types(self, found: IcebergType, wanted: IcebergType, *, path: str) -> None:
        if isinstance(found, StructType) and isinstance(wanted, StructType):
            self.structs(found, wanted, path=f"{path}.")
        elif isinstance(found, ListType) and isinstance(wanted, ListType):
            self._children(found.element_field, wanted.element_field, path=f"{path}.element")
        elif isinstance(found, MapType) and isinstance(wanted, MapType):
            self._children(found.key_field, wanted.key_field, path=f"{path}.key")
            self._children(found.value_field, wanted.value_field, path=f"{path}.value")
        elif found != wanted:
            raise self._other(path, wanted, found)

    def _children(self, found: NestedField, wanted: NestedField, *, path: str) -> None:
        if found.required and not wanted.required:
            raise self._other(path, "nullable", "required")
        self._types(found.field_type, wanted.field_type, path=path)

    def _other(self, path: str, wanted: object, found: object) -> Conflict:
        return Conflict(
            "column of the table has another type than the topic's: undo that, "
            "then frazil lake resume",
            table=self._table,
            column=path,
            expected=wanted,
            found=found,
        )
