"""A start brings directory and metadata together: nothing is lost, nothing is there twice."""

from __future__ import annotations

import pytest

from frazil.errors import CorruptionError
from frazil.metadata import MemoryStore, Transaction
from frazil.tiers.disk.catalog import TopicFiles, TopicMarks
from frazil.tiers.disk.format import DiskFile, SetName, set_name
from frazil.tiers.disk.plan import plan_topic
from frazil.tiers.disk.writer import merge_once
from tests.support import SimulatedCrash
from tests.unit.tiers.disk_world import (
    BY_COUNTRY,
    QUARANTINE,
    TOPIC,
    CrashingFileSystem,
    World,
    opened,
)


def names_on_disk(world):
    """Return the names of the data files in the topic's directory."""
    paths = [path for path in world.files.paths() if f"/{TOPIC:08x}/" in path]
    return {path.rpartition("/")[2] for path in paths if path.endswith(".parquet")}


def names_registered(world):
    """Return the names that the tier knows."""
    return {file.name for file in world.tier.files(TOPIC)}


def test_lost_metadata_is_rebuilt_from_the_directory():
    """Without any metadata the tier is as before: rows, marks, gaps, sizes and facts."""
    world = opened(keyed=True, partition_by=BY_COUNTRY)
    for first in range(0, 200, 40):
        world.flush(first, first + 40)
    lost = World(files=world.files, keyed=True, partition_by=BY_COUNTRY)
    assert lost.tier.open() == {TOPIC: 200}
    lost.check_history(0, 200)
    assert lost.tier.files(TOPIC) == world.tier.files(TOPIC)
    assert lost.reopened().tier.files(TOPIC) == world.tier.files(TOPIC)


@pytest.mark.parametrize("kept", range(6))
def test_metadata_may_be_from_before_a_merge(kept):
    """Metadata that lost its last changes meets merged files: each offset is there once."""
    world = opened(partition_by=BY_COUNTRY, small_file_bytes=1 << 20)
    stores = [world.store.clone()]
    for first in range(0, 80, 20):
        world.flush(first, first + 20)
        stores.append(world.store.clone())
    assert merge_once(world.tier, TOPIC)
    stores.append(world.store.clone())
    after = world.reopened(store=stores[kept])
    after.check_history(0, 80)
    assert names_on_disk(after) == names_registered(after) == names_registered(world)


def test_expired_sets_do_not_come_back():
    """A file below the start that could not be removed is not taken in again."""
    world = opened()
    world.flush(0, 20)
    old = {path: world.files.read_bytes(path) for path in world.files.paths()}
    world.flush(20, 40)
    assert world.tier.space.expire(TOPIC, 20) > 0
    for path, data in old.items():
        world.files.write_bytes(path, data)
    after = world.reopened()
    after.check_history(20, 40)
    assert len(names_on_disk(after)) == 1


@pytest.mark.parametrize("fault", ["missing", "instead of", "in no file"])
def test_a_missing_or_shrunk_file_is_refused(fault):
    """Reads of its range raise, also when the metadata is lost with it; others work."""
    world = opened()
    for first in (0, 20, 40):
        world.flush(first, first + 20)
    path = world.tier.path(world.tier.files(TOPIC)[1])
    if fault == "instead of":
        world.files.corrupt(path, lambda data: data.__delitem__(slice(50, None)))
    else:
        world.files.unlink(path)
    after = world.reopened(store=MemoryStore(clock=world.clock) if fault == "in no file" else None)
    assert fault in after.tier.warnings[0]
    with pytest.raises(CorruptionError) as caught:
        after.tier.history.read(TOPIC, offset=25, bytes_max=1000)
    facts = caught.value.details
    assert (facts["offset_first"], facts["offset_next"]) == (25, 40)
    assert after.history(first=40)[0] == [world.expected(each) for each in range(40, 60)]


@pytest.mark.parametrize("kind", ["damaged", "under a foreign name"])
def test_an_unknown_file_that_fits_nowhere_is_put_aside(kind):
    """It is moved to quarantine with a reason: never removed, never part of a set."""
    world = opened()
    (file,) = world.flush(0, 20)
    whole = world.files.read_bytes(world.tier.path(file))
    data = b"PAR1 but no more than that" if kind == "damaged" else whole
    name = set_name(SetName(20, 40, 0, "00c0ffee"))
    world.files.write_bytes(f"/data/disk/{TOPIC:08x}/{name}", data)
    world.reopened().check_history(0, 20)
    aside = f"{QUARANTINE}/disk-{TOPIC:08x}-{name}"
    assert world.files.read_bytes(aside) == data
    assert world.files.read_bytes(f"{aside}.reason")


def test_unfinished_sets_are_kept_when_metadata_is_suspect():
    """An incomplete unknown set is removed, but put aside when metadata may have lost its row."""
    for suspect in (False, True):
        world = opened(partition_by=BY_COUNTRY)
        world.flush(0, 20)
        store = world.store.clone()
        world.flush(20, 40)
        world.files.unlink(world.tier.path(world.tier.files(TOPIC)[-1]))
        after = world.reopened(store=store, suspect=suspect)
        after.check_history(0, 20)
        aside = [path for path in world.files.paths() if path.startswith(QUARANTINE)]
        assert bool(aside) == suspect
        assert len(names_on_disk(after)) == 3


def damaged_set(world):
    """Flush a set that older metadata does not know, damage one of its files; return both."""
    store = world.store.clone()
    files = world.flush(20, 40)
    victim = world.tier.path(files[1])
    world.files.write_bytes(victim, world.files.read_bytes(victim)[:-40] + b"x" * 40)
    return store, {file.name for file in files}


def names_aside(world):
    """Return the names of the data files in quarantine."""
    paths = [path for path in world.files.paths() if path.startswith(QUARANTINE)]
    start = len(f"{QUARANTINE}/disk-{TOPIC:08x}-")
    return {path[start:] for path in paths if path.endswith(".parquet")}


def test_a_start_that_is_cut_off_while_putting_a_set_aside_removes_nothing():
    """Wherever the power fails, the next two starts have put aside every file of the set."""
    whole = opened(partition_by=BY_COUNTRY)
    whole.flush(0, 20)
    store, names = damaged_set(whole)
    for crash_at in range(1, 60):
        files = whole.files.kill_clone()
        try:
            whole.reopened(files=CrashingFileSystem(files, crash_at), store=store.clone())
        except SimulatedCrash:
            for seed in range(5):
                after = whole.reopened(files=files.crash_clone(seed), store=store.clone())
                assert names_aside(after.reopened()) == names
        else:
            break
    assert 4 < crash_at < 59


def test_a_dropped_topic_stays_dropped():
    """A topic whose removal was cut off is removed by the next start."""
    world = opened()
    world.flush(0, 20)
    world.tier.catalog.drop(TOPIC)
    after = world.reopened()
    assert after.tier.catalog.topics == []
    assert names_on_disk(after) == set()
    assert after.store.list("/disk/") == []


def test_a_damaged_row_is_refused():
    """Metadata that cannot be decoded is corruption, not an empty tier."""
    world = opened()
    world.flush(0, 20)
    key = world.store.list("/disk/")[0].key
    world.store.commit(Transaction(puts={key: b"\xc1"}))
    with pytest.raises(CorruptionError):
        world.reopened()


# -- the plan alone --------------------------------------------------------------------------------


def disk_file(first, end, *, number=0, total=1, set_id="00000001", name=None):
    """Return a registered file of one set."""
    name = name or set_name(SetName(first, end, number, set_id))
    return DiskFile(
        topic=TOPIC,
        name=name,
        set_first=first,
        set_end=end,
        set_files=total,
        offset_first=first,
        offset_last=end - 1,
        rows=end - first,
        bytes=100,
        crc=1,
        footer_crc=1,
        schema=1,
        created_us=1,
    )


def plan(known, unknown, *, start=0, missing=(), suspect=False):
    """Plan for registered and unknown files, all of them on disk but the missing ones."""
    flushed = max([file.set_end for file in known], default=0)
    picture = TopicFiles(TOPIC, known, TopicMarks(start=start, flushed=flushed))
    on_disk = [file for file in (*known, *unknown) if file not in missing]
    sizes = {file.name: file.bytes for file in on_disk}
    return plan_topic(picture, sizes, unknown, suspect=suspect, unreadable={})


def test_plan_takes_the_chain_that_reaches_furthest():
    """Of overlapping unknown sets those are adopted that hold most, the others are removed."""
    one = disk_file(50, 100, set_id="0000000a")
    two = disk_file(100, 150, set_id="0000000c")
    other = disk_file(50, 120, set_id="0000000b")
    made = plan([disk_file(0, 50)], [one, two, other])
    assert [found.id for found, _ in made.adopt] == ["0000000a", "0000000c"]
    assert made.unlink == [other.name]
    assert not made.quarantine


def test_plan_puts_aside_what_overlaps_in_part():
    """A whole set that is held in part by another one may have the only copy of the rest."""
    odd = disk_file(40, 120, set_id="0000000b")
    made = plan([disk_file(0, 50), disk_file(50, 100)], [odd])
    assert made.adopt == []
    assert list(made.quarantine) == [odd.name]
    assert made.unlink == []


def test_plan_replaces_sets_that_a_larger_one_takes_in():
    """A set that holds registered ones and more takes their place."""
    known = [disk_file(0, 50), disk_file(50, 100)]
    merged = disk_file(0, 150, set_id="0000000b")
    made = plan(known, [merged])
    ((found, gone),) = made.adopt
    assert (found.id, gone) == ("0000000b", tuple(known))
    assert sorted(made.unlink) == sorted(file.name for file in known)


def test_plan_forgets_broken_sets_that_others_hold():
    """Rows of missing files go when another set holds their range, else they stay as damaged."""
    known = [disk_file(0, 50), disk_file(50, 100)]
    merged = disk_file(0, 50, set_id="0000000b")
    made = plan(known, [merged], missing=known)
    assert made.forget == [known[0]]
    assert list(made.damaged) == [known[1].name]
    assert [found.id for found, _ in made.adopt] == ["0000000b"]


def test_plan_needs_all_files_of_a_set():
    """A set is whole when a file tells the number of files and all of them are there."""
    early = disk_file(0, 10, number=0, total=0)
    late = disk_file(0, 10, number=1, total=2)
    assert len(plan([], [early, late]).adopt) == 1
    assert plan([], [early]).unlink == [early.name]
    assert plan([], [late]).unlink == [late.name]
