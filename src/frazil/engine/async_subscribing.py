"""Subscriptions under asyncio: the same streams, whose waits do not hold up the loop."""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Any

from frazil.engine.subscribing_calls import PREFETCH, PREFETCH_BYTES, request_of
from frazil.errors import Closed
from frazil.subscribe import Delivery, Inbox, Part, ack_all, attach, checked_wait, detach, let_go

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping
    from types import TracebackType
    from typing import Self

    from frazil.engine.engine import Engine
    from frazil.engine.subscribing_calls import SubscribeCalls
    from frazil.subscribe import FailurePolicy
    from frazil.topic import Start

__all__ = ["AsyncDelivery", "AsyncStream", "AsyncSubscribeCalls", "AsyncSubscriptionCalls"]


class AsyncDelivery(Delivery):
    """One record that is this consumer's to process, until it is acked; see `Delivery`."""

    __slots__ = ()

    async def ack(self) -> None:  # type: ignore[override]  # the same call, awaited
        """Settle the record: it is not delivered again. Durable on return; see `Delivery.ack`."""
        await asyncio.wrap_future(self.source.ack([self]))

    async def nack(  # type: ignore[override]  # the same call, awaited
        self, *, delay_s: float = 0, reason: str = ""
    ) -> None:
        """Give the record back, durable on return; see `Delivery.nack`."""
        await asyncio.wrap_future(self.source.nack(self, delay_s, reason))

    async def extend(self, seconds: float) -> None:  # type: ignore[override]  # the same, awaited
        """Let the ack take so long from now on; see `Delivery.extend`."""
        await asyncio.wrap_future(self.source.extend(self, seconds))


class AsyncStream:
    """The deliveries of one consumer: `async with topic.subscribe(name) as stream`.

    It begins when it is entered, or with the first delivery that is asked for; see `Stream`. It
    belongs to one event loop.
    """

    def __init__(
        self,
        engine: Engine,
        topic: str,
        name: str,
        options: Mapping[str, Any],
        *,
        timeout_s: float | None,
    ) -> None:
        self._engine = engine
        self._topic = topic
        self._options = options
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._inbox = Inbox(_waker(self._loop, self._news))
        self._parts: list[Part] = []
        self._starting: asyncio.Task[None] | None = None
        self._let_go: weakref.finalize[Any, AsyncStream] | None = None
        self.name = name
        self.type = ""
        """The type of the subscription, when it has begun."""
        self.consumer = ""
        """The name of this consumer, when it has begun."""

    def __repr__(self) -> str:
        return f"AsyncStream({self.name!r}, consumer={self.consumer!r})"

    async def _start(self) -> None:
        """Begin, once; who asks meanwhile waits for it."""
        if self._starting is None:
            self._starting = self._loop.create_task(self._open())
        # It is carried to its end: half a consumer could not be taken back.
        await asyncio.shield(self._starting)

    async def _open(self) -> None:
        engine, subscribing = self._engine, self._engine.subscribing
        _spec, runtimes = engine.whole_topic(self._topic)
        request = engine.subscribe_request(runtimes, self.name, self._options)
        await asyncio.to_thread(subscribing.start)
        parts = [
            Part(each, request, self._inbox, subscribing, kind=AsyncDelivery, share=len(runtimes))
            for each in runtimes
        ]
        begun = subscribing.submit(lambda all_: attach(all_, subscribing, parts, request))
        self.type = await asyncio.wrap_future(begun)
        self.consumer = request.consumer
        self._parts = parts
        self._let_go = weakref.finalize(self, let_go, subscribing, parts)
        self._let_go.atexit = False

    def __aiter__(self) -> AsyncIterator[AsyncDelivery]:
        return self

    async def __anext__(self) -> AsyncDelivery:
        found = await self.receive(self._timeout_s)
        if found is None:
            raise StopAsyncIteration
        return found

    async def receive(self, timeout_s: float | None = None) -> AsyncDelivery | None:
        """Return the next delivery; None after `timeout_s` without one, or when it was closed.

        Raises as `Stream.receive` does, and if it did not begin yet as `Topic.subscribe` does.
        """
        wait_s = checked_wait(timeout_s)
        if not self._parts and not self._inbox.is_closed:
            await self._start()
        try:
            async with asyncio.timeout(wait_s):
                found = await self._next()
        except TimeoutError:
            return None
        if found is not None:
            found.source.took()
        return found

    async def _next(self) -> AsyncDelivery | None:
        while True:
            self._news.clear()
            found = self._inbox.take()
            if found is not None:
                assert isinstance(found, AsyncDelivery)
                return found
            if self._inbox.is_closed:
                return None
            await self._news.wait()

    async def ack(self, deliveries: Iterable[AsyncDelivery]) -> None:
        """Settle several deliveries together; durable on return."""
        answers = [asyncio.wrap_future(each) for each in ack_all(deliveries)]
        for done in await asyncio.gather(*answers, return_exceptions=True):
            if done is not None:
                raise done

    async def close(self) -> None:
        """Give back what was not acked, at once, to other consumers or the next; twice is fine."""
        if self._inbox.is_closed:
            return
        self._inbox.close()
        if self._starting is not None:
            await asyncio.wait([self._starting])
        if self._let_go is None:
            return
        self._let_go.detach()
        parts = self._parts
        try:
            ended = self._engine.subscribing.submit(lambda _all: detach(parts))
            await asyncio.wrap_future(ended)
        except Closed:
            # The engine gave everything back.
            return

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class AsyncSubscribeCalls:
    """The calls of a topic under asyncio about its subscriptions; see `Topic` for each."""

    _plain: SubscribeCalls

    def subscribe(
        self,
        name: str,
        *,
        type: str = "shared",  # noqa: A002 - the word that everybody looks for
        start: Start = "latest",
        consumer: str | None = None,
        key_filters: Iterable[str] = (),
        max_unacked: int | None = None,
        policy: FailurePolicy | Mapping[str, Any] | None = None,
        prefetch: int = PREFETCH,
        prefetch_bytes: int | str = PREFETCH_BYTES,
        timeout_s: float | None = None,
    ) -> AsyncStream:
        """Consume the topic's records: `async for delivery in topic.subscribe(name)`.

        Nothing happens before it is entered or iterated over; then as with `Topic.subscribe`.
        """
        options = request_of(
            type=type,
            start=start,
            consumer=consumer,
            key_filters=key_filters,
            max_unacked=max_unacked,
            policy=policy,
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
        )
        wait_s = checked_wait(timeout_s)
        engine = self._plain.engine
        return AsyncStream(engine, self._plain.name, name, options, timeout_s=wait_s)

    async def subscriptions(self) -> list[dict[str, Any]]:
        """Return the topic's subscriptions, ready for JSON; see `Engine.subscriptions`."""
        return await asyncio.to_thread(self._plain.subscriptions)

    async def unsubscribe(self, name: str) -> None:
        """Remove a subscription; durable on return."""
        await asyncio.to_thread(self._plain.unsubscribe, name)

    async def reset_subscription(self, name: str, to: Start) -> dict[str, int]:
        """Put a subscription back or ahead; durable on return."""
        return await asyncio.to_thread(self._plain.reset_subscription, name, to)

    async def subscription_policy(self, name: str) -> FailurePolicy:
        """Return what happens to failed deliveries of a subscription."""
        return await asyncio.to_thread(self._plain.subscription_policy, name)

    async def set_subscription(
        self,
        name: str,
        *,
        policy: FailurePolicy | Mapping[str, Any] | None = None,
        max_unacked: int | None = None,
    ) -> FailurePolicy:
        """Change a subscription's failure policy or window; durable on return, and in use."""
        call = self._plain.set_subscription
        return await asyncio.to_thread(call, name, policy=policy, max_unacked=max_unacked)


class AsyncSubscriptionCalls:
    """The calls of an engine under asyncio about subscriptions; see `Engine` for each."""

    engine: Engine

    async def subscriptions(self, topic: str) -> list[dict[str, Any]]:
        """Return a topic's subscriptions, ready for JSON; see `Engine.subscriptions`."""
        return await asyncio.to_thread(self.engine.subscriptions, topic)

    async def create_subscription(self, topic: str, name: str, **options: Any) -> None:
        """Make a subscription that nobody consumes yet; durable on return."""
        await asyncio.to_thread(self.engine.create_subscription, topic, name, **options)

    async def unsubscribe(self, topic: str, name: str) -> None:
        """Remove a subscription; durable on return."""
        await asyncio.to_thread(self.engine.unsubscribe, topic, name)

    async def reset_subscription(self, topic: str, name: str, to: Start) -> dict[str, int]:
        """Put a subscription back or ahead; durable on return."""
        return await asyncio.to_thread(self.engine.reset_subscription, topic, name, to)

    async def subscription_policy(self, topic: str, name: str) -> FailurePolicy:
        """Return what happens to failed deliveries of a subscription."""
        return await asyncio.to_thread(self.engine.subscription_policy, topic, name)

    async def set_subscription(self, topic: str, name: str, **changes: Any) -> FailurePolicy:
        """Change a subscription's failure policy or window; durable on return, and in use."""
        return await asyncio.to_thread(self.engine.set_subscription, topic, name, **changes)


def _waker(loop: asyncio.AbstractEventLoop, news: asyncio.Event) -> Any:
    def wake() -> None:
        try:
            loop.call_soon_threadsafe(news.set)
        except RuntimeError:
            # The program's loop is closed: nobody waits any more.
            return

    return wake
