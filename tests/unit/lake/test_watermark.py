"""The table of cases: what a look at a table means for a plan."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.lake.plan import PartRange, TableName
from frazil.lake.table import TableState, end_key, ends_of
from frazil.lake.watermark import Known, decide, rows_between, watermarks
from frazil.model import WHOLE

TABLE = TableName("ns", "t")


def view(summary=None, *, sid=5, properties=None, bounds=None, topic_id="ours"):
    return TableState(
        sid=sid,
        topic_id=topic_id,
        schema_version=1,
        summary_ends=summary,
        property_ends=properties or {},
        bound_ends=bounds or {},
    )


def known(remembered=0, durable=100, held=0, choice="", chosen=None):
    return Known(
        "ours",
        {WHOLE: remembered} if remembered else {},
        {WHOLE: durable},
        {WHOLE: held},
        choice,
        {} if chosen is None else {WHOLE: chosen},
    )


def plan(lo, hi, *, gaps=(), part=WHOLE):
    return PartRange(part, 1, lo, hi, (), gaps)


def decided(mark, known_facts, *ranges):
    return decide(TABLE, view({WHOLE: mark}), known_facts, ranges)


def test_a_table_of_another_topic_stops():
    """Another id, or none at all, is not ours, whatever else it says."""
    for topic_id in ("theirs", None):
        found = decide(TABLE, view({WHOLE: 20}, topic_id=topic_id), known(20), (plan(20, 30),))
        assert (found.case, found.reason) == ("stop", "foreign_table")
        assert "lake adopt" in found.message


def test_a_table_ahead_of_the_log_stops():
    """A watermark above durable stops, also where the plan would be done; durable itself is fine."""
    found = decided(101, known(durable=100), plan(0, 50))
    assert (found.case, found.reason) == ("stop", "ahead_of_log")
    assert decided(100, known(durable=100), plan(0, 50)).case == "done"


def test_a_part_that_the_log_does_not_know_stops():
    """A table with more parts than the topic is ahead of it."""
    found = decide(TABLE, view({0: 5, 1: 9}), Known("ours", {}, {0: 5}, {}), ())
    assert (found.reason, "part=1" in found.message) == ("ahead_of_log", True)


@pytest.mark.parametrize(
    ("mark", "case", "starts"),
    [(30, "done", {}), (29, "move", {WHOLE: 29}), (20, "move", {WHOLE: 20}), (19, "replan", {})],
)
def test_the_watermark_places_the_plan(mark, case, starts):
    """At or above its end it is done, within it moves from there, below it is made anew."""
    found = decided(mark, known(), plan(20, 30))
    assert (found.case, found.starts, found.marks) == (case, starts, {WHOLE: mark})
    assert found.rows == sum(30 - start for start in starts.values())


def test_a_rollback_stops_until_somebody_chooses():
    """Below what is remembered the table stops; replay takes its word, accept the memory's."""
    found = decided(20, known(25), plan(25, 30))
    assert (found.case, found.reason, found.marks) == ("stop", "rolled_back", {WHOLE: 20})
    found = decided(20, known(25, choice="replay", chosen=20), plan(25, 30))
    assert (found.case, found.marks, found.choice_spent) == ("replan", {WHOLE: 20}, False)
    found = decided(20, known(25, choice="accept", chosen=20), plan(25, 30))
    assert (found.case, found.starts, found.stated) == ("move", {WHOLE: 25}, {WHOLE: 20})
    assert not found.choice_spent


@pytest.mark.parametrize("choice", ["replay", "accept"])
def test_a_choice_is_not_one_for_the_next_rollback(choice):
    """A table below where it stood when the choice was made stops again."""
    found = decided(19, known(25, choice=choice, chosen=20), plan(25, 30))
    assert found.reason == "rolled_back"


@pytest.mark.parametrize("choice", ["replay", "accept"])
def test_a_choice_is_spent_when_the_table_is_where_it_was(choice):
    """Once the table's own word is what is remembered, the choice has had its effect."""
    assert decided(25, known(25, choice=choice, chosen=20), plan(20, 25)).choice_spent


def test_a_table_that_was_made_again_counts_as_rolled_back():
    """Expiry never takes the current snapshot: none at all, and a memory, is a loss."""
    empty = view(sid=None)
    assert decide(TABLE, empty, known(25), (plan(25, 30),)).reason == "rolled_back"
    assert decide(TABLE, empty, known(), (plan(0, 30),)).case == "move"
    base = view(sid=None, properties={WHOLE: 25})
    assert decide(TABLE, base, known(25), (plan(25, 30),)).case == "move"


def test_a_range_that_is_held_nowhere_stops_and_is_named():
    """Offsets between the table and the first held one are named; gaps explain them."""
    found = decided(20, known(held=24), plan(20, 30))
    assert found.reason == "missing_range"
    assert "from 20 to 23" in found.message
    found = decided(20, known(held=24), plan(20, 30, gaps=((20, 22),)))
    assert "from 22 to 23" in found.message
    gaps = ((22, 24), (20, 22), (25, 26))
    found = decided(20, known(held=24), plan(20, 30, gaps=gaps))
    assert (found.case, found.rows) == ("move", 5)
    found = decided(20, known(held=24, choice="accept"), plan(20, 30))
    assert (found.case, found.starts) == ("move", {WHOLE: 24})


def test_parts_are_handled_one_by_one():
    """Of one plan a part may be done, one filtered, one whole; a stop in any stops all."""
    facts = Known("ours", {}, {0: 90, 1: 90, 2: 90}, {})
    ranges = (plan(0, 10, part=0), plan(0, 10, part=1), plan(0, 10, part=2))
    found = decide(TABLE, view({0: 10, 1: 4}), facts, ranges)
    assert (found.case, found.starts, found.rows) == ("move", {1: 4, 2: 0}, 16)
    facts = Known("ours", {2: 3}, {0: 90, 1: 90, 2: 90}, {})
    assert decide(TABLE, view({0: 10, 1: 10}), facts, ranges).reason == "rolled_back"
    facts = Known("ours", {}, {0: 90, 1: 90, 2: 90, 3: 90}, {3: 1})
    assert decide(TABLE, view({0: 10, 1: 10}), facts, ranges).reason == "missing_range"


def test_without_summaries_the_highest_of_three_counts():
    """Property, bound and memory are lower bounds each; together they are no rollback."""
    sources = {"properties": {0: 9, 1: 2}, "bounds": {0: 4, 1: 7}}
    assert watermarks(view(**sources), {1: 5, 2: 3}) == ({0: 9, 1: 7, 2: 3}, False)
    found = decide(TABLE, view(bounds={WHOLE: 20}), known(25), (plan(20, 30),))
    assert (found.case, found.starts) == ("move", {WHOLE: 25})


def test_a_summary_counts_alone():
    """While a summary is left, neither an old property nor a bound says anything."""
    stated = view({WHOLE: 7}, properties={WHOLE: 9}, bounds={WHOLE: 11})
    assert watermarks(stated, {WHOLE: 13}) == ({WHOLE: 7}, True)


def test_a_look_without_a_plan_gives_marks_or_a_reason():
    """What a binding needs: where the table stands, or why it must not be used."""
    found = decided(20, known(20))
    assert (found.case, found.marks) == ("done", {WHOLE: 20})
    assert decided(20, known(21)).reason == "rolled_back"


def test_rows_are_counted_without_gaps():
    """A gap counts as far as it lies at or above the start; a part not asked for has none."""
    ranges = [plan(10, 30, gaps=((8, 12), (20, 25))), plan(0, 9, part=4)]
    assert (rows_between(ranges, {WHOLE: 11}), rows_between(ranges, {WHOLE: 22, 4: 2})) == (13, 12)


def test_keys_of_watermarks_are_read_as_they_are_written():
    """Each part has its key; other keys are not looked at."""
    ends = {WHOLE: 3, 0: 4, 12: 5}
    written = {end_key(part): str(end) for part, end in ends.items()}
    assert ends_of({**written, "frazil.offset-endless": "x", "other": "1"}) == ends


@given(
    mark=st.integers(0, 12),
    remembered=st.integers(0, 12),
    durable=st.integers(0, 12),
    held=st.integers(0, 12),
    lo=st.integers(0, 11),
    length=st.integers(1, 6),
)
def test_rows_move_only_if_nothing_is_lost_or_doubled(mark, remembered, durable, held, lo, length):
    """A move begins at the watermark, within the plan, above nothing missing."""
    found = decided(mark, known(remembered, durable, held), plan(lo, lo + length))
    if found.case == "move":
        assert found.starts == {WHOLE: mark}
        assert lo <= mark < lo + length
        assert max(remembered, held) <= mark <= durable
    elif found.case != "stop":
        assert (found.case == "done") == (mark >= lo + length)
    else:
        assert mark > durable or mark < max(remembered, held)
