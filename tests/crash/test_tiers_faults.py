"""Each call on the disk tier's files fails once, in every move: it is reported and harmless, never wrong."""

from __future__ import annotations

import contextlib
import errno
import os

import pytest

from frazil.errors import FrazilError
from tests.crash.engine_world import many_lives
from tests.crash.tiers_scene import MOVES, Scene, expire
from tests.support.faulty_fs import Fault, FaultyFileSystem

EXHAUSTIVE = bool(os.environ.get("FRAZIL_TEST_EXHAUSTIVE"))
VERBS = (
    *("open", "read_at", "write_at", "sync", "rename", "unlink"),
    *("sync_directory", "stat", "list_directory", "make_directory"),
)
ERRORS = (errno.EIO, errno.ENOSPC) if EXHAUSTIVE else (errno.EIO,)
DENSE = 1 << 30 if EXHAUSTIVE else 2
STRIDE = 37
"""Every call up to `DENSE` fails, beyond it one in so many."""


class FaultyScene(Scene):
    """A scene whose file system fails as planned."""

    plan = None

    def open(self):
        """Open the engine on a file system with faults, if there are any planned."""
        if self.plan is not None:
            self.faulty = FaultyFileSystem(self.disk, [self.plan])
            self.disk = self.faulty
        super().open()


def attempt(base, move, fault):
    """Do a move with a fault, then look; return whether the fault came, and the scene."""
    scene = base.twin()
    scene.plan = fault
    real = scene.disk
    with contextlib.suppress(FrazilError):
        scene.open()
        scene.disk = real
        move(scene)
    scene.disk = real
    fired = scene.faulty.fired
    if scene.engine is not None:
        if EXHAUSTIVE or fault.nth % 2:
            look(scene)
        with contextlib.suppress(FrazilError):
            scene.engine.close()
    scene.plan = None
    return fired, scene


def look(scene):
    """While the fault may still be in force, an answer is right or an error of ours."""
    for model in scene.models.values():
        with contextlib.suppress(FrazilError):
            scene.check_start(model)
            scene.check_log(model)
        if model.keyed:
            with contextlib.suppress(FrazilError):
                scene.check_keys(model, [(key,) for key in range(9)])
        with contextlib.suppress(FrazilError):
            scene._check_sql(model)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("verb", VERBS)
def test_a_call_that_fails_is_reported_and_harmless(verb):
    """Whatever call fails, only errors of ours come out, and without faults all is there again."""
    fired_total = 0
    with many_lives():
        for expires, moves in ((False, MOVES), (True, (expire,))):
            base = FaultyScene(expires=expires)
            for move in moves:
                for error in ERRORS:
                    fired_total += sweep(base, move, verb, error)
            base.close()
    assert fired_total or verb == "make_directory"


def sweep(base, move, verb, error):
    """Fail one call after the other of a verb; return how many failed."""
    count, nth = 0, 1
    while True:
        fired, scene = attempt(base, move, Fault(verb, nth=nth, error=error, path_part="/disk"))
        if not fired:
            return count
        count += 1
        check_again(scene, nth)
        nth += 1 if nth < DENSE else STRIDE


def check_again(scene, nth):
    """After a restart, by a crash or not, without faults: everything is there."""
    scene.disk = scene.disk.crash_clone(nth) if nth % 2 else scene.disk.kill_clone()
    scene.cache_lives = nth % 2 == 0
    scene.open()
    scene.engine.warnings.clear()
    scene.settle()
    scene.check_damaged(whole=True)
    scene.close()
