"""Dispatch keeps its promises in random lives in virtual time, and the lives find planted bugs.

`FRAZIL_DISPATCH_SEEDS` says how many lives are tried, `FRAZIL_DISPATCH_SEED_FIRST` where to begin.
"""

from __future__ import annotations

import heapq
import os

import pytest

from frazil.subscribe import (
    Alarms,
    Cause,
    Change,
    Dispatch,
    FailurePolicy,
    Flight,
    Flights,
    KeyLines,
    KeyOwners,
    Line,
    Orphans,
    Poison,
    Records,
    Returning,
    Ring,
    State,
    Suspects,
)
from frazil.subscribe.key_shared import _Deal
from tests.property.subscribe_world import command, failure

SEEDS = int(os.environ.get("FRAZIL_DISPATCH_SEEDS", "600"))
SEED_FIRST = int(os.environ.get("FRAZIL_DISPATCH_SEED_FIRST", "0"))
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
    settle = Records.settle

    def wrong(self, offsets, cause):
        change = settle(self, offsets, cause)
        for first, end in change.ranges if change is not None else ():
            self.cursor.ack_range(first, end)
        return change

    patch.setattr(Records, "settle", wrong)


def ack_frees_the_window_unconfirmed(patch):
    """An ack lets the next record through before it is durable."""
    assign = Dispatch._assign

    def wrong(self, now_ms):
        places = self._records.places
        under_way = {o: place for o, place in places.items() if isinstance(place, Change)}
        for offset in under_way:
            del places[offset]
        assign(self, now_ms)
        places.update(under_way)

    patch.setattr(Dispatch, "_assign", wrong)


def repeated_ack_does_not_wait(patch):
    """The repeat of an ack is answered while the first is on its way."""
    settle = Records.settle

    def wrong(self, offsets, cause):
        change = settle(self, offsets, cause)
        if change is not None:
            change.after.clear()
        return change

    patch.setattr(Records, "settle", wrong)


def redelivery_after_a_durable_ack(patch):
    """After a restart ranges above the contiguous one are delivered again."""
    take_in = Records.take_in

    def wrong(self, offsets, sizes, keys, *, offset_end):
        take_in(self, offsets, sizes, keys, offset_end=offset_end)
        return offsets, sizes, keys

    patch.setattr(Records, "take_in", wrong)


def late_ack_is_lost(patch):
    """An ack after a time-out has no effect."""
    settle = Records.settle

    def wrong(self, offsets, cause):
        offsets = [o for o in offsets if self.places.get(o) is not State.WAITING]
        return settle(self, offsets, cause)

    patch.setattr(Records, "settle", wrong)


def key_order_broken_at_a_join(patch):
    """A consumer that joins gets the next record of keys whose last is still out."""
    join = KeyLines.join

    def wrong(self, consumer, now_ms):
        self._out.clear()
        join(self, consumer, now_ms)
        for key in self._lines:
            self._offer(key)

    patch.setattr(KeyLines, "join", wrong)


def key_order_broken_by_a_nack(patch):
    """A record that waits for its redelivery lets the next of its key through."""
    arrange = Records._arrange

    def wrong(self, offset, due_ms, now_ms):
        arrange(self, offset, due_ms, now_ms)
        if self.places.get(offset) is State.WAITING and isinstance(self.schedule, KeyLines):
            key = self.schedule._keys[offset]
            self.schedule._out.pop(key, None)
            self.schedule._offer(key)

    patch.setattr(Records, "_arrange", wrong)


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


def acks_of_earlier_lives_ignored(patch):
    """A client that outlived the broker acks what it has, and gets it again."""
    start = Dispatch.__init__

    def wrong(self, kind, *, delivered_below=0, **rest):
        del delivered_below
        start(self, kind, **rest)

    patch.setattr(Dispatch, "__init__", wrong)


def attempts_delivered_before_durable(patch):
    """A redelivery does not wait for the journal."""
    fail = Records._fail

    def wrong(self, offsets, cause, now_ms, **rest):
        changes = fail(self, offsets, cause, now_ms, **rest)
        for change in changes:
            if change.cause is Cause.LOST:
                self._attempts.update(zip(change.offsets, change.attempts, strict=True))
                self.returning.release(change)
                for offset in change.offsets:
                    self._make_ready(offset)
        return changes

    patch.setattr(Records, "_fail", wrong)


def window_not_respected(patch):
    """Records whose acks are on their way no longer count as unacked."""
    settle = Records.settle

    def wrong(self, offsets, cause):
        change = settle(self, offsets, cause)
        for offset in change.offsets if change is not None else ():
            self.unacked_bytes -= self.sizes.pop(offset, 0)
        return change

    patch.setattr(Records, "settle", wrong)


def standby_never_promoted(patch):
    """The place of an active consumer that left stays empty."""

    def wrong(self, consumer, now_ms):
        self._members.remove(consumer)
        self._ring.remove(consumer)

    patch.setattr(Line, "leave", wrong)


def standby_gets_records(patch):
    """All Failover consumers take part."""

    def wrong(self, consumer, now_ms):
        self._members.append(consumer)
        self._ring.add(consumer)

    patch.setattr(Line, "join", wrong)


def round_begins_anew(patch):
    """Each burst on a Shared subscription begins with the first consumer."""
    deal = Ring.deal

    def wrong(self, offsets, sizes):
        self._turn = 0
        return deal(self, offsets, sizes)

    patch.setattr(Ring, "deal", wrong)


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

    def wrong(self, consumer, *, now_ms, is_lost, and_timed_out):
        for offset in self.flights.to(consumer):
            self.flights.land(self.places[offset])
            self.places[offset] = State.WAITING

    patch.setattr(Records, "lose", wrong)


def ended_streams_drop_records(patch):
    """A record is dropped because its consumer's client went."""
    blame = Suspects.is_to_blame

    def wrong(self, offset, policy, limits, *, now_ms):
        blamed = blame(self, offset, policy, limits, now_ms=now_ms)
        return blamed or policy.poison is Poison.DROP

    patch.setattr(Suspects, "is_to_blame", wrong)


def ended_streams_condemn_at_once(patch):
    """A record is a dead letter because its consumer's client went once."""

    def wrong(self, offset, policy, limits, *, now_ms):
        return policy.poison is Poison.DEAD_LETTER

    patch.setattr(Suspects, "is_to_blame", wrong)


def time_that_was_given_is_forgotten(patch):
    """A record times out although its consumer was given more time."""
    patch.setattr(Records, "prolong", lambda self, offset, *, until_ms: None)


def prolonged_records_are_lost(patch):
    """What was given more time stays behind when its consumer goes."""
    to = Flights.to

    def wrong(self, consumer):
        alone = {offset for flight in self._prolonged for offset in flight.offsets}
        return [offset for offset in to(self, consumer) if offset not in alone]

    patch.setattr(Flights, "to", wrong)


def unseen_records_count(patch):
    """What is taken back unseen counts as a failed delivery."""
    take_back = Records.take_back

    def wrong(self, consumer_id, offsets):
        take_back(self, consumer_id, offsets)
        for offset in offsets:
            if self.places.get(offset) is State.READY:
                self._attempts[offset] = self._attempts.get(offset, 1) + 1

    patch.setattr(Records, "take_back", wrong)


def oldest_not_first(patch):
    """What comes back after a reconnect comes in the wrong order."""

    def wrong(self, offset):
        heapq.heappush(self._ready, offset)
        self._ready.sort(reverse=True)

    patch.setattr(Line, "again", wrong)


def refused_ack_is_kept(patch):
    """An ack that the journal refused counts all the same."""
    patch.setattr(Records, "_settling_failed", lambda self, change, now_ms: self._settled(change))


def filters_ignored(patch):
    """Consumers get keys that their patterns do not match."""
    patch.setattr("frazil.subscribe.dispatch.key_filter", lambda patterns: lambda key: True)


def blocked_does_not_stop(patch):
    """A blocked record lets others through."""
    patch.setattr(Dispatch, "_is_stopped", lambda self: False)


def refused_counts_let_others_pass(patch):
    """When the journal refuses what a consumer had when it left, new records go before it."""
    patch.setattr(Returning, "wait", lambda self, offset: None)


def unsent_deliveries_time_out(patch):
    """The time for an ack runs while a record is not even sent."""
    patch.setattr(Dispatch, "unsent", lambda self, consumer_id, offsets: None)


def sent_deliveries_never_time_out(patch):
    """What was sent late has no time for its ack."""
    patch.setattr(Dispatch, "sent", lambda self, consumer_id, offsets, *, now_ms: None)


def put_off_counts_as_failed(patch):
    """A record that could not be sent has failed once more."""

    def wrong(self, offsets, *, now_ms, comes_first):
        del comes_first
        mine = [each for each in offsets if isinstance(self.places.get(each), Flight)]
        if mine:
            self._actions += self._fail(mine, Cause.TIMEOUT, now_ms)

    patch.setattr(Records, "put_off", wrong)


def shares_by_key_not_respected(patch):
    """A KeyShared consumer that has its share goes before those that have less."""
    patch.setattr(_Deal, "is_sated", lambda self, consumer: False)


def the_rest_is_nobodys(patch):
    """What is left of a KeyShared window when all have their share goes to nobody."""
    patch.setattr(_Deal, "begin_rest", lambda self: False)


def landed_records_are_still_out(patch):
    """What a consumer gave back or acked is counted as its own."""
    land = Flights.land

    def wrong(self, flight, count=1):
        land(self, flight, count)
        flight.consumer.out += count

    patch.setattr(Flights, "land", wrong)


def unseen_records_are_set_aside_for_ever(patch):
    """What was set aside and is with a consumer again is no part of the window."""
    patch.setattr(KeyLines, "_take_aside", lambda self, offset: self._aside.get(offset, 0))


def met_records_are_met_again(patch):
    """A policy that shrinks takes what is delivered already for records of an earlier life."""

    def wrong(self):
        attempts_max = self._policy.attempts_max
        yield from (offset for offset, n in self._attempts.items() if n > attempts_max)
        yield from self._dues_ms

    patch.setattr(Records, "not_plain", wrong)


def keys_do_not_wait_for_who_left(patch):
    """Keys of a consumer that left just now are passed over."""
    patch.setattr(Orphans, "claim", lambda self, accepts, now_ms: None)


def keys_do_not_wait_for_who_comes(patch):
    """Keys are passed over as soon as the first consumer is there."""

    def wrong(self, now_ms):
        self._claims.clear()
        self._from_ms = now_ms

    patch.setattr(Orphans, "begin", wrong)


def nacks_of_earlier_lives_count_twice(patch):
    """What was counted before a restart is counted again when its client gives it back."""

    def wrong(self, offset, now_ms, delay_ms, reason):
        if not self._had_before(offset) or offset in self._dues_ms:
            return None
        self.schedule.special.add(offset)
        (change,) = self._fail([offset], Cause.NACK, now_ms, asked_ms=delay_ms, reason=reason)
        return change

    patch.setattr(Records, "_give_back_early", wrong)


def nacks_of_earlier_lives_ignored(patch):
    """A client that outlived a restart gives a record back in vain."""
    patch.setattr(Records, "_give_back_early", lambda self, *_: None)


def refused_acks_of_unsent_records_are_with_consumers(patch):
    """A consumer that was never sent a record is waited for when the ack of another is refused."""
    settle = Records._settle_each

    def wrong(self, offsets, change):
        before = {offset: self.places.get(offset) for offset in offsets}
        settle(self, offsets, change)
        change.priors[:] = [before[offset] for offset in change.offsets]

    patch.setattr(Records, "_settle_each", wrong)


PLANTED = (
    ack_counts_unconfirmed,
    ack_frees_the_window_unconfirmed,
    repeated_ack_does_not_wait,
    redelivery_after_a_durable_ack,
    late_ack_is_lost,
    key_order_broken_at_a_join,
    key_order_broken_by_a_nack,
    keys_are_not_sticky,
    attempts_lost_at_restart,
    delays_lost_at_restart,
    acks_of_earlier_lives_ignored,
    attempts_delivered_before_durable,
    window_not_respected,
    standby_never_promoted,
    standby_gets_records,
    round_begins_anew,
    delay_is_ignored,
    one_attempt_too_many,
    lost_records_forgotten,
    ended_streams_drop_records,
    ended_streams_condemn_at_once,
    time_that_was_given_is_forgotten,
    prolonged_records_are_lost,
    unseen_records_count,
    oldest_not_first,
    refused_ack_is_kept,
    filters_ignored,
    blocked_does_not_stop,
    refused_counts_let_others_pass,
    unsent_deliveries_time_out,
    sent_deliveries_never_time_out,
    put_off_counts_as_failed,
    shares_by_key_not_respected,
    the_rest_is_nobodys,
    landed_records_are_still_out,
    unseen_records_are_set_aside_for_ever,
    met_records_are_met_again,
    keys_do_not_wait_for_who_left,
    keys_do_not_wait_for_who_comes,
    nacks_of_earlier_lives_count_twice,
    nacks_of_earlier_lives_ignored,
    refused_acks_of_unsent_records_are_with_consumers,
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
