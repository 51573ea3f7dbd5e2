"""One subscription at work: feeds its dispatch, writes to consumers, journals acks and attempts.

Calls are collected, and `_run` handles them once a turn of the loop. Records are kept from their
reading to their first delivery; they are read again for later deliveries, so that the memory of a
subscription grows neither with unacked nor with waiting records.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import attrs
import msgspec

from frazil.errors import Closed, FrazilError, NotFound
from frazil.subscribe.cursors import HOLD_PREFIX
from frazil.subscribe.dead_letters import PendingDeadLetters, not_held
from frazil.subscribe.delivery_state import (
    Action,
    Change,
    DeadLetter,
    Deliver,
    Notice,
    NoticeKind,
    Read,
)
from frazil.subscribe.policy import FailurePolicy, Limits, SubscriptionType
from frazil.telemetry import event, warn

if TYPE_CHECKING:
    from frazil.subscribe.cursors import CursorWriter
    from frazil.subscribe.dead_letters import DeadLetterPublisher
    from frazil.subscribe.dispatch import Dispatch, Status
    from frazil.subscribe.feed import Chunk, Found, Record, TopicFeed

__all__ = ["Answer", "AnswerAll", "Consumer", "Counts", "Keeper", "Subscription", "answer_each"]

FEED_RECORDS_MAX: Final = 512
LAGGING_RECORDS_MAX: Final = 256
"""How many records a lagging subscription takes per turn: publishers share the loop with it."""
LAGGING_BUSY_RECORDS_MAX: Final = 64
"""The same while records are being published."""
PAUSE_RECORD_S: Final = 0.00004
"""The pause of a lagging subscription for each record published since its last pause.

A publish takes about half of it on the loop, which both share."""
PAUSE_S_MIN: Final = 0.001
"""A shorter pause is left out and counts for the next one."""
PAUSE_S_MAX: Final = 0.01
HELD_BYTES_MAX: Final = 8 << 20
"""KeyShared reads past keys that wait; values beyond this size are dropped and read again."""
TURNS_MAX: Final = 2
"""How often one subscription reads on before others have their turn."""
RETRY_S: Final = 1.0
REST_CHECK_S: Final = 0.002
BAD_NOTICES: Final = frozenset({NoticeKind.BLOCKED, NoticeKind.DROPPED})

Answer = Callable[[FrazilError | None], None]
"""Called once: with None when the call is durable, else with the error."""
AnswerAll = Callable[[list[Any], FrazilError | None], None]
"""Called once for calls that were made together: those calls, then as `Answer`."""
Calls = list[tuple[AnswerAll, list[Any]]]


class Consumer(Protocol):
    """One stream of a transport. Called on the loop's thread."""

    consumer_id: int
    name: str

    def deliver(self, records: list[Record], attempts: list[int] | None) -> None:
        """Write records, in this order; `attempts` are their deliveries' numbers, None: all 1."""

    def displaced(self) -> None:
        """End: another stream of the same consumer took the place."""

    def ended(self, error: FrazilError) -> None:
        """End: the subscription or its topic is gone."""


@runtime_checkable
class Keeper(Protocol):
    """A consumer that keeps deliveries until a program takes them; called as `Consumer` is."""

    def give_up(self, offsets: Sequence[int] | None) -> list[int]:
        """Drop those of some records, None: of all, that the program has not taken; return them."""

    def revoked(self, offsets: Sequence[int] | None) -> None:
        """Drop records that are not this consumer's any more, None: all."""

    def held_ms(self, offset: int) -> int | None:
        """Return for how long the program has had a record, None if it did not take it yet."""


class Counts(msgspec.Struct):
    """Counters of a subscription since it was opened.

    `missed` are records that expired by a full quota before they were delivered.
    """

    acked: int = 0
    dead_letters: int = 0
    delivered: int = 0
    dropped: int = 0
    missed: int = 0
    nacked: int = 0
    redelivered: int = 0


def answer_each(dones: list[Answer], error: FrazilError | None) -> None:
    """Answer calls that each have a callback of their own."""
    for done in dones:
        done(error)


class Subscription:
    """One subscription of one topic. All methods belong to the loop's thread."""

    def __init__(
        self,
        name: str,
        feed: TopicFeed,
        cursor_writer: CursorWriter,
        dead_letters: DeadLetterPublisher,
        *,
        dispatch: Dispatch,
        policy: FailurePolicy,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.name = name
        self.topic = feed.runtime.name
        self.kind = dispatch.kind
        self.feed = feed
        self.policy = policy
        self.counts = Counts()
        self.epoch = 0
        """Grows with each reset: deliveries from before are over."""
        self.end_error: FrazilError | None = None
        self._cursor_writer = cursor_writer
        self._dispatch = dispatch
        self._loop = loop
        self._time = loop.time
        self._attached: dict[int, Consumer] = {}
        self._keepers: dict[int, Keeper] = {}
        """Those of them that keep deliveries for a program."""
        self._dead_letters = PendingDeadLetters(self, dead_letters, loop)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None
        self._is_scheduled = False
        self._is_reading = False
        """Also while it waits for the time to read on."""
        self._is_following = False
        self._published = feed.runtime.log.journal.record_count
        """How many records had been published to all topics at the last pause."""
        self._damage: FrazilError | None = None
        self._unread: tuple[int, FrazilError] | None = None
        """A record that must be read again, and the error of the last try."""
        self._is_reading_again = False
        self._warned: dict[str, str] = {}
        """The last warning of each kind: a retry that fails the same way is not logged again."""
        self._acks: list[int] = []
        self._ack_calls: dict[AnswerAll, list[Any]] = {}
        """Calls that wait for the acks of this turn."""
        self._repeats: list[tuple[Change, Calls]] = []
        """Calls that wait for changes of earlier calls."""
        self._under_way = 0
        """How many changes the journal has not answered."""
        self._is_resting = False
        """While the cursor is being reset nothing is delivered."""
        self._postponed: list[Callable[[], None]] = []
        """Calls that came while it was resting."""

    def __repr__(self) -> str:
        return f"Subscription({self.topic!r}, {self.name!r})"

    @property
    def consumers(self) -> list[Consumer]:
        """Return the attached consumers."""
        return list(self._attached.values())

    @property
    def damage(self) -> FrazilError | None:
        """Return the error that stops its reading, None if it reads."""
        return self._damage or (self._unread[1] if self._unread else None)

    def status(self) -> Status:
        """Return its state, with the reason if it is paused."""
        status = self._dispatch.status()
        cannot_read = "cannot read" if self.damage is not None else None
        waits = "dead letters" if self._dead_letters.error is not None else None
        return attrs.evolve(status, paused=status.paused or cannot_read or waits)

    # -- consumers -------------------------------------------------------------------------------

    def attach(self, consumer: Consumer, filters: Sequence[str] = ()) -> None:
        """Add a consumer; it gets nothing before `ready`. One of the same name is displaced.

        Raises:
            Conflict: the subscription is Exclusive and has another consumer.
            FrazilError: the error that ended the subscription.
        """
        if self.end_error is not None:
            raise self.end_error
        own_id, name = consumer.consumer_id, consumer.name
        old = next((each for each in self._attached.values() if each.name == name), None)
        if old is not None:
            self._give_up_unseen(old)
            self._forget(old)
            old.displaced()
        self._dispatch.attach(own_id, name=name, filters=filters, now_ms=self._now_ms())
        self._attached[own_id] = consumer
        if isinstance(consumer, Keeper):
            self._keepers[own_id] = consumer
        self._warned.pop(NoticeKind.SKIPPED.value, None)
        self._schedule()

    def detach(self, consumer: Consumer) -> None:
        """Remove a consumer, if it is attached; its unacked records go to others."""
        if not self._has(consumer):
            return
        self._give_up_unseen(consumer)
        self._forget(consumer)
        self._dispatch.detach(consumer.consumer_id, now_ms=self._now_ms())
        self._warned.pop(NoticeKind.SKIPPED.value, None)
        self._schedule()

    def ready(self, consumer: Consumer, *, messages: int, size_bytes: int) -> None:
        """Set how much a consumer takes from now on; deliveries use it up."""
        if self._attached.get(consumer.consumer_id) is not consumer:
            return
        was_full = self._dispatch.want(
            consumer.consumer_id, messages=messages, size_bytes=size_bytes
        )
        if was_full:
            # With room before, nothing waited for more of it.
            self._schedule()

    def _has(self, consumer: Consumer) -> bool:
        """Return whether a consumer is attached, and no other in its place."""
        return self._attached.get(consumer.consumer_id) is consumer

    def _forget(self, consumer: Consumer) -> None:
        del self._attached[consumer.consumer_id]
        self._keepers.pop(consumer.consumer_id, None)

    def _give_up_unseen(self, consumer: Consumer) -> None:
        """Take back the records that a program has not taken: those did not fail."""
        keeper = self._keepers.get(consumer.consumer_id)
        if keeper is not None:
            self._dispatch.take_back(consumer.consumer_id, keeper.give_up(None))

    def _revoke(self, offsets: Sequence[int]) -> None:
        """Take records from the programs that have not taken them yet."""
        for keeper in self._keepers.values():
            keeper.revoked(offsets)

    def _spare_unseen(self, now_ms: int) -> None:
        """Let the time for an ack run from the moment a program took the record.

        On Shared a record that its program has not taken in time goes to another consumer.
        """
        dispatch, timeout_ms = self._dispatch, self.policy.ack_timeout_ms
        is_for_others = self.kind is SubscriptionType.SHARED and len(self._attached) > 1
        unseen: dict[int, list[int]] = {}
        for offset in dispatch.overdue(now_ms):
            holder = dispatch.holder(offset)
            if holder is None or holder not in self._keepers:
                continue
            held_ms = self._keepers[holder].held_ms(offset)
            if held_ms is None:
                unseen.setdefault(holder, []).append(offset)
                dispatch.prolong(offset, until_ms=now_ms + timeout_ms)
            elif held_ms < timeout_ms:
                dispatch.prolong(offset, until_ms=now_ms + timeout_ms - held_ms)
        for holder, offsets in unseen.items() if is_for_others else ():
            dispatch.take_back(holder, self._keepers[holder].give_up(offsets))

    # -- acks ------------------------------------------------------------------------------------

    def ack(self, offset: int, done: Answer) -> None:
        """Settle a record; `done` is called when that is durable, or refused."""
        self.ack_with((offset,), done, answer_each)

    def ack_with(self, offsets: Sequence[int], call: object, answer: AnswerAll) -> None:
        """Settle records; `answer` is called once with all calls of this turn that gave it."""
        if self.end_error is not None:
            answer([call], self.end_error)
            return
        self._acks += offsets
        calls = self._ack_calls.get(answer)
        if calls is not None:
            calls.append(call)
            return
        if not self._ack_calls:
            self._cursor_writer.settle_soon(self._settle)
        self._ack_calls[answer] = [call]

    def nack(self, offset: int, done: Answer, *, delay_ms: int = 0, reason: str = "") -> None:
        """Give a record back; `done` is called when that is durable, or refused."""
        if self.end_error is not None:
            done(self.end_error)
            return
        if self.postpone(partial(self.nack, offset, done, delay_ms=delay_ms, reason=reason)):
            return
        self.counts.nacked += 1
        change = self._dispatch.nack(
            offset, now_ms=self._now_ms(), delay_ms=delay_ms, reason=reason
        )
        self._answer_after(change, [(answer_each, [done])])
        self._schedule()

    def postpone(self, call: Callable[[], None]) -> bool:
        """Keep a call for later if the subscription is being reset; return whether it is."""
        if self._is_resting and self.end_error is None:
            self._postponed.append(call)
            return True
        return False

    def all_stand(self, consumer: Consumer, offsets: list[int], attempts: list[int]) -> bool:
        """Return whether all of these deliveries still are a consumer's."""
        return self._has(consumer) and self._dispatch.are_with(
            consumer.consumer_id, offsets, attempts
        )

    def prolong(self, offset: int, *, time_ms: int) -> None:
        """Let the ack of a record in flight take so long from now on."""
        self._dispatch.prolong(offset, until_ms=self._now_ms() + time_ms)
        self._schedule()

    def _settle(self) -> None:
        """Settle what was acked in this turn; nothing can be delivered before that is durable."""
        if self._is_resting or not self._ack_calls:
            return
        offsets, self._acks = self._acks, []
        calls, self._ack_calls = list(self._ack_calls.items()), {}
        self.counts.acked += len(offsets)
        change = self._dispatch.ack(offsets, head=self.feed.head)
        self._answer_after(change, calls)

    def _answer_after(self, change: Change | None, calls: Calls) -> None:
        """Answer calls when a change, and those it repeats, are durable; at once if None."""
        if change is None:
            _answer(calls, None)
        elif not change.after:
            self._journal(change, calls)
        else:
            self._repeats.append((change, calls))
            if not change.is_empty:
                self._journal(change)

    def _journal(self, change: Change, calls: Sequence[tuple[AnswerAll, list[Any]]] = ()) -> None:
        self._under_way += 1
        answer = partial(self._written, change, calls)
        self._cursor_writer.add(self.feed.runtime, self.name, change, answer)

    def _written(
        self,
        change: Change,
        calls: Sequence[tuple[AnswerAll, list[Any]]],
        error: FrazilError | None,
    ) -> None:
        """Apply the journal's answer to a change, then answer its calls."""
        if error is None:
            now_ms = int(self._time() * 1000 + 0.001)
            self._dispatch.confirmed(change, now_ms=now_ms)
            self._revoke(change.offsets)
            if not change.attempts:
                if self._dead_letters.error is not None:
                    self._dead_letters.forget(change.offsets)
                if self._unread is not None and self._unread[0] in change.offsets:
                    self._unread = None
        else:
            change.error = error
            self._dispatch.failed(change, now_ms=self._now_ms())
        for answer, given in calls:
            answer(given, error)
        if self._repeats:
            self._answer_repeats()
        self._under_way -= 1
        is_idle = self._is_following and self._dispatch.is_idle
        if not self._is_scheduled and (error is not None or not is_idle):
            self._run()

    def _answer_repeats(self) -> None:
        waiting, self._repeats = self._repeats, []
        for change, calls in waiting:
            needed = [*change.after, *([] if change.is_empty else [change])]
            if any(each.is_open for each in needed):
                self._repeats.append((change, calls))
            else:
                _answer(calls, next((each.error for each in needed if each.error), None))

    # -- the turn --------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        # Rounded up a little: a timer that rings at its very time must find it come.
        return int(self._time() * 1000 + 0.001)

    def _schedule(self) -> None:
        if not self._is_scheduled and self.end_error is None:
            self._is_scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        if self.end_error is not None or self._is_resting:
            return
        now_ms = int(self._time() * 1000 + 0.001)
        dispatch, is_by_key = self._dispatch, self.kind is SubscriptionType.KEY_SHARED
        if self._keepers:
            self._spare_unseen(now_ms)
        for _ in range(TURNS_MAX):
            held = dispatch.held
            is_filled = (not held or is_by_key) and self._fill()
            for action in dispatch.poll(now_ms):
                if type(action) is Deliver:
                    self._deliver(action)
                else:
                    self._act(action)
            # A consumer may have room for more than the held records.
            if self._is_following or not (is_filled or dispatch.held < held):
                break
        else:
            self._schedule()
        if dispatch.held_bytes > HELD_BYTES_MAX:
            dispatch.trim(HELD_BYTES_MAX)
        due_ms = dispatch.due_ms()
        if due_ms != self._timer_ms:
            self._set_timer(due_ms)

    def _set_timer(self, due_ms: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = due_ms
        self._timer = (
            None if due_ms is None else self._loop.call_at(due_ms / 1000, self._timer_rang)
        )

    def _timer_rang(self) -> None:
        self._timer = self._timer_ms = None
        self._schedule()

    def _act(self, action: Action) -> None:
        if type(action) is Change:
            self._revoke(action.offsets)
            self._journal(action)
        elif type(action) is Read:
            if not self._is_reading_again:
                self._is_reading_again = True
                self._read_again(self._dispatch)
        elif type(action) is DeadLetter:
            self._dead_letters.begin(action, self._dispatch)
        else:
            assert isinstance(action, Notice)
            self._report(action)

    def _deliver(self, action: Deliver) -> None:
        consumer = self._attached.get(action.consumer_id)
        if consumer is None:
            # It left in this very turn; dispatch knows.
            return
        self.counts.delivered += len(action.offsets)
        if action.attempts is not None:
            self.counts.redelivered += sum(number > 1 for number in action.attempts)
        consumer.deliver(action.values, action.attempts)

    def _fill(self) -> bool:
        """Feed the next records, if one could go out; return False if they are not at hand."""
        dispatch, feed = self._dispatch, self.feed
        if self._is_following or self._is_reading or not dispatch.is_hungry:
            return False
        offset, room = dispatch.offset_next, dispatch.room
        chunk = feed.get(offset) if room else None
        if chunk is not None:
            is_lagging, pause_s, records_max = feed.is_old(offset), 0.0, FEED_RECORDS_MAX
            if is_lagging:
                pause_s = self._pause_s()
                records_max = LAGGING_BUSY_RECORDS_MAX if pause_s else LAGGING_RECORDS_MAX
            records_max = min(room, records_max)
            first, stop = chunk.span(offset, feed.head, records_max, HELD_BYTES_MAX)
            # Nothing goes out before its publisher has the answer.
            if first < stop or chunk.offset_next <= feed.head:
                self._feed(chunk, first, stop, is_lagging=is_lagging)
                if pause_s:
                    self._is_reading = True
                    self._loop.call_later(pause_s, self._try_again)
                return True
        if room:
            self._wait_for(offset)
        return False

    def _feed(self, chunk: Chunk, first: int, stop: int, *, is_lagging: bool) -> None:
        """Feed the records of a chunk from index `first` on to `stop`."""
        dispatch, offsets = self._dispatch, chunk.offsets
        offset, is_all = dispatch.offset_next, stop == len(offsets)
        end = chunk.offset_next if is_all else offsets[stop]
        self._damage = None
        dispatch.feed(
            offsets[first:stop],
            chunk.sizes[first:stop],
            offset_end=end,
            keys=chunk.keys[first:stop] if self.kind is SubscriptionType.KEY_SHARED else (),
            values=chunk.records[first:stop],
        )
        if is_lagging and is_all:
            self.feed.passed(chunk)
            self.feed.prefetch(end)
        if chunk.expired:
            self.note_missed(chunk.expired_in(offset, end))
        if end >= self.feed.head:
            self._follow(end)

    def _pause_s(self) -> float:
        """Return the pause of a lagging subscription, 0 for none, and begin to count anew."""
        published = self.feed.runtime.log.journal.record_count
        pause_s = min((published - self._published) * PAUSE_RECORD_S, PAUSE_S_MAX)
        if pause_s < PAUSE_S_MIN:
            return 0
        self._published = published
        return pause_s

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
            self._follow(offset)

    def _follow(self, offset: int) -> None:
        """Have the feed tell when there are records from `offset` on."""
        if not self._is_following:
            self._is_following = True
            self.feed.follow(self._has_news, offset)

    def _has_news(self) -> None:
        self._is_following = False
        if not self._is_scheduled:
            self._run()

    def _was_read(self, offset: int, found: Found) -> None:
        self._is_reading = False
        if self.end_error is not None:
            return
        if offset != self._dispatch.offset_next or not isinstance(found, FrazilError):
            # It is at hand now, or was read for an offset from before a reset.
            self._schedule()
            return
        first = found.details.get("offset_first")
        if isinstance(found, NotFound) and isinstance(first, int):
            self._pass_missing(first)
        elif isinstance(found, Closed) or self.feed.end_error() is not None:
            self.end(self.feed.end_error() or found)
        else:
            self._stall(found)

    def _pass_missing(self, first: int) -> None:
        """Pass records that expired by a full quota; stop at those that should be there."""
        offset = self._dispatch.offset_next
        if self._is_resting or first <= offset:
            self._schedule()
            return
        kept = self._kept_from()
        end = max(offset, first if kept is None else min(first, kept))
        self.note_missed(end - offset)
        self._dispatch.feed((), (), offset_end=end)
        if end == first:
            self._damage = None
            self._schedule()
        else:
            self._stall(not_held(self.topic, offset=end, offset_first=first))

    def _kept_from(self) -> int | None:
        """Return the offset from which on all records are held for it, None if none are.

        Only a full quota with `on_full=expire` moves its hold beyond the settled records, and that
        is durable before anything is removed.
        """
        return self.feed.runtime.state.holds.get(HOLD_PREFIX + self.name)

    def note_missed(self, count: int) -> None:
        """Count and report records that are gone and were not settled, if there are any."""
        if count:
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

    # -- records that are read again for another delivery ----------------------------------------

    def _read_again(self, dispatch: Dispatch) -> None:
        """Read the values of `dispatch.reading`, the first one first."""
        while dispatch is self._dispatch and self.end_error is None:
            offset = next(iter(dispatch.reading), None)
            if offset is None:
                self._is_reading_again = False
                self._schedule()
                return
            chunk = self.feed.get(offset)
            if chunk is None:
                self.feed.request(offset, partial(self._was_read_again, dispatch, offset))
                return
            self._load(dispatch, chunk)

    def _was_read_again(self, dispatch: Dispatch, offset: int, found: Found) -> None:
        if dispatch is not self._dispatch:
            # It was read for a dispatch from before a reset.
            return
        if not isinstance(found, FrazilError):
            # At once: the next read may evict it from the cache.
            self._load(dispatch, found)
        elif offset in dispatch.reading:
            if isinstance(found, NotFound) and self.is_given_up(offset):
                self._gone(dispatch, offset)
            else:
                self.warn_once("record_cannot_be_read_again", offset=offset, error=found)
                self._unread = (offset, found)
                dispatch.put_off(offset, now_ms=self._now_ms())
        self._read_again(dispatch)

    def _load(self, dispatch: Dispatch, chunk: Chunk) -> None:
        """Give dispatch what a chunk has of `dispatch.reading`."""
        for offset in [each for each in dispatch.reading if each in chunk]:
            record = chunk.record(offset)
            if record is None:
                self._gone(dispatch, offset)
            else:
                self._unread = None
                self._warned.pop("record_cannot_be_read_again", None)
                dispatch.loaded(offset, record)

    def _gone(self, dispatch: Dispatch, offset: int) -> None:
        """Settle a record that does not exist any more."""
        self.note_missed(1)
        dispatch.gone(offset)

    def is_given_up(self, offset: int) -> bool:
        """Return whether a record expired by a full quota."""
        kept = self._kept_from()
        return kept is None or offset < kept

    def dead_letter_ended(self, change: Change | None) -> None:
        """Journal the settling of a record whose dead letter is durable."""
        if change is not None and not change.is_empty:
            self._journal(change)
        self._schedule()

    # -- log events ------------------------------------------------------------------------------

    def _report(self, notice: Notice) -> None:
        """Log a notice; skipped records only once until a consumer comes or leaves."""
        kind = notice.kind
        if kind is NoticeKind.SKIPPED:
            if kind.value in self._warned:
                return
            self._warned[kind.value] = ""
        self.counts.dropped += kind is NoticeKind.DROPPED
        facts = {name: fact for name, fact in notice._asdict().items() if fact is not None}
        del facts["kind"]
        level = logging.WARNING if kind in BAD_NOTICES else logging.INFO
        name = f"subscription_{kind.value}"
        event(name, level=level, **facts, topic=self.topic, subscription=self.name)

    def _warn(self, name: str, **facts: object) -> None:
        warn(name, topic=self.topic, subscription=self.name, **facts)

    def warn_once(self, name: str, *, error: FrazilError, **facts: object) -> None:
        """Log an error that is retried, unless the last try failed the same way."""
        if self._warned.get(name) != error.message:
            self._warned[name] = error.message
            self._warn(name, **facts, error=error)

    # -- reset and end ---------------------------------------------------------------------------

    def configure(self, policy: FailurePolicy, limits: Limits) -> None:
        """Set another policy and window."""
        self.policy = policy
        self._dispatch.configure(policy, limits, now_ms=self._now_ms())
        self._schedule()

    async def rest(self) -> None:
        """Stop delivering, and wait until all acks that came are durable."""
        self._settle()
        self._is_resting = True
        # Dead letters, too: they belong to the cursor before the reset.
        while self._under_way or self._dead_letters.tasks:  # noqa: ASYNC110 - for two reasons, and rare
            await asyncio.sleep(REST_CHECK_S)

    def go_on(self, dispatch: Dispatch | None = None) -> None:
        """Deliver again, with the `dispatch` of another place after a reset."""
        self._is_resting = False
        if dispatch is not None:
            dispatch.take_over(self._dispatch)
            self._dispatch = dispatch
            self._is_following = False
            self.epoch += 1
            # Acks that came meanwhile are of records that are delivered again.
            calls, self._ack_calls, self._acks = list(self._ack_calls.items()), {}, []
            _answer(calls, None)
            self._damage = self._unread = self._dead_letters.error = None
            self._is_reading_again = False
            for keeper in self._keepers.values():
                keeper.revoked(None)
        self._settle()
        self._call_postponed()
        self._schedule()

    def _call_postponed(self) -> None:
        postponed, self._postponed = self._postponed, []
        for call in postponed:
            call()

    def end(self, error: FrazilError) -> None:
        """End for good: consumers and calls that wait get the error."""
        if self.end_error is not None:
            return
        self.end_error = error
        self._set_timer(None)
        self._dead_letters.cancel()
        self._call_postponed()
        calls, self._ack_calls, self._acks = list(self._ack_calls.items()), {}, []
        _answer(calls, error)
        repeats, self._repeats = self._repeats, []
        for _change, waiting in repeats:
            _answer(waiting, error)
        attached, self._attached = self._attached, {}
        for each in attached.values():
            each.ended(error)


def _answer(calls: Calls, error: FrazilError | None) -> None:
    for answer, given in calls:
        answer(given, error)
