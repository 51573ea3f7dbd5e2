"""A subscription in a program: deliveries to iterate over, each with its ack."""

from __future__ import annotations

import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from frazil.errors import Closed, InvalidRequest
from frazil.subscribe.administration import change_settings
from frazil.subscribe.inbox import Delivery, Inbox, Part
from frazil.subscribe.policy import FailurePolicy, SubscriptionType
from frazil.topic import Start

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Future
    from types import TracebackType
    from typing import Self

    from frazil.subscribe.deliveries import Deliveries
    from frazil.subscribe.runtime import Subscribing
    from frazil.topic import TopicRuntime

__all__ = ["Request", "Stream", "ack_all", "attach", "checked_wait", "detach", "let_go"]


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
    by_part: dict[Part, list[Delivery]] = {}
    for each in deliveries:
        by_part.setdefault(each.source, []).append(each)
    return [part.ack(some) for part, some in by_part.items()]


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
