"""One subscription as a state machine: records, consumers, acks and time in; actions out.

No I/O and no clock: `now_ms` is an argument and never goes back. Inputs only note what happened;
`poll` does what follows from it and returns the actions. What is durable when, and what each crash
leaves, is in docs/internals/dispatch.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from frazil.errors import Conflict
from frazil.log import RANGES_MAX, Cursor
from frazil.subscribe.actions import Action, Cause, Change, Deliver, Notice, NoticeKind
from frazil.subscribe.key_filter import key_filter
from frazil.subscribe.key_shared import KeyLines
from frazil.subscribe.line import Line
from frazil.subscribe.places import Consumer
from frazil.subscribe.policy import FailurePolicy, Limits, SubscriptionType
from frazil.subscribe.records import Records

if TYPE_CHECKING:
    from frazil.subscribe.schedule import Assignment, Schedule

__all__ = ["Dispatch", "Status"]

LIMITS: Final = frozenset(("ranges", "waiting keys"))
"""Why a subscription pauses that is at a limit; it goes on by itself when there is room."""
ROOM_TO_RESUME: Final = 0.25
"""The part of a limit that must be free before it is told that a pause is over."""


@attrs.frozen
class Status:
    """What a subscription is doing, for lists and metrics.

    Its lag is what is not in its `cursor`, which is only for reading, nor in a gap of the topic.
    """

    consumers: int
    active_id: int | None
    held: int
    unacked: int
    unacked_bytes: int
    acked_below: int
    acked_above: int
    cursor: Cursor
    ranges: int
    blocked: int
    paused: str | None


class Dispatch:
    """Deliver the records of one topic to the consumers of one subscription.

    A restart builds it again from the journalled `cursor`, `attempts` and the times `dues_ms` before
    which the next ones must not be; the reader then feeds from `offset_next` on. A reset of the cursor is a new `Dispatch`, too. Unsettled records below
    `delivered_below` may be with clients since an earlier life: their acks count.
    """

    def __init__(
        self,
        kind: SubscriptionType,
        *,
        policy: FailurePolicy | None = None,
        limits: Limits | None = None,
        cursor: Cursor | None = None,
        attempts: Mapping[int, int] | None = None,
        dues_ms: Mapping[int, int] | None = None,
        delivered_below: int = 0,
        now_ms: int = 0,
    ) -> None:
        self.kind = kind
        self._limits = limits or Limits()
        self._actions: list[Action] = []
        self._records = Records(
            policy or FailurePolicy(),
            self._limits,
            cursor=cursor or Cursor(),
            attempts=attempts or {},
            dues_ms={o: due for o, due in (dues_ms or {}).items() if due > now_ms},
            delivered_below=delivered_below,
            actions=self._actions,
        )
        self._is_by_key = kind is SubscriptionType.KEY_SHARED
        self._is_single = kind in {SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER}
        places, sizes = self._records.places, self._records.sizes
        self._schedule: Schedule = (
            KeyLines(places, sizes, cursor=self._records.cursor, limits=self._limits)
            if self._is_by_key
            else Line(kind, places, sizes)
        )
        self._records.schedule = self._schedule
        self._schedule.special.update(self._records.not_plain())
        self._members: dict[int, Consumer] = {}
        self._share_out()
        self._paused: str | None = None

    # -- consumers -------------------------------------------------------------------------------

    def admits(self, name: str) -> bool:
        """Whether `attach` of a consumer of this name would be taken."""
        return self.kind is not SubscriptionType.EXCLUSIVE or all(
            each.name == name for each in self._members.values()
        )

    def attach(
        self, consumer_id: int, *, name: str, now_ms: int, filters: Iterable[str] = ()
    ) -> None:
        """Let a consumer's stream take part; it gets nothing before `want`.

        A consumer of the same id or name is displaced, and what it had is delivered again at once.
        One of the same name takes its place: an active consumer stays active, keys stay.

        Raises:
            Conflict: the subscription is Exclusive and another consumer is attached.
        """
        if not self.admits(name):
            raise Conflict("the exclusive subscription has another consumer", consumer=name)
        for other in list(self._members.values()):
            if consumer_id == other.consumer_id and name != other.name:
                self.detach(other.consumer_id, now_ms=now_ms, is_lost=False)
                self._actions.append(Notice(NoticeKind.DISPLACED, other.consumer_id))
        old = next((each for each in self._members.values() if each.name == name), None)
        consumer = Consumer(consumer_id, name, key_filter(filters))
        if old is None:
            self._schedule.join(consumer, now_ms)
        else:
            self._forget(old)
            was_active = self._schedule.active is old
            self._schedule.replace(old, consumer, now_ms)
            self._records.lose(old, now_ms=now_ms, is_lost=False, and_timed_out=was_active)
            self._actions.append(Notice(NoticeKind.DISPLACED, old.consumer_id))
        self._members[consumer_id] = consumer
        self._share_out()

    def detach(self, consumer_id: int, *, now_ms: int, is_lost: bool = True) -> None:
        """End a consumer's part; what it has not acked is delivered again at once.

        `is_lost` says that its client is gone, whether it said so or its connection broke: its
        oldest record may be why, if that happens again and again (`Limits.blame_grace_ms`). An
        unknown consumer makes no difference.
        """
        consumer = self._members.get(consumer_id)
        if consumer is None:
            return
        self._forget(consumer)
        was_active = self._schedule.active is consumer
        self._schedule.leave(consumer, now_ms)
        self._records.lose(consumer, now_ms=now_ms, is_lost=is_lost, and_timed_out=was_active)
        active = self._schedule.active
        if was_active and active is not None:
            self._actions.append(Notice(NoticeKind.PROMOTED, active.consumer_id))

    def _forget(self, consumer: Consumer) -> None:
        del self._members[consumer.consumer_id]
        consumer.is_attached = False
        self._share_out()

    def keep_keys(self, before: Dispatch) -> None:
        """Let the keys of a KeyShared subscription stay with whom they had before a reset."""
        if isinstance(self._schedule, KeyLines) and isinstance(before._schedule, KeyLines):
            self._schedule.keep_owners(before._schedule)

    def want(self, consumer_id: int, *, messages: int, size_bytes: int) -> None:
        """Say how much the consumer's stream takes from now on; deliveries use it up."""
        consumer = self._members.get(consumer_id)
        if consumer is not None:
            consumer.messages = messages
            consumer.size_bytes = size_bytes

    def has_room(self, consumer_id: int) -> bool:
        """Whether a consumer is attached whose stream takes another record."""
        consumer = self._members.get(consumer_id)
        return consumer is not None and consumer.has_room

    # -- records ---------------------------------------------------------------------------------

    @property
    def cursor(self) -> Cursor:
        """What is durably settled. Only for reading."""
        return self._records.cursor

    @property
    def offset_next(self) -> int:
        """The first offset that `feed` has not covered."""
        return self._records.offset_next

    @property
    def room(self) -> int:
        """How many records `feed` may bring now."""
        room = self._schedule.room(
            held_max=self._limits.held_max, unacked=len(self._records.places)
        )
        return max(0, room)

    @property
    def held(self) -> int:
        """How many records were fed and not yet delivered."""
        return self._schedule.held

    def may_deliver(self, settled: int = 0) -> int:
        """Return how many more records the window takes, were so many of those out settled."""
        return max(0, self._window()[0] + settled)

    @property
    def is_hungry(self) -> bool:
        """Whether a record that was never delivered would go out now, were the right one fed.

        Or, on KeyShared, as soon as the window has a place: whoever has nothing to do has the next
        one, and what is for it may lie behind much that is for others.
        """
        records = self._records
        if self._is_stopped() or (records.cursor.is_full and records.places):
            return False
        if self.is_full:
            schedule = self._schedule
            return isinstance(schedule, KeyLines) and schedule.has_idle(self._share)
        return any(each.has_room for each in self._members.values())

    @property
    def is_full(self) -> bool:
        """Whether the window takes no record more."""
        messages, size_bytes = self._window()
        return messages <= 0 or size_bytes <= 0

    def take_parked(self) -> list[int]:
        """Return the held records that `poll` met and did not deliver, each once.

        They failed too often, or wait, since an earlier life, or are acked: whoever keeps their
        contents need not keep them any longer.
        """
        parked, self._records.parked = self._records.parked, []
        return parked

    def is_with(self, consumer_id: int, offset: int) -> bool:
        """Whether a record was given to this consumer and has not been acked or taken back."""
        return self._records.flights.holder(offset) == consumer_id

    def are_with(self, consumer_id: int, offsets: list[int], attempts: list[int]) -> bool:
        """Whether all of these records are with this consumer, as these attempts."""
        records = self._records
        is_with = records.flights.are_with(consumer_id, offsets)
        return is_with and records.attempts_of(offsets) == attempts

    def holder(self, offset: int) -> int | None:
        """Return the id of the consumer that was given a record, while it has it."""
        return self._records.flights.holder(offset)

    def feed(
        self,
        offsets: Sequence[int],
        sizes: Sequence[int],
        *,
        offset_end: int,
        keys: Sequence[str] = (),
    ) -> None:
        """Take in the records of `[offset_next, offset_end)`, ascending; `keys` for KeyShared.

        Offsets of the range without a record are gaps of the topic: they count as settled. Records
        that are settled already are left out.
        """
        fed = self._records.take_in(offsets, sizes, keys, offset_end=offset_end)
        self._schedule.feed(*fed)

    def ack(self, offsets: Sequence[int]) -> Change | None:
        """Settle delivered records: return the change to journal, None if there is no effect.

        The acks are answered when the change, and those it is `after`, are confirmed. Offsets that
        were not delivered, or are settled, have no effect.
        """
        return self._records.settle(offsets, Cause.ACK)

    def nack(
        self, offset: int, *, now_ms: int, delay_ms: int = 0, reason: str = ""
    ) -> Change | None:
        """Give a delivered record back: return the change to journal, None if there is no effect.

        Only a record that is with a consumer can be given back.
        """
        return self._records.give_back(offset, now_ms=now_ms, delay_ms=delay_ms, reason=reason)

    def unsent(self, consumer_id: int, offsets: Sequence[int]) -> None:
        """Say that deliveries cannot be sent yet: their time for an ack has not begun."""
        self._records.set_clock(consumer_id, offsets, None)

    def sent(self, consumer_id: int, offsets: Sequence[int], *, now_ms: int) -> None:
        """Say that deliveries that were `unsent` go out now."""
        self._records.set_clock(consumer_id, offsets, now_ms)

    def put_off(self, consumer_id: int, offsets: Sequence[int], *, now_ms: int) -> None:
        """Take records back that could not be sent for now; nobody failed, so nothing counts.

        Where one consumer gets everything in order, nothing goes before them.
        """
        mine = [offset for offset in offsets if self.is_with(consumer_id, offset)]
        self._records.put_off(mine, now_ms=now_ms, comes_first=self._is_single)

    def gone(self, offset: int) -> None:
        """Settle a record that was to be delivered and is no more: nobody will ever have it."""
        self._records.give_up(offset)

    def take_back(self, consumer_id: int, offsets: Sequence[int]) -> None:
        """Take records back that a consumer has and nobody saw there: nothing counts.

        They are delivered at once, to whoever is next.
        """
        self._records.take_back(consumer_id, offsets)

    def dead_lettered(self, offset: int) -> Change | None:
        """Settle a record that is durable in the dead-letter topic: return the change to journal."""
        return self._records.settle((offset,), Cause.DEAD_LETTER)

    def dead_letter_failed(self, offset: int, *, now_ms: int) -> None:
        """Ask for the dead letter again, after a while."""
        self._records.bury_later(offset, now_ms=now_ms)

    def confirmed(self, change: Change, *, now_ms: int) -> None:
        """Take note that a change is durable."""
        self._records.confirmed(change, now_ms=now_ms)

    def failed(self, change: Change, *, now_ms: int) -> None:
        """Take a change back that could not be journalled: records are again where they were."""
        self._records.failed(change, now_ms=now_ms)

    # -- time ------------------------------------------------------------------------------------

    def configure(
        self, policy: FailurePolicy, limits: Limits | None = None, *, now_ms: int
    ) -> None:
        """Set another policy, and other limits; blocked records are judged by it anew."""
        self._limits = limits or self._limits
        self._share_out()
        self._records.configure(policy, self._limits, now_ms=now_ms)

    def overdue(self, now_ms: int) -> list[int]:
        """Return what is with consumers for longer than an ack may take.

        The next `poll` counts it as failed, but for what is prolonged or taken back before.
        """
        return self._records.overdue(now_ms)

    def prolong(self, offset: int, *, until_ms: int) -> None:
        """Let a record's ack take until then, if it is with a consumer."""
        self._records.prolong(offset, until_ms=until_ms)

    def due_ms(self) -> int | None:
        """Return when `poll` is due although nothing comes in."""
        dues = (self._records.due_ms(), self._schedule.due_ms())
        return min((due for due in dues if due is not None), default=None)

    def poll(self, now_ms: int) -> list[Action]:
        """Do what follows from all inputs so far and from the time; return the actions.

        Changes among the actions are to be journalled like those of `ack`.
        """
        self._records.ring(now_ms)
        skipped, sizes = self._schedule.skip(now_ms)
        if skipped:
            self._records.skip(skipped, sizes)
        self._assign(now_ms)
        self._tell_paused()
        actions = self._actions[:]
        del self._actions[:]
        return actions

    def status(self) -> Status:
        """Say what the subscription is doing."""
        records = self._records
        active = self._schedule.active
        return Status(
            consumers=len(self._members),
            active_id=active.consumer_id if active else None,
            held=self._schedule.held,
            unacked=len(records.places),
            unacked_bytes=records.unacked_bytes,
            acked_below=records.cursor.acked_below,
            acked_above=records.cursor.acked_above,
            cursor=records.cursor,
            ranges=records.cursor.range_count,
            blocked=len(records.blocked),
            paused=self._why_paused(),
        )

    # -- inside ----------------------------------------------------------------------------------

    def _window(self) -> tuple[int, int]:
        """Return how many messages and bytes may go out besides those that are out."""
        records, limits = self._records, self._limits
        messages = limits.max_unacked_messages - len(records.places)
        size_bytes = limits.max_unacked_bytes - records.unacked_bytes
        schedule = self._schedule
        if isinstance(schedule, KeyLines):
            # They stop their keys and nothing else; what is read ahead of them has its own bound.
            messages += len(records.blocked) + schedule.aside
            size_bytes += records.blocked_bytes + schedule.aside_bytes
        return messages, size_bytes

    def _share_out(self) -> None:
        """Reckon how many messages of the window are each consumer's."""
        self._share = -(-self._limits.max_unacked_messages // max(1, len(self._members)))

    def _is_stopped(self) -> bool:
        """Whether a blocked record stops everybody."""
        return bool(self._records.blocked) and not self._is_by_key

    def _assign(self, now_ms: int) -> None:
        records, schedule = self._records, self._schedule
        if self._is_stopped():
            return
        # What comes back from a consumer that left goes first and in order, so nothing goes before
        # its attempts are durable.
        if records.returning and not self._is_by_key:
            return
        self._deliver_again(now_ms)
        while not records.cursor.is_full or not records.places:
            messages, size_bytes = self._window()
            assignment = schedule.assign_new(
                messages=messages, size_bytes=size_bytes, share=self._share
            )
            if not assignment.offsets and not assignment.dealt:
                return
            if assignment.is_special:
                records.meet(assignment.offsets[0], assignment.sizes[0], now_ms=now_ms)
                records.ring(now_ms)
                if self._is_stopped():
                    return
                # Its time may have come while nobody met it.
                self._deliver_again(now_ms)
                continue
            self._deliver_new(assignment, now_ms)

    def _deliver_again(self, now_ms: int) -> None:
        for consumer, offsets in self._schedule.assign_again():
            self._deliver(consumer, offsets, now_ms)

    def _deliver_new(self, assignment: Assignment, now_ms: int) -> None:
        self._records.count(assignment.offsets, assignment.sizes)
        for consumer, offsets in assignment.dealt:
            self._deliver(consumer, offsets, now_ms)

    def _deliver(self, consumer: Consumer, offsets: list[int], now_ms: int) -> None:
        attempts = self._records.fly(consumer, offsets, now_ms)
        self._actions.append(Deliver(consumer.consumer_id, offsets, attempts))

    def _why_paused(self) -> str | None:
        """Return why new records are not delivered although consumers have room."""
        if self._is_stopped():
            return "blocked"
        if self._records.cursor.is_full:
            return "ranges"
        if self._is_by_key and not self.room:
            return "waiting keys"
        return None

    def _has_ample_room(self) -> bool:
        """Whether so much room is back that what is at its limit will not be there again at once."""
        free = RANGES_MAX - self._records.cursor.range_count
        is_ample = free >= RANGES_MAX * ROOM_TO_RESUME
        return is_ample and (
            not self._is_by_key or self.room >= self._limits.held_max * ROOM_TO_RESUME
        )

    def _tell_paused(self) -> None:
        paused = self._why_paused()
        # At the limit each ack makes room for one, which is taken at once: that is not told.
        if paused is None and self._paused in LIMITS and not self._has_ample_room():
            return
        if paused != self._paused:
            kind = NoticeKind.PAUSED if paused else NoticeKind.RESUMED
            self._actions.append(Notice(kind, reason=paused or self._paused or ""))
            self._paused = paused
