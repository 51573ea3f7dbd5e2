"""SQLite's file access on the file seam, so that simulated crashes and faults cover it, too.

`PRAGMAS` is how the metadata database is run on it:

* `journal_mode=persist`, a rollback journal, and not a write-ahead log, although that needs one
  sync a commit instead of four. After a failed fsync and a restart of the process the page cache
  still shows frames of the write-ahead log that the disk does not have; SQLite takes them as
  committed, appends behind them, and a later power loss silently drops everything from there on.
  A rollback journal is written anew by the next transaction, and what it restores is written and
  synced again, so it survives that. A bit that flips in a write-ahead log drops committed
  transactions as well. Of the rollback modes, `persist` changes neither names nor sizes while it
  commits, so its syncs need no change of the file system's own journal.
* `synchronous=extra`: each step is synced, and the directory when the journal is new.
* `locking_mode=exclusive`, because the data directory has its own lock. The locks of this VFS do
  nothing; instead a second connection to the same database is refused.

After opening, a store's first act should be a write transaction (it counts its generation up):
that replaces a journal whose end the disk may not have if an earlier process failed at commit.
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
from typing import TYPE_CHECKING

import apsw
from typing_extensions import override

from frazil.fs import read_fully, write_fully

if TYPE_CHECKING:
    from collections.abc import Iterator

    from frazil.fs import File, FileSystem, OpenMode

__all__ = ["PRAGMAS", "connect", "register_vfs", "transaction"]

PRAGMAS: tuple[str, ...] = (
    "PRAGMA locking_mode=exclusive",
    "PRAGMA journal_mode=persist",
    "PRAGMA journal_size_limit=1048576",
    "PRAGMA synchronous=extra",
    "PRAGMA temp_store=memory",
    "PRAGMA mmap_size=0",
)

# The largest unit that a power loss damages as a whole: physical sectors of common disks.
# SQLite journals all pages that share one, and its own unix VFS assumes the same.
SECTOR_BYTES = 4096
PATH_BYTES_MAX = 4096

_DISK_IS_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def register_vfs(file_system: FileSystem, *, name: str) -> apsw.VFS:
    """Register a VFS whose every access to files goes through `file_system`.

    Keep the result as long as connections are opened by its `name`. Temporary files are refused:
    connections need `temp_store=memory` (see `PRAGMAS`). Write-ahead logs work in exclusive locking
    mode only, as there is no shared memory.
    """
    return _SeamVFS(file_system, name)


def connect(path: str, vfs: apsw.VFS) -> apsw.Connection:
    """Open the database at `path` through a registered VFS, creating it if it is absent.

    Close it also after an error: what a forgotten connection raises while it is collected is lost.
    """
    assert isinstance(vfs, _SeamVFS)
    connection = apsw.Connection(path, vfs=vfs.name)
    try:
        for pragma in PRAGMAS:
            connection.execute(pragma)
    except BaseException:
        connection.close(force=True)
        raise
    return connection


@contextlib.contextmanager
def transaction(connection: apsw.Connection) -> Iterator[None]:
    """Commit what the block does as one transaction, durable on return; undo it if it raises.

    If the commit itself raises, the outcome is unknown: close the connection, reopen and look
    (F18). This is not `with connection`, whose savepoints replace an exception from below the seam
    by an error of their own.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except Exception:
        if connection.in_transaction:
            # SQLite has rolled back already, or it will when the database is opened again.
            with contextlib.suppress(apsw.Error):
                connection.execute("ROLLBACK")
        raise


def _sqlite_error(code: int, error: OSError, path: str) -> Exception:
    """Return what tells SQLite `code`; a full disk is always FULL, whatever was tried."""
    if error.errno in _DISK_IS_FULL:
        code = apsw.SQLITE_FULL
    made = apsw.exception_for(code)
    made.args = (f"{error.strerror} (path={path} errno={error.errno})",)
    return made


class _SeamVFS(apsw.VFS):
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

    def __init__(self, vfs: _SeamVFS, file: File, path: str, *, created: bool, flags: int) -> None:
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
