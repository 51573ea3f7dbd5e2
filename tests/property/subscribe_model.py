"""What a subscription promises, said once more and shorter: sets and dicts, no queues, no heaps.

The specification takes every input and checks every output. It never predicts which of
several right things happens next; it says for each whether it was right.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from frazil.subscribe import Cause, NoticeKind, Poison, SubscriptionType

LINES = {SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER, SubscriptionType.SHARED}
SINGLE = {SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER}


def attempts_max_of(policy):
    """How often a record is delivered at most."""
    return 1 + policy.max_redelivery_count


def has_room(member):
    """Whether a stream takes another record."""
    return member.messages > 0 and member.size_bytes > 0


class Until:
    """The end of the time for an ack that was given in so many words."""

    def __init__(self, end):
        self.end = end

    def __add__(self, _timeout):
        return self.end


class Member:
    """A consumer as its stream sees it."""

    def __init__(self, consumer_id, name, filters):
        self.id, self.name, self.filters = consumer_id, name, filters
        self.messages = self.size_bytes = 0

    def accepts(self, key):
        return not self.filters or any(fnmatchcase(key, pattern) for pattern in self.filters)


class Specification:
    """The truth about one subscription, through all its lives."""

    def __init__(self, kind, policy, limits):
        self.kind, self.policy, self.limits = kind, policy, limits
        self.records = {}
        self.gaps = set()
        # What the journal has: it alone survives.
        self.settled = set()
        self.counted = {}
        # Why each record was settled.
        self.acked, self.dead_lettered, self.dropped, self.skipped = set(), set(), set(), set()
        # What clients may have in their hands since lives that are over.
        self.had, self.delivered = set(), set()
        # The topic's head: what is below it may be acked.
        self.head = 0
        # When what was counted comes next; durable with the count.
        self.dues = {}
        self.restart(0)

    def restart(self, now):
        """A life ends; only what is durable is known to the next."""
        self.members = []
        self.hands = {}
        self.had |= self.delivered
        self.delivered = set()
        self.settling = set()
        self.returned = set()
        # What goes before anything new, and is not to be tried again before a time.
        self.held_back = {}
        self.blocked = set()
        self.owners = {}
        self.turns = {}
        self.now = now
        self.not_before = {offset: self.dues[offset] for offset in self.counted}
        self.attempts = dict(self.counted)
        self.known = set(self.counted)
        self.attempts_max = attempts_max_of(self.policy)
        # When the last consumer came or left.
        self.changed = 0
        self.unblocked = set()
        self.coming, self.condemned, self.reading = set(), set(), set()
        # What has its place in the window since before the window changed.
        self.admitted = set()
        self.before_ack, self.before_nack = {}, {}
        # What was acked before this life delivered it: it may be in line by now, as new.
        self.acked_early = set()
        # Intentions that did not become durable are forgotten.
        self.acked &= self.settled
        self.dropped &= self.settled
        self.skipped &= self.settled

    # -- inputs ----------------------------------------------------------------------------------

    def attach(self, member, now):
        self.changed = now
        same = [each for each in self.members if member.name == each.name]
        place = self.members.index(same[0]) if same else len(self.members)
        for other in same:
            self.detach(other.id, now)
        self.members.insert(place, member)
        if same:
            # Keys stay with a name, but for those that its new filters do not match.
            mine = {key for key, owner in self.owners.items() if owner in same}
            self.owners.update({key: member for key in mine if member.accepts(key)})
        self.turns = {}

    def detach(self, consumer_id, now):
        (member,) = [each for each in self.members if each.id == consumer_id]
        self.members.remove(member)
        self.changed = now
        self.turns = {}
        for offset in sorted(o for o, (whose, _) in self.hands.items() if whose is member):
            del self.hands[offset]
            self.returned.add(offset)
            self.fail(offset, now, judged=False)

    def fail(self, offset, due, *, judged=True):
        attempt = self.attempts.get(offset, 1)
        if judged or attempt < attempts_max_of(self.policy):
            self.attempts[offset] = attempt + 1
        self.not_before[offset] = due

    def ack(self, offsets, change):
        """Exactly what is below the head and unsettled is settled; what repeats waits."""
        mine = {
            offset
            for offset in offsets
            if offset in self.records and offset not in self.settled and offset not in self.settling
        }
        assert (set(change.offsets) if change else set()) == mine, "the ack of wrong records"
        repeated = set(offsets) & self.settling - self.settled
        after = {offset for each in change.after for offset in each.offsets} if change else set()
        assert repeated <= after, f"an ack of {repeated} is answered before it is durable"
        for offset in mine:
            self.acked.add(offset)
            self.settling.add(offset)
            self.before_ack[offset] = self.hands.pop(offset, None)
            if offset not in self.delivered:
                self.acked_early.add(offset)

    def nack(self, offset, delay, change, now):
        if offset not in self.hands:
            # Nobody has it: a late nack.
            assert change is None or change.is_empty
            return
        assert change is not None, "a nack without effect"
        self.before_nack[offset] = self.hands.pop(offset)
        wait = self.policy.delay_ms(self.attempts.get(offset, 1), delay)
        self.fail(offset, now + wait)
        if change.cause is Cause.DROP:
            self._drop(offset, now)
        else:
            assert change.attempts == [self.attempts.get(offset)]

    def put_off(self, offset, now):
        """It could not be read: that is no failure, and where order counts nothing overtakes it."""
        # A policy of today may deliver what was to be a dead letter.
        self.condemned.discard(offset)
        self.not_before[offset] = now + self.limits.retry_ms
        if self.kind in SINGLE:
            self.returned.add(offset)
            self.held_back[offset] = now + self.limits.retry_ms
        else:
            self.returned.discard(offset)

    def gone(self, offset):
        """A quota took it before it could be read."""
        if offset not in self.settling:
            self.gaps.add(offset)
            self.settling.add(offset)
            self.condemned.add(offset)

    def prolong(self, offset, until):
        """The holder of a record has it until then."""
        if offset in self.hands:
            self.hands[offset] = (self.hands[offset][0], Until(until))

    def take_back(self, member, offsets):
        """What a member has of these is nobody's, as if it had not been delivered."""
        for offset in offsets:
            if self.hands.get(offset, (None,))[0] is member:
                del self.hands[offset]
                self.not_before.pop(offset, None)

    def _is_dropped(self, offset):
        is_last = self.attempts.get(offset, 1) > attempts_max_of(self.policy)
        return is_last and self.policy.poison is Poison.DROP

    def configure(self, policy, now):
        self.not_before.update(dict.fromkeys(self.blocked, now))
        # What failed too often waits for nothing; unblocked, it may come at once or when it is due.
        self.unblocked |= {o for o, n in self.attempts.items() if n > attempts_max_of(self.policy)}
        self.policy = policy
        self.attempts_max = max(self.attempts_max, attempts_max_of(policy))
        if policy.poison is not Poison.BLOCK:
            self.blocked.clear()
        self.blocked -= {
            o for o in self.blocked if self.attempts.get(o, 1) <= attempts_max_of(policy)
        }

    # -- outputs ---------------------------------------------------------------------------------

    def deliver(self, action, now):
        """A delivery is of the right record, to the right consumer, at the right time."""
        self.now = now
        found = [each for each in self.members if each.id == action.consumer_id]
        assert found, f"delivery to {action.consumer_id}, which is not attached"
        (member,) = found
        attempts = action.attempts or [1] * len(action.offsets)
        assert len(attempts) == len(action.offsets)
        for offset, attempt in zip(action.offsets, attempts, strict=True):
            size, key = self.records[offset]
            assert member.messages > 0, "more messages than wanted"
            assert member.size_bytes > 0, "more bytes than wanted"
            member.messages -= 1
            member.size_bytes -= size
            assert offset not in self.settled, f"{offset} was delivered after a durable ack"
            assert offset not in self.settling, (
                f"{offset} was delivered while its ack was on its way"
            )
            assert offset not in self.hands, f"{offset} is with a consumer already"
            expected = self.attempts.get(offset, 1)
            assert attempt == expected, f"{offset}: attempt {attempt}, not {expected}"
            assert attempt <= self.attempts_max, f"{offset} was delivered too often"
            assert attempt <= self.counted.get(offset, 1), f"{offset}: attempt is not durable"
            is_due = now >= self.not_before.get(offset, 0) or offset in self.unblocked
            assert is_due, f"{offset} came before its delay was over"
            self.unblocked.discard(offset)
            if self.kind in LINES:
                self._deliver_in_line(offset, member)
            else:
                self._deliver_by_key(offset, key, member)
            if offset not in self.known | self.acked_early | self.delivered | self.admitted:
                self._deliver_first(offset)
            self.delivered.add(offset)
            self.returned.discard(offset)
            self.held_back.pop(offset, None)
            self.hands[offset] = (member, now)
            self.turns[member.id] = self.turns.get(member.id, 0) + 1

    def _deliver_first(self, offset):
        if self.kind in LINES:
            ahead = {each for each in self.coming if each < offset}
            unacked = (self.delivered - self.settled - self.coming) | ahead
            last = 0
        else:
            # Any may be the one that crossed the limit in bytes: what is read again comes later.
            unacked = self.delivered - self.settled - self.blocked
            last = max(self.records[each][0] for each in unacked | self.coming)
        assert len(unacked) < self.limits.max_unacked_messages, "the window is not respected"
        size_bytes = sum(self.records[each][0] for each in unacked) - last
        assert size_bytes < self.limits.max_unacked_bytes, "the window in bytes is not respected"

    def _waits(self, offset):
        """Whether a record should still be delivered for the first time in this life."""
        return (
            offset not in self.delivered
            and offset not in self.settled
            and offset not in self.settling | self.reading
            and offset not in self.condemned | self.skipped | self.dropped
            and (offset in self.delivered or self.now >= self.not_before.get(offset, 0))
            and self.attempts.get(offset, 1) <= attempts_max_of(self.policy)
        )

    def _coming_back(self):
        """What consumers that left had, and that is still to be delivered again."""
        last = attempts_max_of(self.policy)
        back = {offset for offset in self.returned if self.attempts.get(offset, 1) <= last}
        return back - self.settling - self.condemned - self.dropped

    def _deliver_in_line(self, offset, member):
        assert not self.blocked, f"{offset} was delivered although {self.blocked} block"
        if self.kind in SINGLE:
            assert member is self.members[0], "delivery to a standby"
        back = self._coming_back()
        if self.kind in SINGLE and offset in back:
            assert offset == min(back), "not the oldest came back first"
        if offset not in self.delivered and offset not in self.condemned:
            # Hands of one poll go to different consumers: between them there is no order.
            before = {each for each in self.records if each < offset and self._waits(each)}
            if self.kind is SubscriptionType.SHARED:
                before, back = before - self.coming, back - self.coming - self.reading
            # One that an earlier life delivered may be among those that come back.
            before |= set() if offset in self.known | self.acked_early else back
            assert not before, f"{offset} was delivered before {before}"

    def _deliver_by_key(self, offset, key, member):
        assert member.accepts(key), f"{key} does not match {member.filters}"
        earlier = [
            each
            for each, (_, other) in self.records.items()
            if other == key and each < offset and each not in self.settled
        ]
        assert not earlier, f"{offset} of {key} was delivered before {earlier}"
        owner = self.owners.get(key)
        keys = {other for _, other in self.records.values()}
        if owner in self.members and len(keys) <= self.limits.keys_max:
            assert owner is member, f"{key} moved although its owner is there"
        self.owners[key] = member

    def even(self):
        """Deliveries to Shared consumers that all have room differ by one at most."""
        counts = [self.turns.get(each.id, 0) for each in self.members]
        if self.kind is SubscriptionType.SHARED and counts:
            assert max(counts) - min(counts) <= 1, f"not even: {counts}"

    def dead_letter(self, action):
        assert self.policy.poison is Poison.DEAD_LETTER
        attempt = self.attempts.get(action.offset, 1)
        assert attempt > attempts_max_of(self.policy), f"{action.offset} may be delivered again"
        assert attempt == self.counted[action.offset], "a dead letter before it is durable why"
        assert action.attempt == attempt - 1
        assert action.offset not in self.settled
        self.condemned.add(action.offset)
        self.not_before.pop(action.offset, None)

    def notice(self, action):
        if action.kind is NoticeKind.BLOCKED:
            assert self.policy.poison is Poison.BLOCK
            assert self.attempts.get(action.offset, 1) > attempts_max_of(self.policy)
            if action.offset not in self.settled:
                self.blocked.add(action.offset)

    def change(self, change, now):
        """A change that dispatch makes by itself says what happened, and nothing else."""
        if change.cause is Cause.TIMEOUT:
            timeout = self.policy.ack_timeout_ms
            for offset, attempt in zip(change.offsets, change.attempts, strict=True):
                if offset in self.hands:
                    _, since = self.hands.pop(offset)
                    assert timeout, "a time-out without a limit"
                    assert now >= since + timeout, f"{offset} timed out too early"
                    wait = self.policy.delay_ms(self.attempts.get(offset, 1))
                    self.fail(offset, now + wait)
                assert attempt == self.attempts.get(offset)
        elif change.cause is Cause.LOST:
            for offset, attempt in zip(change.offsets, change.attempts, strict=True):
                assert attempt == self.attempts.get(offset), f"{offset}: counted {attempt}"
        elif change.cause is Cause.DROP:
            for offset in change.offsets:
                self._drop(offset, now)
        elif change.cause is Cause.SKIP:
            self._skip(change, now)
        elif change.cause is Cause.GONE:
            assert set(change.offsets) <= self.gaps, "a record was taken for gone"
            self.settling |= set(change.offsets)
        else:
            assert change.cause is Cause.DEAD_LETTER
            assert set(change.offsets) <= self.dead_lettered
            self.settling |= set(change.offsets)

    def _drop(self, offset, now):
        if offset in self.hands:
            _, since = self.hands.pop(offset)
            assert now >= since + self.policy.ack_timeout_ms
            self.fail(offset, now)
        assert offset in self.dropped or self._is_dropped(offset), f"{offset} was dropped too early"
        self.dropped.add(offset)
        self.settling.add(offset)

    def _skip(self, change, now):
        assert self.kind is SubscriptionType.KEY_SHARED
        grace = self.limits.skip_grace_ms
        for offset in change.offsets:
            key = self.records[offset][1]
            fresh = offset not in self.skipped
            if fresh:
                assert self.members, f"{key} was passed over while nobody is there"
                assert now >= self.changed + grace, f"{key} was passed over too early"
                assert not any(each.accepts(key) for each in self.members), f"{key} is wanted"
            self.skipped.add(offset)
            self.settling.add(offset)

    def polled(self, now):
        """After a poll nothing that is due is left."""
        self.now = now
        timeout = self.policy.ack_timeout_ms
        late = [
            offset
            for offset, (_, since) in self.hands.items()
            if timeout and now >= since + timeout
        ]
        assert not late, f"{late} should have timed out"

    def _blocked_keys(self, size=None):
        """What blocks its key only, in messages or bytes, is no part of the window."""
        blocked = set() if self.kind in LINES else self.blocked
        return sum(size or self.records[offset][0] for offset in blocked)

    def _owners_are_known(self):
        return len({key for _, key in self.records.values()}) <= self.limits.keys_max

    def idle(self, status, offset_next, *, is_returning):
        """After a poll nothing waits that could be delivered: not for a tick, not for luck.

        Unless what consumers that left had is on its way to the journal: that goes first.
        """
        limits = self.limits
        free = limits.max_unacked_messages - status.unacked + self._blocked_keys(1)
        is_open = (
            free > 0 and status.unacked_bytes - self._blocked_keys() < limits.max_unacked_bytes
        )
        takers = [each for each in self.members if has_room(each)]
        if self.kind in SINGLE:
            takers = [each for each in takers if each is self.members[0]]
        is_returning = is_returning or self._is_stuck()
        if self.reading:
            # Where one consumer has all they go first, and elsewhere they have its room.
            is_returning = is_returning or self.kind in SINGLE
            is_open = is_open and len(self.reading) < sum(each.messages for each in takers)
        if not is_open or (self.kind in LINES and (self.blocked or is_returning)):
            return
        out = {key for offset, (_, key) in self.records.items() if offset not in self.settled}
        for offset in sorted(self.records):
            _, key = self.records[offset]
            if offset >= offset_next or offset in self.settled:
                continue
            is_next = key in out
            out.discard(key)
            if self.kind in LINES:
                assert not takers or not self._waits(offset), f"{offset} waits for nothing"
            elif is_next:
                owner = self.owners.get(key)
                # Without an owner it may be anybody's that accepts it.
                wanting = [each for each in self.members if each.accepts(key)]
                wanting = [owner] if owner in wanting else wanting
                is_wanted = wanting and all(map(has_room, wanting)) and self._owners_are_known()
                assert not is_wanted or not self._waits(offset), f"{offset} waits for nothing"

    def _is_stuck(self):
        """Whether something goes first whose time has not come, or whose ack is on its way."""
        gone = self.settled | self.condemned | self.dropped
        waits = {offset: due for offset, due in self.held_back.items() if offset not in gone}
        return any(due > self.now or offset in self.settling for offset, due in waits.items())

    def progress(self, cursor):
        """What counts as acked is durable, and the other way round but for answers on their way."""
        early = [each for each in self.records if each in cursor and each not in self.settled]
        assert not early, f"{early} counted as acked before that was durable"

    # -- the journal -----------------------------------------------------------------------------

    def durable(self, change):
        """A change is on disk, whether or not its answer arrives."""
        for first, end in change.ranges:
            for offset in range(first, end):
                why = self.acked | self.dead_lettered | self.dropped | self.skipped | self.gaps
                assert offset in why, f"{offset} was settled for no reason"
                self.settled.add(offset)
                self.counted.pop(offset, None)
        dues = change.dues_ms or [0] * len(change.attempts)
        for offset, attempt, due in zip(change.offsets, change.attempts, dues, strict=False):
            assert attempt >= 2
            if offset not in self.settled:
                self.counted[offset] = attempt
                self.dues[offset] = due

    def confirmed(self, change):
        done = set() if change.attempts else set(change.offsets)
        self.settling -= done
        self.blocked -= done
        self.returned -= done

    def failed(self, change, now):
        """A change is not on disk: records are where they were."""
        if change.cause is Cause.LOST and self.kind in LINES:
            due = now + self.limits.retry_ms
            self.held_back.update(dict.fromkeys(set(change.offsets) - self.settled, due))
        if change.cause is Cause.NACK:
            self._nack_failed(change.offsets[0], now)
        if change.attempts:
            return
        for offset in change.offsets:
            self.settling.discard(offset)
            if change.cause is not Cause.ACK:
                continue
            self.acked.discard(offset)
            if offset in self.held_back:
                self.held_back[offset] = now + self.limits.retry_ms
            hand = self.before_ack.pop(offset)
            if hand is None:
                continue
            if hand[0] in self.members:
                self.hands[offset] = (hand[0], now)
            else:
                self.returned.add(offset)
                self.fail(offset, now, judged=False)

    def _nack_failed(self, offset, now):
        if offset in self.settled:
            return
        member, _ = self.before_nack.pop(offset)
        if member in self.members:
            self.attempts[offset] -= 1
            self.not_before.pop(offset)
            # If it was acked meanwhile it is the consumer's again when that is refused, too.
            hands = self.before_ack if offset in self.settling else self.hands
            hands[offset] = (member, now)
