"""The steps of a commit, one at a time, on a table in memory."""

from __future__ import annotations

import itertools

import pytest

from frazil.errors import (
    CommitUnknown,
    Conflict,
    CorruptionError,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from frazil.lake.commit import CommitRequest, Verdict, commit
from frazil.lake.plan import PartRange, Plan, TableName
from frazil.lake.table import OFFSET_END, TOPIC_ID
from frazil.model import WHOLE
from tests.crash.lake_table import IcebergTable

TABLE = TableName("ns", "t")


class Lake:
    """Two tables, the five calls, and the stages; `errors` fail the next writes."""

    def __init__(self):
        ids = itertools.count(1)
        self.main = IcebergTable("ours", ids)
        self.side = IcebergTable("ours", ids)
        self.tables = {TABLE: self.main, TABLE.rejects: self.side}
        self.rejected = frozenset()
        self.dropped = frozenset()
        self.lost = frozenset()
        self.errors = []
        self.load_errors = []
        self.landing = True
        self.calls = []
        self.pauses = []
        self.steps = []
        self.verdicts = 0
        self.schema_version = None

    def load(self, table):
        self.calls.append(("load", table.name))
        if self.load_errors:
            raise self.load_errors.pop(0)
        if table not in self.tables:
            raise NotFound("no such table", table=table)
        view = self.tables[table].view()
        return type(view)(
            **{name: getattr(view, name) for name in view.__struct_fields__}
            | {"schema_version": self.schema_version}
        )

    def cas_append(self, table, rows, *, sid, summary):
        self.calls.append(("append", table.name))
        error = self.errors.pop(0) if self.errors else None
        if error is not None and not self.landing:
            raise error
        held = self.tables[table]
        landed = held.land((held.write_file(rows),), sid=sid, summary=summary)
        if error is not None:
            raise error
        return landed

    def set_property(self, table, properties):
        self.calls.append(("property", table.name))
        if self.errors:
            raise self.errors.pop(0)
        self.tables[table].properties.update(properties)

    def verdict(self, plan, from_offsets):
        self.verdicts += 1
        every = [
            (each.part, offset, True)
            for each in plan.parts
            if each.part in from_offsets
            for offset in range(from_offsets[each.part], each.hi)
            if offset not in self.lost
        ]
        rejects = [row for row in every if row[1] in self.rejected]
        rows = [row for row in every if row[1] not in self.rejected | self.dropped]
        dropped = len(every) - len(rows) - len(rejects)
        return Verdict(rows, rejects, len(every), len(rows), len(rejects), dropped)

    def rejects_from(self, verdict, from_offsets):
        return [row for row in verdict.rejects if row[1] >= from_offsets.get(row[0], 1 << 60)]

    def commit(self, lo, hi, *, remembered=0, attempts=5, **facts):
        return self.move((PartRange(WHOLE, 1, lo, hi, ()),), {WHOLE: remembered}, attempts, **facts)

    def move(self, ranges, remembered, attempts=5, **facts):
        plan = Plan(
            id="p",
            topic="/ns/t",
            topic_id="ours",
            table=TABLE,
            kind="table",
            schema_version=3,
            schema="",
            parts=ranges,
            created_us=0,
        )
        durable = {each.part: 100_000 for each in ranges} | dict.fromkeys(remembered, 100_000)
        request = CommitRequest(plan=plan, remembered=remembered, durable=durable, held={}, **facts)
        return commit(
            self,
            self,
            request,
            pause=self.pauses.append,
            attempts=attempts,
            progress=self.steps.append,
        )

    @property
    def offsets(self):
        return sorted(offset for _part, offset in self.main.ours())

    @property
    def rejects(self):
        return sorted(offset for _part, offset in self.side.ours())


@pytest.fixture
def lake():
    return Lake()


def test_rows_and_watermark_land_together(lake):
    """One snapshot has the rows and the whole summary; the result says what it did."""
    lake.dropped = {3}
    result = lake.commit(0, 10)
    assert (result.state, result.ends, result.sid) == ("committed", {WHOLE: 10}, lake.main.head)
    assert lake.offsets == [0, 1, 2, *range(4, 10)]
    assert lake.main.snapshots[lake.main.head].summary == {
        "frazil.topic-id": "ours",
        "frazil.offset-end": "10",
        "frazil.rows-in": "10",
        "frazil.rows-out": "9",
        "frazil.rows-rejected": "0",
        "frazil.rows-dropped": "1",
        "frazil.protocol-version": "1",
    }
    assert (result.rows_in, result.rows_out, result.rows_dropped) == (10, 9, 1)
    assert lake.steps == ["looked", "staged", "committing", "committed"]
    assert ("load", "t__rejects") not in lake.calls


@pytest.mark.parametrize(
    "error", [CommitUnknown, Unavailable, Conflict, InvalidRequest, CorruptionError]
)
def test_an_error_behind_a_landed_commit_is_looked_at(lake, error):
    """Whatever a write says, the table says what happened: nothing is written twice."""
    lake.errors = [error("no reply")]
    result = lake.commit(0, 10)
    assert (result.state, result.ends, result.rows_in) == ("committed", {WHOLE: 10}, 10)
    assert (lake.offsets, lake.calls.count(("append", "t"))) == (list(range(10)), 1)


def test_five_conflicts_are_contention(lake):
    """Each conflict is looked at after a pause that grows; the fifth is the last."""
    lake.landing = False
    lake.errors = [Conflict("first") for _ in range(9)]
    result = lake.commit(0, 10)
    assert (result.state, result.reason, result.ends) == ("contended", "contended", {})
    assert (lake.calls.count(("append", "t")), lake.calls[-1]) == (5, ("load", "t"))
    assert (lake.pauses, len(lake.pauses), lake.verdicts) == (sorted(set(lake.pauses)), 4, 1)


@pytest.mark.parametrize("error", [CommitUnknown, Unavailable])
def test_outcomes_that_stay_unknown_end_as_unavailable(lake, error):
    """It is not tried for ever, and the last word is a look."""
    lake.landing = False
    lake.errors = [error("no reply") for _ in range(9)]
    with pytest.raises(Unavailable, match="no known outcome") as caught:
        lake.commit(0, 10)
    assert caught.value.details["outcome"] == "unknown"
    assert (lake.calls.count(("append", "t")), lake.calls[-1]) == (5, ("load", "t"))


def test_an_error_that_will_come_again_is_raised_after_a_look(lake):
    """A damaged file is not tried five times."""
    lake.landing = False
    lake.errors = [CorruptionError("page is damaged")]
    with pytest.raises(CorruptionError, match="page is damaged"):
        lake.commit(0, 10)
    assert lake.calls == [("load", "t"), ("append", "t"), ("load", "t")]


def test_a_catalog_that_is_away_for_a_moment_is_asked_again(lake):
    """A load is tried five times, then it is the caller's turn."""
    lake.load_errors = [Unavailable("away") for _ in range(4)]
    assert lake.commit(0, 10).state == "committed"
    lake.load_errors = [Unavailable("away") for _ in range(5)]
    with pytest.raises(Unavailable, match="away"):
        lake.commit(10, 20)


def test_a_dropped_table_stops(lake):
    """A missing table is a state, for main and for the side table."""
    del lake.tables[TABLE.rejects]
    lake.rejected = {3}
    assert (lake.commit(0, 10).reason, lake.offsets) == ("table_missing", [])
    del lake.tables[TABLE]
    assert lake.commit(0, 10).reason == "table_missing"


def test_a_side_table_of_another_topic_stops_before_main(lake):
    """Neither table is written."""
    lake.side.properties[TOPIC_ID] = "theirs"
    lake.rejected = {2}
    result = lake.commit(0, 10)
    assert (result.state, result.reason) == ("stopped", "foreign_table")
    assert lake.main.head is None


def test_staged_files_without_a_record_stop(lake):
    """Fewer records than the plan says are damage, found before anything is committed."""
    lake.lost = {4}
    lake.rejected = {2}
    result = lake.commit(0, 10)
    assert (result.state, result.reason) == ("stopped", "staged_incomplete")
    assert "found=9 expected=10" in result.message
    assert lake.main.head is lake.side.head is None


def test_a_verdict_that_does_not_add_up_stops(lake, monkeypatch):
    """Records that are neither row, reject nor dropped stop the pipeline."""
    honest = lake.verdict
    monkeypatch.setattr(
        lake, "verdict", lambda plan, starts: honest(plan, starts)._replace(rows_out=9)
    )
    assert lake.commit(0, 10).reason == "verdict_unbalanced"
    assert lake.main.head is None


def test_too_many_rejects_stop_before_the_first_commit(lake):
    """Above 1 % and at least 100 among the last 10,000 nothing is committed, unless allowed."""
    lake.rejected = frozenset(range(100))
    result = lake.commit(0, 9_999)
    assert (result.state, result.reason) == ("stopped", "too_many_rejects")
    assert lake.main.head is lake.side.head is None
    result = lake.commit(0, 9_999, rejects_allowed=True)
    assert (result.state, result.rows_rejected) == ("committed", 100)


def test_a_hundredth_of_rejects_or_fewer_than_a_hundred_go_on(lake):
    """Exactly 1 % passes, and so do 99 of 99."""
    lake.rejected = frozenset(range(100))
    assert lake.commit(0, 10_000).state == "committed"
    other = Lake()
    other.rejected = frozenset(range(99))
    assert other.commit(0, 99).state == "committed"


def test_a_batch_without_rejects_passes_after_many(lake):
    """Once an operator has let the rejects through, good records need no other permission."""
    lake.rejected = frozenset(range(5_000)) | {10_050}
    assert lake.commit(0, 10_000, rejects_allowed=True).state == "committed"
    assert lake.commit(10_000, 10_050).state == "committed"
    assert lake.commit(10_050, 10_100).reason == "too_many_rejects"


def test_rejects_of_earlier_batches_count(lake):
    """The ratio is also taken with the commits before."""
    lake.rejected = frozenset(range(60)) | frozenset(range(1_000, 1_060))
    assert lake.commit(0, 1_000).state == "committed"
    second = lake.commit(1_000, 2_000)
    assert second.reason == "too_many_rejects"
    assert "rejects=120 records=2000" in second.message
    assert (lake.main.ends(), len(lake.side.ours())) == ({WHOLE: 1_000}, 60)


def test_the_property_is_refreshed_when_it_is_old(lake):
    """Here a commit counts for 50: the third sets the property; a failure of it is no failure."""
    ends = []
    for number in range(3):
        lake.commit(number, number + 1)
        ends.append(lake.main.properties.get(OFFSET_END))
    assert ends == [None, None, "3"]
    lake.commit(3, 4)
    lake.commit(4, 5)
    lake.errors = [None, Unavailable("away")]
    result = lake.commit(5, 6)
    assert (result.state, result.ends) == ("committed", {WHOLE: 6})
    assert lake.main.properties[OFFSET_END] == "3"
    lake.errors.clear()
    lake.commit(6, 7)
    assert lake.main.properties[OFFSET_END] == "7"


def test_a_property_above_the_table_is_lowered_before_the_commit(lake):
    """One that was set before a rollback would hide rows if others expired the summaries."""
    lake.commit(0, 5)
    lake.commit(5, 9)
    lake.main.properties[OFFSET_END] = "9"
    lake.main.roll_back(next(iter(lake.main.snapshots)))
    assert (lake.commit(5, 7).state, lake.main.properties[OFFSET_END]) == ("committed", "5")
    assert "property_lowered" in lake.steps
    lake.main.compact()
    lake.main.expire_all()
    assert (lake.commit(7, 9).ends, lake.offsets) == ({WHOLE: 9}, list(range(9)))


def test_a_rollback_within_an_attempt_stops_it(lake):
    """What the run has seen counts, also where nothing is remembered and a replay is wanted."""
    lake.commit(0, 5)
    first = lake.main.head
    lake.commit(5, 9)

    def roll_back(_seconds):
        lake.main.roll_back(first)

    lake.pauses = type("Pauses", (), {"append": staticmethod(roll_back)})
    lake.landing = False
    lake.errors = [Conflict("first")]
    result = lake.commit(9, 12, choice="replay", chosen={WHOLE: 5})
    assert (result.state, result.reason, result.ends) == ("stopped", "rolled_back", {WHOLE: 5})


def test_a_table_without_the_topics_columns_stops(lake):
    """The engine has to evolve the table first; a newer table is no hindrance."""
    lake.schema_version = 2
    assert lake.commit(0, 5).reason == "schema_behind"
    lake.schema_version = 4
    assert lake.commit(0, 5).state == "committed"
