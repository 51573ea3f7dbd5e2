"""A cursor is a set of offsets, whatever the order they come in."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.log.cursor import RANGES_MAX, Cursor, gaps_of, ranges_of

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
def test_one_set_has_one_form(ranges):
    """Whatever the order, the same offsets make equal cursors; a copy changes by itself."""
    cursor, expected = filled(ranges)
    one_by_one = Cursor()
    for offset in sorted(expected, reverse=True):
        one_by_one.ack(offset)
    assert one_by_one == cursor
    one_by_one.copy().ack_range(0, 100)
    assert one_by_one == cursor


def test_a_cursor_is_full_at_its_limit():
    """Ten thousand ranges are full; filling one gap makes room again."""
    cursor = Cursor()
    for at in range(RANGES_MAX - 1):
        cursor.ack(2 * at + 1)
    assert not cursor.is_full
    cursor.ack(2 * RANGES_MAX)
    assert cursor.is_full
    cursor.ack(0)
    assert not cursor.is_full
    assert cursor.acked_below == 2


@given(st.sets(st.integers(0, 40)))
def test_ranges_of_ascending_offsets(offsets):
    """The ranges contain exactly the offsets, as few of them as possible."""
    ranges = ranges_of(sorted(offsets))
    assert {offset for first, end in ranges for offset in range(first, end)} == offsets
    assert all(end < first for (_, end), (first, _) in pairwise(ranges))


@given(st.sets(st.integers(5, 40)))
def test_gaps_are_what_the_ranges_leave_out(offsets):
    """Gaps and ranges together are everything, once."""
    gaps, ranges = gaps_of(sorted(offsets), first=5, end=41), ranges_of(sorted(offsets))
    found = [offset for first, end in (*gaps, *ranges) for offset in range(first, end)]
    assert sorted(found) == list(range(5, 41))
    assert all(end < first for (_, end), (first, _) in pairwise(gaps))


def test_a_cursor_shows_what_it_holds():
    """Its text names the ranges, it equals no other kind of object and has no hash."""
    cursor = Cursor(3, [(5, 7)])
    assert repr(cursor) == "Cursor(3, [(5, 7)])"
    assert cursor != 3
    with pytest.raises(TypeError):
        hash(cursor)
