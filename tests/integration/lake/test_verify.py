"""`verify` finds what is wrong with a table, and only that."""

from __future__ import annotations

import pytest

from frazil.lake.certificate import Certificate, PartFacts, StagedRows, VerifyRequest
from frazil.lake.verify_job import examine
from tests.integration.lake.spark_world import MARKS, TIME_US

pytestmark = MARKS

COLUMNS = {"id": "long", "name": "string", "tags": "map<string, int>"}


def rows(count, *, start=0):
    return [
        {"id": start + i, "name": f"n{start + i}", "tags": [("a", i), ("b", None)]}
        for i in range(count)
    ]


class Subject:
    """A topic whose commits are remembered as the disk tier would have them."""

    def __init__(self, world, columns=None, **options):
        self.topic = world.topic(columns or COLUMNS, **options)
        self.world = world
        self.plans = []

    def move(self, data, *, gaps=(), hi=None, **options):
        plan = self.topic.plan(self.topic.stage(data, **options), gaps=gaps, hi=hi)
        self.plans.append(plan)
        result = self.topic.commit(plan)
        assert result.state == "committed", result
        return result

    def forge(self, change, data):
        """Commit rows as a plan of ours would, but others than were staged."""
        plan = self.topic.plan(self.topic.stage(data))
        verdict = self.world.stages.verdict(plan, dict(self.topic.ends))
        [part] = plan.parts
        summary = {
            "frazil.topic-id": self.topic.uid,
            "frazil.rows-in": str(part.rows),
            "frazil.rows-out": str(part.rows),
            "frazil.rows-rejected": "0",
            "frazil.rows-dropped": "0",
            "frazil.offset-end": str(part.hi),
        }
        sid = self.world.tables.load(self.topic.table).sid
        self.world.tables.cas_append(
            self.topic.table, change(verdict.rows), sid=sid, summary=summary
        )
        self.plans.append(plan)
        self.topic.ends[-1] = part.hi

    def verify(self, *, staged=True, gaps=(), parts=(-1,), topic_id=None):
        names = {name: name for name in self.topic.schema.names}
        request = VerifyRequest(
            topic=self.topic.name,
            topic_id=topic_id or self.topic.uid,
            table=self.topic.table,
            parts=tuple(PartFacts(part, gaps) for part in parts),
            staged=tuple(StagedRows(plan, names) for plan in self.plans) if staged else (),
        )
        found = examine(self.world.session, self.world.catalog, request)
        return Certificate(found, TIME_US)

    def kinds(self, **options):
        found = self.verify(**options)
        return {each.kind: (each.count, each.places) for each in found.findings.problems}


@pytest.fixture
def subject(world):
    made = Subject(world)
    made.move(rows(30))
    made.move(rows(30, start=30))
    return made


def test_a_good_table_is_good(subject):
    """Every row is compared, the result is the same each time, and the exit code is 0."""
    first, again = subject.verify(), subject.verify()
    assert (first.verdict, first.exit_code, first.findings.problems) == ("good", 0, ())
    found = first.findings
    assert (found.rows, found.compared, found.snapshots) == (60, 60, 2)
    assert (found.begins, found.ends) == ({-1: 0}, {-1: 60})
    assert first.digest == again.digest
    subject.move(rows(1, start=60))
    assert subject.verify().digest != first.digest


def test_compaction_and_expiry_by_others_change_no_verdict(subject):
    """Without any summary of ours the rows are dense and the same, and so is the fingerprint."""
    before = subject.verify().findings.content
    name = f"{subject.topic.table.namespace}.{subject.topic.table.name}"
    subject.topic.foreign(
        f"CALL frazil.system.rewrite_data_files(table => '{name}', "
        "options => map('rewrite-all', 'true'))"
    )
    subject.topic.foreign(
        f"CALL frazil.system.expire_snapshots(table => '{name}', "
        "older_than => TIMESTAMP '2999-01-01', retain_last => 1)"
    )
    found = subject.verify()
    assert (found.verdict, found.findings.snapshots) == ("good", 1)
    assert (found.findings.content, found.findings.compared) == (before, 60)


@pytest.mark.parametrize("staged", [True, False])
def test_a_removed_row_is_found(subject, staged):
    """A commit that lacks one row is damage, with the offset, also without the disk tier."""
    subject.forge(lambda frame: frame.where("_offset <> 77"), rows(30, start=60))
    found = subject.verify(staged=staged)
    kinds = {each.kind: each for each in found.findings.problems}
    assert kinds["missing"].places == ("77",)
    assert kinds["miscounted"].count == 1
    assert ("unmatched" in kinds) is staged
    assert (found.verdict, found.exit_code) == ("damaged", 8)


def test_a_removed_first_row_is_found_without_the_disk_tier(world):
    """The first commit's summary tells where the rows begin."""
    subject = Subject(world)
    subject.forge(lambda frame: frame.where("_offset <> 0"), rows(10))
    assert subject.kinds(staged=False)["missing"] == (1, ("0",))


@pytest.mark.parametrize("staged", [True, False])
def test_a_doubled_row_is_found(subject, staged):
    """A row that somebody inserted again is damage."""
    subject.topic.foreign("INSERT INTO {table} SELECT * FROM {table} WHERE _offset = 13")
    assert subject.kinds(staged=staged) == {"doubled": (1, ("13",))}
    assert subject.verify().exit_code == 8


@pytest.mark.parametrize(
    ("change", "column"),
    [
        ("name = 'other'", "name"),
        ("name = null", "name"),
        ("tags = map('a', 8, 'b', null)", "tags"),
        ("_time = _time + INTERVAL 1 MICROSECOND", "_time"),
    ],
)
def test_an_altered_row_is_found(subject, change, column):
    """One changed value of one row is damage; the place names the column."""
    subject.topic.foreign("UPDATE {table} SET " + change + " WHERE _offset = 7")
    assert subject.kinds() == {"altered": (1, (f"7 ({column})",))}


def test_a_row_altered_by_delete_and_insert_is_found(subject):
    """What was deleted and came back otherwise is altered, not deleted."""
    subject.topic.foreign("DELETE FROM {table} WHERE _offset = 41")
    subject.topic.foreign(
        "INSERT INTO {table} SELECT 41, TIMESTAMP '2026-01-01', 41, 'x', map('a', 1)"
    )
    found = subject.verify()
    assert [each.kind for each in found.findings.problems] == ["altered"]
    assert found.findings.deleted == 0


@pytest.mark.parametrize("staged", [True, False])
def test_rows_deleted_by_others_are_listed_and_are_no_damage(subject, staged):
    """The exit code is 2, the offsets are there, and a loss beside it is still a loss."""
    subject.topic.foreign("DELETE FROM {table} WHERE _offset IN (3, 44)")
    found = subject.verify(staged=staged)
    assert (found.verdict, found.exit_code) == ("rows deleted by others", 2)
    assert (found.findings.deleted, found.findings.deleted_places) == (2, ("3", "44"))
    assert len(found.findings.foreign) == 1
    subject.forge(lambda frame: frame.where("_offset <> 61"), rows(5, start=60))
    after = subject.verify(staged=staged)
    assert after.exit_code == 8
    assert after.findings.problems[1].places == ("61",)
