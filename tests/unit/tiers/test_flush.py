"""A flush is all or nothing, in bounded memory, whatever the disk does."""

from __future__ import annotations

import gc

import pyarrow as pa
import pytest

from frazil.errors import Closed, Conflict, FrazilError, InvalidRequest, Unavailable
from frazil.log import RANGE_GAP, RANGE_LOST
from frazil.model import PartitionField
from frazil.tiers.disk import writer as disk_write
from frazil.tiers.disk.format import MIXED
from frazil.tiers.disk.parquet import SeamSink
from frazil.tiers.flush import flush_set
from frazil.tiers.partitions import Partitioner
from tests.support import Fault, FaultyFileSystem, SimulatedCrash
from tests.unit.tiers.disk_world import (
    BY_COUNTRY,
    QUARANTINE,
    ROOT,
    SCHEMA,
    TOPIC,
    CrashingFileSystem,
    World,
    batch_of,
    opened,
)

KINDS = [
    pytest.param({}, id="plain"),
    pytest.param({"keyed": True}, id="keyed"),
    pytest.param({"keyed": True, "partition_by": BY_COUNTRY}, id="keyed, by country"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_history_gives_back_what_was_flushed(kind):
    """Rows, times, operations, bitmaps and gaps come back from files, also after a restart."""
    world = opened(**kind)
    world.flush(0, 50)
    world.flush(50, 120, gaps=[(50, 60, RANGE_GAP), (119, 120, RANGE_GAP)])
    world.check_history(0, 120, gaps=[(50, 60), (119, 120)])
    world.reopened().check_history(0, 120, gaps=[(50, 60), (119, 120)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_range_without_rows_is_flushed_too(kind):
    """A range of gaps alone moves the mark on, also when the metadata is lost."""
    world = opened(**kind)
    world.flush(0, 10)
    (file,) = world.flush(10, 40, gaps=[(10, 40, RANGE_GAP)])
    assert file.rows == 0
    world.flush(40, 50)
    world.check_history(0, 50, gaps=[(10, 40)])
    lost = World(files=world.files, **kind)
    lost.tier.open()
    lost.check_history(0, 50, gaps=[(10, 40)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_topic_may_start_anywhere(kind):
    """The first flush of a topic sets where its files start."""
    world = opened(**kind)
    world.flush(1000, 1010)
    world.check_history(1000, 1010)
    assert world.reopened().tier.history.range(TOPIC).first == 1000


def test_ranges_must_follow_each_other():
    """A range that leaves a hole or comes twice is refused, and its files are removed."""
    world = opened()
    world.flush(0, 10)
    before = world.files.paths()
    for first, end in ((0, 10), (5, 20), (11, 20)):
        with pytest.raises(Conflict):
            world.flush(first, end)
    assert world.files.paths() == before
    world.check_history(0, 10)


@pytest.mark.parametrize(
    "offsets",
    [[0, 1, 3], [0, 1, 2, 3, 4], [1, 0, 2, 3], [0, 1, 1, 2, 3], [0, 1, 2]],
    ids=["hole", "too many", "out of order", "twice", "too few"],
)
def test_rows_must_make_up_the_range(offsets):
    """Rows that are missing, twice, out of order or beyond the range are refused."""
    world = opened()
    with pytest.raises(InvalidRequest):
        flush_set(
            world.tier,
            topic=TOPIC,
            schema=SCHEMA,
            version=1,
            shape=None,
            partitioner=Partitioner(SCHEMA, ()),
            first=0,
            end=4,
            batches=[batch_of(offsets)],
        )
    assert world.files.paths() == []
    assert world.tier.flushed(TOPIC) == 0


# -- shape and memory ------------------------------------------------------------------------------


def test_writers_hold_little(monkeypatch):
    """Whatever the number of partitions, rows in memory and open files stay below their limits."""
    monkeypatch.setattr(disk_write, "OPEN_MAX", 4)
    world = opened(partition_by=(PartitionField(3, "bucket[20]"),), writer_bytes_max=4096)
    held, open_files = [], []
    write = SeamSink.write

    def watch(sink, data):
        held.append(world.tier.writer_bytes)
        open_files.append(sum(path.endswith(".tmp") for path in world.files.paths()))
        return write(sink, data)

    monkeypatch.setattr(SeamSink, "write", watch)
    files = world.flush(0, 2000, size=50)
    assert max(held) <= 4096
    assert world.tier.writer_bytes == 0
    assert len({file.partition for file in files}) == 20
    assert len(files) > 20, "closing the largest file begins another one later"
    world.check_history(0, 2000)
    for one in files:
        same = [file for file in files if file.partition == one.partition and file is not one]
        assert all(
            file.offset_last < one.offset_first or file.offset_first > one.offset_last
            for file in same
        )


def test_too_many_partitions_share_a_file(monkeypatch):
    """Beyond the largest number of files rows of several partitions share one, in order."""
    monkeypatch.setattr(disk_write, "FILES_MAX", 5)
    world = opened(partition_by=(PartitionField(3, "identity"),))
    files = world.flush(0, 200)
    assert len(files) == 6
    assert [file.partition for file in files if file.rows > 1] == [MIXED]
    world.check_history(0, 200)
    lost = World(files=world.files)
    lost.tier.open()
    lost.check_history(0, 200)


def test_a_large_range_becomes_several_files():
    """A file ends when it is as large as files should be, and the set is still one."""
    world = opened(file_bytes=4096, writer_bytes_max=4096)
    files = world.flush(0, 1000)
    assert len(files) > 3
    assert all(file.set_files == len(files) for file in files)
    world.check_history(0, 1000)
    lost = World(files=world.files)
    lost.tier.open()
    lost.check_history(0, 1000)


def test_files_carry_ids_and_their_facts(tmp_path):
    """Another reader finds the columns by field id, and the footer says what the file holds."""
    world = opened(keyed=True)
    (file,) = world.flush(0, 20)
    world.files.dump(tmp_path, ROOT)
    found = pa.parquet.ParquetFile(tmp_path / f"{TOPIC:08x}" / file.name)
    ids = {field.name: field.metadata[b"PARQUET:field_id"] for field in found.schema_arrow}
    assert ids["_offset"] == b"2147480000"
    assert ids["_present"] == b"2147480003"
    assert (ids["id"], ids["tags"]) == (b"1", b"4")
    assert file.name.encode() in found.metadata.metadata[b"frazil"]


# -- crashes ---------------------------------------------------------------------------------------


def crashed_worlds(kind, *, seeds):
    """Yield worlds after a crash before each call of a second flush, with several disk states."""
    point = 0
    while True:
        point += 1
        world = opened(**kind)
        world.flush(0, 40)
        crashing = CrashingFileSystem(world.files, point)
        tier = world.new_tier(crashing)
        tier.catalog._pictures = world.tier.catalog._pictures
        try:
            world.flush(40, 90, gaps=[(60, 62, RANGE_GAP)], tier=tier)
        except SimulatedCrash:
            for seed in range(seeds):
                yield world, world.files.crash_clone(point * seeds + seed)
        else:
            assert point > 6, "there are more steps than that"
            return


@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_at_any_step_leaves_the_old_or_the_new_state(kind):
    """After a crash the tier has the flush or has it not; flushing again doubles nothing."""
    for world, files in crashed_worlds(kind, seeds=3):
        after = world.reopened(files=files)
        if after.tier.flushed(TOPIC) == 40:
            after.check_history(0, 40)
            after.flush(40, 90, gaps=[(60, 62, RANGE_GAP)])
        after.check_history(0, 90, gaps=[(60, 62)])
        assert not [path for path in files.paths() if path.endswith(".tmp")]
        assert not [path for path in files.paths() if path.startswith(QUARANTINE)]
        registered = {file.name for file in after.tier.files(TOPIC)}
        on_disk = {path.rpartition("/")[2] for path in files.paths() if path.endswith(".parquet")}
        assert on_disk == registered
    gc.collect()


@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_does_not_need_the_metadata(kind):
    """After a crash with all metadata lost, the directory alone tells the old or the new state."""
    for world, files in crashed_worlds(kind, seeds=1):
        after = World(files=files, **kind)
        after.tier.open()
        end = after.tier.flushed(TOPIC)
        after.check_history(0, end, gaps=[(60, 62)] if end == 90 else [])
        assert end in (40, 90)
        assert world.tier.flushed(TOPIC) in (40, 90)


def test_a_crash_while_opening_changes_nothing():
    """A start that is cut off at any step is done again by the next one, with the same result."""
    world = opened(keyed=True, partition_by=BY_COUNTRY)
    store = world.store.clone()
    world.flush(0, 40)
    world.flush(40, 80)
    point = 0
    while True:
        point += 1
        files = world.files.kill_clone()
        left = store.clone()
        try:
            world.reopened(files=CrashingFileSystem(files, point), store=left)
        except SimulatedCrash:
            files = files.crash_clone(point)
            world.reopened(files=files, store=left).check_history(0, 80)
        else:
            break
    assert point > 4


# -- errors ----------------------------------------------------------------------------------------


VERBS = ["open", "write_at", "sync", "read_at", "close", "rename", "make_directory"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", VERBS)
def test_an_error_at_any_call_registers_nothing(kind, verb):
    """Whatever call fails, the flush fails as a whole or succeeds, and can be done again."""
    nth = fired = 0
    while nth == fired:
        nth += 1
        world = opened(**kind)
        faulty = FaultyFileSystem(world.files, [Fault(verb, nth)])
        tier = world.new_tier(faulty)
        tier.catalog._store = world.store
        try:
            world.flush(0, 30, tier=tier)
        except Unavailable:
            assert world.reopened().tier.flushed(TOPIC) == 0
            assert [path for path in world.files.paths() if ROOT in path] == []
            world.flush(0, 30, tier=tier)
        fired += faulty.fired
        assert faulty.sync_retried == 0
        assert faulty.writes_after_failed_sync == 0
        world.reopened().check_history(0, 30)
    assert fired > 0


def test_a_failed_directory_sync_ends_flushing():
    """When a directory cannot be synced the tier refuses to flush until it is opened again."""
    world = opened()
    world.flush(0, 10)
    faulty = FaultyFileSystem(world.files, [Fault("sync_directory", 2)])
    tier = world.new_tier(faulty)
    tier.open()
    with pytest.raises(Unavailable):
        world.flush(10, 20, tier=tier)
    with pytest.raises(Closed):
        world.flush(10, 20, tier=tier)
    assert faulty.sync_retried == 0
    assert world.history(tier=tier)[0] == [world.expected(each) for each in range(10)]
    after = world.reopened()
    after.flush(10, 20)
    after.check_history(0, 20)


class FailingStore:
    """A store whose commits fail after, or before, they were applied."""

    def __init__(self, inner, *, applied):
        self.inner = inner
        self.applied = applied

    def commit(self, transaction):
        """Fail, with or without applying."""
        if self.applied:
            self.inner.commit(transaction)
        raise Unavailable("store failed", outcome="unknown")


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_outcome_keeps_the_files(kind, applied):
    """When the store cannot tell, the files stay, and the next start has them once."""
    world = opened(**kind)
    world.flush(0, 20)
    world.tier.catalog._store = FailingStore(world.store, applied=applied)
    with pytest.raises(Unavailable) as caught:
        world.flush(20, 40)
    assert caught.value.details["outcome"] == "unknown"
    world.reopened().check_history(0, 40)


def test_lost_ranges_are_kept():
    """A lost range is refused in the files, too, with its reason, after a gap before it."""
    world = opened()
    world.flush(0, 30, gaps=[(5, 10, RANGE_GAP), (10, 20, RANGE_LOST)])
    piece = world.tier.history.read(TOPIC, offset=5, bytes_max=1 << 20)
    assert (piece.offset_next, len(piece.gaps)) == (10, 1)
    with pytest.raises(FrazilError) as caught:
        world.tier.history.read(TOPIC, offset=12, bytes_max=1 << 20)
    assert caught.value.code == "corruption"
    facts = caught.value.details
    assert (facts["offset_first"], facts["offset_next"], facts["reason"]) == (10, 20, "why")
    assert world.tier.history.read(TOPIC, offset=20, bytes_max=1 << 20).offset_next == 30
