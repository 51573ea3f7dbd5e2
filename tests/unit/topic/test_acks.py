"""The answers of several parts become one ack each, or one error that tells what is there."""

from __future__ import annotations

import pytest

from frazil.errors import Conflict, Overloaded, Unavailable
from frazil.log import Pending
from frazil.model import Ack
from frazil.topic.acks import RANGES_SHOWN_MAX, answer, part_acks


def test_each_part_has_one_ack():
    """An ack reaches from the first frame's first record to the last one's last."""
    answers = [[Ack(0, 4, 7)], [Ack(10, 11, 8), Ack(15, 20, 9)]]
    assert part_acks([2, 5], answers) == [Ack(0, 4, 7, 2), Ack(10, 20, 9, 5)]


def test_an_error_that_all_met_is_the_error():
    """If nothing was written, the caller gets what the first frame met, as it is."""
    first = Conflict("no")
    with pytest.raises(Conflict) as caught:
        part_acks([0, 1], [[first], [Overloaded("full")]])
    assert caught.value is first


def test_an_error_of_unknown_outcome_comes_first():
    """What may have been written weighs more than what was not."""
    unknown = Unavailable("storage failed", outcome="unknown")
    with pytest.raises(Unavailable) as caught:
        part_acks([0, 1], [[Overloaded("full")], [unknown]])
    assert caught.value is unknown


def test_the_error_names_the_written_ranges():
    """If some frames were written, the error says which, by part, and why the others were not."""
    why = Overloaded("full")
    with pytest.raises(Unavailable) as caught:
        part_acks([3, 4], [[Ack(0, 4, 7), Ack(5, 5, 8)], [why]])
    details = caught.value.details
    assert details["outcome"] == "unknown"
    assert details["parts_written"] == "3: 0-4, 3: 5-5"
    assert (details["frames_written"], details["frames"]) == (2, 3)
    assert caught.value.__cause__ is why


def test_a_long_list_is_cut():
    """The error names so many ranges at most, and the number of frames."""
    count = RANGES_SHOWN_MAX + 5
    answers = [[Ack(n, n, n)] for n in range(count)]
    with pytest.raises(Unavailable) as caught:
        part_acks(range(count + 1), [*answers, [Conflict("no")]])
    written = caught.value.details["parts_written"]
    assert (written.count(":"), written[-1]) == (RANGES_SHOWN_MAX, "…")
    assert caught.value.details["frames_written"] == count


def test_an_answer_is_the_ack_or_the_error():
    """An error is returned, not raised: the answers of other frames count as well."""
    for value in (Ack(0, 0, 0), Conflict("no")):
        pending = Pending()
        pending.settle(value)
        assert answer(pending) is value
