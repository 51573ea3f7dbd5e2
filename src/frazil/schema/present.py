"""The bitmap of a partial change: its columns, by their positions in its schema version.

Bit `i % 8` of byte `i // 8` is column `i`; there are as many bytes as the columns need. When a
record of one version is read under another, its bits are moved by column id.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa

from frazil.errors import CorruptionError

__all__ = ["BitmapMoves", "bitmap_bytes", "bitmap_of", "positions_of"]

KNOWN_MAX: Final = 4096


def bitmap_bytes(columns: int) -> int:
    """Return how many bytes the bitmap of a schema with `columns` columns has."""
    return (columns + 7) >> 3


def bitmap_of(positions: Iterable[int], columns: int) -> bytes:
    """Return the bitmap of `positions` in a schema with `columns` columns."""
    bits = 0
    for position in positions:
        assert position < columns
        bits |= 1 << position
    return bits.to_bytes(bitmap_bytes(columns), "little")


def positions_of(bitmap: bytes) -> list[int]:
    """Return the positions of the columns in `bitmap`, ascending."""
    bits = int.from_bytes(bitmap, "little")
    return [position for position in range(bits.bit_length()) if bits >> position & 1]


class BitmapMoves:
    """Converts bitmaps of one schema version to another. Safe to share."""

    __slots__ = ("_columns", "_known", "_places", "_width")

    def __init__(self, written_ids: Sequence[int], wanted_ids: Sequence[int]) -> None:
        places = {number: position for position, number in enumerate(wanted_ids)}
        self._places = tuple(places.get(number) for number in written_ids)
        self._columns = len(wanted_ids)
        self._width = bitmap_bytes(len(written_ids))
        self._known: dict[bytes, bytes] = {}

    def moved(self, bitmap: bytes) -> bytes:
        """Return `bitmap` under the wanted version; columns absent from that version are dropped.

        Raises:
            CorruptionError: if it is no valid bitmap of the version it was written under.
        """
        found = self._known.get(bitmap)
        if found is not None:
            return found
        positions = positions_of(bitmap)
        if len(bitmap) != self._width or (positions and positions[-1] >= len(self._places)):
            raise CorruptionError("bitmap of a change does not fit its schema", bytes=len(bitmap))
        places = [self._places[position] for position in positions]
        found = bitmap_of([place for place in places if place is not None], self._columns)
        if len(self._known) < KNOWN_MAX:
            self._known[bitmap] = found
        return found

    def moved_array(self, present: pa.Array) -> pa.Array:
        """Return a column of bitmaps under the wanted version; null stays null."""
        if present.null_count == len(present):
            return present
        coded = present.dictionary_encode()
        bitmaps = [self.moved(bitmap) for bitmap in coded.dictionary.to_pylist()]
        return pa.array(bitmaps, pa.binary()).take(coded.indices)
