"""Bitmaps of partial changes, and how they follow the columns."""

from __future__ import annotations

import pyarrow as pa
import pytest

from frazil.errors import CorruptionError
from frazil.schema import BitmapMoves, bitmap_bytes, bitmap_of, positions_of


def test_a_bitmap_has_one_bit_a_column_in_the_order_of_the_format():
    """Column i is bit i % 8 of byte i // 8, and the bytes are those that the columns need."""
    assert bitmap_of([0, 3, 9], 10) == bytes([0b1001, 0b10])
    assert bitmap_of([], 8) == b"\0"
    assert [bitmap_bytes(columns) for columns in (1, 8, 9, 16, 17)] == [1, 1, 2, 2, 3]
    assert positions_of(bytes([0b1001, 0b10])) == [0, 3, 9]


def test_bits_follow_their_columns_by_id():
    """A moved column keeps its bit, a dropped one loses it, a new one has none."""
    moves = BitmapMoves([1, 2, 3, 4], [4, 1, 9, 3])
    assert positions_of(moves.moved(bitmap_of([0, 1, 3], 4))) == [0, 1]
    assert moves.moved(bitmap_of([1], 4)) == b"\0"


def test_a_bitmap_grows_with_the_columns():
    """Read under nine columns, a bitmap of eight has two bytes."""
    moves = BitmapMoves(range(8), range(9))
    assert moves.moved(b"\xff") == b"\xff\0"
    assert BitmapMoves(range(9), range(8)).moved(b"\x01\x01") == b"\x01"


def test_a_column_of_bitmaps_is_moved_and_keeps_its_nulls():
    """Null, which means a whole row, stays null; slices are read from where they start."""
    moves = BitmapMoves([1, 2], [2, 1])
    array = pa.array([b"\x03", b"\x01", None, b"\x02", b"\x01"], pa.binary()).slice(1)
    assert moves.moved_array(array).to_pylist() == [b"\x02", None, b"\x01", b"\x02"]
    empty = pa.nulls(3, pa.binary())
    assert moves.moved_array(empty) is empty


@pytest.mark.parametrize("bitmap", [b"", b"\x01\x00", b"\x04"])
def test_a_bitmap_of_other_columns_is_damage(bitmap):
    """Too few bytes, too many, or a bit behind the last column cannot have been written."""
    with pytest.raises(CorruptionError, match="does not fit"):
        BitmapMoves([1, 2], [1, 2, 3]).moved(bitmap)
