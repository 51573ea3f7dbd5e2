"""SQLite on the file seam: crashes, faults and errors."""

from __future__ import annotations

import contextlib
import errno
import random

import apsw
import pytest

from frazil.fs import RealFileSystem
from frazil.metadata.sqlite_file import connect
from tests.support import ERRNOS, Fault, FaultyFileSystem, SimulatedCrash, SimulatedFileSystem
from tests.support.simulated_fs import SimulatedFile
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


def rows(connection):
    """Return all rows of a database that must be sound."""
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 't'").fetchall():
        return {}
    return dict(connection.execute("SELECT k, v FROM t").fetchall())


class Writer:
    """Random transactions, and the states that the database may be in after a crash."""

    def __init__(self, chance):
        self._chance = chance
        self.possible = [{}]

    def transact(self, connection):
        state = dict(self.possible[0])
        with transaction(connection):
            connection.execute("CREATE TABLE IF NOT EXISTS t (k INTEGER PRIMARY KEY, v TEXT)")
            for _ in range(self._chance.randint(1, 6)):
                key = self._chance.randrange(30)
                if self._chance.random() < 0.25:
                    connection.execute("DELETE FROM t WHERE k = ?", (key,))
                    state.pop(key, None)
                else:
                    value = self._chance.randbytes(4).hex() * self._chance.choice((1, 30, 900))
                    connection.execute("REPLACE INTO t VALUES (?, ?)", (key, value))
                    state[key] = value
            self.possible = [self.possible[0], state]
        self.possible = [state]

    def check(self, connection):
        """Look which of the possible states it is; from now on it must stay that."""
        found = rows(connection)
        assert found in self.possible
        self.possible = [found]


def crash_repeatedly(seed, new_disk=new_disk):
    """Run transactions through several lives that each end in a power loss, also in recovery."""
    chance = random.Random(seed)
    writer = Writer(chance)
    disk = new_disk(seed)
    for _ in range(4):
        disk.crash_at = disk.sync_points + chance.randint(1, 60)
        with contextlib.suppress(SimulatedCrash), opened(disk) as connection:
            writer.check(connection)
            for _ in range(8):
                writer.transact(connection)
        disk = disk.crash_clone(chance.getrandbits(32))
    with opened(disk) as connection:
        writer.check(connection)


@pytest.mark.parametrize("block", range(4))
def test_committed_transactions_survive_power_loss(block):
    """After each crash the database is sound, with every committed transaction and none half."""
    for seed in range(block * 150, block * 150 + 150):
        try:
            crash_repeatedly(seed)
        except AssertionError:
            print(f"seed={seed}")
            raise


class _LazyFile(SimulatedFile):
    def sync(self):
        self._file_system.reach_sync_point("before sync", self._path)


class _SyncsNothing(SimulatedFileSystem):
    """A planted bug: syncs succeed and do nothing."""

    def open(self, path, mode):
        file = super().open(path, mode)
        return _LazyFile(self, file._inode, path, writable=True)


class _SyncsNoDirectory(SimulatedFileSystem):
    """A planted bug: names are never made durable."""

    def sync_directory(self, path):
        if path == "/":
            super().sync_directory(path)
        self.reach_sync_point("before sync_directory", path)


@pytest.mark.parametrize("broken", [_SyncsNothing, _SyncsNoDirectory])
def test_a_disk_that_does_not_sync_is_noticed(broken):
    """The crash test has the power to find a missing sync of a file or of a directory."""

    def broken_disk(seed):
        disk = broken(seed)
        disk.make_directory("/d")
        disk.sync_directory("/")
        return disk

    found = 0
    for seed in range(40):
        try:
            crash_repeatedly(seed, broken_disk)
        except (AssertionError, apsw.Error):
            found += 1
    assert found > 0


def test_all_file_access_goes_through_the_seam(tmp_path):
    """A database on a simulated disk leaves nothing on the real one, and a real one is real."""
    disk = new_disk()
    with opened(disk) as connection:
        Writer(random.Random(1)).transact(connection)
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
    writer = Writer(random.Random(1))
    events = []
    with opened(disk) as connection:
        for _ in range(3):
            writer.transact(connection)
        disk.on_sync = lambda event: events.append(event) if "before" in event else None
        writer.transact(connection)
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
        Writer(random.Random(1)).transact(connection)
        rows(connection)
    assert raised.value.extendedresult == expected
    assert isinstance(raised.value.__cause__, OSError)
    assert f"errno={error}" in str(raised.value)


def sweep(verb, error, seed, nth):
    """Fail one call, restart the process, commit again, lose power; return whether it failed."""
    chance = random.Random(seed)
    writer = Writer(chance)
    disk = new_disk(seed)
    with opened(disk) as connection:
        for _ in range(2):
            writer.transact(connection)
    faulty = FaultyFileSystem(disk, [Fault(verb, nth=nth, error=error)])
    with contextlib.suppress(apsw.Error), opened(faulty) as connection:
        for _ in range(4):
            writer.transact(connection)
        if verb == "sync" and faulty.fired:
            pytest.fail("a commit was answered after a failed sync")
    assert faulty.writes_after_failed_sync == 0
    assert faulty.sync_retried == 0
    restarted = disk.kill_clone()
    with opened(restarted) as connection:
        writer.check(connection)
        for _ in range(2):
            writer.transact(connection)
        after = restarted.crash_clone(seed)
        after_nothing = restarted.crash_clone(seed, data="nothing", names="nothing")
    for clone in (after, after_nothing):
        with opened(clone) as connection:
            writer.check(connection)
    return faulty.fired > 0


@pytest.mark.parametrize("error", ERRNOS, ids=errno.errorcode.get)
@pytest.mark.parametrize("verb", ["open", "read_at", "write_at", "sync", "size", "stat"])
def test_any_failed_call_loses_no_committed_transaction(verb, error):
    """Whichever call fails: after a restart, new commits and a power loss nothing is lost (F18)."""
    nth = 1
    while sweep(verb, error, seed=nth, nth=nth):
        nth += 1
    assert nth > 1


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
        Writer(random.Random(1)).transact(connection)
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


def test_a_crash_passes_through_sqlite():
    """The crash comes out of the call it happened in, whichever sync point it was."""
    reached = 0
    for point in range(1, 40):
        disk = new_disk()
        disk.crash_at = disk.sync_points + point
        with pytest.raises(SimulatedCrash), opened(disk) as connection:
            writer = Writer(random.Random(point))
            for _ in range(10):
                writer.transact(connection)
        reached += 1
    assert reached == 39
