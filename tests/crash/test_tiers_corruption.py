"""Flipped bits in the disk tier: pages, footers, maps of keys and marks: all are reported or harmless."""

from __future__ import annotations

import os
from random import Random

import pytest

from frazil.errors import FrazilError
from tests.crash.engine_world import many_lives
from tests.crash.tiers_scene import Scene

EXHAUSTIVE = bool(os.environ.get("FRAZIL_TEST_EXHAUSTIVE"))
FLIPS = 4000 if EXHAUSTIVE else 36
SHARDS = 16 if EXHAUSTIVE else 2
SEED = int(os.environ.get("FRAZIL_TEST_TIERS_BASE", "20261116"))


def prepared(*, freed):
    """A scene at rest: everything in files, marks written, the log there or let go."""
    scene = Scene(freed=freed)
    if freed:
        scene.engine.tiers.flush()
        scene.free()
    scene.check()
    scene.close()
    return scene


def spots(scene, part):
    """All bits of the files whose path has a part."""
    return [
        (path, position)
        for path in scene.disk.paths()
        if part in path
        for position in range(8 * len(scene.disk.read_bytes(path)))
    ]


def some(found, seed):
    """As many of the bits as are to be flipped."""
    return Random(seed).sample(found, min(FLIPS, len(found)))


def damaged(base, spot, *, mode):
    """The scene with one bit flipped, before it is opened or while it is open."""
    path, position = spot
    scene = base.twin()

    def flip(data):
        data[position >> 3] ^= 1 << (position & 7)

    if mode == "open":
        scene.open()
        scene.check_keys(scene.models["/default/keyed"], [(1,)])
        scene.disk.corrupt(path, flip)
        return scene
    scene.disk.corrupt(path, flip)
    scene.open()
    return scene


@pytest.mark.timeout(0)
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("freed", [False, True], ids=["log", "files"])
@pytest.mark.parametrize("part", [".parquet", ".keys"])
def test_a_flip_is_repaired_from_the_log_or_reported(part, freed, shard):
    """While the log holds a file's range, no answer shows its damage; without the log an answer is
    right or a `CorruptionError`, never wrong, and nothing is hidden.
    """
    refused = 0
    with many_lives():
        base = prepared(freed=freed)
        chosen = some(spots(base, part), f"{SEED}/{part}{'/freed' * freed}")
        for number, spot in enumerate(chosen[shard::SHARDS]):
            scene = damaged(base, spot, mode="open" if number % 3 == 0 else "closed")
            refused += scene.check_damaged(whole=not freed)
            if not freed:
                scene.check()
            scene.close()
    assert bool(refused) == (freed and part == ".parquet")


@pytest.mark.timeout(0)
@pytest.mark.parametrize("freed", [False, True], ids=["log", "files"])
def test_a_missing_or_short_file_is_reported_or_repaired(freed):
    """A file that is gone or cut short is written again from the log, or refused."""
    with many_lives():
        base = prepared(freed=freed)
        for path in base.files(".parquet"):
            for size in (None, 0, 10):
                scene = base.twin()
                if size is None:
                    scene.disk.unlink(path)
                else:
                    scene.disk.corrupt(
                        path, lambda data, size=size: data.__delitem__(slice(size, None))
                    )
                scene.open()
                refused = scene.check_damaged(whole=not freed)
                assert bool(refused) == freed, (path, size)
                scene.close()


@pytest.mark.timeout(0)
def test_the_scrub_finds_a_flip_that_nobody_reads():
    """The scrub finds, reports and repairs a flipped bit in a file that no query reads."""
    with many_lives():
        base = prepared(freed=False)
        for spot in Random(SEED).sample(spots(base, ".parquet"), FLIPS // 3):
            scene = damaged(base, spot, mode="closed")
            disk = scene.engine.tiers.disk
            scene.clock.advance(2 * scene.engine.tiers.disk.limits.scrub_interval_s)
            found = disk.damage.scrub_once()
            assert found == 1 or scene.engine.warnings, spot
            names = {file.name for topic in disk.catalog.topics for file in disk.files(topic)}
            assert spot[0].rsplit("/", 1)[1] not in names, spot
            scene.check()
            scene.close()


@pytest.mark.timeout(0)
def test_lost_metadata_is_found_again_in_the_files():
    """Without a line of metadata, and with the log let go, the files tell all they hold."""
    with many_lives():
        base = prepared(freed=True)
        for path in [path for path in base.disk.paths() if "meta.db" in path]:
            base.disk.unlink(path)
        scene = base.twin()
        scene.open()
        try:
            scene.check()
        except FrazilError as error:
            pytest.fail(f"the files were not taken in: {error}")
        assert len(scene.files(".parquet")) == len(base.files(".parquet"))
        scene.close()
