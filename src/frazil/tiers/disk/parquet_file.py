"""Parquet files through the file seam: writing row by row group, reading, and their facts.

Everything that pyarrow reads or writes goes through `frazil.fs`, so that crashes and faults of the
disk can be simulated. Pages carry checksums, which every read verifies; the footer and the whole
file have checksums of their own, kept outside the file. `docs/internals/disk.md` has the layout.
"""

from __future__ import annotations

import base64
import contextlib
import inspect
import math
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from frazil.errors import CorruptionError
from frazil.model import OP_DELETE
from frazil.struct_types import learnt
from frazil.tiers.disk.seam import SeamSink, SeamSource
from frazil.tiers.disk.stats import ColumnRange, column_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from frazil.fs import FileSystem

__all__ = [
    "FileFacts",
    "ParquetSettings",
    "RowsWriter",
    "SeamSink",
    "SeamSource",
    "file_crc",
    "open_parquet",
    "read_facts",
    "stored_schema",
]

COUNTS_KEY: Final = "frazil.counts"
STREAM_BUFFER_BYTES: Final = 1 << 20
SAMPLE_ROWS: Final = 4096
SAMPLE_ROWS_MIN: Final = 256
_SCHEMA_KEY: Final = b"ARROW:schema"
_PACKED: Final = {"_offset": "DELTA_BINARY_PACKED", "_time": "DELTA_BINARY_PACKED"}
_HAS_BLOOM: Final = (
    "bloom_filter_options" in inspect.signature(pq.ParquetWriter.__init__).parameters
)


class ParquetSettings(NamedTuple):
    """The shape of the files."""

    row_group_rows: int = 64 * 1024
    row_group_bytes: int = 64 << 20
    """A row group is ended when its rows take so much memory."""
    compression: str = "zstd"
    level: int = 1
    page_bytes: int = 1 << 20
    bloom_ratio: float = 0.01
    """How often a bloom filter of a key column may say yes to an absent key."""


class FileFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a finished file holds. Times are microseconds; an empty file has no offsets or times."""

    rows: int
    bytes: int
    crc: int
    footer_crc: int
    offset_first: int = 0
    offset_last: int = -1
    time_first: int = 0
    time_last: int = 0
    columns: dict[str, ColumnRange] = {}
    deletes: int = 0
    partials: int = 0


class _Counts(msgspec.Struct, frozen=True):
    """What the writer counted, kept in the footer."""

    deletes: int = 0
    partials: int = 0
    nan: tuple[str, ...] = ()


class RowsWriter:
    """Writes one Parquet file, row group by row group, never holding more than one of them.

    The file is created with the first row group. Nothing is durable before `finish`; whoever does
    not reach it calls `abort`.

    Attributes:
        rows: how many rows it was given.
        held_bytes: the memory of the rows that are not in the file yet.
    """

    def __init__(
        self,
        file_system: FileSystem,
        path: str,
        schema: pa.Schema,
        *,
        key_names: Sequence[str] = (),
        settings: ParquetSettings | None = None,
        throttle: Callable[[int], None] | None = None,
    ) -> None:
        self.path = path
        self.schema = schema
        self.rows = 0
        self.held_bytes = 0
        self._file_system = file_system
        self._key_names = key_names
        self._settings = settings or ParquetSettings()
        self._throttle = throttle
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._sink: SeamSink | None = None
        self._stream: pa.BufferedOutputStream | None = None
        self._writer: pq.ParquetWriter | None = None
        self._collected: list[pq.FileMetaData] = []
        self._deletes = 0
        self._partials = 0
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
        """Take rows whose columns are those of the schema, in its order."""
        if not batch.num_rows:
            return
        batch = pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)
        self._count(batch)
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self.held_bytes += batch.nbytes
        if (
            self._pending_rows >= self._settings.row_group_rows
            or self.held_bytes >= self._settings.row_group_bytes
        ):
            self._write_groups(whole=self.held_bytes >= self._settings.row_group_bytes)

    def drain(self) -> None:
        """Put all rows that are held into the file, as a row group that may be small."""
        self._write_groups(whole=True)

    def finish(self, metadata: Mapping[str, str]) -> FileFacts:
        """Write the rest and the footer with `metadata`; the file is durable on return.

        Its name is not: sync the directory.
        """
        self.drain()
        writer, sink = self._open()
        counts = _Counts(self._deletes, self._partials, tuple(sorted(self._nan)))
        text = msgspec.json.encode(counts).decode()
        writer.add_key_value_metadata({**metadata, COUNTS_KEY: text})
        writer.close()
        assert self._stream is not None
        self._stream.flush()
        crc = sink.finish()
        footer = self._collected[0]
        return _facts(footer, self.schema, counts, size=sink.size, crc=sink.crc, footer_crc=crc)

    def abort(self) -> None:
        """Stop and remove the file, if that is possible."""
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
            self._partials += len(present) - present.null_count
        for name in self._floats:
            if name not in self._nan and _has_nan(batch.column(name)):
                self._nan.add(name)

    def _write_groups(self, *, whole: bool) -> None:
        """Write full row groups, and with `whole` also what is left over."""
        if not self._pending:
            return
        table = pa.Table.from_batches(self._pending, self.schema)
        group_rows = self._settings.row_group_rows
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
            self._sink = SeamSink(self._file_system, self.path, throttle=self._throttle)
            # A Parquet file is many small writes, and each would be a call into Python.
            plain = pa.PythonFile(self._sink, mode="w")
            self._stream = pa.BufferedOutputStream(plain, STREAM_BUFFER_BYTES)
            self._writer = pq.ParquetWriter(
                self._stream,
                self.schema,
                metadata_collector=self._collected,
                **_options(self.schema, self._key_names, self._settings, repeating),
            )
        return self._writer, self._sink


def _has_nan(column: pa.Array) -> bool:
    """Tell whether a value is not a number; then their sum is none either, which is found faster."""
    total = pc.sum(column).as_py()
    return total is not None and math.isnan(total) and bool(pc.any(pc.is_nan(column)).as_py())


def _repeating(schema: pa.Schema, sample: pa.Table | None) -> list[str]:
    """Return the columns whose values repeat, so that a dictionary of them is worth its cost."""
    names = [name for name in schema.names if name not in _PACKED]
    if sample is None or len(sample) < SAMPLE_ROWS_MIN:
        return names
    part = sample.slice(0, SAMPLE_ROWS)
    found: list[str] = []
    for name in names:
        column = part.column(name)
        if pa.types.is_nested(column.type) or 2 * len(column.unique()) <= len(part):
            found.append(name)
    return found


def _options(
    schema: pa.Schema,
    key_names: Sequence[str],
    settings: ParquetSettings,
    repeating: list[str],
) -> dict[str, object]:
    options: dict[str, object] = {
        "compression": settings.compression,
        "compression_level": settings.level,
        "data_page_size": settings.page_bytes,
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
        bloom = {"ndv": settings.row_group_rows, "fpp": settings.bloom_ratio}
        options["bloom_filter_options"] = dict.fromkeys(blooms, bloom)
    return options


def _has_bloom(data_type: pa.DataType) -> bool:
    """Tell whether a key column of a type gets a bloom filter.

    The format has none for booleans. For binaries DuckDB does not probe it as Arrow writes it: it
    would take a file that has the key for one that has not.
    """
    return not (pa.types.is_boolean(data_type) or _is_bytes(data_type))


def _is_bytes(data_type: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(data_type)
        or pa.types.is_large_binary(data_type)
        or pa.types.is_fixed_size_binary(data_type)
    )


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
        partials=counts.partials,
        **facts,
    )


def open_parquet(file_system: FileSystem, path: str) -> tuple[pq.ParquetFile, SeamSource]:
    """Open a file for reads that verify the checksum of each page; the source is to be released.

    Raises:
        OSError: if it cannot be read.
        CorruptionError: if it was read and is no Parquet file.
    """
    source = SeamSource(file_system, path)
    try:
        file = pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        source.release()
        if source.error is not None:
            raise source.error from error
        raise CorruptionError("file is no whole parquet file", path=path, reason=error) from error
    return file, source


def stored_schema(file: pq.ParquetFile) -> pa.Schema:
    """Return the columns as they were written: Parquet itself forgets some units and names.

    Raises:
        CorruptionError: if the footer does not tell.
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
        CorruptionError: if it is no whole file that `RowsWriter` wrote.
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
