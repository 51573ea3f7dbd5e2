"""The 32-bit Murmur3 hash of the Iceberg specification, for whole columns at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from frazil.errors import InvalidRequest

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["bucket_hashes"]

_C1: Final = np.uint32(0xCC9E_2D51)
_C2: Final = np.uint32(0x1B87_3593)
_UNIT_US: Final = {"s": 1_000_000, "ms": 1000, "us": 1}

if TYPE_CHECKING:
    Words = npt.NDArray[np.uint32]


def bucket_hashes(array: pa.Array) -> Words:
    """Return the hash of each value as Iceberg's `bucket` transform defines it; of null: any.

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
        return _hash_bytes(pa.array(list(map(_decimal_bytes, array.to_pylist())), pa.binary()))
    if pt.is_string(data_type) or pt.is_large_string(data_type):
        return _hash_bytes(array.cast(pa.large_string()).cast(pa.large_binary()))
    if pt.is_fixed_size_binary(data_type) or pt.is_binary(data_type):
        return _hash_bytes(array.cast(pa.binary()))
    if pt.is_large_binary(data_type):
        return _hash_bytes(array)
    raise InvalidRequest("column type has no bucket transform", type=data_type)


def _integers(array: pa.Array) -> npt.NDArray[np.int64]:
    stored = array.cast(pa.int32()) if pt.is_date32(array.type) else array.cast(pa.int64())
    values: npt.NDArray[np.int64]
    values = stored.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return values


def _decimal_bytes(value: Any) -> bytes:
    if value is None:
        return b""
    sign, digits, _ = value.as_tuple()
    unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
    # One more bit than the magnitude needs: the sign.
    bits = (unscaled if unscaled >= 0 else ~unscaled).bit_length() + 1
    return unscaled.to_bytes((bits + 7) // 8, "big", signed=True)


def _hash_longs(values: npt.NDArray[np.int64]) -> Words:
    bits = values.view(np.uint64)
    hashed = np.zeros(len(values), np.uint32)
    hashed = _mix(hashed, (bits & np.uint64(0xFFFF_FFFF)).astype(np.uint32))
    hashed = _mix(hashed, (bits >> np.uint64(32)).astype(np.uint32))
    return _end(hashed, 8)


def _hash_bytes(array: pa.Array) -> Words:
    """Hash values of all lengths, those of one length together."""
    wide = pt.is_large_binary(array.type)
    filled = array.fill_null(b"")
    kind = np.int64 if wide else np.int32
    buffers = filled.buffers()
    ends = np.frombuffer(buffers[1], kind)[filled.offset : filled.offset + len(filled) + 1]
    data = np.frombuffer(buffers[2], np.uint8) if buffers[2] is not None else np.empty(0, np.uint8)
    starts = ends[:-1].astype(np.int64)
    lengths = np.diff(ends).astype(np.int64)
    hashed = np.zeros(len(filled), np.uint32)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        hashed[rows] = _hash_same_length(data, starts[rows], length)
    return hashed


def _hash_same_length(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], length: int
) -> Words:
    hashed = np.zeros(len(starts), np.uint32)
    whole = length & ~3
    for at in range(0, whole, 4):
        word = np.zeros(len(starts), np.uint32)
        for byte in range(4):
            word |= data[starts + (at + byte)].astype(np.uint32) << np.uint32(8 * byte)
        hashed = _mix(hashed, word)
    if length > whole:
        word = np.zeros(len(starts), np.uint32)
        for byte in range(length - whole):
            word |= data[starts + (whole + byte)].astype(np.uint32) << np.uint32(8 * byte)
        hashed ^= _scrambled(word)
    return _end(hashed, length)


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
