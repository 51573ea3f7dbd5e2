"""The rows of a query: read ahead up to a number of bytes, the rest on the caller's request.

A result that was read ahead to its end has released its snapshot and connection before the caller
gets it. Any other result keeps both until it is read, closed or past its time limit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.types as pt

from frazil.errors import Closed, InvalidRequest
from frazil.schema.python_rows import python_rows

BATCH_ROWS: Final = 65_536


class Stream:
    """The open end of a running query: `read` gives the next batch, `close` frees everything.

    `read` and `close` may be called from different threads; `close` during a `read` waits for it.
    """

    def __init__(
        self,
        reader: pa.RecordBatchReader,
        failure: Callable[[OSError], Exception],
        release: Callable[[], None],
        defer: Callable[[Callable[[], None]], None],
    ) -> None:
        self.schema: pa.Schema = reader.schema
        self._reader = reader
        self._failure = failure
        self._release = release
        self._defer = defer
        self._lock = threading.RLock()
        self.closed = False

    def read(self) -> pa.RecordBatch | None:
        """Return the next batch; None at the end, when all resources are freed."""
        with self._lock:
            if self.closed:
                return None
            try:
                return self._reader.read_next_batch()
            except StopIteration:
                self.close()
                return None
            except OSError as error:
                self.close()
                raise self._failure(error) from error

    def close(self) -> None:
        """Release the query. A second call does nothing."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            self._reader.close()
            self._release()

    def close_if_idle(self) -> None:
        """Release the query unless a thread is reading: the interrupt ends that read."""
        if self._lock.acquire(blocking=False):
            try:
                self.close()
            finally:
                self._lock.release()

    def abandon(self) -> None:
        """Have another thread release the query soon.

        For finalizers: they may run while their thread holds a lock that closing needs.
        """
        if not self.closed:
            self._defer(self.close)


class Result:
    """The rows of one query, in the form that the caller chooses.

    `columns` are the names; `schema` also has the types. As a context manager the result closes
    itself. A result that was read ahead whole can be read several times, a larger one once.
    `forget` is called when the rows that were read ahead are dropped, also by finalizers.
    """

    def __init__(
        self,
        schema: pa.Schema,
        batches: Sequence[pa.RecordBatch] = (),
        *,
        stream: Stream | None = None,
        why_stopped: Callable[[], Exception | None] = lambda: None,
        integers: frozenset[int] = frozenset(),
        forget: Callable[[], object] = lambda: None,
    ) -> None:
        self.schema = schema
        self._batches: list[pa.RecordBatch] = list(batches)
        self._stream = stream
        self._why_stopped = why_stopped
        self._integers = integers
        self._forget = forget
        self._rows: list[tuple[Any, ...]] | None = None
        self._types: Sequence[pa.DataType] = ()
        self._consumed = False
        self._closed = False

    @classmethod
    def of_rows(
        cls, schema: pa.Schema, types: Sequence[pa.DataType], rows: list[tuple[Any, ...]]
    ) -> Result:
        """Return a result of looked-up rows; they are converted to Arrow only on request.

        `schema` is the schema that a scan would return, `types` are the types of the values.
        """
        result = cls(schema)
        result._types, result._rows = types, rows
        if any(map(_is_finer, types)):
            result._batches, result._rows = result.arrow().to_batches(), None
        return result

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema.names)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows as Arrow batches; the batches of a large result are not kept."""
        self._check_open()
        if self._stream is None:
            yield from self.arrow().to_batches()
            return
        yield from self._batches
        self._consumed = True
        while (batch := self._next()) is not None:
            yield batch

    def arrow(self) -> pa.Table:
        """Return all rows as an Arrow table."""
        self._check_open()
        if self._rows is not None:
            return self._arrow_of_rows()
        if self._stream is not None:
            while (batch := self._next()) is not None:
                self._batches.append(batch)
            self._stream = None
        return pa.Table.from_batches(self._batches, schema=self.schema)

    def rows(self) -> list[tuple[Any, ...]]:
        """Return all rows as tuples of Python values, as a topic's `read` returns them."""
        self._check_open()
        return self._to_rows(self.arrow()) if self._rows is None else list(self._rows)

    def df(self) -> Any:
        """Return all rows as a pandas data frame."""
        try:
            return self.arrow().to_pandas()
        except ImportError as error:
            raise InvalidRequest("df() needs pandas: pip install pandas") from error

    def pl(self) -> Any:
        """Return all rows as a polars data frame."""
        try:
            import polars as pl
        except ImportError as error:
            raise InvalidRequest("pl() needs polars: pip install polars") from error
        return pl.from_arrow(self.arrow())

    def close(self) -> None:
        """Free the result's rows; it cannot be read afterwards."""
        self._closed = True
        # An iteration under way keeps the list.
        self._batches = []
        self._forget()
        if self._stream is not None:
            self._stream.close()

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        if self._rows is not None:
            yield from self._rows
            return
        for batch in self.batches():
            yield from self._to_rows(pa.Table.from_batches([batch]))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self._forget()
        if self._stream is not None:
            self._stream.abandon()

    def _next(self) -> pa.RecordBatch | None:
        assert self._stream is not None
        was_closed = self._stream.closed
        batch = self._stream.read()
        if batch is None and was_closed:
            # Another thread closed the result, so the rows so far are not complete.
            why = self._why_stopped()
            raise why if why is not None else Closed("result is closed, run the query again")
        return batch

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("result is closed, run the query again")
        if self._consumed:
            raise InvalidRequest("a large result can be read once, run the query again")

    def _arrow_of_rows(self) -> pa.Table:
        """Return the looked-up rows as the table that a scan would return."""
        assert self._rows is not None
        columns = list(zip(*self._rows, strict=True)) or [()] * len(self.schema)
        arrays = [
            pa.array(values, data_type).cast(field.type, safe=False)
            for values, data_type, field in zip(columns, self._types, self.schema, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def _to_rows(self, table: pa.Table) -> list[tuple[Any, ...]]:
        columns = [_values(column) for column in table.columns]
        for index in self._integers:
            columns[index] = [_integer(value) for value in columns[index]]
        return list(zip(*columns, strict=True))


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Return a column as Python values; without pandas, nanoseconds are cut to microseconds."""
    try:
        values: list[Any] = column.to_pylist()
    except ValueError:
        # Column by column: two columns may have the same name.
        rows = python_rows(pa.Table.from_arrays([column], names=["column"]))
        values = [row["column"] for row in rows]
    return values


def _integer(value: Decimal | None) -> int | None:
    return None if value is None else int(value)


def _is_finer(data_type: pa.DataType) -> bool:
    """Return whether a type, or a type nested in it, is finer than the precision of SQL."""
    if pt.is_timestamp(data_type):
        return data_type.unit == "ns" and data_type.tz is not None
    fields = (data_type.field(index) for index in range(data_type.num_fields))
    return any(_is_finer(field.type) for field in fields)
