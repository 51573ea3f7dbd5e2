"""The ranges that an operator gave up, as a table's property."""

from __future__ import annotations

import pytest

from frazil.errors import CorruptionError
from frazil.lake.skipped import (
    SKIPPED,
    decode_skipped,
    encode_skipped,
    merged,
    skipped_ranges,
)


def test_ranges_that_touch_are_one():
    """Order does not matter, and empty ones are left out."""
    assert merged([(5, 7), (0, 2), (2, 3), (6, 9), (4, 4)]) == ((0, 3), (5, 9))
    assert merged([]) == ()


def test_what_is_skipped_lies_between_the_tables_word_and_where_it_goes_on():
    """A part that the table has not got begins at 0; one that is there has nothing."""
    assert skipped_ranges({0: 5, 1: 7}, {0: 9, 1: 7, 2: 3}) == {0: (5, 9), 2: (0, 3)}
    assert skipped_ranges({-1: 4}, {-1: 4}) == {}


def test_the_property_grows_and_a_repeated_range_changes_nothing():
    """A crash behind the property and before the choice is spent declares it once more."""
    text = encode_skipped({}, {-1: (3, 5)})
    known = decode_skipped({SKIPPED: text})
    assert known == {-1: ((3, 5),)}
    assert encode_skipped(known, {-1: (3, 5)}) == text
    assert decode_skipped({SKIPPED: encode_skipped(known, {0: (1, 2)})}) == {
        -1: ((3, 5),),
        0: ((1, 2),),
    }
    assert decode_skipped({}) == {}


@pytest.mark.parametrize("text", ["", "[]", '{"a": [[1, 2]]}', '{"0": [[1]]}', '{"0": 5}'])
def test_a_property_that_cannot_be_read_is_no_excuse(text):
    """Somebody wrote into it: nothing is taken as given up."""
    with pytest.raises(CorruptionError, match="skipped"):
        decode_skipped({SKIPPED: text})
