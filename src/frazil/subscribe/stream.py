"""Subscriptions in a program: deliveries to iterate over, each with its ack.

The loop's thread puts records into an `Inbox` of bounded size; taking them makes room for more. The
program owns a delivery until its ack, its nack or its end: the ack timed out, the stream was
closed, or the subscription was reset. An ended delivery has no effect, and is removed from the
inbox if the program has not taken it.
"""

from __future__ import annotations

import datetime as dt
import enum
import sys
import threading
import weakref
from collections import OrderedDict
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import attrs
import msgspec

from frazil.errors import Closed, Conflict, FrazilError, InvalidRequest
from frazil.schema import Message
from frazil.subscribe.policy import FailurePolicy, SubscriptionType, type_name_of
from frazil.subscribe.settings import DURATION_MS_MAX, change_settings
from frazil.topic import Start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType
    from typing import Self

    from frazil.subscribe.deliveries import Deliveries
    from frazil.subscribe.feed import Record
    from frazil.subscribe.runtime import Subscribing
    from frazil.subscribe.subscription import Subscription
    from frazil.topic import TopicRuntime

    Answer = Callable[[FrazilError | None], None]

__all__ = [
    "Delivery",
    "Inbox",
    "Part",
    "Request",
    "Stream",
    "ack_all",
    "attach",
    "checked_wait",
    "detach",
    "let_go",
]

_IDS: Final = count(1 << 53)
"""Ids of consumers in a program: those of the wire are smaller."""
_NESTED: Final = frozenset((dict, list, tuple))
"""The types of nested values in a row."""
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@attrs.frozen(kw_only=True)
class Request:
    """The options of one consumer."""

    name: str
    kind: SubscriptionType
    start: Start
    consumer: str
    key_filters: tuple[str, ...]
    max_unacked: int | None
    policy: FailurePolicy | None
    prefetch: int
    prefetch_bytes: int


class Outcome(enum.Enum):
    """The outcome of a delivery: sent to the journal, then durable."""

    ACKING = "acking"
    ACKED = "acked"
    NACKING = "nacking"
    NACKED = "nacked"


class Delivery:
    """One record delivered to this consumer, which owns it until its ack or its time-out.

    `value` is a `Message`, or a row as a dict; `attempt` is 1 for the first delivery; `part` is the
    number of the record's part, -1 for a topic that is not partitioned.
    """

    __slots__ = (
        "attempt",
        "epoch",
        "offset",
        "outcome",
        "size_bytes",
        "source",
        "time_us",
        "value",
    )

    def __init__(self, source: Part, record: Record, attempt: int, epoch: int) -> None:
        self.source = source
        self.offset = record.offset
        self.attempt = attempt
        self.epoch = epoch
        self.outcome: Outcome | None = None
        """The outcome, also while it is not durable: the journal may still refuse it."""
        self.time_us = record.time_us
        self.value: Any = _own(record.value)
        self.size_bytes = _size(self.value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic!r}, {self.offset}, attempt={self.attempt})"

    @property
    def topic(self) -> str:
        """Return the full name of the topic; of a partitioned one, of the part."""
        return self.source.runtime.name

    @property
    def subscription(self) -> str:
        """Return the name of the subscription."""
        return self.source.name_of_subscription

    @property
    def part(self) -> int:
        """Return the number of the part."""
        return self.source.runtime.state.spec.part_index

    @property
    def time(self) -> dt.datetime:
        """Return when the record was appended."""
        return _EPOCH + dt.timedelta(microseconds=self.time_us)

    def ack(self) -> None:
        """Settle the record: it is not delivered again. Durable on return; repeatable.

        Raises:
            Conflict: if the delivery has ended: it timed out, was nacked, its stream was closed, or
                the subscription was reset. The record is delivered again.
            NotFound: if the topic or the subscription was deleted.
            Unavailable: if the disk failed; the record may or may not be settled.
            Closed: if the engine is closed.
        """
        self.source.ack([self]).result()

    def nack(self, *, delay_s: float = 0, reason: str = "") -> None:
        """Return the record: it is delivered again, or handled by the failure policy.

        The next delivery waits for the policy's delay, or for `delay_s` if that is longer. Durable
        on return; repeatable. Raises as `ack` does, and

        Raises:
            InvalidRequest: if the delay is negative.
        """
        self.source.nack(self, delay_s, reason).result()

    def extend(self, seconds: float) -> None:
        """Extend the time for the ack to so long from now, if it would end earlier.

        It is not durable, and neither is the delivery. Raises as `ack` does, and

        Raises:
            InvalidRequest: if it is not a valid time.
        """
        self.source.extend(self, seconds).result()


class Inbox:
    """Deliveries that wait for the program. The loop's thread puts, any thread takes.

    `on_news` is called without a lock, on the loop's thread, when there is something to take.
    """

    def __init__(self, on_news: Callable[[], None] = lambda: None) -> None:
        self._waiting: OrderedDict[tuple[int, int], Delivery] = OrderedDict()
        self._changed = threading.Condition()
        self._news = on_news
        self._error: FrazilError | None = None
        self.is_closed = False

    def put(self, part: Part, deliveries: Sequence[Delivery]) -> None:
        """Take deliveries in, in their order."""
        with self._changed:
            for each in deliveries:
                self._waiting[part.consumer_id, each.offset] = each
                part.count(each, 1)
            # One thread for each delivery: a woken thread takes one and processes it.
            self._changed.notify(len(deliveries))
        self._news()

    def take_out(self, part: Part, offsets: Sequence[int] | None) -> list[int]:
        """Remove a part's queued deliveries, or those of these offsets; return the offsets."""
        if not self._waiting:
            return []
        with self._changed:
            if offsets is None:
                offsets = [offset for of, offset in self._waiting if of == part.consumer_id]
            found = []
            for offset in offsets:
                delivery = self._waiting.pop((part.consumer_id, offset), None)
                if delivery is not None:
                    part.count(delivery, -1)
                    found.append(offset)
            return found

    def end(self, error: FrazilError | None) -> None:
        """Raise an error in all threads that take, or, without one, return None to them."""
        with self._changed:
            self._error = self._error or error
            self.is_closed = self.is_closed or error is None
            self._changed.notify_all()
        self._news()

    def take(self) -> Delivery | None:
        """Return the next delivery, None if there is none now.

        Raises:
            FrazilError: why there will be no more.
        """
        with self._changed:
            return self._next()

    def wait(self, timeout_s: float | None) -> Delivery | None:
        """Return the next delivery as soon as there is one, None if it was closed or time is up.

        Raises:
            FrazilError: why there will be no more.
        """
        with self._changed:
            if not self._waiting:
                self._changed.wait_for(self._has_news, timeout_s)
            return self._next()

    def _has_news(self) -> bool:
        return bool(self._waiting) or self.is_closed or self._error is not None

    def _next(self) -> Delivery | None:
        if self.is_closed:
            return None
        if self._error is not None:
            # A new one each time: several threads may meet it.
            raise type(self._error)(self._error.message, **self._error.details)
        if not self._waiting:
            return None
        _key, found = self._waiting.popitem(last=False)
        found.source.hand_out(found)
        return found


class Part:
    """One consumer of a subscription: of one topic, or of one part of a partitioned one."""

    subscription: Subscription
    """Set by `attach`."""

    def __init__(
        self,
        runtime: TopicRuntime,
        request: Request,
        inbox: Inbox,
        subscribing: Subscribing,
        *,
        kind: type[Delivery],
        share: int,
    ) -> None:
        self.consumer_id = next(_IDS)
        self.name = request.consumer
        self.name_of_subscription = request.name
        self.runtime = runtime
        self._inbox = inbox
        self._subscribing = subscribing
        self._kind = kind
        self._messages_max = max(1, request.prefetch // share)
        self._bytes_max = max(1, request.prefetch_bytes // share)
        self._taken = 0
        self._waiting = 0
        self._waiting_bytes = 0
        self._monotonic = runtime.clock.monotonic
        self._taken_s: dict[int, float] = {}
        """The times at which the program took its unacked deliveries, by offset."""

    # -- in the loop's thread --------------------------------------------------------------------

    def deliver(self, records: list[Record], attempts: list[int] | None) -> None:
        """Take records from the subscription."""
        kind, epoch = self._kind, self.subscription.epoch
        numbers = [1] * len(records) if attempts is None else attempts
        pairs = zip(records, numbers, strict=True)
        self._inbox.put(self, [kind(self, each, number, epoch) for each, number in pairs])

    def give_up(self, offsets: Sequence[int] | None) -> list[int]:
        """Remove the deliveries, of these offsets or all, that the program has not taken."""
        unseen = self._inbox.take_out(self, offsets)
        if unseen:
            self.refill()
        return unseen

    def revoked(self, offsets: Sequence[int] | None) -> None:
        """Remove deliveries that this consumer no longer owns."""
        forget = self._taken_s.pop
        if offsets is None:
            self._taken_s.clear()
            self.give_up(None)
            return
        # Most of them the program took: those do not wait any more.
        unseen = [offset for offset in offsets if forget(offset, None) is None]
        if unseen:
            self.give_up(unseen)

    def held_ms(self, offset: int) -> int | None:
        """Return for how long the program has had a record, None if it did not take it yet."""
        taken_s = self._taken_s.get(offset)
        return None if taken_s is None else int((self._monotonic() - taken_s) * 1000)

    def displaced(self) -> None:
        """End: another consumer of the same name attached."""
        self._inbox.end(
            Conflict(
                "another consumer of the same name replaced this one",
                topic=self.runtime.name,
                subscription=self.name_of_subscription,
                consumer=self.name,
            )
        )

    def ended(self, error: FrazilError) -> None:
        """End: the subscription or its topic was deleted, or the engine is closed."""
        self._inbox.end(_in_own_words(error))

    def refill(self) -> None:
        """Request as many records as there is room for."""
        self.subscription.ready(
            self,
            messages=max(0, self._messages_max - self._waiting),
            size_bytes=max(0, self._bytes_max - self._waiting_bytes),
        )

    def _stale(self, delivery: Delivery) -> FrazilError | None:
        """Return why a delivery has no effect any more, None if it has."""
        if self.subscription.end_error is not None:
            return self.subscription.end_error
        if self._all_stand([delivery]):
            return None
        return Conflict(
            "the delivery is over and has no effect; the record is settled or comes again",
            topic=self.runtime.name,
            subscription=self.name_of_subscription,
            offset=delivery.offset,
            attempt=delivery.attempt,
        )

    def _ack(self, done: Answer, deliveries: list[Delivery]) -> None:
        subscription = self.subscription
        if subscription.postpone(partial(self._ack, done, deliveries)):
            return
        refusal, settled = None, deliveries
        if not self._all_stand(deliveries):
            refusal, settled = self._settleable(deliveries)
        if not settled:
            done(refusal)
            return
        for each in settled:
            each.outcome = Outcome.ACKING
        call = (settled, refusal, done)
        subscription.ack_with([each.offset for each in settled], call, _answer_acks)

    def _settleable(self, deliveries: list[Delivery]) -> tuple[FrazilError | None, list[Delivery]]:
        """Return the deliveries that an ack settles, and why it refuses the others, if any.

        They include repeated acks: those are answered when the first one is durable.
        """
        refusal, settled = None, []
        for each in deliveries:
            if each.outcome is Outcome.ACKED:
                continue
            stale = None if each.outcome is Outcome.ACKING else self._stale(each)
            if stale is None:
                settled.append(each)
            refusal = refusal or stale
        return refusal, settled

    def _all_stand(self, deliveries: list[Delivery]) -> bool:
        """Return whether all deliveries, which differ, have an effect, as mostly they do."""
        subscription = self.subscription
        offsets = [each.offset for each in deliveries]
        epoch = subscription.epoch
        return (
            subscription.end_error is None
            and len(set(offsets)) == len(offsets)
            and all([each.outcome is None and each.epoch == epoch for each in deliveries])  # noqa: C419 - quicker
            and subscription.all_stand(self, offsets, [each.attempt for each in deliveries])
        )

    def _nack(self, done: Answer, delivery: Delivery, delay_ms: int, reason: str) -> None:
        subscription = self.subscription
        if subscription.postpone(partial(self._nack, done, delivery, delay_ms, reason)):
            return
        refusal = None
        if delivery.outcome not in {Outcome.NACKING, Outcome.NACKED}:
            refusal = self._stale(delivery)
        if refusal is not None or delivery.outcome is Outcome.NACKED:
            done(refusal)
            return
        delivery.outcome = Outcome.NACKING
        answer = partial(_answer_nack, delivery, done)
        subscription.nack(delivery.offset, answer, delay_ms=delay_ms, reason=reason)

    def _extend(self, done: Answer, delivery: Delivery, time_ms: int) -> None:
        if self.subscription.postpone(partial(self._extend, done, delivery, time_ms)):
            return
        refusal = self._stale(delivery)
        if refusal is None:
            self.subscription.prolong(delivery.offset, time_ms=time_ms)
        done(refusal)

    # -- in any thread ---------------------------------------------------------------------------

    def count(self, delivery: Delivery, number: int) -> None:
        """Count the deliveries in the inbox, under its lock."""
        self._waiting += number
        self._waiting_bytes += number * delivery.size_bytes

    def hand_out(self, delivery: Delivery) -> None:
        """Record the time when the program takes a delivery, under the inbox's lock."""
        self.count(delivery, -1)
        self._taken_s[delivery.offset] = self._monotonic()

    def took(self) -> None:
        """Record that the program took one; request more in time."""
        self._taken += 1
        if self._taken * 2 >= self._messages_max or not self._waiting:
            self._taken = 0
            self._subscribing.give(self.refill)

    def ack(self, deliveries: list[Delivery]) -> Future[None]:
        """Settle records; the future is done when all are durable, or with why some were not."""
        return self._ask(self._ack, deliveries)

    def nack(self, delivery: Delivery, delay_s: float, reason: str) -> Future[None]:
        """Return a record; the future is done when that is durable."""
        return self._ask(self._nack, delivery, _milliseconds(delay_s, "delay_s"), reason)

    def extend(self, delivery: Delivery, seconds: float) -> Future[None]:
        """Let an ack take longer; the future is done when that counts."""
        return self._ask(self._extend, delivery, _milliseconds(seconds, "seconds"))

    def _ask(self, work: Callable[..., None], *given: Any) -> Future[None]:
        """Have the loop's thread do something; return the future of its answer."""
        answer: Future[None] = Future()
        # The asyncio task that awaits it may be cancelled before the answer.
        answer.set_running_or_notify_cancel()
        self._subscribing.give(work, partial(_answer, answer), *given)
        return answer


def _answer_acks(
    calls: list[tuple[list[Delivery], FrazilError | None, Answer]], error: FrazilError | None
) -> None:
    """Answer the acks of one turn: durable, or refused and to be tried again."""
    outcome = Outcome.ACKED if error is None else None
    for deliveries, refusal, done in calls:
        for each in deliveries:
            each.outcome = outcome
        done(error or refusal)


def _answer_nack(delivery: Delivery, done: Answer, error: FrazilError | None) -> None:
    delivery.outcome = Outcome.NACKED if error is None else None
    done(error)


def _answer(answer: Future[None], error: FrazilError | None) -> None:
    if error is None:
        answer.set_result(None)
    else:
        answer.set_exception(_in_own_words(error))


def _seconds(given: object, name: str) -> float:
    if not isinstance(given, (int, float)) or isinstance(given, bool) or not given >= 0:
        raise InvalidRequest(f"{name} must be seconds from 0 on", **{name: given})
    return given


def _milliseconds(given: object, name: str) -> int:
    return int(min(_seconds(given, name), DURATION_MS_MAX) * 1000)


def _in_own_words(error: FrazilError) -> FrazilError:
    """Convert a broker's error to the embedded engine's words."""
    is_plain = isinstance(error, Closed) and not error.details
    return Closed("the engine is closed") if is_plain else error


def _own(value: Any) -> Any:
    """Return a copy of a record's value for one program.

    Subscriptions share records, so a program's changes to a value must not reach the others.
    """
    if type(value) is Message:
        attributes = value.attributes
        return msgspec.structs.replace(value, attributes=dict(attributes)) if attributes else value
    own = dict(value)
    if not _NESTED.isdisjoint(map(type, own.values())):
        own = {name: _copied(each) for name, each in own.items()}
    return own


def _copied(value: Any) -> Any:
    """Return a value of a row with its lists, structs and maps copied."""
    kind = type(value)
    if kind is dict:
        return {name: _copied(each) for name, each in value.items()}
    return kind(map(_copied, value)) if kind in _NESTED else value


def _size(value: Any) -> int:
    if type(value) is Message:
        return len(value.payload)
    return sum(map(sys.getsizeof, value.values()))


class Stream:
    """The deliveries of one consumer: an iterator and a context manager, for any threads.

    It waits for new records; `timeout_s` without a record end it. Unacked records fill the
    subscription's window (`max_unacked`): a full window stops the delivery until some are acked.
    Leaving the context, or `close`, returns the unacked records.
    """

    def __init__(
        self,
        subscribing: Subscribing,
        runtimes: Sequence[TopicRuntime],
        request: Request,
        *,
        timeout_s: float | None,
    ) -> None:
        self._subscribing = subscribing
        self._timeout_s = timeout_s
        self._inbox = inbox = Inbox()
        self._parts = [
            Part(each, request, inbox, subscribing, kind=Delivery, share=len(runtimes))
            for each in runtimes
        ]
        self.name = request.name
        self.consumer = request.consumer
        self.type = subscribing.call(lambda all_: attach(all_, subscribing, self._parts, request))
        # A program may break out of a loop and drop the stream: it must not keep its records.
        self._let_go = weakref.finalize(self, let_go, subscribing, self._parts)
        self._let_go.atexit = False

    def __repr__(self) -> str:
        return f"Stream({self.name!r}, consumer={self.consumer!r})"

    def __iter__(self) -> Iterator[Delivery]:
        return self

    def __next__(self) -> Delivery:
        found = self.receive(self._timeout_s)
        if found is None:
            raise StopIteration
        return found

    def receive(self, timeout_s: float | None = None) -> Delivery | None:
        """Return the next delivery; None after `timeout_s` without one, or when it was closed.

        Raises:
            Conflict: if another consumer of the same name took over.
            NotFound: if the topic was deleted or the subscription removed.
            Closed: if the engine was closed.
        """
        found = self._inbox.wait(checked_wait(timeout_s))
        if found is not None:
            found.source.took()
        return found

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Settle several deliveries together; durable on return. Raises as `Delivery.ack` does."""
        for answer in ack_all(deliveries):
            answer.result()

    def close(self) -> None:
        """Return unacked records at once, to other consumers or the next one; repeatable."""
        if self._inbox.is_closed:
            return
        self._inbox.end(None)
        self._let_go.detach()
        # A closed engine has already returned all records.
        with suppress(Closed):
            self._subscribing.call(lambda _all: detach(self._parts))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def ack_all(deliveries: Iterable[Delivery]) -> list[Future[None]]:
    """Settle deliveries, those of one part together; the futures are done when that is durable."""
    by_part: dict[Part, list[Delivery]] = {}
    for each in deliveries:
        by_part.setdefault(each.source, []).append(each)
    return [part.ack(some) for part, some in by_part.items()]


def checked_wait(timeout_s: object) -> float | None:
    """Return how long a call waits, None for ever.

    Raises:
        InvalidRequest: if it is not a valid time.
    """
    return (
        None if timeout_s is None else min(_seconds(timeout_s, "timeout_s"), threading.TIMEOUT_MAX)
    )


async def attach(
    deliveries: Deliveries, subscribing: Subscribing, parts: Sequence[Part], request: Request
) -> str:
    """Open the subscription of each part and attach to all of them, or to none; return its type.

    Raises:
        Conflict: it is exclusive, and another consumer has it.
        NotFound: if a topic was deleted.
        InvalidRequest: if the name or the start is not allowed.
    """
    attached: list[Part] = []
    try:
        for part in parts:
            part.subscription = await deliveries.open(
                part.runtime.name, request.name, kind=request.kind, start=request.start
            )
            part.subscription.attach(part, request.key_filters)
            attached.append(part)
        await _configure(deliveries, subscribing, parts, request)
    except BaseException:
        await detach(attached)
        raise
    for part in parts:
        part.refill()
    return type_name_of(parts[0].subscription.kind)


async def _configure(
    deliveries: Deliveries, subscribing: Subscribing, parts: Sequence[Part], request: Request
) -> None:
    """Apply the requested settings, only after the consumer was admitted."""
    asked = {"max_unacked_messages": request.max_unacked, "policy": request.policy}
    changes = {name: value for name, value in asked.items() if value is not None}
    if changes:
        runtimes = [part.runtime for part in parts]
        await change_settings(deliveries, subscribing.settings, runtimes, request.name, changes)


async def detach(parts: Sequence[Part]) -> None:
    """Detach the consumers of the parts; other consumers get their unacked records."""
    for part in parts:
        part.subscription.detach(part)


def let_go(subscribing: Subscribing, parts: Sequence[Part]) -> None:
    """Detach the consumers of a stream that was collected as garbage."""
    with suppress(Closed):
        for part in parts:
            subscribing.give(part.subscription.detach, part)
