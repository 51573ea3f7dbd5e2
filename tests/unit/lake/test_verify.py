"""What a verification means, and what is checked without Spark."""

from __future__ import annotations

import pytest

from frazil.lake.iceberg import Snapshot
from frazil.lake.plan import TableName
from frazil.lake.verify import (
    PartFacts,
    Problem,
    VerifyResult,
    column_names,
    miscounted,
    part_facts,
    ranges_text,
    removed_rows,
)
from frazil.log import SpecialRange
from frazil.schema import declare_schema

UID = "00aa"


def result(**facts):
    given = {"rows": 60, "begins": {-1: 0}, "ends": {-1: 60}}
    return VerifyResult(
        topic="/a/b", topic_id=UID, table=TableName("a", "b"), sid=5, **{**given, **facts}
    )


def ours(sid, parent, end, rows_in, **facts):
    """A snapshot of a commit; `facts` go over what is right."""
    summary = {
        "operation": "append",
        "frazil.topic-id": UID,
        "frazil.rows-in": rows_in,
        "frazil.rows-out": rows_in,
        "frazil.rows-rejected": 0,
        "frazil.rows-dropped": 0,
        "frazil.offset-end": end,
        "added-records": rows_in,
    }
    summary |= {
        key.replace("_", "-").replace("rows-", "frazil.rows-"): v for key, v in facts.items()
    }
    return Snapshot(sid, parent, summary={key: str(value) for key, value in summary.items()})


@pytest.mark.parametrize(
    ("facts", "verdict", "code"),
    [
        ({}, "good", 0),
        ({"deleted": 2}, "rows deleted by others", 2),
        ({"problems": (Problem("doubled", 1, ("7",)),)}, "damaged", 8),
        ({"problems": (Problem("missing", 1, ("7",)),), "deleted": 2}, "damaged", 8),
    ],
)
def test_the_worst_finding_decides(facts, verdict, code):
    """Damage is damage whatever else there is; rows deleted by others are no damage."""
    made = result(**facts)
    assert (made.verdict, made.exit_code) == (verdict, code)
    assert (made.lines[0].split(maxsplit=1)[1], made.facts()["exit_code"]) == (verdict, code)


def test_a_problem_says_what_how_often_and_where():
    """Places are shown up to twenty, and that there are more."""
    few = Problem("missing", 2, ("7", "9")).text
    assert few.startswith("missing: 2 offsets")
    assert few.endswith(": 7, 9")
    many = Problem("missing", 30, tuple(map(str, range(30)))).text
    assert many.endswith("18, 19, …")
    assert ranges_text(3, [(4, 5), (7, 9)]) == ["part 3: 4", "part 3: 7..8"]


def test_a_table_that_is_behind_says_where_it_ends():
    """A table that others rolled back lacks committed rows at its end."""
    lines = result(rows=0, short={-1: 10}, problems=(Problem("missing", 50),)).lines
    short = "the table ends at 10, committed were 60: rolled back or replaced by others"
    assert f"short      {short}" in lines


def test_problems_of_one_kind_are_one():
    """Counts add up, and of the places the first are kept."""
    many = tuple(map(str, range(19)))
    found = result()
    found.add(Problem("altered", 19, many), Problem("extra", 1, ("x",)))
    found.add(Problem("altered", 3, ("a", "b")))
    assert found.problems == (Problem("altered", 22, (*many, "a")), Problem("extra", 1, ("x",)))


@pytest.mark.parametrize("facts", [{"rows_out": 29}, {"added_records": 29}, {"rows_dropped": 1}])
def test_counts_that_do_not_add_up_are_found(facts):
    """Rows in are rows out, rejected and dropped; rows out are those that were added."""
    assert miscounted([ours(7, 1, 60, 30), ours(1, None, 30, 30)], UID) == []
    assert miscounted([ours(1, None, 30, 30, **facts)], UID) == [Problem("miscounted", 1, ("1",))]
    assert miscounted([ours(1, None, 30, 30, **facts)], "another") == []


def test_a_side_table_may_have_had_a_part_of_the_rejects_before():
    """It has at most the rejects of a plan."""
    plan = {"rows_out": 8, "rows_rejected": 2}
    line = [ours(1, None, 10, 10, **plan, added_records=2)]
    line.append(ours(2, 1, 90, 10, **plan, added_records=1))
    assert miscounted(line, UID, side=True) == []
    line.append(ours(3, 2, 99, 10, **plan, added_records=3))
    assert miscounted(line, UID, side=True) == [Problem("miscounted", 1, ("3",))]


def test_removals_are_those_of_others_only():
    """Compaction removes no row, and an update puts as many in as it takes out."""
    rewritten = {"operation": "overwrite", "deleted-records": "30", "added-records": "28"}
    line = [
        Snapshot(1, 9, summary={"operation": "delete", "deleted-records": "2"}),
        Snapshot(2, 1, summary={"operation": "replace", "deleted-records": "30"}),
        Snapshot(3, 2, summary=rewritten),
        Snapshot(4, 3, summary={"operation": "overwrite", "added-position-deletes": "1"}),
        ours(5, 4, 30, 30),
    ]
    assert removed_rows(line, UID) == 5


def test_what_the_log_has_lost_differs_from_declared_gaps():
    """A row where no record ever was is damage; one that only the table still has is not."""
    gap, lost = SpecialRange(5, 8, "gap", ""), SpecialRange(7, 12, "lost", "")
    assert part_facts(-1, [gap, lost]) == PartFacts(-1, ((5, 8),), ((8, 12),))
    assert part_facts(0, []) == PartFacts(0)


def test_columns_are_followed_by_their_ids():
    """A renamed column is the same one, a dropped one is not asked for, a new one is null."""
    then = declare_schema({"a": "int", "b": "string", "c": "int"})
    now = then.remove(2).set(0, then.field(0).with_name("z"))
    now = now.append(then.field(2).with_name("d").with_metadata({**then.field(2).metadata}))
    names, added = column_names(then, now, by_id=True)
    assert (names, added) == ({"a": "z", "b": "b", "c": "d"}, ())
    assert column_names(then.remove(2), now, by_id=True) == ({"a": "z", "b": "b"}, ("d",))
    assert column_names(then, now.remove(2), by_id=True)[0] == {"a": "z", "b": "b"}
