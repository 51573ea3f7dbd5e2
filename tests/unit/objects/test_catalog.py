"""The catalog of objects: what it registers, refuses, replaces and lets go."""

from __future__ import annotations

import pytest

from frazil.errors import Conflict, Unavailable
from frazil.metadata import MemoryStore
from frazil.objects.catalog import LEASE_NAME, ObjectCatalog
from frazil.objects.descriptor import Descriptor, Hint, Intent
from tests.support import SimulatedClock

TOPIC = 7


def descriptor(first, end, key="k", *, shared=False, index=b""):
    return Descriptor(
        key=f"{key}-{first}" if not shared else key,
        first=first,
        end=end,
        size=1000,
        position=64,
        length=500,
        records=end - first,
        frames=1,
        time_first_us=1,
        time_last_us=2,
        epoch=1,
        sha="00" * 32,
        etag="e",
        created_us=5,
        index=index,
        shared=shared,
    )


def intent(first, end, key):
    return Intent(key, first, end, 1, "00" * 32, 1000)


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
    world.catalog.register(TOPIC, descriptor(5, 10), Hint(1, 64))
    world.catalog.register(TOPIC, descriptor(10, 30), Hint(2, 128))
    for catalog in (world.catalog, world.reloaded()):
        picture = catalog.topic(TOPIC)
        assert (picture.start, picture.uploaded, picture.state.hint) == (5, 30, Hint(2, 128))
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
    world.catalog.register(TOPIC, descriptor(0, 10), Hint())
    with pytest.raises(Conflict):
        world.catalog.register(TOPIC, descriptor(first, end, "other"), Hint())
    assert world.reloaded().topic(TOPIC).uploaded == 10


def test_two_owners_cannot_register_the_same_range():
    """The second of two catalogs with one picture is refused, whichever object it has."""
    world = World()
    stale = world.reloaded()
    world.catalog.register(TOPIC, descriptor(0, 10), Hint())
    with pytest.raises(Conflict):
        stale.register(TOPIC, descriptor(0, 10, "other"), Hint())
    assert stale.topic(TOPIC) == world.catalog.topic(TOPIC), "the loser knows what there is now"


def test_an_owner_of_the_past_is_refused():
    """Who lost the lease registers nothing, even if nothing else has changed."""
    world = World()
    stale = ObjectCatalog(world.store, clock=world.clock, epoch=lambda: world.epoch - 1)
    stale.load()
    with pytest.raises(Conflict):
        stale.register(TOPIC, descriptor(0, 10), Hint())
    assert world.reloaded().topics() == {}


def test_an_intent_ends_with_its_registration():
    """An intent is there until its object is registered, and survives a restart."""
    world = World()
    world.catalog.begin(TOPIC, intent(0, 10, "k-0"))
    assert world.reloaded().intents() == {TOPIC: intent(0, 10, "k-0")}
    assert world.catalog.in_use("k-0")
    world.catalog.register(TOPIC, descriptor(0, 10), Hint())
    assert world.catalog.intents() == world.reloaded().intents() == {}
    assert world.catalog.garbage() == []


def test_what_an_older_intent_named_is_garbage():
    """A new intent makes the old one's key garbage, and an abandoned one, too."""
    world = World()
    world.catalog.begin(TOPIC, intent(0, 10, "old"))
    world.catalog.begin(TOPIC, intent(0, 12, "new"))
    assert [g.key for g in world.reloaded().garbage()] == ["old"]
    world.catalog.abandon(TOPIC, why="tired")
    assert sorted(g.key for g in world.reloaded().garbage()) == ["new", "old"]
    world.catalog.forget_garbage(["old", "new"])
    assert world.catalog.garbage() == world.reloaded().garbage() == []


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_unknown_outcome_is_looked_up(moment):
    """A registration that may have happened is not done twice and not given up wrongly."""
    world = World(Unsure(clock=SimulatedClock(1)))
    setattr(world.store, moment, True)
    if moment == "before":
        with pytest.raises(Unavailable):
            world.catalog.register(TOPIC, descriptor(0, 10), Hint())
        assert world.catalog.topic(TOPIC).uploaded == 0
        world.catalog.register(TOPIC, descriptor(0, 10), Hint())
    else:
        world.catalog.register(TOPIC, descriptor(0, 10), Hint())
    world.catalog.register(TOPIC, descriptor(10, 11), Hint())
    assert world.catalog.topic(TOPIC) == world.reloaded().topic(TOPIC)
    assert world.catalog.topic(TOPIC).uploaded == 11


def test_nothing_builds_on_a_picture_that_may_be_old():
    """While an outcome is unknown and cannot be looked up, uploads wait; then they go on rightly."""
    world = World(Unsure(clock=SimulatedClock(1)))
    world.catalog.register(TOPIC, descriptor(0, 10), Hint())
    world.store.after = world.store.blind = True
    with pytest.raises(Unavailable):
        world.catalog.register(TOPIC, descriptor(10, 20), Hint())
    assert world.catalog.suspect
    assert world.catalog.topic(TOPIC).uploaded == 10, "readers keep the picture that they have"
    with pytest.raises(Unavailable):
        world.catalog.fresh(TOPIC)
    with pytest.raises(Unavailable):
        world.catalog.begin(TOPIC, intent(10, 20, "again"))
    world.store.blind = False
    with pytest.raises(Conflict):
        world.catalog.begin(TOPIC, intent(10, 20, "again"))
    assert world.catalog.fresh(TOPIC).uploaded == 20
    assert not world.catalog.suspect
    world.catalog.begin(TOPIC, intent(20, 30, "next"))
    assert world.reloaded().intents() == {TOPIC: intent(20, 30, "next")}


def test_a_shared_object_is_registered_in_small_transactions():
    """A hundred topics of one object are registered though a transaction takes a few only."""
    world = World(FewOperations(clock=SimulatedClock(1)))
    found = {topic: descriptor(0, topic, "all", shared=True) for topic in range(1, 101)}
    assert world.catalog.register_shared(found, {3: Hint(4, 5)}) == {}
    assert {t: p.uploaded for t, p in world.reloaded().topics().items()} == {
        topic: topic for topic in range(1, 101)
    }
    assert world.catalog.topic(3).state.hint == Hint(4, 5)


def test_one_topic_of_a_shared_object_does_not_stop_the_others():
    """A topic that has moved on meanwhile is refused alone."""
    world = World()
    world.catalog.register(2, descriptor(0, 5), Hint())
    found = {topic: descriptor(0, 9, "all", shared=True) for topic in (1, 2, 3)}
    failures = world.catalog.register_shared(found, {})
    assert list(failures) == [2]
    assert isinstance(failures[2], Conflict)
    assert {t: p.uploaded for t, p in world.reloaded().topics().items()} == {1: 9, 2: 5, 3: 9}


def test_a_shared_object_is_garbage_when_its_last_topic_has_its_own():
    """Replacing the slices of one topic keeps the object for the other, then makes it garbage."""
    world = World()
    for first, end in ((0, 5), (5, 9)):
        slices = {t: descriptor(first, end, f"all-{first}", shared=True) for t in (1, 2)}
        assert world.catalog.register_shared(slices, {}) == {}
    for topic in (1, 2):
        assert world.catalog.garbage() == []
        old = world.catalog.topic(topic).descriptors
        world.catalog.replace(topic, old, descriptor(0, 9, f"own-{topic}"))
        assert world.reloaded().topic(topic).descriptors == (descriptor(0, 9, f"own-{topic}"),)
    assert sorted(g.key for g in world.reloaded().garbage()) == ["all-0", "all-5"]
    with pytest.raises(Conflict):
        world.catalog.replace(2, old, descriptor(0, 9, "again"))


def test_expired_objects_are_garbage_and_start_moves():
    """Whole objects below the offset go; `start` and the garbage move in the same step."""
    world = World(FewOperations(clock=SimulatedClock(1)))
    for first in range(0, 1000, 10):
        world.catalog.register(TOPIC, descriptor(first, first + 10), Hint())
    gone = world.catalog.expire(TOPIC, 509)
    assert len(gone) == 50
    again = world.reloaded()
    assert (again.topic(TOPIC).start, again.topic(TOPIC).uploaded) == (500, 1000)
    assert {g.key for g in again.garbage()} == {d.key for d in gone}
    assert world.catalog.expire(TOPIC, 509) == []
    world.catalog.expire(TOPIC, 5000)
    world.catalog.register(TOPIC, descriptor(1000, 1001), Hint())
    assert world.reloaded().topic(TOPIC).start == 1000


def test_a_dropped_topic_leaves_garbage_only():
    """All rows of a deleted topic go, and its objects become garbage."""
    world = World()
    world.catalog.register(TOPIC, descriptor(0, 10), Hint())
    world.catalog.begin(TOPIC, intent(10, 20, "half"))
    world.catalog.drop(TOPIC)
    assert world.reloaded().topics() == world.catalog.topics() == {}
    assert sorted(g.key for g in world.reloaded().garbage()) == ["half", "k-0"]


def test_a_claim_is_for_one_at_a_time():
    """A topic that is being uploaded cannot be claimed again; another can."""
    catalog = World().catalog
    with catalog.claim(1) as first, catalog.claim(1) as second, catalog.claim(2) as other:
        assert (first, second, other) == (True, False, True)
    with catalog.claim(1) as again:
        assert again
