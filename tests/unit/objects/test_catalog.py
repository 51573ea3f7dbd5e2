"""The catalog of objects: registration, refusals, expiry and garbage."""

from __future__ import annotations

import pytest

from frazil.errors import Conflict, Unavailable
from frazil.metadata import MemoryStore
from frazil.objects.catalog import LEASE_NAME, ObjectCatalog
from frazil.objects.descriptor import Descriptor, Intent
from frazil.objects.format import KeyParts, object_key
from tests.support import SimulatedClock

TOPIC = 7


def key_of(first, end, upload="0000"):
    return object_key(KeyParts(bytes(16), TOPIC, "uid", first, 1, f"{end:04x}{upload}"))


def descriptor(first, end, upload="0000", *, index=b""):
    return Descriptor(
        key=key_of(first, end, upload),
        first=first,
        end=end,
        size=1000,
        length=500,
        records=end - first,
        time_first_us=1,
        time_last_us=2,
        epoch=1,
        etag="e",
        created_us=5,
        index=index,
    )


def intent(first, end, upload="0000"):
    return Intent(key_of(first, end, upload), first, 1)


def garbage(catalog):
    """Return the keys of a catalog's garbage."""
    return sorted(found.key for found in catalog.garbage())


class World:
    """A metadata store, its owner's lease, and a catalog over both."""

    def __init__(self, store=None):
        self.clock = SimulatedClock(1)
        self.store = store if store is not None else MemoryStore(clock=self.clock)
        self.epoch = self.store.acquire(LEASE_NAME, "me", 3600).epoch
        self.catalog = ObjectCatalog(self.store, clock=self.clock, epoch=lambda: self.epoch)
        self.catalog.load()

    def reloaded(self):
        catalog = ObjectCatalog(self.store, clock=self.clock, epoch=lambda: self.epoch)
        catalog.load()
        return catalog


class FewOperations(MemoryStore):
    """A store whose transactions are as small as etcd's."""

    @property
    def operations_max(self):
        return 32


class Unsure(MemoryStore):
    """A store that may say that it does not know, before or after the change."""

    before = after = blind = False

    def list(self, prefix, **given):
        if self.blind:
            raise Unavailable("no answer")
        return super().list(prefix, **given)

    def commit(self, transaction):
        if self.before:
            self.before = False
            raise Unavailable("no answer", outcome="unknown")
        revision = super().commit(transaction)
        if self.after:
            self.after = False
            raise Unavailable("no answer", outcome="unknown")
        return revision


def test_registered_objects_are_found_by_offset_also_after_a_restart():
    """A registered object is found by each of its offsets and by no other, after a restart too."""
    world = World()
    world.catalog.register(TOPIC, descriptor(5, 10))
    world.catalog.register(TOPIC, descriptor(10, 30))
    for catalog in (world.catalog, world.reloaded()):
        picture = catalog.topic(TOPIC)
        assert (picture.start, picture.uploaded) == (5, 30)
        assert [d.first for d in picture.descriptors] == [5, 10]
        assert picture.find(4) is None
        assert picture.find(9) == picture.descriptors[0]
        assert picture.find(10) == picture.descriptors[1]
        assert picture.find(30) is None
        assert [d.end for d in picture.after(9)] == [10, 30]
        assert [d.end for d in picture.after(10)] == [30]
        assert [d.end for d in picture.below(29)] == [10]
    assert world.reloaded().topic(TOPIC) == world.catalog.topic(TOPIC)


@pytest.mark.parametrize(("first", "end"), [(0, 10), (9, 12), (11, 12), (10, 10)])
def test_an_object_that_does_not_follow_is_refused(first, end):
    """What overlaps, leaves a hole, or is empty is not registered, and nothing changes."""
    world = World()
    world.catalog.register(TOPIC, descriptor(0, 10))
    with pytest.raises(Conflict):
        world.catalog.register(TOPIC, descriptor(first, end, "1111"))
    assert world.reloaded().topic(TOPIC).uploaded == 10


def test_two_owners_cannot_register_the_same_range():
    """The second of two catalogs with one picture is refused, whichever object it has."""
    world = World()
    stale = world.reloaded()
    world.catalog.register(TOPIC, descriptor(0, 10))
    with pytest.raises(Conflict):
        stale.register(TOPIC, descriptor(0, 10, "1111"))
    assert stale.topic(TOPIC) == world.catalog.topic(TOPIC), "the loser knows what there is now"


def test_an_owner_of_the_past_is_refused():
    """Who lost the lease registers nothing, even if nothing else has changed."""
    world = World()
    stale = ObjectCatalog(world.store, clock=world.clock, epoch=lambda: world.epoch - 1)
    stale.load()
    with pytest.raises(Conflict):
        stale.register(TOPIC, descriptor(0, 10))
    assert world.reloaded().topics() == {}


def test_the_object_of_an_older_intent_is_garbage():
    """A new intent makes the old one's key garbage, and an abandoned one, too."""
    world = World()
    world.catalog.begin(TOPIC, intent(0, 10))
    world.catalog.begin(TOPIC, intent(0, 12))
    assert garbage(world.reloaded()) == [key_of(0, 10)]
    world.catalog.abandon(TOPIC, why="tired")
    assert garbage(world.reloaded()) == [key_of(0, 10), key_of(0, 12)]
    world.catalog.forget_garbage([key_of(0, 10), key_of(0, 12)])
    assert garbage(world.catalog) == []


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_unknown_outcome_is_looked_up(moment):
    """A registration that may have happened is not done twice and not given up wrongly."""
    world = World(Unsure(clock=SimulatedClock(1)))
    setattr(world.store, moment, True)
    if moment == "before":
        with pytest.raises(Unavailable):
            world.catalog.register(TOPIC, descriptor(0, 10))
        assert world.catalog.topic(TOPIC).uploaded == 0
        world.catalog.register(TOPIC, descriptor(0, 10))
    else:
        world.catalog.register(TOPIC, descriptor(0, 10))
    world.catalog.register(TOPIC, descriptor(10, 11))
    assert world.catalog.topic(TOPIC) == world.reloaded().topic(TOPIC)
    assert world.catalog.topic(TOPIC).uploaded == 11


def test_nothing_builds_on_a_picture_that_may_be_old():
    """While an outcome is unknown and cannot be looked up, uploads wait; then they go on rightly."""
    world = World(Unsure(clock=SimulatedClock(1)))
    world.catalog.register(TOPIC, descriptor(0, 10))
    world.store.after = world.store.blind = True
    with pytest.raises(Unavailable):
        world.catalog.register(TOPIC, descriptor(10, 20))
    assert world.catalog.suspect
    assert world.catalog.topic(TOPIC).uploaded == 10, "readers keep the picture that they have"
    with pytest.raises(Unavailable):
        world.catalog.fresh(TOPIC)
    with pytest.raises(Unavailable):
        world.catalog.begin(TOPIC, intent(10, 20))
    world.store.blind = False
    with pytest.raises(Conflict):
        world.catalog.begin(TOPIC, intent(10, 20))
    assert world.catalog.fresh(TOPIC).uploaded == 20
    assert not world.catalog.suspect
    world.catalog.begin(TOPIC, intent(20, 30))
    assert world.reloaded().topic(TOPIC).state.intent == intent(20, 30)


def test_expired_objects_are_garbage_and_start_moves():
    """Whole objects below the offset go; `start` and the garbage move in the same step."""
    world = World(FewOperations(clock=SimulatedClock(1)))
    for first in range(0, 1000, 10):
        world.catalog.register(TOPIC, descriptor(first, first + 10))
    gone = world.catalog.expire(TOPIC, 509)
    assert len(gone) == 50
    again = world.reloaded()
    assert (again.topic(TOPIC).start, again.topic(TOPIC).uploaded) == (500, 1000)
    assert garbage(again) == sorted(d.key for d in gone)
    assert world.catalog.expire(TOPIC, 509) == []
    world.catalog.expire(TOPIC, 5000)
    world.catalog.register(TOPIC, descriptor(1000, 1001))
    assert world.reloaded().topic(TOPIC).start == 1000
