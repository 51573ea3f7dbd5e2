"""A file system in memory that knows what a power loss may leave of it.

The names (`simulated_names`) have, like the contents (`simulated_inode`), a visible and a durable
state with pending changes in between: `sync` makes a file's content and size durable but not its
name,
`sync_directory` makes names durable but not contents. `crash_clone(seed)` is one of the states a
disk may hold after power loss; `kill_clone()` is what a killed process leaves.

A name's changes survive in their order, and a rename survives as a whole or not at all: that much
every journalling file system gives. Between different names there is no order. Holes count as used
space.
"""

from __future__ import annotations

import errno
import posixpath
import threading
from random import Random
from typing import TYPE_CHECKING

from frazil.fs import IOV_MAX, FileInfo, LockTaken, Space
from tests.support.simulated_inode import SECTOR_BYTES, Inode, Survival, sector_count
from tests.support.simulated_names import Directory, NameTree, fail
from tests.support.sqlite_vfs import SeamVFS, register_vfs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from typing_extensions import Buffer

    from frazil.fs import OpenMode

__all__ = ["SimulatedCrash", "SimulatedFile", "SimulatedFileSystem"]

CAPACITY_BYTES_DEFAULT = 1 << 40
TICK_NS = 1000

# Data and names: most seeds tear both; the pure states are rare but each has its share.
_SURVIVALS: tuple[tuple[Survival, Survival], ...] = (
    ("nothing", "nothing"),
    ("everything", "everything"),
    ("nothing", "everything"),
    ("everything", "nothing"),
    ("prefix", "prefix"),
    ("prefix", "torn"),
    ("torn", "prefix"),
    ("torn", "everything"),
    ("torn", "nothing"),
    ("torn", "torn"),
    ("torn", "torn"),
    ("torn", "torn"),
)


class SimulatedCrash(BaseException):
    """The machine lost power here. Not an `Exception`, so that no product code goes on after it."""


class SimulatedFile:
    """One open handle of a simulated file."""

    __slots__ = ("_closed", "_file_system", "_inode", "_path", "_writable")

    def __init__(
        self, file_system: SimulatedFileSystem, inode: Inode, path: str, *, writable: bool
    ) -> None:
        self._file_system = file_system
        self._inode = inode
        self._path = path
        self._writable = writable
        self._closed = False
        inode.opens += 1

    def read_at(self, position: int, size: int) -> bytes:
        self._check()
        self._file_system.read_count += 1
        return self._inode.read(position, size)

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        self._check_writable()
        self._file_system.write_count += 1
        data = b"".join(buffers[:IOV_MAX])
        if not data:
            return 0
        with self._file_system.mutex:
            self._check()
            room = self._file_system.grow(self._inode, position + len(data))
            if room <= position:
                fail(errno.ENOSPC, self._path)
            data = data[: room - position]
            self._inode.write(position, data)
            self._inode.modified_ns = self._file_system.tick()
        return len(data)

    def sync(self) -> None:
        self._check()
        self._file_system.sync_count += 1
        self._file_system.reach_sync_point("before sync", self._path)
        with self._file_system.mutex:
            self._check()
            self._inode.sync()
        self._file_system.reach_sync_point("after sync", self._path)

    def fail_sync(self) -> None:
        """Lose the unsynced changes for good, as a failed fsync does; readers still see them."""
        with self._file_system.mutex:
            self._inode.fail_sync()

    def truncate(self, size: int) -> None:
        self._check_writable()
        if size < 0:
            fail(errno.EINVAL, self._path)
        with self._file_system.mutex:
            self._check()
            if self._file_system.grow(self._inode, size) < size:
                fail(errno.ENOSPC, self._path)
            self._file_system.shrink(self._inode, size)
            self._inode.resize(size)
            self._inode.modified_ns = self._file_system.tick()

    def size(self) -> int:
        self._check()
        return self._inode.size

    def close(self) -> None:
        # A zombie may close: that changes nothing on the disk.
        if not self._closed:
            self._closed = True
            self._inode.opens -= 1
            self._file_system.release(self._inode)

    def __del__(self) -> None:
        self.close()

    def _check(self) -> None:
        if self._file_system.crashed:
            raise SimulatedCrash
        if self._closed:
            fail(errno.EBADF, self._path)

    def _check_writable(self) -> None:
        self._check()
        if not self._writable:
            fail(errno.EBADF, self._path)


class _SimulatedLock:
    def __init__(self, locks: dict[str, str], path: str) -> None:
        self._locks = locks
        self._path = path
        self._held = True

    def release(self) -> None:
        if self._held:
            self._held = False
            del self._locks[self._path]


class SimulatedFileSystem:
    """Files in memory with crash states; the same calls and the same seeds give the same bytes.

    Threads may share an instance. After a `SimulatedCrash` every call but `close` raises it again,
    while the clones and the direct access (`read_bytes`, `paths`, ...) go on working.

    Attributes:
        on_sync: called with "before sync <path>", "after sync_directory <path>" and so on around
            each sync, sync_directory and rename; it may raise `SimulatedCrash`.
        crash_at: the number of the sync point at which to crash; None never does.
        sync_points: how many of these points were reached.
        capacity_bytes: the size of the disk; may be changed at any time.
    """

    def __init__(self, seed: int = 0, *, capacity_bytes: int = CAPACITY_BYTES_DEFAULT) -> None:
        self.seed = seed
        self.capacity_bytes = capacity_bytes
        self.on_sync: Callable[[str], None] | None = None
        self.crash_at: int | None = None
        self.crashed = False
        self.mutex = threading.RLock()
        self.read_count = 0
        self.write_count = 0
        self.sync_count = 0
        self.sync_directory_count = 0
        self.rename_count = 0
        self.sync_points = 0
        self._ticks = 0
        self._used_sectors = 0
        self._tree = NameTree()
        self._locks: dict[str, str] = {}
        self._vfs: list[SeamVFS] = []

    # The contract of `frazil.fs.FileSystem`.

    def open(self, path: str, mode: OpenMode) -> SimulatedFile:
        self._check()
        with self.mutex:
            directory, name = self._tree.locate(path)
            node = directory.names.get(name)
            if isinstance(node, Directory):
                fail(errno.EISDIR, path)
            if mode == "create":
                if node is not None:
                    fail(errno.EEXIST, path)
                node = self._create(directory, name)
            elif node is None:
                fail(errno.ENOENT, path)
            return SimulatedFile(self, node, path, writable=mode != "read")

    def rename(self, source: str, target: str) -> None:
        self._check()
        self.rename_count += 1
        self.reach_sync_point("before rename", target)
        with self.mutex:
            source_directory, source_name = self._tree.locate(source)
            target_directory, target_name = self._tree.locate(target)
            node = source_directory.names.get(source_name)
            replaced = target_directory.names.get(target_name)
            if node is None:
                fail(errno.ENOENT, source)
            if isinstance(node, Directory) or isinstance(replaced, Directory):
                fail(errno.EISDIR, target)
            if node is not replaced:
                self._tree.change(
                    (source_directory, source_name, None), (target_directory, target_name, node)
                )
                if replaced is not None:
                    replaced.links -= 1
                    self.release(replaced)
        self.reach_sync_point("after rename", target)

    def unlink(self, path: str) -> None:
        self._check()
        with self.mutex:
            directory, name = self._tree.locate(path)
            node = directory.names.get(name)
            if node is None:
                fail(errno.ENOENT, path)
            if isinstance(node, Directory):
                fail(errno.EISDIR, path)
            self._tree.change((directory, name, None))
            node.links -= 1
            self.release(node)

    def make_directory(self, path: str) -> None:
        self._check()
        with self.mutex:
            self._tree.make(path)

    def list_directory(self, path: str) -> list[str]:
        self._check()
        with self.mutex:
            return sorted(self._tree.directory(path).names)

    def sync_directory(self, path: str) -> None:
        self._check()
        directory = self._tree.directory(path)
        self.sync_directory_count += 1
        self.reach_sync_point("before sync_directory", path)
        with self.mutex:
            self._check()
            self._tree.sync(directory)
        self.reach_sync_point("after sync_directory", path)

    def stat(self, path: str) -> FileInfo | None:
        self._check()
        with self.mutex:
            if posixpath.normpath(path) in self._tree.directories:
                return FileInfo(0, 0, is_directory=True)
            try:
                directory, name = self._tree.locate(path)
            except FileNotFoundError:
                return None
            node = directory.names.get(name)
            if not isinstance(node, Inode):
                return None
            return FileInfo(node.size, node.modified_ns, is_directory=False)

    def space(self, path: str) -> Space:
        self._check()
        if self.stat(path) is None:
            fail(errno.ENOENT, path)
        free_bytes = max(0, self.capacity_bytes - self._used_sectors * SECTOR_BYTES)
        return Space(free_bytes, self.capacity_bytes)

    def allocate(self, path: str, size: int) -> None:
        with self.mutex:
            if sector_count(size) * SECTOR_BYTES > self.space(posixpath.dirname(path)).free_bytes:
                fail(errno.ENOSPC, path)
            file = self.open(path, "create")
            if size:
                file.truncate(size)
            file.close()

    def sqlite_vfs(self) -> str:
        self._vfs.append(register_vfs(self))
        return self._vfs[-1].name

    def lock(self, path: str, holder: str) -> _SimulatedLock:
        self._check()
        with self.mutex:
            if path in self._locks:
                raise LockTaken(path, self._locks[path])
            mode: OpenMode = "create" if self.stat(path) is None else "write"
            file = self.open(path, mode)
            file.truncate(0)
            file.write_at(0, [holder.encode()])
            file.close()
            self._locks[path] = holder
            return _SimulatedLock(self._locks, path)

    # Crashes.

    def crash(self) -> None:
        """Lose power now: every later call on this instance raises `SimulatedCrash`."""
        self.crashed = True

    def crash_clone(
        self, seed: int, *, data: Survival | None = None, names: Survival | None = None
    ) -> SimulatedFileSystem:
        """Return what the disk may hold if the power fails right now, chosen by `seed`.

        Args:
            seed: chooses how much survives, and what.
            data: force what survives of unsynced contents.
            names: force what survives of unsynced names.
        """
        random = Random(seed)
        data_chosen, names_chosen = random.choice(_SURVIVALS)
        with self.mutex:
            tree = self._tree.crashed(random, names=names or names_chosen, data=data or data_chosen)
        return self._twin(seed, tree)

    def kill_clone(self) -> SimulatedFileSystem:
        """Return what a killed process leaves: all it wrote, with its unsynced changes pending."""
        with self.mutex:
            return self._twin(self.seed, self._tree.killed())

    def fail_sync(self, path: str) -> None:
        """Let a sync of `path` fail as on Linux: visible, but never durable unless written anew."""
        with self.mutex:
            self._tree.inode(path).fail_sync()

    # Direct access for tests, behind the back of the crash states.

    def paths(self) -> list[str]:
        """Return the paths of all visible files, sorted."""
        return sorted(path for path, _ in self._tree.files())

    def read_bytes(self, path: str, *, durable: bool = False) -> bytes:
        """Return a file's visible content, or what a sync has certainly put on the disk."""
        inode = self._tree.inode(path)
        return inode.durable_bytes() if durable else inode.read(0, inode.size)

    def write_bytes(self, path: str, data: bytes) -> None:
        """Put this content on the disk; the names of a new file's path become durable, too."""
        with self.mutex:
            self._tree.make(posixpath.dirname(path))
            directory, name = self._tree.locate(path)
            if name not in directory.names:
                self._create(directory, name)
                self._sync_path(posixpath.dirname(path))
            inode = self._tree.inode(path)
            self._used_sectors -= inode.sectors
            inode.replace(data)
            self._used_sectors += inode.sectors

    def corrupt(self, path: str, damage: Callable[[bytearray], None]) -> None:
        """Let `damage` change a file's bytes in the cache and on the disk alike."""
        content = bytearray(self.read_bytes(path))
        damage(content)
        self.write_bytes(path, bytes(content))

    def flip(self, path: str, position: int, mask: int = 1) -> None:
        """Flip bits of one byte in the cache and on the disk alike."""
        self.overwrite(path, position, bytes([self.read_bytes(path)[position] ^ mask]))

    def overwrite(self, path: str, position: int, data: bytes) -> None:
        """Put bytes over those at a position, in the cache and on the disk alike."""
        content = self.read_bytes(path)
        self.write_bytes(path, content[:position] + data + content[position + len(data) :])

    def load(self, directory: Path, target: str = "/") -> None:
        """Copy a real directory to `target`, durable."""
        with self.mutex:
            self._tree.make(target)
            self._sync_path(target)
        for found in sorted(directory.rglob("*")):
            path = posixpath.join(target, found.relative_to(directory).as_posix())
            if found.is_dir():
                self._tree.make(path)
                self._sync_path(path)
            elif found.is_file():
                self.write_bytes(path, found.read_bytes())

    def dump(self, directory: Path, source: str = "/") -> None:
        """Copy the visible files below `source` into a real directory."""
        prefix = source.rstrip("/") + "/"
        for path, inode in self._tree.files():
            if path.startswith(prefix):
                target = directory / path[len(prefix) :]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(inode.read(0, inode.size))

    # For the handles of this file system.

    def reach_sync_point(self, event: str, path: str) -> None:
        """Count a point at which a test may crash, and crash there if it is the one."""
        self.sync_points += 1
        if self.crash_at is not None and self.sync_points >= self.crash_at:
            self.crashed = True
        elif self.on_sync is not None:
            try:
                self.on_sync(f"{event} {path}")
            except SimulatedCrash:
                self.crashed = True
                raise
        self._check()

    def tick(self) -> int:
        """Return the next modification time."""
        self._ticks += TICK_NS
        return self._ticks

    def grow(self, inode: Inode, size: int) -> int:
        """Reserve space for `inode` to hold `size` bytes; return the size there is room for."""
        wanted = sector_count(size) - inode.sectors
        if wanted <= 0:
            return size
        free = max(0, self.capacity_bytes // SECTOR_BYTES - self._used_sectors)
        granted = min(wanted, free)
        if granted < wanted:
            size = (inode.sectors + granted) * SECTOR_BYTES
        self._used_sectors += granted
        return size

    def shrink(self, inode: Inode, size: int) -> None:
        """Give back the space of `inode` behind `size`."""
        self._used_sectors -= max(0, inode.sectors - sector_count(size))

    def release(self, inode: Inode) -> None:
        """Give back the space of a file that has neither a name nor a handle."""
        if inode.links == 0 and inode.opens == 0:
            self._used_sectors -= inode.sectors

    def _check(self) -> None:
        if self.crashed:
            raise SimulatedCrash

    def _sync_path(self, path: str) -> None:
        """Make the names in a directory durable, and those that lead to it."""
        path = posixpath.normpath(path)
        self._tree.sync(self._tree.directory(path))
        if path != "/":
            self._sync_path(posixpath.dirname(path))

    def _create(self, directory: Directory, name: str) -> Inode:
        inode = Inode()
        inode.links = 1
        inode.modified_ns = self.tick()
        self._tree.change((directory, name, inode))
        return inode

    def _twin(self, seed: int, tree: NameTree) -> SimulatedFileSystem:
        twin = SimulatedFileSystem(seed, capacity_bytes=self.capacity_bytes)
        twin._ticks = self._ticks
        twin._tree = tree
        for _, inode in tree.files():
            inode.links = 1
            twin._used_sectors += inode.sectors
        return twin
