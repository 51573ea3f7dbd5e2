"""Where an unsettled record is: in a flight to a consumer, in a change under way, or in a state."""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Callable

from frazil.subscribe.actions import Change

__all__ = ["Consumer", "Flight", "Flights", "Place", "Places", "State"]


class State(enum.Enum):
    """Places of records that are with nobody."""

    WAITING = "waiting"
    """Its next delivery is durable and comes when its delay is over."""
    READY = "ready"
    """Its next delivery goes to the next consumer with room."""
    UNCOUNTED = "uncounted"
    """Its failed delivery could not be journalled; that is tried again."""
    OWED = "owed"
    """It is to be settled without an ack; that is journalled when its alarm rings."""
    DEAD = "dead"
    """It goes to the dead-letter topic."""
    BLOCKED = "blocked"
    """It failed too often, and the policy stops here."""


class Consumer:
    """An attached consumer: who it is and how much its stream takes now."""

    __slots__ = (
        *("accepts", "again", "consumer_id", "fresh"),
        *("is_attached", "messages", "name", "size_bytes"),
    )

    def __init__(self, consumer_id: int, name: str, accepts: Callable[[str], bool]) -> None:
        self.consumer_id = consumer_id
        self.name = name
        self.accepts = accepts
        self.is_attached = True
        self.messages = 0
        self.size_bytes = 0
        # Heaps of offsets that wait for this consumer (KeyShared only).
        self.again: list[int] = []
        self.fresh: list[int] = []

    @property
    def has_room(self) -> bool:
        """Whether the stream takes another record."""
        return self.messages > 0 and self.size_bytes > 0


class Flight:
    """Records that were delivered to one consumer at one time."""

    __slots__ = ("consumer", "delivered_ms", "offsets", "open_count")

    def __init__(self, consumer: Consumer, offsets: list[int], now_ms: int) -> None:
        self.consumer = consumer
        self.offsets = offsets
        self.delivered_ms = now_ms
        self.open_count = len(offsets)


Place = Flight | Change | State
Places = dict[int, Place]


class Flights:
    """The flights that still have records in them, oldest first.

    A flight ends with its last record, so there are never more flights than unacked records.
    """

    __slots__ = ("_open",)

    def __init__(self) -> None:
        # Its first entry is found at once although entries before it were deleted; a dict's is not.
        self._open: OrderedDict[Flight, None] = OrderedDict()

    def start(self, consumer: Consumer, offsets: list[int], now_ms: int) -> Flight:
        """Open a flight; `now_ms` never goes back."""
        flight = Flight(consumer, offsets, now_ms)
        self._open[flight] = None
        return flight

    def land(self, flight: Flight, count: int = 1) -> None:
        """Take records out of a flight."""
        flight.open_count -= count
        if not flight.open_count:
            del self._open[flight]

    @property
    def oldest_ms(self) -> int | None:
        """When the oldest open flight was delivered."""
        return next(iter(self._open)).delivered_ms if self._open else None

    def delivered_until(self, until_ms: int) -> list[Flight]:
        """Return the open flights that were delivered at `until_ms` or before."""
        found = []
        for flight in self._open:
            if flight.delivered_ms > until_ms:
                break
            found.append(flight)
        return found

    def to(self, consumer: Consumer) -> list[Flight]:
        """Return the open flights to a consumer."""
        return [flight for flight in self._open if flight.consumer is consumer]
