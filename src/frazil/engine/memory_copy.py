"""A file system that reads real files and keeps every change in memory: to look without touching.

SQLite rolls an unfinished transaction back when it opens a file. `frazil doctor` lets it do so in
a copy.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from frazil.fs import FileInfo, read_fully

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from frazil.fs import File, FileSystem, LockHandle, OpenMode, Space

__all__ = ["MemoryCopy"]

COPY_BYTES_MAX: Final = 1 << 30


class _MemoryFile:
    """An open file of the copy."""

    def __init__(self, data: bytearray) -> None:
        self._data = data

    def read_at(self, position: int, size: int) -> bytes:
        return bytes(self._data[position : position + size])

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        joined = b"".join(buffers)
        if len(self._data) < position:
            self._data.extend(bytes(position - len(self._data)))
        self._data[position : position + len(joined)] = joined
        return len(joined)

    def sync(self) -> None:
        """Do nothing: the copy is not meant to last."""

    def truncate(self, size: int) -> None:
        del self._data[size:]
        self._data.extend(bytes(size - len(self._data)))

    def size(self) -> int:
        return len(self._data)

    def close(self) -> None:
        """Do nothing: the copy keeps the bytes."""


class _NoLock:
    def release(self) -> None:
        """Do nothing: nobody else sees the copy."""


class MemoryCopy:
    """Files of another file system, copied when they are opened; the originals never change."""

    def __init__(self, original: FileSystem) -> None:
        self._original = original
        self._files: dict[str, bytearray | None] = {}
        """None for a file that was removed from the copy."""

    def open(self, path: str, mode: OpenMode) -> File:
        data = self._files.get(path)
        if data is None and path not in self._files and self._original.stat(path) is not None:
            data = self._files[path] = self._copied(path)
        if mode == "create":
            if data is not None:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            data = self._files[path] = bytearray()
        if data is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return _MemoryFile(data)

    def _copied(self, path: str) -> bytearray:
        file = self._original.open(path, "read")
        try:
            size = file.size()
            if size > COPY_BYTES_MAX:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
            return bytearray(read_fully(file, 0, size))
        finally:
            file.close()

    def rename(self, source: str, target: str) -> None:
        self.open(source, "read")
        self._files[target], self._files[source] = self._files[source], None

    def unlink(self, path: str) -> None:
        self.open(path, "read")
        self._files[path] = None

    def make_directory(self, path: str) -> None:
        """Do nothing: files of the copy need no directory."""

    def list_directory(self, path: str) -> list[str]:
        return self._original.list_directory(path)

    def sync_directory(self, path: str) -> None:
        """Do nothing: the copy is not meant to last."""

    def stat(self, path: str) -> FileInfo | None:
        if path in self._files:
            data = self._files[path]
            return None if data is None else FileInfo(len(data), 0, is_directory=False)
        return self._original.stat(path)

    def space(self, path: str) -> Space:
        return self._original.space(path)

    def allocate(self, path: str, size: int) -> None:
        self._files[path] = bytearray(size)

    def lock(self, path: str, holder: str) -> LockHandle:
        del path, holder
        return _NoLock()
