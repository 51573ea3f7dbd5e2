"""The cap is kept by giving up what is safe elsewhere, and nothing else."""

from __future__ import annotations

import pytest

from frazil.errors import NotFound
from frazil.tiers.disk.reader import LruCache
from tests.unit.tiers.disk_world import BY_COUNTRY, TOPIC, World

FLOOR = {TOPIC: 1 << 40}


def opened(**options):
    """Return a world with five sets of twenty rows, without a cap."""
    world = World(keyed=True, **options)
    world.cap = 1 << 60
    world.tier.open()
    for first in range(0, 100, 20):
        world.flush(first, first + 20)
    return world


def capped(world, sets):
    """Set the cap to the room of so many sets."""
    size = world.tier.space.usage() * sets // 5
    world.cap = size
    return size


def test_usage_is_what_lies_on_disk():
    """The bytes that are counted are those of the files with their maps."""
    world = opened(partition_by=BY_COUNTRY)
    on_disk = sum(len(world.files.read_bytes(path)) for path in world.files.paths())
    assert world.tier.space.usage() == on_disk
    assert world.reopened().tier.space.usage() == on_disk
    assert sum(world.tier.space.purposes().values()) == on_disk


def test_only_committed_sets_are_evicted_oldest_first():
    """Below the cap nothing goes; above it the oldest committed sets go, until it fits."""
    world = opened()
    assert world.tier.space.evict(world.cap, FLOOR) == 0
    size = capped(world, 2)
    assert world.tier.space.evict(world.cap, FLOOR) == 0, "nothing is committed"
    world.tier.set_committed(TOPIC, 60)
    freed = world.tier.space.evict(world.cap, FLOOR)
    assert freed > 0
    assert world.tier.space.usage() <= size
    world.check_history(60, 100)
    with pytest.raises(NotFound):
        world.tier.history.read(TOPIC, offset=0, bytes_max=100)
    after = world.reopened()
    after.check_history(60, 100)
    assert after.tier.committed(TOPIC) == 60
    after.flush(100, 120)
    after.check_history(60, 120)


@pytest.mark.parametrize("holder", ["floor", "pin", "reader", "no floor"])
def test_what_somebody_needs_is_never_evicted(holder):
    """A hold, a pin on a file, an open reader or an unknown floor keeps a set and all behind it."""
    world = opened()
    capped(world, 1)
    world.tier.set_committed(TOPIC, 100)
    floors = dict(FLOOR)
    kept = []
    if holder == "floor":
        floors[TOPIC] = 39
    elif holder == "pin":
        kept.append(world.tier.pins.pin(world.tier.files(TOPIC)[1:2]))
    elif holder == "reader":
        kept.append(world.tier.history.pin(TOPIC, offset=30))
    else:
        floors = {}
    world.tier.space.evict(world.cap, floors)
    first = 0 if holder == "no floor" else 20
    world.check_history(first, 100)
    for pin in kept:
        pin.close()
    world.tier.space.evict(world.cap, FLOOR)
    world.check_history(80, 100)


def test_the_least_recently_used_topic_gives_first():
    """Of two topics the one whose oldest files were read longer ago gives up its files."""
    world = opened()
    other = TOPIC + 1
    for first in range(0, 100, 20):
        world.flush(first, first + 20, topic=other)
    for topic in (TOPIC, other):
        world.tier.set_committed(topic, 100)
    world.cap = world.tier.space.usage() - 1
    world.tier.readers.note_use(world.tier.files(TOPIC))
    world.tier.space.evict(world.cap, {TOPIC: 100, other: 100})
    assert (world.tier.start(TOPIC), world.tier.start(other)) == (0, 20)
    world.tier.readers.note_use(world.tier.files(other))
    world.cap = world.tier.space.usage() - 1
    world.tier.space.evict(world.cap, {TOPIC: 100, other: 100})
    assert (world.tier.start(TOPIC), world.tier.start(other)) == (20, 20)


def test_expiry_needs_no_commit():
    """Whole sets below an offset go, committed or not; a set that reaches above it stays."""
    world = opened()
    assert world.tier.space.expire(TOPIC, 39) > 0
    world.check_history(20, 100)
    assert world.tier.space.expire(TOPIC, 39) == 0
    world.tier.space.expire(TOPIC, 1000)
    assert (world.tier.start(TOPIC), world.tier.files(TOPIC)) == (100, ())


def test_purposes_are_disjoint():
    """Cache, staging and files that wait for a merge add up to all bytes."""
    world = World(keyed=True, small_file_bytes=1)
    world.tier.open()
    world.flush(0, 20)
    world.flush(20, 40)
    world.tier.set_committed(TOPIC, 20)
    cached, staged = world.tier.files(TOPIC)
    found = world.tier.space.purposes()
    assert found == {"query_cache": cached.size, "staging": staged.size, "compaction": 0}
    world.limits["small_file_bytes"] = 1 << 20
    small = world.reopened().tier.space.purposes()
    assert small == {"query_cache": cached.size, "staging": 0, "compaction": staged.size}


def test_staged_is_what_is_not_committed():
    """The facts for the commit signals count files above the committed mark."""
    world = World(keyed=True, partition_by=BY_COUNTRY)
    world.tier.open()
    assert world.tier.space.staged(TOPIC).files == 0
    world.flush(0, 20)
    oldest = world.tier.space.staged(TOPIC).since_us
    assert oldest == world.tier.files(TOPIC)[0].created_us
    world.flush(20, 40)
    world.tier.set_committed(TOPIC, 20)
    staged = world.tier.space.staged(TOPIC)
    files = [file for file in world.tier.files(TOPIC) if file.set_first == 20]
    assert (staged.files, staged.small_files) == (3, 3)
    assert staged.bytes == sum(file.bytes for file in files)
    assert staged.partition_bytes_max == max(file.bytes for file in files)
    assert staged.deletes == 4
    assert (staged.offset_first, staged.offset_end) == (20, 40)
    assert staged.since_us > oldest


def test_the_committed_mark_never_goes_back():
    """An older committed mark changes nothing."""
    world = opened()
    world.tier.set_committed(TOPIC, 60)
    world.tier.set_committed(TOPIC, 40)
    assert world.reopened().tier.committed(TOPIC) == 60


def test_a_cache_keeps_what_is_used_and_closes_the_rest():
    """It stays below its limit, drops what was not used for longest, and closes what it drops."""
    closed = []
    cache = LruCache(10, close=closed.append)
    for name in "abc":
        assert cache.put(name, name.upper(), 4) == name.upper()
        cache.get("a")
    assert [cache.get(name) for name in "abc"] == ["A", None, "C"]
    assert (cache.nbytes, closed) == (8, ["B"])
    cache.put("large", "L", 11)
    assert cache.get("large") is None
    assert cache.put("a", "again", 6) == "A"
    cache.forget(lambda key: key == "a")
    assert (cache.nbytes, closed) == (4, ["B", "again", "A"])
    cache.forget()
    assert (cache.nbytes, closed[3:]) == (0, ["C"])
