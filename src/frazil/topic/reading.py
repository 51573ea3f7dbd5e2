"""Readers of one topic: from an offset or a time, up to the head or without end."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import threading
from typing import TYPE_CHECKING, Final

from frazil.errors import InvalidRequest, NotFound
from frazil.model import OffsetRange
from frazil.topic.admission import waker
from frazil.topic.runtime import microseconds
from frazil.units import is_whole, parse_bytes, parse_duration_s

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from types import TracebackType
    from typing import Self

    from frazil.log import Batch, Piece
    from frazil.topic.runtime import TopicRuntime

READ_BYTES: Final = 4 << 20
"""The default size of the batches that a read returns."""
Start = int | str | dt.datetime
"""An offset, `"earliest"`, `"latest"`, or a time."""


def start_offset(runtime: TopicRuntime, start: Start) -> int:
    """Return the current offset of a start.

    Raises:
        InvalidRequest: if it is neither an offset, `earliest`, `latest` nor a time.
    """
    if is_whole(start) and start >= 0:
        return start
    held = runtime.history.range(runtime.state.id)
    if isinstance(start, dt.datetime):
        found = runtime.history.offset_at(runtime.state.id, time_us=microseconds(start))
        return held.end if found is None else found
    if start == "earliest":
        return held.first
    if start == "latest":
        return held.end
    raise InvalidRequest(
        "start must be an offset from 0 on, 'earliest', 'latest' or a datetime", start=start
    )


def _checked_limit(limit: object) -> int | None:
    if limit is None or (is_whole(limit) and limit >= 0):
        return limit
    raise InvalidRequest("limit must be a number of records from 0 on", limit=limit)


class Reader:
    """Batches of one topic in offset order; an iterator and a context manager.

    The reader pins the records from its position on, so that retention does not remove them;
    close it (or read it to its end) to release them. `gaps` collects the declared ranges without
    records that it passed.
    """

    _looks_up_later = False
    """Whether the first read finds the start: looking up a time may read files or objects."""

    def __init__(
        self,
        runtime: TopicRuntime,
        *,
        start: Start,
        follow: bool,
        limit: int | None = None,
        bytes_max: int | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self._runtime = runtime
        self._follow = follow
        self._left = _checked_limit(limit)
        self._timeout_s = None if timeout_s is None else parse_duration_s(timeout_s)
        self._bytes_max = READ_BYTES if bytes_max is None else parse_bytes(bytes_max)
        if self._bytes_max < 1:
            raise InvalidRequest("bytes_max must be at least 1", bytes_max=bytes_max)
        late = self._looks_up_later and isinstance(start, dt.datetime)
        self._time = start if late else None
        self.offset = start_offset(runtime, "earliest" if late else start)
        self.gaps: list[OffsetRange] = []
        with runtime.log.pinning:
            # Retention sees the pin before it frees records, or the first read sees the new start.
            self._pin = runtime.history.pin(runtime.state.id, offset=self.offset)
            self._held = runtime.history.range(runtime.state.id).first <= self.offset
        self._end = runtime.history.range(runtime.state.id).end
        self._may_skip = not isinstance(start, int)
        """Whether the start may still move forwards: no read yet, and no offset was named."""
        self._ready: list[Batch] = []
        self._closed = False

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        while True:
            batch = self.poll()
            if batch is not None:
                return batch
            if self._is_done() or not self._wait():
                self.close()
                raise StopIteration

    def poll(self) -> Batch | None:
        """Return the next batch if there is one, without waiting.

        Raises:
            NotFound: if the position was removed; the error names the first offset that is kept.
            CorruptionError: if the records at the position are lost; the error names the next
                offset that can be read.
            Closed: if the engine was closed.
        """
        if not self._is_over():
            self._fetch()
        return self._pop()

    def _fetch(self) -> bool:
        """Read until batches are ready; return False if there are no more for now."""
        if self._time is not None:
            self.offset = max(self.offset, start_offset(self._runtime, self._time))
            self._time = None
            self._pin.advance(self.offset)
        while not self._ready:
            if not self._follow and self.offset >= self._end:
                return False
            piece = self._read_piece()
            for gaps in (piece.gaps, *(each.gaps for each in piece.batches)):
                self.gaps.extend(gaps)
            self._ready = piece.batches[::-1]
            if not self._ready and piece.offset_next == self.offset:
                return False
            if not self._ready:
                self.offset = piece.offset_next
        return True

    def _pop(self) -> Batch | None:
        """Return the next batch that was read already, cut to the requested range."""
        if self._is_over() or not self._ready:
            return None
        batch = self._ready.pop()
        if not self._follow and batch.offset >= self._end:
            # It was appended after this read began, so the next read returns it.
            self._ready = []
            self.offset = self._end
            return None
        return self._trimmed(batch)

    def _read_piece(self) -> Piece:
        history, topic = self._runtime.history, self._runtime.state.id
        journal = self._runtime.log.journal
        if journal.closed:
            # Another process may own the files now.
            raise journal.closed_error()
        try:
            return history.read(topic, offset=self.offset, bytes_max=self._bytes_max)
        except NotFound:
            if not self._held and not self._may_skip:
                # The position will not return, and this reader keeps no records after it.
                self._pin.close()
                raise
        position = self.offset
        behind_files = self._held and self._is_behind_files()
        source = self._runtime.log.source if behind_files else history
        self.offset = max(position, source.range(topic).first)
        piece = history.read(topic, offset=self.offset, bytes_max=self._bytes_max)
        if self.offset == position or not self._held:
            # Records were moving from one source to another, or retention moved the start between
            # its check and the pin.
            return piece
        # Pinned records are kept unless a quota expired them. So this is a declared gap, and its
        # declaration was removed with the records before it.
        gap = OffsetRange(position, self.offset, "declared gap")
        if not piece.batches:
            return piece._replace(gaps=(gap, *piece.gaps))
        piece.batches[0].gaps = (gap, *piece.batches[0].gaps)
        return piece

    def _is_behind_files(self) -> bool:
        """Return whether all records in files were read: later records can only be in the log."""
        tiers = self._runtime.tiers
        return tiers is not None and 0 < tiers.flushed <= self.offset

    def _trimmed(self, batch: Batch) -> Batch:
        keep = batch.count
        if not self._follow:
            keep = min(keep, self._end - batch.offset)
        if self._left is not None:
            keep = min(keep, self._left)
            self._left -= keep
        if keep < batch.count:
            batch = batch.slice(0, keep)
        self.offset = batch.offset_next
        self._may_skip = False
        self._pin.advance(self.offset)
        return batch

    def _is_over(self) -> bool:
        return self._closed or self._left == 0

    def _is_done(self) -> bool:
        return self._is_over() or not self._follow

    def _wait(self) -> bool:
        """Wait until there are new records; return False on timeout."""
        event = threading.Event()
        state = self._runtime.state
        wake = event.set
        state.waiters.append(wake)
        try:
            if not self._has_news() and not event.wait(self._timeout_s):
                return False
        finally:
            _forget(state.waiters, wake)
        self._check_open()
        return True

    def _has_news(self) -> bool:
        state, journal = self._runtime.state, self._runtime.log.journal
        ended = journal.closed or bool(journal.failed) or bool(state.spec.deleted_us)
        return state.durable > self.offset or ended

    def _check_open(self) -> None:
        journal = self._runtime.log.journal
        state = self._runtime.state
        if state.durable > self.offset:
            return
        if journal.closed or journal.failed:
            self.close()
            raise journal.closed_error()
        if state.spec.deleted_us:
            self.close()
            raise NotFound("topic was deleted", topic=state.spec.name)

    def close(self) -> None:
        """Release the records; closing twice is allowed."""
        if not self._closed:
            self._closed = True
            self._ready = []
            self._pin.close()

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
        if hasattr(self, "_closed"):
            self.close()


class AsyncReader(Reader):
    """A reader for asyncio: `async for batch in reader`. File reads run in a worker thread.

    A cancelled call loses no record: the next call returns the batches that the worker fetched.
    """

    _looks_up_later = True
    _fetching: asyncio.Future[bool] | None = None

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self

    async def __anext__(self) -> Batch:
        loop = asyncio.get_running_loop()
        while True:
            batch = None if self._fetching is not None else self._pop()
            while batch is None and not self._is_over() and await self._fetched(loop):
                # None if another call returned it, or if it was appended after this read began.
                batch = self._pop()
            if batch is not None:
                return batch
            if self._is_done() or not await self._wait_async(loop):
                self.close()
                raise StopAsyncIteration

    async def _fetched(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Wait for the current fetch, or start one; there is never more than one."""
        fetching = self._fetching
        if fetching is None:
            fetching = self._fetching = loop.run_in_executor(None, self._fetch)
        try:
            return await asyncio.shield(fetching)
        finally:
            if fetching.done() and self._fetching is fetching:
                self._fetching = None

    async def _wait_async(self, loop: asyncio.AbstractEventLoop) -> bool:
        woken = asyncio.Event()
        wake = waker(loop, woken.set)
        state = self._runtime.state
        state.waiters.append(wake)
        try:
            if not self._has_news():
                await asyncio.wait_for(woken.wait(), self._timeout_s)
        except TimeoutError:
            return False
        finally:
            _forget(state.waiters, wake)
        self._check_open()
        return True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


def _forget(waiters: list[Callable[[], None]], waiter: Callable[[], None]) -> None:
    with contextlib.suppress(ValueError):
        waiters.remove(waiter)
