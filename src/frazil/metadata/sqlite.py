"""The metadata store in one SQLite file: the default.

One connection under one lock, an exclusive lock on the file, a rollback journal and
`synchronous=EXTRA`: a commit that returned survives a loss of power. After the first error of
storage the store stops; no step is retried. `docs/internals/metadata.md` has the format.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import apsw

from frazil.errors import CorruptionError, Unavailable
from frazil.fs import LockTaken
from frazil.metadata.local import Change, LocalStore
from frazil.metadata.sqlite_file import (
    DIGEST_MODULUS,
    Database,
    State,
    check_content,
    entry_crc,
    entry_of,
    open_connection,
    prepare,
    read_state,
    write_state,
)
from frazil.metadata.transaction import Entry, Revision, page_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.clock import Clock
    from frazil.fs import FileSystem
    from frazil.metadata.store import Page

__all__ = ["SqliteStore"]

CHECK_AT_OPEN: Final = True
"""All pages and all entries are checked when a store is opened; it reads the whole file."""
_STORAGE_ERRORS = (apsw.Error, OSError)
# A key with a flipped bit may not even be text.
_DAMAGE = (apsw.CorruptError, apsw.NotADBError, UnicodeDecodeError)
# Errors of the disk, the memory or another process; the content is not damaged.
_CIRCUMSTANCES = (
    OSError,
    apsw.IOError,
    apsw.FullError,
    apsw.BusyError,
    apsw.CantOpenError,
    apsw.PermissionsError,
    apsw.NoMemError,
)
_SELECT = "SELECT key, value, version, mod_revision, crc FROM entries "


class SqliteStore(LocalStore):
    """A metadata store in an SQLite file."""

    @classmethod
    def open(cls, path: str, *, file_system: FileSystem, clock: Clock) -> SqliteStore:
        """Open the file at `path` or create it; a new one is durable on return.

        Args:
            path: absolute; its directory must exist. `path` + "-journal" and `path` + "-lock"
                belong to it.
            file_system: the file system of the file.
            clock: for leases.

        Raises:
            CorruptionError: the file is damaged; `check` says which check failed.
            InvalidRequest: it is another program's file or a newer Frazil's.
            Unavailable: another process has it, or storage fails.
        """
        with _opening(path), contextlib.ExitStack() as stack:
            database = open_connection(path, file_system)
            stack.callback(database.close)
            state = _prepared(database.connection, path)
            stack.pop_all()
        return cls(_SqliteRows(database, path, state), clock)


def _prepared(connection: apsw.Connection, path: str) -> State:
    """Create or check the content of the file; return its state."""
    is_new = prepare(connection, path)
    state = read_state(connection, path)
    if CHECK_AT_OPEN and not is_new:
        check_content(connection, path, state)
    # An earlier process may have failed between its commit and the end of its journal. Its last
    # commit looks complete, but the disk may still hold the journal that undoes it. One write now
    # replaces the journal before any caller relies on the data.
    connection.execute("BEGIN IMMEDIATE")
    write_state(connection, state)
    connection.execute("COMMIT")
    return state


@contextlib.contextmanager
def _opening(path: str) -> Iterator[None]:
    """Convert the errors of opening a file."""
    try:
        yield
    except LockTaken as error:
        raise Unavailable("metadata file is open elsewhere", path=path) from error
    except _CIRCUMSTANCES as error:
        raise Unavailable("metadata file cannot be opened", path=path, reason=error) from error
    except (apsw.Error, *_DAMAGE) as error:
        raise CorruptionError(
            "metadata file is damaged", check="sqlite", path=path, reason=error
        ) from error


class _SqliteRows:
    """The rows of one open file."""

    def __init__(self, database: Database, path: str, state: State) -> None:
        self._database = database
        self._connection = database.connection
        self._path = path
        self._state = state

    @property
    def revision(self) -> Revision:
        return self._state.revision

    def read(self, key: str) -> Entry | None:
        with self._reading():
            rows = list(self._connection.execute(_SELECT + "WHERE key = ?", (key,)))
        return entry_of(rows[0]) if rows else None

    def scan(self, *, first: str, end: str, after: str | None, limit: int) -> Page:
        with self._reading():
            cursor = self._connection.execute(
                _SELECT + "WHERE key >= ? AND key < ? AND key > ? ORDER BY key LIMIT ?",
                (first, end, after or "", limit),
            )
            page = page_of(map(entry_of, cursor))
            cursor.close(True)
        return page

    def write(self, revision: Revision, changes: Sequence[Change]) -> None:
        state = _state_after(self._state, revision, changes)
        after = [change.after for change in changes if change.after is not None]
        puts = [(e.key, e.value, e.version, e.mod_revision, entry_crc(e)) for e in after]
        deletes = [(change.key,) for change in changes if change.after is None]
        execute = self._connection.execute
        try:
            execute("BEGIN IMMEDIATE")
            self._connection.executemany(
                "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?)", puts
            )
            self._connection.executemany("DELETE FROM entries WHERE key = ?", deletes)
            write_state(self._connection, state)
            execute("COMMIT")
        except _STORAGE_ERRORS as error:
            raise Unavailable(
                "metadata commit failed, open the store again and read before retrying",
                outcome="unknown",
                path=self._path,
                reason=error,
            ) from error
        self._state = state

    def close(self) -> None:
        self._database.close()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except _DAMAGE as error:
            raise CorruptionError(
                "metadata file is damaged", check="sqlite", path=self._path, reason=error
            ) from error
        except _STORAGE_ERRORS as error:
            raise Unavailable("metadata read failed", path=self._path, reason=error) from error


def _state_after(state: State, revision: Revision, changes: Sequence[Change]) -> State:
    before = [entry_crc(change.before) for change in changes if change.before is not None]
    after = [entry_crc(change.after) for change in changes if change.after is not None]
    count = state.entries - len(before) + len(after)
    return State(revision, count, (state.digest - sum(before) + sum(after)) % DIGEST_MODULUS)
