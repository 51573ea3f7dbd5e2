"""The SQLite metadata store loses no acknowledged transaction when the power fails."""

from __future__ import annotations

import random

import pytest

from frazil.errors import Unavailable
from frazil.metadata import SqliteStore, Transaction, entries
from tests.support import (
    Fault,
    FaultyFileSystem,
    SimulatedClock,
    SimulatedCrash,
    SimulatedFileSystem,
)

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
        transactions.append(
            Transaction(puts=puts, deletes=deletes, applied={"j": number}, generation=number)
        )
        contents.append(content)
    return transactions, contents


def observed(store):
    """Return how many transactions the store has, and its content; they must fit together."""
    lsn = store.applied_lsn("j")
    count = 0 if lsn is None else lsn + 1
    assert store.revision() == count
    assert store.generation() == max(count - 1, 0)
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
            with open_store(again.crash_clone(clone_seed + 1)) as store:
                count, content = observed(store)
            where = f"seed={seed} point={point} clone={clone_seed}"
            assert max(acked, acked_again) <= count, where
            assert content == contents[count], where


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
            with open_store(clone) as survivor:
                assert observed(survivor) == (count, content), where
        store.close()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_a_restart_reads_after_a_failed_sync_stays(seed):
    """After a failed sync the next process may read more than was acked; then it must stay."""
    transactions, contents = random_transactions(seed)
    for nth in range(1, 200):
        disk = new_disk(seed)
        faulty = FaultyFileSystem(disk, [Fault("sync", nth)])
        acked = 0
        try:
            with open_store(faulty) as store:
                for transaction in transactions:
                    store.commit(transaction)
                    acked += 1
        except Unavailable:
            pass
        if not faulty.fired:
            return
        restarted = disk.kill_clone()
        store = open_store(restarted)
        count, content = observed(store)
        assert acked <= count <= acked + 1
        assert content == contents[count]
        for clone_seed in range(CLONES):
            with open_store(restarted.crash_clone(clone_seed)) as survivor:
                assert observed(survivor) == (count, content), f"seed={seed} nth={nth}"
        store.close()
    pytest.fail("the sweep did not end")
