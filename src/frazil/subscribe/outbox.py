"""Deliveries to one consumer whose records must be read again first, in order."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from frazil.errors import FrazilError, NotFound

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from frazil.subscribe.feed import Chunk, Found, Record, TopicFeed
    from frazil.subscribe.subscription import Consumer, Subscription

__all__ = ["Outbox"]

RETRY_S: Final = 0.05


class Outbox:
    """Deliveries to one consumer that wait for their records. Belongs to the loop's thread."""

    def __init__(
        self,
        consumer: Consumer,
        subscription: Subscription,
        feed: TopicFeed,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._consumer = consumer
        self._subscription = subscription
        self._feed = feed
        self._loop = loop
        self.waiting: deque[_Delivery] = deque()
        """While it is not empty a new delivery must not overtake those in it."""
        self._reading: object = None

    def add(
        self, offsets: list[int], records: list[Record | None], attempts: list[int] | None
    ) -> None:
        """Deliver these; a record that is None is read again first."""
        self.waiting.append(_Delivery(offsets, records, attempts))
        if self._reading is None:
            self._drain()

    def withdraw(self, offsets: Sequence[int]) -> None:
        """Remove records whose acks are under way: refused, they are delivered anew."""
        gone = set(offsets)
        for delivery in self.waiting:
            delivery.withdraw(gone)

    def clear(self) -> None:
        """Drop the deliveries that wait: they will be made anew."""
        self.waiting.clear()
        self._reading = None

    def _drain(self) -> None:
        while self.waiting:
            delivery = self.waiting[0]
            missing = delivery.complete(self._feed)
            if missing is not None:
                self._reading = reading = object()
                self._feed.request(missing, partial(self._read, reading, missing))
                return
            self.waiting.popleft()
            self._send(delivery)

    def _send(self, delivery: _Delivery) -> None:
        # Records that were acked or taken back while they were read must not go out any more.
        records, attempts = delivery.kept(partial(self._subscription.is_with, self._consumer))
        if records:
            self._subscription.sent(self._consumer, [record.offset for record in records])
            self._consumer.deliver(records, attempts)
        if len(records) < delivery.count:
            self._subscription.left_out(self._consumer)

    def _read(self, reading: object, offset: int, found: Found) -> None:
        if reading is not self._reading:
            # It was cleared meanwhile.
            return
        if isinstance(found, FrazilError):
            self._reading = None
            self._cannot_read(offset, found)
        elif found.offset <= offset < found.offset_next:
            self._reading = None
            # At once: the next read may evict it from the cache.
            self._leave_out(self.waiting[0].fill(found))
        else:
            # It is moving from one tier to the next.
            self._loop.call_later(RETRY_S, self._look_again, reading)
            return
        self._drain()

    def _cannot_read(self, offset: int, error: FrazilError) -> None:
        if offset not in self.waiting[0].offsets:
            # It was withdrawn meanwhile.
            return
        if isinstance(error, NotFound) and self._subscription.is_given_up(offset):
            self._leave_out([offset])
        else:
            self._put_off(offset, error)

    def _leave_out(self, offsets: list[int]) -> None:
        for offset in offsets:
            self.waiting[0].leave_out(offset)
            self._subscription.gone(offset)

    def _put_off(self, offset: int, error: FrazilError) -> None:
        """Leave a record out for now, and where order counts all after it."""
        delivery = self.waiting[0]
        if not self._subscription.keeps_order:
            delivery.leave_out(offset)
            self._subscription.put_off(self._consumer, [offset], error)
            return
        rest = delivery.cut(offset)
        self.waiting.popleft()
        for later in self.waiting:
            rest += later.offsets
        self.waiting.clear()
        self._send(delivery)
        self._subscription.put_off(self._consumer, rest, error)

    def _look_again(self, reading: object) -> None:
        if reading is self._reading:
            self._reading = None
            self._drain()


class _Delivery:
    __slots__ = ("attempts", "count", "offsets", "records")

    def __init__(
        self, offsets: list[int], records: list[Record | None], attempts: list[int] | None
    ) -> None:
        self.count = len(offsets)
        self.offsets = offsets
        self.records = records
        self.attempts = attempts

    def complete(self, feed: TopicFeed) -> int | None:
        """Take the records that are at hand; return the first offset that is not, or None."""
        for at, record in enumerate(self.records):
            if record is None:
                chunk = feed.get(self.offsets[at])
                self.records[at] = found = None if chunk is None else chunk.record(self.offsets[at])
                if found is None:
                    return self.offsets[at]
        return None

    def fill(self, chunk: Chunk) -> list[int]:
        """Take records from what was read; return the offsets that have no record there."""
        gone: list[int] = []
        for at, offset in enumerate(self.offsets):
            if self.records[at] is None and chunk.offset <= offset < chunk.offset_next:
                self.records[at] = found = chunk.record(offset)
                if found is None:
                    gone.append(offset)
        return gone

    def leave_out(self, offset: int) -> None:
        """Remove a record that cannot be read."""
        at = self.offsets.index(offset)
        self.offsets = self.offsets[:at] + self.offsets[at + 1 :]
        self.records = self.records[:at] + self.records[at + 1 :]
        if self.attempts is not None:
            self.attempts = self.attempts[:at] + self.attempts[at + 1 :]

    def withdraw(self, gone: set[int]) -> None:
        """Remove records that are not to be delivered."""
        kept = [at for at, offset in enumerate(self.offsets) if offset not in gone]
        if len(kept) < len(self.offsets):
            self.offsets = [self.offsets[at] for at in kept]
            self.records = [self.records[at] for at in kept]
            if self.attempts is not None:
                self.attempts = [self.attempts[at] for at in kept]

    def cut(self, offset: int) -> list[int]:
        """Keep the records before an offset; return the offsets from it on."""
        at = self.offsets.index(offset)
        rest = self.offsets[at:]
        self.offsets, self.records = self.offsets[:at], self.records[:at]
        if self.attempts is not None:
            self.attempts = self.attempts[:at]
        return rest

    def kept(self, is_wanted: Callable[[int], bool]) -> tuple[list[Record], list[int] | None]:
        """Return the records that are still wanted, and their attempts."""
        kept = [at for at, offset in enumerate(self.offsets) if is_wanted(offset)]
        records = [record for at in kept if (record := self.records[at]) is not None]
        attempts = None if self.attempts is None else [self.attempts[at] for at in kept]
        return records, attempts
