"""The disk tier's directories: one for each topic, and where damaged files are put aside."""

from __future__ import annotations

import contextlib
import posixpath
from typing import TYPE_CHECKING, Final, NamedTuple

from frazil.errors import Closed
from frazil.fs import write_fully
from frazil.telemetry import warn
from frazil.tiers.disk.file import KEYS_SUFFIX, SUFFIX, TEMPORARY_SUFFIX, keys_name, parse_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.fs import FileSystem

__all__ = ["DiskDirectory", "Scanned"]

_TOPIC_CHARACTERS: Final = 8


class Scanned(NamedTuple):
    """What a topic's directory holds: the sizes of files and of their maps of keys."""

    files: dict[str, int]
    keys: dict[str, int]
    leftovers: list[str]
    """Temporary files, and maps of keys without their file."""


class DiskDirectory:
    """Paths and names of the tier's files. Any thread may use it.

    A directory whose sync failed is never synced again (the kernel may have dropped what it could
    not write): from then on nothing is published any more until the engine is opened again.
    """

    def __init__(self, file_system: FileSystem, root: str, quarantine: str) -> None:
        self.file_system = file_system
        self._root = root
        self._quarantine = quarantine
        self._made: set[int] = set()
        self._failed: OSError | None = None

    def topic_path(self, topic: int) -> str:
        """Return the directory of a topic."""
        return posixpath.join(self._root, f"{topic:08x}")

    def path(self, topic: int, name: str) -> str:
        """Return the path of a file."""
        return posixpath.join(self.topic_path(topic), name)

    def create(self) -> None:
        """Have the tier's own directory, durably."""
        self.file_system.make_directory(self._root)
        self.file_system.sync_directory(posixpath.dirname(self._root))

    def topics(self) -> list[int]:
        """Return the topics that have a directory."""
        found: list[int] = []
        for name in self.file_system.list_directory(self._root):
            with contextlib.suppress(ValueError):
                if len(name) == _TOPIC_CHARACTERS:
                    found.append(int(name, 16))
        return found

    def scan(self, topic: int) -> Scanned:
        """Return what a topic's directory holds."""
        files: dict[str, int] = {}
        keys: dict[str, int] = {}
        leftovers: list[str] = []
        path = self.topic_path(topic)
        if self.file_system.stat(path) is None:
            return Scanned(files, keys, leftovers)
        self._made.add(topic)
        for name in self.file_system.list_directory(path):
            info = self.file_system.stat(posixpath.join(path, name))
            if name.endswith(TEMPORARY_SUFFIX):
                leftovers.append(name)
            elif info is not None and parse_name(name) is not None:
                files[name] = info.size
            elif info is not None and name.endswith(KEYS_SUFFIX):
                keys[name.removesuffix(KEYS_SUFFIX) + SUFFIX] = info.size
        for name in keys.keys() - files.keys():
            leftovers.append(keys_name(name))
            del keys[name]
        return Scanned(files, keys, leftovers)

    def check(self) -> None:
        """Refuse to go on after a directory could not be synced.

        Raises:
            Closed: open the engine again.
        """
        if self._failed is not None:
            raise Closed(
                "a directory of the disk tier could not be synced, open the engine again",
                cause=self._failed,
            )

    def make_topic(self, topic: int) -> None:
        """Have a topic's directory, durably."""
        self.check()
        if topic not in self._made:
            self.file_system.make_directory(self.topic_path(topic))
            self._sync(self._root)
            self._made.add(topic)

    def publish(self, topic: int, names: Sequence[str]) -> None:
        """Give synced temporary files their names; the names are durable on return."""
        self.check()
        for name in names:
            path = self.path(topic, name)
            self.file_system.rename(path + TEMPORARY_SUFFIX, path)
        self._sync(self.topic_path(topic))

    def write_keys(self, topic: int, name: str, data: bytes) -> int:
        """Write a file's map of keys; not synced: it has checksums and is built again if lost."""
        path = self.path(topic, keys_name(name))
        temporary = path + TEMPORARY_SUFFIX
        file = self.file_system.open(temporary, "create")
        try:
            write_fully(file, 0, [data])
        finally:
            file.close()
        self.file_system.rename(temporary, path)
        return len(data)

    def remove(self, topic: int, name: str) -> None:
        """Remove a file and its map of keys, as far as that is possible."""
        for each in (name, keys_name(name)):
            self.remove_one(topic, each)

    def remove_one(self, topic: int, name: str) -> None:
        """Remove one name of a topic's directory; what cannot be removed is left for later."""
        try:
            self.file_system.unlink(self.path(topic, name))
        except FileNotFoundError:
            pass
        except OSError as error:
            warn("disk_file_left", topic=topic, file=name, error=error)

    def put_aside(self, topic: int, name: str, reason: str) -> None:
        """Move a file into quarantine with a note of the reason; never removes a byte."""
        files = self.file_system
        source = self.path(topic, name)
        target = posixpath.join(self._quarantine, f"disk-{topic:08x}-{name}")
        try:
            if files.stat(source) is None:
                return
            files.make_directory(self._quarantine)
            if files.stat(f"{target}.reason") is None:
                note = files.open(f"{target}.reason", "create")
                try:
                    write_fully(note, 0, [f"{reason}\n".encode()])
                    note.sync()
                finally:
                    note.close()
            files.rename(source, target)
        except OSError as error:
            warn("disk_file_left", topic=topic, file=name, error=error)
            return
        self.remove_one(topic, keys_name(name))
        warn("disk_file_quarantined", topic=topic, file=name, reason=reason)

    def _sync(self, path: str) -> None:
        try:
            self.file_system.sync_directory(path)
        except OSError as error:
            self._failed = error
            raise
