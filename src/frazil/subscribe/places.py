"""Where an unsettled record is: in a flight to a consumer, in a change under way, or in a state."""

from __future__ import annotations

import enum
from collections.abc import Callable

from frazil.subscribe.actions import Change

__all__ = ["Consumer", "Flight", "Place", "Places", "State"]


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
        *("is_attached", "messages", "name", "out", "size_bytes"),
    )

    def __init__(self, consumer_id: int, name: str, accepts: Callable[[str], bool]) -> None:
        self.consumer_id = consumer_id
        self.name = name
        self.accepts = accepts
        self.is_attached = True
        self.messages = 0
        self.size_bytes = 0
        # What it has, and what it failed at and waits to be delivered again.
        self.out = 0
        # Heaps of offsets that wait for this consumer (KeyShared only).
        self.again: list[int] = []
        self.fresh: list[int] = []

    @property
    def has_room(self) -> bool:
        """Whether the stream takes another record."""
        return self.messages > 0 and self.size_bytes > 0


class Flight:
    """Records that were delivered to one consumer at one time; None while they are not sent."""

    __slots__ = ("consumer", "delivered_ms", "offsets", "open_count")

    def __init__(self, consumer: Consumer, offsets: list[int], since_ms: int | None) -> None:
        self.consumer = consumer
        self.offsets = offsets
        self.delivered_ms = since_ms
        self.open_count = len(offsets)
        consumer.out += self.open_count


Place = Flight | Change | State
Places = dict[int, Place]
