"""Primary keys: their normal form, their hashes, and maps from a hash to rows.

A key is one Python value, or a tuple of them for a key of several columns. Temporal values are
their storage integers, so that a key read from Arrow equals the same key given by a caller, for
every unit. A hash has 32 bits and never decides alone: the caller compares the real key of each
row found by its hash.
"""

from __future__ import annotations

import datetime as dt
import struct
import zlib
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from frazil.errors import CorruptionError, InvalidRequest
from frazil.fs import read_fully
from frazil.schema.columns import is_bytes, is_text

if TYPE_CHECKING:
    import numpy.typing as npt

    from frazil.fs import File, FileSystem

__all__ = ["ID_KEYS", "Key", "KeyFile", "KeyMap", "KeyShape", "column_id"]

Key = Any
"""bool, int, str, bytes or Decimal, or a tuple of those: hashable, equal for equal keys."""

ID_KEYS: Final = (b"frazil.id", b"PARQUET:field_id")
"""The metadata names of a field's column id: in a topic's schema, in a Parquet file's."""

MASK_32: Final = 0xFFFF_FFFF
MASK_64: Final = 0xFFFF_FFFF_FFFF_FFFF
_MIX: Final = 0x9E37_79B9_7F4A_7C15
_COMBINE: Final = 0x0100_0193
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_LOCAL: Final = _EPOCH.replace(tzinfo=None)
_EPOCH_DAYS: Final = dt.date(1970, 1, 1).toordinal()
_EXACT: Final = Context(prec=100)
_UNIT_US: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}

KEYS_MAGIC: Final = b"FRAZKEYS"
KEYS_VERSION: Final = 1
BLOCK_ENTRIES: Final = 512
_BLOCK_BYTES: Final = 8 * BLOCK_ENTRIES
_HEADER: Final = struct.Struct("<8sIIQIIQ")
"""magic, version, blocks, entries, crc of the block table, crc of the fields before, zero"""
_TABLE: Final = np.dtype([("fence", "<u8"), ("crc", "<u4"), ("zero", "<u4")])
_STRIPE_BLOCKS: Final = 1024
_FEW: Final = 16

if TYPE_CHECKING:
    Hashes = npt.NDArray[np.uint32]
    Rows = npt.NDArray[np.int64]


class KeyShape:
    """The key columns of one schema version: converts rows and batches to keys and hashes.

    `names` and `types` are those of the key columns in key order, `positions` their positions in
    the schema. All methods are pure and may run in any thread.
    """

    __slots__ = ("_columns", "_single", "names", "positions", "row_key", "types")

    def __init__(self, schema: pa.Schema, column_ids: Sequence[int]) -> None:
        places = {column_id(field): index for index, field in enumerate(schema)}
        try:
            self.positions = tuple(places[number] for number in column_ids)
        except KeyError as error:
            raise InvalidRequest("schema lacks a key column", column_id=error) from None
        fields = [schema.field(index) for index in self.positions]
        self.names: tuple[str, ...] = tuple(field.name for field in fields)
        self.types: tuple[pa.DataType, ...] = tuple(field.type for field in fields)
        self._columns = tuple(_column(data_type) for data_type in self.types)
        self._single = self._columns[0] if len(self._columns) == 1 else None
        self.row_key: Callable[[Sequence[object]], Key] = self._row_key()
        """The key of a whole row's validated values, in the schema's order."""

    def key_of(self, values: Sequence[object]) -> Key:
        """Return the key of validated values of the key columns, in key order."""
        if self._single is not None:
            return self._single.normal(values[0])
        return tuple(
            column.normal(value) for column, value in zip(self._columns, values, strict=True)
        )

    def keys(self, batch: pa.RecordBatch) -> list[Key]:
        """Return each row's key; the batch may have other columns in any order."""
        if self._single is not None:
            return self._single.values(batch.column(self.names[0]))
        parts = [c.values(batch.column(n)) for c, n in zip(self._columns, self.names, strict=True)]
        return list(zip(*parts, strict=True))

    def hashes(self, batch: pa.RecordBatch) -> Hashes:
        """Return each row's hash."""
        if self._single is not None:
            return self._single.hashes(batch.column(self.names[0]))
        combined: npt.NDArray[np.uint64] | None = None
        for column, name in zip(self._columns, self.names, strict=True):
            part = column.hashes(batch.column(name)).astype(np.uint64)
            if combined is not None:
                part = ((combined * np.uint64(_COMBINE)) ^ part) & np.uint64(MASK_32)
            combined = part
        assert combined is not None
        return combined.astype(np.uint32)

    def hash_of(self, key: Key) -> int:
        """Return one key's hash; equal to the hash from `hashes` for its row."""
        if self._single is not None:
            return self._single.hash(key)
        combined = 0
        for number, (column, part) in enumerate(zip(self._columns, key, strict=True)):
            hashed = column.hash(part)
            combined = ((combined * _COMBINE) ^ hashed) & MASK_32 if number else hashed
        return combined

    def hashes_of(self, keys: Sequence[Key]) -> Hashes:
        """Return the hashes of many keys."""
        hash_of = self.hash_of if self._single is None else self._single.hash
        return np.fromiter(map(hash_of, keys), np.uint32, len(keys))

    def _row_key(self) -> Callable[[Sequence[object]], Key]:
        take = itemgetter(*self.positions)
        if all(column.normal is _same for column in self._columns):
            return take
        if self._single is not None:
            normal = self._single.normal
            return lambda values: normal(take(values))
        return lambda values: self.key_of(take(values))


class _Column(NamedTuple):
    """One key column: its normal form and its hash, chosen once by its type."""

    normal: Callable[[Any], Any]
    hash: Callable[[Any], int]
    hash_array: Callable[[pa.Array], Hashes]
    storage: pa.DataType | None = None
    """The integer type that stores temporal values."""

    def stored(self, array: pa.Array) -> pa.Array:
        """Return an array of values in their normal form."""
        return array if self.storage is None else array.cast(self.storage)

    def values(self, array: pa.Array) -> list[Any]:
        """Return values in their normal form."""
        found: list[Any] = self.stored(array).to_pylist()
        return found

    def hashes(self, array: pa.Array) -> Hashes:
        """Return the hash of each value."""
        return self.hash_array(self.stored(array))


def _column(data_type: pa.DataType) -> _Column:
    if pt.is_decimal(data_type):
        return _Column(_same, _decimal_hash(data_type.scale), _hash_decimals)
    if pt.is_timestamp(data_type):
        return _Column(_timestamp_normal(data_type), _hash_integer, _hash_integers, pa.int64())
    for is_type, column in _COLUMNS:
        if is_type(data_type):
            return column
    raise InvalidRequest("column type cannot be a key", type=data_type)


def column_id(field: pa.Field) -> int:
    """Return a field's column id, -1 if it has none."""
    metadata = field.metadata or {}
    for name in ID_KEYS:
        if name in metadata:
            return int(metadata[name])
    return -1


def _same(value: Any) -> Any:
    return value


def _timestamp_normal(data_type: pa.DataType) -> Callable[[Any], int]:
    epoch = _EPOCH if data_type.tz is not None else _EPOCH_LOCAL
    grain_us = _UNIT_US.get(data_type.unit, 1)
    times = 1000 if data_type.unit == "ns" else 1

    def normal(value: Any) -> int:
        if type(value) is int:
            return value
        since = value - epoch
        us = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        return int(us // grain_us * times)

    return normal


def _date_normal(value: Any) -> int:
    return value if type(value) is int else int(value.toordinal() - _EPOCH_DAYS)


def _time_normal(value: Any) -> int:
    if type(value) is int:
        return value
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return int(seconds * 1_000_000 + value.microsecond)


def _hash_integer(value: int) -> int:
    value &= MASK_64
    return ((value ^ (value >> 32)) * _MIX & MASK_64) >> 32


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    return ((values ^ (values >> np.uint64(32))) * np.uint64(_MIX)) >> np.uint64(32)


def _hash_integers(array: pa.Array) -> Hashes:
    values = array.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)
    return _mixed(values).astype(np.uint32)


def _hash_text(value: str) -> int:
    return zlib.crc32(value.encode())


def _hash_texts(array: pa.Array) -> Hashes:
    wide = pt.is_large_string(array.type)
    return _hash_binaries(array.cast(pa.large_binary() if wide else pa.binary()))


def _hash_binaries(array: pa.Array) -> Hashes:
    return np.fromiter(map(zlib.crc32, array.to_pylist()), np.uint32, len(array))


def _decimal_hash(scale: int) -> Callable[[Decimal], int]:
    def hash_decimal(value: Decimal) -> int:
        whole = int(value.scaleb(scale, _EXACT))
        high = _hash_integer(whole >> 64)
        return ((high * _COMBINE) ^ _hash_integer(whole)) & MASK_32

    return hash_decimal


def _hash_decimals(array: pa.Array) -> Hashes:
    """Hash the 128-bit integers that store decimals."""
    words = np.frombuffer(array.buffers()[1], np.uint64)
    words = words[2 * array.offset : 2 * (array.offset + len(array))]
    low, high = _mixed(words[0::2]), _mixed(words[1::2])
    return (((high * np.uint64(_COMBINE)) ^ low) & np.uint64(MASK_32)).astype(np.uint32)


_COLUMNS: Final = (
    (pt.is_date32, _Column(_date_normal, _hash_integer, _hash_integers, pa.int32())),
    (pt.is_time64, _Column(_time_normal, _hash_integer, _hash_integers, pa.int64())),
    (pt.is_integer, _Column(_same, _hash_integer, _hash_integers)),
    (pt.is_boolean, _Column(_same, _hash_integer, _hash_integers)),
    (is_text, _Column(_same, _hash_text, _hash_texts)),
    (is_bytes, _Column(_same, zlib.crc32, _hash_binaries)),
)


class KeyMap:
    """Rows by the hash of their key: `hash << 32 | row` of every row, sorted.

    Its file form is cut into blocks of 4 KiB, each with its own checksum, after a table of the
    blocks' first entries: one lookup reads and verifies one block.

    header (40 bytes) | blocks x (first entry u64, crc32 u32, zero u32) | entries x u64
    """

    __slots__ = ("entries",)

    def __init__(self, entries: npt.NDArray[np.uint64]) -> None:
        self.entries = entries

    @classmethod
    def build(cls, hashes: Hashes, *, first: int = 0) -> KeyMap:
        """Return the map of rows `first`, `first + 1`, ... with these hashes."""
        entries = hashes.astype(np.uint64) << np.uint64(32)
        entries |= np.arange(first, first + len(hashes), dtype=np.uint64)
        entries.sort()
        return cls(entries)

    @property
    def nbytes(self) -> int:
        """Return its size in memory in bytes."""
        return self.entries.nbytes

    def find_many(self, hashes: Hashes) -> tuple[Rows, Rows]:
        """Return index of the hash and row of every match, by index, then by row."""
        order = np.argsort(hashes, kind="stable")
        low = hashes[order].astype(np.uint64) << np.uint64(32)
        start = np.searchsorted(self.entries, low)
        counts = np.searchsorted(self.entries, low | np.uint64(MASK_32), "right") - start
        total = int(counts.sum())
        if not total:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        queries = np.repeat(order, counts)
        inside = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
        places = np.repeat(start, counts) + inside
        rows = (self.entries[places] & np.uint64(MASK_32)).astype(np.int64)
        back = np.argsort(queries, kind="stable")
        return queries[back], rows[back]

    def to_bytes(self) -> bytes:
        """Return the file form."""
        data = self.entries.astype("<u8").tobytes()
        starts = range(0, len(data), _BLOCK_BYTES)
        table = np.zeros(len(starts), _TABLE)
        table["fence"] = self.entries[::BLOCK_ENTRIES]
        table["crc"] = [zlib.crc32(data[at : at + _BLOCK_BYTES]) for at in starts]
        packed = table.tobytes()
        crc = zlib.crc32(packed)
        head = _HEADER.pack(KEYS_MAGIC, KEYS_VERSION, len(starts), len(self.entries), crc, 0, 0)
        head = head[:28] + zlib.crc32(head[:28]).to_bytes(4, "little") + head[32:]
        return head + packed + data


class KeyFile:
    """The key map of one data file, read block by block. Any number of threads may look up.

    Raises `CorruptionError` if the file is damaged and `OSError` if it cannot be read: it is
    derived data, and its owner rebuilds it.
    """

    def __init__(self, file_system: FileSystem, path: str) -> None:
        self._file: File = file_system.open(path, "read")
        try:
            size = self._file.size()
            blocks, self.count, crc = _header(read_fully(self._file, 0, _HEADER.size), size)
            table_bytes = blocks * _TABLE.itemsize
            table = _table(read_fully(self._file, _HEADER.size, table_bytes), crc)
        except BaseException:
            self._file.close()
            raise
        self._start = _HEADER.size + table_bytes
        self._fences = np.ascontiguousarray(table["fence"])
        self._crcs = np.ascontiguousarray(table["crc"])

    @property
    def nbytes(self) -> int:
        """Return its size in memory in bytes."""
        return self._fences.nbytes + self._crcs.nbytes

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def find_many(self, hashes: Hashes) -> tuple[Rows, Rows]:
        """Return index of the hash and row of every match, by index, then by row."""
        if len(hashes) <= _FEW:
            found = [self._find(int(hashed)) for hashed in hashes]
            queries = np.repeat(np.arange(len(found)), [len(rows) for rows in found])
            return queries, np.concatenate([np.empty(0, np.int64), *found])
        queries_all, rows_all = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        first, last = self._block_ranges(hashes.astype(np.uint64) << np.uint64(32))
        for stripe in range(0, len(self._fences), _STRIPE_BLOCKS):
            stripe_end = min(stripe + _STRIPE_BLOCKS, len(self._fences))
            touching = np.flatnonzero((first < stripe_end) & (last > stripe))
            if not len(touching):
                continue
            start = max(stripe, int(first[touching].min()))
            end = min(stripe_end, int(last[touching].max()))
            index, rows = KeyMap(self._read(start, end)).find_many(hashes[touching])
            queries_all.append(touching[index])
            rows_all.append(rows)
        queries, rows = np.concatenate(queries_all), np.concatenate(rows_all)
        back = np.argsort(queries, kind="stable")
        return queries[back], rows[back]

    def _find(self, hashed: int) -> Rows:
        first, last = self._block_ranges(np.array([hashed << 32], np.uint64))
        return _rows(self._read(int(first[0]), int(last[0])), hashed)

    def _block_ranges(self, low: npt.NDArray[np.uint64]) -> tuple[Rows, Rows]:
        first = np.searchsorted(self._fences, low, "right") - 1
        last = np.searchsorted(self._fences, low | np.uint64(MASK_32), "right")
        return np.maximum(first, 0), last

    def _read(self, first: int, last: int) -> npt.NDArray[np.uint64]:
        if first >= last:
            return np.empty(0, np.uint64)
        count = min(self.count, last * BLOCK_ENTRIES) - first * BLOCK_ENTRIES
        data = read_fully(self._file, self._start + first * _BLOCK_BYTES, 8 * count)
        return _checked(data, self._crcs[first:last], count)


def _rows(entries: npt.NDArray[np.uint64], hashed: int) -> Rows:
    low = hashed << 32
    bounds = np.array([low, low | MASK_32], np.uint64)
    start = int(np.searchsorted(entries, bounds[0]))
    end = int(np.searchsorted(entries, bounds[1], "right"))
    return (entries[start:end] & np.uint64(MASK_32)).astype(np.int64)


def _header(data: bytes, size: int) -> tuple[int, int, int]:
    """Return blocks, entries and the table's checksum of a file of `size` bytes."""
    if len(data) < _HEADER.size:
        raise CorruptionError("key file is cut short", bytes=len(data))
    magic, version, blocks, count, table_crc, crc, _ = _HEADER.unpack(data)
    if magic != KEYS_MAGIC or zlib.crc32(data[:28]) != crc:
        raise CorruptionError("key file header is damaged", magic=magic.hex())
    if version != KEYS_VERSION:
        raise CorruptionError("key file has another version", version=version)
    expected = _HEADER.size + blocks * _TABLE.itemsize + 8 * count
    if size != expected or blocks != -(-count // BLOCK_ENTRIES):
        raise CorruptionError("key file has the wrong size", bytes=size, bytes_expected=expected)
    return blocks, count, table_crc


def _table(data: bytes, crc: int) -> npt.NDArray[Any]:
    if zlib.crc32(data) != crc:
        raise CorruptionError("key file table is damaged")
    return np.frombuffer(data, _TABLE)


def _checked(data: bytes, crcs: npt.NDArray[np.uint32], count: int) -> npt.NDArray[np.uint64]:
    """Return the entries of consecutive blocks, each checked."""
    view = memoryview(data)
    if len(data) != 8 * count:
        raise CorruptionError("key file is cut short", bytes=len(data), bytes_expected=8 * count)
    for number, crc in enumerate(crcs.tolist()):
        if zlib.crc32(view[number * _BLOCK_BYTES : (number + 1) * _BLOCK_BYTES]) != crc:
            raise CorruptionError("key file block is damaged", block=number)
    return np.frombuffer(data, "<u8").astype(np.uint64, copy=False)
