"""Deliveries keep their promises in random lives in virtual time, and the lives find planted bugs.

`FRAZIL_TEST_DELIVERY_SEEDS` says how many lives are tried, `FRAZIL_TEST_DELIVERY_SEED_FIRST` where to begin.
"""

from __future__ import annotations

import os

import pytest

from frazil.errors import FrazilError, NotFound
from frazil.subscribe import (
    HELD_BYTES_MAX,
    Cause,
    Dispatch,
    PendingDeadLetters,
    Subscription,
    TopicFeed,
)
from tests.property.delivery_world import command, failure

SEEDS = int(os.environ.get("FRAZIL_TEST_DELIVERY_SEEDS", "200"))
SEED_FIRST = int(os.environ.get("FRAZIL_TEST_DELIVERY_SEED_FIRST", "0"))
PARTS = 4
PLANTED_SEEDS_MAX = 300


@pytest.mark.parametrize("part", range(PARTS))
def test_random_lives_keep_every_promise(part):
    """Whatever cannot be read or written: nothing is lost, settled for nothing, or out of order."""
    for seed in range(SEED_FIRST + part, SEED_FIRST + SEEDS, PARTS):
        world, error = failure(seed)
        if error is not None:
            print(*world.history[-30:], sep="\n")
        assert error is None, f"{error!r}; repeat with: {command(seed)}"


@pytest.mark.parametrize("seed", [37, 144, 529, 1313, 1318, 1391, 1581, 4727, 6428])
def test_lives_that_broke_a_promise_once_keep_it(seed):
    """Attempts nobody saw, records that are gone, late nacks, letters of acked records, old reads."""
    assert failure(seed, HELD_BYTES_MAX)[1] is None


def test_the_same_seed_is_the_same_life():
    """A seed repeats every step and every output."""
    assert failure(7)[0].history == failure(7)[0].history


# -- planted bugs: each of them breaks one promise, and the lives above must find it ---------------


def not_found_is_expired(patch):
    """Whatever a history does not find counts as taken by a quota."""
    patch.setattr(Subscription, "_kept_from", lambda self: None)


def letters_look_into_the_cache(patch):
    """A letter's record that is not in the cache passes for gone."""

    async def wrong(self, offset):
        chunk = self.get(offset)
        return None if chunk is None else chunk.record(offset)

    patch.setattr(TopicFeed, "fetch", wrong)


def unread_records_are_overtaken(patch):
    """A record that cannot be read lets later ones pass where one consumer has all."""
    put_off = Dispatch.put_off

    def wrong(self, offset, *, now_ms):
        put_off(self, offset, now_ms=now_ms)
        self._returning.discard(offset)

    patch.setattr(Dispatch, "put_off", wrong)


def unread_records_are_gone(patch):
    """What cannot be read is settled."""
    patch.setattr(Dispatch, "put_off", lambda self, offset, *, now_ms: self.gone(offset))


def letters_settle_before_they_are_written(patch):
    """A record is settled when its letter is asked for."""
    begin = PendingDeadLetters.begin

    def wrong(self, letter, dispatch):
        begin(self, letter, dispatch)
        self._subscription.dead_letter_ended(dispatch.dead_lettered(letter.offset))

    patch.setattr(PendingDeadLetters, "begin", wrong)


def lost_letters_are_settled(patch):
    """A letter whose record is not found is given up."""
    record = PendingDeadLetters._record

    async def wrong(self, offset):
        try:
            return await record(self, offset)
        except (NotFound, FrazilError):
            return None

    patch.setattr(PendingDeadLetters, "_record", wrong)


def passed_records_are_kept(patch):
    """The value of a record that leaves its queue without a delivery stays in memory."""
    patch.setattr(Dispatch, "_drop_value", lambda self, record: None)


def all_that_waits_is_kept(patch):
    """What is read ahead of keys that wait stays in memory, however much it is."""
    patch.setattr(Dispatch, "trim", lambda self, bytes_max: None)


def what_was_not_kept_is_lost(patch):
    """The first delivery of a record goes without it if it must be read again."""
    loaded = Dispatch.loaded

    def wrong(self, offset, value):
        loaded(self, offset, value)
        record = self._records[offset]
        if record.attempt == 1:
            self._settle_owed([record], Cause.GONE)

    patch.setattr(Dispatch, "loaded", wrong)


def live_records_go_out_unanswered(patch):
    """A live record is delivered before its publisher was answered."""
    written = TopicFeed.written

    def wrong(self, offset, time_us, records):
        written(self, offset, time_us, records)
        self._news(offset + len(records))
        self.head = offset

    patch.setattr(TopicFeed, "written", wrong)


def live_records_have_the_wrong_offset(patch):
    """Frames that are not consecutive are taken for one."""
    take = TopicFeed._take_live

    def wrong(self, head):
        offset, time_us, _values = self._written[0]
        frames = list(self._written)
        self._written.clear()
        every = [value for _offset, _time, some in frames for value in some]
        self._written.append((offset, time_us, every))
        take(self, head)

    patch.setattr(TopicFeed, "_take_live", wrong)


PLANTED = (
    not_found_is_expired,
    letters_look_into_the_cache,
    unread_records_are_overtaken,
    unread_records_are_gone,
    letters_settle_before_they_are_written,
    lost_letters_are_settled,
    passed_records_are_kept,
    all_that_waits_is_kept,
    what_was_not_kept_is_lost,
    live_records_go_out_unanswered,
    live_records_have_the_wrong_offset,
)


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_the_lives_find_a_planted_bug(plant, monkeypatch):
    """Some life within the budget breaks a promise."""
    plant(monkeypatch)
    for seed in range(PLANTED_SEEDS_MAX):
        _, error = failure(seed)
        if error is not None:
            print(f"{plant.__name__}: seed {seed}: {error!r}")
            assert isinstance(error, AssertionError)
            return
    pytest.fail(f"{PLANTED_SEEDS_MAX} lives did not find: {plant.__doc__}")
