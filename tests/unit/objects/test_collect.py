"""Garbage collection: condemned first, deleted later, never what is in use or too young."""

from __future__ import annotations

import pytest

from frazil.errors import Unavailable
from frazil.objects.descriptor import Intent, descriptor_of
from frazil.objects.retention import Collector
from tests.unit.objects.object_scene import BROKER, TOPIC, Scene, key_of, object_of

GRACE_S = 1_000


class Collecting(Scene):
    """A scene with a collector."""

    def __init__(self, **options):
        super().__init__(**options)
        self.is_suspect = False
        self.collector = self.fresh()

    def fresh(self):
        """Return the collector of a new life."""
        return Collector(
            self.store,
            self.catalog,
            clock=self.clock,
            broker=BROKER,
            grace_us=GRACE_S * 1_000_000,
            is_suspect=lambda: self.is_suspect,
        )

    def stray(self, number, *, broker=BROKER, epoch=1):
        """Put an object there that nothing registered."""
        key = key_of(number, number + 1, epoch=epoch, broker=broker)
        self.store.put(key, b"x" * 10)
        return key

    def age(self):
        self.clock.advance(GRACE_S + 1)


@pytest.fixture
def scene():
    return Collecting()


def test_expired_objects_go_in_the_cycle_after(scene):
    """What expired in this cycle is still there until the next one; then object and row are gone."""
    gone, kept = scene.add([4]), scene.add([4])
    scene.catalog.expire(TOPIC, 4)
    assert scene.collector.cycle().deleted == []
    assert gone.key in scene.store.objects
    assert [row.key for row in scene.collector.cycle().deleted] == [gone.key]
    assert list(scene.store.objects) == [kept.key]
    assert list(scene.catalog.garbage()) == []
    assert scene.collector.cycle().deleted == []


def test_unregistered_objects_are_condemned_when_they_are_old(scene):
    """An object that nothing registered is spared, then condemned, then deleted."""
    kept = scene.add([4])
    stray = scene.stray(5)
    found = scene.collector.cycle()
    assert (found.condemned, found.spared) == ([], 1)
    scene.age()
    found = scene.collector.cycle()
    assert ([meta.key for meta in found.condemned], found.deleted) == ([stray], [])
    assert stray in scene.store.objects
    found = scene.collector.cycle()
    assert ([row.key for row in found.deleted], found.condemned) == ([stray], [])
    assert list(scene.store.objects) == [kept.key]


def test_a_dry_run_changes_nothing(scene):
    """A dry run tells what would be deleted and condemned, however often it is made."""
    expired = scene.add([4])
    stray = scene.stray(50)
    scene.catalog.expire(TOPIC, 4)
    scene.age()
    collector = scene.fresh()
    before = dict(scene.store.objects)
    for _ in range(3):
        found = collector.cycle(dry_run=True)
        assert [row.key for row in found.deleted] == [expired.key]
        assert [meta.key for meta in found.condemned] == [stray]
    assert scene.store.objects == before
    assert [row.key for row in scene.catalog.garbage()] == [expired.key]


def test_the_condemned_survive_a_restart(scene):
    """What an earlier life condemned is deleted by the next one, because metadata remembers it."""
    stray = scene.stray(5)
    scene.age()
    scene.collector.cycle()
    assert [row.key for row in scene.fresh().cycle().deleted] == [stray]
    assert not scene.store.objects


def test_keys_of_others_are_never_touched(scene):
    """Other brokers' objects, later epochs, backups and strangers stay, however old they are."""
    keys = {
        scene.stray(1, broker=bytes(16)),
        scene.stray(2, epoch=2),
        f"{BROKER.hex()}/backup/0000000000000001-00000001-aa.frzb",
        f"{BROKER.hex()}/topics/readme.txt",
        "somebody/else.frz",
    }
    for key in keys - set(scene.store.objects):
        scene.store.put(key, b"theirs")
    scene.age()
    for _ in range(3):
        assert scene.collector.cycle().condemned == []
    assert set(scene.store.objects) == keys


def test_what_is_registered_while_the_store_is_listed_stays(scene):
    """Listing comes first: an object that is registered meanwhile is in use when it is judged."""
    key, data, footer = object_of(0, [4])
    scene.store.put(key, data)
    scene.age()

    def register(step):
        if step == "list answered" and key not in scene.catalog.keys_in_use():
            scene.catalog.register(TOPIC, descriptor_of(footer, key=key, size=len(data), etag=""))

    scene.store.on_step = register
    for _ in range(3):
        assert scene.collector.cycle().condemned == []
    assert scene.offsets(0) == [0, 1, 2, 3]


def test_an_upload_under_way_is_in_use(scene):
    """What an intent names is not garbage, even if it was condemned before."""
    key, data, _footer = object_of(0, [4])
    scene.store.put(key, data)
    scene.age()
    assert [meta.key for meta in scene.collector.cycle().condemned] == [key]
    scene.catalog.begin(TOPIC, Intent(key, 0, 1))
    for _ in range(2):
        assert scene.collector.cycle().deleted == []
    assert key in scene.store.objects


def test_nothing_is_collected_while_metadata_is_suspect(scene):
    """Metadata that may lack rows condemns nothing and deletes nothing, and says so."""
    expired = scene.add([4])
    scene.stray(5)
    scene.catalog.expire(TOPIC, 4)
    scene.age()
    collector = scene.fresh()
    scene.is_suspect = True
    found = collector.cycle()
    assert (found.deleted, found.condemned) == ([], [])
    assert "registered" in found.suspended
    assert expired.key in scene.store.objects
    scene.is_suspect = False
    assert [row.key for row in collector.cycle().deleted] == [expired.key]


def test_suspicion_that_comes_while_listing_condemns_nothing(scene):
    """The metadata is judged again behind the listing."""
    scene.stray(5)
    scene.age()

    def doubt(step):
        scene.is_suspect = step == "list answered" or scene.is_suspect

    scene.store.on_step = doubt
    assert scene.collector.cycle().condemned == []
    scene.store.on_step = None
    scene.is_suspect = False
    assert len(scene.collector.cycle().condemned) == 1


@pytest.mark.parametrize("kind", ["partial", "lost_answer", "stall", "throttled"])
def test_a_delete_that_failed_is_done_by_a_later_cycle(scene, kind):
    """Trouble amid deleting leaves rows behind, so that the next cycle goes on."""
    for _ in range(3):
        scene.add([4])
    scene.catalog.expire(TOPIC, 8)
    collector = scene.fresh()
    scene.store.fail("delete", kind)
    with pytest.raises(Unavailable):
        collector.cycle(unregistered=False)
    assert len(list(scene.catalog.garbage())) == 2
    scene.store.heal()
    assert len(collector.cycle(unregistered=False).deleted) == 2
    assert len(scene.store.objects) == 1


def test_a_stale_list_deletes_nothing_in_use(scene):
    """A list that is as it was a while ago neither deletes nor condemns a registered object."""
    kept = [scene.add([4]).key for _ in range(3)]
    scene.age()
    for _ in range(3):
        scene.store.fail("list", "stale_list")
        assert scene.collector.cycle().condemned == []
    assert sorted(scene.store.objects) == sorted(kept)
