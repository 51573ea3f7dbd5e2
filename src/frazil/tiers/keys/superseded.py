"""Which rows of a keyed topic are superseded: marks in chunks, behind them, and below them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from frazil.tiers.chunk import ALIVE, Chunk
from frazil.tiers.keys.dead_marks import DeadMarks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from frazil.tiers.memory import TopicMemory

    Offsets = npt.NDArray[np.int64]

__all__ = ["Superseded"]

_FEW: Final = 8


class Superseded:
    """The marks of one topic's rows; all methods are called with the topic's lock.

    A row's mark lies in its chunk while it is in memory. Marks of rows that are not decoded yet
    wait until they are; marks of rows that are in files alone are in `files`.
    """

    def __init__(self, memory: TopicMemory) -> None:
        self._memory = memory
        self.files = DeadMarks(beside=self._waiting_bytes)
        self._waiting: list[tuple[Offsets, Offsets]] = []
        self._waiting_bases: list[tuple[Offsets, Offsets]] = []

    def _waiting_bytes(self) -> int:
        """Return the bytes of what waits for its rows; any thread may ask."""
        waiting = (*self._waiting, *self._waiting_bases)
        return sum(offsets.nbytes + values.nbytes for offsets, values in waiting)

    def stand(self, offsets: Offsets, bases: Offsets) -> None:
        """Say which rows partial changes, which are in memory, stand on."""
        self._waiting_bases.append((offsets, bases))
        self._settle_bases()

    def mark(self, offsets: Offsets, by: Offsets) -> None:
        """Say which changes supersede rows, wherever those lie."""
        count = len(offsets)
        if count > _FEW:
            memory = self._memory
            inside = (offsets >= memory.start) & (offsets < memory.settled)
            if not inside.all():
                self._mark_elsewhere(offsets[~inside], by[~inside])
                offsets, by = offsets[inside], by[inside]
            self._spread(offsets, by, Chunk.mark)
        elif count:
            self._mark_few(offsets.tolist(), by.tolist())

    def settled(self) -> None:
        """Move the marks of rows that have become chunks meanwhile."""
        if self._waiting_bases:
            self._settle_bases()
        if self._waiting:
            offsets, by, self._waiting = self._ready(self._waiting)
            self._spread(offsets, by, Chunk.mark)

    def evicted(self, chunks: Sequence[Chunk]) -> None:
        """Keep the marks of rows that from now on are in files alone."""
        for chunk in chunks:
            if chunk.dead is not None:
                rows = np.flatnonzero(chunk.dead != ALIVE)
                self.files.add(rows + chunk.offset, chunk.dead[rows])

    def below(self, *, cut: int, end: int) -> Offsets:
        """Return the rows below `cut` that changes below `end` supersede, in order."""
        # Marks that were loaded back may be of rows that are in memory again.
        found = [self.files.below(cut=min(cut, self._memory.start), end=end)]
        for chunk in self._memory.chunks:
            if chunk.offset >= cut:
                break
            if chunk.dead is not None:
                rows = np.flatnonzero(chunk.dead[: cut - chunk.offset] < end)
                found.append(rows + chunk.offset)
        return found[0] if len(found) == 1 else np.concatenate(found)

    def superseding(self, *, first: int, end: int) -> Offsets:
        """Return the changes of `[first, end)` that supersede a row below `first`, in order."""
        cut = min(first, self._memory.start)
        found = [self.files.superseding(first=first, end=end, cut=cut)]
        for chunk in self._memory.chunks:
            if chunk.offset >= first:
                break
            if chunk.dead is not None:
                by = chunk.dead[: first - chunk.offset]
                found.append(by[(by >= first) & (by < end)])
        return np.sort(np.concatenate(found))

    def _settle_bases(self) -> None:
        offsets, bases, self._waiting_bases = self._ready(self._waiting_bases)
        self._spread(offsets, bases, Chunk.stand)

    def _ready(
        self, waiting: list[tuple[Offsets, Offsets]]
    ) -> tuple[Offsets, Offsets, list[tuple[Offsets, Offsets]]]:
        """Return what is about rows in chunks, and what must wait on."""
        offsets = np.concatenate([pair[0] for pair in waiting])
        values = np.concatenate([pair[1] for pair in waiting])
        ready = offsets < self._memory.settled
        rest = [] if ready.all() else [(offsets[~ready], values[~ready])]
        return offsets[ready], values[ready], rest

    def _mark_few(self, offsets: list[int], by: list[int]) -> None:
        for offset, change in zip(offsets, by, strict=True):
            chunk = self._memory.chunk_at(offset)
            if chunk is not None:
                chunk.mark([offset - chunk.offset], [change])
            else:
                self._mark_elsewhere(np.array([offset]), np.array([change]))
        self._memory.recount()

    def _mark_elsewhere(self, offsets: Offsets, by: Offsets) -> None:
        in_files = offsets < self._memory.start
        self.files.add(offsets[in_files], by[in_files])
        if not in_files.all():
            self._waiting.append((offsets[~in_files], by[~in_files]))

    def _spread(
        self, offsets: Offsets, values: Offsets, put: Callable[[Chunk, Offsets, Offsets], None]
    ) -> None:
        """Give each chunk what is about its rows."""
        if not len(offsets):
            return
        chunks = self._memory.chunks
        order = np.argsort(offsets, kind="stable")
        offsets, values = offsets[order], values[order]
        starts = np.array([chunk.offset for chunk in chunks], np.int64)
        bounds = np.searchsorted(offsets, starts).tolist()
        bounds.append(len(offsets))
        for number, chunk in enumerate(chunks):
            first, stop = bounds[number], bounds[number + 1]
            if first < stop:
                put(chunk, offsets[first:stop] - chunk.offset, values[first:stop])
        self._memory.recount()
