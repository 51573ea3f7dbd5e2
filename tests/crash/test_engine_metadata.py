"""The whole engine on a simulated disk, with metadata that is old, missing or damaged after crashes.

`FRAZIL_TEST_CRASH_SEEDS` (of the log's own suite) divided by 10 is the number of seeds here, at least
2,000. One seed again: `python -m tests.crash.test_engine_metadata --seed N`.
"""

from __future__ import annotations

import argparse
import os
import sys
from random import Random

import pytest

from frazil.errors import FrazilError
from frazil.log import Journal
from frazil.topic import Indexer
from tests.crash.checker import Violation
from tests.crash.engine_world import ROOT, World, many_lives
from tests.support import SimulatedCrash

DATABASE = f"{ROOT}/meta.db"
JOURNAL = f"{DATABASE}-journal"
SEEDS = max(2_000, int(os.environ.get("FRAZIL_TEST_CRASH_SEEDS", "20000")) // 10)
SLICES = 16
COPIES_MAX = 12


class MetadataLives:
    """One seed: lives of an engine; between them its metadata may be swapped, lost or damaged."""

    def __init__(self, seed):
        self.random = Random(seed * 2)
        self.world = World(self.random, seed)
        self.copies: list[dict[str, bytes]] = []
        self.tampered = "nothing"

    def run(self):
        """Run all lives; raises `Violation` when a promise is broken."""
        for _ in range(self.random.choice((1, 2, 2, 3))):
            self.life()
            self.tamper()
        self.world.disk.crash_at = None
        self.open()
        for model in self.world.models.values():
            self.world.append(model)
        self.world.close()
        self.tamper()
        self.open()
        self.world.close()

    def open(self):
        """Open and check; a crash during the opening comes out."""
        self.world.open()
        self.world.check()
        self.copy()

    def life(self):
        """Open, work, and end by a crash at a sync point, a kill or a loss of power."""
        world, random = self.world, self.random
        world.disk.crash_at = random.choice((random.randint(1, 60), random.randint(20, 120), None))
        power_lost = random.random() < 0.7
        try:
            self.open()
            for _ in range(random.randint(3, 12)):
                self.step()
                if world.disk.crashed:
                    # The index met the crash and was given up; the log would meet it next.
                    break
                self.copy()
            if random.random() < 0.2:
                world.close()
        except SimulatedCrash:
            power_lost = True
        if power_lost:
            world.lose_power()
        else:
            world.kill()

    def copy(self):
        """Keep a copy of the metadata as a back-up would: between two transactions."""
        disk = self.world.disk
        if not disk.crashed and self.world.engine.metadata_failed == "":
            present = [path for path in (DATABASE, JOURNAL) if path in disk.paths()]
            self.copies.append({path: disk.read_bytes(path) for path in present})
            del self.copies[:-COPIES_MAX]

    def tamper(self):
        """Put an older copy of the metadata in its place, or damage it, or take it away."""
        disk, random = self.world.disk, self.random
        self.tampered = random.choice(
            ("nothing", "nothing", "older", "older", "missing", "damaged")
        )
        self.world.history.append(f"-- metadata: {self.tampered}")
        present = DATABASE in disk.paths()
        if self.tampered == "older" and self.copies:
            copy = random.choice(self.copies)
            if JOURNAL in disk.paths():
                disk.write_bytes(JOURNAL, b"")
            for path, data in copy.items():
                disk.write_bytes(path, data)
        elif self.tampered == "missing":
            for path in (DATABASE, JOURNAL):
                if path in disk.paths():
                    disk.unlink(path)
        elif self.tampered == "damaged" and present:
            disk.corrupt(DATABASE, self.damage)

    def damage(self, content):
        """Overwrite a piece with random bytes, or cut the file, or lose all of it."""
        random = self.random
        kind = random.choice(("piece", "piece", "cut", "all"))
        if kind == "cut":
            del content[random.randint(0, len(content)) :]
        elif kind == "all":
            content[:] = random.randbytes(random.choice((0, 100, len(content))))
        elif content:
            at = random.randrange(len(content))
            size = random.choice((1, 16, 512, 4096))
            content[at : at + size] = random.randbytes(min(size, len(content) - at))

    def step(self):
        """Do one operation, chosen at random."""
        random = self.random
        create = len(self.world.models) < 4 and random.random() < 0.2
        self.world.act("create" if create else random.choice(_VERBS))


_VERBS = (
    *("append",) * 6,
    *("append_many",) * 2,
    *("produce",) * 3,
    *("hold",) * 2,
    *("rotate",) * 3,
    *("seal",) * 3,
    *("alter",) * 2,
    *("append_arrow", "free", "tick", "reopen", "delete"),
)


def run_seed(seed):
    """Run one seed; return what went wrong, None if nothing did."""
    lives = MetadataLives(seed)
    try:
        lives.run()
    except (Violation, FrazilError) as error:
        return f"{type(error).__name__}: {error}"
    except SimulatedCrash:
        return "a crash came out of the last life"
    return None


def run_seeds(seeds):
    """Run many seeds; return the first failure."""
    with many_lives():
        for seed in seeds:
            fault = run_seed(seed)
            if fault is not None:
                command = f"python -m tests.crash.test_engine_metadata --seed {seed}"
                return f"seed {seed}: {fault}\nreplay: PYTHONPATH=src {command}"
    return None


@pytest.mark.parametrize("part", range(SLICES))
def test_metadata_that_is_old_missing_or_damaged_costs_nothing(part):
    """No acked record, offset, topic, schema, hold or producer is lost with the metadata."""
    failure = run_seeds(range(part, SEEDS, SLICES))
    assert failure is None, failure


def _note_before_sync(monkeypatch, note):
    """Plant the bug "metadata newer than log": `note` reaches the index before the log's sync."""
    sync, opened = Journal._sync, World.open
    engines = []

    def open_noted(self):
        engines.clear()
        opened(self)
        engines.append(self.engine)

    def note_then_sync(self):
        for engine in engines:
            if self._dirty:
                note(engine._indexer, self)
        return sync(self)

    monkeypatch.setattr(World, "open", open_noted)
    monkeypatch.setattr(Journal, "_sync", note_then_sync)


def test_an_end_noted_before_its_sync_is_found(monkeypatch):
    """The suite finds an index that learns a topic's end before the log is synced."""

    def note(indexer, journal):
        topics = [topic for topic in journal._dirty.values() if not topic.spec.deleted_us]
        ends = {topic.id: topic.durable for topic in topics}
        for topic in topics:
            topic.durable = topic.next
        indexer.topic_changed(journal, topics)
        for topic in topics:
            topic.durable = ends[topic.id]

    _note_before_sync(monkeypatch, note)
    assert run_seeds(range(2000)) is not None


def test_a_batch_noted_before_its_sync_is_found(monkeypatch):
    """The suite finds an index whose `applied_lsn` counts a batch that is not synced yet."""

    def note(indexer, journal):
        name, lsn = journal.journal_id.hex(), journal.state.lsn
        if lsn > (indexer._store.applied_lsn(name) or 0):
            indexer._attempt(lambda: indexer._change(applied={name: lsn}))

    _note_before_sync(monkeypatch, note)
    assert run_seeds(range(300)) is not None


def test_an_ack_before_its_sync_is_found(monkeypatch):
    """The suite finds an engine that answers first and syncs afterwards."""

    class Lying(World):
        def _commit(self, commit, entries, deliver):
            journal = commit.__self__
            sync = journal._sync
            held = []
            journal._sync = lambda: held.append(1) or ()
            super()._commit(commit, entries, deliver)
            journal._sync = sync
            if held:
                journal._sync()

    monkeypatch.setattr(sys.modules[__name__], "World", Lying)
    assert run_seeds(range(2000)) is not None


def test_an_index_that_is_believed_over_the_log_is_found(monkeypatch):
    """The suite finds an engine that does not bring an older index in line with the log."""
    monkeypatch.setattr(Indexer, "_replace", lambda _self, _prefixes, _wanted: None)
    assert run_seeds(range(100)) is not None


def main():
    """Repeat one seed and show what happens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    lives = MetadataLives(arguments.seed)
    try:
        lives.run()
    finally:
        print("\n".join(lives.world.history))


if __name__ == "__main__":
    main()
