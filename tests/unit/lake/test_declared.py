"""Ranges that a table declares in its properties."""

from __future__ import annotations

import pytest

from frazil.errors import CorruptionError
from frazil.lake.iceberg import (
    SKIPPED,
    decode_ranges,
    encode_ranges,
    ranges_between,
    united,
    without,
)
from frazil.offsets import RangeSet


def test_ranges_are_put_together_and_taken_away_by_part():
    """One that is cut in the middle leaves two; a part that only others have is not there."""
    assert united({0: RangeSet([(0, 2)])}, {0: RangeSet([(2, 4)]), 1: RangeSet([(7, 8)])}) == {
        0: ((0, 4),),
        1: ((7, 8),),
    }
    ours = {0: RangeSet([(0, 10), (20, 30)]), 1: RangeSet([(1, 2)])}
    found = without(ours, {0: RangeSet([(3, 5), (8, 22)]), 2: RangeSet([(0, 9)])})
    assert found == {0: ((0, 3), (5, 8), (22, 30)), 1: ((1, 2),)}


def test_what_is_skipped_lies_between_the_tables_word_and_where_it_goes_on():
    """A part that the table has not got begins at 0; one that is there has nothing."""
    assert ranges_between({0: 5, 1: 7}, {0: 9, 1: 7, 2: 3}) == {0: ((5, 9),), 2: ((0, 3),)}
    assert ranges_between({-1: 4}, {-1: 4}) == {}


def test_the_property_grows_and_a_repeated_range_changes_nothing():
    """A crash behind the property and before the choice is spent declares it once more."""
    text = encode_ranges({}, {-1: ((3, 5),)})
    known = decode_ranges({SKIPPED: text}, SKIPPED)
    assert known == {-1: ((3, 5),)}
    assert encode_ranges(known, {-1: ((3, 5),)}) == text
    assert decode_ranges({SKIPPED: encode_ranges(known, {0: ((1, 2),)})}, SKIPPED) == {
        -1: ((3, 5),),
        0: ((1, 2),),
    }
    assert decode_ranges({}, SKIPPED) == {}


@pytest.mark.parametrize("text", ["", "[]", '{"a": [[1, 2]]}', '{"0": [[1]]}', '{"0": 5}'])
def test_a_property_that_cannot_be_read_is_no_excuse(text):
    """Somebody wrote into it: nothing is taken as given up."""
    with pytest.raises(CorruptionError, match="declared"):
        decode_ranges({SKIPPED: text}, SKIPPED)
