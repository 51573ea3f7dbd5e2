"""The filter of keys never denies a key that was, and spares looking for keys that were not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.model import OP_UPSERT
from frazil.tiers.keys.fold import Found
from frazil.tiers.keys.key_filter import FILTER_SHARE, KeyFilter
from tests.unit.tiers.keyed_model import KeyedTopic

hashes = st.lists(st.integers(0, (1 << 32) - 1), max_size=50)


def array(values):
    """Return hashes as the filter takes them."""
    return np.array(values, np.uint32)


@given(st.sampled_from([8, 64, 4096]), hashes, hashes, hashes)
def test_what_was_taken_in_is_never_denied(size, first, second, others):
    """However small it is, every hash that was added is a maybe, alone and among others."""
    known = KeyFilter(size)
    known.add(array(first))
    known.add(array(second))
    assert known.maybe(array(first + second)).all()
    assert all(known.has(value) for value in first + second)
    assert [known.has(value) for value in others] == known.maybe(array(others)).tolist()


def test_most_of_what_was_not_taken_in_is_denied():
    """With two bytes a key about one in a hundred other hashes is a maybe, with more far fewer."""
    draw = np.random.default_rng(1)
    values = draw.integers(0, 1 << 32, 60_000, np.uint32)
    known = KeyFilter(1 << 16)
    known.add(values[:30_000])
    assert known.maybe(values[30_000:]).mean() < 0.02
    wide = KeyFilter(1 << 20)
    wide.add(values[:30_000])
    assert wide.maybe(values[30_000:]).mean() < 0.001


def test_it_is_ready_when_the_keys_of_before_are_taken_in():
    """Keys that were there are taken in with those that come, the more the faster."""
    known = KeyFilter(1 << 16, range(20_000))
    rounds = 0
    while not known.ready:
        known.seed(1000, array)
        rounds += 1
    assert rounds == 3
    assert known.maybe(np.arange(20_000, dtype=np.uint32)).all()


@pytest.mark.parametrize(
    ("index_bytes", "size"), [(0, None), (100, None), (128, 8), (10**6, 32768)]
)
def test_it_takes_its_share_of_the_index(index_bytes, size):
    """A filter takes a power of two within its share; an index that is too small has none."""
    known = KeyFilter.beside(index_bytes)
    assert (None if known is None else known.nbytes) == size
    assert size is None or size <= index_bytes // FILTER_SHARE


def test_new_keys_are_not_looked_for_in_files_when_the_index_is_full():
    """Ten times the keys that fit: files are asked for next to none of the new and absent ones."""
    world = KeyedTopic(index_bytes=200_000, merge_rows=4096, arrow_min=64)
    for start in range(0, 10_000, 500):
        world.upsert_rows([(f"key-{n:05d}", n, "r") for n in range(start, start + 500)])
        world.state.fold(world.end)
        world.flush(world.end)
    state = world.state
    assert not state.complete
    assert state.evictions > 5000
    asked = world.files.asked
    assert asked < 500
    absent = [state.newest(f"none-{n}") for n in range(100)]
    assert absent == [None] * 100
    assert world.files.asked < asked + 30
    assert state.newest("key-00007") == Found(7, OP_UPSERT)
    assert "key-05007" not in state.index.codes
    assert state.newest("key-05007") == Found(5007, OP_UPSERT)
    world.upsert_rows([("key-00007", 0, "s")])
    state.fold(world.end)
    assert 7 in state.disk_dead(world.end, world.end).tolist()


def test_a_rebuild_from_files_knows_which_keys_there_are():
    """After a restart with more keys than fit, absent keys are not looked for in files either."""
    world = KeyedTopic(index_bytes=20_000, merge_rows=4096, arrow_min=64)
    world.upsert_rows([(f"key-{n:05d}", n, "r") for n in range(2000)])
    world.state.fold(world.end)
    world.flush(world.end)
    world.restart(rebuild=True)
    world.upsert_rows([("one more", 1, "r")])
    state = world.state
    state.fold(world.end)
    assert not state.complete
    before = world.files.asked
    assert sum(state.newest(f"none-{n}") is None for n in range(100)) == 100
    assert world.files.asked - before < 90
    assert all(state.newest(f"key-{n:05d}") == Found(n, OP_UPSERT) for n in range(0, 2000, 50))


def test_a_rebuild_behind_the_first_fold_leaves_all_keys_findable():
    """What was folded and forgotten before the files were gone through is not denied."""
    world = KeyedTopic(index_bytes=20_000, merge_rows=4096, arrow_min=64)
    world.upsert_rows([(f"key-{n:05d}", n, "r") for n in range(1000)])
    world.state.fold(world.end)
    world.flush(world.end)
    world.restart(rebuild=False)
    world.upsert_rows([(f"late-{n:05d}", n, "r") for n in range(1000)])
    world.state.fold(world.end)
    world.state.rebuild_disk_dead(world.files.key_rows)
    state = world.state
    assert all(state.newest(f"key-{n:05d}") == Found(n, OP_UPSERT) for n in range(0, 1000, 9))
    late = [state.newest(f"late-{n:05d}") for n in range(0, 1000, 9)]
    assert late == [Found(1000 + n, OP_UPSERT) for n in range(0, 1000, 9)]


def test_a_filter_that_is_not_ready_denies_nothing(monkeypatch):
    """Keys that the index forgot before the filter took them in are found, and superseded."""
    monkeypatch.setattr("frazil.tiers.keys.key_filter.SEED_RATIO", 0)
    monkeypatch.setattr("frazil.tiers.keys.key_filter.SEED_KEYS_MIN", 1)
    world = KeyedTopic(index_bytes=20_000, merge_rows=4096, arrow_min=64)
    world.upsert_rows([(f"key-{n:05d}", n, "r") for n in range(100)])
    world.state.fold(world.end)
    world.upsert_rows([(f"more-{n:05d}", n, "r") for n in range(1000)])
    world.state.fold(world.end)
    state = world.state
    assert "key-00007" not in state.index.codes
    assert state.newest("key-00007") == Found(7, OP_UPSERT)
    world.upsert_rows([("key-00007", 0, "s")])
    state.fold(world.end)
    assert world.topic.memory.chunk_at(7).dead[7] == 1100
