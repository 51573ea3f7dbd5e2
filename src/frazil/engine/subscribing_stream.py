"""A subscription in a program: deliveries to iterate over, each with its ack.

Records come on the loop's thread and wait in an `Inbox`, a bounded number of them, until the
program takes them. What it takes makes room for more.
"""

from __future__ import annotations

import datetime as dt
import sys
import threading
import weakref
from collections import OrderedDict
from concurrent.futures import Future
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import attrs

from frazil.engine.reading import Start
from frazil.engine.subscribing_settings import change_settings
from frazil.engine.subscription_settings import DURATION_MS_MAX
from frazil.errors import Closed, Conflict, FrazilError, InvalidRequest
from frazil.ingest.messages import Message
from frazil.subscribe import FailurePolicy, SubscriptionType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType
    from typing import Self

    from frazil.engine.delivery import Deliveries, Record, Subscription
    from frazil.engine.runtime import TopicRuntime
    from frazil.engine.subscribing import Subscribing

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
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@attrs.frozen(kw_only=True)
class Request:
    """What somebody who subscribes asks for."""

    name: str
    kind: SubscriptionType
    start: Start
    consumer: str
    key_filters: tuple[str, ...]
    max_unacked: int | None
    policy: FailurePolicy | None
    prefetch: int
    prefetch_bytes: int


class Delivery:
    """One record that is this consumer's to process, until it is acked.

    `value` is a `Message`, or a row as a dict; `attempt` is 1 for the first delivery; `part` is the
    number of the part that has the record, -1 for a topic that is not partitioned.
    """

    __slots__ = ("attempt", "offset", "size_bytes", "source", "time_us", "value")

    def __init__(self, source: Part, record: Record, attempt: int) -> None:
        self.source = source
        self.offset = record.offset
        self.attempt = attempt
        self.time_us = record.time_us
        # Rows are shared with other subscriptions, who must not see what a program does to its own.
        self.value: Any = dict(record.value) if type(record.value) is dict else record.value
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
        """Settle the record: it is not delivered again. Durable on return; twice is fine.

        Raises:
            NotFound: if the topic or the subscription is gone.
            Unavailable: if the disk failed; whether it is settled is not known then.
            Closed: if the engine is closed.
        """
        self.source.ack(self.offset).result()

    def nack(self, *, delay_s: float = 0, reason: str = "") -> None:
        """Give the record back: it is delivered again, or handled as the failure policy says.

        The next delivery waits for the policy's delay, or for `delay_s` if that is longer. Durable
        on return. Raises as `ack` does, and

        Raises:
            InvalidRequest: if the delay is negative.
        """
        self.source.nack(self.offset, delay_s, reason).result()


class Inbox:
    """Deliveries that wait for the program. The loop's thread puts, any thread takes.

    `on_news` is called without a lock, on the loop's thread, when there is something to take.
    """

    def __init__(self, on_news: Callable[[], None] | None = None) -> None:
        self._waiting: OrderedDict[tuple[int, int], Delivery] = OrderedDict()
        self._changed = threading.Condition()
        self._on_news = on_news
        self._error: FrazilError | None = None
        self._is_closed = False

    def put(self, part: Part, deliveries: Sequence[Delivery]) -> None:
        """Take deliveries in, in their order."""
        with self._changed:
            if self._is_closed:
                return
            for each in deliveries:
                key = part.consumer_id, each.offset
                # One that comes again while it still waits here is one record to the program.
                before = self._waiting.pop(key, None)
                if before is not None:
                    part.count(before, -1)
                self._waiting[key] = each
                part.count(each, 1)
            self._changed.notify()
        self._tell()

    def forget(self, part: Part) -> None:
        """Drop what waits of one part: it will be delivered anew."""
        with self._changed:
            for key in [key for key in self._waiting if key[0] == part.consumer_id]:
                part.count(self._waiting.pop(key), -1)

    def end(self, error: FrazilError) -> None:
        """Have everybody who takes see an error from now on."""
        with self._changed:
            if self._error is None:
                self._error = error
            self._waiting.clear()
            self._changed.notify_all()
        self._tell()

    def close(self) -> None:
        """End without an error."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            self._changed.notify_all()
        self._tell()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._is_closed

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
        return bool(self._waiting) or self._is_closed or self._error is not None

    def _next(self) -> Delivery | None:
        if self._is_closed:
            return None
        if self._error is not None:
            # A new one each time: several threads may meet it.
            raise type(self._error)(self._error.message, **self._error.details)
        if not self._waiting:
            return None
        _key, found = self._waiting.popitem(last=False)
        found.source.count(found, -1)
        return found

    def _tell(self) -> None:
        if self._on_news is not None:
            self._on_news()


class Part:
    """One topic, or one part, of what a program subscribed to: a consumer of its subscription."""

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
        self.subscription: Subscription | None = None
        self._inbox = inbox
        self._subscribing = subscribing
        self._kind = kind
        self._messages_max = max(1, request.prefetch // share)
        self._bytes_max = max(1, request.prefetch_bytes // share)
        self._taken = 0
        self._waiting = 0
        self._waiting_bytes = 0

    # -- in the loop's thread --------------------------------------------------------------------

    def deliver(self, records: list[Record], attempts: list[int] | None) -> None:
        """Take records from the subscription."""
        kind = self._kind
        numbers = [1] * len(records) if attempts is None else attempts
        some = [kind(self, each, number) for each, number in zip(records, numbers, strict=True)]
        self._inbox.put(self, some)

    def displaced(self) -> None:
        """End: another consumer of the same name came."""
        self._inbox.end(
            Conflict(
                "another consumer of the same name took the place of this one",
                topic=self.runtime.name,
                subscription=self.name_of_subscription,
                consumer=self.name,
            )
        )

    def ended(self, error: FrazilError) -> None:
        """End: the subscription, its topic or the engine is gone."""
        self._inbox.end(_in_own_words(error))

    def refill(self) -> None:
        """Ask for as much as there is room for."""
        if self.subscription is None:
            return
        self.subscription.ready(
            self,
            messages=max(0, self._messages_max - self._waiting),
            size_bytes=max(0, self._bytes_max - self._waiting_bytes),
        )

    def begin_anew(self) -> None:
        """Drop what waits: the subscription was put somewhere else."""
        self._inbox.forget(self)
        self.refill()

    # -- in any thread ---------------------------------------------------------------------------

    def count(self, delivery: Delivery, number: int) -> None:
        """Count what waits in the inbox, under its lock."""
        self._waiting += number
        self._waiting_bytes += number * delivery.size_bytes

    def took(self) -> None:
        """Note that the program took one; ask for more in time."""
        self._taken += 1
        if self._taken * 2 >= self._messages_max or not self._waiting:
            self._taken = 0
            self._subscribing.give(self.refill)

    def ack(self, offset: int) -> Future[None]:
        """Settle a record; the future is done when that is durable."""
        answer, done = _answer()
        assert self.subscription is not None
        self._subscribing.give(self.subscription.ack, offset, done)
        return answer

    def ack_many(self, offsets: list[int]) -> Future[None]:
        """Settle records; the future is done when all of them are durable, or one was refused."""
        answer, done = _answer()
        left = len(offsets)
        failed: FrazilError | None = None

        def settled(error: FrazilError | None) -> None:
            nonlocal left, failed
            left -= 1
            failed = failed or error
            if not left:
                done(failed)

        self._subscribing.give(self._ack_many, offsets, settled)
        return answer

    def _ack_many(self, offsets: list[int], settled: Callable[[FrazilError | None], None]) -> None:
        assert self.subscription is not None
        for offset in offsets:
            self.subscription.ack(offset, settled)

    def nack(self, offset: int, delay_s: float, reason: str) -> Future[None]:
        """Give a record back; the future is done when that is durable."""
        delay_ms = _milliseconds(delay_s)
        answer, done = _answer()
        self._subscribing.give(self._nack, offset, done, delay_ms, reason)
        return answer

    def _nack(
        self, offset: int, done: Callable[[FrazilError | None], None], delay_ms: int, reason: str
    ) -> None:
        assert self.subscription is not None
        self.subscription.nack(offset, done, delay_ms=delay_ms, reason=reason)


class Stream:
    """The deliveries of one consumer: an iterator and a context manager, for any threads.

    It waits for new records; `timeout_s` of silence end it. Records that are not acked fill the
    subscription's window (`max_unacked`): when it is full nothing more comes, until some are.
    Leaving it, or `close`, gives back what was not acked.
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
        # Somebody may break out of a loop and forget it: it must not keep records from others.
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
        """Give back what was not acked, at once, to other consumers or the next; twice is fine."""
        if self._inbox.is_closed:
            return
        self._inbox.close()
        self._let_go.detach()
        try:
            self._subscribing.call(lambda _all: detach(self._parts))
        except Closed:
            # The engine gave everything back.
            return

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
    by_part: dict[Part, list[int]] = {}
    for each in deliveries:
        by_part.setdefault(each.source, []).append(each.offset)
    return [part.ack_many(offsets) for part, offsets in by_part.items()]


def checked_wait(timeout_s: object) -> float | None:
    """Return how long somebody waits, None for ever.

    Raises:
        InvalidRequest: if it is no time.
    """
    if timeout_s is None:
        return None
    if not isinstance(timeout_s, (int, float)) or isinstance(timeout_s, bool) or not timeout_s >= 0:
        raise InvalidRequest("timeout_s must be seconds from 0 on", timeout_s=timeout_s)
    return min(timeout_s, threading.TIMEOUT_MAX)


async def attach(
    deliveries: Deliveries, subscribing: Subscribing, parts: Sequence[Part], request: Request
) -> str:
    """Open the subscription of each part and attach to all of them, or to none; return its type.

    Raises:
        Conflict: it is exclusive, and somebody else has it.
        NotFound: if a topic is gone.
        InvalidRequest: if the name or the start is not allowed.
    """
    try:
        for part in parts:
            found = await deliveries.open(
                part.runtime.name, request.name, kind=request.kind, start=request.start
            )
            found.attach(part, request.key_filters)
            part.subscription = found
        await _configure(deliveries, subscribing, parts, request)
    except BaseException:
        await detach(parts)
        raise
    for part in parts:
        part.refill()
    first = parts[0].subscription
    assert first is not None
    return first.kind.name.lower()


async def _configure(
    deliveries: Deliveries, subscribing: Subscribing, parts: Sequence[Part], request: Request
) -> None:
    """Set what was asked for: not before it is known that the consumer may take part at all."""
    changes: dict[str, Any] = {}
    if request.max_unacked is not None:
        changes["max_unacked_messages"] = request.max_unacked
    if request.policy is not None:
        changes["policy"] = request.policy
    if changes:
        runtimes = [part.runtime for part in parts]
        await change_settings(deliveries, subscribing.settings, runtimes, request.name, changes)


async def detach(parts: Sequence[Part]) -> None:
    """End the part that consumers take; what they have not acked goes to others."""
    for part in parts:
        if part.subscription is not None:
            part.subscription.detach(part, is_lost=False)


def let_go(subscribing: Subscribing, parts: Sequence[Part]) -> None:
    """Detach consumers of a stream that nobody has any more."""
    try:
        for part in parts:
            if part.subscription is not None:
                subscribing.give(partial(part.subscription.detach, part, is_lost=False))
    except Closed:
        return


def _answer() -> tuple[Future[None], Callable[[FrazilError | None], None]]:
    answer: Future[None] = Future()
    # Whoever waits for it under asyncio may be cancelled; the answer comes all the same.
    answer.set_running_or_notify_cancel()

    def done(error: FrazilError | None) -> None:
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(_in_own_words(error))

    return answer, done


def _milliseconds(delay_s: object) -> int:
    if not isinstance(delay_s, (int, float)) or isinstance(delay_s, bool) or not delay_s >= 0:
        raise InvalidRequest("delay_s must be seconds from 0 on", delay_s=delay_s)
    return int(min(delay_s, DURATION_MS_MAX) * 1000)


def _in_own_words(error: FrazilError) -> FrazilError:
    """Return an error in the words of a program, which knows an engine and no broker."""
    is_plain = isinstance(error, Closed) and not error.details
    return Closed("the engine is closed") if is_plain else error


def _size(value: Any) -> int:
    if type(value) is Message:
        return len(value.payload)
    return sum(map(sys.getsizeof, value.values()))
