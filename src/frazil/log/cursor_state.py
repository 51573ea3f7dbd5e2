"""A subscription's progress: acked offsets, and delivery attempts of the others. Pure.

A `cursor` frame carries changes of the subscriptions of one topic. Folding the same frames again
in their order, from the first frame or from a later state on, changes nothing: recovery relies on
it. `docs/internals/log.md` has the bytes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from frazil.log.cursor import Cursor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Self

ATTEMPTS_MAX: Final = 10_000
"""The limit of unacked records with remembered delivery attempts of a subscription."""
ATTEMPT_FIRST: Final = 2
"""The first attempt that is stored: every delivered record has had attempt 1."""
OFFSET_MAX: Final = (1 << 63) - 1
ATTEMPT_MAX: Final = (1 << 31) - 1


class Acked(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """Records were acked: `ranges` is first, end, first, end and so on, each half open."""

    name: str
    ranges: list[int]


class Attempted(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """Records were delivered again: `attempts` is offset, number, offset, number and so on."""

    name: str
    attempts: list[int]


class Placed(msgspec.Struct, tag=3, array_like=True, frozen=True):
    """A subscription begins or is repositioned: its earlier progress is replaced."""

    name: str
    cursor: bytes


class Dropped(msgspec.Struct, tag=4, array_like=True, frozen=True):
    """A subscription is gone."""

    name: str


class Delayed(msgspec.Struct, tag=5, array_like=True, frozen=True):
    """Deliveries are delayed: `dues` is offset, delivery number, time (ms since 1970) and so on."""

    name: str
    dues: list[int]


Change: TypeAlias = Acked | Attempted | Placed | Dropped | Delayed

_CHANGES: Final = msgspec.msgpack.Decoder(list[Change])
_CURSOR: Final = msgspec.msgpack.Decoder(int | tuple[int, list[int], list[int], list[int]])
"""All below a number; or that number, distances of ranges, attempts and times."""
_encode = msgspec.msgpack.encode


class CursorState(Cursor):
    """Acked offsets, and delivery attempts of the others.

    `attempts` has the number of deliveries of unacked records that were delivered more than once,
    `dues` the time (ms since 1970) before which their next delivery must not happen. Not safe for
    threads: hand out copies.
    """

    __slots__ = ("attempts", "dues", "lsn")

    def __init__(
        self,
        acked_below: int = 0,
        ranges: Iterable[tuple[int, int]] = (),
        attempts: Iterable[tuple[int, int]] = (),
        dues: Iterable[tuple[int, int]] = (),
    ) -> None:
        self.attempts: dict[int, int] = {}
        self.dues: dict[int, int] = {}
        self.lsn = 0
        """The batch sequence of the last frame that changed it; not part of its value."""
        super().__init__(acked_below, ranges)
        for offset, number in attempts:
            self.attempt(offset, number)
        for offset, due_ms in dues:
            self.delay(offset, self.attempts.get(offset, 0), due_ms)

    def __eq__(self, other: object) -> bool:
        """Compare the progress; the frame of its last change does not count."""
        return (
            super().__eq__(other)
            and isinstance(other, CursorState)
            and self.attempts == other.attempts
            and self.dues == other.dues
        )

    __hash__ = None  # it changes

    def copy(self) -> Self:
        """Return an independent copy with the same value."""
        fresh = super().copy()
        fresh.attempts = self.attempts.copy()
        fresh.dues = self.dues.copy()
        fresh.lsn = self.lsn
        return fresh

    def ack_range(self, first: int, end: int) -> None:
        """Count `[first, end)` as acked and forget the attempts of these offsets."""
        if self.attempts:
            self._forget_attempts(first, end)
        super().ack_range(first, end)

    def attempt(self, offset: int, number: int) -> None:
        """Note a repeated delivery; a delivery of an acked record is ignored."""
        if number > self.attempts.get(offset, 0) and offset not in self:
            self.attempts[offset] = number
            self.dues.pop(offset, None)

    def delay(self, offset: int, number: int, due_ms: int) -> None:
        """Note that delivery `number` is delayed; any but the next delivery is ignored."""
        if number and self.attempts.get(offset) == number:
            self.dues[offset] = due_ms

    def _forget_attempts(self, first: int, end: int) -> None:
        attempts = self.attempts
        if end - first <= len(attempts):
            for offset in range(first, end):
                attempts.pop(offset, None)
                self.dues.pop(offset, None)
        else:
            self.attempts = {o: n for o, n in attempts.items() if not first <= o < end}
            self.dues = {o: due for o, due in self.dues.items() if not first <= o < end}

    def encode(self) -> bytes:
        """Return its bytes: a number if nothing above it is acked, else numbers and distances."""
        if not self._firsts and not self.attempts:
            return _encode(self.acked_below)
        borders = [self.acked_below, *_flat(self.ranges())]
        ranges = [high - low for low, high in pairwise(borders)]
        attempts: list[int] = []
        last = self.acked_below
        for offset, number in sorted(self.attempts.items()):
            attempts += (offset - last, number)
            last = offset
        return _encode((self.acked_below, ranges, attempts, _flat(sorted(self.dues.items()))))

    @classmethod
    def decode(cls, data: bytes) -> CursorState:
        """Decode the output of `encode`.

        Raises:
            ValueError: if the bytes are no cursor.
        """
        found = _CURSOR.decode(data)
        if isinstance(found, int):
            return cls(_checked_offset(found))
        below, ranges, attempts, dues = found
        cursor = cls(_checked_offset(below))
        position = below
        for skipped, size in _pairs(ranges):
            if skipped < 1 or size < 1:
                raise ValueError("ranges of a cursor touch each other")
            cursor._firsts.append(position + skipped)
            position += skipped + size
            cursor._ends.append(position)
        _checked_offset(position)
        offset = below
        for skipped, number in _pairs(attempts):
            offset += skipped
            if skipped < 0 or not ATTEMPT_FIRST <= number <= ATTEMPT_MAX or offset in cursor:
                raise ValueError("attempts of a cursor are of acked records or out of order")
            cursor.attempts[_checked_offset(offset)] = number
        for offset, due_ms in _pairs(dues):
            if offset not in cursor.attempts or not 0 <= due_ms <= OFFSET_MAX:
                raise ValueError("a delivery of a cursor waits that it does not know")
            cursor.dues[offset] = due_ms
        return cursor


def acked(name: str, *ranges: tuple[int, int]) -> Acked:
    """Return the change that acks records, given as half-open ranges."""
    return Acked(name, _flat(ranges))


def attempted(name: str, *attempts: tuple[int, int]) -> Attempted:
    """Return the change that records delivery attempts, given as offset and number."""
    return Attempted(name, _flat(attempts))


def delayed(name: str, *dues: tuple[int, int, int]) -> Delayed:
    """Return the change that delays deliveries, given as offset, number and time."""
    return Delayed(name, [number for due in dues for number in due])


def placed(name: str, cursor: CursorState) -> Placed:
    """Return the change that begins or repositions a subscription."""
    return Placed(name, cursor.encode())


def encode_changes(changes: Sequence[Change]) -> bytes:
    """Return the payload of a cursor frame."""
    return _encode(changes)


def decode_changes(payload: bytes) -> list[Change]:
    """Decode and check the payload of a cursor frame: the result can be folded.

    Raises:
        ValueError: if the payload is invalid (msgspec's own errors are subclasses).
    """
    changes = _CHANGES.decode(payload)
    for change in changes:
        check_change(change)
    return changes


def check_change(change: Change) -> None:
    """Check the numbers of a change.

    Raises:
        ValueError: if it could not be folded.
    """
    match change:
        case Acked(ranges=ranges):
            if not all(0 <= first < end <= OFFSET_MAX for first, end in _pairs(ranges)):
                raise ValueError("a range of acked records is empty or out of bounds")
        case Attempted(attempts=attempts):
            if not all(_is_attempt(*attempt) for attempt in _pairs(attempts)):
                raise ValueError("an offset or the number of its attempt is out of bounds")
        case Delayed(dues=dues):
            if not all(_is_attempt(*due) for due in _triples(dues)):
                raise ValueError("a delivery that waits is out of bounds")
        case Placed(cursor=cursor):
            CursorState.decode(cursor)


def _is_attempt(offset: int, number: int, due_ms: int = 0) -> bool:
    return (
        0 <= offset <= OFFSET_MAX
        and ATTEMPT_FIRST <= number <= ATTEMPT_MAX
        and 0 <= due_ms <= OFFSET_MAX
    )


def fold(cursors: dict[str, CursorState], changes: Iterable[Change], *, lsn: int = 0) -> None:
    """Apply checked changes to a topic's subscriptions, by name.

    Acks and attempts of an absent subscription change nothing: it was dropped after them, and
    recovery replays them.
    """
    for change in changes:
        if isinstance(change, Placed):
            cursors[change.name] = CursorState.decode(change.cursor)
        elif isinstance(change, Dropped):
            cursors.pop(change.name, None)
        cursor = cursors.get(change.name)
        if cursor is not None:
            _fold_one(cursor, change)
            cursor.lsn = max(cursor.lsn, lsn)


def _fold_one(cursor: CursorState, change: Change) -> None:
    match change:
        case Acked(ranges=ranges):
            for first, end in _pairs(ranges):
                cursor.ack_range(first, end)
        case Attempted(attempts=attempts):
            for offset, number in _pairs(attempts):
                cursor.attempt(offset, number)
        case Delayed(dues=dues):
            for each in _triples(dues):
                cursor.delay(*each)


def _flat(pairs: Iterable[tuple[int, int]]) -> list[int]:
    return [number for pair in pairs for number in pair]


def _pairs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    each = iter(numbers)
    return zip(each, each, strict=True)


def _triples(numbers: list[int]) -> Iterator[tuple[int, int, int]]:
    each = iter(numbers)
    return zip(each, each, each, strict=True)


def _checked_offset(offset: int) -> int:
    if not 0 <= offset <= OFFSET_MAX:
        raise ValueError("an offset is out of bounds")
    return offset
