"""Small caches of the disk tier: values by bytes, and files kept open by number."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

__all__ = ["BytesCache", "OpenCache"]

T = TypeVar("T")


class BytesCache(Generic[T]):
    """The most recently used values whose bytes stay below a limit. Safe to share."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._values: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.nbytes = 0
        self.hits = 0
        self.misses = 0

    def get(self, key: Hashable) -> T | None:
        """Return a value and note its use."""
        with self._lock:
            found = self._values.get(key)
            if found is None:
                self.misses += 1
                return None
            self.hits += 1
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, value: T, nbytes: int) -> None:
        """Keep a value, unless it alone is above the limit; drop those unused for longest."""
        if nbytes > self._bytes_max:
            return
        with self._lock:
            self._drop(key)
            self._values[key] = (value, nbytes)
            self.nbytes += nbytes
            while self.nbytes > self._bytes_max:
                _, (_, size) = self._values.popitem(last=False)
                self.nbytes -= size

    def forget(self, matches: Callable[[Hashable], bool]) -> None:
        """Drop the values whose key matches."""
        with self._lock:
            for key in [key for key in self._values if matches(key)]:
                self._drop(key)

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._values.clear()
            self.nbytes = 0

    def _drop(self, key: Hashable) -> None:
        found = self._values.pop(key, None)
        if found is not None:
            self.nbytes -= found[1]


class OpenCache(Generic[T]):
    """Things that hold a descriptor, at most so many; the one unused for longest is closed.

    Two threads may open the same thing at once; one of the two is then closed again. `close` must
    bear that another thread is still using its argument.
    """

    def __init__(self, count_max: int, *, close: Callable[[T], None]) -> None:
        self._count_max = count_max
        self._close = close
        self._values: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable, open_one: Callable[[], T]) -> T:
        """Return what is open under a key, or open it; errors of opening come through."""
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._values.move_to_end(key)
                return found
        opened = open_one()
        closing: list[T] = []
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                closing.append(opened)
                opened = found
            else:
                self._values[key] = opened
                while len(self._values) > self._count_max:
                    closing.append(self._values.popitem(last=False)[1])
        for each in closing:
            self._close(each)
        return opened

    def forget(self, key: Hashable) -> None:
        """Close what is open under a key."""
        with self._lock:
            found = self._values.pop(key, None)
        if found is not None:
            self._close(found)

    def clear(self) -> None:
        """Close everything."""
        with self._lock:
            values = list(self._values.values())
            self._values.clear()
        for value in values:
            self._close(value)

    def values(self) -> list[T]:
        """Return what is open."""
        with self._lock:
            return list(self._values.values())
