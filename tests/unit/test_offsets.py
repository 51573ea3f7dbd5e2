"""Range sets behave as the sets of offsets that they stand for."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from frazil.offsets import RangeSet

RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)
BOUNDS = st.tuples(st.integers(0, 45), st.integers(0, 45))


def offsets(ranges):
    return {offset for first, end in ranges for offset in range(first, end)}


@given(RANGES)
def test_a_set_is_ordered_and_its_ranges_are_apart(ranges):
    """The normal form has the offsets given, ascending, with a hole between any two ranges."""
    found = RangeSet(ranges)
    assert offsets(found) == offsets(ranges)
    assert found.size == len(offsets(ranges))
    assert all(first < end for first, end in found)
    assert all(before[1] < after[0] for before, after in pairwise(found))
    assert found.end == max(offsets(ranges), default=-1) + 1


@given(RANGES, RANGES, BOUNDS)
def test_operations_equal_those_of_sets(left, right, bounds):
    """Union, intersection, difference, bounds and membership equal those of Python's sets."""
    a, b = RangeSet(left), RangeSet(right)
    inside = set(range(*bounds))
    assert offsets(a | right) == offsets(left) | offsets(right)
    assert offsets(a & b) == offsets(left) & offsets(right)
    assert offsets(a - right) == offsets(left) - offsets(right)
    assert offsets(a.within(*bounds)) == offsets(left) & inside
    assert offsets(a.missing(*bounds)) == inside - offsets(left)
    assert {each for each in range(-1, 45) if a.has(each)} == offsets(left)
    assert (a | b) == RangeSet(offsets_as_ranges(left, right))


def offsets_as_ranges(*sources):
    return [(each, each + 1) for ranges in sources for each in offsets(ranges)]
