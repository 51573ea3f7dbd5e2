"""The choice of a partitioned topic's part for a record. Pure.

Equal keys must have equal hashes in every form: as a dict, as keywords or as Arrow, 1.5 or 1.50,
in any zone. So one canonical form of the value is hashed.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.types as pt

from frazil.errors import InvalidRequest
from frazil.schema.columns import column_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_FNV_OFFSET: Final = 0xCBF29CE484222325
_FNV_PRIME: Final = 0x100000001B3
_MASK: Final = 0xFFFFFFFFFFFFFFFF
_PLAIN: Final = frozenset({int, str, bytes, bool, dt.date, dt.time, type(None)})
"""Types whose equal values have equal bytes without conversion."""
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - the start of columns without a zone


def fnv1a_64(data: bytes) -> int:
    """Return the FNV-1a hash that Danube's clients use to choose a partition."""
    value = _FNV_OFFSET
    for byte in data:
        value = ((value ^ byte) * _FNV_PRIME) & _MASK
    return value


def key_names(schema: pa.Schema, primary_key: Sequence[int]) -> list[str]:
    """Return the current names of the key columns."""
    names = {column_id(field): field.name for field in schema}
    return [names[each] for each in primary_key]


def part_of_text(key: str, partitions: int) -> int:
    """Return the part of a message's routing key."""
    return fnv1a_64(key.encode()) % partitions


def part_of_values(values: Sequence[object], partitions: int) -> int:
    """Return the part of a primary key's values."""
    plain = [value if type(value) in _PLAIN else _plain(value) for value in values]
    return fnv1a_64(msgspec.msgpack.encode(plain)) % partitions


def part_of_row(row: Mapping[str, object], names: Sequence[str], partitions: int) -> int:
    """Return the part of a row by its primary key.

    The values need not be checked yet: a value that does not fit its column is routed as well, and
    the part then refuses it.

    Raises:
        InvalidRequest: if the row lacks a key column.
    """
    try:
        return part_of_values([row[name] for name in names], partitions)
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(
            "row lacks its primary key, or the key cannot choose a part",
            columns=", ".join(names),
            error=error,
        ) from error


def parts_of_batch(batch: pa.RecordBatch, names: Sequence[str], partitions: int) -> list[int]:
    """Return the part of each row of a batch by its primary key."""
    columns = [_column(batch.column(name)) for name in names]
    return [part_of_values(values, partitions) for values in zip(*columns, strict=True)]


def _column(column: pa.Array) -> list[object]:
    if not (pt.is_timestamp(column.type) and column.type.unit == "ns"):
        return list(column.to_pylist())
    zone = None if column.type.tz is None else dt.UTC
    counts = column.cast(pa.int64()).to_pylist()
    return [None if ns is None else _instant(ns, zone) for ns in counts]


def _instant(ns: int, zone: dt.tzinfo | None) -> object:
    """Convert nanoseconds to the datetime in an equal dict; only Arrow has finer values."""
    us, rest = divmod(ns, 1000)
    return ns if rest else _EPOCH.replace(tzinfo=zone) + dt.timedelta(microseconds=us)


def _plain(value: object) -> object:
    """Return the canonical form of all equal values of a column."""
    return next((form(value) for kinds, form in _FORMS if isinstance(value, kinds)), value)


def _plain_decimal(value: Decimal) -> object:
    """Return digits without trailing zeros, and their exponent: no scale, and no rounding."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return str(value)
    text = "".join(map(str, digits)).lstrip("0")
    short = text.rstrip("0")
    if not short:
        return "0e0"
    return f"{'-' if sign else ''}{short}e{exponent + len(text) - len(short)}"


def _plain_datetime(value: dt.datetime) -> dt.datetime:
    zone = None if value.utcoffset() is None else dt.UTC
    if zone is not None:
        value = value.astimezone(zone)
    return dt.datetime(
        *(value.year, value.month, value.day, value.hour, value.minute, value.second),
        value.microsecond,
        tzinfo=zone,
    )


def _plain_date(value: dt.date) -> dt.date:
    return dt.date(value.year, value.month, value.day)


_FORMS: Final[tuple[tuple[Any, Callable[[Any], object]], ...]] = (
    (Decimal, _plain_decimal),
    (dt.datetime, _plain_datetime),
    (dt.date, _plain_date),
    ((bytearray, memoryview), bytes),
    (str, str.__str__),
    (int, int),
)
"""The canonical form of each kind; also for subclasses, whose own encoding is arbitrary."""
