"""The map of a file's keys, made while the file is written.

Rows are written for a while, so their keys need not wait for the end: each large piece is sorted
by a thread beside the writer, and what is left to do at the end is to join sorted pieces.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from frazil.schema import KeyMap

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

    import numpy.typing as npt

    from frazil.schema.keys import Hashes

T = TypeVar("T")

__all__ = ["PIECE_ROWS", "GrowingKeys"]

PIECE_ROWS: Final = 65_536
"""So many keys are sorted at a time; fewer are not worth a thread."""


class GrowingKeys:
    """The keys of rows 0, 1, ... of one file, in the order in which they are added."""

    def __init__(self, beside: Executor) -> None:
        self._beside = beside
        self._waiting: list[Hashes] = []
        self._waiting_rows = 0
        self._rows = 0
        # One thread does one after the other: all pieces are there when they are joined.
        self._pieces: list[Future[npt.NDArray[np.uint64]]] = []
        self._file_form: Future[bytes] | None = None

    def add(self, hashes: Hashes) -> None:
        """Take the hashes of the next rows' keys."""
        self._waiting.append(hashes)
        self._waiting_rows += len(hashes)
        if self._waiting_rows >= PIECE_ROWS:
            self._give_away()

    def end(self) -> None:
        """Take note that no more rows come: what is left to do can begin."""
        if self._pieces and self._file_form is None:
            self._file_form = self._begun(self._join)

    def file_form(self) -> bytes:
        """Return the map of all rows as a file holds it."""
        return self._join() if self._file_form is None else self._file_form.result()

    def _join(self) -> bytes:
        pieces = [piece.result() for piece in self._pieces]
        if self._waiting:
            pieces.append(_sorted(self._waiting, self._rows))
        entries = np.concatenate(pieces)
        if len(pieces) > 1:
            # Of runs that are sorted each, this kind of sort merely merges.
            entries.sort(kind="stable")
        return KeyMap(entries).to_bytes()

    def _give_away(self) -> None:
        self._pieces.append(self._begun(_sorted, self._waiting, self._rows))
        self._rows += self._waiting_rows
        self._waiting, self._waiting_rows = [], 0

    def _begun(self, work: Callable[..., T], *arguments: Any) -> Future[T]:
        """Have work done beside the writer, or at once where no thread can be had for it."""
        try:
            return self._beside.submit(work, *arguments)
        except RuntimeError:
            # The interpreter is about to end, or the system has no thread left.
            done: Future[T] = Future()
            done.set_result(work(*arguments))
            return done


def _sorted(hashes: Sequence[Hashes], first: int) -> npt.NDArray[np.uint64]:
    return KeyMap.build(np.concatenate(hashes), first=first).entries
