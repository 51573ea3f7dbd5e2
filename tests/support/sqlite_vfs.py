"""SQLite on a `FileSystem`, so that simulated crashes and faults cover its files, too."""

from __future__ import annotations

import errno
import itertools
import posixpath
from typing import TYPE_CHECKING

import apsw
from typing_extensions import override

from frazil.fs import read_fully, write_fully

if TYPE_CHECKING:
    from frazil.fs import File, FileSystem, OpenMode

__all__ = ["register_vfs"]

# The largest unit that a power loss damages as a whole: physical sectors of common disks.
# SQLite journals all pages that share one, and its own unix VFS assumes the same.
SECTOR_BYTES = 4096
PATH_BYTES_MAX = 4096

_DISK_IS_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


_names = itertools.count()


def register_vfs(file_system: FileSystem) -> SeamVFS:
    """Register a VFS whose every access to files goes through `file_system`.

    Keep the result as long as connections are opened by its `name`. Temporary files are refused:
    connections need `temp_store=memory`. Write-ahead logs work in exclusive locking mode only, as
    there is no shared memory.
    """
    return SeamVFS(file_system, f"seam-{next(_names)}")


def _sqlite_error(code: int, error: OSError, path: str) -> Exception:
    """Return what tells SQLite `code`; a full disk is always FULL, whatever was tried."""
    if error.errno in _DISK_IS_FULL:
        code = apsw.SQLITE_FULL
    made = apsw.exception_for(code)
    made.args = (f"{error.strerror} (path={path} errno={error.errno})",)
    return made


class SeamVFS(apsw.VFS):
    """The verbs on paths; time, randomness and sleeping are inherited from SQLite's default."""

    def __init__(self, file_system: FileSystem, name: str) -> None:
        super().__init__(name, "", maxpathname=PATH_BYTES_MAX)
        self.name = name
        self.databases_open: set[str] = set()
        self._file_system = file_system

    @override
    def xFullPathname(self, name: str) -> str:
        return posixpath.normpath(name)

    @override
    def xAccess(self, pathname: str, flags: int) -> bool:
        try:
            return self._file_system.stat(pathname) is not None
        except OSError as error:
            raise _sqlite_error(apsw.SQLITE_IOERR_ACCESS, error, pathname) from error

    @override
    def xDelete(self, filename: str, syncdir: bool) -> None:
        try:
            self._file_system.unlink(filename)
        except FileNotFoundError as error:
            raise _sqlite_error(apsw.SQLITE_IOERR_DELETE_NOENT, error, filename) from error
        except OSError as error:
            raise _sqlite_error(apsw.SQLITE_IOERR_DELETE, error, filename) from error
        if syncdir:
            try:
                self.sync_directory_of(filename)
            except OSError as error:
                raise _sqlite_error(apsw.SQLITE_IOERR_DIR_FSYNC, error, filename) from error

    @override
    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        if name is None:
            refused = OSError(errno.EPERM, "temporary files are refused: set temp_store=memory")
            raise _sqlite_error(apsw.SQLITE_CANTOPEN, refused, "")
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        is_database = bool(flags[0] & apsw.SQLITE_OPEN_MAIN_DB)
        if is_database and path in self.databases_open:
            refused = OSError(errno.EBUSY, "database is already open on this VFS")
            raise _sqlite_error(apsw.SQLITE_CANTOPEN, refused, path)
        try:
            file, created = self._open(path, flags[0])
        except OSError as error:
            raise _sqlite_error(apsw.SQLITE_CANTOPEN, error, path) from error
        flags[1] = flags[0]
        if is_database:
            self.databases_open.add(path)
        return _SeamFile(self, file, path, created=created, flags=flags[0])

    def sync_directory_of(self, path: str) -> None:
        """Make the names beside `path` durable."""
        self._file_system.sync_directory(posixpath.dirname(path))

    def forget(self, path: str, *, delete: bool) -> None:
        """Note that a file was closed; `delete` removes one that was opened to be temporary."""
        self.databases_open.discard(path)
        if delete:
            self.xDelete(path, False)

    def _open(self, path: str, flags: int) -> tuple[File, bool]:
        """Open as SQLite's flags say; return the file and whether it was created."""
        if flags & apsw.SQLITE_OPEN_CREATE:
            exclusive = flags & apsw.SQLITE_OPEN_EXCLUSIVE
            if exclusive or self._file_system.stat(path) is None:
                return self._file_system.open(path, "create"), True
        mode: OpenMode = "write" if flags & apsw.SQLITE_OPEN_READWRITE else "read"
        return self._file_system.open(path, mode), False


class _SeamFile(apsw.VFSFile):
    """One file of SQLite. After a failed sync it refuses to write or sync again (F6, F18).

    The base class's constructor would open the file in the default VFS: it is not called, and so
    every method that SQLite uses is defined here.
    """

    def __init__(self, vfs: SeamVFS, file: File, path: str, *, created: bool, flags: int) -> None:
        self._vfs = vfs
        self._file: File | None = file
        self._path = path
        self._directory_unsynced = created
        self._delete_on_close = bool(flags & apsw.SQLITE_OPEN_DELETEONCLOSE)
        self._sync_failure: tuple[int, OSError] | None = None

    @override
    def xRead(self, amount: int, offset: int) -> bytes:
        try:
            return read_fully(self._open_file(), offset, amount)
        except OSError as error:
            raise _sqlite_error(apsw.SQLITE_IOERR_READ, error, self._path) from error

    @override
    def xWrite(self, data: bytes, offset: int) -> None:
        try:
            write_fully(self._healthy_file(), offset, [data])
        except OSError as error:
            raise _sqlite_error(apsw.SQLITE_IOERR_WRITE, error, self._path) from error

    @override
    def xTruncate(self, newsize: int) -> None:
        try:
            self._healthy_file().truncate(newsize)
        except OSError as error:
            raise _sqlite_error(apsw.SQLITE_IOERR_TRUNCATE, error, self._path) from error

    @override
    def xSync(self, flags: int) -> None:
        file = self._healthy_file()
        code = apsw.SQLITE_IOERR_FSYNC
        try:
            file.sync()
            # The content before the name: a name that survives has what was synced behind it.
            if self._directory_unsynced:
                code = apsw.SQLITE_IOERR_DIR_FSYNC
                self._vfs.sync_directory_of(self._path)
                self._directory_unsynced = False
        except OSError as error:
            self._sync_failure = (code, error)
            raise _sqlite_error(code, error, self._path) from error

    @override
    def xFileSize(self) -> int:
        try:
            return self._open_file().size()
        except OSError as error:
            raise _sqlite_error(apsw.SQLITE_IOERR_FSTAT, error, self._path) from error

    @override
    def xClose(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        try:
            file.close()
        except OSError as error:
            raise _sqlite_error(apsw.SQLITE_IOERR_CLOSE, error, self._path) from error
        finally:
            self._vfs.forget(self._path, delete=self._delete_on_close)

    @override
    def xLock(self, level: int) -> None:
        """Do nothing: the data directory's lock keeps other processes out."""

    @override
    def xUnlock(self, level: int) -> None:
        """Do nothing: see `xLock`."""

    @override
    def xCheckReservedLock(self) -> bool:
        return False

    @override
    def xFileControl(self, op: int, ptr: int) -> bool:
        return False

    @override
    def xSectorSize(self) -> int:
        return SECTOR_BYTES

    @override
    def xDeviceCharacteristics(self) -> int:
        return 0

    def _open_file(self) -> File:
        if self._file is None:
            raise OSError(errno.EBADF, "file is closed")
        return self._file

    def _healthy_file(self) -> File:
        if self._sync_failure is not None:
            code, error = self._sync_failure
            raise _sqlite_error(code, error, self._path) from error
        return self._open_file()
