"""Patience with an object store: tries again, but never for ever and never in a crowd (F24).

Every call has a deadline that holds for all its tries. Pauses grow and are random up to their full
length; the store's own wish is the least of them. Further tries are paid from a budget that calls
fill, so that a store that is down is not asked many times as often as one that works. Calls under
way are bounded; the bound is halved when the store asks for patience and grows back with success.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from frazil.clock import Clock, SystemClock
from frazil.errors import Closed, Unavailable
from frazil.objects.failures import is_throttled
from frazil.objects.store import LIST_KEYS_MAX, ObjectMeta

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from frazil.config.objects import ObjectsSettings
    from frazil.objects.store import ObjectStore

__all__ = ["Patient"]

BUDGET_MAX: Final = 20.0
"""So many further tries can be saved up; a start has them all."""
HALVINGS_APART_S: Final = 1.0
"""One storm refuses many calls at once: they halve the bound once."""

_Answer = TypeVar("_Answer")


class Patient:
    """An `ObjectStore` that asks another one, patiently.

    A put that is tried again may find the object of its first try: its `Conflict` does not tell
    whose object is there, look at it. A stream is written again only if its pieces can be iterated
    twice: give a list or an object with `__iter__`, not a generator, where that is wanted.

    Attributes:
        calls: how many calls were made.
        retries: how many further tries.
        gave_up: how many calls failed in spite of it.
    """

    def __init__(
        self,
        store: ObjectStore,
        settings: ObjectsSettings,
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        """Wrap a store.

        Args:
            store: is closed with this one.
            settings: deadlines, pauses, budget and bound.
            clock: for deadlines and chance.
            sleep: lets time pass; without it a pause that `close` ends.
        """
        self.calls = 0
        self.retries = 0
        self.gave_up = 0
        self._store = store
        self._settings = settings
        self._clock = clock or SystemClock()
        self._closed = threading.Event()
        self._sleep = sleep or self._pause
        self._state = threading.Condition()
        self._budget = BUDGET_MAX
        self._under_way = 0
        self._bound = float(settings.requests_max)
        self._halved_at = -math.inf

    @property
    def bound(self) -> int:
        """So many requests may be under way now."""
        return max(1, int(self._bound))

    # -- the protocol -----------------------------------------------------------------------------

    def put(self, key: str, data: Buffer) -> ObjectMeta:
        return self._patiently(lambda: self._store.put(key, data))

    def put_stream(self, key: str, pieces: Iterable[Buffer], *, size: int) -> ObjectMeta:
        once = iter(pieces) is pieces
        return self._patiently(lambda: self._store.put_stream(key, pieces, size=size), once=once)

    def get(self, key: str, *, start: int, length: int) -> bytes:
        return self._patiently(lambda: self._store.get(key, start=start, length=length))

    def head(self, key: str) -> ObjectMeta | None:
        return self._patiently(lambda: self._store.head(key))

    def list(self, prefix: str, *, after: str = "", limit: int = LIST_KEYS_MAX) -> list[ObjectMeta]:
        return self._patiently(lambda: self._store.list(prefix, after=after, limit=limit))

    def delete(self, keys: Sequence[str]) -> None:
        self._patiently(lambda: self._store.delete(keys))

    def close(self) -> None:
        """End all pauses, then close the store: who waits gets `Closed`."""
        self._closed.set()
        with self._state:
            self._state.notify_all()
        self._store.close()

    # -- how it is patient ------------------------------------------------------------------------

    def _patiently(self, call: Callable[[], _Answer], *, once: bool = False) -> _Answer:
        deadline = self._clock.monotonic() + self._settings.retry_timeout_s
        with self._state:
            self.calls += 1
            self._budget = min(BUDGET_MAX, self._budget + self._settings.retry_ratio)
        tries = 0
        unknown = False
        while True:
            tries += 1
            try:
                with self._place(deadline):
                    answer = call()
            except Unavailable as error:
                unknown = unknown or error.details.get("outcome") == "unknown"
                pause_s = self._before_next(error, tries)
                late = self._clock.monotonic() + pause_s >= deadline
                if once or late or not self._pay():
                    with self._state:
                        self.gave_up += 1
                    raise _told(error, tries, unknown=unknown) from error
                self._sleep(pause_s)
                if self._closed.is_set():
                    raise Closed("object store is closed") from error
            else:
                self._succeeded()
                return answer

    def _before_next(self, error: Unavailable, tries: int) -> float:
        """Return how long to wait: at random up to a length that doubles, and what was wished."""
        if is_throttled(error):
            self._throttled()
        settings = self._settings
        doubled_s = math.ldexp(settings.retry_delay_s, min(tries - 1, 30))
        longest_s = min(settings.retry_delay_max_s, doubled_s)
        chance = int.from_bytes(self._clock.random_bytes(4), "little") / 2**32
        wished = error.details.get("retry_after_ms", 0)
        wished_s = wished / 1000 if isinstance(wished, int | float) else 0.0
        return wished_s + longest_s * chance

    def _pay(self) -> bool:
        """Take one further try from the budget; tell whether there was one."""
        with self._state:
            if self._budget < 1:
                return False
            self._budget -= 1
            self.retries += 1
            return True

    @contextmanager
    def _place(self, deadline: float) -> Iterator[None]:
        """Wait for a place among the calls under way.

        Raises:
            Unavailable: there was none until the deadline.
            Closed: the store was closed meanwhile.
        """
        with self._state:
            while self._under_way >= self.bound and not self._closed.is_set():
                left_s = deadline - self._clock.monotonic()
                if left_s <= 0:
                    raise Unavailable("too many calls of the object store are under way")
                self._state.wait(min(left_s, 1.0))
            if self._closed.is_set():
                raise Closed("object store is closed")
            self._under_way += 1
        try:
            yield
        finally:
            with self._state:
                self._under_way -= 1
                self._state.notify()

    def _throttled(self) -> None:
        with self._state:
            now = self._clock.monotonic()
            if now - self._halved_at >= HALVINGS_APART_S:
                self._halved_at = now
                self._bound = max(1.0, self._bound / 2)

    def _succeeded(self) -> None:
        """Let the bound grow by one a round of calls."""
        with self._state:
            if self._bound < self._settings.requests_max:
                self._bound = min(self._settings.requests_max, self._bound + 1 / self._bound)
                self._state.notify()

    def _pause(self, seconds: float) -> None:
        self._closed.wait(seconds)


def _told(error: Unavailable, tries: int, *, unknown: bool) -> Unavailable:
    """Return the last error with what all tries have in common: one of them may have written."""
    facts = {**error.details, "tries": tries}
    if unknown:
        facts["outcome"] = "unknown"
    return Unavailable(error.message, **facts)
