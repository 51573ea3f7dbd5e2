"""What is on its way to one consumer and must be read again first; in order."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from frazil.errors import FrazilError, NotFound

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from frazil.subscribe.consumer import Consumer
    from frazil.subscribe.feed import Found, TopicFeed
    from frazil.subscribe.record import Chunk, Record

__all__ = ["Outbox", "Sender"]

RETRY_S: Final = 0.05


class Sender(Protocol):
    """The subscription that an outbox is of."""

    @property
    def keeps_order(self) -> bool:
        """Whether nothing may go before what cannot be read."""

    def is_with(self, consumer: Consumer, offset: int) -> bool:
        """Tell whether a record is still to be delivered to a consumer."""

    def sent(self, consumer: Consumer, offsets: list[int]) -> None:
        """Take note that records go out only now."""

    def left_out(self, consumer: Consumer) -> None:
        """Take note that a consumer got less than was counted as delivered."""

    def is_given_up(self, offset: int) -> bool:
        """Tell whether a full quota took a record away."""

    def gone(self, offset: int) -> None:
        """Take note that there is no such record any more."""

    def put_off(self, consumer: Consumer, offsets: list[int], error: FrazilError) -> None:
        """Take records back, because the first of them cannot be read now."""


class Outbox:
    """Deliveries to one consumer that wait for their records. Belongs to the loop's thread."""

    def __init__(
        self,
        consumer: Consumer,
        feed: TopicFeed,
        sender: Sender,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._consumer = consumer
        self._feed = feed
        self._sender = sender
        self._loop = loop
        self._waiting: deque[_Delivery] = deque()
        self._reading: object = None

    @property
    def is_busy(self) -> bool:
        """Whether something waits: what comes now goes behind it."""
        return bool(self._waiting)

    def add(
        self, offsets: list[int], records: list[Record | None], attempts: list[int] | None
    ) -> None:
        """Deliver these, records that are None as soon as they were read again."""
        self._waiting.append(_Delivery(offsets, records, attempts))
        if self._reading is None:
            self._drain()

    def withdraw(self, offsets: Sequence[int]) -> None:
        """Take out what is settled: if the journal refuses that it is added anew, and goes once."""
        gone = set(offsets)
        for delivery in self._waiting:
            delivery.withdraw(gone)

    def clear(self) -> None:
        """Forget what waits: it will be delivered anew."""
        self._waiting.clear()
        self._reading = None

    close = clear

    def _drain(self) -> None:
        while self._waiting:
            delivery = self._waiting[0]
            missing = delivery.complete(self._feed)
            if missing is not None:
                self._reading = reading = object()
                self._feed.request(missing, partial(self._read, reading, missing))
                return
            self._waiting.popleft()
            self._send(delivery)

    def _send(self, delivery: _Delivery) -> None:
        # What was acked or taken back while it was being read must not go out any more.
        records, attempts = delivery.kept(partial(self._sender.is_with, self._consumer))
        if records:
            self._sender.sent(self._consumer, [record.offset for record in records])
            self._consumer.deliver(records, attempts)
        if len(records) < delivery.count:
            self._sender.left_out(self._consumer)

    def _read(self, reading: object, offset: int, found: Found) -> None:
        if reading is not self._reading:
            # It was cleared meanwhile.
            return
        if isinstance(found, FrazilError):
            self._reading = None
            self._cannot_read(offset, found)
        elif found.offset <= offset < found.offset_next:
            self._reading = None
            # At once: what is read next may take its room.
            self._leave_out(self._waiting[0].fill(found))
        else:
            # On its way from one tier to the next: a look later finds it.
            self._loop.call_later(RETRY_S, self._look_again, reading)
            return
        self._drain()

    def _cannot_read(self, offset: int, error: FrazilError) -> None:
        if offset not in self._waiting[0].offsets:
            # It was withdrawn meanwhile.
            return
        if isinstance(error, NotFound) and self._sender.is_given_up(offset):
            self._leave_out([offset])
        else:
            self._put_off(offset, error)

    def _leave_out(self, offsets: list[int]) -> None:
        for offset in offsets:
            self._waiting[0].leave_out(offset)
            self._sender.gone(offset)

    def _put_off(self, offset: int, error: FrazilError) -> None:
        """Do without a record for now, and where order counts without all behind it."""
        delivery = self._waiting[0]
        if not self._sender.keeps_order:
            delivery.leave_out(offset)
            self._sender.put_off(self._consumer, [offset], error)
            return
        rest = delivery.cut(offset)
        self._waiting.popleft()
        for later in self._waiting:
            rest += later.offsets
        self._waiting.clear()
        self._send(delivery)
        self._sender.put_off(self._consumer, rest, error)

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
        """Find the records that are at hand; return the first offset that is not, or None."""
        for at, record in enumerate(self.records):
            if record is None:
                chunk = feed.get(self.offsets[at])
                self.records[at] = found = None if chunk is None else chunk.record(self.offsets[at])
                if found is None:
                    return self.offsets[at]
        return None

    def fill(self, chunk: Chunk) -> list[int]:
        """Take records out of what was read; return the offsets of which it says that none is."""
        gone: list[int] = []
        for at, offset in enumerate(self.offsets):
            if self.records[at] is None and chunk.offset <= offset < chunk.offset_next:
                self.records[at] = found = chunk.record(offset)
                if found is None:
                    gone.append(offset)
        return gone

    def leave_out(self, offset: int) -> None:
        """Do without a record that cannot be read."""
        at = self.offsets.index(offset)
        self.offsets = self.offsets[:at] + self.offsets[at + 1 :]
        self.records = self.records[:at] + self.records[at + 1 :]
        if self.attempts is not None:
            self.attempts = self.attempts[:at] + self.attempts[at + 1 :]

    def withdraw(self, gone: set[int]) -> None:
        """Do without records that are not to be delivered."""
        places = [at for at, offset in enumerate(self.offsets) if offset not in gone]
        if len(places) < len(self.offsets):
            self.offsets = [self.offsets[at] for at in places]
            self.records = [self.records[at] for at in places]
            if self.attempts is not None:
                self.attempts = [self.attempts[at] for at in places]

    def cut(self, offset: int) -> list[int]:
        """Keep what lies before a record; return the offsets of it and of all behind it."""
        at = self.offsets.index(offset)
        rest = self.offsets[at:]
        self.offsets, self.records = self.offsets[:at], self.records[:at]
        if self.attempts is not None:
            self.attempts = self.attempts[:at]
        return rest

    def kept(self, is_wanted: Callable[[int], bool]) -> tuple[list[Record], list[int] | None]:
        """Return the records that are still wanted, and their attempts."""
        places = [at for at, offset in enumerate(self.offsets) if is_wanted(offset)]
        records = [record for at in places if (record := self.records[at]) is not None]
        attempts = None if self.attempts is None else [self.attempts[at] for at in places]
        return records, attempts
