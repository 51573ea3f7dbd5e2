"""Arrow batches from Parquet files and Arrow IPC files or streams, a bounded piece at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, Final

import pyarrow as pa

from frazil.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["arrow_batches", "parquet_batches"]

FILE_MAGIC: Final = b"ARROW1"


def parquet_batches(
    stream: BinaryIO, *, file: str, rows_max: int, passed: Callable[[int], None]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file in batches of at most `rows_max`.

    Raises:
        InvalidRequest: if it is no Parquet file, is cut short or damaged; the details have the
            first row that is missing.
    """
    import pyarrow.parquet as pq

    if not stream.seekable():
        raise InvalidRequest("Parquet cannot be read from a pipe, use a file", file=file)
    row = 0
    try:
        parquet = pq.ParquetFile(stream, pre_buffer=False, buffer_size=1 << 20)
        total = parquet.metadata.num_rows
        for batch in parquet.iter_batches(batch_size=rows_max):
            yield batch
            row += batch.num_rows
            passed(batch.nbytes)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidRequest(
            "Parquet file is damaged or cut short", file=file, row=row + 1, cause=error
        ) from error
    if row != total:
        raise InvalidRequest(
            "Parquet file has fewer rows than its footer declares", file=file, row=row + 1
        )


def arrow_batches(
    stream: BinaryIO, *, file: str, rows_max: int, passed: Callable[[int], None]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an Arrow IPC file or stream in batches of at most `rows_max`.

    Raises:
        InvalidRequest: as `parquet_batches`.
    """
    row = 0
    try:
        for batch in _ipc_batches(stream):
            for start in range(0, batch.num_rows, rows_max):
                yield batch.slice(start, rows_max)
            row += batch.num_rows
            passed(batch.nbytes)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidRequest(
            "Arrow data is damaged or cut short", file=file, row=row + 1, cause=error
        ) from error


def _ipc_batches(stream: BinaryIO) -> Iterator[pa.RecordBatch]:
    if stream.seekable():
        magic = stream.read(len(FILE_MAGIC))
        stream.seek(0)
        if magic == FILE_MAGIC:
            reader = pa.ipc.open_file(stream)
            for index in range(reader.num_record_batches):
                yield reader.get_batch(index)
            return
    yield from pa.ipc.open_stream(stream)
