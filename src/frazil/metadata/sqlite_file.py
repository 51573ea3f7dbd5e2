"""The SQLite file of the metadata: opening, creation, checks and moving aside.

SQLite itself has no checksums, so every row carries a CRC32, and the one row of `state` has the
number of entries and a digest over all of them: opening the file detects a row that was lost,
stale or changed without SQLite. `docs/internals/metadata.md` has the details.

`PRAGMAS` configures the connection:

* `journal_mode=persist`, a rollback journal, and not a write-ahead log, although that needs one
  sync a commit instead of four. After a failed fsync and a restart of the process the page cache
  still shows frames of the write-ahead log that the disk does not have; SQLite takes them as
  committed, appends after them, and a later power loss silently drops everything from there on.
  The next transaction rewrites a rollback journal, and the pages it restores are written and
  synced again, so it survives that. A bit that flips in a write-ahead log drops committed
  transactions as well. Of the rollback modes, `persist` changes neither names nor sizes while it
  commits, so its syncs need no change of the file system's own journal.
* `synchronous=extra`: each step is synced, and the directory when the journal is new.
* `locking_mode=exclusive`, because the data directory has its own lock.

After opening, a store's first act should be a write transaction (it increments its generation):
that replaces a journal whose end may be missing on disk if an earlier process failed at commit.
"""

from __future__ import annotations

import contextlib
import os.path
import struct
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

import apsw

from frazil.errors import CorruptionError, FrazilError, InvalidRequest, Unavailable
from frazil.metadata.transaction import Entry, Revision

if TYPE_CHECKING:
    from frazil.fs import FileSystem, LockHandle

__all__ = [
    "APPLICATION_ID",
    "SCHEMA_VERSION",
    "Database",
    "State",
    "check_content",
    "entry_crc",
    "entry_of",
    "move_aside",
    "open_connection",
    "prepare",
    "read_state",
    "write_state",
]

APPLICATION_ID: Final = 0x46525A4C
"""The characters FRZL in the header of the file."""
SCHEMA_VERSION: Final = 1
SQLITE_VERSION_MIN: Final = (3, 51, 3)
DIGEST_MODULUS: Final = 1 << 62
QUICK_CHECK_FINDINGS_MAX: Final = 10
JOURNAL_SUFFIX: Final = "-journal"
LOCK_SUFFIX: Final = "-lock"

_ENTRIES_TABLE: Final = (
    "CREATE TABLE entries (key TEXT NOT NULL PRIMARY KEY, value BLOB NOT NULL,"
    " version INTEGER NOT NULL, mod_revision INTEGER NOT NULL, crc INTEGER NOT NULL)"
    " STRICT, WITHOUT ROWID"
)
_STATE_TABLE: Final = (
    "CREATE TABLE state (id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),"
    " format INTEGER NOT NULL, revision INTEGER NOT NULL, entries INTEGER NOT NULL,"
    " digest INTEGER NOT NULL, crc INTEGER NOT NULL) STRICT"
)
_SCHEMA: Final = (("entries", _ENTRIES_TABLE), ("state", _STATE_TABLE))
_ENTRY_NUMBERS: Final = struct.Struct("<QQI")
_STATE_NUMBERS: Final = struct.Struct("<QQQQ")
PRAGMAS: tuple[str, ...] = (
    "PRAGMA locking_mode=exclusive",
    "PRAGMA journal_mode=persist",
    "PRAGMA journal_size_limit=1048576",
    "PRAGMA synchronous=extra",
    "PRAGMA temp_store=memory",
    "PRAGMA mmap_size=0",
    "PRAGMA trusted_schema=off",
    "PRAGMA cell_size_check=on",
)


class State(NamedTuple):
    """The one row of `state`: facts about all entries together."""

    revision: Revision
    entries: int
    digest: int


def entry_crc(entry: Entry) -> int:
    """Return the CRC32 over all fields of an entry."""
    key = entry.key.encode()
    numbers = _ENTRY_NUMBERS.pack(entry.version, entry.mod_revision, len(key))
    return zlib.crc32(entry.value, zlib.crc32(key, zlib.crc32(numbers)))


def entry_of(row: tuple[apsw.SQLiteValue, ...]) -> Entry:
    """Return the entry in a row of `entries`, checked against its CRC."""
    key, value, version, mod_revision, crc = row
    if (
        isinstance(key, str)
        and isinstance(value, bytes)
        and isinstance(version, int)
        and isinstance(mod_revision, int)
        and version > 0
        and mod_revision > 0
    ):
        entry = Entry(key, value, version, Revision(mod_revision))
        if entry_crc(entry) == crc:
            return entry
    raise CorruptionError("metadata entry is damaged", check="entry crc", key=key)


class Database:
    """An open file: the connection, and the lock that excludes other processes."""

    def __init__(self, connection: apsw.Connection, lock: LockHandle) -> None:
        self.connection = connection
        self._lock = lock

    def close(self) -> None:
        """Release everything.

        SQLite rolls back an open transaction. If that fails, the journal stays for the next open.
        """
        try:
            with contextlib.suppress(apsw.Error, OSError):
                self.connection.close(force=True)
        finally:
            self._lock.release()


def open_connection(path: str, file_system: FileSystem) -> Database:
    """Open the file, or create an empty one.

    Raises:
        OSError: it cannot be opened; `LockTaken` if another process has it.
        apsw.Error: SQLite refuses it.
    """
    version = apsw.sqlite_lib_version()
    if tuple(map(int, version.split("."))) < SQLITE_VERSION_MIN:
        raise Unavailable(
            "sqlite is too old, install a newer apsw",
            version=version,
            version_min=".".join(map(str, SQLITE_VERSION_MIN)),
        )
    with contextlib.ExitStack() as stack:
        lock = file_system.lock(path + LOCK_SUFFIX, "frazil metadata")
        stack.callback(lock.release)
        connection = connect(path, file_system.sqlite_vfs())
        stack.pop_all()
    return Database(connection, lock)


def connect(path: str, vfs: str) -> apsw.Connection:
    """Open the database at `path`, creating it if it is absent; `vfs` is "" for SQLite's own.

    Close it also after an error: an error raised while a forgotten connection is collected is lost.
    """
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI
    # psow=0: a power loss may damage a whole sector, so SQLite journals its other pages, too.
    connection = apsw.Connection(f"file:{quote(path)}?psow=0", flags=flags, vfs=vfs or None)
    try:
        for pragma in PRAGMAS:
            connection.execute(pragma)
    except BaseException:
        connection.close(force=True)
        raise
    return connection


def prepare(connection: apsw.Connection, path: str) -> bool:
    """Create the schema in an empty file, check it in another; return whether it was empty.

    Raises:
        InvalidRequest: the file is another program's, or a newer Frazil's.
        CorruptionError: the schema does not match its version.
    """
    application_id = connection.pragma("application_id")
    version = connection.pragma("user_version")
    found = tuple(connection.execute("SELECT name, sql FROM sqlite_schema ORDER BY name"))
    if not found and application_id == 0 and version == 0:
        _create(connection)
        return True
    if (application_id, version) != (APPLICATION_ID, SCHEMA_VERSION):
        raise _header_error(connection, path, application_id, version, is_ours=found == _SCHEMA)
    if found != _SCHEMA:
        raise CorruptionError("metadata file is damaged", check="schema", path=path)
    return False


def _create(connection: apsw.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    for _, statement in _SCHEMA:
        connection.execute(statement)
    connection.pragma("application_id", APPLICATION_ID)
    connection.pragma("user_version", SCHEMA_VERSION)
    write_state(connection, State(Revision(0), 0, 0))
    connection.execute("COMMIT")


def _header_error(
    connection: apsw.Connection,
    path: str,
    application_id: object,
    version: object,
    *,
    is_ours: bool,
) -> FrazilError:
    """Distinguish a damaged header of our file from a file of another program."""
    check = "application_id" if application_id != APPLICATION_ID else "user_version"
    if is_ours:
        with contextlib.suppress(CorruptionError):
            # The version is stored twice: a newer Frazil would have changed both.
            read_state(connection, path)
            return CorruptionError("metadata file is damaged", check=check, path=path)
    if check == "application_id":
        return InvalidRequest(
            "file is not frazil's metadata, choose another path",
            check=check,
            path=path,
            application_id=application_id,
        )
    return InvalidRequest(
        "metadata file has a schema version that this frazil does not know, use a newer frazil",
        check=check,
        path=path,
        version=version,
        version_known=SCHEMA_VERSION,
    )


def read_state(connection: apsw.Connection, path: str) -> State:
    """Return the row of `state`, checked against its CRC."""
    rows = list(connection.execute("SELECT format, revision, entries, digest, crc FROM state"))
    if len(rows) == 1:
        version, revision, entries, digest, crc = rows[0]
        numbers = (version, revision, entries, digest)
        is_sane = version == SCHEMA_VERSION and min(numbers) >= 0
        if is_sane and zlib.crc32(_STATE_NUMBERS.pack(*numbers)) == crc:
            return State(Revision(revision), entries, digest)
    raise CorruptionError("metadata file is damaged", check="state crc", path=path)


def write_state(connection: apsw.Connection, state: State) -> None:
    """Put the row of `state` into the open transaction."""
    numbers = (SCHEMA_VERSION, state.revision, state.entries, state.digest)
    connection.execute(
        "INSERT OR REPLACE INTO state (id, format, revision, entries, digest, crc)"
        " VALUES (1, ?, ?, ?, ?, ?)",
        (*numbers, zlib.crc32(_STATE_NUMBERS.pack(*numbers))),
    )


def check_content(connection: apsw.Connection, path: str, state: State) -> None:
    """Check the pages with SQLite's `quick_check`, then every entry and all of them together.

    Raises:
        CorruptionError: `check` names the check and `findings` the report of SQLite.
    """
    findings = [
        str(row[0]) for row in connection.execute(f"PRAGMA quick_check({QUICK_CHECK_FINDINGS_MAX})")
    ]
    if findings != ["ok"]:
        raise CorruptionError(
            "metadata file is damaged", check="quick_check", path=path, findings="; ".join(findings)
        )
    count = 0
    digest = 0
    key_last = ""
    rows = connection.execute(
        "SELECT key, value, version, mod_revision, crc FROM entries ORDER BY key"
    )
    for entry in map(entry_of, rows):
        if entry.key <= key_last or entry.mod_revision > state.revision:
            raise CorruptionError(
                "metadata file is damaged", check="entry order", path=path, key=entry.key
            )
        key_last = entry.key
        count += 1
        digest = (digest + entry_crc(entry)) % DIGEST_MODULUS
    if (count, digest) != (state.entries, state.digest):
        raise CorruptionError(
            "metadata file is damaged",
            check="entries digest",
            path=path,
            entries=count,
            entries_expected=state.entries,
        )


def move_aside(path: str, target: str, *, file_system: FileSystem) -> None:
    """Move a damaged file and its rollback journal to `target`; durable on return.

    The file goes first: a journal without its file is ignored, but a file without its journal
    could be half of a transaction.
    """
    for suffix in ("", JOURNAL_SUFFIX):
        if file_system.stat(path + suffix) is not None:
            file_system.rename(path + suffix, target + suffix)
    for directory in {os.path.dirname(path), os.path.dirname(target)}:
        file_system.sync_directory(directory)
