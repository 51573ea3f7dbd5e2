"""Which part of a partitioned topic a record belongs to. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from frazil.errors import InvalidRequest
from frazil.ingest.columns import column_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

_FNV_OFFSET: Final = 0xCBF29CE484222325
_FNV_PRIME: Final = 0x100000001B3
_MASK: Final = 0xFFFFFFFFFFFFFFFF


def fnv1a_64(data: bytes) -> int:
    """Return the FNV-1a hash that Danube's clients use to choose a partition."""
    value = _FNV_OFFSET
    for byte in data:
        value = ((value ^ byte) * _FNV_PRIME) & _MASK
    return value


def key_names(schema: pa.Schema, primary_key: Sequence[int]) -> list[str]:
    """Return the present names of the key columns."""
    names = {column_id(field): field.name for field in schema}
    return [names[each] for each in primary_key]


def part_of_text(key: str, partitions: int) -> int:
    """Return the part of a message's routing key."""
    return fnv1a_64(key.encode()) % partitions


def part_of_values(values: Sequence[object], partitions: int) -> int:
    """Return the part of a primary key's values."""
    return fnv1a_64(msgspec.msgpack.encode(list(values))) % partitions


def part_of_row(row: Mapping[str, object], names: Sequence[str], partitions: int) -> int:
    """Return the part of a row by its primary key.

    Raises:
        InvalidRequest: if the row lacks a key column.
    """
    try:
        values = [row[name] for name in names]
    except (KeyError, TypeError) as error:
        raise InvalidRequest("row lacks its primary key", columns=", ".join(names)) from error
    try:
        return part_of_values(values, partitions)
    except (TypeError, OverflowError, UnicodeError) as error:
        raise InvalidRequest("primary key cannot be used to choose a part", error=error) from error


def parts_of_batch(batch: pa.RecordBatch, names: Sequence[str], partitions: int) -> list[int]:
    """Return the part of each row of a batch by its primary key."""
    columns = [batch.column(name).to_pylist() for name in names]
    return [part_of_values(values, partitions) for values in zip(*columns, strict=True)]
