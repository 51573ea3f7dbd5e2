"""Who folds or decodes may be interrupted anywhere: by Ctrl-C in the thread that asked for it."""

from __future__ import annotations

import sys
from itertools import count

import pytest

from frazil.model import OP_DELETE, OP_UPDATE, OP_UPSERT
from tests.unit.tiers.keyed_model import KeyedTopic

STRIDE = 9
"""Not every place is tried, which would take a minute."""
PLACES = ("frazil/tiers/", "frazil\\tiers\\")


def a_world(index_bytes):
    """Return a topic some of whose rows are in files, some in chunks, some in the tail."""
    world = KeyedTopic(index_bytes=index_bytes)
    world.upsert_rows([(f"k{number}", number, "f") for number in range(6)])
    world.change([(OP_DELETE, "k5", {}), (OP_UPDATE, "k4", {"a": 40})])
    world.flush(world.end)
    world.upsert_rows([(f"k{number}", number, "c") for number in range(3, 14)])
    world.topic.memory.settle(world.end)
    world.upsert_rows([(f"k{number}", number, "t") for number in range(8, 20)])
    world.upsert_rows([("k1", 1, "t")])
    world.upsert_rows([("k1", 11, "t")])
    world.change([(OP_UPDATE, "k1", {"a": 12}), (OP_UPDATE, "never", {"a": 1})])
    world.change([(OP_UPSERT, "k2", {"b": "u"}), (OP_DELETE, "k12", {})])
    return world


def interrupted(work, at, places=PLACES):
    """Do work; raise at the so-many-th time that tiers call or return; tell whether that was."""
    left = at

    def look(frame, what, _argument):
        nonlocal left
        if what != "call" and any(place in frame.f_code.co_filename for place in places):
            left -= 1
            if not left:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


# An interrupt within the end of a generator is not raised but told.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("index_bytes", [1 << 30, 1000])
@pytest.mark.parametrize("name", ["fold", "settle"])
def test_what_was_left_half_way_is_made_good(name, index_bytes):
    """Wherever it was left, the next one who asks sees each key's newest row, once."""
    for at in count(1, STRIDE):
        world = a_world(index_bytes)
        memory, state, end = world.topic.memory, world.state, world.end

        def work(memory=memory, state=state, end=end):
            if name == "settle":
                memory.settle(end, budget_rows=14)
            state.fold(end - 1)
            memory.snapshot(end)

        there = interrupted(work, at)
        if at % 2:
            # Look-ups come first: they do not fold what is folded.
            for key in ("k1", "k3", "k12", "k19", "never"):
                known, found = state.latest(key, end)
                newest = world.model.newest(key, end)
                assert not known or found == newest or newest[1] == found.op == OP_DELETE, at
        assert world.visible(end) == world.model.states(end), at
        assert memory.tail_bytes == 0
        for key in ("k1", "k3", "k5", "k12", "k19", "never"):
            found, newest = state.newest(key, end), world.model.newest(key, end)
            assert found == newest or (found is None and newest[1] == OP_DELETE), (at, key)
        if not there:
            assert at > 100
            return


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_is_let_go_half_way_is_neither_twice_nor_nowhere():
    """Rows that files have are read from memory or from files, wherever letting go was left."""
    for at in count(1):
        world = a_world(1 << 30)
        memory, state, end = world.topic.memory, world.state, world.end
        state.fold(end)
        memory.settle(end)
        gone = memory.chunks[:-1]
        for chunk in gone:
            world.files.add(state, chunk)
        there = interrupted(lambda memory=memory, gone=gone: memory.evict(gone[-1].end), at)
        assert world.visible(end) == world.model.states(end), at
        if not there:
            assert at > 20
            return


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_marks_that_are_put_in_order_half_way_are_not_lost():
    """Rows that files have and changes supersede stay superseded, wherever a query was left."""
    for at in count(1):
        world = a_world(1 << 30)
        state, end = world.state, world.end
        state.fold(end)
        world.flush(end - 4)
        start = world.topic.memory.start
        there = interrupted(
            lambda state=state, end=end, start=start: state.disk_dead(end, start), at
        )
        assert world.visible(end) == world.model.states(end), at
        if not there:
            assert at > 20
            return
