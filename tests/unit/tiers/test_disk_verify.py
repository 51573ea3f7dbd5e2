"""Damage at rest is found by reading, once, and files are put aside only when replaced."""

from __future__ import annotations

import pytest

from frazil.errors import Conflict
from frazil.log import RANGE_GAP
from frazil.tiers.disk import maintenance as disk_verify
from tests.unit.tiers.disk_world import QUARANTINE, TOPIC, World


def opened(count=3):
    """Return a world with some sets, reopened, so that nothing is known to be good."""
    world = World(keyed=True)
    world.tier.open()
    for first in range(0, 20 * count, 20):
        world.flush(first, first + 20)
    return world


def flip(world, file):
    """Flip a bit in the middle of a file."""
    middle = file.bytes // 2
    world.files.corrupt(
        world.tier.path(file), lambda data: data.__setitem__(middle, data[middle] ^ 4)
    )


def test_a_verified_file_costs_a_stat():
    """Bytes are read once, and never by the process that wrote them."""
    world = opened()
    for first_reads, files in ((False, world), (True, world.reopened())):
        for reads in (first_reads, False):
            before = world.files.read_count
            assert files.tier.damage.verify(files.tier.files(TOPIC)[0]) == ""
            assert (world.files.read_count > before) is reads


def test_scrubbing_finds_silent_damage():
    """Files that were not verified for long are read, though nothing about them changed."""
    world = opened()
    broken = world.tier.files(TOPIC)[1]
    flip(world, broken)
    modified_ns = world.files.stat(world.tier.path(broken)).modified_ns
    world.tier.damage._seen[TOPIC, broken.name] = (modified_ns, broken.bytes)
    assert world.tier.damage.verify(broken) == "", "a stat alone cannot see it"
    assert world.tier.damage.scrub_once() == 0, "not due yet"
    world.clock.advance(int(25 * 3600 * 1e6))
    reported = []
    world.tier.damage.on_damage = lambda topic, file: reported.append(file.name) or False
    assert world.tier.damage.scrub_once() == 1
    assert reported == [broken.name]
    assert list(world.tier.damage.damaged()) == [(TOPIC, broken.name)]
    reads = world.files.read_count
    assert world.tier.damage.scrub_once() == 0
    assert world.files.read_count == reads, "none is due again"


def test_scrubbing_is_done_in_portions(monkeypatch):
    """One call reads a limited number of bytes; further calls get to all files."""
    monkeypatch.setattr(disk_verify, "SCRUB_BYTES", 1)
    world = opened()
    world.clock.advance(int(25 * 3600 * 1e6))
    reads = []
    for _ in range(4):
        before = world.files.read_count
        world.tier.damage.scrub_once()
        reads.append(world.files.read_count - before)
    assert all(reads[:3])
    assert reads[3] == 0


@pytest.mark.parametrize("rebuilt", [True, False])
def test_a_damaged_file_is_put_aside_only_when_replaced(rebuilt):
    """A file in quarantine has a replacement; without one it stays, with its row."""
    world = opened()
    broken = world.tier.files(TOPIC)[1]
    flip(world, broken)

    def rebuild(topic, file):
        if rebuilt:
            world.flush(20, 40, replaces=(file,))
        return rebuilt

    world.tier.damage.on_damage = rebuild
    world.clock.advance(int(25 * 3600 * 1e6))
    assert world.tier.damage.scrub_once() == 1
    aside = [path for path in world.files.paths() if path.startswith(QUARANTINE)]
    assert len(aside) == (2 if rebuilt else 0)
    known = [file.name for file in world.tier.files(TOPIC)]
    assert (broken.name in known) != rebuilt
    if rebuilt:
        world.check_history(0, 60)
        assert world.tier.damage.damaged() == {}


def test_a_replacement_must_hold_the_same():
    """Files take the place of others only with the same range and as many rows."""
    world = opened()
    one, two, _ = world.tier.files(TOPIC)
    before = world.files.paths()
    with pytest.raises(Conflict):
        world.flush(0, 30, replaces=(one,))
    with pytest.raises(Conflict):
        world.flush(0, 20, gaps=[(5, 6, RANGE_GAP)], replaces=(one,))
    with pytest.raises(Conflict):
        world.flush(0, 20, replaces=(one, two))
    assert world.files.paths() == before
    world.flush(0, 40, replaces=(one, two))
    world.check_history(0, 60)
    with pytest.raises(Conflict):
        world.flush(0, 20, replaces=(one,))
