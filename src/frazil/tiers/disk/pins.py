"""Pins of files in use: a retired file is unlinked when its last pin is closed."""

from __future__ import annotations

import os
import threading
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self

    from frazil.tiers.disk.format import DiskFile


class FilesPin:
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

    def __enter__(self) -> Self:
        return self

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
            for file in pinned:
                self._counts[file.topic, file.name] += 1
        return FilesPin(self, pinned)

    def unpin(self, files: Iterable[DiskFile]) -> None:
        """Unpin files; remove those that were retired meanwhile."""
        if os.getpid() != self._owner:
            # A forked child has copies of the pins; the files are its parent's.
            return
        gone: list[DiskFile] = []
        with self._lock:
            for file in files:
                key = (file.topic, file.name)
                self._counts[key] -= 1
                if self._counts[key] <= 0:
                    del self._counts[key]
                    retired = self._retired.pop(key, None)
                    if retired is not None:
                        gone.append(retired)
        for file in gone:
            self._remove(file)

    def retire(self, files: Iterable[DiskFile]) -> None:
        """Remove files that are no longer registered, now or when their last pin is closed."""
        gone: list[DiskFile] = []
        with self._lock:
            for file in files:
                key = (file.topic, file.name)
                if self._counts.get(key):
                    self._retired[key] = file
                else:
                    gone.append(file)
        for file in gone:
            self._remove(file)

    def pinned(self, file: DiskFile) -> bool:
        """Tell whether a file is pinned."""
        return bool(self._counts.get((file.topic, file.name)))

    @property
    def retired_bytes(self) -> int:
        """Return the bytes of files that only a pin keeps."""
        with self._lock:
            return sum(file.size for file in self._retired.values())


class HistoryPin:
    """A reader's claim on a topic's records from an offset on, in memory only."""

    def __init__(self, forget: Callable[[HistoryPin], None], topic: int, offset: int) -> None:
        self._forget = forget
        self.topic = topic
        self.offset = offset

    def advance(self, offset: int) -> None:
        self.offset = max(self.offset, offset)

    def close(self) -> None:
        self._forget(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
