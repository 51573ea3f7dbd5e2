"""Dispatch keeps its promises in random lives in virtual time, and the lives find planted bugs.

`FRAZIL_TEST_DISPATCH_SEEDS` says how many lives are tried, `FRAZIL_TEST_DISPATCH_SEED_FIRST` where to begin.
"""

from __future__ import annotations

import heapq
import os

import pytest

from frazil.subscribe import (
    Alarms,
    Cause,
    Dispatch,
    FailurePolicy,
    FifoDispatcher,
    KeyOwners,
    KeySharedDispatcher,
    State,
)
from tests.property.subscribe_world import command, failure

SEEDS = int(os.environ.get("FRAZIL_TEST_DISPATCH_SEEDS", "600"))
SEED_FIRST = int(os.environ.get("FRAZIL_TEST_DISPATCH_SEED_FIRST", "0"))
PARTS = 4
PLANTED_SEEDS_MAX = 400


@pytest.mark.parametrize("part", range(PARTS))
def test_random_lives_keep_every_promise(part):
    """No loss, no delivery after a durable ack, order and windows kept, through all crashes."""
    for seed in range(SEED_FIRST + part, SEED_FIRST + SEEDS, PARTS):
        world, error = failure(seed)
        if error is not None:
            print(*world.history[-30:], sep="\n")
        assert error is None, f"{error!r}; repeat with: {command(seed)}"


def test_the_same_seed_is_the_same_life():
    """A seed repeats every step and every output."""
    assert failure(7)[0].history == failure(7)[0].history


# -- planted bugs: each of them breaks one promise, and the lives above must find it ---------------


def ack_counts_unconfirmed(patch):
    """An ack is counted before it is durable: the cursor moves."""
    settle = Dispatch._settle

    def wrong(self, *given):
        change = settle(self, *given)
        for first, end in change.ranges if change is not None else ():
            self.cursor.ack_range(first, end)
        return change

    patch.setattr(Dispatch, "_settle", wrong)


def ack_frees_the_window_unconfirmed(patch):
    """An ack lets the next record through before it is durable."""
    window = Dispatch._window

    def wrong(self):
        messages, size_bytes = window(self)
        return messages + sum(
            each.settling is not None for each in self._records.values()
        ), size_bytes

    patch.setattr(Dispatch, "_window", wrong)


def repeated_ack_does_not_wait(patch):
    """The repeat of an ack is answered while the first is on its way."""
    settle = Dispatch._settle

    def wrong(self, *given):
        change = settle(self, *given)
        if change is not None:
            change.after.clear()
        return change

    patch.setattr(Dispatch, "_settle", wrong)


def redelivery_after_a_durable_ack(patch):
    """After a restart ranges above the contiguous one are delivered again."""
    patch.setattr(Dispatch, "_recall", lambda self, records: records)


def late_ack_is_lost(patch):
    """An ack after a time-out has no effect."""
    settle = Dispatch._settle

    def wrong(self, offsets, *given):
        waiting = {o for o, each in self._records.items() if each.state is State.WAITING}
        return settle(self, [o for o in offsets if o not in waiting], *given)

    patch.setattr(Dispatch, "_settle", wrong)


def early_ack_is_lost(patch):
    """An ack of what another life of the broker delivered has no effect."""
    ack = Dispatch.ack
    patch.setattr(Dispatch, "ack", lambda self, offsets, *, head: ack(self, offsets, head=0))


def acks_beyond_the_head_count(patch):
    """An ack of what does not exist yet settles it."""
    ack = Dispatch.ack
    patch.setattr(Dispatch, "ack", lambda self, offsets, *, head: ack(self, offsets, head=1 << 60))


def key_order_broken_at_a_join(patch):
    """A consumer that joins gets the next record of keys whose last is still out."""
    join = KeySharedDispatcher.join

    def wrong(self, member):
        join(self, member)
        for key, queue in list(self.waiting.items()):
            if queue[0].state is State.IN_FLIGHT and len(queue) > 1:
                queue.popleft()
                self._offer(key)

    patch.setattr(KeySharedDispatcher, "join", wrong)


def key_order_broken_by_a_nack(patch):
    """A record that waits for its redelivery lets the next of its key through."""
    arrange = Dispatch._arrange

    def wrong(self, record, now_ms):
        arrange(self, record, now_ms)
        if record.state is State.WAITING and isinstance(self._schedule, KeySharedDispatcher):
            queue = self._schedule.waiting[record.key]
            if len(queue) > 1:
                queue.rotate(-1)
                self._schedule._offer(record.key)

    patch.setattr(Dispatch, "_arrange", wrong)


def keys_are_not_sticky(patch):
    """A key goes to the consumer with fewest each time."""
    find = KeyOwners.find

    def wrong(self, key, members):
        self._owners.pop(key, None)
        return find(self, key, members)

    patch.setattr(KeyOwners, "find", wrong)


def attempts_lost_at_restart(patch):
    """A new life begins to count anew."""
    start = Dispatch.__init__

    def wrong(self, kind, *, attempts=None, **rest):
        del attempts
        start(self, kind, **rest)

    patch.setattr(Dispatch, "__init__", wrong)


def delays_lost_at_restart(patch):
    """A new life delivers at once what a nack put off."""
    start = Dispatch.__init__

    def wrong(self, kind, *, dues_ms=None, **rest):
        del dues_ms
        start(self, kind, **rest)

    patch.setattr(Dispatch, "__init__", wrong)


def attempts_delivered_before_durable(patch):
    """A redelivery does not wait for the journal."""
    fail = Dispatch._fail

    def wrong(self, records, cause, now_ms, **rest):
        changes = fail(self, records, cause, now_ms, **rest)
        for change in changes:
            if change.cause is Cause.LOST:
                for record in change.records:
                    record.attempt = record.attempt_next
                    self._make_ready(record)
        return changes

    patch.setattr(Dispatch, "_fail", wrong)


def standby_never_promoted(patch):
    """The place of an active consumer that left stays empty."""
    leave = FifoDispatcher.leave

    def wrong(self, member):
        was_active = self.active is member
        leave(self, member)
        if was_active and self._members:
            self._members.insert(0, member)
            member.messages = 0

    patch.setattr(FifoDispatcher, "leave", wrong)


def standby_gets_records(patch):
    """All Failover consumers take part."""

    def wrong(self):
        for member in self._members:
            if member.messages > 0 and member.size_bytes > 0:
                return member
        return None

    patch.setattr(FifoDispatcher, "_next", wrong)


def round_begins_anew(patch):
    """Each burst on a Shared subscription begins with the first consumer."""
    assign = FifoDispatcher.assign_new

    def wrong(self, **given):
        self._turn = 0
        return assign(self, **given)

    patch.setattr(FifoDispatcher, "assign_new", wrong)


def delay_is_ignored(patch):
    """A nacked record comes back at once."""
    ring = Alarms.ring

    def wrong(self, now_ms):
        return ring(self, now_ms + 50)

    patch.setattr(Alarms, "ring", wrong)


def one_attempt_too_many(patch):
    """A record is delivered once more than the policy says."""
    patch.setattr(
        FailurePolicy, "attempts_max", property(lambda self: self.max_redelivery_count + 2)
    )


def lost_records_forgotten(patch):
    """What a lost consumer had is not delivered again."""
    patch.setattr(Dispatch, "_lose", lambda self, member, now_ms: None)


def ended_streams_fail_records_for_good(patch):
    """A record is dropped, blocked or a dead letter because its consumer's client went."""
    fail = Dispatch._fail

    def wrong(self, records, cause, now_ms, **rest):
        cause = Cause.TIMEOUT if cause is Cause.LOST else cause
        return fail(self, records, cause, now_ms, **rest)

    patch.setattr(Dispatch, "_fail", wrong)


def time_that_was_given_is_forgotten(patch):
    """A record times out although its consumer was given more time."""
    patch.setattr(Dispatch, "prolong", lambda self, offset, *, until_ms: None)


def unseen_records_count(patch):
    """What is taken back unseen counts as a failed delivery."""
    take_back = Dispatch.take_back

    def wrong(self, consumer_id, offsets):
        take_back(self, consumer_id, offsets)
        for record in map(self._records.get, offsets):
            if record is not None and record.state is State.READY:
                record.attempt += 1

    patch.setattr(Dispatch, "take_back", wrong)


def oldest_not_first(patch):
    """What comes back after a reconnect comes in the wrong order."""

    def wrong(self, record):
        heapq.heappush(self.ready, record.offset)
        self.ready.sort(reverse=True)

    patch.setattr(FifoDispatcher, "again", wrong)


def refused_ack_is_kept(patch):
    """An ack that the journal refused counts all the same."""
    failed = Dispatch.failed

    def wrong(self, change, *, now_ms):
        act = failed if change.cause is not Cause.ACK else Dispatch.confirmed
        act(self, change, now_ms=now_ms)

    patch.setattr(Dispatch, "failed", wrong)


def filters_ignored(patch):
    """Consumers get keys that their patterns do not match."""
    patch.setattr("frazil.subscribe.dispatch.key_filter", lambda patterns: lambda key: True)


def blocked_does_not_stop(patch):
    """A blocked record lets others through."""
    assign = Dispatch._assign

    def wrong(self, now_ms):
        blocked, self._blocked = self._blocked, {}
        assign(self, now_ms)
        self._blocked.update(blocked)

    patch.setattr(Dispatch, "_assign", wrong)


def refused_counts_let_others_pass(patch):
    """When the journal refuses what a consumer had when it left, new records go before it."""
    failed = Dispatch._count_failed

    def wrong(self, record, cause, now_ms):
        failed(self, record, cause, now_ms)
        self._returning.discard(record.offset)

    patch.setattr(Dispatch, "_count_failed", wrong)


def records_that_are_read_are_overtaken(patch):
    """A record that must be read again lets later ones pass where one consumer has all."""
    deliver = Dispatch._deliver_ready

    def wrong(self, now_ms):
        deliver(self, now_ms)
        self._returning.difference_update(self.reading)

    patch.setattr(Dispatch, "_deliver_ready", wrong)


def put_off_counts_as_failed(patch):
    """A record that could not be read has failed once more."""
    put_off = Dispatch.put_off

    def wrong(self, offset, *, now_ms):
        put_off(self, offset, now_ms=now_ms)
        self._records[offset].attempt += 1

    patch.setattr(Dispatch, "put_off", wrong)


def put_off_is_forgotten(patch):
    """A record that could not be read is never tried again."""

    def wrong(self, offset, *, now_ms):
        del now_ms
        self.reading.pop(offset).state = State.WAITING

    patch.setattr(Dispatch, "put_off", wrong)


def acked_while_it_was_read(patch):
    """What was read again goes out although its ack is on its way."""

    def wrong(self, offset, value):
        record = self.reading.pop(offset)
        record.value, record.settling = value, None
        self._make_ready(record)

    patch.setattr(Dispatch, "loaded", wrong)


def keys_do_not_wait_for_consumers(patch):
    """Keys that nobody matches are passed over as soon as somebody is there."""
    patch.setattr(Dispatch, "_wait_with_skips", lambda self, now_ms: None)


PLANTED = (
    ack_counts_unconfirmed,
    ack_frees_the_window_unconfirmed,
    repeated_ack_does_not_wait,
    redelivery_after_a_durable_ack,
    late_ack_is_lost,
    early_ack_is_lost,
    acks_beyond_the_head_count,
    key_order_broken_at_a_join,
    key_order_broken_by_a_nack,
    keys_are_not_sticky,
    attempts_lost_at_restart,
    delays_lost_at_restart,
    attempts_delivered_before_durable,
    standby_never_promoted,
    standby_gets_records,
    round_begins_anew,
    delay_is_ignored,
    one_attempt_too_many,
    lost_records_forgotten,
    ended_streams_fail_records_for_good,
    time_that_was_given_is_forgotten,
    unseen_records_count,
    oldest_not_first,
    refused_ack_is_kept,
    filters_ignored,
    blocked_does_not_stop,
    refused_counts_let_others_pass,
    records_that_are_read_are_overtaken,
    put_off_counts_as_failed,
    put_off_is_forgotten,
    acked_while_it_was_read,
    keys_do_not_wait_for_consumers,
)


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_the_lives_find_a_planted_bug(plant, monkeypatch):
    """Some life within the budget breaks a promise, and one of the specification, not a crash."""
    plant(monkeypatch)
    for seed in range(PLANTED_SEEDS_MAX):
        _, error = failure(seed)
        if error is not None:
            print(f"{plant.__name__}: seed {seed}: {error!r}")
            assert isinstance(error, AssertionError)
            return
    pytest.fail(f"{PLANTED_SEEDS_MAX} lives did not find: {plant.__doc__}")
