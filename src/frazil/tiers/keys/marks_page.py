"""Marks of superseded rows, packed: eight bytes for the row's offset and for its change's.

A page has the marks of 2^22 offsets. A row is the distance from the page's first offset, a change
the distance from its row; the few changes that lie further than 32 bits reach are kept apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Offsets = npt.NDArray[np.int64]
    Distances = npt.NDArray[np.uint32]
    Marks = tuple[Offsets, Offsets]

__all__ = [
    "NO_OFFSETS",
    "PAGE_BITS",
    "MarksPage",
    "in_order",
    "joined",
    "merged_into",
    "with_marks",
]

PAGE_BITS: Final = 22
FAR: Final = (1 << 32) - 1
NO_OFFSETS: Final[Offsets] = np.empty(0, np.int64)


class MarksPage(NamedTuple):
    """The marks of one range of offsets, sorted by the row."""

    first: int
    rows: Distances
    ahead: Distances
    far_places: Offsets
    far_by: Offsets
    by_max: int

    @classmethod
    def of(cls, offsets: Offsets, by: Offsets) -> MarksPage:
        """Pack marks of one page, sorted, of which there is at least one."""
        first = int(offsets[0]) >> PAGE_BITS << PAGE_BITS
        assert int(offsets[-1]) - first < 1 << PAGE_BITS
        ahead = by - offsets
        far = np.flatnonzero((ahead < 0) | (ahead >= FAR))
        ahead[far] = FAR
        return cls(
            first,
            (offsets - first).astype(np.uint32),
            ahead.astype(np.uint32),
            far,
            by[far],
            int(by.max()),
        )

    @property
    def marks(self) -> int:
        """Return how many marks it has."""
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """Return the bytes it takes."""
        return 2 * (self.rows.nbytes + self.far_by.nbytes)

    def unpacked(self) -> Marks:
        """Return the rows' offsets, sorted, and those of the changes that supersede them."""
        offsets = self._offsets(len(self.rows))
        by = offsets + self.ahead
        by[self.far_places] = self.far_by
        return offsets, by

    def lacks(self, offsets: Offsets) -> npt.NDArray[np.bool_]:
        """Tell which rows of this page have no mark."""
        rows = (offsets - self.first).astype(np.uint32)
        places = np.searchsorted(self.rows, rows)
        lacking: npt.NDArray[np.bool_] = self.rows[np.minimum(places, len(self.rows) - 1)] != rows
        return lacking

    def below(self, *, cut: int, end: int) -> Offsets:
        """Return the rows below `cut` that changes below `end` supersede, in order."""
        stop = len(self.rows)
        if cut < self.first + (1 << PAGE_BITS):
            stop = int(np.searchsorted(self.rows, np.uint32(max(cut - self.first, 0))))
        if self.by_max < end:
            return self._offsets(stop)
        offsets, by = self.unpacked()
        return offsets[:stop][by[:stop] < end]

    def _offsets(self, stop: int) -> Offsets:
        return self.rows[:stop].astype(np.int64) + self.first


def in_order(offsets: Offsets, by: Offsets) -> Marks:
    """Sort marks by their rows; of two of one row the first one stays."""
    if (offsets[1:] > offsets[:-1]).all():
        return offsets, by
    order = np.argsort(offsets, kind="stable")
    offsets, by = offsets[order], by[order]
    fresh = np.concatenate(([True], offsets[1:] != offsets[:-1]))
    return (offsets, by) if fresh.all() else (offsets[fresh], by[fresh])


def with_marks(marks: Marks, more: Marks) -> Marks:
    """Merge two sets of sorted marks; the first set's stay where both have a row."""
    offsets, by = marks
    more_offsets, more_by = more
    if not len(offsets):
        return more
    places = np.searchsorted(offsets, more_offsets)
    fresh = offsets[np.minimum(places, len(offsets) - 1)] != more_offsets
    places = places[fresh]
    return (
        np.insert(offsets, places, more_offsets[fresh]),
        np.insert(by, places, more_by[fresh]),
    )


def merged_into(offsets: Offsets, more: Offsets) -> Offsets:
    """Merge two sorted arrays; each offset is there once."""
    if not len(more):
        return offsets
    return with_marks((offsets, offsets), (more, more))[0]


def joined(parts: Sequence[Offsets]) -> Offsets:
    """Return arrays one behind the other."""
    return np.concatenate(parts) if len(parts) > 1 else next(iter(parts), NO_OFFSETS)
