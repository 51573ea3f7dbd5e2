"""Damage of the disk tier's files: finding it, telling it, and letting the log write them anew."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, NamedTuple

from frazil.errors import Unavailable
from frazil.telemetry import warn
from frazil.tiers.disk.file import parse_name
from frazil.tiers.disk.parquet_file import file_crc

if TYPE_CHECKING:
    from collections.abc import Callable

    from frazil.tiers.disk.file import DiskFile, SetName
    from frazil.tiers.disk.tier import DiskTier

__all__ = ["DiskVerifier"]

SCRUB_BYTES: Final = 256 << 20
REBUILD_WAIT_S: Final = 5.0
RETRY_S: Final = 60.0
"""The engine is asked so often at most to rebuild the same file."""


class _Seen(NamedTuple):
    """A file as it was when its bytes were verified."""

    modified_ns: int
    size: int


class DiskVerifier:
    """Knows which files were verified and which are damaged. Any thread may use it.

    Attributes:
        must_wait: tells whether the calling thread has a lock of a topic's under which none of its
            files may be rebuilt, and sees to it that another thread does it; set by the engine.
    """

    def __init__(self, tier: DiskTier) -> None:
        self._tier = tier
        self.must_wait: Callable[[int], bool] | None = None
        self._lock = threading.Lock()
        self._rebuilding = threading.Lock()
        self._seen: dict[tuple[int, str], _Seen] = {}
        self._checked_us: dict[tuple[int, str], int] = {}
        self._damaged: dict[tuple[int, str], str] = {}
        self._asked: dict[tuple[int, str], float] = {}

    def note_written(self, file: DiskFile) -> None:
        """Take a file that was just written for verified."""
        try:
            info = self._tier.file_system.stat(self._tier.path(file))
        except OSError:
            return
        if info is not None and info.size == file.bytes:
            with self._lock:
                self._seen[file.topic, file.name] = _Seen(info.modified_ns, info.size)

    def note_damage(self, topic: int, name: str, reason: str) -> None:
        """Remember that a file is damaged."""
        with self._lock:
            self._damaged[topic, name] = reason
            self._seen.pop((topic, name), None)

    def left_over(self, topic: int, quarantine: str) -> list[SetName]:
        """Return the names of a topic's files that are not registered: put aside, or unreadable."""
        tier = self._tier
        names = [
            name
            for name in tier.directory.scan(topic).files
            if name not in tier.picture(topic).by_name
        ]
        if tier.file_system.stat(quarantine) is not None:
            prefix = f"disk-{topic:08x}-"
            names += [
                name.removeprefix(prefix)
                for name in tier.file_system.list_directory(quarantine)
                if name.startswith(prefix)
            ]
        return [found for name in names if (found := parse_name(name)) is not None]

    def verify(self, file: DiskFile) -> str:
        """Return what is wrong with a file, empty if nothing.

        All its bytes are read when it is new or has changed since; otherwise this is one `stat`.
        """
        return self._verify(file, again=False)

    def damaged(self) -> dict[tuple[int, str], str]:
        """Return the damaged files with the reasons."""
        with self._lock:
            return dict(self._damaged)

    def report(self, file: DiskFile, reason: object) -> bool:
        """Note damage and ask the engine to rebuild the file; tell whether another took its place.

        The file stays where it is until its replacement is registered, and is put aside then.

        Raises:
            Unavailable: it may be rebuilt, but not while this thread has a lock of the topic's.
        """
        key = (file.topic, file.name)
        with self._lock:
            new = key not in self._damaged
        if new:
            self.note_damage(file.topic, file.name, str(reason))
            warn("disk_file_damaged", topic=file.topic, file=file.name, reason=reason)
        if self.must_wait is not None and self.must_wait(file.topic):
            return self._replaced(file) or self._left(file)
        # Not for ever: whoever rebuilds may wait for something that this thread has.
        if not self._rebuilding.acquire(timeout=REBUILD_WAIT_S):
            return False
        try:
            return self._replaced(file) or self._rebuilt(file)
        finally:
            self._rebuilding.release()

    def _rebuilt(self, file: DiskFile) -> bool:
        on_damage = self._tier.on_damage
        if on_damage is None or self._in_vain(file):
            return False
        rebuilt = False
        try:
            rebuilt = on_damage(file.topic, file) and self._replaced(file)
        finally:
            if not rebuilt:
                self._asked[file.topic, file.name] = self._tier.clock.monotonic()
        return rebuilt

    def _in_vain(self, file: DiskFile) -> bool:
        """Tell whether it was tried a short while ago, without success."""
        asked = self._asked.get((file.topic, file.name))
        return asked is not None and self._tier.clock.monotonic() < asked + RETRY_S

    def _left(self, file: DiskFile) -> bool:
        """Leave the rebuilding to a thread without locks; False if that was in vain already."""
        if self._tier.on_damage is None or self._in_vain(file):
            return False
        raise Unavailable(
            "a damaged file is being written again, try again", topic=file.topic, file=file.name
        )

    def forget(self, file: DiskFile) -> str | None:
        """Forget a file; return the reason if it was damaged."""
        key = (file.topic, file.name)
        with self._lock:
            self._seen.pop(key, None)
            self._checked_us.pop(key, None)
            self._asked.pop(key, None)
            return self._damaged.pop(key, None)

    def scrub_once(self) -> int:
        """Read and verify the files that are due, the longest due first, up to a number of bytes.

        Returns:
            How many of them are damaged.
        """
        tier = self._tier
        now_us = tier.clock.now_us()
        limit_us = now_us - int(tier.settings.scrub_interval_s * 1_000_000)
        due: list[tuple[int, DiskFile]] = []
        for topic in tier.topics:
            for file in tier.files(topic):
                key = (topic, file.name)
                checked_us = self._checked_us.get(key, file.created_us)
                if checked_us <= limit_us:
                    due.append((checked_us, file))
        found = spent = 0
        for _, file in sorted(due, key=lambda each: (each[0], each[1].name)):
            if spent > SCRUB_BYTES:
                break
            if self._replaced(file):
                # With another file of its set, perhaps by this very round.
                continue
            spent += file.bytes
            fault = self._verify(file, again=True)
            self._checked_us[file.topic, file.name] = now_us
            if fault:
                found += 1
                self.report(file, fault)
            else:
                self._healed(file)
        return found

    def _healed(self, file: DiskFile) -> None:
        """Take a file for good again: somebody has put its very bytes back."""
        with self._lock:
            if self._damaged.pop((file.topic, file.name), None) is not None:
                self._tier.readers.forget(file)

    def _replaced(self, file: DiskFile) -> bool:
        return file.name not in self._tier.picture(file.topic).by_name

    def _verify(self, file: DiskFile, *, again: bool) -> str:
        key = (file.topic, file.name)
        tier = self._tier
        path = tier.path(file)
        try:
            info = tier.file_system.stat(path)
            if info is None:
                return "file is missing"
            seen = _Seen(info.modified_ns, info.size)
            if info.size != file.bytes:
                return f"file has {info.size} bytes instead of {file.bytes}"
            if not again and self._seen.get(key) == seen:
                return ""
            crc = file_crc(tier.file_system, path)
        except FileNotFoundError:
            return "file is missing"
        except OSError as error:
            return f"file cannot be read: {error}"
        if crc != file.crc:
            return "checksum of the file is wrong"
        with self._lock:
            self._seen[key] = seen
        return ""
