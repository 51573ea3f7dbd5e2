"""The window of the last 10,000 records says what a list of all records would say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from frazil.lake.reject_window import (
    REMEMBERED_MAX,
    RejectWindow,
    decode_window,
    densest,
    encode_window,
    spread,
    too_many,
)

batches = st.lists(
    st.tuples(st.integers(1, 12_000), st.lists(st.integers(0, 11_999), max_size=90)), max_size=6
)


def test_places_are_densest_where_most_lie_within_the_window():
    """Wherever the window begins; its end does not count."""
    assert densest([]) == 0
    assert densest([0, 10_000]) == 1
    assert densest([9_999, 0, 30_000]) == 2
    assert densest([*range(0, 100_000, 200), *range(50_001, 50_021)]) == 50 + 20


@given(batches)
def test_the_verdict_is_that_of_a_list_of_all_records(given_batches):
    """Each batch stops exactly if 10,000 records in a row that end in it have too many rejects."""
    window, before, total = RejectWindow(), [], 0
    for records, chosen in given_batches:
        places = sorted({place for place in chosen if place < records})
        every = [*before, *(total + place for place in places)]
        known, rejects = window.worst(records, places)
        near = [place for place in every if place >= total - 10_000]
        want = (min(total + records, 10_000), densest(near))
        assert known == want[0]
        assert too_many(known, rejects) == too_many(*want)
        window = window.after(records, places)
        before, total = every, total + records
        newest = [total - 1 - place for place in reversed(before) if total - 1 - place < 10_000]
        assert list(window.distances) == newest[:REMEMBERED_MAX]
        assert window.records == min(total, 10_000)


@given(st.integers(0, 10_000), st.lists(st.integers(0, 9_999), max_size=REMEMBERED_MAX))
def test_a_window_survives_as_text(records, distances):
    """What the summary of a snapshot has is the window."""
    window = RejectWindow(records, tuple(distances))
    assert decode_window(encode_window(window)) == window


@given(st.integers(0, 40_000), st.integers(0, 20_000))
def test_a_number_alone_is_spread_evenly(records, rejects):
    """As many as there were in the window, or as are remembered; none where nothing was."""
    window = spread(records, min(rejects, records))
    assert window.records == min(records, 10_000)
    assert len(window.distances) <= min(rejects, REMEMBERED_MAX)
    assert list(window.distances) == sorted(set(window.distances))
    if 0 < rejects <= records <= 10_000:
        assert len(window.distances) == min(rejects, REMEMBERED_MAX)
