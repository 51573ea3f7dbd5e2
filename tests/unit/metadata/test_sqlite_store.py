"""The SQLite store: what is in its file, what it refuses, and how it stops."""

from __future__ import annotations

import contextlib
import errno
import os
import random

import apsw
import pytest

from frazil.errors import Closed, CorruptionError, InvalidRequest, Unavailable
from frazil.metadata import SqliteStore, Transaction, entries, move_aside, sqlite_file
from frazil.metadata.sqlite_file import APPLICATION_ID, SCHEMA_VERSION
from tests.support import Fault, FaultyFileSystem, SimulatedClock, SimulatedFileSystem
from tests.support.log_limits import set_log_limits

PATH = "/data/metadata.db"
EXHAUSTIVE = bool(os.environ.get("FRAZIL_TEST_EXHAUSTIVE"))
FLIPS = 1_500
TRUNCATIONS = 200


@pytest.fixture
def disk():
    return new_disk()


def new_disk():
    disk = SimulatedFileSystem()
    disk.make_directory("/data")
    disk.sync_directory("/")
    return disk


def open_store(disk, *, path=PATH, check_at_open=True):
    set_log_limits(check_at_open=check_at_open)
    return SqliteStore.open(path, file_system=disk, clock=SimulatedClock())


def content(store):
    found = [(entry.key, entry.value, entry.version) for entry in entries(store, "/")]
    return (found, store.revision(), store.applied_lsn("j"))


def fill(store, count=12):
    for number in range(count):
        puts = {f"/topic/{number:03}": b"%d" % number * 50, "/last": b"%d" % number}
        deletes = (f"/topic/{number - 6:03}",) if number >= 6 else ()
        store.commit(Transaction(puts=puts, deletes=deletes, applied={"j": number}))


def reference():
    """Return the bytes of a filled file and its content."""
    disk = new_disk()
    with contextlib.closing(open_store(disk)) as store:
        fill(store)
        found = content(store)
    return disk.read_bytes(PATH), found


def raw(disk, tmp_path, statements):
    """Change the file with plain SQLite, in a real directory; return the rows."""
    disk.dump(tmp_path, "/data")
    connection = apsw.Connection(str(tmp_path / "metadata.db"))
    found = list(connection.execute(statements))
    connection.close()
    disk.load(tmp_path, "/data")
    return found


def refuse(disk, error):
    with pytest.raises(error) as caught:
        open_store(disk)
    return caught.value


# ------------------------------------------------------------------------------ the file


def test_file_is_marked_and_synced_with_care(disk, tmp_path):
    """The file carries Frazil's id and version, and SQLite syncs as strictly as it can."""
    with contextlib.closing(open_store(disk)) as store:
        fill(store)
        connection = store._rows._connection
        assert connection.pragma("synchronous") == 3
        assert connection.pragma("locking_mode") == "exclusive"
        assert connection.pragma("journal_mode") == "persist"
        assert connection.pragma("temp_store") == 2
    marks = raw(disk, tmp_path, "PRAGMA application_id; PRAGMA user_version")
    assert marks == [(APPLICATION_ID,), (SCHEMA_VERSION,)]


def test_new_file_is_durable_when_open_returns(disk):
    """A power loss right after the first opening leaves a store, not a missing file."""
    store = open_store(disk)
    for seed in range(20):
        clone = disk.crash_clone(seed)
        assert clone.stat(PATH) is not None
        open_store(clone).close()
    store.close()


def test_second_opening_is_refused(disk):
    """A file that is open is Unavailable to others, and free again after close."""
    store = open_store(disk)
    refuse(disk, Unavailable)
    store.close()
    open_store(disk).close()


def test_missing_directory_is_unavailable(disk):
    """A path whose directory is missing is a clean error, and nothing stays locked or made."""
    with pytest.raises(Unavailable):
        open_store(disk, path="/nowhere/metadata.db")
    assert disk.paths() == []


def test_old_sqlite_is_refused(disk, monkeypatch):
    """A library older than the least version is named in the error."""
    monkeypatch.setattr(sqlite_file, "SQLITE_VERSION_MIN", (99, 0, 0))
    assert refuse(disk, Unavailable).details["version_min"] == "99.0.0"


def test_older_copy_of_the_file_is_a_store_that_lost_transactions(disk):
    """A copy taken between commits opens as the state at that moment."""
    with contextlib.closing(open_store(disk)) as store:
        fill(store, 5)
        before = content(store)
        copy = disk.read_bytes(PATH)
        store.commit(Transaction(puts={"/later": b""}))
        assert content(store) != before
    disk.unlink(PATH)
    disk.write_bytes(PATH, copy)
    with contextlib.closing(open_store(disk)) as store:
        assert content(store) == before


# ------------------------------------------------------------------- what is not accepted


def test_foreign_database_is_refused(disk, tmp_path):
    """Another program's SQLite file is refused by name and left as it is."""
    raw(disk, tmp_path, "CREATE TABLE mine (x); PRAGMA application_id=7")
    before = disk.read_bytes(PATH)
    assert refuse(disk, InvalidRequest).details["check"] == "application_id"
    assert disk.read_bytes(PATH) == before


@pytest.mark.parametrize(
    "statement", ["ALTER TABLE entries ADD COLUMN extra TEXT", "UPDATE state SET format = 2"]
)
def test_newer_schema_is_refused(disk, tmp_path, statement):
    """A schema version of the future asks for a newer Frazil, whether its tables differ or not."""
    open_store(disk).close()
    raw(disk, tmp_path, statement + "; PRAGMA user_version=2")
    error = refuse(disk, InvalidRequest)
    assert (error.details["check"], error.details["version"]) == ("user_version", 2)


def test_other_file_is_corruption(disk):
    """A file that is no SQLite database is damage, not a new store."""
    disk.write_bytes(PATH, b"hello" * 1000)
    assert refuse(disk, CorruptionError).details["check"] == "sqlite"


@pytest.mark.parametrize(
    ("statement", "check"),
    [
        ("PRAGMA application_id=7", "application_id"),
        ("PRAGMA user_version=9", "user_version"),
        ("CREATE TABLE more (x)", "schema"),
        ("DROP TABLE state", "schema"),
        ("DELETE FROM state", "state crc"),
        ("UPDATE state SET revision = 1", "state crc"),
        ("UPDATE entries SET value = x'00' WHERE key = '/last'", "entry crc"),
        ("UPDATE entries SET version = 1 WHERE key = '/last'", "entry crc"),
        ("UPDATE entries SET key = '/lost' WHERE key = '/last'", "entry crc"),
        ("DELETE FROM entries WHERE key = '/last'", "entries digest"),
    ],
)
def test_content_that_does_not_add_up_is_corruption(disk, tmp_path, statement, check):
    """Each change behind Frazil's back is found at opening by the check that is made for it."""
    with contextlib.closing(open_store(disk)) as store:
        fill(store)
    raw(disk, tmp_path, statement)
    assert refuse(disk, CorruptionError).details["check"] == check


def test_damage_found_while_reading_stops_the_store(disk, tmp_path):
    """Without the check at opening, a damaged entry is found when read, and the store stops."""
    with contextlib.closing(open_store(disk)) as store:
        fill(store)
    raw(disk, tmp_path, "UPDATE entries SET value = x'00' WHERE key = '/last'")
    with contextlib.closing(open_store(disk, check_at_open=False)) as store:
        assert store.get("/topic/011").version == 1
        with pytest.raises(CorruptionError):
            store.list("/")
        with pytest.raises(Closed):
            store.get("/topic/011")


def opens_as(data):
    """Return the content of a file with these bytes, or None if it is found to be damaged."""
    disk = new_disk()
    disk.write_bytes(PATH, data)
    try:
        with contextlib.closing(open_store(disk)) as store:
            return content(store)
    except CorruptionError as error:
        assert error.details["check"]
        return None


def test_flipped_bits_are_found_or_harmless():
    """A file with one flipped bit is refused, or has the right content: never a wrong one."""
    data, expected = reference()
    seed = random.randrange(1 << 32)
    print(f"seed={seed}")
    chosen = random.Random(seed)
    # The header of the file and of its pages are the places where one bit means the most.
    positions = list(range(100 * 8)) + [chosen.randrange(len(data) * 8) for _ in range(FLIPS)]
    if EXHAUSTIVE:
        positions = list(range(len(data) * 8))
    found = 0
    for position in positions:
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << position % 8
        result = opens_as(bytes(damaged))
        assert result in (None, expected), f"bit {position}"
        found += result is None
    assert found > 100


def test_truncated_files_are_found():
    """A file that is cut anywhere but at 0 is refused."""
    data, _ = reference()
    seed = random.randrange(1 << 32)
    print(f"seed={seed}")
    chosen = random.Random(seed)
    pages = range(4096, len(data), 4096)
    sizes = (*pages, 1, *(chosen.randrange(1, len(data)) for _ in range(TRUNCATIONS)))
    for size in range(1, len(data)) if EXHAUSTIVE else sizes:
        assert opens_as(data[:size]) is None, f"size {size}"


def test_damaged_file_can_be_moved_aside(disk):
    """A damaged file and its journal go to the new name, and an empty store takes the place."""
    disk.write_bytes(PATH, b"junk" * 2000)
    refuse(disk, CorruptionError)
    disk.write_bytes(PATH + "-journal", b"journal")
    move_aside(PATH, "/data/metadata.db.damaged", file_system=disk)
    after = disk.crash_clone(1)
    assert after.read_bytes("/data/metadata.db.damaged") == b"junk" * 2000
    assert after.read_bytes("/data/metadata.db.damaged-journal") == b"journal"
    with contextlib.closing(open_store(after)) as store:
        assert store.revision() == 0


# ------------------------------------------------------------------------------ stopping


def open_then_fail(disk, verb, error):
    """Open the store so that the first call of `verb` after the opening fails."""
    counting = FaultyFileSystem(disk.kill_clone())
    open_store(counting, check_at_open=False)
    calls = sum(call.verb == verb for call in counting.trace)
    faulty = FaultyFileSystem(disk, [Fault(verb, calls + 1, error=error)])
    return faulty, open_store(faulty, check_at_open=False)


@pytest.mark.parametrize("verb", ["write_at", "sync"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_failed_commit_stops_the_store(disk, verb, error):
    """A commit that meets a failing disk has an unknown outcome; then everything is Closed."""
    with contextlib.closing(open_store(disk)) as store:
        fill(store, 2)
    faulty, store = open_then_fail(disk, verb, error)
    with pytest.raises(Unavailable) as caught:
        store.commit(Transaction(puts={"/a": b""}))
    assert caught.value.details["outcome"] == "unknown"
    with pytest.raises(Closed) as closed:
        store.get("/last")
    assert "metadata commit failed" in str(closed.value)
    store.close()
    assert (faulty.sync_retried, faulty.writes_after_failed_sync) == (0, 0)
    with contextlib.closing(open_store(disk)) as store:
        assert store.get("/last").value == b"1"


def test_failed_read_stops_the_store(disk):
    """A read that meets a failing disk is Unavailable, and the store is Closed after it."""
    with contextlib.closing(open_store(disk)) as store:
        store.commit(Transaction(puts={"/big": bytes(1 << 20), "/a": b""}))
    _, store = open_then_fail(disk, "read_at", errno.EIO)
    with pytest.raises(Unavailable) as caught:
        store.get("/big")
    assert "outcome" not in caught.value.details
    with pytest.raises(Closed):
        store.get("/a")


def attempt(file_system, states):
    """Open, commit six times, close; return how many commits were acknowledged."""
    acked = 0
    try:
        with contextlib.closing(open_store(file_system)) as store:
            for number in range(len(states) - 1):
                store.commit(Transaction(puts={f"/{number}": b"x" * 3000, "/n": b"%d" % number}))
                acked += 1
    except (Unavailable, Closed):
        pass
    return acked


def numbers(store):
    entry = store.get("/n")
    return (int(entry.value) + 1 if entry else 0, len(store.list("/")))


@pytest.mark.parametrize(
    "verb",
    [
        "open",
        "read_at",
        "write_at",
        "sync",
        "truncate",
        "size",
        "close",
        "sync_directory",
        "stat",
        "lock",
        "unlink",
    ],
)
def test_every_call_that_fails_leaves_a_correct_file(verb):
    """Whichever call fails, what was acknowledged is there after a restart and a power loss."""
    states = range(7)
    for persistent in (False, True):
        for nth in range(1, 200):
            disk = new_disk()
            faulty = FaultyFileSystem(disk, [Fault(verb, nth, persistent=persistent)])
            acked = attempt(faulty, states)
            if not faulty.fired:
                break
            restarted = disk.kill_clone()
            with contextlib.closing(open_store(restarted)) as store:
                seen = numbers(store)
                assert acked <= seen[0] <= acked + 1
                assert seen[1] == (seen[0] + 1 if seen[0] else 0)
            with contextlib.closing(open_store(restarted.crash_clone(nth))) as store:
                assert numbers(store) == seen
        else:
            pytest.fail("the sweep did not end")


@pytest.mark.parametrize(
    ("verb", "short"),
    [("write_at", "one"), ("write_at", "half"), ("read_at", "one"), ("read_at", "half")],
)
def test_short_reads_and_writes_go_on(verb, short):
    """A file system that moves fewer bytes than asked changes nothing."""
    disk = new_disk()
    faulty = FaultyFileSystem(disk, [Fault(verb, short=short, persistent=True)])
    if short == "one":
        faulty = FaultyFileSystem(disk, [Fault(verb, 3, short=short)])
    assert attempt(faulty, range(4)) == 3
    assert faulty.fired
    with contextlib.closing(open_store(disk)) as store:
        assert numbers(store) == (3, 4)
