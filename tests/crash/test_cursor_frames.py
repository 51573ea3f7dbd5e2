"""The progress of subscriptions and small values keep their promises through crashes."""

from __future__ import annotations

import os

import pytest

from frazil.log import Journal, Survey, checkpoint, cursor_state, journal, opening
from frazil.log import state as log_state
from frazil.subscribe import Cursors
from frazil.topic import Indexer
from tests.crash.cursor_lives import EngineLives, JournalLives, run_seeds
from tests.crash.engine_world import many_lives

SEEDS = int(os.environ.get("FRAZIL_TEST_CRASH_SEEDS", "20000"))
BASE = int(os.environ.get("FRAZIL_TEST_CRASH_BASE", "1000000"))
JOURNAL_SEEDS = max(SEEDS // 50, 300)
ENGINE_SEEDS = max(SEEDS * 6 // 1000, 60)
CHUNKS = 4


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_cursor_is_lost_or_half_there(chunk):
    """Groups of records and cursor frames: what was answered stays, the rest is whole or absent."""
    seeds = range(BASE + chunk, BASE + JOURNAL_SEEDS, CHUNKS)
    done, problem = run_seeds(JournalLives, seeds)
    assert not problem
    assert sum(lives.crashes for lives in done) > 2 * len(seeds) - 1
    assert sum(lives.kept for lives in done) > 0
    assert sum(lives.dropped for lives in done) > 0


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_an_engine_keeps_subscriptions_and_values(chunk):
    """Over crashes, freeing and old or lost metadata: cursors, values, holds, unacked records."""
    seeds = range(BASE + chunk, BASE + ENGINE_SEEDS, CHUNKS)
    with many_lives():
        done, problem = run_seeds(EngineLives, seeds)
    assert not problem
    assert sum(lives.rewound for lives in done) > 0
    assert sum(lives.freed for lives in done) > 0


# -- planted bugs: the suite is worth something only if it finds them ------------------------------


def finds(lives, count=150):
    with many_lives():
        done, problem = run_seeds(lives, range(BASE, BASE + count))
    print(f"found after {len(done)} seeds: {problem}")
    return bool(problem)


def test_cursors_left_out_of_checkpoints_are_missed(monkeypatch):
    """The suite finds a rotation that forgets the subscriptions."""
    encode = checkpoint.encode_checkpoint

    def forgetful(state, *, lsn):
        kept = {topic.id: topic.cursors for topic in state.topics.values()}
        for topic in state.topics.values():
            topic.cursors = {}
        data = encode(state, lsn=lsn)
        for topic in state.topics.values():
            topic.cursors = kept[topic.id]
        return data

    for module in (opening, journal):
        monkeypatch.setattr(module, "encode_checkpoint", forgetful)
    assert finds(JournalLives)


def test_an_ack_that_is_answered_before_its_sync_is_missed(monkeypatch):
    """The suite finds a journal that answers first and syncs at the next occasion."""
    commit = Journal._commit_some

    def hasty(self, entries, deliver, *, again=False):
        sync = self._sync
        self._sync = lambda: ()
        try:
            commit(self, entries, deliver, again=again)
        finally:
            self._sync = sync

    monkeypatch.setattr(Journal, "_commit_some", hasty)
    assert finds(JournalLives)


def test_half_a_frame_is_noticed(monkeypatch):
    """The suite finds a recovery that takes the first change of a frame only."""
    run = Survey.run

    def halving(self):
        whole = cursor_state.decode_changes
        log_state.decode_changes = lambda payload: whole(payload)[:1]
        try:
            run(self)
        finally:
            log_state.decode_changes = whole

    monkeypatch.setattr(Survey, "run", halving)
    assert finds(JournalLives)


def test_a_fold_that_is_not_the_same_twice_is_noticed(monkeypatch):
    """The suite finds attempts that are counted up instead of taken as they are."""

    def counting(self, offset, number):
        del number
        if offset not in self:
            self.attempts[offset] = self.attempts.get(offset, 1) + 1

    monkeypatch.setattr(cursor_state.CursorState, "attempt", counting)
    assert finds(JournalLives)


def test_a_copy_that_overrides_the_log_is_noticed(monkeypatch):
    """The suite finds an engine that believes its metadata over the frames."""
    replay = Survey._replay

    def believing(self):
        replay(self)
        for topic_id, cursors in self._known_cursors.items():
            if topic_id in self.state.topics:
                self.state.topics[topic_id].cursors.update(cursors)

    monkeypatch.setattr(Survey, "_replay", believing)
    assert finds(EngineLives)


def test_a_hold_that_runs_ahead_is_noticed(monkeypatch):
    """The suite finds holds that follow the highest ack instead of the contiguous one."""
    changed = Cursors._changed

    def eager(self, log):
        below = {}
        for topic in log.journal.state.topics.values():
            for name, cursor in topic.cursors.items():
                below[topic.id, name] = cursor.acked_below
                cursor.acked_below = cursor.end
        found = changed(self, log)
        for (topic_id, name), offset in below.items():
            log.journal.state.topics[topic_id].cursors[name].acked_below = offset
        return found

    monkeypatch.setattr(Cursors, "_changed", eager)
    assert finds(EngineLives)


def test_an_index_that_is_not_brought_in_line_keeps_no_promise_of_its_own(monkeypatch):
    """Cursors come from the log alone: an index whose rows are never corrected changes none."""
    monkeypatch.setattr(Indexer, "_replace", lambda _self, _prefixes, _wanted: None)
    assert not finds(EngineLives, 20)
