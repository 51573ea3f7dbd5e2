"""Reading registered objects: seeks, order, gaps, times, damage, and stores in trouble."""

from __future__ import annotations

import pytest

from frazil.errors import CorruptionError, NotFound, Unavailable
from frazil.log import format as fmt
from frazil.objects.format import HEADER_BYTES
from tests.unit.objects.object_scene import (
    TOPIC,
    Scene,
    checked_offsets,
    frame_of,
    time_of,
)

FRAME_BYTES = len(frame_of(0, 4))


@pytest.fixture
def scene():
    made = Scene()
    yield made
    made.source.close()


def damage(caught):
    details = caught.value.details
    return details["offset_first"], details["offset_next"]


@pytest.mark.parametrize("bytes_max", [1, 300, 1 << 20])
def test_every_record_comes_once_and_in_order(scene, bytes_max):
    """Whatever the size of a read, objects give all offsets from any start, across objects."""
    for counts in ([4] * 20, [1, 2, 3] * 7, [50]):
        scene.add(counts)
    end = scene.source.range(TOPIC).end
    assert end == 80 + 42 + 50
    for start in (0, 1, 3, 4, 79, 80, 81, 121, 122, 150, 171):
        assert scene.offsets(start, bytes_max=bytes_max) == list(range(start, end))


def test_nothing_lies_outside_the_range(scene):
    """Above `uploaded` there is nothing yet; below `start` the first offset is named."""
    scene.add([4] * 4, first=100)
    assert scene.source.range(TOPIC).first == 100
    assert scene.source.read(TOPIC, offset=116, bytes_max=1).offset_next == 116
    with pytest.raises(NotFound, match="offset_first=100"):
        scene.source.read(TOPIC, offset=99, bytes_max=1)
    assert scene.source.range(99).end == 0


def test_a_seek_asks_once_and_for_one_interval(scene):
    """The first record comes with one request for the interval of the index that has it."""
    descriptor = scene.add([4] * 400, index_bytes=2_000)
    entries = descriptor.entries()
    assert len(entries) > 40
    for offset in (0, 777, 1200, 1599):
        before = scene.store.calls["get"]
        fresh = scene.reader()
        piece = fresh.read(TOPIC, offset=offset, bytes_max=1 << 20)
        assert checked_offsets(piece.batches[0])[0] == offset
        assert scene.store.calls["get"] - before == 1
        assert fresh.fetcher.bytes_fetched <= 2 * 2_000


def test_a_reader_that_goes_on_takes_larger_blocks(scene):
    """Reading on needs far fewer requests than there are intervals."""
    descriptor = scene.add([4] * 4_000, index_bytes=2_000)
    assert scene.offsets(0) == list(range(16_000))
    assert scene.store.calls["get"] < len(descriptor.entries()) / 20


def test_gaps_are_passed_over_and_reported(scene):
    """A declared gap inside, between and at the end of objects is reported once."""
    scene.add([4, 4], gaps=[(4, 10, "gap")])
    scene.add([2], gaps=[(14, 20, "gap"), (22, 30, "gap")])
    gaps, offset, seen = [], 0, []
    while offset < 30:
        piece = scene.source.read(TOPIC, offset=offset, bytes_max=1 << 20)
        for batch in piece.batches:
            gaps += batch.gaps
            seen += checked_offsets(batch)
        gaps += piece.gaps
        offset = piece.offset_next
    assert seen == [*range(4), *range(10, 14), 20, 21]
    assert [(gap.first, gap.end, gap.reason) for gap in gaps] == [
        (4, 10, "why"),
        (14, 20, "why"),
        (22, 30, "why"),
    ]


def test_a_lost_range_is_refused_with_where_to_go_on(scene):
    """What was lost before the upload is an error that names the range; reading goes on behind."""
    scene.add([4, 4], gaps=[(4, 9, "lost")])
    assert scene.offsets(0, end=4) == [0, 1, 2, 3]
    with pytest.raises(CorruptionError) as caught:
        scene.source.read(TOPIC, offset=4, bytes_max=1)
    assert damage(caught) == (4, 9)
    assert scene.offsets(9) == [9, 10, 11, 12]


def test_frames_that_reach_beyond_the_object_are_cut(scene):
    """A frame's records below `first` and above `end` belong to other objects."""
    scene.add([4], first=0)
    scene.add([4, 4], begins=2, end=9)
    assert scene.offsets(0) == list(range(9))
    assert scene.offsets(5) == list(range(5, 9))


def test_a_time_leads_to_the_first_record_at_or_after_it(scene):
    """Time-based starts use the times of objects, then the index, then the frames."""
    scene.add([4] * 40, gaps=[(80, 90, "gap")], index_bytes=5 * FRAME_BYTES)
    assert len(scene.add([4] * 40, index_bytes=5 * FRAME_BYTES).entries()) == 8
    starts = [*range(0, 80, 4), *range(90, 170, 4), *range(170, 330, 4)]
    for offset in starts:
        assert scene.source.offset_at(TOPIC, time_us=time_of(offset)) == offset
        later = next((each for each in starts if each > offset), None)
        assert scene.source.offset_at(TOPIC, time_us=time_of(offset) + 1) == later
    assert scene.source.offset_at(TOPIC, time_us=0) == 0
    assert scene.source.offset_at(TOPIC, time_us=time_of(400)) is None


def test_the_time_of_an_offset_is_known_without_the_store(scene):
    """The index has the time of its entry at or before an offset; nothing is fetched."""
    descriptor = scene.add([4] * 40)
    for entry in descriptor.entries():
        assert scene.source.time_at(TOPIC, offset=entry.offset) == time_of(entry.offset)
        assert scene.source.time_at(TOPIC, offset=entry.offset + 1) == time_of(entry.offset)
    assert scene.source.time_at(TOPIC, offset=160) is None
    assert scene.store.calls["get"] == 0


def test_a_byte_that_was_wrong_on_the_way_is_fetched_again(scene):
    """One wrong bit in an answer is noticed and fetched again; readers see nothing of it."""
    scene.add([4] * 40)
    scene.store.fail("get", "flipped")
    assert scene.offsets(0) == list(range(160))
    assert scene.store.fired["flipped"] == 1


def test_a_damaged_record_is_reported_and_the_rest_is_read(scene):
    """Damage in the store loses one frame: what is before and behind it is given."""
    descriptor = scene.add([4] * 40, index_bytes=4 * FRAME_BYTES)
    scene.flip(descriptor, HEADER_BYTES + 6 * FRAME_BYTES + fmt.FRAME_HEAD_BYTES + 30)
    assert scene.offsets(0, end=24) == list(range(24))
    gets = scene.store.calls["get"]
    with pytest.raises(CorruptionError, match="checksum") as caught:
        scene.source.read(TOPIC, offset=24, bytes_max=1 << 20)
    assert damage(caught) == (24, 28)
    assert scene.store.calls["get"] - gets == 1
    assert scene.offsets(28) == list(range(28, 160))
    with pytest.raises(CorruptionError):
        scene.source.read(TOPIC, offset=26, bytes_max=1)


def test_a_damaged_head_loses_no_more_than_its_interval(scene):
    """If a frame's head is gone as well, reading goes on at the next entry of the index."""
    descriptor = scene.add([4] * 40, index_bytes=4 * FRAME_BYTES)
    for byte in range(0, 60, 3):
        scene.flip(descriptor, HEADER_BYTES + 6 * FRAME_BYTES + byte)
    with pytest.raises(CorruptionError) as caught:
        scene.source.read(TOPIC, offset=24, bytes_max=1 << 20)
    assert damage(caught) == (24, 32)
    assert scene.offsets(32) == list(range(32, 160))


def test_a_frame_of_other_records_is_damage(scene):
    """Whole frames that do not belong at their place are refused, not given."""
    descriptor = scene.add([4] * 10)
    data = bytearray(scene.store.objects[descriptor.key].data)
    start = HEADER_BYTES + 3 * FRAME_BYTES
    for wrong in (frame_of(16, 4), frame_of(8, 4), frame_of(12, 4, topic=8)):
        data[start : start + FRAME_BYTES] = wrong
        scene.store.plant(descriptor.key, bytes(data))
        with pytest.raises(CorruptionError) as caught:
            scene.reader().read(TOPIC, offset=12, bytes_max=1)
        assert damage(caught)[0] <= 12 < damage(caught)[1]


def test_a_truncated_object_gives_what_it_has(scene):
    """An object that was cut short gives its first intervals; the rest is reported."""
    descriptor = scene.add([4] * 40, index_bytes=4 * FRAME_BYTES)
    data = scene.store.objects[descriptor.key].data
    scene.store.plant(descriptor.key, data[: HEADER_BYTES + 5 * FRAME_BYTES])
    piece = scene.source.read(TOPIC, offset=0, bytes_max=1 << 20)
    assert piece.offset_next == 16
    with pytest.raises(CorruptionError) as caught:
        scene.source.read(TOPIC, offset=16, bytes_max=1 << 20)
    assert damage(caught) == (16, 160)


def test_a_stale_miss_is_no_alarm(scene):
    """A store that does not find an object once, and then does, is believed the second time."""
    scene.add([4] * 4)
    scene.store.fail("get", "missing")
    assert scene.offsets(0) == list(range(16))
    assert scene.source.unreadable() == []


def test_a_gap_is_reported_though_the_store_is_down(scene):
    """The gap is in metadata: a reader with local records after it must not wait for a store."""
    scene.add([4, 4], gaps=[(4, 10, "gap")])
    scene.store.fail("get", "throttled")
    piece = scene.source.read(TOPIC, offset=4, bytes_max=1)
    assert [(gap.first, gap.end) for gap in piece.gaps] == [(4, 10)]
    assert (piece.batches, piece.offset_next) == ([], 10)
    with pytest.raises(Unavailable):
        scene.source.read(TOPIC, offset=10, bytes_max=1)


def test_an_object_expired_while_it_is_read_is_not_found(scene):
    """A reader of an object that expired meanwhile gets the first offset, not a damage."""
    gone = scene.add([4] * 4)
    scene.add([4] * 4)

    def expire(step):
        if step == "get asked":
            scene.store.on_step = None
            scene.catalog.expire(TOPIC, 16)
            scene.store.delete([gone.key])

    scene.store.on_step = expire
    with pytest.raises(NotFound, match="offset_first=16"):
        scene.source.read(TOPIC, offset=3, bytes_max=1)
