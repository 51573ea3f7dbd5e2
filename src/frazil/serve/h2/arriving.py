"""Requests that never come: those of one connection that arrive too slowly are found and told.

Time is counted in ticks in which the peer was read from. All requests that arrive are looked at
every `arriving_s`. Those that were there the last time are too slow if their connection has brought
less than `arriving_bytes_min` since. It is enough if all of a connection brought it together: behind
a slow link many requests share what there is, and some clients send all headers first and then one
request behind the other. But none is looked at for ever (`arriving_looks_min`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from frazil.serve.h2.limits import ServerLimits
    from frazil.serve.h2.stream import Stream, StreamTable


class Arrivals:
    """What is remembered of requests that arrive: since when they are, and what came meanwhile.

    Streams are numbered in the order they are opened, so the last number tells which are older.
    Connections look at different ticks, by their `number`: many at once would hold others up.
    """

    def __init__(self, limits: ServerLimits, table: StreamTable, *, number: int) -> None:
        self._table = table
        self._bytes_min = limits.arriving_bytes_min
        self._refused_max = limits.arriving_refused_max
        self._period = max(1, round(limits.arriving_s / limits.tick_s))
        self._ticks = number % self._period
        self._data_bytes = 0
        looks = max(limits.arriving_looks_min, limits.message_bytes_max // self._bytes_min)
        self._last: deque[int] = deque(maxlen=looks + 1)
        """The highest stream there was with each of the last looks."""
        self._late: list[Stream] = []

    def tick(self, data_bytes: int) -> list[Stream]:
        """Count a tick; return requests that are too slow, a bounded number of them.

        `data_bytes` are all that ever came on the connection.
        """
        self._ticks += 1
        if self._ticks >= self._period:
            self._ticks = 0
            self._late = self._look(data_bytes)
        if not self._late:
            return self._late
        late, self._late = self._late[: self._refused_max], self._late[self._refused_max :]
        return [stream for stream in late if not stream.ended and not stream.closed]

    def _look(self, data_bytes: int) -> list[Stream]:
        table, last = self._table, self._last
        brought, self._data_bytes = data_bytes - self._data_bytes, data_bytes
        newest = last[-1] if last and brought < self._bytes_min else -1
        if len(last) == last.maxlen:
            newest = max(newest, last[0])
        last.append(table.last)
        if not table.arriving:
            # Most often: the streams that are open are answered, however many there are.
            return []
        return [
            stream for stream in table.open.values() if not stream.ended and stream.sid <= newest
        ]
