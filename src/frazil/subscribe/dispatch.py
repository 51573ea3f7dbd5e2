"""One subscription as a state machine. Inputs: records, consumers, acks, time. Output: actions.

No I/O and no clock: `now_ms` is an argument and never goes back. Inputs only record events; `poll`
processes them and returns the actions. docs/internals/delivery.md has the durability of each step
and the outcome of each crash.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final

import attrs

from frazil.errors import Conflict
from frazil.log import Cursor, gaps_of, ranges_of
from frazil.subscribe.delivery_state import (
    Action,
    Alarms,
    Cause,
    Change,
    DeadLetter,
    Deliver,
    DeliveryRecord,
    Member,
    Notice,
    NoticeKind,
    Read,
    Span,
    State,
)
from frazil.subscribe.fifo import FifoDispatcher
from frazil.subscribe.key_shared import KeySharedDispatcher, key_filter
from frazil.subscribe.policy import FailurePolicy, Limits, Poison, SubscriptionType
from frazil.subscribe.spans import Spans

__all__ = ["Dispatch", "Status"]

DEFAULT_POLICY: Final = FailurePolicy()
DEFAULT_LIMITS: Final = Limits()
NOTHING: Final[Mapping[int, int]] = MappingProxyType({})

UNREAD, HELD, IN_FLIGHT, READY = State.UNREAD, State.HELD, State.IN_FLIGHT, State.READY
NOTED: Final = (Cause.DROP, Cause.SKIP)
SINGLE: Final = (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)
REASON_CHARACTERS_MAX: Final = 1_024
SPAN_MIN: Final = 4
"""Fewer consecutive records are handled singly."""
REASONS: Final = {Cause.TIMEOUT: "no ack in time", Cause.LOST: "the consumer's stream ended"}


@attrs.frozen
class Status:
    """The state of a subscription for lists and metrics. `cursor` is only for reading."""

    consumers: int
    active_id: int | None
    held: int
    unacked: int
    unacked_bytes: int
    cursor: Cursor
    blocked: int
    paused: str | None


class Dispatch:
    """Deliver the records of one topic to the consumers of one subscription.

    After a restart it is built again from the journalled `cursor`, `attempts` and `dues_ms` (the
    times before which the next attempts must not be delivered); the reader then feeds from
    `offset_next` on. A reset of the cursor is a new `Dispatch`, too.
    """

    def __init__(
        self,
        kind: SubscriptionType,
        *,
        policy: FailurePolicy = DEFAULT_POLICY,
        limits: Limits = DEFAULT_LIMITS,
        cursor: Cursor | None = None,
        attempts: Mapping[int, int] = NOTHING,
        dues_ms: Mapping[int, int] = NOTHING,
        now_ms: int = 0,
    ) -> None:
        self.kind = kind
        self.cursor = Cursor.copy(cursor or Cursor())
        """The durably settled offsets. Read-only."""
        self.offset_next = self.cursor.acked_below
        """The first offset that `feed` has not covered."""
        self.unacked_bytes = 0
        self.held_bytes = 0
        """The bytes of the values held for a delivery."""
        self.reading: dict[int, DeliveryRecord] = {}
        """Records whose values must be read again before their delivery. Only for reading."""
        self._policy = policy
        self._attempts_max = policy.attempts_max
        self._limits = limits
        self._actions: list[Action] = []
        self._records: dict[int, DeliveryRecord] = {}
        self._spans = Spans(self._records)
        self._unacked = 0
        self._unread = 0
        self._attempts = {o: n for o, n in attempts.items() if o not in self.cursor}
        """Attempts of records that were not fed yet; and their delays."""
        self._dues_ms = {o: due for o, due in dues_ms.items() if due > now_ms}
        self._blocked: dict[int, DeliveryRecord] = {}
        self._blocked_bytes = 0
        self._returning: set[int] = set()
        """Records to deliver before any new one, and not ready yet."""
        self._gaps: list[tuple[int, int]] = []
        self._alarms = Alarms()
        self._is_cursor_full = self.cursor.is_full
        self._timeout_ms: int | None = None
        """No delivery times out before this; None while nothing is in flight."""
        self._members: dict[int, Member] = {}
        self._keyed: KeySharedDispatcher | None = None
        """The schedule of KeyShared."""
        self._schedule: FifoDispatcher | KeySharedDispatcher = FifoDispatcher(
            self._records, self._spans, is_shared=kind is SubscriptionType.SHARED
        )
        if kind is SubscriptionType.KEY_SHARED:
            self._schedule = self._keyed = KeySharedDispatcher(self._records, limits)

    # -- consumers -------------------------------------------------------------------------------

    def attach(
        self, consumer_id: int, *, name: str, now_ms: int, filters: Iterable[str] = ()
    ) -> None:
        """Add a consumer; it gets nothing before `want`.

        It replaces a consumer of the same name, whose records are delivered again at once: an
        active consumer stays active, keys stay.

        Raises:
            Conflict: the subscription is Exclusive and another consumer is attached.
        """
        old = next((each for each in self._members.values() if each.name == name), None)
        if self.kind is SubscriptionType.EXCLUSIVE and self._members and old is None:
            raise Conflict("the exclusive subscription has another consumer", consumer=name)
        member = Member(consumer_id, name, key_filter(filters))
        if old is None:
            self._schedule.join(member)
        else:
            del self._members[old.consumer_id]
            old.is_attached = False
            self._schedule.replace(old, member)
            self._lose(old, now_ms)
        self._members[consumer_id] = member
        self._wait_with_skips(now_ms)

    def _wait_with_skips(self, now_ms: int) -> None:
        """Give several consumers the time to attach before records are skipped."""
        if self._keyed is not None:
            self._keyed.skip_ms = now_ms + self._limits.skip_grace_ms

    def detach(self, consumer_id: int, *, now_ms: int) -> None:
        """Remove a consumer; its unacked records are delivered again at once."""
        member = self._members.pop(consumer_id)
        member.is_attached = False
        was_active = self._schedule.active is member
        self._schedule.leave(member)
        self._wait_with_skips(now_ms)
        self._lose(member, now_ms)
        active = self._schedule.active
        if was_active and active is not None:
            self._actions.append(Notice(NoticeKind.PROMOTED))

    def _lose(self, member: Member, now_ms: int) -> None:
        """Take back the records of a consumer that left."""
        for span in self._spans:
            if span.member is member and span.settling is None:
                self._spans.dissolve(span)
        lost = [
            record
            for record in self._records.values()
            if record.state is IN_FLIGHT and record.member is member and record.settling is None
        ]
        self._actions += self._fail(lost, Cause.LOST, now_ms)

    def take_over(self, before: Dispatch) -> None:
        """Take over the consumers, their order and keys from the dispatch before this one."""
        self._members, self._schedule = before._members, before._schedule
        self._keyed = before._keyed
        self._schedule.begin(self._records, self._spans)

    def want(self, consumer_id: int, *, messages: int, size_bytes: int) -> bool:
        """Set how much the consumer's stream takes from now on; deliveries use it up.

        Return whether it had no room before.
        """
        member = self._members[consumer_id]
        was_full = not member.has_room
        member.messages, member.size_bytes = messages, size_bytes
        return was_full

    # -- records ---------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """The number of records that `feed` may add now."""
        room = self._limits.held_max - self._schedule.held
        if self._keyed is not None:
            # Records held because of their keys are gaps of the cursor. Together with the unacked
            # ones they are bounded, so the cursor's ranges are, too.
            room -= self._unacked
        return max(0, room)

    @property
    def held(self) -> int:
        """The number of records that were fed and not yet delivered."""
        return self._schedule.held

    @property
    def is_hungry(self) -> bool:
        """Whether a new record could be delivered now, if one were fed."""
        is_blocked = self._keyed is None and self._blocked
        if is_blocked or (self._unacked and self._is_cursor_full) or min(self._window()) <= 0:
            return False
        for member in self._members.values():
            # Not through a property: each publish checks this.
            if member.messages > 0 and member.size_bytes > 0:
                return True
        return False

    @property
    def is_idle(self) -> bool:
        """Whether a poll has nothing to do before the next input or due time."""
        schedule = self._schedule
        return not (
            self._keyed
            or self._actions
            or self._alarms.dues_ms
            or schedule.waiting
            or schedule.ready
        )

    def are_with(self, consumer_id: int, offsets: list[int], attempts: list[int]) -> bool:
        """Return whether all of these records are with this consumer, as these attempts."""
        return all(
            found is not None
            and found.attempt == attempt
            and found.member is not None
            and found.member.consumer_id == consumer_id
            for found, attempt in zip(map(self._in_flight, offsets), attempts, strict=True)
        )

    def _in_flight(self, offset: int) -> DeliveryRecord | Span | None:
        """Return the state of a record that is with a consumer and not being settled."""
        found = self._records.get(offset) or self._spans.find(offset)
        is_out = found is not None and found.state is IN_FLIGHT and found.settling is None
        return found if is_out else None

    def holder(self, offset: int) -> int | None:
        """Return the id of the consumer that a record is in flight to."""
        found = self._in_flight(offset)
        return None if found is None or found.member is None else found.member.consumer_id

    def feed(
        self,
        offsets: Sequence[int],
        sizes: Sequence[int],
        *,
        offset_end: int,
        keys: Sequence[str] = (),
        values: Sequence[Any] = (),
    ) -> None:
        """Add the records of `[offset_next, offset_end)`, ascending; `keys` for KeyShared.

        `values` are passed to `Deliver`, the offsets if there are none. Offsets of the range
        without a record are gaps of the topic: they count as settled. Settled records are omitted.
        """
        first, self.offset_next = self.offset_next, offset_end
        assert not offsets or first <= offsets[0] <= offsets[-1] < offset_end
        count = len(offsets)
        if count != offset_end - first:
            self._pass_gaps(gaps_of(offsets, first=first, end=offset_end))
        schedule, has_history = self._schedule, self._attempts or self._unread
        has_history = has_history or first < self.cursor.end
        if (
            count >= SPAN_MIN
            and not has_history
            and isinstance(schedule, FifoDispatcher)
            and not schedule.takes_turns
            and offsets[-1] - offsets[0] == count - 1
        ):
            span = self._spans.add(offsets[0], sizes, values or offsets)
            self.held_bytes += span.size
            schedule.feed_span(span)
            return
        records = list(map(DeliveryRecord, offsets, sizes, keys or repeat(""), values or offsets))
        if has_history:
            records = self._recall(records)
        self._records.update(zip([record.offset for record in records], records, strict=True))
        self.held_bytes += sum([record.size for record in records])
        self._schedule.feed(records)

    def _pass_gaps(self, gaps: list[tuple[int, int]]) -> None:
        """Count offsets without a record as settled; they are journalled with the next ack."""
        self._gaps += gaps
        for gap in gaps:
            self.cursor.ack_range(*gap)
        self._is_cursor_full = self.cursor.is_full
        # Expired records need no attempt.
        for offset in [each for each in self._attempts if each in self.cursor]:
            del self._attempts[offset]

    def _recall(self, records: list[DeliveryRecord]) -> list[DeliveryRecord]:
        """Omit settled records; apply the stored attempts and delays of the others."""
        kept: list[DeliveryRecord] = []
        for fed in records:
            record, offset = fed, fed.offset
            if offset in self.cursor:
                continue
            early = self._records.get(offset)
            if early is not None:
                early.size, early.key, early.value = fed.size, fed.key, fed.value
                early.state, record = HELD, early
                self._unread -= 1
            record.attempt = self._attempts.pop(offset, 1)
            record.due_ms = self._dues_ms.pop(offset, 0)
            kept.append(record)
        return kept

    def trim(self, bytes_max: int) -> None:
        """Drop the values of the newest held records beyond a size; they are read again."""
        if self.held_bytes <= bytes_max:
            return
        for span in self._spans:
            if span.state is HELD:
                self._spans.dissolve(span)
        for record in reversed(self._records.values()):
            if record.state is HELD:
                self._drop_value(record)
                if self.held_bytes <= bytes_max:
                    return

    def _drop_value(self, record: DeliveryRecord) -> None:
        if record.value is not None:
            record.value = None
            self.held_bytes -= record.size

    # -- acks and nacks --------------------------------------------------------------------------

    def ack(self, offsets: Sequence[int], *, head: int) -> Change | None:
        """Settle records below the topic's durable head; return the change to journal, if any.

        Clients may ack deliveries of an earlier broker process, so any unsettled record below the
        head can be acked. The acks are answered when the change, and those it is `after`, are
        confirmed.
        """
        return self._settle(offsets, Cause.ACK, head)

    def _settle(self, offsets: Sequence[int], cause: Cause, head: int = 0) -> Change | None:
        change, spans = Change(cause), self._spans
        for offset in spans.settle(change, offsets) if spans else offsets:
            record = spans.single(offset)
            if record is None:
                if not 0 <= offset < head or offset in self.cursor:
                    continue
                record = self._records[offset] = DeliveryRecord(offset, state=UNREAD)
                self._unread += 1
            elif record.settling is not None:
                if record.settling is not change and record.settling not in change.after:
                    change.after.append(record.settling)
                continue
            record.settling = change
            change.records.append(record)
            change.offsets.append(offset)
        if not change.offsets:
            return change if change.after else None
        change.ranges = ranges_of(sorted(change.offsets))
        if self._gaps:
            change.gaps, self._gaps = self._gaps, []
            change.ranges += change.gaps
        return change

    def nack(
        self, offset: int, *, now_ms: int, delay_ms: int = 0, reason: str = ""
    ) -> Change | None:
        """Queue a delivered record again; return the change to journal, None if there is none."""
        record = self._spans.single(offset)
        if record is None:
            return None
        if record.settling is None and record.state is IN_FLIGHT:
            (change,) = self._fail([record], Cause.NACK, now_ms, asked_ms=delay_ms, reason=reason)
            return change
        under_way = record.settling or record.counting
        if under_way is None or under_way.cause not in {Cause.NACK, Cause.DROP}:
            return None
        repeat_of = Change(Cause.NACK)
        repeat_of.after.append(under_way)
        return repeat_of

    def loaded(self, offset: int, value: Any) -> None:
        """Take the value of a record of `reading`."""
        record = self.reading.pop(offset)
        if record.settling is None:
            record.value = value
            self.held_bytes += record.size
            self._make_ready(record)
        else:
            record.state = READY
            self._returning.discard(offset)

    def put_off(self, offset: int, *, now_ms: int) -> None:
        """Delay a record of `reading` that cannot be read now; this is not a failed delivery.

        On Exclusive and Failover no other record is delivered before it.
        """
        self.reading.pop(offset).state = State.WAITING
        self._alarms.set(offset, now_ms + self._limits.retry_ms)

    def gone(self, offset: int) -> None:
        """Settle a record of `reading` that does not exist any more."""
        record = self.reading.pop(offset)
        self._returning.discard(offset)
        if record.settling is None:
            self._settle_owed([record], Cause.GONE)
        else:
            record.state = READY

    def take_back(self, consumer_id: int, offsets: Sequence[int]) -> None:
        """Take back records that no program has seen: that is no failed delivery."""
        for offset in offsets:
            record = self._spans.single(offset)
            if record is not None and self.holder(offset) == consumer_id:
                self._make_ready(record)

    def dead_lettered(self, offset: int) -> Change | None:
        """Settle a durably dead-lettered record; return the change to journal."""
        return self._settle((offset,), Cause.DEAD_LETTER)

    def dead_letter_failed(self, offset: int, *, now_ms: int) -> None:
        """Request the dead letter again after `retry_ms`."""
        record = self._records.get(offset)
        if record is not None and record.state is State.DEAD:
            self._alarms.set(offset, now_ms + self._limits.retry_ms)

    # -- failures --------------------------------------------------------------------------------

    def _fail(
        self,
        records: Sequence[DeliveryRecord],
        cause: Cause,
        now_ms: int,
        *,
        asked_ms: int = 0,
        reason: str = "",
    ) -> list[Change]:
        """Count deliveries as failed; return the changes to journal before the next ones.

        A consumer that leaves does not use up the last attempt: that attempt is repeated.
        """
        policy, attempts_max = self._policy, self._attempts_max
        counted, dropped = Change(cause), Change(Cause.DROP)
        reason = reason[:REASON_CHARACTERS_MAX] or REASONS.get(cause, "nacked")
        for record in sorted(records, key=attrgetter("offset")):
            is_last = record.attempt >= attempts_max
            if is_last and cause is Cause.LOST:
                self._make_ready(record)
                continue
            record.reason = reason
            if is_last and policy.poison is Poison.DROP:
                record.state, record.cause, record.settling = State.OWED, Cause.DROP, dropped
                dropped.records.append(record)
                dropped.offsets.append(record.offset)
                continue
            record.state, record.counting = State.COUNTING, counted
            delay_ms = 0 if cause is Cause.LOST else policy.delay_ms(record.attempt, asked_ms)
            record.attempt_next, record.due_ms = record.attempt + 1, now_ms + delay_ms
            _count(counted, record)
            if cause is Cause.LOST:
                self._returning.add(record.offset)
        dropped.ranges = ranges_of(dropped.offsets)
        return [change for change in (counted, dropped) if change.offsets]

    def _arrange(self, record: DeliveryRecord, now_ms: int) -> None:
        """Decide the next step of a record whose attempt is durable."""
        self._returning.discard(record.offset)
        if record.attempt > self._attempts_max:
            self._exhausted(record, now_ms)
        elif record.due_ms <= now_ms:
            self._make_ready(record)
        else:
            record.state = State.WAITING
            self._alarms.set(record.offset, record.due_ms)

    def _exhausted(self, record: DeliveryRecord, now_ms: int) -> None:
        """Apply the policy to a record that failed too often."""
        poison, offset = self._policy.poison, record.offset
        record.reason = record.reason or "failed too often before a restart"
        if poison is Poison.BLOCK:
            record.state = State.BLOCKED
            self._blocked[offset] = record
            self._blocked_bytes += record.size
            self._actions.append(Notice(NoticeKind.BLOCKED, offset, record.reason))
        else:
            # By an alarm: an ack before it prevents the dead letter.
            record.state = State.DEAD if poison is Poison.DEAD_LETTER else State.OWED
            record.cause = Cause.DROP
            self._alarms.set(offset, now_ms)

    def _make_ready(self, record: DeliveryRecord) -> None:
        self._returning.discard(record.offset)
        record.state, record.member = READY, None
        self._schedule.again(record)

    def _unblock(self, record: DeliveryRecord) -> None:
        del self._blocked[record.offset]
        self._blocked_bytes -= record.size
        if not self._blocked:
            self._actions.append(Notice(NoticeKind.UNBLOCKED, record.offset))

    def _settle_owed(self, records: list[DeliveryRecord], cause: Cause) -> None:
        """Journal the settling of records without an ack."""
        change = Change(cause)
        records.sort(key=attrgetter("offset"))
        for record in records:
            record.state, record.cause, record.settling = State.OWED, cause, change
        change.records = records
        change.offsets = [record.offset for record in records]
        change.ranges = ranges_of(change.offsets)
        self._actions.append(change)

    # -- answers of the journal ------------------------------------------------------------------

    def confirmed(self, change: Change, *, now_ms: int) -> None:
        """Apply a change that is durable now."""
        assert change.is_open
        change.is_open = False
        if change.attempts:
            for record, attempt in zip(change.records, change.attempts, strict=True):
                record.counting = None
                if record.state is State.COUNTING:
                    record.attempt = attempt
                    self._arrange(record, now_ms)
            return
        for first, end in change.ranges:
            self.cursor.ack_range(first, end)
        self._is_cursor_full = self.cursor.is_full
        for span in change.spans:
            self._spans.remove(span)
            self._unacked -= span.end - span.first
            self.unacked_bytes -= span.size
            span.settling = span.member = None
        for record in change.records:
            del self._records[record.offset]
            if record.state is UNREAD:
                self._unread -= 1
            elif record.state is not HELD:
                self._unacked -= 1
                self.unacked_bytes -= record.size
                if record.state is not IN_FLIGHT:
                    self._forget_wait(record)
            if record.value is not None:
                self._drop_value(record)
            record.state = State.PASSED if record.state is HELD else State.SETTLED
            record.settling = record.member = None
        if change.cause in NOTED:
            self._note_settled(change)
        if self._keyed is not None:
            self._keyed.settled(change.records)

    def _forget_wait(self, record: DeliveryRecord) -> None:
        """Remove a settled record's alarms and queue entries."""
        self._alarms.clear(record.offset)
        self._returning.discard(record.offset)
        self.reading.pop(record.offset, None)
        if record.state is State.BLOCKED:
            self._unblock(record)

    def _note_settled(self, change: Change) -> None:
        """Report records that were settled without an ack."""
        first, count = change.offsets[0], len(change.records)
        self._actions += (
            [Notice(NoticeKind.SKIPPED, first, records=count)]
            if change.cause is Cause.SKIP
            else [
                Notice(NoticeKind.DROPPED, one.offset, one.reason or None) for one in change.records
            ]
        )

    def failed(self, change: Change, *, now_ms: int) -> None:
        """Undo a change that could not be journalled: records are again where they were."""
        assert change.is_open
        change.is_open = False
        self._gaps += change.gaps
        for span in list(change.spans):
            self._spans.dissolve(span)
        for record in change.records:
            if change.attempts:
                record.counting = None
                if record.state is State.COUNTING:
                    self._count_failed(record, change.cause, now_ms)
                continue
            record.settling = None
            if change.cause is Cause.ACK:
                self._ack_failed(record, now_ms)
            else:
                record.state, record.cause = State.OWED, change.cause
                self._alarms.set(record.offset, now_ms + self._limits.retry_ms)
        self._watch_timeouts(now_ms)
        lost = [each for each in change.records if each.state is IN_FLIGHT and each.is_lost]
        self._actions += self._fail(lost, Cause.LOST, now_ms)

    def _ack_failed(self, record: DeliveryRecord, now_ms: int) -> None:
        if record.state is UNREAD:
            del self._records[record.offset]
            self._unread -= 1
        elif record.state is READY:
            self._arrange(record, now_ms)
        elif record.state is State.DEAD:
            # Its dead letter may have been published while the ack was running.
            self._alarms.set(record.offset, now_ms + self._limits.retry_ms)
        elif record.state is HELD and self._keyed is not None:
            self._keyed.again(record)
        elif record.state is IN_FLIGHT:
            record.sent_ms, record.until_ms = now_ms, -1

    def _count_failed(self, record: DeliveryRecord, cause: Cause, now_ms: int) -> None:
        if cause is Cause.NACK and not record.is_lost:
            record.state, record.sent_ms, record.until_ms = IN_FLIGHT, now_ms, -1
            return
        record.state = State.UNCOUNTED
        self._alarms.set(record.offset, now_ms + self._limits.retry_ms)

    # -- time ------------------------------------------------------------------------------------

    def configure(self, policy: FailurePolicy, limits: Limits, *, now_ms: int) -> None:
        """Set another policy and other limits; blocked records are evaluated again."""
        self._policy = policy
        self._attempts_max = policy.attempts_max
        self._limits = limits
        self._timeout_ms = now_ms if policy.ack_timeout_ms else None
        for record in sorted(self._blocked.values(), key=attrgetter("offset")):
            if policy.poison is not Poison.BLOCK or record.attempt <= self._attempts_max:
                self._unblock(record)
                record.due_ms = now_ms
                self._arrange(record, now_ms)

    def _watch_timeouts(self, now_ms: int) -> None:
        """Note that something is in flight from now on."""
        timeout_ms = self._policy.ack_timeout_ms
        if timeout_ms and (self._timeout_ms is None or now_ms + timeout_ms < self._timeout_ms):
            self._timeout_ms = now_ms + timeout_ms

    def overdue(self, now_ms: int) -> list[int]:
        """Return, ascending, the offsets that the next `poll` counts as timed out."""
        if self._timeout_ms is None or now_ms < self._timeout_ms:
            return []
        timeout_ms, first_ms = self._policy.ack_timeout_ms, None
        overdue: list[int] = []
        for span in self._spans:
            if span.state is IN_FLIGHT:
                end_ms = span.sent_ms + timeout_ms
                if end_ms <= now_ms and span.settling is None:
                    self._spans.dissolve(span)
                elif first_ms is None or end_ms < first_ms:
                    first_ms = max(end_ms, now_ms + 1)
        for offset, record in self._records.items():
            if record.state is IN_FLIGHT:
                end_ms = record.until_ms if record.until_ms >= 0 else record.sent_ms + timeout_ms
                if end_ms <= now_ms and record.settling is None:
                    overdue.append(offset)
                elif first_ms is None or end_ms < first_ms:
                    first_ms = max(end_ms, now_ms + 1)
        # Checked again then; setting an earlier end updates this time.
        self._timeout_ms = now_ms if overdue else first_ms
        return sorted(overdue)

    def prolong(self, offset: int, *, until_ms: int) -> None:
        """Let the ack of a record in flight take until then."""
        record = self._spans.single(offset)
        if record is not None and self.holder(offset) is not None:
            record.until_ms = until_ms
            if self._timeout_ms is not None:
                self._timeout_ms = min(self._timeout_ms, until_ms)

    def due_ms(self) -> int | None:
        """Return the time of the next `poll` without new input."""
        if not self._alarms.dues_ms and self._keyed is None:
            return self._timeout_ms
        skip_ms = None if self._keyed is None else self._keyed.due_ms()
        dues = (self._alarms.first_ms(), self._timeout_ms, skip_ms)
        return min([due for due in dues if due is not None], default=None)

    def _ring(self, now_ms: int) -> None:
        """Process ack time-outs, then due alarms."""
        if self._timeout_ms is not None and now_ms >= self._timeout_ms:
            late = [self._records[offset] for offset in self.overdue(now_ms)]
            self._actions += self._fail(late, Cause.TIMEOUT, now_ms)
            self.overdue(now_ms)
        for offset in self._alarms.ring(now_ms):
            self._rung(self._records[offset], now_ms)

    def _rung(self, record: DeliveryRecord, now_ms: int) -> None:
        """Process the alarm of a record."""
        offset, poison = record.offset, self._policy.poison
        if record.state is State.WAITING:
            self._make_ready(record)
        elif record.settling is not None:
            # The ack must finish first.
            self._alarms.set(offset, now_ms + self._limits.retry_ms)
        elif record.state is State.OWED:
            self._settle_owed([record], record.cause)
        elif record.state is State.UNCOUNTED:
            recount = Change(Cause.LOST if offset in self._returning else Cause.TIMEOUT)
            record.state, record.counting = State.COUNTING, recount
            _count(recount, record)
            self._actions.append(recount)
        elif poison is not Poison.DEAD_LETTER or record.attempt <= self._attempts_max:
            # The policy has changed since then.
            record.due_ms = now_ms
            self._arrange(record, now_ms)
        else:
            self._actions.append(DeadLetter(offset, record.attempt - 1, record.reason))

    # -- actions ---------------------------------------------------------------------------------

    def poll(self, now_ms: int) -> list[Action]:
        """Process all inputs so far and the time; return the actions.

        Changes among the actions are to be journalled like those of `ack`.
        """
        timeout_ms = self._timeout_ms
        if self._alarms.dues_ms or (timeout_ms is not None and now_ms >= timeout_ms):
            self._ring(now_ms)
        if self._keyed is not None:
            self._skip(self._keyed.skip(now_ms))
        if self._schedule.waiting or self._schedule.ready:
            self._assign(now_ms)
        actions, self._actions = self._actions, []
        return actions

    def _skip(self, skipped: list[DeliveryRecord]) -> None:
        """Settle records of keys that no consumer accepts."""
        for record in skipped:
            if record.state is HELD:
                self._leave_queue(record)
        if skipped:
            self._settle_owed(skipped, Cause.SKIP)

    def _leave_queue(self, record: DeliveryRecord) -> None:
        """Count a record as unacked that leaves the queue without a delivery."""
        self._unacked += 1
        self.unacked_bytes += record.size
        self._drop_value(record)

    def _window(self) -> tuple[int, int]:
        """Return how many more messages and bytes may be delivered."""
        limits = self._limits
        messages = limits.max_unacked_messages - self._unacked
        size_bytes = limits.max_unacked_bytes - self.unacked_bytes
        if self._blocked and self._keyed is not None:
            # Blocked records stop only their keys.
            messages += len(self._blocked)
            size_bytes += self._blocked_bytes
        return messages, size_bytes

    def _assign(self, now_ms: int) -> None:
        schedule, is_keyed = self._schedule, self._keyed is not None
        # A blocked record stops all deliveries. Records of a consumer that left are delivered first
        # and in order, so no record is delivered before their attempts are durable. On KeyShared
        # only their keys stop.
        while is_keyed or not (self._blocked or self._returning):
            if schedule.ready:
                self._deliver_ready(now_ms)
            # The room of the consumers is for records that are being read.
            is_taken = not is_keyed and (self._returning or schedule.ready)
            if is_taken or not schedule.waiting or (self._unacked and self._is_cursor_full):
                return
            messages, size_bytes = self._window()
            if messages <= 0 or size_bytes <= 0:
                return
            hands, special = schedule.assign_new(
                messages=messages,
                size_bytes=size_bytes,
                now_ms=now_ms,
                attempts_max=self._attempts_max,
            )
            for member, records in hands:
                self._deliver(member, records, now_ms, is_new=True)
            if special is None:
                return
            self._leave_queue(special)
            if special.settling is not None:
                special.state = READY
            else:
                # Its delay may have passed while it was held.
                self._arrange(special, now_ms)
                self._ring(now_ms)

    def _deliver_ready(self, now_ms: int) -> None:
        count = len(self.reading)
        for member, records in self._schedule.assign_ready(self.reading):
            self._deliver(member, records, now_ms, is_new=False)
        if len(self.reading) > count:
            if self.kind in SINGLE:
                self._returning.update(self.reading)
            self._actions.append(Read())

    def _deliver(
        self,
        member: Member,
        records: list[DeliveryRecord | Span],
        now_ms: int,
        *,
        is_new: bool,
    ) -> None:
        offsets: list[int] = []
        attempts: list[int] = []
        values: list[Any] = []
        size_bytes, attempt_max = 0, 1
        for each in records:
            each.state, each.member, each.sent_ms = IN_FLIGHT, member, now_ms
            size_bytes += each.size
            if type(each) is Span:
                offsets += range(each.first, each.end)
                attempts += [1] * (each.end - each.first)
                values += each.pass_values()
                continue
            assert isinstance(each, DeliveryRecord)
            each.until_ms = -1
            offsets.append(each.offset)
            attempts.append(each.attempt)
            attempt_max = max(attempt_max, each.attempt)
            values.append(each.value)
            each.value = None
        self.held_bytes -= size_bytes
        if is_new:
            self._unacked += len(offsets)
            self.unacked_bytes += size_bytes
        self._watch_timeouts(now_ms)
        numbers = attempts if attempt_max > 1 else None
        self._actions.append(Deliver(member.consumer_id, offsets, numbers, values))

    def status(self) -> Status:
        """Return the state of the subscription."""
        active = self._schedule.active
        return Status(
            consumers=len(self._members),
            active_id=active.consumer_id if active else None,
            held=self._schedule.held,
            unacked=self._unacked,
            unacked_bytes=self.unacked_bytes,
            cursor=self.cursor,
            blocked=len(self._blocked),
            paused=self._why_paused(),
        )

    def _why_paused(self) -> str | None:
        """Return why new records are not delivered although consumers have room."""
        if self._keyed is None and self._blocked:
            return "blocked"
        if self._keyed is not None and not self.room:
            return "waiting keys"
        return "ranges" if self._is_cursor_full else None


def _count(change: Change, record: DeliveryRecord) -> None:
    change.records.append(record)
    change.offsets.append(record.offset)
    change.attempts.append(record.attempt_next)
    change.dues_ms.append(record.due_ms)
