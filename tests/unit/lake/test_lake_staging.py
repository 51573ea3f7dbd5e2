"""The files of a topic that a plan takes, and the waits for its table."""

from __future__ import annotations

import pytest

from frazil.config import LakeSparkSettings
from frazil.config.sections import LakeSettings, LakeWorkerSettings
from frazil.errors import CorruptionError, InvalidRequest
from frazil.lake.plan import (
    before_gaps,
    part_sets,
    plan_bytes,
    plan_parts,
    planned_files,
)
from frazil.log import SpecialRange
from frazil.model import TopicSpec, topic_uid
from frazil.tiers import DiskFile, TopicFiles, TopicMarks
from frazil.topic import TierWaits


def file(first, end, *, number=0, rows=None, schema=1, gaps=(), last=None):
    """A file of the set `[first, end)`."""
    name = f"{first:016x}-{end:016x}-{number}-00000000.parquet"
    return DiskFile(
        topic=7,
        name=name,
        set_first=first,
        set_end=end,
        set_files=1,
        offset_first=first,
        offset_last=(end if last is None else last + 1) - 1,
        rows=end - first if rows is None else rows,
        bytes=100,
        crc=0,
        footer_crc=0,
        schema=schema,
        created_us=1,
        gaps=tuple((a, b, "gap", "") for a, b in gaps),
    )


def picture(*files, committed=0):
    """All files of the topic."""
    end = max(each.set_end for each in files)
    return TopicFiles(7, files, TopicMarks(0, end, committed))


def sets_of(*files, committed=0):
    """The sets that a table which is at `committed` does not have."""
    found = picture(*files)
    return part_sets(found, part=-1, committed=committed, path=lambda each: f"/d/{each.name}")


def test_sets_are_whole_and_in_order():
    """Files of one range are one set; a set that the table has a part of is still there."""
    found = sets_of(file(0, 10), file(10, 30), file(10, 30, number=1), file(30, 31), committed=15)
    assert [(each.first, each.end, len(each.files)) for each in found.sets] == [
        (10, 30, 2),
        (30, 31, 1),
    ]
    version, [only] = plan_parts([found], bytes_max=10**9, files_max=100)
    assert (version, only.lo, only.hi, len(only.files)) == (1, 15, 31, 3)
    assert all(each.path.startswith("/d/") for each in only.files)


def test_gaps_count_each_offset_once_and_within_their_set():
    """Two files may tell of the same gap, and a gap may reach over the end of its set."""
    one = file(0, 10, rows=4, gaps=[(2, 5), (8, 40)])
    two = file(0, 10, number=1, rows=1, gaps=[(4, 7)])
    found = sets_of(one, two)
    assert found.sets[0].gaps == ((2, 7), (8, 10))
    _version, [only] = plan_parts([found], bytes_max=10**9, files_max=100)
    assert only.rows == 3


def test_a_set_without_rows_is_planned_for_its_offsets():
    """A gap alone has no file to read, and still moves the watermark."""
    found = sets_of(file(0, 5), file(5, 9, rows=0, gaps=[(5, 9)], last=4))
    _version, [only] = plan_parts([found], bytes_max=10**9, files_max=100)
    assert (only.hi, only.rows, len(only.files)) == (9, 5, 1)


def test_a_gap_that_was_declared_leads_up_to_the_files():
    """Records that expired at a quota are no records: the watermark passes them; others stop it."""
    gone = [SpecialRange(3, 5, "gap", ""), SpecialRange(5, 10, "gap", "")]
    found = part_sets(picture(file(10, 12)), part=-1, committed=3, path=str, gaps=gone)
    _version, [only] = plan_parts([found], bytes_max=10**9, files_max=100)
    assert (only.lo, only.hi, only.rows) == (3, 12, 2)
    assert (before_gaps(gone, 10), before_gaps(gone, 11), before_gaps(gone, 4)) == (3, 11, 3)
    empty = TopicFiles(7, (), TopicMarks(10, 10))
    found = part_sets(empty, part=-1, committed=4, path=str, gaps=gone, version=3)
    version, [only] = plan_parts([found], bytes_max=10**9, files_max=100)
    assert (version, only.lo, only.hi, only.rows, only.files) == (3, 4, 10, 0, ())
    missing = part_sets(picture(file(10, 12)), part=-1, committed=2, path=str, gaps=gone)
    with pytest.raises(InvalidRequest, match="do not follow"):
        plan_parts([missing], bytes_max=10**9, files_max=100)


def test_files_of_one_set_with_different_columns_are_damage():
    """No plan could say which columns they have."""
    with pytest.raises(CorruptionError, match="different columns"):
        sets_of(file(0, 5), file(0, 5, number=1, schema=2))


def test_planned_files_are_found_by_name_or_not_at_all():
    """A plan whose file was merged away has no files; another has all of them."""
    _version, ranges = plan_parts([sets_of(file(0, 5), file(5, 6))], bytes_max=999, files_max=9)
    assert planned_files(picture(file(0, 5), file(5, 6)), ranges) == [file(0, 5), file(5, 6)]
    assert planned_files(picture(file(0, 6)), ranges) is None
    other = TopicFiles(8, (), TopicMarks())
    assert planned_files(other, ranges) == []


def test_parts_share_the_identity_of_their_parent():
    """Parts share the identity of their parent, old topics have one too."""
    whole = TopicSpec(id=5, name="/a/b", kind="message", created_us=9, uid="ab")
    old = TopicSpec(id=5, name="/a/b", kind="message", created_us=9, partitions=2)
    part = TopicSpec(
        id=6, name="/a/b-part-0", kind="message", created_us=9, part_of=5, part_index=0
    )
    assert topic_uid(whole) == "ab"
    assert topic_uid(part) == topic_uid(old) == f"{9:016x}{5:08x}"


def test_waits_end_when_the_table_is_there_or_will_not_be():
    """Each waits for its own part and offset; a refusal wakes all, and nobody waits after it."""
    woken = []
    waits = TierWaits(lambda: woken.append(1), timeout_s=1.0)
    called = []
    waits.ask(0, 5)
    waits.ask(0, 4)
    assert (waits.asked, woken) == ({0: 5}, [1])
    assert waits.is_asked()
    assert waits.watch(0, 5, lambda: called.append("five"))
    assert waits.watch(0, 9, lambda: called.append("nine"))
    assert waits.watch(1, 1, lambda: called.append("other"))
    waits.moved({0: 5})
    assert (called, waits.is_asked()) == (["five"], False)
    assert not waits.watch(0, 5, lambda: called.append("never"))
    waits.refuse("stopped: gone")
    assert called == ["five", "nine", "other"]
    assert not waits.watch(0, 99, lambda: called.append("never"))
    waits.moved({0: 6})
    assert not waits.watch(0, 99, lambda: called.append("never"))
    waits.refuse("")
    assert waits.watch(0, 99, lambda: called.append("late"))
    waits.moved({0: 99})
    assert called[-1] == "late"


def test_a_watch_that_is_taken_back_is_not_called():
    """A caller that gave up is forgotten."""
    waits = TierWaits(lambda: None, timeout_s=1.0)
    called = []

    def tell():
        called.append(1)

    assert waits.watch(-1, 3, tell)
    waits.forget(tell)
    waits.moved({-1: 3})
    assert called == []


def test_a_plan_is_as_large_as_the_memory_of_its_writers_allows():
    """Row groups bound two writers by themselves; with less memory or more writers plans shrink."""
    found = [
        plan_bytes(
            LakeSettings(
                worker=LakeWorkerSettings(heap_bytes=memory << 22),
                spark=LakeSparkSettings(conf={"spark.master": master}),
            )
        )
        for memory, master in [(256, "local[2]"), (255, "local[2]"), (256, "local[4]"), (512, "")]
    ]
    assert found == [1 << 30, 255 << 20, 256 << 20, 1 << 30]


def test_a_tier_that_only_grows_never_goes_back():
    """Of two who tell how far it is, the later one with less changes nothing."""
    waits = TierWaits(lambda: None, timeout_s=1.0)
    called = []
    assert waits.watch(-1, 10, lambda: called.append(1))
    waits.grew(-1, 9)
    assert called == []
    waits.grew(-1, 12)
    waits.grew(-1, 11)
    assert (called, waits.reached) == ([1], {-1: 12})
    assert not waits.watch(-1, 12, lambda: called.append("never"))
