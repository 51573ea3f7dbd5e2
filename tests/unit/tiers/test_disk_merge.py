"""Joining small files changes neither a row nor a mark, whatever happens in between."""

from __future__ import annotations

import pytest

from frazil.log import RANGE_GAP
from frazil.tiers.disk import writer as disk_merge
from frazil.tiers.disk.catalog import TopicFiles, TopicMarks
from frazil.tiers.disk.format import DiskFile
from frazil.tiers.disk.writer import choose_run, merge_once
from tests.support import SimulatedCrash
from tests.unit.tiers.disk_world import (
    BY_COUNTRY,
    SHAPE,
    TOPIC,
    CrashingFileSystem,
    World,
)

GAPS = [(45, 50)]


def flushed(*, keyed=True, partition_by=BY_COUNTRY, **options):
    """Return a world with four small sets and a gap."""
    world = World(row_group_rows=16, keyed=keyed, partition_by=partition_by, **options)
    world.tier.open()
    for first in (0, 20, 40, 60):
        gaps = [(low, high, RANGE_GAP) for low, high in GAPS if first <= low < first + 20]
        world.flush(first, first + 20, gaps=gaps)
    return world


@pytest.mark.parametrize("partition_by", [(), BY_COUNTRY])
def test_merged_files_hold_the_same(partition_by):
    """Rows, gaps, deletes and keys are the same after merging, in one file a partition."""
    world = flushed(partition_by=partition_by)
    before = world.tier.files(TOPIC)
    assert merge_once(world.tier, TOPIC)
    after = world.tier.files(TOPIC)
    assert len(after) == (3 if partition_by else 1)
    for fact in ("rows", "deletes", "unmatched"):
        assert sum(getattr(file, fact) for file in after) == sum(
            getattr(file, fact) for file in before
        )
    world.check_history(0, 80, gaps=GAPS)
    found = world.tier.lookup.find_many(TOPIC, ["key 3"], SHAPE, 80)
    assert found["key 3"].offset == 63
    assert world.tier.lookup.maps_built == 0
    names = {path.rpartition("/")[2] for path in world.files.paths()}
    assert {file.name for file in after} == {name for name in names if name.endswith(".parquet")}
    assert len(names) == 2 * len(after)
    assert not merge_once(world.tier, TOPIC)
    world.reopened().check_history(0, 80, gaps=GAPS)


def test_files_in_use_stay_until_they_are_let_go():
    """A pinned file is still there after it was merged away, counts, and goes with its pin."""
    world = flushed()
    old = world.tier.files(TOPIC)
    pin = world.tier.pins.pin(old[:2])
    assert merge_once(world.tier, TOPIC)
    paths = world.files.paths()
    assert [world.tier.path(file) in paths for file in old] == [True] * 2 + [False] * 10
    now = sum(file.size for file in world.tier.files(TOPIC))
    assert world.tier.space.usage() == now + sum(file.size for file in old[:2])
    pin.close()
    pin.close()
    assert world.tier.space.usage() == now
    assert not {world.tier.path(file) for file in old} & set(world.files.paths())


def test_a_crash_at_any_step_of_merging_loses_nothing():
    """Cut off before any call, merging leaves the old files or the new ones, never both."""
    whole = flushed(keyed=False)
    point = 0
    while True:
        point += 1
        files, store = whole.files.kill_clone(), whole.store.clone()
        world = whole.reopened(files=files, store=store)
        tier = world.new_tier(CrashingFileSystem(files, point))
        tier.catalog._pictures = dict(world.tier.catalog._pictures)
        try:
            merge_once(tier, TOPIC)
        except SimulatedCrash:
            after = world.reopened(files=files.crash_clone(point))
            after.check_history(0, 80, gaps=GAPS)
            assert len(after.tier.files(TOPIC)) in (3, 12)
            names = {p.rpartition("/")[2] for p in after.files.paths() if p.endswith(".parquet")}
            assert names == {file.name for file in after.tier.files(TOPIC)}
        else:
            break
    assert point > 30


def test_a_damaged_file_is_not_merged():
    """A file that is damaged stops the merge and is reported; nothing is replaced by less."""
    world = flushed()
    before = world.tier.files(TOPIC)
    world.files.corrupt(
        world.tier.path(before[5]), lambda data: data.__setitem__(-30, data[-30] ^ 1)
    )
    reported = []
    world.tier.damage.on_damage = lambda topic, file: reported.append(file.name) or False
    assert not merge_once(world.tier, TOPIC)
    assert reported == [before[5].name]
    assert world.tier.files(TOPIC) == before


def test_a_merge_that_comes_too_late_gives_way():
    """Files that were evicted while they were merged do not come back."""
    world = flushed()
    real = world.tier.readers.read
    done = []

    def read(file, number, names=None):
        if not done:
            done.append(world.tier.space.expire(TOPIC, 20))
        return real(file, number, names)

    world.tier.readers.read = read
    assert not merge_once(world.tier, TOPIC)
    world.check_history(20, 80, gaps=GAPS)
    assert len(world.tier.files(TOPIC)) == 9
    assert len([path for path in world.files.paths() if path.endswith(".parquet")]) == 9


# -- which files -----------------------------------------------------------------------------------


def spans(*sizes, committed=0, versions=None, partition=""):
    """Return a topic with sets of ten offsets and these sizes."""
    files = []
    for number, size in enumerate(sizes):
        first = 10 * number
        name = f"{number:03}"
        files.append(
            DiskFile(
                topic=TOPIC,
                name=name,
                set_first=first,
                set_end=first + 10,
                set_files=1,
                offset_first=first,
                offset_last=first + 9,
                rows=10,
                bytes=size,
                crc=0,
                footer_crc=0,
                schema=versions[number] if versions else 1,
                created_us=0,
                partition=partition,
            )
        )
    marks = TopicMarks(start=0, flushed=10 * len(sizes), committed=committed)
    return TopicFiles(TOPIC, files, marks)


@pytest.mark.parametrize(
    ("sizes", "options", "expected"),
    [
        # Four sets of a size are merged, three are not; a large old one waits for its equals.
        ((1, 1, 1), {}, None),
        ((1, 1, 1, 1), {}, (0, 40)),
        ((40, 10, 10, 10), {}, None),
        ((40, 10, 10, 10, 10), {}, (0, 50)),
        ((60, 30, 7, 7, 7, 7), {}, (20, 60)),
        # Large files, the committed mark, another schema and planned files end a run.
        ((100, 1, 1, 1, 1), {}, (10, 50)),
        ((1, 1, 1, 1, 100), {}, (0, 40)),
        ((1, 1, 1, 1), {"committed": 20}, None),
        ((1, 1, 1, 1, 1, 1), {"committed": 40}, (0, 40)),
        ((1, 1, 1, 1, 1, 1), {"versions": [1, 1, 2, 2, 2, 2]}, (20, 60)),
        ((1, 1, 1, 1, 1, 1), {"keep": ("001",)}, (20, 60)),
        # Sets that together make a file of the wanted size are joined, though they are few.
        ((60, 50, 40), {}, (10, 30)),
        ((60, 60), {}, None),
        ((63, 63, 63), {}, (10, 30)),
    ],
)
def test_a_run_is_worth_its_writing(sizes, options, expected):
    """Small neighbours are chosen when they are many, or fill a file; borders end a run."""
    options = dict(options)
    keep = options.pop("keep", ())
    run = choose_run(spans(*sizes, **options), file_bytes=128, small_bytes=64, keep=keep)
    assert ((run[0].first, run[-1].end) if run else None) == expected


def test_rows_are_written_again_only_a_few_times():
    """Over many small flushes each byte is merged about as often as its size doubles."""
    sizes, written, flushes = [], 0, 512
    for _ in range(flushes):
        sizes.append(1)
        while True:
            picture = spans(*sizes)
            run = choose_run(picture, file_bytes=128, small_bytes=64, keep=())
            if not run:
                break
            first, last = run[0].first // 10, run[-1].end // 10
            joined = sum(sizes[first:last])
            written += joined
            sizes[first:last] = [joined]
    assert written < 6 * flushes
    assert sum(sizes) == flushes
    assert sum(size for size in sizes if size >= 64) >= 0.8 * flushes
    assert disk_merge.SPANS_MIN == 4
