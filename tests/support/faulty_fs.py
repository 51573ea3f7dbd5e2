"""A file system that fails on purpose: the n-th call of a verb, once or from then on.

It also watches for what must never happen after a failed fsync (F6): a second sync of the same
file, or a write through the handle whose sync failed.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import attrs

from tests.support.simulated_fs import SimulatedFile
from tests.support.sqlite_vfs import SeamVFS, register_vfs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from frazil.fs import File, FileInfo, FileSystem, LockHandle, OpenMode, Space

__all__ = ["ERRNOS", "VERBS", "Call", "Fault", "FaultyFile", "FaultyFileSystem", "Verb"]

Verb = Literal[
    "open",
    "read_at",
    "write_at",
    "sync",
    "truncate",
    "size",
    "close",
    "rename",
    "unlink",
    "make_directory",
    "list_directory",
    "sync_directory",
    "stat",
    "space",
    "allocate",
    "lock",
]

VERBS: tuple[Verb, ...] = get_args(Verb)

ERRNOS: tuple[int, ...] = (
    errno.EIO,
    errno.ENOSPC,
    errno.EROFS,
    errno.EMFILE,
    errno.EDQUOT,
    errno.EINTR,
)


class Call(NamedTuple):
    """One call that went through the seam."""

    verb: Verb
    path: str


@attrs.frozen
class Fault:
    """Fail the `nth` call of `verb` (1 is the first) among the paths that contain `path_part`.

    Attributes:
        error: the errno to raise; ignored when `short` is set.
        short: instead of failing, let a read or a write move one byte or half of them.
        persistent: go on failing with every later call that matches.
    """

    verb: Verb
    nth: int = 1
    error: int = errno.EIO
    short: Literal["one", "half"] | None = None
    persistent: bool = False
    path_part: str = ""

    def __attrs_post_init__(self) -> None:
        if self.short and self.verb not in ("read_at", "write_at"):
            raise ValueError(f"only reads and writes can be short (verb={self.verb})")

    def shortened(self, size: int) -> int:
        """Return how many of `size` bytes move; at least one, so that a loop makes progress."""
        return min(size, 1 if self.short == "one" else max(1, size // 2))


class FaultyFileSystem:
    """Any file system with faults planned into its calls.

    Attributes:
        trace: all calls in order, failed ones included.
        fired: how many calls were made to fail or were cut short; 0 ends a sweep over `nth`.
        sync_retried: syncs of a file, by any handle, after one of its syncs failed.
        writes_after_failed_sync: writes and truncates through a handle whose sync failed.
    """

    def __init__(self, inner: FileSystem, plan: Sequence[Fault] = ()) -> None:
        self.inner = inner
        self.trace: list[Call] = []
        self.fired = 0
        self.sync_retried = 0
        self.writes_after_failed_sync = 0
        self.plan(*plan)
        self._paths_failed: set[str] = set()
        self._vfs: list[SeamVFS] = []

    def plan(self, *faults: Fault) -> None:
        """Plan other faults, which count the calls from now on."""
        self._plan = faults
        self._seen = [0] * len(faults)

    def open(self, path: str, mode: OpenMode) -> FaultyFile:
        self.enter("open", path)
        return FaultyFile(self, self.inner.open(path, mode), path)

    def rename(self, source: str, target: str) -> None:
        self.enter("rename", source, target)
        self.inner.rename(source, target)
        self._paths_failed.discard(target)
        if source in self._paths_failed:
            self._paths_failed.remove(source)
            self._paths_failed.add(target)

    def unlink(self, path: str) -> None:
        self.enter("unlink", path)
        self.inner.unlink(path)
        self._paths_failed.discard(path)

    def make_directory(self, path: str) -> None:
        self.enter("make_directory", path)
        self.inner.make_directory(path)

    def list_directory(self, path: str) -> list[str]:
        self.enter("list_directory", path)
        return self.inner.list_directory(path)

    def sync_directory(self, path: str) -> None:
        if path in self._paths_failed:
            self.sync_retried += 1
        try:
            self.enter("sync_directory", path)
            self.inner.sync_directory(path)
        except OSError:
            self._paths_failed.add(path)
            raise

    def stat(self, path: str) -> FileInfo | None:
        self.enter("stat", path)
        return self.inner.stat(path)

    def space(self, path: str) -> Space:
        self.enter("space", path)
        return self.inner.space(path)

    def allocate(self, path: str, size: int) -> None:
        self.enter("allocate", path)
        self.inner.allocate(path, size)

    def sqlite_vfs(self) -> str:
        self._vfs.append(register_vfs(self))
        return self._vfs[-1].name

    def lock(self, path: str, holder: str) -> LockHandle:
        self.enter("lock", path)
        return self.inner.lock(path, holder)

    # For the handles of this file system.

    def enter(self, verb: Verb, path: str, *more_paths: str) -> Fault | None:
        """Record a call; raise if the plan says so; return the fault if it is a short one."""
        self.trace.append(Call(verb, path))
        due: Fault | None = None
        for index, fault in enumerate(self._plan):
            if fault.verb != verb:
                continue
            if not any(fault.path_part in each for each in (path, *more_paths)):
                continue
            self._seen[index] += 1
            seen = self._seen[index]
            if due is None and (seen == fault.nth or (fault.persistent and seen > fault.nth)):
                due = fault
        if due is None:
            return None
        self.fired += 1
        if due.short is None:
            raise OSError(due.error, f"{os.strerror(due.error)} (injected)", path)
        return due

    def note_sync(self, path: str) -> None:
        """Count a sync that comes after a failed one of the same file."""
        if path in self._paths_failed:
            self.sync_retried += 1

    def note_sync_failed(self, path: str) -> None:
        """Remember that the file's unsynced pages are lost from now on."""
        self._paths_failed.add(path)


class FaultyFile:
    """One handle of a faulty file system."""

    def __init__(self, file_system: FaultyFileSystem, inner: File, path: str) -> None:
        self._file_system = file_system
        self._inner = inner
        self._path = path
        self._sync_failed = False

    def read_at(self, position: int, size: int) -> bytes:
        short = self._file_system.enter("read_at", self._path)
        return self._inner.read_at(position, short.shortened(size) if short else size)

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        self._note_write()
        short = self._file_system.enter("write_at", self._path)
        if short:
            data = b"".join(buffers)
            return self._inner.write_at(position, [data[: short.shortened(len(data))]])
        return self._inner.write_at(position, buffers)

    def sync(self) -> None:
        self._file_system.note_sync(self._path)
        try:
            self._file_system.enter("sync", self._path)
            self._inner.sync()
        except OSError:
            self._sync_failed = True
            self._file_system.note_sync_failed(self._path)
            if isinstance(self._inner, SimulatedFile):
                self._inner.fail_sync()
            raise

    def truncate(self, size: int) -> None:
        self._note_write()
        self._file_system.enter("truncate", self._path)
        self._inner.truncate(size)

    def size(self) -> int:
        self._file_system.enter("size", self._path)
        return self._inner.size()

    def close(self) -> None:
        try:
            self._file_system.enter("close", self._path)
        finally:
            # The operating system releases the descriptor even when close fails.
            self._inner.close()

    def _note_write(self) -> None:
        if self._sync_failed:
            self._file_system.writes_after_failed_sync += 1
