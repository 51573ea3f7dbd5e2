"""Ranged reads of objects: what was asked for is kept a while, what comes next is fetched ahead.

Both are bounded by bytes, whatever the number of readers. Readers of the same place share one
request.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from frazil.errors import Closed, FrazilError, Unavailable
from frazil.tiers import LruCache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.objects.store import ObjectStore

__all__ = ["AHEAD_THREADS", "Fetcher", "Span"]

AHEAD_THREADS: Final = 4
STALE_CALLS: Final = 64
"""What was fetched ahead and not wanted within so many calls makes room for others."""


class Span(NamedTuple):
    """Bytes `[start, start + length)` of an object."""

    key: str
    start: int
    length: int


class _Ahead:
    """A span on its way or here, that nobody has asked for yet."""

    __slots__ = ("call", "future")

    def __init__(self, future: Future[bytes], call: int) -> None:
        self.future = future
        self.call = call


class Fetcher:
    """Gives spans of objects. Any number of threads may ask.

    Args:
        store: where objects lie; it has its own patience with errors that pass.
        ahead_bytes: the most that is fetched ahead, and the most that is kept of what was asked.
        threads: how many requests ahead run at once; with 0 nothing is fetched ahead.
    """

    def __init__(
        self, store: ObjectStore, *, ahead_bytes: int, threads: int = AHEAD_THREADS
    ) -> None:
        self._store = store
        self.ahead_bytes_max = ahead_bytes
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._kept: LruCache[bytes] = LruCache(ahead_bytes)
        self._ahead: OrderedDict[Span, _Ahead] = OrderedDict()
        self._under_way: dict[Span, Future[bytes]] = {}
        self._lock = threading.Lock()
        self._calls = 0
        self._is_closed = False
        self._trouble: Unavailable | None = None
        """Why the last request failed, if it did."""
        self._probing = threading.Lock()
        self.ahead_bytes = 0
        self.requests = 0
        self.bytes_fetched = 0

    @property
    def cache_bytes(self) -> int:
        """Return the memory of what is kept and of what is ahead."""
        return self._kept.nbytes + self.ahead_bytes

    def get(self, span: Span) -> bytes:
        """Return the bytes of a span: kept, ahead, on their way for somebody else, or fetched now.

        Raises what the store's `get` does.
        """
        kept = self._kept.get(span)
        if kept is not None:
            return kept
        with self._lock:
            if self._is_closed:
                raise Closed("reader of objects is closed")
            under_way = self._under_way.get(span)
            if under_way is None:
                ahead = self._ahead.pop(span, None)
                self.ahead_bytes -= 0 if ahead is None else span.length
                mine = self._under_way[span] = Future()
        if under_way is not None:
            return under_way.result()
        return self._settled(span, mine, ahead)

    def again(self, span: Span) -> bytes:
        """Fetch a span anew, because what came was damaged; what is kept of it is replaced."""
        self.forget(span)
        data = self._fetch(span)
        self._kept.put(span, data, span.length)
        return data

    def forget(self, span: Span) -> None:
        """Keep nothing of a span."""
        self._kept.forget(lambda key: key == span)

    def ahead(self, spans: Sequence[Span]) -> None:
        """Begin to fetch spans that will be wanted next, in this order, as far as there is room."""
        if not self._threads:
            return
        with self._lock:
            self._calls += 1
            for span in spans:
                found = self._ahead.get(span)
                if found is not None:
                    found.call = self._calls
                    self._ahead.move_to_end(span)
                    continue
                if self._is_closed or not self._has_room(span.length):
                    return
                if span in self._under_way or self._kept.get(span) is not None:
                    continue
                future = self._workers().submit(self._fetch, span)
                self._ahead[span] = _Ahead(future, self._calls)
                self.ahead_bytes += span.length

    def close(self) -> None:
        """Forget everything; requests on their way end by themselves."""
        with self._lock:
            self._is_closed = True
            pool, self._pool = self._pool, None
            waiting = [found.future for found in self._ahead.values()]
            self._ahead.clear()
            self.ahead_bytes = 0
        for future in waiting:
            future.cancel()
        self._kept.forget()
        if pool is not None:
            # Not waited for: with a store that is down this would take as long as its patience.
            pool.shutdown(wait=False, cancel_futures=True)

    # -- the lock is held ------------------------------------------------------------------------

    def _has_room(self, length: int) -> bool:
        """Make room ahead by dropping what nobody wanted for long; tell whether it is enough."""
        while self.ahead_bytes + length > self.ahead_bytes_max:
            oldest = next(iter(self._ahead), None)
            if oldest is None or self._ahead[oldest].call > self._calls - STALE_CALLS:
                return False
            self._ahead.pop(oldest).future.cancel()
            self.ahead_bytes -= oldest.length
        return True

    def _workers(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="frazil-objects")
        return self._pool

    # -- requests --------------------------------------------------------------------------------

    def _settled(self, span: Span, mine: Future[bytes], ahead: _Ahead | None) -> bytes:
        """Bring a span for this thread and for all that wait for it."""
        try:
            data = None if ahead is None else self._arrived(ahead.future)
            if data is None:
                data = self._fetch(span)
        except BaseException as error:
            mine.set_exception(error)
            raise
        else:
            self._kept.put(span, data, span.length)
            mine.set_result(data)
            return data
        finally:
            with self._lock:
                del self._under_way[span]

    def _arrived(self, future: Future[bytes]) -> bytes | None:
        """Return what a request ahead brought; None if it failed and is worth another one."""
        try:
            return future.result()
        except (FrazilError, CancelledError):
            # Whatever it was, the reader who needs these bytes finds out by asking itself.
            return None

    def _fetch(self, span: Span) -> bytes:
        """Ask the store; while it is in trouble one thread tries, the others are told at once.

        A try takes as long as the store's patience: without this a store that is down would hold
        all threads that read, of other topics as well.
        """
        trouble = self._trouble
        if trouble is None:
            return self._ask(span)
        if not self._probing.acquire(blocking=False):
            raise Unavailable(trouble.message, **trouble.details)
        try:
            return self._ask(span)
        finally:
            self._probing.release()

    def _ask(self, span: Span) -> bytes:
        try:
            data = self._store.get(span.key, start=span.start, length=span.length)
        except Unavailable as error:
            self._trouble = error
            raise
        self._trouble = None
        with self._lock:
            self.requests += 1
            self.bytes_fetched += len(data)
        return data
