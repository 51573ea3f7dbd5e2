"""Format 1 of the disk tier stays readable: files that were pinned read as they were written."""

from __future__ import annotations

from pathlib import Path

from frazil.tiers.disk.format import FileLabel, parse_name
from frazil.tiers.disk.parquet import read_facts
from tests.unit.tiers.disk_world import BY_COUNTRY, ROOT, SHAPE, TOPIC, World

GOLDEN = Path(__file__).resolve().parents[2] / "data" / "disk-1"
GAPS = [(30, 34)]


def golden():
    """Return a world on a copy of the pinned directory, without metadata."""
    world = World(keyed=True, partition_by=BY_COUNTRY)
    world.files.load(GOLDEN, ROOT)
    world.tier.open()
    return world


def test_the_pinned_directory_reads_as_it_was_written():
    """Rows, times, operations, bitmaps and gaps of pinned files come back exactly."""
    world = golden()
    world.check_history(0, 60, gaps=GAPS)
    assert world.tier.warnings == []
    assert len(world.tier.files(TOPIC)) == 6


def test_the_pinned_maps_of_keys_are_believed():
    """Keys are found by the pinned maps, none of which is built again."""
    world = golden()
    found = world.tier.lookup.find_many(TOPIC, ["key 3", "absent"], SHAPE, 60)
    assert {key: each.offset for key, each in found.items()} == {"key 3": 53}
    assert world.tier.lookup.maps_built == 0


def test_the_pinned_footers_say_what_the_page_says():
    """Each footer has the fields of the page, and the name has the set's range and number."""
    world = golden()
    for file in world.tier.files(TOPIC):
        facts, metadata = read_facts(world.files, world.tier.path(file))
        label = FileLabel.from_metadata(metadata)
        name = parse_name(file.name)
        assert label.set_files == 3
        assert (label.topic, label.schema, label.key_ids, label.format) == (TOPIC, 1, (1,), 1)
        assert label.partition == file.partition != ""
        assert bool(label.gaps) == (name.first == 20 and name.number == 0)
        assert facts.rows == file.rows
