"""The file seam: the engine's only calls to the operating system's files.

`RealFileSystem` is the operating system. `tests.support` has a simulated one with crash states
and a fault-injecting one; all three obey the contract in the docstrings below.
Paths are absolute strings. Every method may raise `OSError`; the caller decides its meaning.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "File",
    "FileInfo",
    "FileSystem",
    "LockHandle",
    "LockTaken",
    "OpenMode",
    "RealFileSystem",
    "Space",
    "read_file",
    "read_fully",
    "write_fully",
]

IOV_MAX = 1024
READ_BYTES_MAX = 1 << 30

OpenMode = Literal["create", "write", "read"]
"""`create` makes a new file and fails if it exists; `write` opens an existing one (read-write)."""


class FileInfo(NamedTuple):
    """The result of `stat` for one path."""

    size: int
    modified_ns: int
    is_directory: bool
    identity: str = ""
    """Identity of the file, unique on this machine while it exists; empty without support."""


class Space(NamedTuple):
    """The free and total space of the file system of a path."""

    free_bytes: int
    total_bytes: int


class LockTaken(OSError):
    """Another process holds the lock; `holder` is the text that it wrote into the lock file."""

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(errno.EWOULDBLOCK, "lock is taken", path)
        self.holder = holder


class File(Protocol):
    """One open file. Reads may run concurrently with one writer; writers must not overlap."""

    def read_at(self, position: int, size: int) -> bytes:
        """Return up to `size` bytes at `position`; fewer only at the end of the file."""

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        """Write the buffers in order and return the number of bytes written; may be short.

        Nothing is durable on return.
        """

    def sync(self) -> None:
        """Make all bytes and the size of this file durable. Never call it again after it failed."""

    def truncate(self, size: int) -> None:
        """Cut or zero-extend to `size`. Durable after `sync`."""

    def size(self) -> int:
        """Return the size in bytes."""

    def close(self) -> None:
        """Release the descriptor; makes nothing durable."""


class LockHandle(Protocol):
    """A lock on a path, held until `release` or the end of the process."""

    def release(self) -> None:
        """Give the lock back."""


class FileSystem(Protocol):
    """The verbs on paths."""

    def open(self, path: str, mode: OpenMode) -> File:
        """Open a file; a created one is durable after `File.sync` and `sync_directory`."""

    def rename(self, source: str, target: str) -> None:
        """Move a file over `target` atomically; durable after `sync_directory`."""

    def unlink(self, path: str) -> None:
        """Remove a file; open readers keep its bytes. Durable after `sync_directory`."""

    def make_directory(self, path: str) -> None:
        """Make a directory and its missing parents, mode 0700; fine if it exists.

        Durable after `sync_directory` of each new directory's parent.
        """

    def list_directory(self, path: str) -> list[str]:
        """Return the sorted names in a directory."""

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""

    def stat(self, path: str) -> FileInfo | None:
        """Return facts about a path, None if it does not exist."""

    def space(self, path: str) -> Space:
        """Return the space of the file system of `path`."""

    def allocate(self, path: str, size: int) -> None:
        """Create a file of `size` bytes with reserved blocks, or leave no file."""

    def sqlite_vfs(self) -> str:
        """Return the name of the SQLite VFS for these files, "" for SQLite's own."""

    def lock(self, path: str, holder: str) -> LockHandle:
        """Take the exclusive lock file and write `holder` into it, or raise `LockTaken`."""


def write_fully(file: File, position: int, buffers: Sequence[Buffer]) -> int:
    """Write all of `buffers` at `position`, continuing after short writes; return the size."""
    views = [memoryview(buffer).cast("B") for buffer in buffers]
    total = sum(map(len, views))
    written = file.write_at(position, views)
    while written < total:
        count = file.write_at(position + written, _behind(views, written))
        if count == 0:
            raise OSError(errno.EIO, "write made no progress")
        written += count
    return total


def _behind(views: Sequence[memoryview], skip: int) -> list[memoryview]:
    rest: list[memoryview] = []
    for view in views:
        if skip >= len(view):
            skip -= len(view)
            continue
        rest.append(view[skip:])
        skip = 0
    return rest


def read_fully(file: File, position: int, size: int) -> bytes:
    """Read exactly `size` bytes, fewer only at the end of the file."""
    data = file.read_at(position, size)
    if len(data) == size or not data:
        return data
    pieces = [data]
    have = len(data)
    while have < size:
        piece = file.read_at(position + have, size - have)
        if not piece:
            break
        pieces.append(piece)
        have += len(piece)
    return b"".join(pieces)


class RealFile:
    """A descriptor of the operating system."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read_at(self, position: int, size: int) -> bytes:
        return os.pread(self._descriptor, min(size, READ_BYTES_MAX), position)

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        return os.pwritev(self._descriptor, buffers[:IOV_MAX], position)

    def sync(self) -> None:
        if self._descriptor < 0:
            # Python refuses a negative descriptor with ValueError here, unlike in the other calls.
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        os.fdatasync(self._descriptor)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        # A reader may drop the last reference to an unlinked segment: its space must be freed.
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                self.close()


def read_file(path: str, bytes_max: int) -> bytes:
    """Return the first bytes of a file of the operating system, at most `bytes_max`."""
    with contextlib.closing(RealFileSystem().open(path, "read")) as file:
        return read_fully(file, 0, bytes_max)


class _RealLock:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


_FLAGS: dict[OpenMode, int] = {
    "create": os.O_RDWR | os.O_CREAT | os.O_EXCL,
    "write": os.O_RDWR,
    "read": os.O_RDONLY,
}


class RealFileSystem:
    """The operating system's files: mode 0600, directories 0700, links never followed."""

    def open(self, path: str, mode: OpenMode) -> File:
        return RealFile(os.open(path, _FLAGS[mode] | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def make_directory(self, path: str) -> None:
        os.makedirs(path, mode=0o700, exist_ok=True)

    def list_directory(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def stat(self, path: str) -> FileInfo | None:
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return None
        is_directory = os.path.isdir(path)
        identity = f"{found.st_dev:x}:{found.st_ino:x}"
        return FileInfo(found.st_size, found.st_mtime_ns, is_directory, identity)

    def space(self, path: str) -> Space:
        found = os.statvfs(path)
        return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)

    def allocate(self, path: str, size: int) -> None:
        descriptor = os.open(path, _FLAGS["create"] | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if size:
                os.posix_fallocate(descriptor, 0, size)
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(descriptor)

    def sqlite_vfs(self) -> str:
        return ""

    def lock(self, path: str, holder: str) -> LockHandle:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            found = os.pread(descriptor, 4096, 0).decode("utf-8", "replace")
            os.close(descriptor)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise LockTaken(path, found.strip()) from error
            raise
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder.encode(), 0)
        return _RealLock(descriptor)
