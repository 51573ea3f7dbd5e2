"""Who gets records of a subscription, and what is counted of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.errors import FrazilError
    from frazil.subscribe.record import Record

__all__ = ["Consumer", "Counts", "Keeper"]


class Consumer(Protocol):
    """What a transport gives for each of its streams. Called on the loop's thread."""

    consumer_id: int
    name: str

    def deliver(self, records: list[Record], attempts: list[int] | None) -> None:
        """Write records, in this order; `attempts` are their deliveries' numbers, None: all 1."""

    def displaced(self) -> None:
        """End: another stream of the same consumer took the place."""

    def ended(self, error: FrazilError) -> None:
        """End: the subscription or its topic is gone."""


@runtime_checkable
class Keeper(Protocol):
    """A consumer that keeps what is delivered until a program takes it; called as `Consumer` is."""

    def give_up(self, offsets: Sequence[int] | None) -> list[int]:
        """Let go of those of some records that the program has not taken, None: of all.

        Return them; the program will not get them.
        """

    def revoked(self, offsets: Sequence[int] | None) -> None:
        """Let go of records that are not this consumer's any more, None: of all."""

    def held_ms(self, offset: int) -> int | None:
        """Return for how long the program has had a record, None if it did not take it yet."""


class Counts:
    """What a subscription did since it was opened."""

    __slots__ = (
        *("acked", "dead_letters", "delivered", "dropped"),
        *("missed", "nacked", "redelivered"),
    )

    def __init__(self) -> None:
        self.delivered = 0
        """Records given to consumers, each time counted."""
        self.redelivered = 0
        """Those of them that were not given for the first time."""
        self.acked = 0
        self.nacked = 0
        self.dead_letters = 0
        """Records that went to the dead-letter topic."""
        self.dropped = 0
        """Records that failed too often, under a policy that drops them."""
        self.missed = 0
        """Records that a full quota took away before they were delivered."""
