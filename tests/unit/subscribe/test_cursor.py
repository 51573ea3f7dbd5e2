"""A cursor is a set of offsets, whatever the order they come in."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.errors import CorruptionError
from frazil.subscribe.cursor import RANGES_MAX, Cursor, ranges_of

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=30)


def filled(ranges):
    """Return a cursor and the set that it stands for."""
    cursor, expected = Cursor(), set()
    for first, length in ranges:
        cursor.ack_range(first, first + length)
        expected |= set(range(first, first + length))
    return cursor, expected


@given(RANGES)
def test_a_cursor_equals_a_set(ranges):
    """It contains what was acked, and its form is the smallest one."""
    cursor, expected = filled(ranges)
    assert {offset for offset in range(80) if offset in cursor} == expected
    edges = [edge for pair in cursor.ranges() for edge in pair]
    assert edges == sorted(set(edges)), "ranges touch, overlap or are empty"
    assert not edges or edges[0] > cursor.acked_below
    assert cursor.end == max(expected, default=-1) + 1
    assert cursor.range_count == len(list(cursor.ranges()))
    assert cursor.acked_below + cursor.acked_above == len(expected)


@given(RANGES)
def test_bytes_are_exact(ranges):
    """Decoding gives the same cursor; the same set has the same bytes."""
    cursor, expected = filled(ranges)
    again = Cursor.decode(cursor.encode())
    assert again == cursor
    one_by_one = Cursor()
    for offset in sorted(expected, reverse=True):
        one_by_one.ack(offset)
    assert one_by_one.encode() == cursor.encode()


@given(RANGES, RANGES)
def test_merging_is_commutative_and_idempotent(one, other):
    """The order and the number of merges make no difference."""
    left, expected = filled(one)
    right, more = filled(other)
    left_first, right_first = left.copy(), right.copy()
    left_first.merge(right)
    right_first.merge(left)
    assert left_first == right_first
    left_first.merge(right)
    assert left_first == right_first
    assert {offset for offset in range(80) if offset in left_first} == expected | more
    assert left == filled(one)[0], "a copy changed its original"


@given(st.binary(max_size=24))
def test_foreign_bytes_are_refused_or_exact(data):
    """Junk never makes a cursor that would be written otherwise."""
    try:
        cursor = Cursor.decode(data)
    except CorruptionError:
        return
    assert cursor.encode() == data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x02\x00\x00",
        b"\x01\x00",
        b"\x01\x00\x01",
        b"\x01\x00\x01\x00\x01",
        b"\x01\x00\x01\x01\x00",
        b"\x01\x80",
        b"\x01\x80\x00\x00",
        b"\x01" + b"\xff" * 11 + b"\x00\x00",
    ],
)
def test_damaged_bytes_are_named(data):
    """A wrong version, a wrong count, empty ranges and cut numbers are corruption."""
    with pytest.raises(CorruptionError, match="cursor"):
        Cursor.decode(data)


def test_a_cursor_is_full_at_its_limit():
    """Ten thousand ranges are full; filling one gap makes room again."""
    cursor = Cursor()
    for at in range(RANGES_MAX - 1):
        cursor.ack(2 * at + 1)
    assert not cursor.is_full
    cursor.ack(2 * RANGES_MAX)
    assert cursor.is_full
    assert Cursor.decode(cursor.encode()) == cursor
    cursor.ack(0)
    assert not cursor.is_full
    assert cursor.acked_below == 2


def test_large_offsets_survive():
    """Offsets near the end of 63 bits keep their value."""
    cursor = Cursor(2**63 - 10, [(2**63 - 5, 2**63 - 1)])
    assert Cursor.decode(cursor.encode()) == cursor


@given(st.sets(st.integers(0, 40)))
def test_ranges_of_ascending_offsets(offsets):
    """The ranges contain exactly the offsets, as few of them as possible."""
    ranges = ranges_of(sorted(offsets))
    assert {offset for first, end in ranges for offset in range(first, end)} == offsets
    assert all(end < first for (_, end), (first, _) in pairwise(ranges))


def test_a_cursor_shows_what_it_holds():
    """Its text names the ranges, it equals no other kind of object and has no hash."""
    cursor = Cursor(3, [(5, 7)])
    assert repr(cursor) == "Cursor(3, [(5, 7)])"
    assert cursor != 3
    with pytest.raises(TypeError):
        hash(cursor)
