"""One subscription at work: feeds its dispatch, writes to consumers, journals acks and attempts.

Everything that comes in is collected; once a turn of the loop `_run` does what follows from it.
Records are kept from their reading to their first delivery only; for another one they are looked up
again, so that the memory of a subscription does not grow with what is unacked.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs

from frazil.engine.delivery.answers import Answer, AnswerAll, Answers, Waiting, answer_each
from frazil.engine.delivery.consumer import Consumer, Counts
from frazil.engine.delivery.held import Held
from frazil.engine.delivery.notices import tell_notice
from frazil.engine.delivery.outbox import Outbox
from frazil.errors import Closed, FrazilError, NotFound, Unavailable
from frazil.subscribe import (
    Action,
    Change,
    DeadLetter,
    Deliver,
    Dispatch,
    FailurePolicy,
    Limits,
    Notice,
    NoticeKind,
    Status,
    SubscriptionType,
)
from frazil.telemetry import warn

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from frazil.engine.delivery.dead_letters import DeadLetters
    from frazil.engine.delivery.feed import TopicFeed
    from frazil.engine.delivery.journalling import Journalling
    from frazil.engine.delivery.pace import Pace
    from frazil.engine.delivery.record import Record

__all__ = ["Consumer", "Subscription"]

FEED_RECORDS_MAX: Final = 512
PACED_RECORDS_MAX: Final = 32
"""Of one that catches up while much is published."""
HELD_BYTES_MAX: Final = 8 << 20
"""KeyShared reads ahead of keys that wait; so far at most."""
TURNS_MAX: Final = 2
"""How often one subscription reads on before others have their turn."""
RETRY_S: Final = 1.0


class _Attached:
    """A consumer that takes part, with what it asked for and what is on its way to it."""

    def __init__(self, consumer: Consumer, filters: Sequence[str], outbox: Outbox) -> None:
        self.consumer = consumer
        self.filters = filters
        self.outbox = outbox
        self.wanted = (0, 0)


class Subscription:
    """One subscription of one topic. All methods belong to the loop's thread."""

    def __init__(
        self,
        name: str,
        feed: TopicFeed,
        journalling: Journalling,
        dead_letters: DeadLetters,
        *,
        dispatch: Dispatch,
        policy: FailurePolicy,
        loop: asyncio.AbstractEventLoop,
        pace: Pace,
    ) -> None:
        self._pace = pace
        self.name = name
        self.feed = feed
        self.policy = policy
        self._journalling = journalling
        self._dead_letters = dead_letters
        self._dispatch = dispatch
        self._loop = loop
        self._attached: dict[int, _Attached] = {}
        self._held = Held()
        self._held_bytes = 0
        self._acks: list[int] = []
        self._acking: dict[AnswerAll, list[Any]] = {}
        """Who waits for the acks of this turn."""
        self._answers = Answers()
        self._under_way = 0
        self._quiet: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_scheduled = False
        self._is_reading = False
        """Also while it waits for the time to read on."""
        self._is_following = False
        self._is_resting = False
        """While the cursor is put somewhere else nothing is delivered."""
        self._late: list[Callable[[], None]] = []
        """Nacks that came meanwhile."""
        self._damage: FrazilError | None = None
        self._letters_error: FrazilError | None = None
        self.end_error: FrazilError | None = None
        self.counts = Counts()

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
        return [each.consumer for each in self._attached.values()]

    @property
    def damage(self) -> FrazilError | None:
        """Return what keeps it from reading on, None while all is well."""
        return self._damage

    def status(self) -> Status:
        """Say what it is doing, and why it is not, if it is not."""
        status = self._dispatch.status()
        if status.paused is None:
            if self._damage is not None:
                return attrs.evolve(status, paused="cannot read")
            if self._letters_error is not None:
                return attrs.evolve(status, paused="dead letters")
            if self._held_bytes >= HELD_BYTES_MAX and self._dispatch.is_hungry:
                return attrs.evolve(status, paused="held bytes")
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
        self._dispatch.attach(
            consumer.consumer_id, name=consumer.name, filters=filters, now_ms=self._now_ms()
        )
        for other in list(self._attached.values()):
            old = other.consumer
            if old.consumer_id == consumer.consumer_id or old.name == consumer.name:
                del self._attached[old.consumer_id]
                other.outbox.close()
                old.displaced()
        outbox = Outbox(consumer, self.feed, self, self._loop)
        self._attached[consumer.consumer_id] = _Attached(consumer, filters, outbox)
        self._schedule()

    def detach(self, consumer: Consumer, *, is_lost: bool = True) -> None:
        """End a consumer's part, if it still has one; what it has not acked goes to others.

        `is_lost` says that its client went, not that the broker ended its part.
        """
        found = self._attached.get(consumer.consumer_id)
        if found is None or found.consumer is not consumer:
            return
        del self._attached[consumer.consumer_id]
        found.outbox.close()
        self._dispatch.detach(consumer.consumer_id, now_ms=self._now_ms(), is_lost=is_lost)
        self._schedule()

    def ready(self, consumer: Consumer, *, messages: int, size_bytes: int) -> None:
        """Say how much a consumer takes from now on; deliveries use it up."""
        found = self._attached.get(consumer.consumer_id)
        if found is None or found.consumer is not consumer:
            return
        found.wanted = (messages, size_bytes)
        had_room = self._dispatch.has_room(consumer.consumer_id)
        self._dispatch.want(consumer.consumer_id, messages=messages, size_bytes=size_bytes)
        if not had_room:
            # With room before, nothing waited for more of it.
            self._schedule()

    # -- acks ------------------------------------------------------------------------------------

    def ack(self, offset: int, done: Answer) -> None:
        """Settle a record; `done` is called when that is durable, or refused."""
        self.ack_with((offset,), done, answer_each)

    def ack_with(self, offsets: Sequence[int], call: object, answer: AnswerAll) -> None:
        """Settle records; `answer` gets all calls of this turn that gave it, once."""
        if self.end_error is not None:
            answer([call], self.end_error)
            return
        self._acks += offsets
        calls = self._acking.get(answer)
        if calls is None:
            self._acking[answer] = [call]
            self._schedule()
        else:
            calls.append(call)

    def nack(self, offset: int, done: Answer, *, delay_ms: int = 0, reason: str = "") -> None:
        """Give a record back; `done` is called when that is durable, or refused."""
        if self.end_error is not None:
            done(self.end_error)
            return
        if self._is_resting:
            again = partial(self.nack, offset, done, delay_ms=delay_ms, reason=reason)
            self._late.append(again)
            return
        self.counts.nacked += 1
        change = self._dispatch.nack(
            offset, now_ms=self._now_ms(), delay_ms=delay_ms, reason=reason
        )
        self._answer_after(change, [(answer_each, [done])])
        self._schedule()

    def _settle(self) -> None:
        offsets, self._acks = self._acks, []
        acking, self._acking = self._acking, {}
        self.counts.acked += len(offsets)
        self._answer_after(self._dispatch.ack(offsets), list(acking.items()))

    def _answer_after(self, change: Change | None, calls: Waiting) -> None:
        self._answers.add(change, calls)
        if change is not None and not change.is_empty:
            self._journal(change)

    def _journal(self, change: Change) -> None:
        self._under_way += 1
        dispatch = self._dispatch

        def written(error: FrazilError | None) -> None:
            begun_s = self._loop.time()
            self._under_way -= 1
            now_ms = self._now_ms()
            if error is None:
                dispatch.confirmed(change, now_ms=now_ms)
                if change.is_settling:
                    self._drop_held(change.offsets)
            else:
                dispatch.failed(change, now_ms=now_ms)
            self._answers.settle(change, error)
            if not self._under_way and self._quiet is not None and not self._quiet.done():
                self._quiet.set_result(None)
            self._schedule()
            self.spend(begun_s)

        self._journalling.add(self.name, change, written)

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
        if self._acks:
            self._settle()
        dispatch = self._dispatch
        for _ in range(TURNS_MAX):
            for action in dispatch.poll(now_ms):
                self._act(action)
            if not dispatch.is_hungry or not self._fill():
                break
        else:
            self._schedule()
        self._set_timer()
        self.spend(begun_s)

    def _act(self, action: Action) -> None:
        if type(action) is Deliver:
            self._deliver(action)
        elif type(action) is Change:
            self._journal(action)
        elif type(action) is DeadLetter:
            self._start(self._bury(action, self._dispatch))
        else:
            assert isinstance(action, Notice)
            self._tell(action)

    def _deliver(self, action: Deliver) -> None:
        found = self._attached.get(action.consumer_id)
        if found is None:
            # It left in this very turn; dispatch knows.
            return
        self.counts.delivered += len(action.offsets)
        if action.attempts is not None:
            self.counts.redelivered += sum(number > 1 for number in action.attempts)
        records = self._held.take(action.offsets)
        if self._held_bytes:
            self._held_bytes -= sum(record.size for record in records if record is not None)
        if None in records or found.outbox.is_busy:
            found.outbox.add(action.offsets, records, action.attempts)
        else:
            found.consumer.deliver(records, action.attempts)  # type: ignore[arg-type]

    def _fill(self) -> bool:
        """Feed what comes next; False if it is not at hand, or not to be read yet."""
        dispatch, feed = self._dispatch, self.feed
        if self._is_reading:
            return False
        is_by_key = dispatch.kind is SubscriptionType.KEY_SHARED
        if dispatch.held and (not is_by_key or self._held_bytes >= HELD_BYTES_MAX):
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
        first = 0 if chunk.offset == offset else bisect_left(chunk.offsets, offset)
        count = len(chunk.offsets)
        if chunk.offset_next > feed.head:
            # Nothing goes out before its publisher has the answer.
            count = bisect_left(chunk.offsets, feed.head)
            if first >= count:
                self._wait_for(offset)
                return False
        stop = min(first + room, first + count_max, count)
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
            self._note_missed(missed)
        return True

    def _hold(self, offsets: list[int], records: list[Record]) -> None:
        cursor = self._dispatch.cursor
        if offsets and offsets[0] < cursor.end:
            records = [record for record in records if record.offset not in cursor]
            offsets = [record.offset for record in records]
        self._held.add(offsets, records)
        if self.kind is SubscriptionType.KEY_SHARED:
            self._held_bytes += sum(record.size for record in records)

    def _drop_held(self, offsets: Sequence[int]) -> None:
        dropped = self._held.drop(offsets)
        if self._held_bytes:
            self._held_bytes -= sum(record.size for record in dropped)

    def _set_timer(self) -> None:
        due_ms = self._dispatch.due_ms()
        if self._timer is not None:
            if due_ms is not None and abs(self._timer.when() * 1000 - due_ms) < 1:
                return
            self._timer.cancel()
            self._timer = None
        if due_ms is not None:
            self._timer = self._loop.call_at(due_ms / 1000, self._timer_rang)

    def _timer_rang(self) -> None:
        self._timer = None
        self._schedule()

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    # -- reading ---------------------------------------------------------------------------------

    def _wait_for(self, offset: int) -> None:
        error = self.feed.end_error()
        if error is not None:
            self.end(error)
        elif offset < self.feed.head:
            self._is_reading = True
            self.feed.request(offset, self._was_read)
        elif not self._is_following:
            self._is_following = True
            self.feed.follow(self._has_news)

    def _has_news(self) -> None:
        self._is_following = False
        self._schedule()

    def _was_read(self, error: FrazilError | None) -> None:
        self._is_reading = False
        if self.end_error is not None:
            return
        if error is None:
            self._damage = None
            is_here = self.feed.get(self._dispatch.offset_next) is not None
            # Else it is on its way from one tier to the next, or read for a place that was left.
            self._loop.call_later(0 if is_here else RETRY_S / 20, self._schedule)
            return
        first = error.details.get("offset_first")
        if isinstance(error, NotFound) and isinstance(first, int):
            self._pass_missing(first)
        elif isinstance(error, Closed) or self.feed.end_error() is not None:
            self.end(self.feed.end_error() or error)
        else:
            self._stall(error)

    def _pass_missing(self, first: int) -> None:
        """Go on behind records that are gone: only a full quota with `on_full=expire` takes them."""
        offset = self._dispatch.offset_next
        if first > offset and not self._is_resting:
            self._note_missed(first - offset)
            self._dispatch.feed((), (), offset_end=first)
        self._schedule()

    def _note_missed(self, count: int) -> None:
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
        found = self._attached.get(consumer.consumer_id)
        is_attached = found is not None and found.consumer is consumer
        return is_attached and self._dispatch.is_with(consumer.consumer_id, offset)

    def left_out(self, consumer: Consumer) -> None:
        """Give a consumer its room back: less came than was counted."""
        found = self._attached.get(consumer.consumer_id)
        if found is not None and found.consumer is consumer:
            self.ready(consumer, messages=found.wanted[0], size_bytes=found.wanted[1])

    def lost(self, offset: int, error: FrazilError) -> None:
        """Take note that a record to deliver again cannot be read."""
        if isinstance(error, NotFound):
            self._note_missed(1)
            self.ack(offset, _ignore)
        elif isinstance(error, Unavailable):
            self._dispatch.put_off(offset, now_ms=self._now_ms())
        else:
            self._warn("record_cannot_be_read_again", offset=offset, error=error)
            self.nack(offset, _ignore, reason=f"the record could not be read: {error}")

    # -- what failed too often -------------------------------------------------------------------

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _bury(self, letter: DeadLetter, dispatch: Dispatch) -> None:
        try:
            record = await self._letter_record(letter.offset)
            if record is not None:
                await self._dead_letters.publish(self, record, letter)
        except FrazilError as error:
            self._letters_error = error
            self._warn("dead_letter_failed", offset=letter.offset, error=error)
            dispatch.dead_letter_failed(letter.offset, now_ms=self._now_ms())
        else:
            self._letters_error = None
            self.counts.dead_letters += record is not None
            change = dispatch.dead_lettered(letter.offset)
            if change is not None and not change.is_empty:
                self._journal(change)
        self._schedule()

    async def _letter_record(self, offset: int) -> Record | None:
        """Return a record that is to be a dead letter, None if a full quota took it away."""
        try:
            return self._held.pop(offset) or await self.feed.fetch(offset)
        except NotFound:
            if self.feed.end_error() is not None:
                raise
            self._note_missed(1)
            return None

    def _tell(self, notice: Notice) -> None:
        self.counts.dropped += notice.kind is NoticeKind.DROPPED
        tell_notice(notice, topic=self.topic, subscription=self.name)

    def _warn(self, name: str, **facts: object) -> None:
        warn(name, topic=self.topic, subscription=self.name, **facts)

    # -- changes of itself -----------------------------------------------------------------------

    def configure(self, policy: FailurePolicy, limits: Limits) -> None:
        """Take another policy and window."""
        self.policy = policy
        self._dispatch.configure(policy, limits, now_ms=self._now_ms())
        self._schedule()

    async def rest(self) -> None:
        """Stop delivering, and wait until all acks that came are durable."""
        if self._acks:
            self._settle()
        self._is_resting = True
        # Dead letters, too: what becomes of them belongs to the place that is left.
        while self._under_way or self._tasks:
            if self._tasks:
                await asyncio.wait(self._tasks)
            else:
                self._quiet = self._loop.create_future()
                await self._quiet

    def go_on(self, dispatch: Dispatch | None = None) -> None:
        """Deliver again, with a `dispatch` that begins somewhere else if one is given."""
        self._is_resting = False
        if dispatch is not None:
            self._dispatch = dispatch
            self._held.clear()
            self._held_bytes = 0
            self._damage = None
            now_ms = self._now_ms()
            for each in self._attached.values():
                each.outbox.clear()
                consumer = each.consumer
                dispatch.attach(
                    consumer.consumer_id, name=consumer.name, filters=each.filters, now_ms=now_ms
                )
                messages, size_bytes = each.wanted
                dispatch.want(consumer.consumer_id, messages=messages, size_bytes=size_bytes)
        late, self._late = self._late, []
        for call in late:
            call()
        self._schedule()

    def end(self, error: FrazilError) -> None:
        """End for good: consumers are told, calls that wait are answered with the error."""
        if self.end_error is not None:
            return
        self.end_error = error
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        acking, self._acking = self._acking, {}
        late, self._late = self._late, []
        for call in late:
            call()
        for answer, calls in acking.items():
            answer(calls, error)
        self._answers.end(error)
        attached, self._attached = self._attached, {}
        for each in attached.values():
            each.outbox.close()
            each.consumer.ended(error)
        self._held.clear()


def _ignore(_error: FrazilError | None) -> None:
    """Take the answer to a call that nobody made."""
