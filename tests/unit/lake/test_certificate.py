"""What findings mean, and what a table's own metadata proves."""

from __future__ import annotations

import msgspec
import pytest

from frazil.errors import CorruptionError
from frazil.lake.certificate import (
    Certificate,
    Findings,
    PartFacts,
    Problem,
    joined_problems,
    ranges_text,
)
from frazil.lake.plan import PartRange, TableName
from frazil.lake.verify import bundles, column_names, part_facts
from frazil.lake.verify_chain import Snapshot, check_chain, holes, line_of, records_between
from frazil.log import SpecialRange
from frazil.schema import declare_schema

UID = "00aa"


def findings(**facts):
    given = {"rows": 60, "begins": {-1: 0}, "ends": {-1: 60}, "versions": {"spark": "4.1"}}
    return Findings(
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
    return Snapshot(sid, parent, {key: str(value) for key, value in summary.items()})


def kinds(line, gaps=(), **options):
    found = check_chain(line, UID, {-1: gaps}, **options)
    return {each.kind: each.places for each in found.problems}


@pytest.mark.parametrize(
    ("facts", "verdict", "code"),
    [
        ({}, "good", 0),
        ({"deleted": 2, "foreign": (9,)}, "rows deleted by others", 2),
        ({"problems": (Problem("doubled", 1, ("7",)),)}, "damaged", 8),
        ({"problems": (Problem("missing", 1, ("7",)),), "deleted": 2}, "damaged", 8),
    ],
)
def test_the_worst_finding_decides(facts, verdict, code):
    """Damage is damage whatever else there is; rows deleted by others are no damage."""
    made = Certificate(findings(**facts), 0)
    assert (made.verdict, made.exit_code) == (verdict, code)
    assert made.lines[0].split(maxsplit=1)[1] == verdict
    assert made.facts()["exit_code"] == code


def test_the_digest_is_of_what_was_found_only():
    """Time and versions do not change it, every count does."""
    first = Certificate(findings(), 1)
    assert first.digest == Certificate(findings(versions={"spark": "9"}), 2).digest
    assert first.digest != Certificate(findings(rows=59), 1).digest
    assert first.digest != Certificate(findings(content="00"), 1).digest


def test_a_problem_says_what_how_often_and_where():
    """Places are shown up to twenty, and that there are more."""
    few = Problem("missing", 2, ("7", "9")).text
    assert few.startswith("missing: 2 offsets")
    assert few.endswith(": 7, 9")
    many = Problem("missing", 30, tuple(map(str, range(30)))).text
    assert many.endswith("18, 19, …")
    assert ranges_text(3, [(4, 5), (7, 9)]) == ["part 3: 4", "part 3: 7..8"]


def test_a_table_that_is_behind_says_where_it_ends_and_why_nothing_was_compared():
    """Nobody reads that the disk tier has no files when it has them and the table lost the rows."""
    lost = findings(rows=0, behind={-1: 10}, staged=2, problems=(Problem("missing", 50),))
    lines = Certificate(lost, 0).lines
    assert "compared   none: the table has no row of the disk tier's 2 files" in lines
    behind = "the table ends at 10, committed were 60: rolled back or replaced by others"
    assert f"behind     {behind}" in lines
    unread = Certificate(findings(problems=(Problem("file", 1, ("x",)),)), 0).lines
    assert "compared   none: the table cannot be read" in unread
    assert not [line for line in unread if line.startswith("behind")]
    assert "compared   none: the disk tier holds no files of it" in Certificate(findings(), 0).lines


def test_a_table_without_our_first_commit_begins_where_it_says():
    """Replaced or empty ones lack what was before; of an expired or adopted one nobody can tell."""
    begin = {-1: 5}
    root = Snapshot(1, None, {"operation": "append", "added-records": "3"})
    assert check_chain([], UID, {}, begin=begin).begins == begin
    assert check_chain([root], UID, {}, begin=begin).begins == begin
    assert check_chain([root, ours(2, 1, 9, 4)], UID, {}, begin=begin).begins == begin
    assert check_chain([Snapshot(1, 7, root.summary)], UID, {}, begin=begin).begins is None
    theirs = Snapshot(1, None, {**root.summary, "frazil.topic-id": "another"})
    assert check_chain([theirs], UID, {}, begin=begin).begins is None


def test_problems_of_one_kind_are_one():
    """Counts add up, and of the places the first are kept."""
    many = tuple(map(str, range(19)))
    found = joined_problems(
        [
            Problem("altered", 19, many),
            Problem("file", 1, ("x",)),
            Problem("altered", 3, ("a", "b")),
        ]
    )
    assert found == (Problem("altered", 22, (*many, "a")), Problem("file", 1, ("x",)))


def test_findings_outlive_the_wire():
    """What the worker sends is what the engine judges."""
    sent = findings(problems=(Problem("file", 1, ("x",)),), begins={0: 1, 1: 2})
    body = msgspec.json.decode(msgspec.json.encode(msgspec.to_builtins(sent, str_keys=True)))
    assert msgspec.convert(body, Findings, str_keys=True) == sent


def test_the_line_leads_from_the_oldest_that_is_left_to_the_current_one():
    """Snapshots of other branches and before an expired one are not in it."""
    metadata = {
        "current-snapshot-id": 4,
        "snapshots": [
            {"snapshot-id": 1},
            {"snapshot-id": 3, "parent-snapshot-id": 2, "summary": {"a": "b"}},
            {"snapshot-id": 4, "parent-snapshot-id": 3},
            {"snapshot-id": 5, "parent-snapshot-id": 3},
        ],
    }
    assert [each.snapshot_id for each in line_of(msgspec.json.encode(metadata))] == [3, 4]
    with pytest.raises(CorruptionError):
        line_of(b"{")


def test_commits_that_follow_one_another_are_good():
    """Also with a gap between them, and with a snapshot of others."""
    foreign = Snapshot(2, 1, {"operation": "replace", "deleted-records": "30"})
    line = [ours(1, None, 30, 30), foreign, ours(3, 2, 60, 25)]
    found = check_chain(line, UID, {-1: ((40, 45),)})
    assert (found.problems, found.removals) == ((), ())
    assert (found.begins, found.length) == ({-1: 0}, 3)


@pytest.mark.parametrize("facts", [{"rows_out": 29}, {"added_records": 29}, {"rows_dropped": 1}])
def test_counts_that_do_not_add_up_are_found(facts):
    """Rows in are rows out, rejected and dropped; rows out are those that were added."""
    assert kinds([ours(1, None, 30, 30, **facts)]) == {"miscounted": ("1",)}


@pytest.mark.parametrize(("end", "rows"), [(60, 29), (61, 30), (30, 30)])
def test_a_commit_that_does_not_go_on_where_the_last_ended_is_found(end, rows):
    """A hole between two commits, and a commit of what was there."""
    assert kinds([ours(1, None, 30, 30), ours(2, 1, end, rows)]) == {"unchained": ("2",)}


def test_an_empty_commit_may_come_twice():
    """It is no conflict for the same one of a worker that slept."""
    assert kinds([ours(1, None, 30, 30), ours(2, 1, 30, 0), ours(3, 2, 40, 10)]) == {}


def test_a_side_table_may_have_had_a_part_of_the_rejects_before():
    """It has at most the rejects of a plan, and does not chain."""
    plan = {"rows_out": 8, "rows_rejected": 2}
    line = [ours(1, None, 10, 10, **plan, added_records=2)]
    line.append(ours(2, 1, 90, 10, **plan, added_records=1))
    assert kinds(line, side=True) == {}
    line.append(ours(3, 2, 99, 10, **plan, added_records=3))
    assert kinds(line, side=True) == {"miscounted": ("3",)}


def test_removals_are_those_of_others_only():
    """Compaction removes no row; a removal whose parent is gone cannot be looked into."""
    line = [
        Snapshot(1, 9, {"operation": "delete", "deleted-records": "2"}),
        Snapshot(2, 1, {"operation": "replace", "deleted-records": "30"}),
        Snapshot(3, 2, {"operation": "overwrite", "added-position-deletes": "1"}),
        ours(4, 3, 30, 30),
    ]
    found = check_chain(line, UID, {}).removals
    assert [tuple(each) for each in found] == [(1, None, 2), (3, 2, 1)]


def test_rows_that_others_rewrote_are_not_removed():
    """An update takes rows out and puts as many in: it excuses no loss."""
    summary = {"operation": "overwrite", "deleted-records": "30", "added-records": "28"}
    [found] = check_chain([Snapshot(1, 9, summary), ours(2, 1, 30, 30)], UID, {}).removals
    assert found.rows == 2


def test_what_others_committed_to_adopted_ranges_is_passed_over():
    """A late commit of a former owner lies between two of ours; undeclared it is a hole."""
    late = Snapshot(2, 1, {"frazil.topic-id": "other", "frazil.offset-end": "40"})
    line = [ours(1, None, 30, 30), late, ours(3, 2, 60, 20)]
    assert kinds(line) == {"unchained": ("3",)}
    assert kinds(line, adopted={-1: ((30, 40),)}) == {}
    assert kinds(line, adopted={-1: ((30, 39),)}) == {"unchained": ("3",)}


def test_what_the_log_has_lost_is_told_from_declared_gaps():
    """A row where no record ever was is damage; one that only the table still has is not."""
    gap, lost = SpecialRange(5, 8, "gap", ""), SpecialRange(7, 12, "lost", "")
    assert part_facts(-1, [gap, lost]) == PartFacts(-1, ((5, 8),), ((8, 12),))
    assert part_facts(0, []) == PartFacts(0)


@pytest.mark.parametrize(
    ("end", "rows", "gaps", "begin"),
    [(30, 30, (), 0), (30, 20, (), 10), (30, 20, ((12, 15),), 7), (30, 30, ((1, 4),), None)],
)
def test_the_first_commit_tells_where_the_rows_begin(end, rows, gaps, begin):
    """By its end, its rows and the gaps; nothing is made up where they do not fit."""
    found = check_chain([ours(1, None, end, rows)], UID, {-1: gaps}).begins
    assert found == (None if begin is None else {-1: begin})
    assert check_chain([ours(1, 8, end, rows)], UID, {-1: gaps}).begins is None


def test_a_table_that_says_where_it_began_has_to_have_all_from_there_on():
    """A first commit that lacks the first records is not taken for a later begin."""
    short = [ours(1, None, 30, 20)]
    assert kinds(short, begin={-1: 10}) == {}
    assert kinds(short, begin={-1: 0}) == {"unchained": ("1",)}
    assert check_chain(short, UID, {}, begin={-1: 0}).begins == {-1: 0}
    assert check_chain([ours(2, 1, 30, 20)], UID, {}, begin={-1: 0}).begins is None


def test_holes_are_what_is_neither_present_nor_declared():
    """Ranges at both ends and in the middle."""
    assert holes([2, 3, 7], 0, 10, ((4, 6),)) == [(0, 2), (6, 7), (8, 10)]
    assert holes(range(10), 0, 10, ()) == []
    assert holes([], 5, 7, ((0, 6),)) == [(6, 7)]
    assert records_between(0, 10, ((4, 6), (9, 20))) == 7


def test_columns_are_followed_by_their_ids():
    """A renamed column is the same one, a dropped one is not asked for, a new one is null."""
    then = declare_schema({"a": "int", "b": "string", "c": "int"})
    now = then.remove(2).set(0, then.field(0).with_name("z"))
    now = now.append(then.field(2).with_name("d").with_metadata({**then.field(2).metadata}))
    names, added = column_names(then, now, by_id=True)
    assert (names, added) == ({"a": "z", "b": "b", "c": "d"}, ())
    assert column_names(then.remove(2), now, by_id=True) == ({"a": "z", "b": "b"}, ("d",))
    assert column_names(then, now.remove(2), by_id=True)[0] == {"a": "z", "b": "b"}


def test_bundles_have_each_part_once():
    """Two ranges of one part are two bundles, and so are two versions."""

    def part(number, lo):
        return PartRange(number, 1, lo, lo + 1, ())

    runs = [(1, part(0, 0)), (1, part(0, 5)), (2, part(0, 9)), (1, part(1, 0))]
    assert bundles(runs) == [
        (1, (part(0, 0), part(1, 0))),
        (1, (part(0, 5),)),
        (2, (part(0, 9),)),
    ]
