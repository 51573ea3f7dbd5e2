"""The table partition of each row, by the transforms of the Iceberg specification.

A partition is named as in Iceberg's paths: `ts_day=2026-11-15/country=DE`, with url-quoted values
and `null` for a null. `Partitioner.split` keeps the order of rows within each partition.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote_plus

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from frazil.errors import InvalidRequest
from frazil.schema.keys import column_id

if TYPE_CHECKING:
    import numpy.typing as npt

    from frazil.model import PartitionField

    Words = npt.NDArray[np.uint32]

_TRANSFORM: Final = re.compile(r"(\w+)(?:\[(\d+)\])?\Z")
_SUFFIX: Final = {
    "identity": "",
    "year": "_year",
    "month": "_month",
    "day": "_day",
    "hour": "_hour",
    "bucket": "_bucket",
    "truncate": "_trunc",
}
_UNITS: Final = {"year": "Y", "month": "M", "day": "D", "hour": "h"}
_KNOWN_MAX: Final = 10_000


class _Field(NamedTuple):
    """One field of the spec, bound to a column of a schema."""

    column: str | None
    """None if the schema no longer has the column: then every value is null."""
    label: str
    apply: Callable[[pa.Array], pa.Array]
    shown: Callable[[Any], str]


class Partitioner:
    """Splits the batches of one schema version by a partition spec. Thread-safe.

    Args:
        schema: the topic's columns with their ids; a batch may have more columns.
        fields: the spec; empty means one partition for all.
    """

    def __init__(self, schema: pa.Schema, fields: Sequence[PartitionField]) -> None:
        by_id = {column_id(field): field for field in schema}
        self._fields = tuple(_bound(field, by_id.get(field.column_id)) for field in fields)
        # The key has the value's type, because 1, 1.0 and True are equal as keys of a dict.
        self._name = lru_cache(_KNOWN_MAX, typed=True)(self._text)

    def split(self, batch: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
        """Return the rows of each partition in order; partitions are ordered by their first row."""
        if not batch.num_rows:
            return []
        codes, partitions = self._codes(batch)
        if len(partitions) == 1:
            return [(partitions[0], batch)]
        order = np.argsort(codes, kind="stable")
        bounds = np.cumsum(np.bincount(codes, minlength=len(partitions)))
        pieces: list[tuple[str, pa.RecordBatch]] = []
        start = 0
        for partition, end in zip(partitions, bounds.tolist(), strict=True):
            rows = order[start:end]
            first, last = int(rows[0]), int(rows[-1])
            # Consecutive rows need no copy.
            together = last - first + 1 == len(rows)
            piece = batch.slice(first, len(rows)) if together else batch.take(pa.array(rows))
            pieces.append((partition, piece))
            start = end
        return pieces

    def counts(self, batch: pa.RecordBatch) -> dict[str, int]:
        """Return the number of rows of each partition."""
        if not batch.num_rows:
            return {}
        codes, partitions = self._codes(batch)
        rows = np.bincount(codes, minlength=len(partitions))
        return dict(zip(partitions, rows.tolist(), strict=True))

    def _codes(self, batch: pa.RecordBatch) -> tuple[npt.NDArray[np.int64], list[str]]:
        """Number the partitions in the order of their first rows; return each row's number."""
        if not self._fields:
            return np.zeros(batch.num_rows, np.int64), [""]
        code = np.zeros(batch.num_rows, np.int64)
        columns: list[list[Any]] = []
        for field in self._fields:
            coded = _transformed(field, batch).dictionary_encode("encode")
            code = code * len(coded.dictionary) + coded.indices.to_numpy(zero_copy_only=False)
            columns.append(coded.dictionary.to_pylist())
            # Renumbered each time, so that the product of many fields stays small.
            kept, code = np.unique(code, return_inverse=True)
            columns = _recombined(columns, kept)
        _, first = np.unique(code, return_index=True)
        order = np.argsort(first, kind="stable")
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        rows = columns[0]
        return rank[code], [self._name(*rows[number]) for number in order.tolist()]

    def _text(self, *values: Any) -> str:
        return "/".join(
            f"{quote_plus(field.label)}="
            f"{'null' if value is None else quote_plus(field.shown(value))}"
            for field, value in zip(self._fields, values, strict=True)
        )


def _recombined(columns: list[list[Any]], kept: npt.NDArray[np.int64]) -> list[list[Any]]:
    """Return the combinations of values that occur, as tuples."""
    if len(columns) == 1:
        return [[(columns[0][number],) for number in kept.tolist()]]
    before, values = columns
    count = len(values)
    return [[(*before[number // count], values[number % count]) for number in kept.tolist()]]


def _transformed(field: _Field, batch: pa.RecordBatch) -> pa.Array:
    if field.column is None:
        return pa.nulls(batch.num_rows, pa.int64())
    return field.apply(batch.column(field.column))


def _bound(field: PartitionField, column: pa.Field | None) -> _Field:
    match = _TRANSFORM.match(field.transform)
    kind = match[1] if match else ""
    if match is None or kind not in _SUFFIX:
        raise InvalidRequest("partition transform is not known", transform=field.transform)
    if column is None:
        return _Field(None, f"column_{field.column_id}{_SUFFIX[kind]}", _storage, str)
    label, data_type = column.name + _SUFFIX[kind], column.type
    parameter = int(match[2]) if match[2] else 0
    if kind in _UNITS:
        unit = _UNITS[kind]
        return _Field(column.name, label, lambda a: _in_units(a, unit), lambda v: _time(v, unit))
    if kind == "bucket":
        return _Field(column.name, label, lambda a: _bucket(a, parameter), str)
    if kind == "truncate":
        return _Field(column.name, label, lambda a: _truncate(a, parameter), _shown_of(data_type))
    return _Field(column.name, label, _storage, _shown_of(data_type))


def _storage(array: pa.Array) -> pa.Array:
    """Return values as they are stored: temporal ones are integers."""
    if pt.is_date32(array.type):
        return array.cast(pa.int32())
    return array.cast(pa.int64()) if pt.is_temporal(array.type) else array


def _integers(array: pa.Array) -> npt.NDArray[np.int64]:
    """Return integers, dates and times as they are stored; null is 0."""
    values = _storage(array).cast(pa.int64()).fill_null(0)
    found: npt.NDArray[np.int64] = values.to_numpy(zero_copy_only=False)
    return found


def _bucket(array: pa.Array, buckets: int) -> pa.Array:
    hashes = bucket_hashes(array)
    numbers = (hashes & np.uint32(0x7FFF_FFFF)).astype(np.int64) % buckets
    return pa.array(numbers, mask=_null_mask(array))


def _truncate(array: pa.Array, width: int) -> pa.Array:
    data_type = array.type
    if pt.is_string(data_type) or pt.is_large_string(data_type):
        return pc.utf8_slice_codeunits(array, 0, width)
    if pt.is_integer(data_type):
        # Rounded down, also for negative values; the lowest value of a type may leave its range.
        return pa.array(_integers(array) // width * width, mask=_null_mask(array))
    if pt.is_decimal(data_type):
        return pa.array([_truncated_decimal(v, width) for v in array.to_pylist()], pa.string())
    return pc.binary_slice(array, 0, width)


def _truncated_decimal(value: Any, width: int) -> str | None:
    if value is None:
        return None
    exponent = value.as_tuple().exponent
    return format(type(value)(_unscaled(value) // width * width).scaleb(exponent), "f")


def _unscaled(value: Any) -> int:
    """Return the unscaled integers of decimals."""
    sign, digits, _ = value.as_tuple()
    return int("".join(map(str, digits))) * (-1 if sign else 1)


def _null_mask(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    if not array.null_count:
        return None
    mask: npt.NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return mask


def _in_units(array: pa.Array, unit: str) -> pa.Array:
    """Return the years, months, days or hours since 1970 of dates and timestamps, rounded down."""
    stored = "D" if pt.is_date32(array.type) else array.type.unit
    times = _integers(array).view(f"datetime64[{stored}]").astype(f"datetime64[{unit}]")
    return pa.array(times.astype(np.int64), mask=_null_mask(array))


def _time(value: int, unit: Any) -> str:
    text = str(np.datetime64(value, unit))
    return text.replace("T", "-") if unit == "h" else text


def _shown_of(data_type: pa.DataType) -> Callable[[Any], str]:
    """Return the function that formats stored values of a type."""
    if pt.is_date32(data_type):
        return lambda value: _time(value, "D")
    if pt.is_timestamp(data_type):
        zone = "" if data_type.tz is None else "+00:00"
        return lambda value: _time(value, data_type.unit) + zone
    if pt.is_boolean(data_type):
        return lambda value: str(value).lower()
    return lambda value: value.hex() if isinstance(value, bytes) else str(value)


# -- the 32-bit Murmur3 hash of the Iceberg specification, for whole columns -----------------------

_C1: Final = np.uint32(0xCC9E_2D51)
_C2: Final = np.uint32(0x1B87_3593)
_OF_BYTES: Final = (
    pt.is_string,
    pt.is_large_string,
    pt.is_binary,
    pt.is_large_binary,
    pt.is_fixed_size_binary,
)
_UNIT_US: Final = {"s": 1_000_000, "ms": 1000, "us": 1}


def bucket_hashes(array: pa.Array) -> Words:
    """Return the hash of each value for Iceberg's `bucket` transform; undefined for null.

    Integers, dates and times are hashed as eight bytes, timestamps in microseconds whatever their
    unit, decimals as the shortest big-endian bytes of their unscaled value, text as UTF-8.
    """
    data_type = array.type
    if pt.is_timestamp(data_type):
        values = _integers(array)
        unit = data_type.unit
        return _hash_longs(values // 1000 if unit == "ns" else values * _UNIT_US[unit])
    if pt.is_integer(data_type) or pt.is_temporal(data_type):
        return _hash_longs(_integers(array))
    if pt.is_decimal(data_type):
        unscaled = list(map(_decimal_bytes, array.to_pylist()))
        return _hash_bytes(pa.array(unscaled, pa.large_binary()))
    if not any(is_kind(data_type) for is_kind in _OF_BYTES):
        raise InvalidRequest("column type has no bucket transform", type=data_type)
    return _hash_bytes(array.cast(pa.large_binary()))


def _decimal_bytes(value: Any) -> bytes:
    if value is None:
        return b""
    unscaled = _unscaled(value)
    # One bit more than the magnitude, for the sign.
    bits = (unscaled if unscaled >= 0 else ~unscaled).bit_length() + 1
    return unscaled.to_bytes((bits + 7) // 8, "big", signed=True)


def _hash_longs(values: npt.NDArray[np.int64]) -> Words:
    bits = values.view(np.uint64)
    hashed = np.zeros(len(values), np.uint32)
    hashed = _mix(hashed, (bits & np.uint64(0xFFFF_FFFF)).astype(np.uint32))
    hashed = _mix(hashed, (bits >> np.uint64(32)).astype(np.uint32))
    return _end(hashed, 8)


def _hash_bytes(array: pa.Array) -> Words:
    """Hash values of all lengths; values of the same length are hashed together."""
    filled = array.fill_null(b"")
    buffers = filled.buffers()
    ends = np.frombuffer(buffers[1], np.int64)[filled.offset : filled.offset + len(filled) + 1]
    data = np.frombuffer(buffers[2], np.uint8) if buffers[2] is not None else np.empty(0, np.uint8)
    lengths = np.diff(ends)
    hashed = np.zeros(len(filled), np.uint32)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        hashed[rows] = _hash_same_length(data, ends[rows], length)
    return hashed


def _hash_same_length(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], length: int
) -> Words:
    hashed = np.zeros(len(starts), np.uint32)
    whole = length & ~3
    for at in range(0, whole, 4):
        hashed = _mix(hashed, _word(data, starts + at, 4))
    if length > whole:
        hashed ^= _scrambled(_word(data, starts + whole, length - whole))
    return _end(hashed, length)


def _word(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], count: int) -> Words:
    """Return the little-endian numbers of `count` bytes from each start on."""
    word = np.zeros(len(starts), np.uint32)
    for byte in range(count):
        word |= data[starts + byte].astype(np.uint32) << np.uint32(8 * byte)
    return word


def _rotated(words: Words, bits: int) -> Words:
    return (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))


def _scrambled(words: Words) -> Words:
    return _rotated(words * _C1, 15) * _C2


def _mix(hashed: Words, words: Words) -> Words:
    return _rotated(hashed ^ _scrambled(words), 13) * np.uint32(5) + np.uint32(0xE654_6B64)


def _end(hashed: Words, length: int) -> Words:
    hashed = hashed ^ np.uint32(length)
    hashed = (hashed ^ (hashed >> np.uint32(16))) * np.uint32(0x85EB_CA6B)
    hashed = (hashed ^ (hashed >> np.uint32(13))) * np.uint32(0xC2B2_AE35)
    return hashed ^ (hashed >> np.uint32(16))
