"""A subscription's progress: all offsets below one, and ranges above it.

The bytes are varints: version, `acked_below`, number of ranges, then of each range its distance
from the end of the one before it and its length. One set of offsets has one form.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from frazil.errors import CorruptionError

__all__ = ["RANGES_MAX", "Cursor", "ranges_of"]

RANGES_MAX = 10_000
VERSION = 1
_VARINT_BYTES_MAX = 10


class Cursor:
    """A set of acked offsets: every one below `acked_below`, and disjoint ranges above it."""

    __slots__ = ("_ends", "_firsts", "acked_below")

    def __init__(self, acked_below: int = 0, ranges: Iterable[tuple[int, int]] = ()) -> None:
        assert acked_below >= 0
        self.acked_below = acked_below
        self._firsts: list[int] = []
        self._ends: list[int] = []
        for first, end in ranges:
            self.ack_range(first, end)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Cursor):
            return NotImplemented
        return self.acked_below == other.acked_below and list(self.ranges()) == list(other.ranges())

    __hash__ = None  # type: ignore[assignment]  # it changes with every ack

    def __repr__(self) -> str:
        return f"Cursor({self.acked_below}, {list(self.ranges())})"

    def __contains__(self, offset: int) -> bool:
        if offset < self.acked_below:
            return True
        at = bisect_right(self._firsts, offset) - 1
        return at >= 0 and offset < self._ends[at]

    @property
    def range_count(self) -> int:
        """How many ranges stand above `acked_below`."""
        return len(self._firsts)

    @property
    def is_full(self) -> bool:
        """Whether there are as many ranges as a subscription may have."""
        return len(self._firsts) >= RANGES_MAX

    @property
    def end(self) -> int:
        """The offset behind the highest acked one."""
        return self._ends[-1] if self._ends else self.acked_below

    @property
    def acked_above(self) -> int:
        """How many offsets above `acked_below` are acked."""
        return sum(self._ends) - sum(self._firsts)

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Give the half-open ranges above `acked_below`, ascending."""
        return zip(self._firsts, self._ends, strict=True)

    def copy(self) -> Cursor:
        """Return an equal cursor that changes on its own."""
        other = Cursor(self.acked_below)
        other._firsts = self._firsts.copy()
        other._ends = self._ends.copy()
        return other

    def ack(self, offset: int) -> None:
        """Count one offset as acked; again makes no difference."""
        self.ack_range(offset, offset + 1)

    def ack_range(self, first: int, end: int) -> None:
        """Count `[first, end)` as acked; what is acked already makes no difference."""
        if end <= self.acked_below or end <= first:
            return
        firsts, ends = self._firsts, self._ends
        if first <= self.acked_below:
            self.acked_below = end
            if firsts and firsts[0] <= end:
                self._absorb()
            return
        if not ends or first > ends[-1]:
            firsts.append(first)
            ends.append(end)
            return
        # Ranges that touch or overlap the new one: the first whose end reaches it, to the last
        # whose start it reaches.
        low = bisect_left(ends, first)
        high = bisect_right(firsts, end)
        if low < high:
            first = min(first, firsts[low])
            end = max(end, ends[high - 1])
        firsts[low:high] = [first]
        ends[low:high] = [end]

    def merge(self, other: Cursor) -> None:
        """Count all that another cursor has acked: in any order, any number of times."""
        self.ack_range(0, other.acked_below)
        for first, end in other.ranges():
            self.ack_range(first, end)

    def encode(self) -> bytes:
        """Return the one form of this set of offsets as bytes."""
        out = bytearray()
        _put(out, VERSION)
        _put(out, self.acked_below)
        _put(out, len(self._firsts))
        at = self.acked_below
        for first, end in self.ranges():
            _put(out, first - at)
            _put(out, end - first)
            at = end
        return bytes(out)

    @classmethod
    def decode(cls, data: bytes) -> Cursor:
        """Return the cursor that `encode` gave; anything else is a `CorruptionError`."""
        values = _varints(data)
        if len(values) < 3 or values[0] != VERSION or len(values) != 3 + 2 * values[2]:
            raise CorruptionError("not the bytes of a cursor", size_bytes=len(data))
        cursor = cls(values[1])
        at = cursor.acked_below
        for distance, length in zip(values[3::2], values[4::2], strict=True):
            if not distance or not length:
                raise CorruptionError("a range of a cursor is empty or not apart", offset=at)
            cursor._firsts.append(at + distance)
            at += distance + length
            cursor._ends.append(at)
        return cursor

    def _absorb(self) -> None:
        """Take the lowest ranges into `acked_below` if it reached them."""
        firsts, ends = self._firsts, self._ends
        count = bisect_right(firsts, self.acked_below)
        # Ranges never touch: the one behind the last that is reached stays.
        self.acked_below = max(self.acked_below, ends[count - 1])
        del firsts[:count]
        del ends[:count]


def ranges_of(offsets: list[int]) -> list[tuple[int, int]]:
    """Return the half-open ranges that ascending, different offsets make."""
    if not offsets:
        return []
    if offsets[-1] - offsets[0] == len(offsets) - 1:
        return [(offsets[0], offsets[-1] + 1)]
    ranges = []
    first = end = offsets[0]
    for offset in offsets:
        if offset != end:
            ranges.append((first, end))
            first = offset
        end = offset + 1
    ranges.append((first, end))
    return ranges


def _put(out: bytearray, value: int) -> None:
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def _varints(data: bytes) -> list[int]:
    values, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte & 128:
            if shift >= 7 * _VARINT_BYTES_MAX:
                raise CorruptionError("a number of a cursor is too long", size_bytes=len(data))
            continue
        if not byte and shift > 7:
            raise CorruptionError("a number of a cursor is padded", size_bytes=len(data))
        values.append(value)
        value = shift = 0
    if shift:
        raise CorruptionError("a cursor ends within a number", size_bytes=len(data))
    return values
