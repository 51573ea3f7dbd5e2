"""Marks of superseded rows that lie in files, and how to compute them from nothing but the files.

A mark is (offset of the row, offset of the change that supersedes it). A change that does nothing,
a partial update of a key that is not there, is marked by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from frazil.model import OP_DELETE, OP_UPDATE
from frazil.tiers.keys.marks_page import (
    NO_OFFSETS,
    PAGE_BITS,
    MarksPage,
    in_order,
    joined,
    merged_into,
    with_marks,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from frazil.schema import KeyShape

    Offsets = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

__all__ = ["DeadMarks", "Folded", "KeyRows", "fold_rows"]

RECENT_MARKS: Final = 1 << 16
RECENT_SHIFT: Final = 4
"""Marks wait to be packed until they are so many, or a sixteenth of all."""
PASS_ROWS: Final = 4 << 20
"""So many rows are folded at a time when marks are computed from files."""


class KeyRows(NamedTuple):
    """Rows of a file: their offsets, key columns in key order, operations, which are partial."""

    offsets: Offsets
    keys: pa.RecordBatch
    ops: npt.NDArray[np.int8]
    partial: Flags | None = None


class Folded(NamedTuple):
    """Rows folded: the marks of those that are superseded, and the newest change of each key."""

    offsets: Offsets
    by: Offsets
    newest: Offsets
    newest_ops: npt.NDArray[np.int8]
    newest_keys: pa.RecordBatch


class DeadMarks:
    """A growing set of marks, sorted by the row's offset; the caller has the topic's lock.

    Most marks lie packed in pages, eight bytes each. New ones wait beside them, and come into the
    pages when they are a share of all: so a mark is copied a few times in its life, and sorted
    once. Arrays that it gives are never written to again.

    Args:
        beside: returns the bytes of marks that will come here, and are kept elsewhere till then.
    """

    def __init__(self, *, beside: Callable[[], int] | None = None) -> None:
        self._beside = beside
        self._pages: dict[int, MarksPage] = {}
        self._packed = 0
        self._recent = (NO_OFFSETS, NO_OFFSETS)
        self._new: list[tuple[Offsets, Offsets]] = []
        self.idle: set[int] = set()
        """Offsets of changes that did nothing."""

    def __len__(self) -> int:
        self._merge()
        return self._packed + len(self._recent[0])

    @property
    def nbytes(self) -> int:
        """Return the bytes it takes, with what is kept beside it."""
        beside = 0 if self._beside is None else self._beside()
        pages = sum(page.nbytes for page in list(self._pages.values()))
        new = sum(offsets.nbytes for offsets, _ in (self._recent, *self._new))
        return pages + 2 * new + 100 * len(self.idle) + beside

    def add(self, offsets: Offsets, by: Offsets) -> None:
        """Add marks; one that is there already changes nothing."""
        if len(offsets):
            self._new.append((offsets, by))
            self.idle.update(offsets[offsets == by].tolist())

    def below(self, *, cut: int, end: int) -> Offsets:
        """Return the rows below `cut` that changes below `end` supersede, in order."""
        self._merge()
        found = joined([page.below(cut=cut, end=end) for page in self._in_order()])
        offsets, by = self._recent
        return merged_into(found, offsets[(offsets < cut) & (by < end)])

    def superseding(self, *, first: int, end: int, cut: int) -> Offsets:
        """Return the changes of `[first, end)` that supersede a row below `cut`."""
        self._merge()
        parts = [page.unpacked() for page in self._in_order() if page.by_max >= first]
        found = [
            by[(offsets < cut) & (by >= first) & (by < end)]
            for offsets, by in (*parts, self._recent)
        ]
        return joined(found)

    def forget(self, below: int) -> None:
        """Drop the marks of rows below an offset, which are gone themselves."""
        self._merge()
        for number in [each for each in self._pages if each <= below >> PAGE_BITS]:
            offsets, by = self._pages.pop(number).unpacked()
            if len(offsets) and offsets[-1] >= below:
                start = int(np.searchsorted(offsets, below))
                self._pages[number] = MarksPage.of(offsets[start:], by[start:])
        self._packed = sum(page.marks for page in self._pages.values())
        offsets, by = self._recent
        kept = offsets >= below
        self._recent = (offsets[kept], by[kept])
        self.idle = {offset for offset in self.idle if offset >= below}

    def export(self) -> tuple[Offsets, Offsets]:
        """Return all rows' offsets, sorted, and by what each is superseded."""
        self._merge()
        self._pack()
        pages = [page.unpacked() for page in self._in_order()]
        return joined([offsets for offsets, _ in pages]), joined([by for _, by in pages])

    def _in_order(self) -> list[MarksPage]:
        return [self._pages[number] for number in sorted(self._pages)]

    def _merge(self) -> None:
        """Bring what was added into order, and into the pages once it is enough."""
        if not self._new:
            return
        offsets = np.concatenate([pair[0] for pair in self._new])
        by = np.concatenate([pair[1] for pair in self._new])
        offsets, by = in_order(offsets, by)
        fresh = np.ones(len(offsets), np.bool_)
        for number, part in _by_page(offsets):
            page = self._pages.get(number)
            if page is not None:
                fresh[part] = page.lacks(offsets[part])
        # Who is interrupted before this line (by Ctrl-C) has changed nothing.
        self._recent = with_marks(self._recent, (offsets[fresh], by[fresh]))
        self._new = []
        if len(self._recent[0]) > max(RECENT_MARKS, self._packed >> RECENT_SHIFT):
            self._pack()

    def _pack(self) -> None:
        """Put the marks that wait into their pages, of which only those are made anew."""
        offsets, by = self._recent
        pages = dict(self._pages)
        for number, part in _by_page(offsets):
            page = pages.get(number)
            fresh = (offsets[part], by[part])
            marks = fresh if page is None else with_marks(page.unpacked(), fresh)
            pages[number] = MarksPage.of(*marks)
        self._packed = sum(page.marks for page in pages.values())
        # Both or none, whoever is interrupted.
        self._pages = pages
        self._recent = (NO_OFFSETS, NO_OFFSETS)


def _by_page(offsets: Offsets) -> Iterator[tuple[int, slice]]:
    """Yield the pages that sorted offsets lie in, each with its part of them."""
    numbers = offsets >> PAGE_BITS
    starts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
    for start, stop in pairwise([*starts, len(offsets)]):
        yield int(numbers[start]), slice(start, stop)


def fold_rows(
    rows: Callable[[], Iterable[KeyRows]], shape: KeyShape, *, below: int
) -> Iterator[Folded]:
    """Fold all rows below an offset, a share of the keys at a time.

    `rows` is called once to count and once for each share, so that memory stays bounded however
    many rows there are. Rows may come in any order.
    """
    total = sum(len(part.offsets) for part in rows())
    shares = max(1, -(-total // PASS_ROWS))
    for share in range(shares):
        parts = [_share(part, shape, share=share, shares=shares, below=below) for part in rows()]
        parts = [part for part in parts if len(part.offsets)]
        if parts:
            yield _fold(parts, shape)


def _share(part: KeyRows, shape: KeyShape, *, share: int, shares: int, below: int) -> KeyRows:
    keys = part.keys.rename_columns(list(shape.names))
    chosen = part.offsets < below
    if shares > 1:
        chosen &= shape.hashes(keys) % np.uint32(shares) == share
    partial = np.zeros(len(part.offsets), np.bool_) if part.partial is None else part.partial
    if chosen.all():
        return KeyRows(part.offsets, keys, part.ops, partial)
    kept = keys.filter(pa.array(chosen))
    return KeyRows(part.offsets[chosen], kept, part.ops[chosen], partial[chosen])


def _fold(parts: list[KeyRows], shape: KeyShape) -> Folded:
    offsets = np.concatenate([part.offsets for part in parts])
    ops = np.concatenate([part.ops for part in parts])
    partial = np.concatenate([part.partial for part in parts if part.partial is not None])
    table = pa.Table.from_batches([_plain(part.keys, shape) for part in parts])
    numbers = _key_numbers(table)
    order = np.lexsort((offsets, numbers))
    idle = _idle(numbers[order], ops[order], partial[order])
    own = offsets[order[idle]]
    order = order[~idle]
    numbers, offsets, ops = numbers[order], offsets[order], ops[order]
    last = np.concatenate((numbers[1:] != numbers[:-1], [True]))[: len(numbers)]
    # A delete shows nothing, so that nothing needs to say that it is superseded.
    marked = np.flatnonzero(~last & (ops != OP_DELETE))
    newest = table.take(pa.array(order[last])).combine_chunks()
    batches = newest.to_batches()
    return Folded(
        np.concatenate((offsets[marked], own)),
        np.concatenate((offsets[marked + 1], own)),
        offsets[last],
        ops[last],
        batches[0] if batches else pa.RecordBatch.from_pylist([], schema=newest.schema),
    )


def _plain(keys: pa.RecordBatch, shape: KeyShape) -> pa.RecordBatch:
    """Return the key columns alone, without metadata, so that versions of a schema fit together."""
    fields = [pa.field(name, kind) for name, kind in zip(shape.names, shape.types, strict=True)]
    return pa.RecordBatch.from_arrays(keys.columns, schema=pa.schema(fields))


def _key_numbers(table: pa.Table) -> npt.NDArray[np.int64]:
    """Number the keys of a table: equal keys have equal numbers."""
    numbers: npt.NDArray[np.int64] | None = None
    for column in table.columns:
        coded = column.combine_chunks().dictionary_encode()
        codes = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        if numbers is not None:
            paired = pa.array(numbers * len(coded.dictionary) + codes).dictionary_encode()
            codes = paired.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        numbers = codes
    assert numbers is not None
    return numbers


def _idle(numbers: Offsets, ops: npt.NDArray[np.int8], partial: Flags) -> Flags:
    """Tell which changes, sorted by key and offset, update a key that is not there."""
    hopeful: Flags = partial & (ops == OP_UPDATE)
    if not hopeful.any():
        return hopeful
    places = np.arange(len(numbers))
    setter = np.maximum.accumulate(np.where(hopeful, -1, places))
    known: Flags = (setter >= 0) & (numbers[setter] == numbers) & (ops[setter] != OP_DELETE)
    return hopeful & ~known
