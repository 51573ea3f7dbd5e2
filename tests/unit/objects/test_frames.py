"""Frames of a journal for uploads: whole ones, durable ones, verified."""

from __future__ import annotations

import pytest

from frazil.errors import CorruptionError, NotFound
from frazil.log import format as fmt
from frazil.objects import frames as module
from frazil.objects.format import INDEX_ENTRIES_MAX, Range
from frazil.objects.frames import FooterStats
from tests.crash.reference_log import walk_frames
from tests.unit.objects.objects_world import ObjectsWorld


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


def runs(world, topic, *, bytes_max, first=0):
    """Return all runs of a topic, one behind another."""
    found = []
    while first < world.frames.available(topic)[1]:
        run = world.frames.frames(topic, first, bytes_max=bytes_max)
        assert run.first == first
        assert run.end > first
        found.append(run)
        first = run.end
    return found


def stats_of(first=0, index_bytes=1 << 20):
    return FooterStats(first=first, position=64, index_bytes=index_bytes)


def joined(run, stats=None):
    return b"".join(bytes(piece) for piece in run.read(stats or stats_of(run.first)))


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
@pytest.mark.parametrize("window_bytes", [200, 4096, 1 << 20])
def test_ranges_have_all_frames_verbatim(world, bytes_max, window_bytes, monkeypatch):
    """However small ranges and reads are, they give the journal's frames, each of them once."""
    monkeypatch.setattr(module, "WINDOW_BYTES", window_bytes)
    monkeypatch.setattr(module, "FITTING_FRAMES", 7)
    fill(world)
    for topic in (1, 2):
        expected = b"".join(written(world, topic))
        found = runs(world, topic, bytes_max=bytes_max)
        for run in found:
            stats = stats_of(run.first)
            assert len(joined(run, stats)) == run.size == stats.position - 64
            assert stats.records == run.end - run.first
        assert b"".join(joined(run) for run in found) == expected
    assert len(runs(world, 1, bytes_max=1)) == 60


def test_stats_have_the_fields_of_a_footer(world):
    """Records, frames, times, LSNs, producers and an index with an entry every so many bytes."""
    fill(world)
    (run,) = runs(world, 1, bytes_max=1 << 30)
    stats = stats_of(0, 2000)
    data = joined(run, stats)
    heads, position = [], 0
    while position < len(data):
        heads.append((position + 64, fmt.read_head(data, position)))
        position += fmt.FRAME_PREFIX_BYTES + heads[-1][1].length
    assert (stats.records, stats.frames) == (120, 60)
    assert stats.time_first_us == heads[0][1].time
    assert stats.time_last_us == max(head.time for _, head in heads)
    assert stats.lsn_last == heads[-1][1].lsn
    assert {run.producers[number] for number in stats.producers} == {"p"}
    places = {at: (head.offset, head.time) for at, head in heads}
    assert [(e.offset, e.time_us) for e in stats.entries] == [
        places[e.position] for e in stats.entries
    ]
    steps = [
        b.position - a.position for a, b in zip(stats.entries, stats.entries[1:], strict=False)
    ]
    assert stats.entries[0].position == 64
    assert steps
    assert all(2000 <= step < 3000 for step in steps)


def test_the_index_of_a_very_large_object_thins_out():
    """An index never has more than its limit, its entries stay evenly apart, the first stays."""
    stats = stats_of(0, 8)
    for number in range(INDEX_ENTRIES_MAX * 5):
        head = fmt.FRAME_HEAD.pack(number, 64, 0, 1, b"", 0, 0, 1, 1, 0, 1, 0, 1, 0, 5, 0, 0)
        stats.add(head, b"", [80])
    assert INDEX_ENTRIES_MAX / 4 < len(stats.entries) <= INDEX_ENTRIES_MAX
    assert stats.entries[0].offset == 0
    steps = [
        b.position - a.position for a, b in zip(stats.entries, stats.entries[1:], strict=False)
    ]
    assert max(steps) <= 16 * 80


def test_gaps_are_part_of_a_run(world):
    """Gaps before, between and behind frames are told, and the run covers them."""
    world.gap(1, 0, 5)
    world.log.plain(1, b"a")
    world.gap(1, 6, 9)
    world.log.plain(1, b"b", b"c")
    world.gap(1, 11, 20)
    assert world.log.topic(1).durable == 20
    run = world.frames.frames(1, 0, bytes_max=1 << 20)
    assert (run.first, run.end) == (0, 20)
    ranges = [Range(0, 5, "gap", "declared"), Range(6, 9, "gap", "declared")]
    assert run.ranges == (*ranges, Range(11, 20, "gap", "declared"))
    stats = stats_of(0, 100)
    joined(run, stats)
    assert stats.records == 3
    inside = world.frames.frames(1, 2, bytes_max=1 << 20, end=9)
    assert (inside.first, inside.end) == (2, 9)
    assert inside.ranges == (Range(2, 5, "gap", "declared"), ranges[1])


def test_an_end_inside_a_gap_or_a_frame_is_not_reached(world):
    """A run with a limit ends with the last whole frame or gap below it."""
    world.log.plain(1, b"a", b"b")
    world.log.plain(1, b"c", b"d")
    world.gap(1, 4, 9)
    assert world.frames.frames(1, 0, bytes_max=1 << 20, end=3).end == 2
    assert world.frames.frames(1, 0, bytes_max=1 << 20, end=6).end == 4
    empty = world.frames.frames(1, 0, bytes_max=1 << 20, end=1)
    assert (empty.end, empty.size, joined(empty)) == (0, 0, b"")


def test_a_run_may_begin_inside_a_frame(world):
    """The frame is given whole; the records below the run's first offset do not count."""
    world.log.plain(1, b"a", b"b", b"c")
    world.log.plain(1, b"d")
    run = world.frames.frames(1, 2, bytes_max=1 << 20)
    stats = stats_of(2, 100)
    assert joined(run, stats) == b"".join(written(world, 1))
    assert (run.first, run.end, stats.records) == (2, 4, 2)


def test_nothing_beyond_durable_is_given(world):
    """What was acked before its sync is no part of any run until it is synced."""
    world.log.create(4, "/default/loose", sync="none")
    world.log.plain(4, b"early")
    world.log.plain(1, b"synced")
    world.log.plain(4, b"late")
    start, durable = world.frames.available(4)
    assert (start, durable) == (0, 1)
    assert world.frames.frames(4, 0, bytes_max=1 << 20).end == 1
    world.log.plain(1, b"synced again")
    assert world.frames.frames(4, 0, bytes_max=1 << 20).end == 2


def test_freed_frames_are_not_found(world):
    """An offset that the log has let go is not found, with the first one that it has."""
    world.log.plain(1, b"old")
    world.log.journal.rotate()
    world.log.journal.seal_one()
    world.log.plain(1, b"new")
    run = world.frames.frames(1, 0, bytes_max=1 << 20)
    before = joined(run)
    world.log.free(2)
    with pytest.raises(NotFound) as caught:
        world.frames.frames(1, 0, bytes_max=1 << 20)
    assert caught.value.details["offset_first"] == world.log.topic(1).start > 0
    assert joined(run) == before, "a run that was begun keeps its files"
    with pytest.raises(NotFound):
        world.frames.available(9)


@pytest.mark.parametrize("window_bytes", [64, 1 << 20])
def test_damage_is_named(world, window_bytes, monkeypatch):
    """A flipped bit is found, and the error names the offsets."""
    monkeypatch.setattr(module, "WINDOW_BYTES", window_bytes)
    for number in range(5):
        world.log.plain(1, b"%d" % number * 100)
    files = {path: world.disk.read_bytes(path) for path in world.disk.paths()}
    frame = next(f for f in walk_frames(files)[0] if _is_data(f, 1) and f.offset == 3)

    def flip(data):
        data[frame.end - 9] ^= 1

    world.disk.corrupt(frame.path, flip)
    run = world.frames.frames(1, 0, bytes_max=1 << 20)
    with pytest.raises(CorruptionError) as caught:
        joined(run, stats_of(0, 100))
    assert (caught.value.details["offset_first"], caught.value.details["offset_next"]) == (3, 4)
