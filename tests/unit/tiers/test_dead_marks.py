"""Marks of superseded rows: a set in order, packed, and never sorted as a whole again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.tiers.keys import dead_marks
from frazil.tiers.keys.dead_marks import DeadMarks
from frazil.tiers.keys.marks_page import PAGE_BITS
from frazil.tiers.keys.superseded import Superseded
from tests.unit.tiers.memory_topic import TableTopic

PAGE = 1 << PAGE_BITS
PLACES = (0, 7, PAGE - 3, PAGE, 3 * PAGE + 5, 1 << 40)
"""Where rows lie: in one page, at its edge, in others, far away."""


def change_of(row):
    """Return the change that supersedes a row: by itself, near, or further than 32 bits reach."""
    return row + (0, 1, 5_000_000, (1 << 32) - 1, 1 << 33)[row % 5]


rows_of_marks = st.lists(
    st.builds(lambda place, more: place + more, st.sampled_from(PLACES), st.integers(0, 20)),
    max_size=30,
)


@settings(max_examples=150)
@given(
    adds=st.lists(rows_of_marks, max_size=6),
    cut=st.sampled_from([0, 8, PAGE - 1, PAGE + 4, 4 * PAGE, 1 << 41]),
    end=st.sampled_from([0, 9, PAGE + 9, 1 << 32, (1 << 33) + 9, 1 << 42]),
    forgotten=st.sampled_from([None, 0, 9, PAGE, PAGE + 3, 1 << 40]),
    recent=st.sampled_from([0, 5, 1 << 16]),
)
def test_marks_are_what_a_dict_of_them_says(adds, cut, end, forgotten, recent):
    """Whatever is added, packed and forgotten, all looks agree with a plain dict."""
    known = dead_marks.RECENT_MARKS
    dead_marks.RECENT_MARKS = recent
    try:
        marks, model = DeadMarks(), {}
        for number, rows in enumerate(adds):
            marks.add(np.array(rows, np.int64), np.array([change_of(r) for r in rows], np.int64))
            model.update({row: change_of(row) for row in rows})
            if number % 2:
                assert len(marks) == len(model)
            if number == 3 and forgotten is not None:
                marks.forget(forgotten)
                model = {row: by for row, by in model.items() if row >= forgotten}
        below = sorted(row for row, by in model.items() if row < cut and by < end)
        assert marks.below(cut=cut, end=end).tolist() == below
        first = end // 2
        changes = sorted(by for row, by in model.items() if row < cut and first <= by < end)
        found = marks.superseding(first=first, end=end, cut=cut)
        assert sorted(found.tolist()) == changes
        offsets, by = marks.export()
        assert list(zip(offsets.tolist(), by.tolist(), strict=True)) == sorted(model.items())
        assert marks.idle == {row for row, by in model.items() if row == by}
    finally:
        dead_marks.RECENT_MARKS = known


def test_arrays_that_were_given_do_not_change():
    """What a snapshot got stays as it was when more marks come and old ones go."""
    marks = DeadMarks()
    marks.add(np.arange(0, 100_000, 2), np.arange(0, 100_000, 2) + 3)
    before = marks.below(cut=100_000, end=200_000)
    copy = before.copy()
    marks.add(np.arange(1, 100_000, 2), np.arange(1, 100_000, 2) + 3)
    assert len(marks.below(cut=100_000, end=200_000)) == 100_000
    marks.forget(50_000)
    assert np.array_equal(before, copy)


def test_marks_that_wait_for_their_rows_count():
    """Marks and bases of rows that are not decoded yet take memory, and say so until they are."""
    topic = TableTopic()
    topic.rows([{"id": str(number), "a": 1, "b": "x"} for number in range(100)])
    superseded = Superseded(topic.memory)
    topic.memory.on_settled = superseded.settled
    rows = np.arange(20)
    superseded.mark(rows, rows + 50)
    assert superseded.files.nbytes == 20 * 16
    superseded.stand(rows + 40, rows)
    assert superseded.files.nbytes == 40 * 16
    topic.memory.settle(100)
    superseded.settled()
    assert superseded.files.nbytes == 0
    assert topic.memory.chunk_at(3).dead[3] == 53


@pytest.mark.parametrize("order", ["ascending", "random"])
def test_a_mark_takes_about_eight_bytes(order):
    """A million marks take less than ten bytes each, in whatever pieces they came."""
    rows = np.arange(1_000_000)
    if order == "random":
        rows = np.random.default_rng(1).permutation(rows)
    marks = DeadMarks()
    for part in np.array_split(rows, 20):
        marks.add(part, part + 1_000_000)
        assert len(marks)
    assert len(marks) == 1_000_000
    assert marks.nbytes < 10 * 1_000_000


def test_marks_are_found_whatever_order_they_came_in():
    """Marks that come one by one behind many others are all found."""
    rows = np.random.default_rng(2).permutation(np.arange(400_000))
    marks = DeadMarks()
    marks.add(rows, rows + 1)
    assert len(marks) == 400_000
    for number in range(5):
        marks.add(np.array([400_000 + number]), np.array([500_000]))
        found = marks.below(cut=600_000, end=600_000)
        assert found.tolist() == list(range(400_001 + number))
