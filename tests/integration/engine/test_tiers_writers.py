"""Eight writers update different columns of one key at once: no update is lost."""

from __future__ import annotations

import errno
import threading
import time

import pytest

from frazil.errors import Conflict, FrazilError, Overloaded
from frazil.fs import RealFileSystem
from frazil.topic import ChangeCodec, Sequencer
from tests.integration.engine.opening import open_small
from tests.support.faulty_fs import Fault, FaultyFileSystem

WRITERS = 8
UPDATES = 60
COLUMNS = [f"c{number}" for number in range(WRITERS)]


class Writers:
    """Threads that count up a column each, and one that moves everything between the tiers."""

    def __init__(self, db, *, stubborn):
        self.db = db
        self.topic = db.topic("one")
        self.stubborn = stubborn
        self.acked = [[] for _ in range(WRITERS)]
        self.refused = []
        self.errors = []
        self.stop = threading.Event()

    def run(self):
        """Run all writers to their end."""
        threads = [threading.Thread(target=self._guarded, args=(n,)) for n in range(WRITERS)]
        mover = threading.Thread(target=self._move)
        for thread in (mover, *threads):
            thread.start()
        for thread in threads:
            thread.join(60)
        self.stop.set()
        mover.join(20)
        assert self.errors == []

    def _guarded(self, number):
        try:
            self._write(number)
        except Exception as error:  # noqa: BLE001 - whatever it is fails the test
            self.errors.append(error)

    def _write(self, number):
        value = 0
        while len(self.acked[number]) < UPDATES:
            value += 1
            try:
                ack = self.topic.update(1, {COLUMNS[number]: value})
            except FrazilError as error:
                if not self.stubborn:
                    raise
                self.refused.append(error)
                time.sleep(0.001)
            else:
                self.acked[number].append((ack.offset, value))

    def _move(self):
        while not self.stop.wait(0.004):
            try:
                self.db.tiers.flush()
                self.db.tiers.evict()
            except FrazilError as error:
                if not self.stubborn:
                    self.errors.append(error)


def check_all(writers):
    """Each change builds on the one before it, and each ack's value is at its offset."""
    topic = writers.topic
    changes = {change["offset"]: change for change in topic.changes()}
    for offset, change in changes.items():
        if offset:
            before = changes[offset - 1]["after"]
            assert change["before"] == before
            differing = [name for name in COLUMNS if change["after"][name] != before[name]]
            assert len(differing) == 1, (offset, differing)
    for number, acked in enumerate(writers.acked):
        for offset, value in acked:
            assert changes[offset]["after"][COLUMNS[number]] == value
    last = changes[max(changes)]["after"]
    assert topic.get(1) == last
    names = ", ".join(COLUMNS)
    [row] = writers.db.query(f"SELECT {names} FROM one").rows()
    assert row == tuple(last[name] for name in COLUMNS)
    return changes, last


def create(db):
    columns = {"id": "long", **dict.fromkeys(COLUMNS, "long")}
    topic = db.create_topic("one", columns, primary_key="id")
    topic.upsert(id=1, **dict.fromkeys(COLUMNS, 0))


def test_no_update_is_lost_while_everything_moves(tmp_path):
    """With flushes and evictions under way, each writer's last value is the row's in the end."""
    with open_small(tmp_path) as db:
        create(db)
        writers = Writers(db, stubborn=False)
        writers.run()
        changes, last = check_all(writers)
        assert len(changes) == 1 + WRITERS * UPDATES
        assert [last[name] for name in COLUMNS] == [UPDATES] * WRITERS
        assert db.topic("one").runtime.tiers.flushes > 1
    with open_small(tmp_path) as db:
        assert db.topic("one").get(1) == last


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_what_builds_on_a_failed_change_is_refused(tmp_path, error):
    """A full disk fails some groups: nobody's update stands on one that was not written."""
    faults = [
        Fault("write_at", nth=nth, error=error, path_part="/journal") for nth in (20, 30, 31, 45)
    ]
    system = FaultyFileSystem(RealFileSystem(), faults)
    with open_small(tmp_path, file_system=system) as db:
        create(db)
        writers = Writers(db, stubborn=True)
        writers.run()
        check_all(writers)
        assert system.fired >= 2
        assert writers.refused
    with open_small(tmp_path) as db:
        last = {name: acked[-1][1] for name, acked in zip(COLUMNS, writers.acked, strict=True)}
        assert db.topic("one").get(1) == {"id": 1, **last}


def fail_the_second_group(path, monkeypatch):
    """Let updates queue up behind each other, and one of their groups fail; check the outcome."""
    system = FaultyFileSystem(RealFileSystem())
    with open_small(path, file_system=system) as db:
        create(db)
        topic = db.topic("one")
        journal = topic.runtime.log.journal
        honest = journal.commit
        groups = []

        def commit(entries, deliver):
            groups.append(len(entries))
            if len(groups) <= 2:
                # The next update is resolved on top of this one.
                give_up = time.monotonic() + 20
                while not topic.runtime.log.queue._entries and time.monotonic() < give_up:
                    time.sleep(0.005)
            if len(groups) == 2:
                system.plan(Fault("write_at", error=errno.ENOSPC, path_part="/journal"))
            honest(entries, deliver)

        monkeypatch.setattr(journal, "commit", commit)
        results = [None] * 6

        def update(number):
            time.sleep(0.02 * number)
            try:
                results[number] = topic.update(1, {COLUMNS[number]: 7})
            except FrazilError as failure:
                results[number] = failure

        threads = [threading.Thread(target=update, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert system.fired == 1
        last = topic.get(1)
        for name, result in zip(COLUMNS, results, strict=False):
            assert last[name] == (0 if isinstance(result, FrazilError) else 7)
        return [each for each in results if isinstance(each, FrazilError)]


def test_a_dependant_in_the_queue_is_refused_with_its_base(tmp_path, monkeypatch):
    """Of updates in one queue those behind are refused if the group of the first fails."""
    failed = fail_the_second_group(tmp_path, monkeypatch)
    assert len(failed) > 1
    assert any(isinstance(each, Conflict) for each in failed)


def test_what_was_written_while_a_row_was_looked_up_is_built_upon(tmp_path):
    """A row is looked up; before it is used another update is written, and one behind it fails."""
    with open_small(tmp_path) as db:
        create(db)
    system = FaultyFileSystem(RealFileSystem())
    with open_small(tmp_path, file_system=system) as db:
        topic = db.topic("one")
        sequencer = topic.runtime.queue
        honest = sequencer._look_below
        calls = []

        def look_below(keys, codec):
            rows = honest(keys, codec)
            calls.append(keys)
            if len(calls) == 1:
                topic.update(1, {"c1": 11})
                system.plan(Fault("write_at", error=errno.ENOSPC, path_part="/journal"))
                with pytest.raises(FrazilError):
                    topic.update(1, {"c2": 12})
            return rows

        sequencer._look_below = look_below
        wait_until_taken(lambda: topic.update(1, {"c0": 10}))
        assert system.fired == 1
        values = topic.get(1)
        assert (values["c0"], values["c1"], values["c2"]) == (10, 11, 0)


def wait_until_taken(call):
    """Call until the disk that was full for a moment is noticed to have room again."""
    for _turn in range(400):
        try:
            return call()
        except Overloaded:
            time.sleep(0.02)
    return call()


def test_a_journal_that_does_not_look_at_bases_is_found(tmp_path, monkeypatch):
    """The check above fails if changes are written whatever became of what they stand on."""
    honest = ChangeCodec.encode

    def encode(self, records):
        for record in records:
            record.base = None
        return honest(self, records)

    monkeypatch.setattr(ChangeCodec, "encode", encode)
    with pytest.raises(AssertionError):
        fail_the_second_group(tmp_path, monkeypatch)


def test_a_sequencer_that_forgets_what_is_on_its_way_is_found(tmp_path, monkeypatch):
    """The check of the writers fails if updates are resolved against written rows alone."""
    monkeypatch.setattr(Sequencer, "_find", lambda self, key: (None, None))
    with open_small(tmp_path) as db:
        create(db)
        writers = Writers(db, stubborn=False)
        writers.run()
        with pytest.raises(AssertionError):
            check_all(writers)
