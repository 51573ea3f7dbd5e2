"""Parquet files through the file seam: writing row group by row group, reading, and their facts.

All bytes that pyarrow reads or writes go through `frazil.fs`, so that tests can simulate crashes
and faults of the disk. Pages carry checksums, which every read verifies; the checksums of the
footer and of the whole file are kept outside the file. `docs/internals/disk.md` has the layout.
"""

from __future__ import annotations

import base64
import contextlib
import inspect
import io
import math
import zlib
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from frazil.errors import CorruptionError
from frazil.fs import read_fully, write_fully
from frazil.model import OP_DELETE
from frazil.struct_types import learnt
from frazil.tiers.disk.format import FileFacts, column_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Buffer

    from frazil.fs import File, FileSystem

# -- the file seam --------------------------------------------------------------------------------

CRC_BYTES: Final = 1 << 20
FOOTER_BYTES_MAX: Final = 256 << 20
TAIL_BYTES: Final = 8
_MAGIC: Final = b"PAR1"


class SeamSink(io.RawIOBase):
    """A file to write through the seam, from start to end; counts bytes and their checksum."""

    def __init__(self, file_system: FileSystem, path: str) -> None:
        super().__init__()
        self._file: File = file_system.open(path, "create")
        self._closed = False
        self.size = 0
        self.crc = 0

    def write(self, data: Buffer, /) -> int:
        view = memoryview(data).cast("B")
        if not self._closed:
            # An aborted Parquet writer still writes its footer.
            write_fully(self._file, self.size, [view])
            self.size += len(view)
            self.crc = zlib.crc32(view, self.crc)
        return len(view)

    def tell(self) -> int:
        return self.size

    def writable(self) -> bool:
        return True

    def finish(self) -> int:
        """Make the file durable and return the checksum of its footer."""
        self._file.sync()
        crc = _footer_crc(lambda at, size: read_fully(self._file, at, size), self.size)
        self._closed = True
        self._file.close()
        return crc

    def abort(self) -> None:
        """Ignore all further writes; the file stays as it is."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(OSError):
                self._file.close()


class SeamSource(io.RawIOBase):
    """A file to read through the seam.

    Attributes:
        size: its size in bytes.
        error: the file system's error of a failed read. If a read fails and this is None, the
            file was read, but its bytes are damaged.
    """

    def __init__(self, file_system: FileSystem, path: str) -> None:
        super().__init__()
        self._file: File = file_system.open(path, "read")
        self._position = 0
        self.error: OSError | None = None
        try:
            self.size = self._file.size()
        except OSError:
            self.release()
            raise

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            size = max(self.size - self._position, 0)
        data = self.read_at(self._position, size)
        self._position += len(data)
        return data

    def read_at(self, position: int, size: int) -> bytes:
        """Return the bytes at a position, fewer only at the end."""
        try:
            return read_fully(self._file, position, size)
        except OSError as error:
            self.error = error
            raise

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def crc(self) -> int:
        """Return the CRC32 of the whole file."""
        crc = position = 0
        while data := self.read_at(position, CRC_BYTES):
            crc = zlib.crc32(data, crc)
            position += len(data)
        return crc

    def footer_crc(self) -> int:
        """Return the CRC32 of a Parquet file's footer with the eight bytes after it.

        Raises:
            CorruptionError: if the file has no footer.
        """
        return _footer_crc(self.read_at, self.size)

    def release(self) -> None:
        """Close the file; pyarrow never does."""
        with contextlib.suppress(OSError):
            self._file.close()


def _footer_crc(read_at: Callable[[int, int], bytes], size: int) -> int:
    tail = read_at(max(size - TAIL_BYTES, 0), TAIL_BYTES)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or not 0 < length <= min(size - TAIL_BYTES, FOOTER_BYTES_MAX):
        raise CorruptionError("parquet file has no footer", bytes=size)
    return zlib.crc32(read_at(size - TAIL_BYTES - length, length + TAIL_BYTES))


# -- parquet --------------------------------------------------------------------------------------

COUNTS_KEY: Final = "frazil.counts"
STREAM_BUFFER_BYTES: Final = 1 << 20
SAMPLE_ROWS: Final = 4096
SAMPLE_ROWS_MIN: Final = 256
BLOOM_RATIO: Final = 0.01
"""The rate of false positives of a key column's bloom filter."""
_SCHEMA_KEY: Final = b"ARROW:schema"
_PACKED: Final = {"_offset": "DELTA_BINARY_PACKED", "_time": "DELTA_BINARY_PACKED"}
_HAS_BLOOM: Final = (
    "bloom_filter_options" in inspect.signature(pq.ParquetWriter.__init__).parameters
)


class _Counts(msgspec.Struct, frozen=True):
    """Counts of the writer, kept in the footer."""

    deletes: int = 0
    unmatched: int = 0
    nan: tuple[str, ...] = ()


class RowsWriter:
    """Writes one Parquet file row group by row group; holds at most one of them in memory.

    The first row group creates the file. Nothing is durable before `finish`; without it the caller
    calls `abort`.

    Args:
        group_rows: a row group has at most so many rows.
        group_bytes: a row group ends when its rows take so much memory.

    Attributes:
        rows: the number of rows written.
        held_bytes: the memory of the rows that are not in the file yet.
    """

    def __init__(
        self,
        file_system: FileSystem,
        path: str,
        schema: pa.Schema,
        *,
        key_names: Sequence[str] = (),
        group_rows: int = 64 * 1024,
        group_bytes: int = 64 << 20,
    ) -> None:
        self.path = path
        self.schema = schema
        self.rows = 0
        self.held_bytes = 0
        self._file_system = file_system
        self._key_names = key_names
        self._group_rows = group_rows
        self._group_bytes = group_bytes
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._sink: SeamSink | None = None
        self._stream: pa.BufferedOutputStream | None = None
        self._writer: pq.ParquetWriter | None = None
        self._collected: list[pq.FileMetaData] = []
        self._deletes = 0
        self._unmatched = 0
        self._floats = [field.name for field in schema if pa.types.is_floating(field.type)]
        self._nan: set[str] = set()

    @property
    def started(self) -> bool:
        """Tell whether the file exists."""
        return self._sink is not None

    @property
    def bytes_written(self) -> int:
        """Return the size of the file so far."""
        return 0 if self._stream is None else int(self._stream.tell())

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows with the columns of the schema, in its order."""
        if not batch.num_rows:
            return
        batch = pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)
        self._count(batch)
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self.held_bytes += batch.nbytes
        large = self.held_bytes >= self._group_bytes
        if large or self._pending_rows >= self._group_rows:
            self._write_groups(whole=large)

    def drain(self) -> None:
        """Write all held rows as a row group, which may be small."""
        self._write_groups(whole=True)

    def finish(self, metadata: Mapping[str, str]) -> FileFacts:
        """Write the rest and the footer with `metadata`; the file is durable on return.

        Its name is not: sync the directory.
        """
        self.drain()
        writer, sink = self._open()
        counts = _Counts(self._deletes, self._unmatched, tuple(sorted(self._nan)))
        text = msgspec.json.encode(counts).decode()
        writer.add_key_value_metadata({**metadata, COUNTS_KEY: text})
        writer.close()
        assert self._stream is not None
        self._stream.flush()
        crc = sink.finish()
        footer = self._collected[0]
        return _facts(footer, self.schema, counts, size=sink.size, crc=sink.crc, footer_crc=crc)

    def abort(self) -> None:
        """Stop and remove the file, if possible."""
        self._pending.clear()
        if self._sink is None:
            return
        self._sink.abort()
        if self._writer is not None and self._writer.is_open:
            with contextlib.suppress(OSError, pa.ArrowException):
                self._writer.close()
        with contextlib.suppress(OSError):
            self._file_system.unlink(self.path)

    def _count(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        if "_op" in self.schema.names:
            self._deletes += pc.sum(pc.equal(batch.column("_op"), OP_DELETE)).as_py() or 0
            present = batch.column("_present")
            self._unmatched += len(present) - present.null_count
        for name in self._floats:
            if name not in self._nan and _has_nan(batch.column(name)):
                self._nan.add(name)

    def _write_groups(self, *, whole: bool) -> None:
        """Write full row groups, and with `whole` the rest as well."""
        if not self._pending:
            return
        table = pa.Table.from_batches(self._pending, self.schema)
        group_rows = self._group_rows
        count = len(table) if whole else len(table) // group_rows * group_rows
        rest = table.slice(count)
        self._pending = [batch for batch in rest.to_batches() if batch.num_rows]
        self._pending_rows = len(rest)
        self.held_bytes = sum(batch.nbytes for batch in self._pending)
        writer, _ = self._open(table)
        writer.write_table(table.slice(0, count), row_group_size=group_rows)

    def _open(self, sample: pa.Table | None = None) -> tuple[pq.ParquetWriter, SeamSink]:
        if self._writer is None or self._sink is None:
            repeating = _repeating(self.schema, sample)
            self._sink = SeamSink(self._file_system, self.path)
            # Buffered: each of the many small writes would be a call into Python.
            plain = pa.PythonFile(self._sink, mode="w")
            self._stream = pa.BufferedOutputStream(plain, STREAM_BUFFER_BYTES)
            self._writer = pq.ParquetWriter(
                self._stream,
                self.schema,
                metadata_collector=self._collected,
                **_options(self.schema, self._key_names, self._group_rows, repeating),
            )
        return self._writer, self._sink


def _has_nan(column: pa.Array) -> bool:
    """Tell whether a value is NaN; then the sum is NaN, which is faster to find."""
    total = pc.sum(column).as_py()
    return total is not None and math.isnan(total) and bool(pc.any(pc.is_nan(column)).as_py())


def _repeating(schema: pa.Schema, sample: pa.Table | None) -> list[str]:
    """Return the columns whose values repeat enough to be worth a dictionary."""
    names = [name for name in schema.names if name not in _PACKED]
    if sample is None or len(sample) < SAMPLE_ROWS_MIN:
        return names
    part = sample.slice(0, SAMPLE_ROWS)
    return [name for name in names if _repeats(part.column(name))]


def _repeats(column: pa.ChunkedArray) -> bool:
    return pa.types.is_nested(column.type) or 2 * len(column.unique()) <= len(column)


def _options(
    schema: pa.Schema,
    key_names: Sequence[str],
    group_rows: int,
    repeating: list[str],
) -> dict[str, object]:
    options: dict[str, object] = {
        "compression": "zstd",
        "compression_level": 1,
        "data_page_size": 1 << 20,
        "use_dictionary": repeating,
        "column_encoding": {name: _PACKED[name] for name in schema.names if name in _PACKED},
        "write_page_checksum": True,
        "write_page_index": True,
        "version": "2.6",
    }
    if "_offset" in schema.names:
        options["sorting_columns"] = [pq.SortingColumn(schema.get_field_index("_offset"))]
    blooms = [name for name in key_names if _has_bloom(schema.field(name).type)]
    if _HAS_BLOOM and blooms:
        bloom = {"ndv": group_rows, "fpp": BLOOM_RATIO}
        options["bloom_filter_options"] = dict.fromkeys(blooms, bloom)
    return options


def _has_bloom(data_type: pa.DataType) -> bool:
    """Tell whether a key column of a type gets a bloom filter.

    Parquet has none for booleans. For binaries DuckDB misreads the filter that Arrow writes, and
    would skip files that have the key.
    """
    types = pa.types
    kinds = (types.is_boolean, types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    return not any(is_kind(data_type) for is_kind in kinds)


def _facts(
    footer: pq.FileMetaData,
    schema: pa.Schema,
    counts: _Counts,
    *,
    size: int,
    crc: int,
    footer_crc: int,
) -> FileFacts:
    columns = column_ranges(footer, schema, nan=counts.nan)
    offsets, times = columns.get("_offset"), columns.get("_time")
    facts: dict[str, int] = {}
    if offsets is not None and isinstance(offsets.low, int) and isinstance(offsets.high, int):
        facts.update(offset_first=offsets.low, offset_last=offsets.high)
    if times is not None and isinstance(times.low, int) and isinstance(times.high, int):
        facts.update(time_first=times.low, time_last=times.high)
    return FileFacts(
        rows=footer.num_rows,
        bytes=size,
        crc=crc,
        footer_crc=footer_crc,
        columns={name: found for name, found in columns.items() if not name.startswith("_")},
        deletes=counts.deletes,
        unmatched=counts.unmatched,
        **facts,
    )


def open_parquet(file_system: FileSystem, path: str) -> tuple[pq.ParquetFile, SeamSource]:
    """Open a file for reads that verify page checksums; the caller releases the source.

    Raises:
        OSError: if it cannot be read.
        CorruptionError: if it is no whole Parquet file.
    """
    source = SeamSource(file_system, path)
    try:
        file = pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False)
    except (pa.ArrowException, OSError, ValueError) as error:
        source.release()
        if source.error is not None:
            raise source.error from error
        raise CorruptionError("file is no whole parquet file", path=path, reason=error) from error
    return file, source


def stored_schema(file: pq.ParquetFile) -> pa.Schema:
    """Return the columns as they were written: Parquet itself loses some units and names.

    Raises:
        CorruptionError: if the footer lacks the Arrow schema.
    """
    try:
        text = (file.metadata.metadata or {})[_SCHEMA_KEY]
        return pa.ipc.read_schema(pa.BufferReader(base64.b64decode(text)))
    except (KeyError, ValueError, pa.ArrowException) as error:
        raise CorruptionError("parquet file lacks its arrow schema", reason=error) from error


def read_facts(file_system: FileSystem, path: str) -> tuple[FileFacts, dict[str, str]]:
    """Return the facts of a file and its metadata, from its footer; all its bytes are read once.

    Raises:
        OSError: if it cannot be read.
        CorruptionError: if it is no whole file of `RowsWriter`.
    """
    file, source = open_parquet(file_system, path)
    try:
        found = file.metadata.metadata or {}
        texts = {key.decode(): value.decode() for key, value in found.items()}
        counts = msgspec.json.decode(texts[COUNTS_KEY], type=learnt(_Counts))
        facts = _facts(
            file.metadata,
            stored_schema(file),
            counts,
            size=source.size,
            crc=source.crc(),
            footer_crc=source.footer_crc(),
        )
    except (KeyError, ValueError, msgspec.MsgspecError) as error:
        raise CorruptionError("parquet file lacks its facts", path=path, reason=error) from error
    finally:
        source.release()
    return facts, texts


def file_crc(file_system: FileSystem, path: str) -> int:
    """Return the CRC32 of a whole file."""
    source = SeamSource(file_system, path)
    try:
        return source.crc()
    finally:
        source.release()
