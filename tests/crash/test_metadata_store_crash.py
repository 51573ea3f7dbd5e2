"""The SQLite metadata store loses no acknowledged transaction when the power fails."""

from __future__ import annotations

import contextlib
import random
import sys

import pytest

from frazil.errors import FrazilError
from frazil.metadata import SqliteStore, Transaction, entries
from tests.support import SimulatedClock, SimulatedCrash, SimulatedFileSystem
from tests.support.simulated_fs import SimulatedFile

PATH = "/data/metadata.db"
SEEDS = 12
CLONES = 4


def new_disk(seed):
    disk = SimulatedFileSystem(seed)
    disk.make_directory("/data")
    disk.sync_directory("/")
    return disk


def open_store(disk):
    return SqliteStore.open(PATH, file_system=disk, clock=SimulatedClock())


def random_transactions(seed):
    """Return transactions and the contents before the first and after each."""
    chosen = random.Random(seed)
    transactions = []
    contents = [{}]
    for number in range(chosen.randint(3, 8)):
        content = dict(contents[-1])
        puts = {
            f"/{chosen.randrange(20)}": chosen.randbytes(chosen.choice([0, 10, 500, 5_000, 30_000]))
            for _ in range(chosen.randint(0, 4))
        }
        deletes = tuple(key for key in content if key not in puts and chosen.random() < 0.3)
        content.update(puts)
        for key in deletes:
            del content[key]
        transactions.append(Transaction(puts=puts, deletes=deletes, applied={"j": number}))
        contents.append(content)
    return transactions, contents


def observed(store):
    """Return how many transactions the store has, and its content; they must fit together."""
    lsn = store.applied_lsn("j")
    count = 0 if lsn is None else lsn + 1
    assert store.revision() == count
    return count, {entry.key: entry.value for entry in entries(store, "/")}


def run(disk, transactions):
    """Commit what is missing until the power fails; return how many were acknowledged."""
    acked = 0
    try:
        store = open_store(disk)
        acked, _ = observed(store)
        for transaction in transactions[acked:]:
            store.commit(transaction)
            acked += 1
        store.close()
    except SimulatedCrash:
        pass
    return acked


@pytest.mark.parametrize("seed", range(SEEDS))
def test_crash_at_every_sync_point_keeps_what_was_acked(seed):
    """After a crash at any point, also in recovery, all acked transactions are there, whole."""
    assert crash_everywhere(seed) > 10


def crash_everywhere(seed):
    """Crash at each sync point, and once more in the recovery; return how many points there are."""
    transactions, contents = random_transactions(seed)
    whole = new_disk(seed)
    assert run(whole, transactions) == len(transactions)
    points = whole.sync_points
    chosen = random.Random(seed)
    for point in range(1, points + 1):
        disk = new_disk(seed)
        disk.crash_at = point
        acked = run(disk, transactions)
        for clone_seed in range(point * CLONES, (point + 1) * CLONES):
            again = disk.crash_clone(clone_seed)
            again.crash_at = chosen.randint(1, 30)
            acked_again = run(again, transactions)
            assert acked_again in (0, *range(acked, len(transactions) + 1))
            with contextlib.closing(open_store(again.crash_clone(clone_seed + 1))) as store:
                count, content = observed(store)
            where = f"seed={seed} point={point} clone={clone_seed}"
            assert max(acked, acked_again) <= count, where
            assert content == contents[count], where
    return points


@pytest.mark.parametrize("seed", range(SEEDS))
def test_power_loss_after_a_kill_and_a_restart_keeps_what_the_restart_saw(seed):
    """A process is killed at any point; what the next one reads survives a loss of power."""
    transactions, contents = random_transactions(seed)
    whole = new_disk(seed)
    run(whole, transactions)
    for point in range(1, whole.sync_points + 1):
        disk = new_disk(seed)
        disk.crash_at = point
        acked = run(disk, transactions)
        restarted = disk.kill_clone()
        store = open_store(restarted)
        count, content = observed(store)
        where = f"seed={seed} point={point}"
        assert acked <= count <= acked + 1, where
        assert content == contents[count], where
        for clone_seed in range(CLONES):
            clone = restarted.crash_clone(clone_seed)
            assert clone.stat(PATH) is not None, where
            with contextlib.closing(open_store(clone)) as survivor:
                assert observed(survivor) == (count, content), where
        store.close()


class LazyFile(SimulatedFile):
    def sync(self):
        self._file_system.reach_sync_point("before sync", self._path)


class SyncsNothing(SimulatedFileSystem):
    """A planted bug: syncs succeed and do nothing."""

    def open(self, path, mode):
        file = super().open(path, mode)
        return LazyFile(self, file._inode, path, writable=True)


class SyncsNoDirectory(SimulatedFileSystem):
    """A planted bug: names are never made durable."""

    def sync_directory(self, path):
        if path == "/":
            super().sync_directory(path)
        self.reach_sync_point("before sync_directory", path)


@pytest.mark.parametrize("broken", [SyncsNothing, SyncsNoDirectory])
def test_a_disk_that_does_not_sync_is_noticed(broken, monkeypatch):
    """The crash test has the power to find a missing sync of a file or of a directory."""
    monkeypatch.setattr(sys.modules[__name__], "SimulatedFileSystem", broken)
    with pytest.raises((AssertionError, FrazilError)):
        for seed in range(SEEDS):
            crash_everywhere(seed)
