"""Marks of settled rejects: exact for every reject, and few for many."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from frazil.lake.iceberg import decode_ranges, encode_ranges
from frazil.lake.rejects import RejectKey, settled_ranges

KEYS = st.builds(RejectKey, st.sampled_from([0, 3]), st.integers(0, 9))


@given(st.sets(KEYS, min_size=5), st.lists(st.sets(KEYS), max_size=6))
def test_the_named_rejects_are_settled_and_no_others(known, steps):
    """Whatever is settled in whatever order, the property's text has it."""
    settled, text = set(), "{}"
    for keys in steps:
        settled |= keys & known
        marks = decode_ranges({"m": text}, "m")
        text = encode_ranges(marks, settled_ranges(keys & known, known))
    marks = decode_ranges({"m": text}, "m")
    assert {
        key for key in known if key.part in marks and marks[key.part].has(key.offset)
    } == settled


def test_rejects_in_a_row_are_one_range():
    """Accepted records between two rejects cost nothing; an open reject between them does."""
    known = [RejectKey(-1, offset) for offset in range(0, 100_000, 7)]
    assert settled_ranges(known, known) == {-1: ((0, known[-1].offset + 1),)}
    assert settled_ranges([known[0], known[2]], known) == {-1: ((0, 1), (14, 15))}


def test_later_rejects_and_other_parts_are_open():
    """A range ends at its last reject."""
    marks = settled_ranges([RejectKey(0, 5)], [RejectKey(0, 5)])
    assert [marks[0].has(offset) for offset in (4, 5, 6)] == [False, True, False]
    assert 1 not in marks
