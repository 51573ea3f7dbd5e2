"""One open file of the disk tier: its row groups under the columns it was written with."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

import pyarrow as pa

from frazil.errors import CorruptionError
from frazil.schema import KeyShape
from frazil.tiers.disk.file import user_schema
from frazil.tiers.disk.parquet_file import open_parquet, stored_schema
from frazil.tiers.disk.runs import RUNS_KEY, decode_runs
from frazil.tiers.disk.stats import group_integers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.fs import FileSystem
    from frazil.tiers.disk.file import DiskFile
    from frazil.tiers.disk.runs import SentRun

__all__ = ["RowsFile"]


class RowsFile:
    """Reads a file's row groups; pages and footer are verified. Any thread may use it.

    Attributes:
        schema: all columns as they were written.
        columns: the topic's columns, without the system's.
        shape: the key columns, None for a file of a topic without key.
        starts: the row with which each row group starts, and the number of rows at the end.
        released: somebody closed it; open it again.
    """

    def __init__(self, file_system: FileSystem, path: str, file: DiskFile) -> None:
        self.file = file
        self.released = False
        self._path = path
        # pyarrow's reader is not made for two threads at once.
        self._lock = threading.Lock()
        self._parquet, self._source = open_parquet(file_system, path)
        try:
            self._bind()
        except OSError:
            self._source.release()
            raise
        except (CorruptionError, ValueError, pa.ArrowException) as error:
            self._source.release()
            raise self._damaged(error) from error

    def _bind(self) -> None:
        file, metadata = self.file, self._parquet.metadata
        if self._source.size != file.bytes or self._source.footer_crc() != file.footer_crc:
            raise ValueError("footer is not the one that was written")
        self.schema: pa.Schema = stored_schema(self._parquet)
        self.columns = user_schema(self.schema)
        self.shape = KeyShape(self.columns, file.key_ids) if file.key_ids else None
        counts = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
        self.starts = [0, *accumulate(counts)]
        # `_offset` is the first column.
        self._bounds = group_integers(metadata, 0)
        self._lasts = [last for _, last in self._bounds]

    @property
    def groups(self) -> int:
        """Return how many row groups there are."""
        return len(self._bounds)

    def group_of(self, row: int) -> int:
        """Return the row group of a row."""
        return bisect_right(self.starts, row) - 1

    def groups_between(self, first: int, end: int) -> range:
        """Return the row groups that may have offsets in `[first, end)`."""
        low = bisect_left(self._lasts, first)
        high = low
        while high < len(self._bounds) and self._bounds[high][0] < end:
            high += 1
        return range(low, high)

    def bounds(self, group: int) -> tuple[int, int]:
        """Return the first and last offset of a row group."""
        return self._bounds[group]

    def runs(self) -> list[SentRun]:
        """Return who sent the records of the file's set, as far as this file has it.

        Raises:
            CorruptionError: if its footer has something else in their place.
        """
        found = (self._parquet.metadata.metadata or {}).get(RUNS_KEY.encode())
        return [] if found is None else decode_runs(found.decode())

    def read(self, group: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return a row group, or some of its columns.

        Raises:
            CorruptionError: if its bytes are not those that were written.
            OSError: if they cannot be read.
        """
        with self._lock:
            if self.released:
                raise FileNotFoundError(self._path)
            try:
                table = self._parquet.read_row_group(group, columns=columns, use_threads=False)
                batch = self._restored(table)
            except (pa.ArrowException, OSError, ValueError) as error:
                failed, self._source.error = self._source.error, None
                if failed is not None:
                    raise failed from error
                raise self._damaged(error) from error
        if batch.num_rows != self.starts[group + 1] - self.starts[group]:
            raise self._damaged(ValueError("row group has another number of rows"))
        return batch

    def release(self) -> None:
        """Give the descriptor back; whoever is reading finishes first."""
        with self._lock:
            if not self.released:
                self.released = True
                self._source.release()

    def _restored(self, table: pa.Table) -> pa.RecordBatch:
        """Return one batch with the types as they were written."""
        fields = [self.schema.field(name) for name in table.column_names]
        arrays: list[pa.Array] = []
        for column, field in zip(table.columns, fields, strict=True):
            # One chunk is the rule, and is not copied.
            array = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
            arrays.append(array if array.type.equals(field.type) else array.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _damaged(self, error: Exception) -> CorruptionError:
        return CorruptionError(
            "file of the disk tier is damaged, run `frazil doctor`",
            path=self._path,
            offset_first=self.file.offset_first,
            offset_next=self.file.offset_last + 1,
            reason=error,
        )
