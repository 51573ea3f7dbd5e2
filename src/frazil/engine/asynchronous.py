"""The same API for asyncio. Publishing shares the engine's queue: no thread per call."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from frazil.engine.async_changes import AsyncChangeCalls, fed, taken
from frazil.engine.async_queries import AsyncTierCalls
from frazil.engine.async_subscribing import AsyncSubscribeCalls, AsyncSubscriptionCalls
from frazil.engine.engine import Engine, open_engine
from frazil.engine.partitioned import PartitionedTopic
from frazil.errors import NotFound
from frazil.log import PLAIN
from frazil.model import OP_INSERT, OP_UPSERT, Ack
from frazil.topic import WAITED_FOR, AsyncReader, Start, pass_stop_async, wait_reached_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping
    from types import TracebackType
    from typing import Self

    import pyarrow as pa

    from frazil.engine.topic import Topic
    from frazil.lake import Lake
    from frazil.log.codec import Entry
    from frazil.objects import Objects


class AsyncTopic(AsyncChangeCalls, AsyncSubscribeCalls):
    """A topic for asyncio; the calls, promises and errors are those of `Topic`."""

    def __init__(self, topic: Topic) -> None:
        super().__init__(topic)
        self._plain = topic
        self._fast_bytes_max = self._runtime.payload_bytes_max if self._runtime.is_message else -1

    def __repr__(self) -> str:
        return f"AsyncTopic({self.name!r})"

    @property
    def name(self) -> str:
        """Return the full name, `/namespace/name`."""
        return self._topic.name

    @property
    def schema(self) -> pa.Schema:
        """Return the current columns."""
        return self._topic.schema

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
        """Publish one record; returns when its ack level holds. See `Topic.append`.

        A cancelled call may have been published: its outcome is unknown.
        """
        runtime = self._runtime
        if runtime.refusal is not None:
            await pass_stop_async(runtime)
        if runtime.pressure.level:
            await runtime.pressure.admit_async()
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
            await self._submit_waiting(entry)
        return await self._reached(await future, ack)

    async def append_many(
        self,
        records: Iterable[bytes | Mapping[str, Any]],
        *,
        ack: str | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        producer_epoch: int = 0,
    ) -> Ack:
        """Publish records in order; see `Topic.append_many`."""
        prepared = self._runtime.prepare_many(records)
        sender = self._runtime.sender(ack, producer, sequence, producer_epoch)
        return await self._reached(await self._append_prepared(prepared, sender), ack)

    async def append_arrow(
        self,
        data: object,
        *,
        ack: str | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        producer_epoch: int = 0,
    ) -> Ack:
        """Publish Arrow data; see `Topic.append_arrow`."""
        prepared = self._runtime.prepare_arrow(data)
        sender = self._runtime.sender(ack, producer, sequence, producer_epoch)
        return await self._reached(await self._append_prepared(prepared, sender), ack)

    def read(
        self, start: Start = "earliest", *, limit: int | None = None, bytes_max: int | None = None
    ) -> AsyncReader:
        """Read batches up to the head as it is now: `async for batch in topic.read()`."""
        return AsyncReader(
            self._runtime,
            start=start,
            follow=False,
            limit=limit,
            bytes_max=bytes_max,
            timeout_s=None,
        )

    def tail(
        self,
        start: Start = "latest",
        *,
        limit: int | None = None,
        bytes_max: int | None = None,
        timeout_s: float | None = None,
    ) -> AsyncReader:
        """Read batches and wait for new ones: `async for batch in topic.tail()`."""
        return AsyncReader(
            self._runtime,
            start=start,
            follow=True,
            limit=limit,
            bytes_max=bytes_max,
            timeout_s=timeout_s,
        )

    async def hold(self, name: str, offset: int) -> None:
        """Keep the records from `offset` on; durable on return."""
        await asyncio.to_thread(self._topic.hold, name, offset)

    async def advance(self, name: str, offset: int) -> None:
        """Move a hold forwards; durable on return."""
        await asyncio.to_thread(self._topic.advance, name, offset)

    async def drop(self, name: str) -> None:
        """Remove a hold; durable on return."""
        await asyncio.to_thread(self._topic.drop, name)

    def describe(self) -> dict[str, Any]:
        """Return everything that is known about the topic, ready for JSON."""
        return self._topic.describe()

    def stats(self) -> dict[str, Any]:
        """Return counts, sizes and watermarks of the topic."""
        return self._topic.stats()


class AsyncPartitionedTopic(AsyncSubscribeCalls):
    """A partitioned topic for asyncio; see `PartitionedTopic`."""

    def __init__(self, topic: PartitionedTopic) -> None:
        self._topic = self._plain = topic
        self.parts = [AsyncTopic(part) for part in topic.parts]

    @property
    def name(self) -> str:
        """Return the full name, `/namespace/name`."""
        return self._topic.name

    @property
    def schema(self) -> pa.Schema:
        """Return the current columns."""
        return self._topic.schema

    async def append(self, record: Any = None, /, **options: Any) -> Ack:
        """Publish one record to its part."""
        part = self._topic.part_for(record, options)
        return _of_part(await self.parts[part].append(record, **options), part)

    async def append_many(self, records: Iterable[Any], *, ack: str | None = None) -> list[Ack]:
        """Publish records to their parts; one ack for each part that got some."""
        given = list(records)
        # Waited for here: a thread that waits for memory would keep others from reading.
        await self.parts[0].pass_door()
        own = self._check_level(ack)
        acks = await asyncio.to_thread(self._topic.append_many, given, ack=own)
        return await self._reached(acks, ack)

    async def append_arrow(self, data: object, *, ack: str | None = None) -> list[Ack]:
        """Publish Arrow data, split by key over the parts."""
        await self.parts[0].pass_door()
        own = self._check_level(ack)
        acks = await asyncio.to_thread(self._topic.append_arrow, data, ack=own)
        return await self._reached(acks, ack)

    def _check_level(self, ack: str | None) -> str | None:
        """Return the level that a thread waits for: other tiers are waited for in the loop."""
        runtime = self._topic.parts[0].runtime
        runtime.sender(ack, None, None, 0)
        return "fsynced" if ack in WAITED_FOR else ack

    async def _reached(self, acks: list[Ack], ack: str | None) -> list[Ack]:
        await wait_reached_async(ack, [(self._topic.parts[a.part].runtime, a) for a in acks])
        return acks

    async def insert(self, row: Mapping[str, Any] | None = None, /, **options: Any) -> Ack:
        """Publish a whole row to its part; see `Topic.insert`."""
        part = self._topic.part_of_row_change(OP_INSERT, row, options)
        return _of_part(await self.parts[part].insert(row, **options), part)

    async def upsert(self, row: Mapping[str, Any] | None = None, /, **options: Any) -> Ack:
        """Publish a whole row that replaces whatever its key had; see `Topic.upsert`."""
        part = self._topic.part_of_row_change(OP_UPSERT, row, options)
        return _of_part(await self.parts[part].upsert(row, **options), part)

    async def update(self, *arguments: Any, **options: Any) -> Ack:
        """Change the named columns of one row; see `PartitionedTopic.update`."""
        part = self._topic.part_of_update(arguments, options)
        return _of_part(await self.parts[part].update(*arguments, **options), part)

    async def delete(self, *arguments: Any, **options: Any) -> Ack:
        """Delete the row with a key; see `Topic.delete`."""
        part = self._topic.part_of_delete(arguments, options)
        return _of_part(await self.parts[part].delete(*arguments, **options), part)

    async def append_changes(
        self, data: object, *, op_column: str = "_op", ack: str | None = None
    ) -> list[Ack]:
        """Publish changes in bulk to their parts; see `PartitionedTopic.append_changes`."""
        given = taken(data)
        await self.parts[0].pass_door()
        own = self._check_level(ack)
        call = self._topic.append_changes
        acks = await asyncio.to_thread(call, given, op_column=op_column, ack=own)
        return await self._reached(acks, ack)

    async def get(self, key: Any) -> dict[str, Any] | None:
        """Return the row with a key, None if there is none; see `Topic.get`."""
        return await asyncio.to_thread(self._topic.get, key)

    async def get_many(self, keys: Iterable[Any]) -> list[dict[str, Any] | None]:
        """Return the rows with these keys, in their order; those of one part are of one moment."""
        return await asyncio.to_thread(self._topic.get_many, list(keys))

    def changes(
        self, from_offset: int = 0, *, limit: int | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Return the change feeds of the parts; see `PartitionedTopic.changes`."""
        return fed(self._topic.changes(from_offset, limit=limit))

    def describe(self) -> dict[str, Any]:
        """Return everything that is known about the topic, ready for JSON."""
        return self._topic.describe()

    def stats(self) -> dict[str, Any]:
        """Return counts over all parts."""
        return self._topic.stats()


class AsyncEngine(AsyncTierCalls, AsyncSubscriptionCalls):
    """An open data directory for asyncio: `async with frazil.open_async(path) as db`.

    Bound to the event loop that opened it. Rare calls (create, alter, holds) run in a thread.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

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

    async def delete_topic(self, name: str, *, drop_table: bool = False) -> None:
        """Delete a topic; see `Engine.delete_topic`."""
        await asyncio.to_thread(self.engine.delete_topic, name, drop_table=drop_table)

    @property
    def lake(self) -> Lake:
        """Return the lake; its calls wait, so run the long ones in a thread."""
        return self.engine.lake

    @property
    def objects(self) -> Objects:
        """Return the objects tier; its calls wait, so run the long ones in a thread."""
        return self.engine.objects

    async def append(self, name: str, record: Any = None, /, **options: Any) -> Ack:
        """Publish one record by the topic's name; see `Engine.append`."""
        try:
            topic = self.engine.topic(name)
        except NotFound:
            topic = await asyncio.to_thread(self.engine.topic_for, name, record, options)
        ack: Ack = await _wrapped(topic).append(record, **options)
        return ack

    async def hold(self, topic: str, name: str, offset: int) -> None:
        """Keep a topic's records from `offset` on; durable on return."""
        await asyncio.to_thread(self.engine.hold, topic, name, offset)

    async def advance(self, topic: str, name: str, offset: int) -> None:
        """Move a hold forwards; durable on return."""
        await asyncio.to_thread(self.engine.advance, topic, name, offset)

    async def drop(self, topic: str, name: str) -> None:
        """Remove a hold; durable on return."""
        await asyncio.to_thread(self.engine.drop, topic, name)

    def topic_stats(self, name: str) -> dict[str, Any]:
        """Return counts, sizes and watermarks of one topic."""
        return self.engine.topic_stats(name)

    def describe(self, name: str) -> dict[str, Any]:
        """Return everything that is known about a topic."""
        return self.engine.describe(name)

    def stats(self) -> dict[str, Any]:
        """Return counts, sizes and watermarks of the whole engine."""
        return self.engine.stats()

    async def close(self) -> None:
        """Commit what waits, sync, close everything."""
        await asyncio.to_thread(self.engine.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def _of_part(ack: Ack, part: int) -> Ack:
    return Ack(ack.offset, ack.offset_last, ack.lsn, part)


def _wrapped(topic: Topic | PartitionedTopic) -> AsyncTopic | AsyncPartitionedTopic:
    if isinstance(topic, PartitionedTopic):
        return AsyncPartitionedTopic(topic)
    return AsyncTopic(topic)


class _Opening:
    """What `open_async` returns: await it, or use it with `async with`."""

    def __init__(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        self._arguments = arguments
        self._options = options
        self._engine: AsyncEngine | None = None

    async def _open(self) -> AsyncEngine:
        engine = await asyncio.to_thread(open_engine, *self._arguments, **self._options)
        self._engine = AsyncEngine(engine)
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
    return _Opening((path,), options)
