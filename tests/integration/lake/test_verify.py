"""`verify` finds what is wrong with a table, and only that."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from frazil.errors import Conflict, CorruptionError, FrazilError
from frazil.lake import (
    ADOPTED,
    SKIPPED,
    PartFacts,
    Problem,
    StagedRows,
    VerifyRequest,
    encode_ranges,
)
from frazil.lake.verify_job import examine
from frazil.schema import declare_schema
from tests.integration.lake.spark_world import MARKS

pytestmark = MARKS

BEYOND_MS = 1 << 60
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

    def verify(self, *, staged=True, gaps=(), lost=(), parts=(-1,), topic_id=None):
        names = {name: name for name in self.topic.schema.names}
        request = VerifyRequest(
            topic=self.topic.name,
            topic_id=topic_id or self.topic.uid,
            table=self.topic.table,
            parts=tuple(PartFacts(p, gaps, lost, self.topic.ends.get(p, 0)) for p in parts),
            staged=tuple(StagedRows(plan, names) for plan in self.plans) if staged else (),
        )
        return examine(self.world.session, self.world.catalog, request)

    def kinds(self, **options):
        found = self.verify(**options)
        return {each.kind: (each.count, each.examples) for each in found.problems}


@pytest.fixture
def subject(world):
    made = Subject(world)
    made.move(rows(30))
    made.move(rows(30, start=30))
    return made


def test_a_good_table_is_good(subject):
    """Every row is compared, and the exit code is 0."""
    found = subject.verify()
    assert (found.verdict, found.exit_code, found.problems) == ("good", 0, ())
    assert (found.rows, found.compared, found.snapshots) == (60, 60, 2)
    assert (found.begins, found.ends) == ({-1: 0}, {-1: 60})


def test_compaction_and_expiry_by_others_change_no_verdict(subject):
    """Without any summary of ours the rows are dense and the same."""
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
    assert (found.verdict, found.snapshots, found.compared) == ("good", 1, 60)


def test_columns_that_others_add_are_not_compared(subject):
    """A column that came after the last commit changes no verdict, filled or not."""
    subject.topic.foreign("ALTER TABLE {table} ADD COLUMN more int")
    assert subject.verify().verdict == "good"
    subject.topic.foreign("UPDATE {table} SET more = 1 WHERE _offset < 9")
    found = subject.verify()
    assert (found.verdict, found.compared) == ("good", 60)
    subject.topic.foreign("ALTER TABLE {table} RENAME COLUMN name TO title")
    assert subject.kinds()["altered"][0] == 60


def test_a_removed_row_is_found(subject):
    """A commit that lacks one row is damage, with the offset, also without the disk tier."""
    subject.forge(lambda frame: frame.where("_offset <> 77"), rows(30, start=60))
    for staged in (True, False):
        found = subject.verify(staged=staged)
        kinds = {each.kind: each for each in found.problems}
        assert kinds.keys() == {"missing", "miscounted"}
        assert (kinds["missing"].examples, kinds["miscounted"].count) == (("77",), 1)
        assert (found.verdict, found.exit_code) == ("damaged", 8)


def test_a_removed_first_row_is_found_without_the_disk_tier(world):
    """The first commit's summary tells where the rows begin."""
    subject = Subject(world)
    subject.forge(lambda frame: frame.where("_offset <> 0"), rows(10))
    assert subject.kinds(staged=False)["missing"] == (1, ("0",))


def test_a_doubled_row_is_found(subject):
    """A row that somebody inserted again is damage."""
    subject.topic.foreign("INSERT INTO {table} SELECT * FROM {table} WHERE _offset = 13")
    for staged in (True, False):
        found = subject.verify(staged=staged)
        [problem] = found.problems
        assert (problem.kind, problem.count, problem.examples) == ("doubled", 1, ("13",))
        assert found.exit_code == 8


CHANGES = (
    ("name = 'other'", "name"),
    ("name = null", "name"),
    ("tags = map('a', 8, 'b', null)", "tags"),
    ("_time = _time + INTERVAL 1 MICROSECOND", "_time"),
)


def test_altered_rows_are_found(subject):
    """One changed value of a row is damage, of whatever kind it is; the place names the column."""
    places = []
    for offset, (change, column) in enumerate(CHANGES, start=3):
        subject.topic.foreign("UPDATE {table} SET " + change + f" WHERE _offset = {offset}")
        places.append(f"{offset} ({column})")
    assert subject.kinds() == {"altered": (len(CHANGES), tuple(places))}


def test_a_row_altered_by_delete_and_insert_is_found(subject):
    """What was deleted and came back otherwise is altered, not deleted."""
    subject.topic.foreign("DELETE FROM {table} WHERE _offset = 41")
    subject.topic.foreign(
        "INSERT INTO {table} SELECT 41, TIMESTAMP '2026-01-01', 41, 'x', map('a', 1)"
    )
    found = subject.verify()
    assert [each.kind for each in found.problems] == ["altered"]
    assert found.deleted == 0


def test_rows_deleted_by_others_are_listed_and_are_no_damage(subject):
    """The exit code is 2, the offsets are listed, and with a loss as well all of it is damage."""
    subject.topic.foreign("DELETE FROM {table} WHERE _offset IN (3, 44)")
    for staged in (True, False):
        found = subject.verify(staged=staged)
        assert (found.verdict, found.exit_code) == ("rows deleted by others", 2)
        assert (found.deleted, found.deleted_ranges) == (2, ("3", "44"))
    subject.forge(lambda frame: frame.where("_offset <> 61"), rows(5, start=60))
    for staged in (True, False):
        after = subject.verify(staged=staged)
        assert (after.exit_code, after.problems[1].examples) == (8, ("3", "44", "61"))


def test_declared_gaps_are_no_loss_and_rows_in_them_are_damage(world):
    """Offsets that were declared to have no record need none, and may have none."""
    subject = Subject(world)
    subject.move(rows(10), offsets=[*range(5), *range(8, 13)], gaps=((5, 8),))
    good = subject.verify(gaps=((5, 8),))
    assert (good.verdict, good.gaps, good.compared) == ("good", 3, 10)
    assert subject.kinds(staged=False)["missing"] == (3, ("5..7",))
    subject.topic.foreign(
        "INSERT INTO {table} SELECT 6, _time, id, name, tags FROM {table} WHERE _offset = 1"
    )
    kinds = subject.kinds(gaps=((5, 8),))
    assert kinds == {"extra": (1, ("6",)), "unmatched": (1, ("6",))}


def test_a_table_that_others_rolled_back_has_lost_rows(subject):
    """What was committed is missing; rows that others deleted beside that are listed as such."""
    table = subject.world.catalog.load_table(tuple(subject.topic.table))
    first = subject.topic.snapshots()[0]
    with table.manage_snapshots() as snapshots:
        snapshots.rollback_to_snapshot(first.snapshot_id)
    found = subject.verify(staged=False)
    assert (found.verdict, found.exit_code) == ("damaged", 8)
    assert found.problems == (Problem("missing", 30, ("30..59",)),)
    assert "short      the table ends at 30, committed were 60" in "\n".join(found.lines)
    subject.topic.foreign("DELETE FROM {table} WHERE _offset >= 0")
    after = subject.verify(staged=False)
    assert (after.problems, after.deleted) == ((Problem("missing", 30, ("30..59",)),), 30)


def test_a_table_that_others_put_in_place_of_ours_has_lost_rows(subject):
    """One with a part of the rows lacks the others, an empty one all, whatever it says of itself."""
    subject.topic.foreign(
        "REPLACE TABLE {table} USING iceberg AS SELECT * FROM {table} "
        "WHERE _offset BETWEEN 5 AND 57"
    )
    part = subject.verify(staged=False)
    assert (part.rows, part.problems) == (53, (Problem("missing", 7, ("0..4", "58..59")),))
    catalog, name = subject.world.catalog, tuple(subject.topic.table)
    table = catalog.load_table(name)
    catalog.drop_table(name)
    catalog.create_table(name, schema=table.schema(), properties=table.properties)
    found = subject.verify()
    assert (found.verdict, found.exit_code, found.rows) == ("damaged", 8, 0)
    assert subject.kinds()["missing"] == (60, ("0..59",))


def test_ranges_that_an_operator_gave_up_are_listed_and_are_no_loss(subject):
    """Rolled back and accepted: the table itself says what it goes on without."""
    first, second = subject.topic.snapshots()
    table = subject.world.catalog.load_table(tuple(subject.topic.table))
    with table.manage_snapshots() as snapshots:
        snapshots.rollback_to_snapshot(first.snapshot_id)
    plan = subject.topic.plan(subject.topic.stage(rows(10, start=60)))
    subject.plans.append(plan)
    done = subject.topic.commit(plan, choice="accept", chosen={-1: 30})
    assert (done.state, done.rows_in) == ("committed", 10)
    assert subject.kinds() == {"missing": (30, ("30..59",))}
    with table.refresh().transaction() as change:
        change.set_properties({SKIPPED: encode_ranges({}, {-1: ((30, 60),)})})
    found = subject.verify()
    assert (found.verdict, found.problems) == ("good", ())
    assert (found.skipped, found.skipped_ranges, found.compared) == (30, ("30..59",), 40)
    assert "skipped    30 offsets given up by an operator: 30..59" in found.lines
    with table.refresh().manage_snapshots() as snapshots:
        snapshots.set_current_snapshot(second.snapshot_id)
    found = subject.verify(staged=False)
    assert (found.problems, found.skipped) == ((Problem("missing", 10, ("60..69",)),), 0)


def test_rejected_records_count_once_and_are_compared(world):
    """A record in the side table is there; one in both is doubled; a changed one is altered."""
    schema = declare_schema({"id": "long", "at": "timestamp[ms, UTC]"})
    times = [0, 1, BEYOND_MS, *range(3, 40)]
    data = pa.table(
        {
            "id": pa.array(range(40), pa.int64()),
            "at": pa.array(times, pa.int64()).view(pa.timestamp("ms", "UTC")),
        }
    )
    subject = Subject(world, schema)
    assert subject.move(data).rows_rejected == 1
    found = subject.verify()
    assert (found.verdict, found.problems) == ("good", ())
    assert (found.rows, found.rejected, found.compared) == (39, 1, 40)
    name = subject.topic.spark_name.removesuffix("`") + "__rejects`"
    world.session.sql(f"UPDATE {name} SET reason = 'none' WHERE _offset = 2").collect()
    assert subject.kinds() == {"altered": (1, ("2 (reason)",))}
    subject.topic.foreign("INSERT INTO {table} SELECT 2, _time, 2, _time FROM {table} LIMIT 1")
    assert subject.kinds(staged=False) == {"doubled": (1, ("2",))}


def test_a_missing_or_damaged_file_is_an_error(subject):
    """The error names the file; the exit code is that of damage."""
    table = subject.world.catalog.load_table(tuple(subject.topic.table))
    path = table.inspect.files().column("file_path").to_pylist()[0]
    local = Path(path.removeprefix("file://").removeprefix("file:"))
    data = local.read_bytes()
    local.unlink()
    with pytest.raises(CorruptionError, match=local.name):
        subject.verify()
    local.write_bytes(data[:-1])
    with pytest.raises(FrazilError, match=local.name):
        subject.verify()


def test_ranges_of_another_log_within_the_own_are_compared_with_nothing(subject):
    """An older copy that was adopted goes on around rows that it did not write."""
    subject.topic.foreign("UPDATE {table} SET name = 'theirs' WHERE _offset BETWEEN 40 AND 44")
    table = subject.world.catalog.load_table(tuple(subject.topic.table))
    with table.transaction() as change:
        change.set_properties({ADOPTED: encode_ranges({}, {-1: ((40, 45),)})})
    found = subject.verify()
    assert (found.verdict, found.problems) == ("good", ())
    assert (found.adopted, found.compared) == (5, 55)


def test_rows_that_the_log_has_lost_since_are_no_damage_and_need_not_be_there(subject):
    """The table is what is left of them; where it has none either, the log says that it is lost."""
    lost = ((10, 12), (60, 63))
    subject.move(rows(2, start=63), offsets=[63, 64], gaps=((60, 63),))
    found = subject.verify(lost=lost)
    assert (found.verdict, found.problems, found.compared) == ("good", (), 60)


def test_parts_are_verified_each_by_itself(world):
    """The same offset in two parts is two records; a part's missing row is named with its part."""
    topic_rows = rows(6)
    subject = Subject(world, parts=2)
    topic = subject.topic
    ranges = [topic.range(topic.stage(topic_rows, first=0, part=p), part=p) for p in range(2)]
    plan = topic.plan_of(*ranges)
    subject.plans.append(plan)
    assert topic.commit(plan).state == "committed"
    good = subject.verify(parts=(0, 1))
    assert (good.verdict, good.compared) == ("good", 12)
    topic.foreign("DELETE FROM {table} WHERE _part = 1 AND _offset = 2")
    assert subject.verify(parts=(0, 1)).deleted_ranges == ("part 1: 2",)


def test_another_topics_table_is_refused(subject):
    """A table of another topic proves nothing."""
    with pytest.raises(Conflict, match="another topic"):
        subject.verify(topic_id="0" * 16)
