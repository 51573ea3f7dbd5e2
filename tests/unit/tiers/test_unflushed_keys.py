"""Look-ups of records that are not folded yet: from the tail's keys, or by a fold."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from frazil.model import OP_UPSERT
from frazil.tiers.keys import index
from frazil.tiers.keys.index import Found
from tests.unit.tiers.keyed_model import KeyedTopic

UNKNOWN = (False, None)


def a_topic(**options):
    """Return a topic with the row k0 at offset 0, which alone is folded."""
    world = KeyedTopic(**options)
    world.upsert_rows([("k0", 0, "r")])
    world.state.fold(1)
    return world


def one(world, key, a):
    """Write a row as a frame of its own."""
    world.upsert_rows([(key, a, "r")])


def test_an_unfolded_row_is_found_without_a_fold():
    """Each write is seen at once, with its values, though nothing is folded or decoded."""
    world = a_topic()
    for number in range(1, 20):
        one(world, f"k{number % 3}", number)
        assert world.state.latest(f"k{number % 3}", world.end) == (True, (number, OP_UPSERT))
        assert world.state.image_at(number).values == (f"k{number % 3}", number, "r")
    assert world.state.latest("never", world.end) == (True, None)
    assert world.state.folded_to == 1
    assert world.topic.memory.settled == 1


def test_nothing_at_or_above_the_end_is_seen():
    """Neither where only that was noted, nor where a newer change hides the one to be seen."""
    world = a_topic()
    one(world, "k1", 1)
    one(world, "k0", 2)
    one(world, "k1", 3)
    assert world.state.latest("k0", 2) == (True, Found(0, OP_UPSERT))
    assert world.state.latest("k1", 4) == (True, Found(3, OP_UPSERT))
    assert world.state.latest("k1", 3) == UNKNOWN
    assert world.state.latest("k0", 1) == (True, Found(0, OP_UPSERT))


def test_a_frame_is_noted_in_parts():
    """An end in the middle of a frame, of rows or Arrow, shows the records before it."""
    for arrow_min in (1, 64):
        world = a_topic(arrow_min=arrow_min)
        world.upsert_rows([("k0", 1, "r"), ("k1", 2, "r"), ("k0", 3, "r"), ("k1", 4, "r")])
        for end in range(2, 6):
            for key in ("k0", "k1"):
                assert world.state.latest(key, end) == (True, world.model.newest(key, end))
        assert world.state.folded_to == 1


def test_decoded_records_need_the_fold():
    """Decoded records have left the tail; keys noted before stay known."""
    world = a_topic()
    one(world, "k1", 1)
    assert world.state.latest("k1", 2)[0]
    one(world, "k1", 2)
    world.topic.memory.settle(3)
    assert world.state.latest("k1", 2) == (True, Found(1, OP_UPSERT))
    assert world.state.latest("k1", 3) == UNKNOWN
    world.state.fold(3)
    assert world.state.latest("k1", 3) == (True, Found(2, OP_UPSERT))


def test_more_than_a_bounded_number_of_changes_needs_the_fold(monkeypatch):
    """The noted keys stay bounded, whatever is folded and looked up."""
    monkeypatch.setattr(index, "CHANGES_MAX", 8)
    world = a_topic()
    for number in range(1, 60):
        one(world, f"k{number}", number)
        known, found = world.state.latest(f"k{number}", world.end)
        assert known == (world.end - world.state.folded_to <= 8)
        if known:
            assert found == Found(number, OP_UPSERT)
        elif number % 2:
            world.state.fold(world.end - 3)
        assert len(world.state._unflushed._codes) <= 24


@pytest.mark.parametrize("index_bytes", [1 << 30, 600])
def test_readers_never_miss_a_write_while_others_fold_and_decode(index_bytes):
    """A reader beside folds, decoding and eviction sees each key as new as it was acknowledged."""
    world = a_topic(index_bytes=index_bytes, arrow_min=3)
    state, memory, names = world.state, world.topic.memory, ("k0", "k1", "k2", "k3")
    stop, wrong, answers = threading.Event(), [], [0]
    one(world, "k1", 0)
    one(world, "k2", 0)
    one(world, "k3", 0)
    acked = [4]

    def read():
        while not stop.is_set():
            for place, key in enumerate(names):
                end = acked[0]
                # The keys take turns.
                offset = end - 1 - (end - 1 - place) % 4
                known, found = state.latest(key, end)
                answers[0] += known
                if known and found != (offset, OP_UPSERT):
                    wrong.append((key, end, found))

    def fold():
        while not stop.is_set():
            end = acked[0]
            state.fold(end - 2, budget_rows=7)
            memory.settle(end - 1)

    threads = [threading.Thread(target=target) for target in (read, read, fold)]
    for thread in threads:
        thread.start()
    for number in range(4, 3000):
        if number % 4 == 0 and number % 16:
            world.upsert_rows([(name, number, "r") for name in names])
        elif number % 4 == 0:
            for name in names:
                one(world, name, number)
        acked[0] = world.end
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert answers[0]


def test_a_key_that_a_complete_index_lacks_is_absent_without_the_lock():
    """A look-up of an absent key does not wait for a fold that holds the lock."""
    world = a_topic()
    assert world.state.complete
    with ThreadPoolExecutor(1) as pool, world.topic.memory.lock:
        assert pool.submit(world.state.newest, "never").result(timeout=30) is None


def test_a_miss_while_keys_are_moved_waits_for_the_fold():
    """A key may be missing from the index for a moment: a miss is decided under the lock."""
    world = a_topic()
    code = world.state.index.codes.pop("k0")
    world.state.index.moves += 1
    with ThreadPoolExecutor(1) as pool:
        with world.topic.memory.lock:
            found = pool.submit(world.state.newest, "k0")
            with pytest.raises(TimeoutError):
                found.result(timeout=0.05)
            world.state.index.codes["k0"] = code
            world.state.index.moves += 1
        assert found.result(timeout=30) == Found(0, OP_UPSERT)
