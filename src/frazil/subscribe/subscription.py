"""One subscription at work: feeds its dispatch, writes to consumers, journals acks and attempts.

Everything that comes in is collected; once a turn of the loop `_run` does what follows from it.
Records are kept from their reading to their first delivery at most; later they are looked up again,
so that the memory of a subscription grows neither with what is unacked nor with what waits.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs

from frazil.errors import Closed, FrazilError, NotFound
from frazil.subscribe.actions import Action, Change, DeadLetter, Deliver, Notice, NoticeKind
from frazil.subscribe.answers import Answer, Waiting, answer_each
from frazil.subscribe.attached import Attached, AttachedConsumers
from frazil.subscribe.burials import Burials, not_held
from frazil.subscribe.calls import Calls
from frazil.subscribe.consumer import Consumer, Counts
from frazil.subscribe.cursors import HOLD_PREFIX
from frazil.subscribe.held import Held
from frazil.subscribe.notices import Seldom, tell_notice
from frazil.subscribe.outbox import Outbox
from frazil.subscribe.policy import FailurePolicy, Limits, SubscriptionType
from frazil.subscribe.timer import Timer
from frazil.telemetry import warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.subscribe.dead_letters import DeadLetters
    from frazil.subscribe.dispatch import Dispatch, Status
    from frazil.subscribe.feed import Found, TopicFeed
    from frazil.subscribe.journalling import Journalling
    from frazil.subscribe.pace import Pace
    from frazil.subscribe.record import Record
    from frazil.subscribe.reserve import Reserve

__all__ = ["Consumer", "Subscription"]

FEED_RECORDS_MAX: Final = 512
PACED_RECORDS_MAX: Final = 32
"""Of one that catches up while much is published."""
HELD_BYTES_MAX: Final = 8 << 20
"""KeyShared reads ahead of keys that wait; so much of that is kept, the rest is read again."""
TURNS_MAX: Final = 2
"""How often one subscription reads on before others have their turn."""
RETRY_S: Final = 1.0


class Subscription(Calls):
    """One subscription of one topic. All methods belong to the loop's thread."""

    def __init__(
        self,
        name: str,
        feed: TopicFeed,
        journalling: Journalling,
        dead_letters: DeadLetters,
        *,
        dispatch: Dispatch,
        reserve: Reserve,
        policy: FailurePolicy,
        loop: asyncio.AbstractEventLoop,
        pace: Pace,
    ) -> None:
        super().__init__(loop)
        self._pace = pace
        self.reserve = reserve
        self.name = name
        self.feed = feed
        self.policy = policy
        self._journalling = journalling
        self._dispatch = dispatch
        self._loop = loop
        self._attached = AttachedConsumers()
        self._held = Held(is_counted=dispatch.kind is SubscriptionType.KEY_SHARED)
        self._burials = Burials(self, dead_letters, loop)
        self._timer = Timer(loop, self._schedule)
        self._is_scheduled = False
        self._is_reading = False
        """Also while it waits for the time to read on."""
        self._is_following = False
        self._damage: FrazilError | None = None
        self._unread: tuple[int, FrazilError] | None = None
        """A record that must be read again, and what keeps it from that."""
        self._seldom = Seldom(loop.time)
        self.counts = Counts()
        self.epoch = 0
        """Grows when it is put somewhere else: what was delivered before is over."""

    def __repr__(self) -> str:
        return f"Subscription({self.topic!r}, {self.name!r})"

    @property
    def topic(self) -> str:
        """Return the full name of the topic."""
        return self.feed.runtime.name

    @property
    def kind(self) -> SubscriptionType:
        """Return the type."""
        return self._dispatch.kind

    @property
    def consumers(self) -> list[Consumer]:
        """Return the attached consumers."""
        return [each.consumer for each in self._attached]

    @property
    def damage(self) -> FrazilError | None:
        """Return what keeps it from reading on, None while all is well."""
        return self._damage or (self._unread[1] if self._unread else None)

    def status(self) -> Status:
        """Say what it is doing, and why it is not, if it is not."""
        status = self._dispatch.status()
        if status.paused is None:
            if self.damage is not None:
                return attrs.evolve(status, paused="cannot read")
            if self._burials.error is not None:
                return attrs.evolve(status, paused="dead letters")
            if self.reserve.error is not None and self._dispatch.is_hungry:
                return attrs.evolve(status, paused="journal")
        return status

    # -- consumers -------------------------------------------------------------------------------

    def attach(self, consumer: Consumer, filters: Sequence[str] = ()) -> None:
        """Let a consumer take part; it gets nothing before `ready`.

        One of the same id or name is displaced.

        Raises:
            Conflict: the subscription is Exclusive and has another consumer.
            FrazilError: what ended the subscription.
        """
        if self.end_error is not None:
            raise self.end_error
        if self._dispatch.admits(consumer.name):
            for other in self._attached.displaced_by(consumer):
                other.give_up_unseen(self._dispatch)
        self._dispatch.attach(
            consumer.consumer_id, name=consumer.name, filters=filters, now_ms=self._now_ms()
        )
        outbox = Outbox(consumer, self.feed, self, self._loop)
        self._attached.add(Attached(consumer, filters, outbox))
        self._schedule()

    def detach(self, consumer: Consumer, *, is_lost: bool = True) -> None:
        """End a consumer's part, if it still has one; what it has not acked goes to others.

        `is_lost` says that its client went, not that the broker ended its part.
        """
        found = self._attached.find(consumer)
        if found is None:
            return
        found.give_up_unseen(self._dispatch)
        self._attached.remove(consumer)
        self._dispatch.detach(consumer.consumer_id, now_ms=self._now_ms(), is_lost=is_lost)
        self._schedule()

    def ready(self, consumer: Consumer, *, messages: int, size_bytes: int) -> None:
        """Say how much a consumer takes from now on; deliveries use it up."""
        found = self._attached.find(consumer)
        if found is None:
            return
        found.wanted = (messages, size_bytes)
        had_room = self._dispatch.has_room(consumer.consumer_id)
        self._dispatch.want(consumer.consumer_id, messages=messages, size_bytes=size_bytes)
        if not had_room:
            # With room before, nothing waited for more of it.
            self._schedule()

    # -- acks ------------------------------------------------------------------------------------

    def nack(self, offset: int, done: Answer, *, delay_ms: int = 0, reason: str = "") -> None:
        """Give a record back; `done` is called when that is durable, or refused."""
        if self.end_error is not None:
            done(self.end_error)
            return
        if self.is_put_off(partial(self.nack, offset, done, delay_ms=delay_ms, reason=reason)):
            return
        self.counts.nacked += 1
        change = self._dispatch.nack(
            offset, now_ms=self._now_ms(), delay_ms=delay_ms, reason=reason
        )
        self._answer_after(change, [(answer_each, [done])])
        self._schedule()

    def all_stand(self, consumer: Consumer, offsets: list[int], attempts: list[int]) -> bool:
        """Tell whether all of these deliveries are a consumer's still: not settled nor taken back."""
        is_attached = self._attached.find(consumer) is not None
        return is_attached and self._dispatch.are_with(consumer.consumer_id, offsets, attempts)

    def prolong(self, offset: int, *, time_ms: int) -> None:
        """Let the ack of a record that is with a consumer take as long from now on."""
        self._dispatch.prolong(offset, until_ms=self._now_ms() + time_ms)
        self._schedule()

    def _settle(self) -> None:
        offsets, calls = self._answers.take()
        self.counts.acked += len(offsets)
        self._answer_after(self._dispatch.ack(offsets), calls)

    def _answer_after(self, change: Change | None, calls: Waiting) -> None:
        self._answers.add(change, calls)
        if change is not None and not change.is_empty:
            self._journal(change)

    def _journal(self, change: Change) -> None:
        for consumer_id, offsets in change.unsent.items():
            found = self._attached.get(consumer_id)
            if found is not None:
                found.outbox.withdraw(offsets)
        self._answers.under_way += 1
        dispatch, reserve, end = self._dispatch, self.reserve, 0
        if change.is_settling:
            # What it lets out is reserved with it, and needs no frame of its own.
            end = reserve.wanted(dispatch, dispatch.offset_next, settled=len(change.offsets))

        def written(error: FrazilError | None) -> None:
            begun_s = self._loop.time()
            now_ms = self._now_ms()
            if error is None:
                reserve.grant(end)
                dispatch.confirmed(change, now_ms=now_ms)
                self._attached.revoke(change)
                if change.is_settling:
                    self._let_go(change.offsets)
            else:
                dispatch.failed(change, now_ms=now_ms)
            self._answers.settle(change, error)
            self._was_written()
            self.spend(begun_s)

        self._journalling.add(self.name, change, written, reserved=end)

    def _was_written(self) -> None:
        self._answers.written()
        self._schedule()

    def spend(self, begun_s: float) -> None:
        """Count the loop's time since then as used for this, if it catches up."""
        if self.feed.is_old(self._dispatch.offset_next):
            self._pace.spend(begun_s)

    # -- the turn --------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._is_scheduled and self.end_error is None:
            self._is_scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        if self.end_error is not None or self._is_resting:
            return
        begun_s = self._loop.time()
        now_ms = self._now_ms()
        if self._answers.has_acks:
            self._settle()
        dispatch = self._dispatch
        self._attached.spare(dispatch, timeout_ms=self.policy.ack_timeout_ms, now_ms=now_ms)
        for _ in range(TURNS_MAX):
            for action in dispatch.poll(now_ms):
                self._act(action)
            self._held.drop(dispatch.take_parked())
            # Behind the poll: what goes at once is not read twice.
            self._held.trim(HELD_BYTES_MAX)
            if not dispatch.is_hungry or not self._fill():
                break
        else:
            self._schedule()
        self._timer.set(dispatch.due_ms())
        self.spend(begun_s)

    def _act(self, action: Action) -> None:
        if type(action) is Deliver:
            self._deliver(action)
        elif type(action) is Change:
            self._attached.revoke(action)
            self._journal(action)
        elif type(action) is DeadLetter:
            self._burials.begin(action, self._dispatch)
        else:
            assert isinstance(action, Notice)
            self._tell(action)

    def _deliver(self, action: Deliver) -> None:
        found = self._attached.get(action.consumer_id)
        if found is None:
            # It left in this very turn; dispatch knows.
            return
        self.reserve.use(action.offsets)
        self.counts.delivered += len(action.offsets)
        if action.attempts is not None:
            self.counts.redelivered += sum(number > 1 for number in action.attempts)
        records = self._held.take(action.offsets)
        if None in records or found.outbox.is_busy:
            self._dispatch.unsent(action.consumer_id, action.offsets)
            found.outbox.add(action.offsets, records, action.attempts)
        else:
            found.consumer.deliver(records, action.attempts)  # type: ignore[arg-type]

    def _fill(self) -> bool:
        """Feed what comes next; False if it is not at hand, or not to be read yet."""
        dispatch, feed = self._dispatch, self.feed
        if self._is_reading:
            return False
        is_by_key = dispatch.kind is SubscriptionType.KEY_SHARED
        # Ahead of a full window only as much as is kept, or large records would be read twice.
        is_ahead = dispatch.is_full and len(self._held) < dispatch.held
        if dispatch.held and (is_ahead or not is_by_key):
            return False
        room = dispatch.room
        offset = dispatch.offset_next
        if not room:
            return False
        count_max = FEED_RECORDS_MAX
        if feed.is_old(offset):
            wait_s = self._pace.wait_s(id(self))
            if wait_s:
                self._is_reading = True
                self._loop.call_later(wait_s, self._try_again)
                return False
            if self._pace.has_small_steps:
                count_max = PACED_RECORDS_MAX
        chunk = feed.get(offset)
        if chunk is None:
            self._wait_for(offset)
            return False
        self._damage = None
        first = 0 if chunk.offset == offset else bisect_left(chunk.offsets, offset)
        count = len(chunk.offsets)
        if chunk.offset_next > feed.head:
            # Nothing goes out before its publisher has the answer.
            count = bisect_left(chunk.offsets, feed.head)
            if first >= count:
                self._wait_for(offset)
                return False
        stop = min(first + room, first + count_max, count)
        if chunk.offset_next > self.reserve.below:
            allowed = bisect_left(chunk.offsets, self.reserve.below, first, stop)
            if allowed == first < stop:
                self._ask_for_more(chunk.offsets[first])
                return False
            stop = allowed
        offsets, sizes = chunk.offsets[first:stop], chunk.sizes[first:stop]
        end = chunk.offset_next if stop == len(chunk.offsets) else chunk.offsets[stop]
        dispatch.feed(
            offsets, sizes, offset_end=end, keys=chunk.keys[first:stop] if is_by_key else ()
        )
        self._hold(offsets, chunk.records[first:stop])
        if stop == len(chunk.offsets):
            feed.prefetch(chunk.offset_next)
        missed = chunk.expired_in(offset, end) if chunk.expired else 0
        if missed:
            self.note_missed(missed)
        return True

    def _ask_for_more(self, at: int) -> None:
        """Reserve a window of deliveries from a record on; none of them goes before."""
        end = max(at + 1, self.reserve.wanted(self._dispatch, at))
        self._answers.under_way += self.reserve.ask(end, self._was_reserved, self._schedule)

    def _was_reserved(self, error: FrazilError | None) -> None:
        if error is not None:
            self.warn_seldom("deliveries_not_reserved", error=error)
        self._was_written()

    def _hold(self, offsets: list[int], records: list[Record]) -> None:
        cursor = self._dispatch.cursor
        if offsets and offsets[0] < cursor.end:
            records = [record for record in records if record.offset not in cursor]
            offsets = [record.offset for record in records]
        self._held.add(offsets, records)

    def _let_go(self, offsets: Sequence[int]) -> None:
        """Forget what was known of records that are settled."""
        self._held.drop(offsets)
        self._burials.forget(offsets)
        if self._unread is not None and self._unread[0] in offsets:
            self._unread = None

    def _now_ms(self) -> int:
        # Rounded up a little: a timer that rings at its very time must find it come.
        return int(self._loop.time() * 1000 + 0.001)

    # -- reading ---------------------------------------------------------------------------------

    def _wait_for(self, offset: int) -> None:
        error = self.feed.end_error()
        if error is not None:
            self.end(error)
        elif offset < self.feed.head:
            self._is_reading = True
            self.feed.request(offset, partial(self._was_read, offset))
        else:
            self._damage = None
            if not self._is_following:
                self._is_following = True
                self.feed.follow(self._has_news)

    def _has_news(self) -> None:
        self._is_following = False
        self._schedule()

    def _was_read(self, offset: int, found: Found) -> None:
        self._is_reading = False
        if self.end_error is not None:
            return
        if offset != self._dispatch.offset_next:
            # It was read for a place that was left.
            self._schedule()
            return
        if not isinstance(found, FrazilError):
            self._damage = None
            is_here = self.feed.get(offset) is not None
            # Else it is on its way from one tier to the next.
            self._loop.call_later(0 if is_here else RETRY_S / 20, self._schedule)
            return
        first = found.details.get("offset_first")
        if isinstance(found, NotFound) and isinstance(first, int):
            self._pass_missing(first)
        elif isinstance(found, Closed) or self.feed.end_error() is not None:
            self.end(self.feed.end_error() or found)
        else:
            self._stall(found)

    def _pass_missing(self, first: int) -> None:
        """Go on behind records that a full quota took, and stop at those that should be there."""
        offset = self._dispatch.offset_next
        if self._is_resting or first <= offset:
            self._schedule()
            return
        kept = self._kept_from()
        end = first if kept is None else min(first, kept)
        if end > offset:
            self.note_missed(end - offset)
            self._dispatch.feed((), (), offset_end=end)
        if end == first:
            self._damage = None
            self._schedule()
        else:
            self._stall(not_held(self.topic, offset=max(offset, end), offset_first=first))

    def _kept_from(self) -> int | None:
        """Return the offset from which on all records are kept for it, None if none are.

        Only a full quota with `on_full=expire` moves its hold beyond what is settled, and that is
        durable before anything goes.
        """
        return self.feed.runtime.state.holds.get(HOLD_PREFIX + self.name)

    def note_missed(self, count: int) -> None:
        """Tell that records are gone that were not settled."""
        self.counts.missed += count
        self._warn("subscription_records_expired", records=count)

    def _stall(self, error: FrazilError) -> None:
        """Stop reading for a while: damaged records are not passed over in silence."""
        if self._damage is None or self._damage.message != error.message:
            self._warn("subscription_cannot_read", error=error)
        self._damage, self._is_reading = error, True
        self._loop.call_later(RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._is_reading = False
        self._schedule()

    # -- what must be read again (see `Sender`) --------------------------------------------------

    def is_with(self, consumer: Consumer, offset: int) -> bool:
        """Tell whether a record is still to be delivered to a consumer."""
        is_attached = self._attached.find(consumer) is not None
        return is_attached and self._dispatch.is_with(consumer.consumer_id, offset)

    def left_out(self, consumer: Consumer) -> None:
        """Give a consumer its room back: less came than was counted."""
        found = self._attached.find(consumer)
        if found is not None:
            self.ready(consumer, messages=found.wanted[0], size_bytes=found.wanted[1])

    @property
    def keeps_order(self) -> bool:
        """Whether one consumer gets everything in order."""
        return self.kind in {SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER}

    def sent(self, consumer: Consumer, offsets: list[int]) -> None:
        """Let the time for acks begin: the records go out only now."""
        self._unread = None
        self._dispatch.sent(consumer.consumer_id, offsets, now_ms=self._now_ms())
        self._schedule()

    def is_given_up(self, offset: int) -> bool:
        """Tell whether a full quota took a record away."""
        kept = self._kept_from()
        return kept is None or offset < kept

    def gone(self, offset: int) -> None:
        """Settle a record to read again that is no more."""
        self.note_missed(1)
        self._dispatch.gone(offset)
        self._schedule()

    def put_off(self, consumer: Consumer, offsets: list[int], error: FrazilError) -> None:
        """Try later to deliver records, of which the first cannot be read now."""
        if self.is_with(consumer, offsets[0]):
            self.warn_seldom("record_cannot_be_read_again", offset=offsets[0], error=error)
            self._unread = (offsets[0], error)
        self._dispatch.put_off(consumer.consumer_id, offsets, now_ms=self._now_ms())
        self.left_out(consumer)
        self._schedule()

    # -- what failed too often (see `Burials`) ---------------------------------------------------

    def held_record(self, offset: int) -> Record | None:
        """Return a record that was read and not delivered, and keep it no longer."""
        (record,) = self._held.take([offset])
        return record

    def letter_ended(self, change: Change | None) -> None:
        """Journal that a record is settled, if one is."""
        if change is not None and not change.is_empty:
            self._journal(change)
        self._schedule()

    def _tell(self, notice: Notice) -> None:
        self.counts.dropped += notice.kind is NoticeKind.DROPPED
        tell_notice(notice, seldom=self._seldom, topic=self.topic, subscription=self.name)

    def _warn(self, name: str, **facts: object) -> None:
        warn(name, topic=self.topic, subscription=self.name, **facts)

    def warn_seldom(self, name: str, *, error: FrazilError, **facts: object) -> None:
        """Tell what goes wrong again and again, at once and then each minute."""
        times = self._seldom.times(f"{name}: {error.message}")
        if times:
            self._warn(name, **facts, error=error, times=times)

    # -- changes of itself -----------------------------------------------------------------------

    def configure(self, policy: FailurePolicy, limits: Limits) -> None:
        """Take another policy and window."""
        self.policy = policy
        self._dispatch.configure(policy, limits, now_ms=self._now_ms())
        self._schedule()

    async def rest(self) -> None:
        """Stop delivering, and wait until all acks that came are durable."""
        if self._answers.has_acks:
            self._settle()
        self._is_resting = True
        # Dead letters, too: what becomes of them belongs to the place that is left.
        while self._answers.under_way or self._burials:
            if self._burials:
                await self._burials.end()
            await self._answers.quiet()

    def go_on(self, dispatch: Dispatch | None = None, reserve: Reserve | None = None) -> None:
        """Deliver again, with a `dispatch` that begins somewhere else if one is given."""
        self._is_resting = False
        if dispatch is not None and reserve is not None:
            dispatch.keep_keys(self._dispatch)
            self._dispatch, self.reserve = dispatch, reserve
            self.epoch += 1
            # Acks that came meanwhile are of what is delivered anew.
            self._answer_acks(None)
            self._held.clear()
            self._damage = self._unread = self._burials.error = None
            self._attached.move_to(dispatch, now_ms=self._now_ms())
        self._call_late()
        self._schedule()

    def end(self, error: FrazilError) -> None:
        """End for good: consumers are told, calls that wait are answered with the error."""
        if self.end_error is not None:
            return
        self.end_error = error
        self._timer.set(None)
        self._burials.cancel()
        self._call_late()
        self._answers.end(error)
        self._attached.end(error)
        self._held.clear()
