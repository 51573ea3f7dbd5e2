"""The disk tier gives records back by offset, and never a wrong or a missing one silently."""

from __future__ import annotations

import random

import pytest

from frazil.errors import CorruptionError, Unavailable
from frazil.log import RANGE_GAP
from frazil.tiers.disk import reader as disk_history
from frazil.tiers.disk.reader import RowsFile
from tests.support import Fault, FaultyFileSystem
from tests.unit.tiers import disk_world
from tests.unit.tiers.disk_world import (
    BY_COUNTRY,
    TOPIC,
    World,
    opened,
    row,
    rows_of,
    time_of,
)

KINDS = [
    pytest.param({"keyed": True}, id="one file"),
    pytest.param({"keyed": True, "partition_by": BY_COUNTRY}, id="by country"),
]

WIDE = "x" * 1_000_000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bytes_max", [1, 500, 1 << 20])
def test_any_offset_and_any_size_will_do(kind, bytes_max):
    """Reading may start anywhere; pieces are small as asked, but never empty."""
    world = opened(**kind)
    world.flush(0, 70)
    world.flush(70, 100)
    for first in (0, 1, 15, 16, 69, 70, 99):
        rows, _ = world.history(first, bytes_max=bytes_max)
        assert rows == [world.expected(each) for each in range(first, 100)]
    piece = world.tier.history.read(TOPIC, offset=0, bytes_max=bytes_max)
    assert sum(batch.data.nbytes for batch in piece.batches[1:]) <= bytes_max
    if bytes_max == 1:
        assert piece.offset_next == 1


@pytest.mark.parametrize("kind", KINDS)
def test_windows_join_without_a_seam(kind, monkeypatch):
    """Rows of several files are put in order in many small windows as in one."""
    monkeypatch.setattr(disk_history, "AHEAD_BYTES", 1000)
    monkeypatch.setattr(disk_history, "WINDOW_ROWS_MIN", 8)
    world = opened(**kind)
    world.flush(0, 300)
    world.check_history(0, 300)


def test_wide_rows_are_decoded_once(monkeypatch):
    """Reading them a few at a time does not decode their whole row group each time."""
    monkeypatch.setattr(disk_world, "row", lambda offset: {**row(offset), "country": WIDE})
    decoded = []
    read = RowsFile.read

    def counted(file, group, columns=None):
        decoded.append(group)
        return read(file, group, columns)

    monkeypatch.setattr(RowsFile, "read", counted)
    world = World()
    world.tier.open()
    world.flush(0, 150, size=4)
    at = 0
    while at < 150:
        at = world.tier.history.read(TOPIC, offset=at, bytes_max=len(WIDE)).offset_next
    assert len(decoded) > 1
    assert decoded == sorted(set(decoded))


def test_at_the_end_nothing_is_there_yet():
    """At the flushed mark and for an unknown topic a read is empty and stays where it is."""
    world = opened()
    world.flush(0, 20)
    assert world.tier.history.read(TOPIC, offset=20, bytes_max=100) == ([], 20, ())
    assert world.tier.history.read(99, offset=0, bytes_max=100) == ([], 0, ())
    assert world.tier.history.range(99).end == 0


def test_gaps_are_given_as_the_log_gives_them():
    """A gap comes with the batch after it, cut to the reader's offset."""
    world = opened()
    world.flush(0, 30, gaps=[(10, 15, RANGE_GAP), (15, 18, RANGE_GAP), (28, 30, RANGE_GAP)])
    piece = world.tier.history.read(TOPIC, offset=5, bytes_max=1 << 20)
    assert (piece.offset_next, piece.gaps) == (10, ())
    piece = world.tier.history.read(TOPIC, offset=12, bytes_max=1 << 20)
    (batch,) = piece.batches
    assert [(gap.first, gap.end) for gap in batch.gaps] == [(12, 15), (15, 18)]
    assert (batch.offset, piece.offset_next) == (18, 28)
    piece = world.tier.history.read(TOPIC, offset=28, bytes_max=1 << 20)
    assert (piece.batches, piece.offset_next) == ([], 30)
    assert [(gap.first, gap.end) for gap in piece.gaps] == [(28, 30)]


@pytest.mark.parametrize("kind", KINDS)
def test_time_finds_the_first_offset(kind):
    """The offset at a time is the first one appended at or after it, over all files."""
    world = opened(**kind)
    world.flush(0, 70)
    world.flush(70, 100)
    for offset in range(0, 100, 10):
        assert world.tier.history.offset_at(TOPIC, time_us=time_of(offset)) == offset
        assert world.tier.history.offset_at(TOPIC, time_us=time_of(offset) - 1) == offset
    assert world.tier.history.offset_at(TOPIC, time_us=time_of(99) + 1) is None
    assert world.tier.history.offset_at(99, time_us=0) is None


# -- damage ----------------------------------------------------------------------------------------


def damage_group(world, file, number, name="n"):
    """Flip a bit in the last byte of a column's pages in a row group; return its offsets."""
    reader = world.tier.readers.reader(file)
    group = reader._parquet.metadata.row_group(number)
    column = group.column(reader.schema.get_field_index(name))
    start = column.dictionary_page_offset or column.data_page_offset
    place = start + column.total_compressed_size - 1
    bounds = reader.bounds[number]
    world.tier.readers.forget(file)
    world.files.corrupt(
        world.tier.path(file), lambda data: data.__setitem__(place, data[place] ^ 16)
    )
    return bounds


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_refused_with_its_range(kind):
    """Only records that the damaged row group has are refused; reading goes on behind them."""
    world = opened(**kind)
    world.flush(0, 90)
    first, last = damage_group(world, world.tier.files(TOPIC)[0], 1)
    rows, refused = [], set()
    at = 0
    while at < 90:
        try:
            piece = world.tier.history.read(TOPIC, offset=at, bytes_max=300)
        except CorruptionError as error:
            facts = error.details
            assert facts["offset_first"] == at
            refused |= set(range(at, facts["offset_next"]))
            at = facts["offset_next"]
            continue
        for batch in piece.batches:
            rows += rows_of(batch)
        at = piece.offset_next
    step = 3 if kind.get("partition_by") else 1
    assert refused == set(range(first, last + 1, step))
    assert rows == [world.expected(each) for each in range(90) if each not in refused]


@pytest.mark.parametrize("kind", KINDS)
def test_every_flip_is_noticed_or_harmless(kind):
    """A flipped bit anywhere in a file never changes a record that is given."""
    world = opened(**kind)
    world.flush(0, 60)
    generator = random.Random(5)
    noticed = 0
    for _ in range(60):
        file = generator.choice(world.tier.files(TOPIC))
        path = world.tier.path(file)
        good = world.files.read_bytes(path)
        place, bit = generator.randrange(len(good)), generator.randrange(8)
        world.files.corrupt(
            path, lambda data, p=place, b=bit: data.__setitem__(p, data[p] ^ 1 << b)
        )
        tier = world.reopened().tier
        assert tier.damage.verify(file) != ""
        try:
            rows, _ = world.history(tier=tier)
            assert rows == [world.expected(each) for each in range(60)]
        except CorruptionError:
            noticed += 1
        world.files.write_bytes(path, good)
    assert noticed > 20


@pytest.mark.parametrize("by", ["offset", "time"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_rebuilt_from_the_log(kind, by):
    """While the log has the range, a reader of a damaged file gets its records all the same."""
    world = opened(**kind)
    world.flush(0, 40)
    world.flush(40, 80)
    broken = world.tier.files(TOPIC)[0]
    damage_group(world, broken, 0, "_time" if by == "time" else "n")

    def rebuild(topic, file):
        span = world.tier.set_of(file)
        world.flush(span.first, span.end, replaces=span.files)
        return True

    world.tier.damage.on_damage = rebuild
    if by == "time":
        assert world.tier.history.offset_at(TOPIC, time_us=time_of(30)) == 30
    world.check_history(0, 80)
    aside = [path for path in world.files.paths() if "quarantine" in path]
    assert [path for path in aside if path.endswith(broken.name)]
    assert [path for path in aside if path.endswith(".reason")]
    assert len(aside) == 2, "whole files of the set are removed, not put aside"
    world.reopened().check_history(0, 80)


def test_a_file_that_cannot_be_rebuilt_stays():
    """When the log has the range no more, the file stays, and the engine is asked again later."""
    world = opened()
    (file,) = world.flush(0, 20)
    damage_group(world, file, 0)
    asked = []
    world.tier.damage.on_damage = lambda topic, each: asked.append((topic, each.name)) or False
    for _ in range(3):
        with pytest.raises(CorruptionError):
            world.tier.history.read(TOPIC, offset=0, bytes_max=100)
    assert asked == [(TOPIC, file.name)]
    world.clock.advance(61_000_000)
    with pytest.raises(CorruptionError):
        world.tier.history.read(TOPIC, offset=0, bytes_max=100)
    assert len(asked) == 2
    assert world.tier.path(file) in world.files.paths()


def test_trouble_with_the_disk_is_not_damage():
    """A read that fails is Unavailable and may be tried again; the file is not called damaged."""
    world = opened()
    world.flush(0, 20)
    asked = []
    for nth in range(1, 6):
        tier = world.new_tier(FaultyFileSystem(world.files, [Fault("read_at", nth)]))
        tier.damage.on_damage = lambda topic, file: asked.append(file) or False
        tier.open()
        with pytest.raises(Unavailable):
            for _ in range(6):
                world.history(tier=tier)
                tier.readers.close()
        assert world.history(tier=tier)[0] == [world.expected(each) for each in range(20)]
    assert asked == []
