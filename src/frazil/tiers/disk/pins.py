"""Pins of files in use: a retired file is unlinked when its last pin is closed."""

from __future__ import annotations

import os
import threading
from collections import Counter
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from frazil.tiers.disk.format import DiskFile


def _key(file: DiskFile) -> tuple[int, str]:
    return file.topic, file.name


class FilesPin(AbstractContextManager["FilesPin"]):
    """Keeps the bytes of files in place until it is closed. A context manager."""

    def __init__(self, pins: FilePins, files: tuple[DiskFile, ...]) -> None:
        self._pins = pins
        self.files = files
        self._open = True

    def close(self) -> None:
        """Unpin the files; closing twice is fine."""
        if self._open:
            self._open = False
            self._pins.unpin(self.files)

    def __exit__(self, *_: object) -> None:
        self.close()


class FilePins:
    """Counts the pins of files and removes retired files without a pin.

    Args:
        remove: removes a file from its directory; called without a lock held.
    """

    def __init__(self, remove: Callable[[DiskFile], None]) -> None:
        self._remove = remove
        self._counts: Counter[tuple[int, str]] = Counter()
        self._retired: dict[tuple[int, str], DiskFile] = {}
        self._lock = threading.Lock()
        self._owner = os.getpid()

    def pin(self, files: Iterable[DiskFile]) -> FilesPin:
        """Keep files until the pin is closed."""
        pinned = tuple(files)
        with self._lock:
            for key in map(_key, pinned):
                self._counts[key] += 1
        return FilesPin(self, pinned)

    def unpin(self, files: Sequence[DiskFile]) -> None:
        """Unpin files; remove those that were retired meanwhile."""
        if not files or os.getpid() != self._owner:
            # A forked child has copies of the pins; the files are its parent's.
            return
        with self._lock:
            # Subtracting drops the files without a pin.
            self._counts -= Counter(map(_key, files))
            free = [key for key in map(_key, files) if key not in self._counts]
            gone = [self._retired.pop(key) for key in free if key in self._retired]
        for file in gone:
            self._remove(file)

    def retire(self, files: Sequence[DiskFile]) -> None:
        """Remove files that are no longer registered, now or when their last pin is closed."""
        with self._lock:
            kept = {_key(file): file for file in files if self.pinned(file)}
            self._retired |= kept
        for file in files:
            if _key(file) not in kept:
                self._remove(file)

    def pinned(self, file: DiskFile) -> bool:
        """Tell whether a file is pinned."""
        return _key(file) in self._counts

    @property
    def retired_bytes(self) -> int:
        """Return the bytes of files that only a pin keeps."""
        with self._lock:
            return sum(file.size for file in self._retired.values())


class HistoryPin(AbstractContextManager["HistoryPin"]):
    """A reader's claim on a topic's records from an offset on, in memory only."""

    def __init__(self, forget: Callable[[HistoryPin], None], topic: int, offset: int) -> None:
        self._forget = forget
        self.topic = topic
        self.offset = offset

    def advance(self, offset: int) -> None:
        self.offset = max(self.offset, offset)

    def close(self) -> None:
        self._forget(self)

    def __exit__(self, *_: object) -> None:
        self.close()


class HistoryPins:
    """The pins of a history source's readers. Any number of threads may use it."""

    def __init__(self) -> None:
        self._pins: set[HistoryPin] = set()
        # Re-entrant: the garbage collector may close a forgotten reader at any point.
        self._pins_lock = threading.RLock()

    def pin(self, topic: int, *, offset: int) -> HistoryPin:
        """Keep a topic's records from `offset` on from eviction and expiry."""
        pin = HistoryPin(self._unpin, topic, offset)
        with self._pins_lock:
            self._pins.add(pin)
        return pin

    def _unpin(self, pin: HistoryPin) -> None:
        with self._pins_lock:
            self._pins.discard(pin)

    def pinned_offsets(self, topic: int) -> list[int]:
        """Return the offset that each open reader of the topic still needs."""
        with self._pins_lock:
            pins = tuple(self._pins)
        # Outside the lock: the garbage collector may close a forgotten reader right here.
        return [pin.offset for pin in pins if pin.topic == topic]
