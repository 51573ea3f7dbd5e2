"""Deletion vectors of rows in files: a sorted set that grows."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.tiers.keys import deletion_vectors
from frazil.tiers.keys.deletion_vectors import DeletionVector

FAR = 1 << 40


def change_of(row):
    """Return the change that supersedes a row: itself, one nearby, or one far ahead."""
    return row + (0, 1, 5_000_000, (1 << 32) - 1, 1 << 33)[row % 5]


rows_of_entries = st.lists(
    st.builds(lambda base, more: base + more, st.sampled_from([0, 7, FAR]), st.integers(0, 20)),
    max_size=30,
)


@settings(max_examples=150)
@given(
    adds=st.lists(rows_of_entries, max_size=6),
    cut=st.sampled_from([0, 8, 20, FAR + 4, 2 * FAR]),
    end=st.sampled_from([0, 9, 5_000_009, 1 << 32, (1 << 33) + 9, 2 * FAR]),
    pending=st.sampled_from([0, 5, 1 << 16]),
)
def test_the_vector_equals_a_dict(adds, cut, end, pending):
    """After any adds and merges, every answer agrees with a plain dict."""
    known = deletion_vectors.PENDING_MAX
    deletion_vectors.PENDING_MAX = pending
    try:
        vector, model = DeletionVector(), {}
        for number, rows in enumerate(adds):
            vector.add(np.array(rows, np.int64), np.array([change_of(r) for r in rows], np.int64))
            model.update({row: change_of(row) for row in rows})
            if number % 2:
                assert len(vector.below(cut=1 << 62, end=1 << 62)) == len(model)
        below = sorted(row for row, by in model.items() if row < cut and by < end)
        assert vector.below(cut=cut, end=end).tolist() == below
        assert len(vector.below(cut=1 << 62, end=1 << 62)) == len(model)
    finally:
        deletion_vectors.PENDING_MAX = known


def test_a_row_keeps_its_first_entry():
    """A second entry of a row changes nothing, whether the first one is merged or pending."""
    vector = DeletionVector()
    vector.add(np.array([9, 3]), np.array([10, 12]))
    vector.add(np.array([3, 5]), np.array([99, 5]))
    assert vector.below(cut=100, end=50).tolist() == [3, 5, 9]
    vector.add(np.array([9]), np.array([99]))
    assert vector.below(cut=100, end=50).tolist() == [3, 5, 9]
    assert vector.below(cut=100, end=12).tolist() == [5, 9]


def test_returned_arrays_do_not_change():
    """The array of a snapshot stays as it is when entries come."""
    vector = DeletionVector()
    vector.add(np.arange(0, 100_000, 2), np.arange(0, 100_000, 2) + 3)
    before = vector.below(cut=100_000, end=200_000)
    copy = before.copy()
    vector.add(np.arange(1, 100_000, 2), np.arange(1, 100_000, 2) + 3)
    assert len(vector.below(cut=100_000, end=200_000)) == 100_000
    assert np.array_equal(before, copy)
    assert vector.nbytes == 100_000 * 16
