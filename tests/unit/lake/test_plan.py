"""Plans take whole sets of one schema version, oldest first, and follow the table's watermark."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.errors import InvalidRequest
from frazil.lake.plan import (
    PartRange,
    PartSets,
    Plan,
    StagedFile,
    StagedSet,
    TableName,
    decode_plan,
    encode_plan,
    plan_parts,
)
from frazil.model import WHOLE


def staged(first, end, *, version=1, size=100, gaps=()):
    """A set of one file; its offsets are dense but for gaps."""
    rows = end - first - sum(behind - start for start, behind in gaps)
    files = (StagedFile(f"{first}.parquet", rows, size, first, end - 1),) if rows else ()
    return StagedSet(first, end, version, files, gaps)


def part(*sets, committed=0, number=WHOLE):
    return PartSets(number, 7, committed, tuple(sets))


def planned(*parts, bytes_max=1000, files_max=100):
    return plan_parts(parts, bytes_max=bytes_max, files_max=files_max)


def test_nothing_staged_makes_no_plan():
    """Without sets, or with committed ones alone, there are no ranges."""
    assert (planned(part()), planned(part(staged(0, 5), committed=5))) == ((0, ()), (0, ()))


def test_sets_are_taken_up_to_the_limits():
    """Whole sets are taken until bytes or files would be too many."""
    sets = part(*(staged(at, at + 10) for at in range(0, 50, 10)))
    assert (planned(sets)[1][0].hi, planned(sets, bytes_max=250)[1][0].hi) == (50, 20)
    assert planned(sets, files_max=3)[1][0].hi == 30


def test_a_set_larger_than_the_limit_goes_alone():
    """At least one set is taken, however large."""
    ranges = planned(part(staged(0, 10, size=5000), staged(10, 20)))[1]
    assert [(each.lo, each.hi) for each in ranges] == [(0, 10)]


def test_a_plan_never_spans_a_change_of_columns():
    """Sets of the lowest schema version of all parts go first, the others wait."""
    one = part(staged(0, 10, version=1), staged(10, 20, version=2), number=0)
    two = part(staged(0, 10, version=2), number=1)
    version, ranges = planned(one, two)
    assert version == 1
    assert [(each.part, each.lo, each.hi) for each in ranges] == [(0, 0, 10)]


def test_a_table_in_the_middle_of_a_set_gets_the_rest_of_it():
    """The range begins at the watermark, also within a set; gaps below it do not count."""
    ranges = planned(part(staged(0, 10, gaps=((2, 6),)), staged(10, 20), committed=4))[1]
    (only,) = ranges
    assert (only.lo, only.hi, only.gaps, only.rows) == (4, 20, ((4, 6),), 14)
    assert [file.path for file in only.files] == ["0.parquet", "10.parquet"]


def test_a_set_without_records_moves_the_watermark():
    """A range that is a gap altogether has no file and no row."""
    (only,) = planned(part(staged(0, 10, gaps=((0, 10),))))[1]
    assert (only.lo, only.hi, only.files, only.rows) == (0, 10, (), 0)


@pytest.mark.parametrize(
    "sets", [(staged(5, 10),), (staged(0, 5), staged(6, 10)), (staged(0, 5), staged(4, 10))]
)
def test_sets_that_do_not_follow_one_another_are_refused(sets):
    """A hole or an overlap is an error, never a plan."""
    with pytest.raises(InvalidRequest, match="do not follow"):
        planned(part(*sets))


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    bytes_max=st.integers(1, 900),
    data=st.data(),
)
def test_plans_cover_a_topic_without_hole_or_overlap(lengths, bytes_max, data):
    """Plan after plan, the ranges follow one another from the watermark to the end."""
    ends = [sum(lengths[: number + 1]) for number in range(len(lengths))]
    sets = [staged(end - length, end) for end, length in zip(ends, lengths, strict=True)]
    committed = data.draw(st.integers(0, ends[-1]))
    while committed < ends[-1]:
        (only,) = planned(part(*sets, committed=committed), bytes_max=bytes_max)[1]
        assert only.lo == committed < only.hi
        assert only.rows == only.hi - only.lo
        committed = only.hi
    assert committed == ends[-1]


def test_a_plan_survives_being_persisted():
    """What is decoded equals what was encoded; anything else is refused."""
    plan = Plan(
        id="p",
        topic="/a/b",
        topic_id="00ff",
        table=TableName("a", "b"),
        kind="table",
        schema_version=3,
        schema="",
        parts=(PartRange(0, 1, 2, 9, (StagedFile("x", 6, 10, 2, 8),), ((3, 4),)),),
        created_us=5,
    )
    assert decode_plan(encode_plan(plan)) == plan
    assert (plan.rows, plan.bytes, plan.paths) == (6, 10, ["x"])
    assert str(plan.table.rejects) == "a.b__rejects"
    for junk in (b"", b"{}", b"\xff", encode_plan(plan)[:-2]):
        with pytest.raises(InvalidRequest, match="plan cannot be read"):
            decode_plan(junk)
