"""The crash states of the simulated file system: each listed one occurs, no impossible one does."""

from __future__ import annotations

import errno
import random

import pytest

from frazil.fs import LockTaken, write_fully
from tests.support import SECTOR_BYTES, SimulatedCrash, SimulatedFileSystem

SEEDS = range(400)


@pytest.fixture
def disk():
    file_system = SimulatedFileSystem()
    file_system.make_directory("/d")
    file_system.sync_directory("/")
    return file_system


def durable_file(disk, path="/d/a", data=b""):
    """Return a handle of a file whose name and content are durable."""
    file = disk.open(path, "create")
    write_fully(file, 0, [data])
    file.sync()
    disk.sync_directory("/d")
    return file


def contents(disk, path="/d/a", **survival):
    """Return the set of contents that a crash may leave, None for a missing file."""
    found = set()
    for seed in SEEDS:
        clone = disk.crash_clone(seed, **survival)
        found.add(clone.read_bytes(path) if path in clone.paths() else None)
    return found


def listings(disk, directory="/d", **survival):
    """Return the set of listings that a crash may leave."""
    return {tuple(disk.crash_clone(seed, **survival).list_directory(directory)) for seed in SEEDS}


def files(disk):
    """Return the set of all files with their contents that a crash may leave."""
    clones = map(disk.crash_clone, SEEDS)
    return {tuple((path, clone.read_bytes(path)) for path in clone.paths()) for clone in clones}


def sectors(*letters):
    return b"".join(letter.encode() * SECTOR_BYTES for letter in letters)


def test_synced_bytes_survive_every_crash(disk):
    """What was synced, under a synced name, is there whatever else is lost."""
    file = durable_file(disk, data=b"kept" * 400)
    write_fully(file, 1600, [b"lost?" * 100])
    for seed in SEEDS:
        assert disk.crash_clone(seed).read_bytes("/d/a")[:1600] == b"kept" * 400


def test_unsynced_sectors_survive_in_any_subset(disk):
    """Of three sectors written over durable ones, all eight combinations occur and no others."""
    file = durable_file(disk, data=sectors("a", "b", "c"))
    write_fully(file, 0, [sectors("A", "B", "C")])
    expected = {sectors(x, y, z) for x in "aA" for y in "bB" for z in "cC"}
    assert contents(disk) == expected


def test_a_sector_may_hold_an_older_unsynced_version(disk):
    """A sector written twice holds the durable, the first or the second version, never a mix."""
    file = durable_file(disk, data=sectors("a"))
    write_fully(file, 0, [sectors("b")])
    write_fully(file, 100, [b"c" * 10])
    second = b"b" * 100 + b"c" * 10 + b"b" * 402
    assert contents(disk) == {sectors("a"), sectors("b"), second}


def test_lost_bytes_of_a_grown_file_read_as_zeroes(disk):
    """A grown file has any of its sizes, with data or zeroes in each lost sector."""
    file = durable_file(disk, data=sectors("a"))
    write_fully(file, SECTOR_BYTES, [sectors("b")])
    write_fully(file, 2 * SECTOR_BYTES, [sectors("c")])
    zero = "\0"
    expected = {sectors("a")}
    expected |= {sectors("a", y) for y in ("b", zero)}
    expected |= {sectors("a", y, z) for y in ("b", zero) for z in ("c", zero)}
    assert contents(disk) == expected


def test_a_long_write_may_grow_the_file_partly(disk):
    """The size after a crash may lie inside of one write."""
    file = durable_file(disk)
    write_fully(file, 0, [sectors(*"abcd") + b"e"])
    assert {len(content) for content in contents(disk)} == {0, 512, 1024, 1536, 2048, 2049}


def test_bytes_behind_the_surviving_size_are_gone(disk):
    """A sector that survives without the new size shows no byte behind the old size."""
    file = durable_file(disk, data=b"a" * 100)
    write_fully(file, 100, [b"b" * 100])
    assert contents(disk) == {b"a" * 100, b"a" * 100 + bytes(100), b"a" * 100 + b"b" * 100}
    for seed in SEEDS:
        clone = disk.crash_clone(seed)
        if len(clone.read_bytes("/d/a")) == 100:
            clone.open("/d/a", "write").truncate(200)
            assert clone.read_bytes("/d/a") == b"a" * 100 + bytes(100)


def test_a_truncate_may_be_lost(disk):
    """An unsynced cut is there or not; a synced one always is."""
    file = durable_file(disk, data=b"a" * 1000)
    file.truncate(300)
    assert contents(disk) == {b"a" * 1000, b"a" * 300}
    file.sync()
    assert contents(disk) == {b"a" * 300}


def test_a_cut_that_survives_does_not_bring_back_what_it_cut(disk):
    """After cutting and growing again, a file of the new size never shows the old bytes there."""
    file = durable_file(disk, data=b"a" * 1000)
    file.truncate(300)
    file.truncate(1200)
    assert contents(disk) >= {b"a" * 1000, b"a" * 300, b"a" * 300 + bytes(900)}
    assert {content for content in contents(disk) if len(content) == 1200} == {
        b"a" * 300 + bytes(900)
    }


def test_a_cut_that_survives_takes_unsynced_bytes_along(disk):
    """What was written, cut off before any sync and grown over is zero when the growth survives."""
    file = durable_file(disk)
    write_fully(file, 0, [b"b" * 1000])
    file.truncate(300)
    file.truncate(1200)
    grown = {content for content in contents(disk) if len(content) == 1200}
    assert grown == {b"b" * 300 + bytes(900), bytes(1200)}


def test_a_new_file_without_a_synced_directory_may_be_missing(disk):
    """Syncing a new file does not save its name; syncing the directory does."""
    file = disk.open("/d/a", "create")
    write_fully(file, 0, [b"data"])
    file.sync()
    assert contents(disk) == {None, b"data"}
    disk.sync_directory("/d")
    assert contents(disk) == {b"data"}


def test_a_synced_name_without_a_synced_file_may_be_empty(disk):
    """Syncing the directory saves the name but not the content."""
    write_fully(disk.open("/d/a", "create"), 0, [b"data"])
    assert contents(disk) == {None, b"", bytes(4), b"data"}
    disk.sync_directory("/d")
    assert contents(disk) == {b"", bytes(4), b"data"}


def test_a_file_in_an_unsynced_directory_may_be_missing(disk):
    """A synced file in a synced directory is lost with the directory's own name."""
    disk.make_directory("/d/new")
    write_fully(file := disk.open("/d/new/a", "create"), 0, [b"data"])
    file.sync()
    disk.sync_directory("/d/new")
    assert contents(disk, "/d/new/a") == {None, b"data"}
    disk.sync_directory("/d")
    assert contents(disk, "/d/new/a") == {b"data"}


def test_a_rename_is_lost_or_done_as_a_whole(disk):
    """Either both names are as before or both as after; a synced directory leaves no choice."""
    durable_file(disk, "/d/a", b"old")
    durable_file(disk, "/d/tmp", b"new")
    disk.rename("/d/tmp", "/d/a")
    assert files(disk) == {(("/d/a", b"old"), ("/d/tmp", b"new")), (("/d/a", b"new"),)}
    disk.sync_directory("/d")
    assert contents(disk) == {b"new"}
    assert listings(disk) == {("a",)}


def test_a_rename_of_an_unsynced_file_may_leave_it_empty(disk):
    """Renaming before syncing may replace good content by nothing."""
    durable_file(disk, "/d/a", b"old")
    write_fully(disk.open("/d/tmp", "create"), 0, [b"new"])
    disk.rename("/d/tmp", "/d/a")
    assert contents(disk) == {b"old", b"", bytes(3), b"new"}


def test_a_rename_between_directories_never_doubles_or_loses_the_file(disk):
    """A moved file has exactly one name after every crash."""
    disk.make_directory("/d/aside")
    disk.sync_directory("/d")
    durable_file(disk, "/d/a", b"data")
    disk.rename("/d/a", "/d/aside/a")
    found = {tuple(disk.crash_clone(seed).paths()) for seed in SEEDS}
    assert found == {("/d/a",), ("/d/aside/a",)}
    disk.sync_directory("/d/aside")
    assert {tuple(disk.crash_clone(seed).paths()) for seed in SEEDS} == {("/d/aside/a",)}


def test_an_unlink_may_be_lost(disk):
    """A removed file may come back with its bytes, until the directory is synced."""
    durable_file(disk, data=b"data")
    disk.unlink("/d/a")
    assert contents(disk) == {None, b"data"}
    disk.sync_directory("/d")
    assert contents(disk) == {None}


def test_names_survive_independently(disk):
    """Of two new files any subset survives, also the later one alone."""
    disk.open("/d/a", "create")
    disk.open("/d/b", "create")
    assert listings(disk) == {(), ("a",), ("b",), ("a", "b")}
    assert listings(disk, names="prefix") == {(), ("a",), ("a", "b")}


def test_the_changes_of_one_name_keep_their_order(disk):
    """A name that was removed and made anew shows the old, no, or the new file in that order."""
    durable_file(disk, data=b"old")
    disk.unlink("/d/a")
    write_fully(file := disk.open("/d/a", "create"), 0, [b"new"])
    file.sync()
    disk.rename("/d/a", "/d/b")
    assert files(disk) == {
        (("/d/a", b"old"),),
        (),
        (("/d/a", b"new"),),
        (("/d/b", b"new"),),
    }


def test_a_name_used_again_does_not_lose_the_file_that_had_it(disk):
    """If a later file has the name, the earlier one has the name it was moved to."""
    durable_file(disk, data=b"first")
    disk.rename("/d/a", "/d/b")
    write_fully(file := disk.open("/d/a", "create"), 0, [b"second"])
    file.sync()
    assert files(disk) == {
        (("/d/a", b"first"),),
        (("/d/b", b"first"),),
        (("/d/a", b"second"), ("/d/b", b"first")),
    }


def test_the_pure_states_can_be_forced(disk):
    """Nothing, or everything, of what is unsynced survives on demand."""
    file = durable_file(disk, data=sectors("a", "b"))
    write_fully(file, 0, [sectors("A", "B", "C")])
    disk.open("/d/new", "create")
    assert contents(disk, data="nothing") == {sectors("a", "b")}
    assert contents(disk, data="everything") == {sectors("A", "B", "C")}
    assert listings(disk, names="nothing") == {("a",)}
    assert listings(disk, names="everything") == {("a", "new")}


def test_the_prefix_state_keeps_writes_whole_and_in_order(disk):
    """An ordered disk loses the last writes only."""
    file = durable_file(disk)
    for letter in "abc":
        write_fully(file, file.size(), [letter.encode() * 700])
    written = b"a" * 700 + b"b" * 700 + b"c" * 700
    assert contents(disk, data="prefix") == {written[:size] for size in (0, 700, 1400, 2100)}


def test_a_crash_follows_its_seed(disk):
    """The same seed gives the same disk, and a clone leaves the original as it was."""
    file = durable_file(disk, data=sectors(*"abcdefgh"))
    write_fully(file, 0, [sectors(*"ABCDEFGH")])
    for seed in range(50):
        first = disk.crash_clone(seed).read_bytes("/d/a")
        assert disk.crash_clone(seed).read_bytes("/d/a") == first
    assert disk.read_bytes("/d/a") == sectors(*"ABCDEFGH")
    assert disk.read_bytes("/d/a", durable=True) == sectors(*"abcdefgh")


def test_clones_do_not_share_changes(disk):
    """Writing to a clone changes neither the original nor another clone."""
    file = durable_file(disk, data=sectors("a", "b"))
    clones = [disk.crash_clone(1), disk.crash_clone(2), disk.kill_clone()]
    for index, clone in enumerate(clones):
        other = clone.open("/d/a", "write")
        write_fully(other, 0, [bytes([index]) * 100])
        other.sync()
        other.truncate(700)
    write_fully(file, 0, [b"z" * 10])
    file.sync()
    for index, clone in enumerate(clones):
        expected = bytes([index]) * 100 + sectors("a", "b")[100:]
        assert clone.read_bytes("/d/a") == expected[:700]
        assert clone.read_bytes("/d/a", durable=True) == expected
    assert disk.read_bytes("/d/a", durable=True) == b"z" * 10 + sectors("a", "b")[10:]


def test_a_kill_keeps_all_writes_and_leaves_them_unsynced(disk):
    """A killed process loses nothing, but power loss after it still may."""
    file = durable_file(disk, data=b"old!")
    write_fully(file, 0, [b"new!"])
    disk.open("/d/b", "create")
    disk.rename("/d/b", "/d/c")
    killed = disk.kill_clone()
    assert killed.read_bytes("/d/a") == b"new!"
    assert killed.list_directory("/d") == ["a", "c"]
    assert contents(killed) == {b"old!", b"new!"}
    assert listings(killed) == {("a",), ("a", "b"), ("a", "c")}
    killed.open("/d/a", "write").sync()
    killed.sync_directory("/d")
    assert contents(killed) == {b"new!"}
    assert listings(killed) == {("a", "c")}
    assert contents(disk) == {b"old!", b"new!"}


def test_a_failed_sync_stays_failed_over_a_kill(disk):
    """What a failed sync lost is visible to the next process and never becomes durable."""
    file = durable_file(disk, data=b"old!")
    write_fully(file, 0, [b"new!"])
    disk.fail_sync("/d/a")
    killed = disk.kill_clone()
    killed.open("/d/a", "write").sync()
    assert killed.read_bytes("/d/a") == b"new!"
    assert contents(killed) == {b"old!"}


def test_locks_end_with_the_machine_and_the_process(disk):
    """A clone can be locked although the original is."""
    disk.lock("/d/LOCK", "first")
    with pytest.raises(LockTaken):
        disk.lock("/d/LOCK", "second")
    disk.crash_clone(1).lock("/d/LOCK", "third").release()
    disk.kill_clone().lock("/d/LOCK", "fourth").release()


def test_the_hook_sees_every_sync_point(disk):
    """The hook is called before and after each sync, sync of a directory and rename."""
    events = []
    file = disk.open("/d/a", "create")
    disk.on_sync = events.append
    file.sync()
    disk.rename("/d/a", "/d/b")
    disk.sync_directory("/d")
    assert events == [
        "before sync /d/a",
        "after sync /d/a",
        "before rename /d/b",
        "after rename /d/b",
        "before sync_directory /d",
        "after sync_directory /d",
    ]
    assert (disk.sync_count, disk.rename_count, disk.sync_directory_count) == (1, 1, 2)


def test_a_crash_before_a_sync_leaves_it_undone(disk):
    """Raised before the sync, the bytes are not durable; raised after it, they are."""
    for point, expected in ((1, {b"", bytes(1), b"x"}), (2, {b"x"})):
        twin = disk.kill_clone()
        file = durable_file(twin)
        write_fully(file, 0, [b"x"])
        twin.crash_at = twin.sync_points + point
        with pytest.raises(SimulatedCrash):
            file.sync()
        assert contents(twin) == expected


def test_a_zombie_cannot_do_anything(disk):
    """After a crash every call but close raises, and the disk stays as it was."""
    file = durable_file(disk, data=b"data")

    def crash(event):
        raise SimulatedCrash

    disk.on_sync = crash
    with pytest.raises(SimulatedCrash):
        file.sync()
    for call in (
        lambda: file.read_at(0, 1),
        lambda: file.write_at(0, [b"x"]),
        file.sync,
        lambda: file.truncate(0),
        file.size,
        lambda: disk.open("/d/a", "read"),
        lambda: disk.rename("/d/a", "/d/b"),
        lambda: disk.unlink("/d/a"),
        lambda: disk.make_directory("/d/c"),
        lambda: disk.list_directory("/d"),
        lambda: disk.sync_directory("/d"),
        lambda: disk.stat("/d/a"),
        lambda: disk.space("/d"),
        lambda: disk.allocate("/d/x", 1),
        lambda: disk.lock("/d/LOCK", "me"),
    ):
        with pytest.raises(SimulatedCrash):
            call()
    file.close()
    assert disk.crash_clone(1).read_bytes("/d/a") == b"data"
    assert not issubclass(SimulatedCrash, Exception)


def test_a_full_disk_writes_what_fits(disk):
    """A write is short at the end of the disk, then fails; freed space can be used again."""
    disk.capacity_bytes = 4 * SECTOR_BYTES
    file = disk.open("/d/a", "create")
    assert file.write_at(0, [bytes(3000)]) == 2048
    assert disk.space("/d") == (0, 2048)
    with pytest.raises(OSError) as raised:
        file.write_at(2048, [b"x"])
    assert raised.value.errno == errno.ENOSPC
    assert file.write_at(0, [b"in place"]) == 8
    with pytest.raises(OSError):
        disk.allocate("/d/b", 1)
    assert disk.list_directory("/d") == ["a"]
    file.truncate(512)
    assert disk.space("/d").free_bytes == 3 * SECTOR_BYTES
    disk.allocate("/d/b", 1000)
    assert disk.space("/d").free_bytes == SECTOR_BYTES
    assert disk.crash_clone(1, data="everything", names="everything").space("/d") == (512, 2048)


def test_space_comes_back_when_the_last_user_is_gone(disk):
    """An unlinked or replaced file takes space until its last handle is closed or dropped."""
    file = disk.open("/d/a", "create")
    write_fully(file, 0, [bytes(5000)])
    reader = disk.open("/d/a", "read")
    free_bytes = disk.space("/d").free_bytes
    disk.unlink("/d/a")
    file.close()
    assert disk.space("/d").free_bytes == free_bytes
    del reader
    assert disk.space("/d").free_bytes == free_bytes + 10 * SECTOR_BYTES
    disk.allocate("/d/b", 512)
    disk.allocate("/d/c", 512)
    disk.rename("/d/b", "/d/c")
    assert disk.space("/d").free_bytes == free_bytes + 9 * SECTOR_BYTES


def test_damage_is_durable(disk):
    """Damage shows at once and after every crash, and changes nothing else."""
    durable_file(disk, data=b"abcdef")
    disk.open("/d/unsynced", "create")
    disk.flip("/d/a", 2)
    assert disk.read_bytes("/d/a") == b"abbdef"
    assert contents(disk) == {b"abbdef"}
    assert listings(disk) == {("a",), ("a", "unsynced")}


def test_random_histories_keep_all_that_was_synced(disk):
    """After any history, sectors not touched since the last sync are as that sync left them."""
    for seed in range(150):
        chance = random.Random(seed)
        twin = disk.kill_clone()
        file = durable_file(twin)
        synced, dirty_from = b"", 1 << 30
        for _ in range(chance.randrange(1, 30)):
            kind = chance.random()
            position = chance.randrange(3000)
            if kind < 0.25:
                file.sync()
                synced, dirty_from = twin.read_bytes("/d/a"), 1 << 30
            elif kind < 0.35:
                file.truncate(position)
                dirty_from = min(dirty_from, position)
            else:
                write_fully(file, position, [chance.randbytes(chance.choice((1, 300, 1500)))])
                dirty_from = min(dirty_from, position)
        safe = synced[:dirty_from]
        for crash in range(5):
            again = twin.crash_clone(crash).kill_clone().crash_clone(crash)
            assert again.read_bytes("/d/a")[: len(safe)] == safe, (seed, crash)
