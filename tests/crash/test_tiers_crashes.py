"""Power is lost at every sync point of every move between the tiers: nothing is lost or doubled."""

from __future__ import annotations

import os

import pytest

from tests.crash.engine_world import many_lives
from tests.crash.tiers_scene import MOVES, Scene, evict
from tests.support import SimulatedCrash

EXHAUSTIVE = bool(os.environ.get("FRAZIL_TEST_EXHAUSTIVE"))
STRIDE = 1 if EXHAUSTIVE else 5
SEEDS = 5 if EXHAUSTIVE else 1


def cut_off(base, move, point):
    """Do a move until it is cut off at a point; return the scene, None if there is no such point."""
    scene = base.twin()
    scene.open()
    scene.settle()
    scene.disk.crash_at = scene.disk.sync_points + point
    try:
        move(scene)
    except SimulatedCrash:
        return scene
    scene.disk.crash_at = None
    scene.close()
    return None


def check_after(scene, move, *, power, seed):
    """Open what a crash has left, check it, do the move to its end and check again."""
    scene.random.seed(seed)
    scene.crash(power=power)
    scene.open()
    scene.settle()
    # A file that was damaged before the crash may still be: the log has its records.
    scene.check_damaged(whole=True)
    move(scene)
    assert scene.engine.tiers.errors == {}
    scene.check()
    scene.close()


@pytest.mark.timeout(0)
@pytest.mark.parametrize("expires", [False, True], ids=["keeps", "expires"])
@pytest.mark.parametrize("move", MOVES, ids=[move.__name__ for move in MOVES])
def test_a_move_that_is_cut_off_leaves_the_old_or_the_new_state(move, expires):
    """Wherever a move is cut off, every record is there once, and the move can be done again."""
    if move is evict:
        pytest.skip("an eviction from memory touches no file")
    with many_lives():
        base = Scene(expires=expires)
        point = 1
        while (scene := cut_off(base, move, point)) is not None:
            for seed in range(SEEDS):
                twin = scene if seed == SEEDS - 1 else cut_off(base, move, point)
                check_after(twin, move, power=(point + seed) % 4 != 0, seed=point + 1000 * seed)
            point += STRIDE
        assert point > 20
        base.close()


@pytest.mark.timeout(0)
@pytest.mark.parametrize("freed", [False, True], ids=["log", "files"])
def test_an_opening_that_is_cut_off_is_done_again(freed):
    """A crash in the middle of an opening, after a crash in the middle of a flush, loses nothing."""
    with many_lives():
        base = Scene(freed=freed)
        base.disk.crash_at = base.disk.sync_points + 20
        with pytest.raises(SimulatedCrash):
            base.engine.tiers.flush()
        base.crash(power=True)
        point, reached = 1, 0
        while point:
            scene = base.twin()
            scene.cache_lives = False
            scene.disk.crash_at = scene.disk.sync_points + point
            try:
                scene.open()
                scene.engine.tiers.run_once()
            except SimulatedCrash:
                reached += 1
                scene.crash(power=point % 3 != 0)
                scene.open()
                point += STRIDE
            else:
                scene.disk.crash_at = None
                point = 0
            scene.settle()
            scene.check()
            scene.close()
        assert reached > 3
