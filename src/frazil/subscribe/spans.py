"""Consecutive records in the same delivery state, as one object.

A delivery of 500 records then costs little more than one of a single record. A record gets a
`DeliveryRecord` of its own when something happens to it alone, such as a nack or a time-out.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from frazil.log import ranges_of
from frazil.subscribe.delivery_state import Change, DeliveryRecord, Span, State

__all__ = ["Spans"]

_first = attrgetter("first")


class Spans:
    """The spans of a subscription, ascending; `records` has the records that are in none."""

    __slots__ = ("_records", "_spans")

    def __init__(self, records: dict[int, DeliveryRecord]) -> None:
        self._records = records
        self._spans: list[Span] = []

    def __len__(self) -> int:
        return len(self._spans)

    def __iter__(self) -> Iterator[Span]:
        """Iterate over the spans as they are now."""
        return iter(list(self._spans))

    def add(self, offset: int, sizes: Sequence[int], values: Sequence[Any]) -> Span:
        """Add a HELD span behind all others."""
        span = Span(offset, offset + len(sizes), offset, sum(sizes), sizes, list(values))
        self._spans.append(span)
        return span

    def find(self, offset: int) -> Span | None:
        """Return the span with a record, None if there is none."""
        at = bisect_right(self._spans, offset, key=_first) - 1
        return self._spans[at] if at >= 0 and offset < self._spans[at].end else None

    def remove(self, span: Span) -> None:
        """Remove a span whose records are settled."""
        del self._spans[bisect_left(self._spans, span.first, key=_first)]

    def cut(self, span: Span, first: int, end: int) -> Span:
        """Make `[first, end)` of a span one of its own; `span` keeps what comes after it, if any."""
        if first > span.first:
            self._cut_front(span, first)
        return span if end == span.end else self._cut_front(span, end)

    def _cut_front(self, span: Span, end: int) -> Span:
        front = msgspec.structs.replace(span, end=end, size=sum(span.sizes_to(end)))
        self._spans.insert(bisect_left(self._spans, span.first, key=_first), front)
        span.size -= front.size
        span.first = end
        return front

    def single(self, offset: int) -> DeliveryRecord | None:
        """Return the state of one record, which leaves its span; None if it has no state."""
        record = self._records.get(offset)
        span = self.find(offset) if record is None and self._spans else None
        if span is None:
            return record
        is_free = span.state is State.IN_FLIGHT and span.settling is None
        self.dissolve(self.cut(span, offset, offset + 1) if is_free else span)
        return self._records[offset]

    def dissolve(self, span: Span) -> None:
        """Give each record of a span a state of its own."""
        self.remove(span)
        change, offsets = span.settling, range(span.first, span.end)
        values = span.pass_values() or [None] * len(offsets)
        span.singles = [
            DeliveryRecord(
                offset,
                size=size,
                value=value,
                state=span.state,
                sent_ms=span.sent_ms,
                member=span.member,
                settling=change,
            )
            for offset, size, value in zip(offsets, span.sizes_to(span.end), values, strict=True)
        ]
        if change is not None:
            change.spans.remove(span)
            change.records += span.singles
        self._records.update(zip(offsets, span.singles, strict=True))

    def settle(self, change: Change, offsets: Sequence[int]) -> Sequence[int]:
        """Put records in flight under a change that settles them; return the other offsets."""
        others: list[int] = []
        for first, end in ranges_of(sorted(set(offsets))):
            offset = first
            while offset < end:
                span = self.find(offset)
                if span is None or span.state is not State.IN_FLIGHT or span.settling is not None:
                    others.append(offset)
                    offset += 1
                    continue
                stop = min(end, span.end)
                settled = self.cut(span, offset, stop)
                settled.settling = change
                change.spans.append(settled)
                change.offsets += range(offset, stop)
                offset = stop
        return others
