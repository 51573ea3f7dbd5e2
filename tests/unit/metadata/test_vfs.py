"""SQLite on the file seam, by the VFS of the tests: which calls it makes, and its errors."""

from __future__ import annotations

import contextlib
import errno

import apsw
import pytest

from frazil.fs import RealFileSystem
from frazil.metadata.sqlite_file import connect
from tests.support import Fault, FaultyFileSystem, SimulatedCrash, SimulatedFileSystem
from tests.support.sqlite_vfs import register_vfs

DATABASE = "/d/meta.db"


def new_disk(seed=0):
    disk = SimulatedFileSystem(seed)
    disk.make_directory("/d")
    disk.sync_directory("/")
    return disk


@contextlib.contextmanager
def opened(file_system):
    """Give a connection, closed at the end also when the machine beneath it has crashed."""
    vfs = register_vfs(file_system)
    connection = connect(DATABASE, vfs.name)
    try:
        yield connection
    finally:
        with contextlib.suppress(SimulatedCrash, apsw.Error):
            connection.close(True)


@contextlib.contextmanager
def transaction(connection):
    """Commit what the block does as one transaction, durable on return."""
    connection.execute("BEGIN IMMEDIATE")
    yield
    connection.execute("COMMIT")


def write(connection):
    """Commit a transaction."""
    with transaction(connection):
        connection.execute("CREATE TABLE IF NOT EXISTS t (k INTEGER PRIMARY KEY, v TEXT)")
        connection.execute("REPLACE INTO t VALUES (1, ?)", ("x" * 9000,))


def rows(connection):
    """Return all rows of a database that must be sound."""
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 't'").fetchall():
        return {}
    return dict(connection.execute("SELECT k, v FROM t").fetchall())


def test_all_file_access_goes_through_the_seam(tmp_path):
    """A database on a simulated disk leaves nothing on the real one, and a real one is real."""
    disk = new_disk()
    with opened(disk) as connection:
        write(connection)
    assert disk.paths() == [DATABASE, f"{DATABASE}-journal"]
    path = str(tmp_path / "meta.db")
    connection = connect(path, RealFileSystem().sqlite_vfs())
    with transaction(connection):
        connection.execute("CREATE TABLE t (k)")
        connection.execute("INSERT INTO t VALUES (7)")
    connection.close()
    plain = apsw.Connection(path)
    assert plain.execute("SELECT k FROM t").fetchall() == [(7,)]
    plain.close()


def test_a_commit_in_steady_state_changes_no_names():
    """A commit is three syncs of the journal around one of the database, and no directory's."""
    disk = new_disk()
    events = []
    with opened(disk) as connection:
        for _ in range(3):
            write(connection)
        disk.on_sync = lambda event: events.append(event) if "before" in event else None
        write(connection)
    journal, database = f"before sync {DATABASE}-journal", f"before sync {DATABASE}"
    assert events[:4] == [journal, journal, database, journal]


@pytest.mark.parametrize(
    ("verb", "error", "expected"),
    [
        ("write_at", errno.EIO, apsw.SQLITE_IOERR_WRITE),
        ("write_at", errno.ENOSPC, apsw.SQLITE_FULL),
        ("write_at", errno.EDQUOT, apsw.SQLITE_FULL),
        ("sync", errno.EIO, apsw.SQLITE_IOERR_FSYNC),
        ("sync", errno.ENOSPC, apsw.SQLITE_FULL),
        ("sync_directory", errno.EIO, apsw.SQLITE_IOERR_DIR_FSYNC),
        ("read_at", errno.EIO, apsw.SQLITE_IOERR_READ),
        ("size", errno.EIO, apsw.SQLITE_IOERR_FSTAT),
        ("open", errno.EMFILE, apsw.SQLITE_CANTOPEN),
        ("stat", errno.EIO, apsw.SQLITE_CANTOPEN),
    ],
)
def test_errors_of_the_seam_become_errors_of_sqlite(verb, error, expected):
    """Each failed call gives SQLite the code that says what failed, with the path in its text."""
    file_system = FaultyFileSystem(new_disk(), [Fault(verb, error=error, path_part="/d")])
    with pytest.raises(apsw.Error) as raised, opened(file_system) as connection:
        write(connection)
        rows(connection)
    assert raised.value.extendedresult == expected
    assert isinstance(raised.value.__cause__, OSError)
    assert f"errno={error}" in str(raised.value)


def test_a_failed_look_for_a_journal_is_an_error():
    """If the seam cannot say whether there is a journal, SQLite does not take that as no."""
    plan = [Fault("stat", path_part="-journal", persistent=True)]
    with pytest.raises(apsw.IOError) as raised, opened(FaultyFileSystem(new_disk(), plan)) as it:
        rows(it)
    assert raised.value.extendedresult == apsw.SQLITE_IOERR_ACCESS


@pytest.mark.parametrize(
    ("verb", "expected"),
    [("unlink", apsw.SQLITE_IOERR_DELETE), ("sync_directory", apsw.SQLITE_IOERR_DIR_FSYNC)],
)
def test_a_journal_that_cannot_be_removed_is_an_error(verb, expected):
    """Removing a journal needs the unlink and the sync of the directory."""
    disk = new_disk()
    with opened(disk) as connection:
        write(connection)
    faulty = FaultyFileSystem(disk, [Fault(verb)])
    vfs = register_vfs(faulty)
    with pytest.raises(apsw.IOError) as raised:
        vfs.xDelete(f"{DATABASE}-journal", True)
    assert raised.value.extendedresult == expected
    with pytest.raises(apsw.IOError) as raised:
        vfs.xDelete("/d/absent", True)
    assert raised.value.extendedresult == apsw.SQLITE_IOERR_DELETE_NOENT


def test_a_temporary_file_is_refused():
    """Without temp_store=memory a statement that spills fails, with the remedy in the text."""
    vfs = register_vfs(new_disk())
    with pytest.raises(apsw.CantOpenError, match="temp_store=memory"):
        vfs.xOpen(None, [apsw.SQLITE_OPEN_TEMP_DB | apsw.SQLITE_OPEN_READWRITE, 0])
