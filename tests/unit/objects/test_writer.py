"""Uploads of a real journal's frames: objects, adoption, damage, troubles, memory."""

from __future__ import annotations

import pytest

from frazil.errors import Unavailable
from frazil.log import format as fmt
from frazil.objects import writer as module
from frazil.objects.store import PIECE_BYTES_MAX
from frazil.objects.writer import RETRY_DELAY_MAX_S
from tests.crash.reference_log import walk_frames
from tests.unit.objects.objects_world import ObjectsWorld


@pytest.fixture
def world():
    world = ObjectsWorld(object_bytes_max=2000, index_bytes=400)
    world.log.create(1, "/default/orders")
    world.log.create(2, "/default/other")
    return world


def fill(world, count=30, topic=1):
    payloads = [b"%d" % number * 20 for number in range(count)]
    for payload in payloads:
        world.log.plain(topic, payload, producer="maker", sequence=world.log.topic(topic).next)
        world.log.plain(2 if topic == 1 else 1, b"noise")
    return dict(enumerate(payloads))


def data_frames(world):
    files = {path: world.disk.read_bytes(path) for path in world.disk.paths()}
    return [f for f in walk_frames(files)[0] if f.topic == 1 and f.kind <= fmt.KIND_ROWS]


def flip(data, position):
    data[position] ^= 1


def upload_all(world, topic=1):
    while world.uploader.cycle(topic):
        pass


def test_a_topic_is_uploaded_object_by_object(world):
    """Objects of about the given size follow one another and hold every record."""
    published = fill(world)
    upload_all(world)
    picture = world.catalog.topic(1)
    assert world.records(1) == published
    assert (picture.start, picture.uploaded) == (0, 30)
    assert len(picture.descriptors) > 2
    assert all(found.length <= 2000 for found in picture.descriptors)
    assert world.uploader.objects_uploaded == len(picture.descriptors) == len(world.store.written)
    assert world.catalog.topic(1).state.intent is None
    assert world.uploader.troubles == {}


def test_an_intent_whose_object_is_cut_short_is_written_anew(world):
    """A truncated object is never registered; its key becomes garbage."""
    published = fill(world, 10)
    world.store.fail("put", "truncated")
    assert not world.uploader.cycle(1)
    assert "damaged in the store" in str(world.uploader.troubles[1].error)
    assert world.catalog.topic(1).descriptors == ()
    world.clock.advance(RETRY_DELAY_MAX_S)
    assert world.uploader.cycle(1)
    assert world.records(1) == published
    (garbage,) = world.catalog.garbage()
    assert garbage.key == world.store.written[0][0] != world.store.written[1][0]


def test_a_damaged_answer_does_not_damage_an_object(world):
    """A wrong bit in the answer that verifies a write costs another look, not another write."""
    published = fill(world, 10)
    world.store.fail("get", "flipped")
    assert world.uploader.cycle(1)
    assert world.records(1) == published
    assert len(world.store.written) == 1


def test_waiting_publishers_shorten_the_pause(world):
    """A topic with waiting publishers is tried again after two seconds, not after a minute."""
    fill(world, 5)
    world.store.rates["throttled"] = 1.0
    for _ in range(10):
        world.uploader.cycle(1)
        world.clock.advance(RETRY_DELAY_MAX_S)
    world.uploader.cycle(1)
    world.store.heal()
    world.clock.advance(2.1)
    assert not world.uploader.due(1)
    assert world.uploader.due(1, is_waiting=True)
    assert not world.uploader.cycle(1)
    assert world.uploader.cycle(1, is_waiting=True)


def test_trouble_waits_longer_each_time_and_passes(world):
    """A store that is down is asked ever less often, and uploads go on without a restart."""
    published = fill(world, 5)
    world.store.rates["throttled"] = 1.0
    waits = []
    for _ in range(12):
        assert not world.uploader.cycle(1)
        assert not world.uploader.due(1)
        trouble = world.uploader.troubles[1]
        waits.append(trouble.retry_at - world.clock.monotonic())
        world.clock.advance(waits[-1])
    assert isinstance(trouble.error, Unavailable)
    assert trouble.failures == 12
    assert waits[0] < 2 < waits[-1] <= RETRY_DELAY_MAX_S
    world.store.heal()
    assert world.uploader.cycle(1)
    assert world.uploader.troubles == {}
    assert world.records(1) == published


@pytest.mark.parametrize("piece_bytes", [300, PIECE_BYTES_MAX])
def test_a_damaged_object_is_never_written(world, piece_bytes, monkeypatch):
    """An object ends before a damaged frame, whether it is streamed or sent at once."""
    monkeypatch.setattr(module, "PIECE_BYTES_MAX", piece_bytes)
    published = fill(world, 10)
    found = data_frames(world)
    world.disk.corrupt(found[4].path, lambda data: flip(data, found[4].end - 9))
    upload_all(world)
    assert world.records(1) == {offset: published[offset] for offset in range(4)}
    assert len(world.store.written) == len(world.catalog.topic(1).descriptors)
    assert world.uploader.troubles[1].error.details["offset_first"] == 4


def test_what_is_gone_before_it_was_uploaded_is_a_gap(world):
    """A topic that lost local data behind its objects says so; one without objects begins later."""
    world.log.plain(1, b"a")
    upload_all(world)
    world.log.plain(1, b"gone")
    world.log.plain(2, b"gone")
    world.log.journal.rotate()
    world.log.journal.seal_one()
    world.log.plain(1, b"b")
    world.log.plain(2, b"first")
    world.log.free(2)
    upload_all(world)
    upload_all(world, 2)
    assert world.records(1) == {0: b"a", 2: b"b"}
    last = world.catalog.topic(1).descriptors[-1]
    assert [(r.first, r.end, r.kind) for r in last.ranges] == [(1, 2, "gap")]
    assert (world.catalog.topic(2).start, world.catalog.topic(2).uploaded) == (1, 2)
    assert world.records(2) == {1: b"first"}


def test_large_objects_are_streamed_in_pieces():
    """An object of many pieces is never in one buffer, and holds what was published."""
    world = ObjectsWorld()
    world.log.create(1, "/default/large")
    payloads = [bytes([number]) * (3 << 20) for number in range(8)]
    for payload in payloads:
        world.log.plain(1, payload)
    assert world.uploader.cycle(1)
    assert world.store.calls["put_stream"] == 1
    assert world.store.piece_bytes_max == PIECE_BYTES_MAX
    assert world.records(1) == dict(enumerate(payloads))


def test_a_store_that_takes_no_large_object_gets_smaller_ones(world, monkeypatch):
    """Where uploads of many parts fail again and again, objects shrink to one request each."""
    monkeypatch.setattr(module, "PIECE_BYTES_MAX", 4_000)
    world.uploader.object_bytes_max = 20_000

    def broken(key, pieces):
        del pieces
        raise Unavailable("a part did not arrive", key=key, outcome="unknown")

    monkeypatch.setattr(world.store, "put_stream", broken)
    for number in range(30):
        world.log.plain(1, b"%d" % number)
    for _ in range(100):
        if world.catalog.topic(1).uploaded == 30:
            break
        world.uploader.cycle(1)
        world.clock.advance(120)
    assert len(world.records(1)) == 30
    assert 1 not in world.uploader.troubles
