"""The flights of a subscription: which records are with consumers, and until when."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from frazil.subscribe.alarms import Alarms
from frazil.subscribe.places import Consumer, Flight, Places

if TYPE_CHECKING:
    from frazil.subscribe.actions import Change

__all__ = ["Flights", "taken_by"]


class Flights:
    """The flights that still have records in them, oldest first.

    A flight ends with its last record, so there are never more flights than unacked records. A
    record whose consumer needs more time flies alone, until a time of its own. What is not sent yet
    has all the time.
    """

    __slots__ = ("_ends", "_open", "_places", "_prolonged", "_unsent")

    def __init__(self, places: Places) -> None:
        self._places = places
        # Its first entry is found at once although entries before it were deleted; a dict's is not.
        self._open: OrderedDict[Flight, None] = OrderedDict()
        self._prolonged: dict[Flight, None] = {}
        self._unsent: dict[Flight, None] = {}
        self._ends = Alarms()

    def start(self, consumer: Consumer, offsets: list[int], now_ms: int) -> Flight:
        """Open a flight; `now_ms` never goes back."""
        flight = Flight(consumer, offsets, now_ms)
        self._open[flight] = None
        return flight

    def set_clock(self, offsets: list[int], since_ms: int | None) -> None:
        """Let the time of records that are with one consumer begin then, or not yet."""
        flights = [place for place in map(self._places.get, offsets) if type(place) is Flight]
        assert len(flights) == len(offsets)
        consumer = flights[0].consumer
        for flight in flights:
            assert flight.consumer is consumer
            self.land(flight)
        flight = Flight(consumer, offsets, since_ms)
        (self._unsent if since_ms is None else self._open)[flight] = None
        self._places.update(dict.fromkeys(offsets, flight))

    def land(self, flight: Flight, count: int = 1) -> None:
        """Take records out of a flight."""
        flight.open_count -= count
        flight.consumer.out -= count
        if flight.open_count:
            return
        if flight.delivered_ms is None:
            del self._unsent[flight]
        elif self._prolonged and flight in self._prolonged:
            del self._prolonged[flight]
            self._ends.clear(flight.offsets[0])
        else:
            del self._open[flight]

    def prolong(self, offset: int, flight: Flight, *, until_ms: int) -> Flight:
        """Let a record of a flight be with its consumer until then; return the flight it is in."""
        if flight not in self._prolonged:
            self.land(flight)
            flight = Flight(flight.consumer, [offset], flight.delivered_ms)
            self._prolonged[flight] = None
        self._ends.set(offset, until_ms)
        return flight

    def due_ms(self, timeout_ms: int) -> int | None:
        """Return when the first record will be overdue; there is a `timeout_ms`."""
        end_ms = self._ends.first_ms()
        if not self._open:
            return end_ms
        oldest_ms = _sent_ms(next(iter(self._open))) + timeout_ms
        return oldest_ms if end_ms is None else min(oldest_ms, end_ms)

    def overdue(self, now_ms: int, timeout_ms: int) -> list[int]:
        """Return, ascending, the records that have been with their consumers for too long."""
        due_ms = self.due_ms(timeout_ms)
        if due_ms is None or due_ms > now_ms:
            return []
        found = self._ends.rung(now_ms)
        for flight in self._open:
            if _sent_ms(flight) > now_ms - timeout_ms:
                break
            found += self._left(flight)
        return sorted(found)

    def to(self, consumer: Consumer) -> list[int]:
        """Return, ascending, the records that were sent to a consumer."""
        found: list[int] = []
        for flight in (*self._open, *self._prolonged):
            if flight.consumer is consumer:
                found += self._left(flight)
        return sorted(found)

    def unsent_to(self, consumer: Consumer) -> list[int]:
        """Return the records that are a consumer's and were not sent yet."""
        mine = [flight for flight in self._unsent if flight.consumer is consumer]
        return [offset for flight in mine for offset in self._left(flight)]

    def holder(self, offset: int) -> int | None:
        """Return the id of the consumer that has a record."""
        place = self._places.get(offset)
        return place.consumer.consumer_id if type(place) is Flight else None

    def are_with(self, consumer_id: int, offsets: list[int]) -> bool:
        """Tell whether a consumer has all of some records."""
        return all(
            type(place) is Flight and place.consumer.consumer_id == consumer_id
            for place in set(map(self._places.get, offsets))
        )

    def _left(self, flight: Flight) -> list[int]:
        return [offset for offset in flight.offsets if self._places.get(offset) is flight]


def _sent_ms(flight: Flight) -> int:
    assert flight.delivered_ms is not None
    return flight.delivered_ms


def taken_by(change: Change) -> dict[int, list[int]]:
    """Return what a change took out of flights, by the ids of their consumers."""
    ids = {flight.consumer.consumer_id for flight in set(change.priors) if type(flight) is Flight}
    if len(ids) <= 1:
        return dict.fromkeys(ids, change.offsets)
    found: dict[int, list[int]] = {each: [] for each in ids}
    for offset, prior in zip(change.offsets, change.priors, strict=True):
        if type(prior) is Flight:
            found[prior.consumer.consumer_id].append(offset)
    return found
