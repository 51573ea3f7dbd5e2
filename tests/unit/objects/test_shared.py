"""Shared objects for publishers that wait, and their rewriting by topic."""

from __future__ import annotations

import pytest

from frazil.errors import Unavailable
from frazil.objects import format as objects
from frazil.objects import shared as module
from tests.crash.reference_log import walk_frames
from tests.support.simulated_fs import SimulatedCrash
from tests.unit.objects.objects_world import BROKER, ObjectsWorld, footer_of


@pytest.fixture
def world():
    world = ObjectsWorld(rewrite_objects=3, index_bytes=100)
    for topic in (1, 2, 3):
        world.log.create(topic, f"/default/t{topic}")
    return world


def heads(world):
    return {topic: world.log.topic(topic).durable for topic in (1, 2, 3)}


def publish(world, text):
    for topic in (1, 2, 3):
        for number in range(3):
            world.log.plain(topic, b"%d-%d-" % (topic, number) + text)


def expected(topic, *texts):
    records = [b"%d-%d-" % (topic, number) + text for text in texts for number in range(3)]
    return dict(enumerate(records))


def test_one_object_serves_all_that_wait(world):
    """One write makes all topics uploaded; each has its frames in one piece of the object."""
    publish(world, b"a")
    outcome = world.shared.upload(heads(world))
    assert outcome.uploaded == heads(world)
    assert not outcome.failures
    assert len(world.store.written) == 1
    ((key, _size),) = world.store.written
    parts = objects.parse_key(key)
    footer = footer_of(world.store.objects[key].data)
    assert (parts.kind, parts.broker) == ("shared", BROKER)
    assert (parts.first, parts.end) == (footer.lsn_first, footer.lsn_last)
    assert [found.topic for found in footer.topics] == [1, 2, 3]
    for topic in (1, 2, 3):
        assert world.records(topic) == expected(topic, b"a")
        assert world.catalog.topic(topic).descriptors[0].shared
    again = world.shared.upload(heads(world))
    assert again.uploaded == heads(world)
    assert len(world.store.written) == 1, "what is uploaded is not uploaded again"


def test_a_topic_far_behind_gets_an_object_of_its_own_first(world, monkeypatch):
    """A topic with more than its share is told to catch up, and the others are served."""
    monkeypatch.setattr(module, "TOPIC_BYTES_MAX", 300)
    for number in range(10):
        world.log.plain(1, b"%d" % number)
    world.log.plain(2, b"x")
    outcome = world.shared.upload({1: 10, 2: 1})
    assert (outcome.behind, outcome.uploaded) == ({1}, {2: 1})
    assert world.uploader.cycle(1)
    world.log.plain(1, b"more")
    assert world.shared.upload({1: 11}).uploaded == {1: 11}


def test_a_frame_that_is_larger_than_a_share_gets_an_object_of_its_own(world, monkeypatch):
    """One large record is not put into a shared object: it would wait for room in vain."""
    monkeypatch.setattr(module, "TOPIC_BYTES_MAX", 300)
    monkeypatch.setattr(module, "SHARED_BYTES_MAX", 400)
    world.log.plain(1, b"x" * 500)
    world.log.plain(2, b"x")
    outcome = world.shared.upload({1: 1, 2: 1})
    assert (outcome.behind, outcome.uploaded) == ({1}, {2: 1})
    assert world.uploader.cycle(1)
    assert world.shared.upload({1: 1}).uploaded == {1: 1}


def test_what_has_no_room_comes_next(world, monkeypatch):
    """An object has a limit over all topics; who does not fit is told to ask again."""
    monkeypatch.setattr(module, "SHARED_BYTES_MAX", 800)
    publish(world, b"a")
    outcome = world.shared.upload(heads(world))
    assert outcome.uploaded
    assert outcome.later
    rest = world.shared.upload({topic: heads(world)[topic] for topic in outcome.later})
    assert {**outcome.uploaded, **rest.uploaded} == heads(world)


def test_what_is_said_of_topics_has_its_limit(world, monkeypatch):
    """Who finds no room in a footer comes next; a topic that alone says more has its own object."""
    monkeypatch.setattr(module, "SHARED_FOOTER_BYTES", 2_500)
    publish(world, b"a")
    first = world.shared.upload(heads(world))
    assert (set(first.uploaded), first.later) == ({1, 2}, {3})
    monkeypatch.setattr(module, "SHARED_FOOTER_BYTES", 1)
    publish(world, b"b")
    second = world.shared.upload(dict(reversed(heads(world).items())))
    assert (set(second.uploaded), second.later) == ({3}, {1, 2}), "the one that is named first"
    assert world.records(3) == expected(3, b"a", b"b")


def test_a_topic_with_an_upload_under_way_is_left_to_it(world):
    """An upload that is running is not overtaken."""
    publish(world, b"a")
    with world.catalog.claim(2):
        outcome = world.shared.upload(heads(world))
    assert (set(outcome.uploaded), outcome.later) == ({1, 3}, {2})


def test_an_upload_of_an_earlier_life_is_settled_first(world):
    """What a crash left is registered before the shared object takes what is behind it."""
    publish(world, b"a")

    def crash(name):
        if name == "verified":
            raise SimulatedCrash(name)

    world.uploader._on_step = crash
    with pytest.raises(SimulatedCrash):
        world.uploader.cycle(1)
    world.start()
    publish(world, b"b")
    outcome = world.shared.upload(heads(world))
    assert outcome.uploaded == heads(world)
    assert world.uploader.objects_adopted == 1
    assert [found.shared for found in world.catalog.topic(1).descriptors] == [False, True]
    assert world.records(1) == expected(1, b"a", b"b")


def begin_in_vain(world, topic):
    """Let an upload of a topic's own fail, and return the key that it was to have."""
    world.store.fail("put", "throttled")
    assert not world.uploader.cycle(topic)
    world.store.heal()
    return world.catalog.intent(topic).key


def test_an_upload_that_cannot_be_settled_is_a_failure(world):
    """Who waits for a topic whose own upload has failed is told why, and served when it can be."""
    publish(world, b"a")
    begin_in_vain(world, 1)
    before = world.uploader.troubles[1]
    world.store.fail("head", "stall")
    outcome = world.shared.upload(heads(world))
    assert set(outcome.uploaded) == {2, 3}
    assert {topic: type(error) for topic, error in outcome.failures.items()} == {1: Unavailable}
    assert not outcome.later
    assert world.uploader.troubles[1] is before, "who is told notes it, once"
    assert world.shared.upload(heads(world)).uploaded == heads(world)
    assert world.records(1) == expected(1, b"a")


def test_a_foreign_object_under_the_key_of_an_upload_that_was_begun_is_told(world):
    """It stops the topic, and who waits must learn that: it is not something to ask again for."""
    publish(world, b"a")
    key = begin_in_vain(world, 1)
    assert world.uploader.cycle(2)
    world.store.plant(key, world.store.objects[world.catalog.topic(2).descriptors[0].key].data)
    outcome = world.shared.upload(heads(world))
    assert set(outcome.uploaded) == {2, 3}
    assert outcome.failures[1].details["foreign"]


def test_a_store_that_is_down_fails_all_that_wait(world):
    """Nobody is told that data is uploaded which is not; the next try serves all."""
    publish(world, b"a")
    world.store.fail("put", "throttled")
    outcome = world.shared.upload(heads(world))
    assert not outcome.uploaded
    assert {type(error) for error in outcome.failures.values()} == {Unavailable}
    world.store.heal()
    assert world.shared.upload(heads(world)).uploaded == heads(world)


def test_damage_of_one_topic_does_not_keep_the_others_waiting(world):
    """The topic with a damaged frame fails alone, with its offsets; the others are uploaded."""
    publish(world, b"a")
    files = {path: world.disk.read_bytes(path) for path in world.disk.paths()}
    frame = next(f for f in walk_frames(files)[0] if (f.kind, f.topic, f.offset) == (2, 2, 1))

    def flip(data):
        data[frame.end - 9] ^= 1

    world.disk.corrupt(frame.path, flip)
    outcome = world.shared.upload(heads(world))
    assert set(outcome.uploaded) == {1, 3}
    assert list(outcome.failures) == [2]
    assert outcome.failures[2].details["offset_first"] == 1
    assert world.records(1) == expected(1, b"a")
    assert world.records(3) == expected(3, b"a")


def test_a_foreign_object_under_a_shared_key_stops_no_topic(world):
    """Whatever lies under the key of a shared object, the topics are served by the next one."""
    publish(world, b"a")

    def plant(name):
        if name == "shared hashed":
            world.shared._on_step = lambda _name: None
            world.store.on_step = once

    def once(name):
        if name == "put answered":
            world.store.on_step = None
            key, _size = world.store.written[-1]
            world.store.plant(key, other)

    world.log.create(4, "/default/t4")
    world.log.plain(4, b"x")
    world.uploader.cycle(4)
    other = world.store.objects[world.catalog.topic(4).descriptors[0].key].data
    world.shared._on_step = plant
    outcome = world.shared.upload(heads(world))
    assert {type(error) for error in outcome.failures.values()} == {Unavailable}
    assert not any(error.details.get("foreign") for error in outcome.failures.values())
    assert world.shared.upload(heads(world)).uploaded == heads(world)


@pytest.mark.parametrize("local", [True, False])
def test_rewriting_replaces_slices_by_an_object(world, local):
    """The slices of a topic become one object, from the log or from the objects themselves."""
    for text in (b"a", b"b", b"c"):
        assert not world.rewriter.due(1)
        publish(world, text)
        world.shared.upload(heads(world))
    if not local:
        world.log.journal.rotate()
        world.log.journal.seal_one()
        publish(world, b"new")
        world.log.free(2)
    gets = world.store.calls["get"]
    for topic in (1, 2, 3):
        assert world.catalog.garbage() == []
        assert world.rewriter.due(topic)
        assert world.rewriter.rewrite(topic)
        assert not world.rewriter.due(topic)
        (descriptor,) = world.catalog.topic(topic).descriptors
        assert not descriptor.shared
        assert objects.parse_key(descriptor.key).kind == "topic"
        assert world.records(topic) == expected(topic, b"a", b"b", b"c")
        assert footer_of(world.store.objects[descriptor.key].data).of(topic).records == 9
    assert {found.key for found in world.catalog.garbage()} == {
        key for key, _size in world.store.written if "/shared/" in key
    }
    assert (world.store.calls["get"] - gets > 3) == (not local)
    assert world.uploader.troubles == {}


def test_old_slices_are_rewritten_though_they_are_few(world):
    """Age alone is a reason to rewrite."""
    publish(world, b"a")
    world.shared.upload(heads(world))
    assert not world.rewriter.due(1)
    world.clock.advance(601)
    assert world.rewriter.due(1)
    assert world.rewriter.rewrite(1)
    assert not world.rewriter.rewrite(1)


def test_rewriting_reads_frames_larger_than_a_piece(world, monkeypatch):
    """A slice whose frames do not fit a piece is read all the same, and damage in it is found."""
    from frazil.objects import rewriting

    monkeypatch.setattr(rewriting, "PIECE_BYTES_MAX", 128)
    for size in (10, 500, 90, 3000):
        world.log.plain(1, b"x" * size)
    world.shared.upload({1: 4})
    world.log.journal.rotate()
    world.log.journal.seal_one()
    world.log.plain(1, b"new")
    world.log.free(2)
    before = world.records(1)
    key = world.catalog.topic(1).descriptors[0].key
    good = world.store.objects[key].data
    bad = bytearray(good)
    bad[900] ^= 4
    world.store.plant(key, bytes(bad))
    assert not world.rewriter.rewrite(1)
    assert "damaged" in str(world.uploader.troubles[1].error)
    assert not world.rewriter.due(1)
    assert world.uploader.due(1), "uploads go on though rewriting fails"
    assert world.uploader.cycle(1)
    assert 1 in world.uploader.troubles, "an upload does not hide the trouble"
    world.store.plant(key, good)
    world.uploader.retry(1)
    assert world.rewriter.rewrite(1)
    assert world.records(1) == {**before, 4: b"new"}
    assert world.uploader.troubles == {}


def test_neighbours_of_a_topics_own_objects_are_rewritten_group_by_group(world):
    """Slices before and behind an object of the topic's own become two objects."""
    publish(world, b"a")
    world.shared.upload(heads(world))
    publish(world, b"b")
    assert world.uploader.cycle(1)
    publish(world, b"c")
    world.shared.upload(heads(world))
    world.clock.advance(700)
    assert world.rewriter.rewrite(1)
    assert world.rewriter.rewrite(1)
    assert not world.rewriter.rewrite(1)
    assert [found.shared for found in world.catalog.topic(1).descriptors] == [False] * 3
    assert world.records(1) == expected(1, b"a", b"b", b"c")
