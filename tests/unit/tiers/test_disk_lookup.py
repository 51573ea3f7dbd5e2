"""Keys are found in files as in a dictionary, with and without the maps beside the files."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from frazil.errors import CorruptionError
from frazil.schema import KeyShape
from tests.support import Fault, FaultyFileSystem
from tests.unit.tiers.disk_world import (
    BY_COUNTRY,
    SCHEMA,
    SHAPE,
    TOPIC,
    World,
    op_of,
    present_of,
    row,
    time_of,
)

KINDS = [pytest.param({}, id="one file"), pytest.param({"partition_by": BY_COUNTRY}, id="country")]


def opened(**options):
    """Return a world of a keyed topic with a few sets."""
    world = World(row_group_rows=16, keyed=True, **options)
    world.tier.open()
    for first in (0, 50, 100):
        world.flush(first, first + 50)
    return world


def newest(key, before):
    """Return the newest offset of a key below `before`; rows with a bitmap change nothing."""
    offsets = [each for each in range(min(before, 150)) if present_of(each) is None]
    return max((each for each in offsets if row(each)["id"] == key), default=None)


def find(tier, key, before=150, shape=SHAPE):
    """Return the newest change of one key."""
    return tier.lookup.find_many(TOPIC, [key], shape, before).get(key)


def check_find(world, key, before=150):
    """Assert that a key is found as in the model."""
    expected = newest(key, before)
    found = find(world.tier, key, before)
    if expected is None:
        assert found is None
        return
    assert (found.offset, found.op) == (expected, op_of(expected))
    row = world.tier.lookup.row_at(TOPIC, found.offset)
    (values,) = row.drop_columns(["_time"]).to_pylist()
    wanted = world.expected(expected)
    assert wanted.pop("_time_us") == row.column("_time").cast(pa.int64())[0].as_py()
    assert values == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_many_keys_are_found_at_once(kind):
    """Looking many keys up gives what looking each up gives: offset, row, operation."""
    world = opened(**kind)
    keys = [f"key {n}" for n in range(10)] + [f"absent {n}" for n in range(30)] + ["key 3"]
    for before in (0, 1, 9, 50, 51, 77, 100, 149, 1000):
        found = world.tier.lookup.find_many(TOPIC, keys, SHAPE, before)
        assert {key: place.offset for key, place in found.items()} == {
            key: newest(key, before) for key in keys if newest(key, before) is not None
        }
        for key, place in found.items():
            rows = world.tier.lookup.row_at(TOPIC, place.offset).to_pylist()
            assert (rows[0]["_offset"], rows[0]["id"]) == (place.offset, key)
            assert place.op == op_of(place.offset)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_found_by_offset(kind):
    """Every offset gives its own row, and an offset that no file has gives none."""
    world = opened(**kind)
    for offset in range(0, 150, 7):
        (found,) = world.tier.lookup.row_at(TOPIC, offset).to_pylist()
        assert (found["_offset"], found["n"]) == (offset, offset)
        assert found["_time"].timestamp() * 1e6 == pytest.approx(time_of(offset))
    assert world.tier.lookup.row_at(TOPIC, 150) is None
    assert world.tier.lookup.row_at(99, 0) is None


def keys_paths(world):
    """Return the paths of the maps of keys."""
    return [path for path in world.files.paths() if path.endswith(".keys")]


@pytest.mark.parametrize("kind", ["lost", "of another file"])
def test_a_map_that_does_not_fit_is_built_again(kind):
    """Without its map, or with one of other rows, a key is found; the map is there again."""
    world = opened()
    world.flush(150, 160)
    before = {path: world.files.read_bytes(path) for path in keys_paths(world)}
    first, *_others, last = before
    if kind == "lost":
        world.files.unlink(first)
    else:
        world.files.write_bytes(first, before[last])
    world = world.reopened()
    for number in range(10):
        check_find(world, f"key {number}", before=50)
    assert world.tier.lookup.maps_built == 1
    assert {path: world.files.read_bytes(path) for path in keys_paths(world)} == before


def test_a_damaged_map_is_built_again():
    """A flipped bit in a map never hides or invents a key."""
    world = opened()
    generator = random.Random(6)
    for _ in range(40):
        for path in keys_paths(world):
            size = len(world.files.read_bytes(path))
            place, bit = generator.randrange(size), generator.randrange(8)
            world.files.corrupt(
                path, lambda data, p=place, b=bit: data.__setitem__(p, data[p] ^ 1 << b)
            )
        world = world.reopened()
        for number in range(0, 12, 3):
            check_find(world, f"key {number}")


def test_a_map_that_cannot_be_written_serves_from_memory():
    """On a disk that takes no writes a missing map is built in memory."""
    world = opened()
    for path in keys_paths(world):
        world.files.unlink(path)
    tier = world.new_tier(FaultyFileSystem(world.files, [Fault("write_at", persistent=True)]))
    tier.open()
    assert find(tier, "key 3").offset == newest("key 3", 150)
    assert find(tier, "absent") is None
    assert tier.cache_bytes > 0


def test_keys_with_one_hash_are_distinguished(monkeypatch):
    """Keys whose hashes are all the same are still found by their values."""
    world = World(row_group_rows=16, keyed=True)
    monkeypatch.setattr(KeyShape, "hashes", lambda _, batch: _same(batch.num_rows))
    monkeypatch.setattr(KeyShape, "hash_of", lambda _, key: 7)
    monkeypatch.setattr(KeyShape, "hashes_of", lambda _, keys: _same(len(keys)))
    world.tier.open()
    world.flush(0, 150)
    for number in range(12):
        check_find(world, f"key {number}", before=101)
    found = world.tier.lookup.find_many(TOPIC, ["key 2", "absent"], SHAPE, 150)
    assert {key: place.offset for key, place in found.items()} == {"key 2": 142}


def _same(count):
    return pa.array([7] * count, pa.uint32()).to_numpy()


def test_a_renamed_key_column_is_found_in_old_files():
    """The key of a file is known by column id, whatever the column is called now."""
    world = opened()
    fields = [SCHEMA.field(0).with_name("renamed"), *list(SCHEMA)[1:]]
    shape = KeyShape(pa.schema(fields), (1,))
    assert find(world.tier, "key 3", shape=shape).offset == newest("key 3", 150)


def test_a_damaged_file_is_an_error_not_a_miss():
    """A key that may lie in a damaged file is not called absent."""
    world = opened()
    file = world.tier.files(TOPIC)[1]
    world.files.corrupt(world.tier.path(file), lambda data: data.__setitem__(-20, data[-20] ^ 1))
    world = world.reopened()
    with pytest.raises(CorruptionError):
        find(world.tier, "key 3", before=100)

    def rebuild(topic, each):
        span = world.tier.set_of(each)
        world.flush(span.first, span.end, replaces=span.files)
        return True

    world.tier.damage.on_damage = rebuild
    world.clock.advance(61_000_000)
    check_find(world, "key 3", before=100)


def test_decoded_rows_are_kept_within_bounds():
    """Look-ups keep decoded row groups, which count, and let them go when files go."""
    world = opened()
    find(world.tier, "key 3")
    kept = world.tier.cache_bytes
    assert kept > 0
    reads = world.files.read_count
    find(world.tier, "key 3")
    assert world.files.read_count - reads <= 2, "only the block of the map is read again"
    world.tier.close()
    assert world.tier.cache_bytes == 0
    check_find(world, "key 3")
