"""The API for asyncio. Appends, readers and deliveries wait on the event loop, without a thread.

Every other call runs the synchronous one in a worker thread. Publishes enter the thread only after
their admission, so that no thread waits for memory.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import weakref
from collections.abc import Callable, Coroutine
from itertools import islice
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar, cast

from frazil.engine.engine import Engine, open_engine
from frazil.engine.partitioned import PartitionedTopic
from frazil.engine.topic import Topic, TopicHandle
from frazil.errors import Closed, NotFound
from frazil.log import PLAIN
from frazil.model import Ack
from frazil.subscribe import Delivery, Inbox, Part, ack_all, attach, checked_wait, detach, let_go
from frazil.topic import (
    WAITED_FOR,
    AsyncReader,
    joined_ack,
    wait_admitted_async,
    wait_reached_async,
    waker,
    when_room_async,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping
    from types import TracebackType
    from typing import Self

    import pyarrow as pa

    from frazil.log.codec import Entry
    from frazil.query import Result
    from frazil.topic import Prepared, TopicRuntime

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
Acks = TypeVar("Acks", Ack, list[Ack])

FEED_CHANGES: Final = 256
"""The number of changes of a feed that are read together."""


def _threaded(
    method: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """Return a method that runs the synchronous call in a worker thread."""

    @functools.wraps(method)
    async def call(self: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(method, self.plain, *args, **kwargs)

    return cast("Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]", call)


def _published(
    method: Callable[Concatenate[Any, P], Acks],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, Acks]]:
    """Return such a method for a publish; it waits for admission and tiers on the event loop."""

    @functools.wraps(method)
    async def call(self: Any, *args: P.args, **kwargs: P.kwargs) -> Acks:
        runtimes: list[TopicRuntime] = self.runtimes
        level: Any = kwargs.get("ack")
        await wait_admitted_async(runtimes[0])
        if level in WAITED_FOR:
            runtimes[0].sender(level, None, None, 0)
            kwargs["ack"] = "fsynced"
        found = await asyncio.to_thread(method, self.plain, *args, **kwargs)
        answer: Any = found
        acks = [answer] if isinstance(answer, Ack) else answer
        await wait_reached_async(level, [(runtimes[max(each.part, 0)], each) for each in acks])
        return found

    return cast("Callable[Concatenate[Any, P], Coroutine[Any, Any, Acks]]", call)


def _as(
    _method: Callable[Concatenate[Any, P], Any],
) -> Callable[[Callable[..., R]], Callable[Concatenate[Any, P], R]]:
    """Give a method the parameters of the synchronous one."""

    def decorate(own: Callable[..., R]) -> Callable[Concatenate[Any, P], R]:
        doc = own.__doc__
        wrapped: Callable[Concatenate[Any, P], R] = functools.wraps(_method)(own)
        wrapped.__doc__ = doc
        return wrapped

    return decorate


class AsyncDelivery(Delivery):
    """One record that is delivered to this consumer, until it is acked; see `Delivery`."""

    __slots__ = ()

    async def ack(self) -> None:  # type: ignore[override]  # the same call, awaited
        """Settle the record: it is not delivered again. Durable on return; see `Delivery.ack`."""
        await asyncio.wrap_future(self.source.ack([self]))

    async def nack(  # type: ignore[override]  # the same call, awaited
        self, *, delay_s: float = 0, reason: str = ""
    ) -> None:
        """Return the record to the subscription, durably on return; see `Delivery.nack`."""
        await asyncio.wrap_future(self.source.nack(self, delay_s, reason))

    async def extend(self, seconds: float) -> None:  # type: ignore[override]  # the same, awaited
        """Set the ack timeout to `seconds` from now; see `Delivery.extend`."""
        await asyncio.wrap_future(self.source.extend(self, seconds))


class AsyncStream:
    """The deliveries of one consumer: `async with topic.subscribe(name) as stream`.

    The stream begins when it is entered, or with the first call of `receive`; see `Stream`. It
    belongs to one event loop.
    """

    def __init__(
        self, topic: TopicHandle, name: str, options: Mapping[str, Any], timeout_s: float | None
    ) -> None:
        self._subscriptions = topic.engine.subscriptions
        self._topic = topic.name
        self._options = options
        self._timeout_s = checked_wait(timeout_s)
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._inbox = Inbox(waker(self._loop, self._news.set))
        self._parts: list[Part] = []
        self._starting: asyncio.Task[None] | None = None
        self._let_go: weakref.finalize[Any, AsyncStream] | None = None
        self.name = name
        self.type = ""
        """The type of the subscription, once the stream has begun."""
        self.consumer = ""
        """The name of this consumer, once the stream has begun."""

    def __repr__(self) -> str:
        return f"AsyncStream({self.name!r}, consumer={self.consumer!r})"

    async def _start(self) -> None:
        """Begin the stream once; concurrent calls wait for the first one."""
        if self._starting is None:
            self._starting = self._loop.create_task(self._open())
        # A cancelled caller does not cancel the start: a half-started consumer cannot be undone.
        await asyncio.shield(self._starting)

    async def _open(self) -> None:
        subscribing = self._subscriptions.runtime
        runtimes, request = self._subscriptions.request(self._topic, self.name, **self._options)
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
        """Return the next delivery; None after `timeout_s` without one, or if it was closed.

        Raises the errors of `Stream.receive`, and those of `Topic.subscribe` if it begins here.
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
        """Return unacked records at once, for other or later consumers; may be called twice."""
        if self._inbox.is_closed:
            return
        self._inbox.end(None)
        if self._starting is not None:
            await asyncio.wait([self._starting])
        if self._let_go is None:
            return
        self._let_go.detach()
        parts = self._parts
        try:
            ended = self._subscriptions.runtime.submit(lambda _all: detach(parts))
            await asyncio.wrap_future(ended)
        except Closed:
            # The engine has returned all records.
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


class _AsyncHandle:
    """The common calls of the handles of plain and partitioned topics; see `Topic` for each."""

    plain: Topic | PartitionedTopic
    runtimes: list[TopicRuntime]

    @property
    def name(self) -> str:
        """Return the full name, `/namespace/name`."""
        return self.plain.name

    @property
    def schema(self) -> pa.Schema:
        """Return the current columns."""
        return self.plain.schema

    @_as(TopicHandle.subscribe)
    def subscribe(
        self, name: str, *, timeout_s: float | None = None, **options: Any
    ) -> AsyncStream:
        """Consume the topic's records: `async for delivery in topic.subscribe(name)`.

        The consumer is created when the stream is entered or iterated over; see `Topic.subscribe`.
        """
        filters = options.get("key_filters")
        if filters is not None and not isinstance(filters, str):
            options["key_filters"] = tuple(filters)
        return AsyncStream(self.plain, name, options, timeout_s)

    subscriptions = _threaded(TopicHandle.subscriptions)
    unsubscribe = _threaded(TopicHandle.unsubscribe)
    reset_subscription = _threaded(TopicHandle.reset_subscription)
    subscription_policy = _threaded(TopicHandle.subscription_policy)
    set_subscription = _threaded(TopicHandle.set_subscription)

    @_as(Topic.changes)
    async def changes(self, *args: Any, **options: Any) -> AsyncIterator[dict[str, Any]]:
        """Yield the change feed up to the current head; see `Topic.changes`."""
        feed = self.plain.changes(*args, **options)
        while some := await asyncio.to_thread(lambda: list(islice(feed, FEED_CHANGES))):
            for change in some:
                yield change

    def describe(self) -> dict[str, Any]:
        """Describe the topic, ready for JSON."""
        return self.plain.describe()

    def stats(self) -> dict[str, Any]:
        """Return counts, sizes and watermarks of the topic."""
        return self.plain.stats()


class AsyncTopic(_AsyncHandle):
    """A topic for asyncio, with the calls, guarantees and errors of `Topic`.

    A cancelled publish may still be written: its outcome is unknown.
    """

    def __init__(self, topic: Topic) -> None:
        self.plain = topic
        self._runtime = topic.runtime
        self.runtimes = [topic.runtime]
        self._queue = topic.runtime.queue
        self._state = topic.runtime.state
        self._loop = asyncio.get_running_loop()
        self._fast_bytes_max = self._runtime.payload_bytes_max if self._runtime.is_message else -1

    def __repr__(self) -> str:
        return f"AsyncTopic({self.name!r})"

    async def append(
        self,
        record: bytes | Mapping[str, Any] | None = None,
        /,
        *,
        ack: str | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        producer_epoch: int = 0,
        **fields: Any,
    ) -> Ack:
        """Publish one record; return when its ack level is reached. See `Topic.append`."""
        runtime = self._runtime
        if runtime.refusal is not None or runtime.pressure.level:
            await wait_admitted_async(runtime)
        sender = None
        if ack is not None or producer is not None or sequence is not None:
            sender = runtime.sender(ack, producer, sequence, producer_epoch)
        future: asyncio.Future[Ack] = self._loop.create_future()
        entry: Entry
        if type(record) is bytes and not fields and len(record) <= self._fast_bytes_max:
            entry = (self._state, PLAIN, record, 0, len(record) + 8, future, sender)
        else:
            codec, data, count, size = runtime.prepare(record, fields)
            entry = (self._state, codec, data, count, size, future, sender)
        if not self._queue.submit(entry):
            await when_room_async(self._queue, lambda: self._queue.submit(entry) or None)
        found = await future
        if ack in WAITED_FOR:
            await wait_reached_async(ack, [(runtime, found)])
        return found

    @_as(Topic.append_many)
    async def append_many(self, records: Any, **options: Any) -> Ack:
        """Publish records in order; see `Topic.append_many`."""
        return await self._append_prepared(self._runtime.prepare_many(records), **options)

    @_as(Topic.append_arrow)
    async def append_arrow(self, data: Any, **options: Any) -> Ack:
        """Publish Arrow data; see `Topic.append_arrow`."""
        return await self._append_prepared(self._runtime.prepare_arrow(data), **options)

    async def _append_prepared(
        self,
        prepared: list[Prepared],
        *,
        ack: str | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        producer_epoch: int = 0,
    ) -> Ack:
        runtime, queue = self._runtime, self._queue
        await wait_admitted_async(runtime)
        sender = runtime.sender(ack, producer, sequence, producer_epoch)
        waiting: list[Any] = [self._loop.create_future() for _each in prepared]
        entries = runtime.entries(prepared, waiting, sender)
        await when_room_async(queue, lambda: queue.submit(*entries) or None)
        found = joined_ack(await asyncio.gather(*waiting, return_exceptions=True))
        if ack in WAITED_FOR:
            await wait_reached_async(ack, [(runtime, found)])
        return found

    insert = _published(Topic.insert)
    upsert = _published(Topic.upsert)
    update = _published(Topic.update)
    delete = _published(Topic.delete)
    append_changes = _published(Topic.append_changes)
    get = _threaded(Topic.get)
    get_many = _threaded(Topic.get_many)
    hold = _threaded(Topic.hold)
    advance = _threaded(Topic.advance)
    drop = _threaded(Topic.drop)

    @_as(Topic.read)
    def read(self, start: Any = "earliest", **options: Any) -> AsyncReader:
        """Read batches up to the current head: `async for batch in topic.read()`."""
        return AsyncReader(self._runtime, start=start, follow=False, **options)

    @_as(Topic.tail)
    def tail(self, start: Any = "latest", **options: Any) -> AsyncReader:
        """Read batches and wait for new ones: `async for batch in topic.tail()`."""
        return AsyncReader(self._runtime, start=start, follow=True, **options)


class AsyncPartitionedTopic(_AsyncHandle):
    """A partitioned topic for asyncio; see `PartitionedTopic`."""

    plain: PartitionedTopic

    def __init__(self, topic: PartitionedTopic) -> None:
        self.plain = topic
        self.parts = [AsyncTopic(part) for part in topic.parts]
        self.runtimes = [part.runtime for part in topic.parts]

    @_as(PartitionedTopic.append)
    async def append(self, record: Any = None, /, **options: Any) -> Ack:
        """Publish one record to its part."""
        part = self.plain.part_for(record, options)
        ack = await self.parts[part].append(record, **options)
        return Ack(ack.offset, ack.offset_last, ack.lsn, part)

    append_many = _published(PartitionedTopic.append_many)
    append_arrow = _published(PartitionedTopic.append_arrow)
    insert = _published(PartitionedTopic.insert)
    upsert = _published(PartitionedTopic.upsert)
    update = _published(PartitionedTopic.update)
    delete = _published(PartitionedTopic.delete)
    append_changes = _published(PartitionedTopic.append_changes)
    get = _threaded(PartitionedTopic.get)
    get_many = _threaded(PartitionedTopic.get_many)


class _Part:
    """A component of the engine with awaitable methods; each runs in a worker thread."""

    def __init__(self, part: Any) -> None:
        self._part = part

    def __getattr__(self, name: str) -> Any:
        return functools.partial(asyncio.to_thread, getattr(self._part, name))


class AsyncEngine:
    """An open data directory for asyncio: `async with frazil.open_async(path) as db`.

    It is bound to the event loop that opened it. Rare calls (create, alter, holds) run in a worker
    thread, and so do the awaitable calls of `lake`, `objects`, `subscriptions` and `tiers`.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = self.plain = engine
        self.lake: Any = _Part(engine.lake)
        self.objects: Any = _Part(engine.objects)
        self.subscriptions: Any = _Part(engine.subscriptions)

    @property
    def tiers(self) -> Any:
        """Return the memory and disk tiers; see `Engine.tiers`."""
        return _Part(self.engine.tiers)

    async def create_topic(self, name: str, columns: Any = None, **options: Any) -> Any:
        """Create a topic; see `Engine.create_topic`."""
        create: Any = self.engine.create_topic
        return _wrapped(await asyncio.to_thread(create, name, columns, **options))

    def topic(self, name: str) -> Any:
        """Return the handle of a topic."""
        return _wrapped(self.engine.topic(name))

    def topics(self, namespace: str | None = None) -> list[str]:
        """Return the names of all topics."""
        return self.engine.topics(namespace)

    async def alter_topic(self, name: str, **changes: Any) -> Any:
        """Change a topic; see `Engine.alter_topic`."""
        return _wrapped(await asyncio.to_thread(self.engine.alter_topic, name, **changes))

    delete_topic = _threaded(Engine.delete_topic)
    explain = _threaded(Engine.explain)
    close = _threaded(Engine.close)

    async def append(self, name: str, record: Any = None, /, **options: Any) -> Ack:
        """Publish one record by the topic's name; see `Engine.append`."""
        try:
            topic = self.engine.topic(name)
        except NotFound:
            topic = await asyncio.to_thread(self.engine.topic_for, name, record, options)
        return await _wrapped(topic).append(record, **options)

    @_as(Engine.query)
    async def query(self, sql: str, params: Any = None, **options: Any) -> Result:
        """Run one read statement of SQL over all topics; see `Engine.query`.

        Cancelling the task stops the query. Iterating a result of more than 64 MiB reads further
        rows: do that in a thread.
        """
        queries = await asyncio.to_thread(self.engine.queries)
        begun: list[int] = []
        cancelled = threading.Event()

        def on_begin(query: int) -> None:
            begun.append(query)
            if cancelled.is_set():
                # The task was cancelled while the query waited for a slot.
                queries.cancel(query)

        run = functools.partial(queries.query, sql, params, on_begin=on_begin, **options)
        working = asyncio.ensure_future(asyncio.to_thread(run))
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            working.add_done_callback(_drop_result)
            cancelled.set()
            for query in begun:
                queries.cancel(query)
            raise

    def topic_stats(self, name: str) -> dict[str, Any]:
        """Return counts, sizes and watermarks of one topic."""
        return self.engine.topic_stats(name)

    def describe(self, name: str) -> dict[str, Any]:
        """Describe a topic, ready for JSON."""
        return self.engine.describe(name)

    def stats(self) -> dict[str, Any]:
        """Return counts, sizes and watermarks of the whole engine."""
        return self.engine.stats()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def _wrapped(topic: Topic | PartitionedTopic) -> AsyncTopic | AsyncPartitionedTopic:
    if isinstance(topic, PartitionedTopic):
        return AsyncPartitionedTopic(topic)
    return AsyncTopic(topic)


def _drop_result(working: asyncio.Future[Result]) -> None:
    """Close the result of a cancelled query; retrieve its error."""
    if not working.cancelled() and working.exception() is None:
        working.result().close()


class _Opening:
    """The result of `open_async`: await it, or use it with `async with`."""

    def __init__(self, opened: Callable[[], Engine]) -> None:
        self._opened = opened
        self._engine: AsyncEngine | None = None

    async def _open(self) -> AsyncEngine:
        self._engine = AsyncEngine(await asyncio.to_thread(self._opened))
        return self._engine

    def __await__(self) -> Any:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncEngine:
        return await self._open()

    async def __aexit__(self, *_: object) -> None:
        if self._engine is not None:
            await self._engine.close()


def open_async(path: Any = None, **options: Any) -> _Opening:
    """Open a data directory for asyncio; `await` it or use `async with`. See `open`."""
    return _Opening(functools.partial(open_engine, path, **options))
