"""The object store interface: few calls, each with the same meaning on every kind of store.

Keys are relative to the configured root and have only the characters that Frazil uses.
`RetryingStore` adds retries to any store: bounded, with jitter, and limited by a budget (F24).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from frazil.clock import Clock, SystemClock
from frazil.errors import Closed, FrazilError, Unavailable

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "LIST_KEYS_MAX",
    "PART_BYTES",
    "PIECE_BYTES_MAX",
    "STREAM_BYTES",
    "ObjectMeta",
    "ObjectStore",
    "RetryingStore",
    "asked_pause_s",
]

PIECE_BYTES_MAX: Final = 4 << 20
"""The limit of an object that one request creates."""
STREAM_BYTES: Final = 1 << 20
"""The size of the pieces of a larger one."""
PART_BYTES: Final = 8 << 20
"""The size of its parts, of which one is in flight while the next one is put together."""
LIST_KEYS_MAX: Final = 1_000
REQUESTS_MAX: Final = 16
"""The limit of concurrent requests."""
RETRY_TIMEOUT_S: Final = 120.0
"""The deadline of a call, all its tries included."""
RETRY_DELAY_S: Final = 0.1
"""The limit of the first pause before a further try; it doubles with each try."""
RETRY_DELAY_MAX_S: Final = 20.0
RETRY_RATIO: Final = 0.2
"""Further tries as a share of calls, beyond the saved budget."""
RETRY_BUDGET_MAX: Final = 20.0
"""Further tries that can be saved up; a new store has them all."""

_Answer = TypeVar("_Answer")


class ObjectMeta(NamedTuple):
    """The store's description of an object."""

    key: str
    size: int
    etag: str
    """The store's ETag of this content; empty if it has none."""
    modified_us: int


class ObjectStore(Protocol):
    """One root in one store. Any thread may call; each call blocks until it is done.

    Every method raises `InvalidRequest` for a setting that the store refuses (credentials, bucket,
    endpoint; `setting` names it), and `Unavailable` for errors that may be temporary, with
    `retry_after_ms` if the store throttles. A failed write that may have succeeded has
    `outcome="unknown"`: check the object before writing again.
    """

    def put(self, key: str, data: Buffer) -> ObjectMeta:
        """Create an object of at most `PIECE_BYTES_MAX`; an existing object is never replaced.

        Raises:
            Conflict: the key has an object, perhaps from an earlier try of this call.
        """

    def put_stream(self, key: str, pieces: Iterable[Buffer]) -> ObjectMeta:
        """Write an object from pieces; it becomes visible whole or not at all.

        At most `PART_BYTES` of it are in flight. An object of the same key is replaced. An
        error of the pieces' iterator is raised unchanged, and no object is written.
        """

    def get(self, key: str, *, start: int, length: int) -> bytes:
        """Return the bytes `[start, start + length)`.

        Raises:
            NotFound: there is no such object, or it is shorter.
        """

    def head(self, key: str) -> ObjectMeta | None:
        """Return the description of an object, None if the key has none."""

    def list(self, prefix: str, *, after: str = "", limit: int = LIST_KEYS_MAX) -> list[ObjectMeta]:
        """Return objects whose keys start with `prefix`, sorted, from the first key after `after`.

        Recent writes may be missing; an empty page is the end.
        """

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; absent ones are ignored."""

    def close(self) -> None:
        """Close the connections."""


def asked_pause_s(error: FrazilError) -> float:
    """Return the pause that the store requested, 0 without one."""
    asked_ms = error.details.get("retry_after_ms")
    return asked_ms / 1000 if isinstance(asked_ms, int | float) else 0.0


class RetryingStore:
    """An `ObjectStore` that retries calls of another one.

    A deadline bounds all tries of a call. Pauses are random up to a length that doubles. Calls fill
    a budget of further tries, so that a failing store gets only few more calls than a working one.
    At most `requests_max` calls run at once.

    A put that is tried again may find the object of its first try: verify after a `Conflict`. A
    stream is written once.

    Attributes:
        retries: the number of further tries so far.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        timeout_s: float | None = None,
        clock: Clock | None = None,
        requests_max: int = REQUESTS_MAX,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        """Wrap a store.

        Args:
            store: the wrapped store; it is closed with this one.
            timeout_s: the deadline of a call, all its tries included; `RETRY_TIMEOUT_S` without it.
            clock: for deadlines and jitter.
            requests_max: the limit of concurrent calls.
            sleep: waits; the default is a pause that `close` ends.
        """
        self.retries = 0
        self._store = store
        self._timeout_s = RETRY_TIMEOUT_S if timeout_s is None else timeout_s
        self._clock = clock or SystemClock()
        self._closed = threading.Event()
        self._sleep = sleep or self._closed.wait
        self._lock = threading.Lock()
        self._budget = RETRY_BUDGET_MAX
        self._under_way = threading.Semaphore(requests_max)

    def put(self, key: str, data: Buffer) -> ObjectMeta:
        return self._retried(lambda: self._store.put(key, data))

    def put_stream(self, key: str, pieces: Iterable[Buffer]) -> ObjectMeta:
        return self._retried(lambda: self._store.put_stream(key, pieces), once=True)

    def get(self, key: str, *, start: int, length: int) -> bytes:
        return self._retried(lambda: self._store.get(key, start=start, length=length))

    def head(self, key: str) -> ObjectMeta | None:
        return self._retried(lambda: self._store.head(key))

    def list(self, prefix: str, *, after: str = "", limit: int = LIST_KEYS_MAX) -> list[ObjectMeta]:
        return self._retried(lambda: self._store.list(prefix, after=after, limit=limit))

    def delete(self, keys: Sequence[str]) -> None:
        self._retried(lambda: self._store.delete(keys))

    def close(self) -> None:
        """End all pauses, then close the store; waiting calls raise `Closed`."""
        self._closed.set()
        self._store.close()

    def _retried(self, call: Callable[[], _Answer], *, once: bool = False) -> _Answer:
        """Try a call until its deadline; `_admitted` ends the tries of a closed store."""
        deadline = self._clock.monotonic() + self._timeout_s
        with self._lock:
            self._budget = min(RETRY_BUDGET_MAX, self._budget + RETRY_RATIO)
        tries, outcome = 0, {}
        while True:
            tries += 1
            try:
                with self._admitted(deadline):
                    return call()
            except Unavailable as error:
                if error.details.get("outcome") == "unknown":
                    # Any of the tries may have written the object.
                    outcome = {"outcome": "unknown"}
                pause_s = self._pause_after(error, tries)
                if once or self._clock.monotonic() + pause_s >= deadline or not self._pay():
                    raise Unavailable(
                        error.message, **{**error.details, "tries": tries, **outcome}
                    ) from error
            self._sleep(pause_s)

    def _pause_after(self, error: Unavailable, tries: int) -> float:
        """Return a random pause up to a length that doubles, plus the store's requested pause."""
        longest_s = min(RETRY_DELAY_MAX_S, math.ldexp(RETRY_DELAY_S, min(tries - 1, 30)))
        chance = int.from_bytes(self._clock.random_bytes(4), "little") / 2**32
        return asked_pause_s(error) + longest_s * chance

    def _pay(self) -> bool:
        """Take one further try from the budget; return whether there was one."""
        with self._lock:
            if self._budget < 1:
                return False
            self._budget -= 1
            self.retries += 1
            return True

    @contextmanager
    def _admitted(self, deadline: float) -> Iterator[None]:
        """Wait until another call may run.

        Raises:
            Unavailable: no call may run before the deadline.
            Closed: the store was closed during the wait.
        """
        if not self._under_way.acquire(timeout=max(deadline - self._clock.monotonic(), 0.0)):
            raise Unavailable("too many calls of the object store are under way")
        try:
            if self._closed.is_set():
                raise Closed("object store is closed")
            yield
        finally:
            self._under_way.release()
