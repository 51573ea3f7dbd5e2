"""Objects of a journal's frames: whole ones, durable ones, verified, with the gaps between them."""

from __future__ import annotations

import itertools

import pytest

from frazil.log import SpecialRange
from frazil.log import format as fmt
from frazil.objects import format as objects
from frazil.objects import frames as module
from frazil.objects.format import HEADER_BYTES
from frazil.objects.writer import ObjectBuilder
from tests.crash.reference_log import walk_frames
from tests.unit.objects.objects_world import BROKER, ObjectsWorld, footer_of


@pytest.fixture
def world():
    world = ObjectsWorld()
    for topic in (1, 2, 3):
        world.log.create(topic, f"/default/t{topic}")
    return world


def written(world, topic):
    """Return the bytes of a topic's data frames as they lie in the files, by offset."""
    files = {path: world.disk.read_bytes(path) for path in world.disk.paths()}
    found, _ends = walk_frames(files)
    data = {f.offset: files[f.path][f.position : f.end] for f in found if _is_data(f, topic)}
    return [data[offset] for offset in sorted(data)]


def _is_data(frame, topic):
    return frame.topic == topic and frame.kind <= fmt.KIND_ROWS


def built(world, topic, first=0, *, end=None, **options):
    """Return an object's frames and footer."""
    end = world.frames.available(topic)[1] if end is None else end
    builder = ObjectBuilder(world.frames, topic, first=first, end=end, **options)
    data = b"".join(builder.pieces(broker=BROKER, epoch=1, created_us=1))
    footer = footer_of(data)
    assert (footer.first, footer.end) == (first, builder.offset)
    return data[HEADER_BYTES : HEADER_BYTES + footer.length], footer


def all_built(world, topic, **options):
    """Return all objects of a topic, one behind another."""
    first, found = 0, []
    while first < world.frames.available(topic)[1]:
        found.append(built(world, topic, first, **options))
        first = found[-1][1].end
    return found


def fill(world):
    """Write three topics among one another into three segments, with frames of many sizes."""
    for number in range(60):
        world.log.plain(
            1, b"%d" % number, b"x" * (number * 37 % 700), producer="p", sequence=2 * number
        )
        if number % 3:
            world.log.plain(2, b"y" * 5000)
        if number % 20 == 19:
            world.log.journal.rotate()
            world.log.journal.seal_one()


@pytest.mark.parametrize("bytes_max", [1, 3000, 1 << 30])
@pytest.mark.parametrize("read_bytes", [200, 4096, 1 << 20])
def test_objects_have_all_frames_verbatim(world, bytes_max, read_bytes, monkeypatch):
    """However small objects and reads are, they give the journal's frames, each of them once."""
    monkeypatch.setattr(module, "READ_BYTES", read_bytes)
    fill(world)
    for topic in (1, 2):
        found = all_built(world, topic, bytes_max=bytes_max)
        assert b"".join(frames for frames, _ in found) == b"".join(written(world, topic))
        assert all(footer.records == footer.end - footer.first for _, footer in found)
    assert len(all_built(world, 1, bytes_max=1)) == 60


def test_a_footer_has_what_its_frames_have(world):
    """Records, frames, times, LSNs, producers and an index with an entry every so many bytes."""
    fill(world)
    data, footer = built(world, 1, index_bytes=2000)
    heads, position = {}, 0
    while position < len(data):
        head = heads[position + HEADER_BYTES] = fmt.read_head(data, position)
        position += fmt.FRAME_PREFIX_BYTES + head.length
    assert (footer.records, footer.frames) == (120, 60)
    times = [head.time for head in heads.values()]
    assert (footer.time_first_us, footer.time_last_us) == (times[0], max(times))
    assert footer.lsn_last == head.lsn
    assert set(footer.producers.values()) == {"p"}
    entries = objects.unpack_index(footer.index)
    assert [(e.offset, e.time_us) for e in entries] == [
        (heads[e.position].offset, heads[e.position].time) for e in entries
    ]
    positions = [entry.position for entry in entries]
    steps = [b - a for a, b in itertools.pairwise(positions)]
    assert positions[0] == HEADER_BYTES
    assert steps
    assert all(2000 <= step < 3000 for step in steps)


def test_gaps_are_part_of_an_object(world):
    """Gaps before, between and behind frames are named, and one beyond the end is left out."""
    world.gap(1, 0, 5)
    world.log.plain(1, b"a")
    world.gap(1, 6, 9)
    world.log.plain(1, b"b", b"c")
    world.gap(1, 11, 20)
    _data, footer = built(world, 1)
    ranges = [SpecialRange(0, 5, "gap", "declared"), SpecialRange(6, 9, "gap", "declared")]
    assert (footer.end, footer.records) == (20, 3)
    assert footer.ranges == (*ranges, SpecialRange(11, 20, "gap", "declared"))
    _data, footer = built(world, 1, 2, end=11)
    assert (footer.end, footer.ranges) == (11, (SpecialRange(2, 5, "gap", "declared"), ranges[1]))
    assert built(world, 1, end=15)[1].end == 11


def test_an_object_may_begin_inside_a_frame(world):
    """The frame is given whole; the records below the object's first offset do not count."""
    world.log.plain(1, b"a", b"b", b"c")
    world.log.plain(1, b"d")
    data, footer = built(world, 1, 2)
    assert data == b"".join(written(world, 1))
    assert (footer.first, footer.end, footer.records) == (2, 4, 2)


def test_nothing_beyond_durable_is_given(world):
    """What was acked before its sync is no part of any object until it is synced."""
    world.log.create(4, "/default/loose", sync="periodic")
    world.log.plain(4, b"early")
    world.log.plain(1, b"synced")
    world.log.plain(4, b"late")
    assert world.frames.available(4) == (0, 1)
    assert built(world, 4)[1].end == 1
    world.log.plain(1, b"synced again")
    assert built(world, 4)[1].end == 2
