"""Publishing under asyncio: how entries get into the queue, and the calls of a keyed topic.

What needs nothing but its own values goes through the event loop, without a thread. A change that
needs the state of its key may have to read files, so it is resolved in a worker thread, which it
enters only when it was let in: a thread never waits for memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from frazil.errors import FrazilError
from frazil.model import OP_INSERT, OP_UPSERT
from frazil.topic import (
    bulk_ack,
    check_bulk,
    is_arrow,
    joined_ack,
    nothing_written,
    numbered,
    pass_stop_async,
    steps_of,
    wait_reached_async,
    waker,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from frazil.engine.topic import Topic
    from frazil.log import Sender
    from frazil.log.codec import Entry
    from frazil.model import Ack
    from frazil.topic import Prepared, Step

T = TypeVar("T")

FEED_CHANGES: Final = 256
"""So many changes of a feed are read in one go."""


class AsyncChangeCalls:
    """What a topic with a primary key can do besides `append`; see `Topic` for each call.

    A cancelled call may have been published: its outcome is unknown.
    """

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._runtime = topic.runtime
        self._queue = topic.runtime.queue
        self._state = topic.runtime.state
        self._loop = asyncio.get_running_loop()

    # -- into the queue --------------------------------------------------------------------------

    async def pass_door(self) -> None:
        """Return when a publish may go on.

        Raises:
            Overloaded: if publishing to the topic is stopped, or memory stays short.
        """
        runtime = self._runtime
        if runtime.refusal is not None:
            await pass_stop_async(runtime)
        if runtime.pressure.level:
            await runtime.pressure.admit_async()

    async def _when_room(self, submit: Callable[[], T | None]) -> T:
        """Submit, waiting for room in the queue without holding up the loop."""
        found = submit()
        if found is not None:
            return found
        deadline = self._loop.time() + self._queue.wait_s
        while True:
            room = asyncio.Event()
            self._queue.on_space(waker(self._loop, room.set))
            found = submit()
            if found is not None:
                return found
            left = deadline - self._loop.time()
            if left <= 0:
                raise self._queue.overloaded()
            try:
                await asyncio.wait_for(room.wait(), left)
            except TimeoutError:
                raise self._queue.overloaded() from None

    async def _submit_waiting(self, *entries: Entry) -> None:
        await self._when_room(lambda: self._queue.submit_all(entries) or None)

    async def _append_prepared(self, prepared: list[Prepared], sender: Sender | None) -> Ack:
        await self.pass_door()
        futures: list[asyncio.Future[Ack]] = [self._loop.create_future() for _each in prepared]
        await self._submit_waiting(*self._runtime.entries(prepared, futures, sender))
        return await _joined(futures)

    async def _reached(self, found: Ack, ack: str | None) -> Ack:
        """Wait for the tier behind the log where that was asked for."""
        await wait_reached_async(ack, [(self._runtime, found)])
        return found

    # -- changes ---------------------------------------------------------------------------------

    async def insert(
        self,
        row: Mapping[str, Any] | None = None,
        /,
        *,
        ack: str | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        producer_epoch: int = 0,
        **columns: Any,
    ) -> Ack:
        """Publish a whole row; see `Topic.insert`."""
        step = self._runtime.changes.whole(OP_INSERT, row, columns)
        return await self._change(step, ack, producer, sequence, producer_epoch)

    async def upsert(
        self,
        row: Mapping[str, Any] | None = None,
        /,
        *,
        ack: str | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        producer_epoch: int = 0,
        **columns: Any,
    ) -> Ack:
        """Publish a whole row that replaces whatever its key had."""
        step = self._runtime.changes.whole(OP_UPSERT, row, columns)
        return await self._change(step, ack, producer, sequence, producer_epoch)

    async def update(
        self,
        *arguments: Any,
        ack: str | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        producer_epoch: int = 0,
        **columns: Any,
    ) -> Ack:
        """Change the named columns of one row; see `Topic.update`."""
        step = self._runtime.changes.update(arguments, columns)
        return await self._change(step, ack, producer, sequence, producer_epoch)

    async def delete(
        self,
        *arguments: Any,
        ack: str | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        producer_epoch: int = 0,
        **key: Any,
    ) -> Ack:
        """Delete the row with a key; see `Topic.delete`."""
        step = self._runtime.changes.delete(arguments, key)
        return await self._change(step, ack, producer, sequence, producer_epoch)

    async def append_changes(
        self,
        data: object,
        *,
        op_column: str = "_op",
        ack: str | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        producer_epoch: int = 0,
    ) -> Ack:
        """Publish changes in bulk, in order; see `Topic.append_changes`."""
        sender = self._runtime.sender(ack, producer, sequence, producer_epoch)
        pieces = await asyncio.to_thread(self._pieces, taken(data), op_column, sender)
        if not pieces:
            return nothing_written(self._runtime)
        results: list[Ack | FrazilError] = []
        for piece, own in numbered(pieces, sender):
            try:
                if isinstance(piece, list):
                    results += await self._send(piece, own)
                else:
                    results.append(await self._append_prepared([piece], own))
            except FrazilError as error:
                results.append(error)
            if any(isinstance(result, FrazilError) for result in results):
                break
        return await self._reached(bulk_ack(results), ack)

    def _pieces(
        self, data: object, op_column: str, sender: Sender | None
    ) -> list[list[Step] | Prepared]:
        runtime = self._runtime
        pieces = list(steps_of(runtime, runtime.changes, data, op_column))
        check_bulk(runtime, pieces, sender)
        return pieces

    async def _change(
        self, step: Step, ack: str | None, producer: str | None, sequence: int | None, epoch: int
    ) -> Ack:
        self._runtime.changes.check_part(step)
        sender = self._runtime.sender(ack, producer, sequence, epoch)
        return await self._reached(joined_ack(await self._send([step], sender)), ack)

    async def _send(
        self, steps: Sequence[Step], sender: Sender | None
    ) -> Sequence[Ack | FrazilError]:
        """Publish steps; return what each of their frames was answered."""
        await self.pass_door()
        changes = self._runtime.changes
        if any(changes.needs_state(step) for step in steps):
            return await asyncio.to_thread(self._topic.submit_steps, steps, sender)
        futures: list[asyncio.Future[Ack]] = await self._when_room(
            lambda: changes.try_submit(steps, sender, self._loop.create_future)
        )
        return await _answers(futures)

    # -- look-ups --------------------------------------------------------------------------------

    async def get(self, key: Any) -> dict[str, Any] | None:
        """Return the row with a key, None if there is none; see `Topic.get`."""
        return await asyncio.to_thread(self._topic.get, key)

    async def get_many(self, keys: Iterable[Any]) -> list[dict[str, Any] | None]:
        """Return the rows with these keys, in their order, all of one moment."""
        return await asyncio.to_thread(self._topic.get_many, list(keys))

    def changes(
        self, from_offset: int = 0, *, limit: int | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Return the change feed up to the head as it is now; see `Topic.changes`."""
        return fed(self._topic.changes(from_offset, limit=limit))


async def fed(feed: Iterator[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    """Yield the changes of a feed that a worker thread reads, some at a time."""
    while some := await asyncio.to_thread(lambda: list(islice(feed, FEED_CHANGES))):
        for change in some:
            yield change


def taken(data: object) -> object:
    """Return bulk data that another thread may go through: what the caller makes is made here."""
    if is_arrow(data) or isinstance(data, (str, bytes, bytearray, memoryview, dict)):
        return data
    return list(data) if isinstance(data, Iterable) else data


async def _joined(futures: Sequence[asyncio.Future[Ack]]) -> Ack:
    """Wait for the frames of one call; return the ack that covers them."""
    return joined_ack(await _answers(futures))


async def _answers(futures: Sequence[asyncio.Future[Ack]]) -> list[Ack | FrazilError]:
    """Wait for frames; return what each was answered."""
    if len(futures) == 1:
        try:
            return [await futures[0]]
        except FrazilError as error:
            return [error]
    results: list[Ack | FrazilError] = []
    for result in await asyncio.gather(*futures, return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, FrazilError):
            raise result
        results.append(result)
    return results
