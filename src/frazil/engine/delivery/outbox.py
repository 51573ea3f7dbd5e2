"""What is on its way to one consumer and must be read again first; in order."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from frazil.engine.delivery.feed import TopicFeed
    from frazil.engine.delivery.record import Record
    from frazil.engine.delivery.subscription import Consumer
    from frazil.errors import FrazilError

__all__ = ["Outbox"]


class Outbox:
    """Deliveries to one consumer that wait for their records. Belongs to the loop's thread."""

    def __init__(
        self, consumer: Consumer, feed: TopicFeed, lost: Callable[[int, FrazilError], None]
    ) -> None:
        self._consumer = consumer
        self._feed = feed
        self._lost = lost
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
            if delivery.records:
                self._consumer.deliver(delivery.records, delivery.attempts)  # type: ignore[arg-type]

    def _read(self, reading: object, offset: int, error: FrazilError | None) -> None:
        if reading is not self._reading:
            # It was cleared meanwhile.
            return
        self._reading = None
        delivery = self._waiting[0]
        if error is None and self._feed.record(offset) is not None:
            self._drain()
            return
        delivery.leave_out(offset)
        if error is not None:
            self._lost(offset, error)
        self._drain()


class _Delivery:
    __slots__ = ("attempts", "offsets", "records")

    def __init__(
        self, offsets: list[int], records: list[Record | None], attempts: list[int] | None
    ) -> None:
        self.offsets = offsets
        self.records = records
        self.attempts = attempts

    def complete(self, feed: TopicFeed) -> int | None:
        """Find the records that are at hand; return the first offset that is not, or None."""
        for at, record in enumerate(self.records):
            if record is None:
                found = feed.record(self.offsets[at])
                if found is None:
                    return self.offsets[at]
                self.records[at] = found
        return None

    def leave_out(self, offset: int) -> None:
        """Do without a record that cannot be read."""
        at = self.offsets.index(offset)
        self.offsets = self.offsets[:at] + self.offsets[at + 1 :]
        del self.records[at]
        if self.attempts is not None:
            self.attempts = self.attempts[:at] + self.attempts[at + 1 :]
