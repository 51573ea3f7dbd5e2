"""The golden objects of format 1: of a message topic and of a table, and the metadata rows.

`python -m tests.unit.objects.golden_objects` writes them below tests/data/objects-1. A change
of these bytes is a change of the format: it needs a new version and a reader for the old one.
"""

from __future__ import annotations

from pathlib import Path

from frazil.log import format as fmt
from frazil.objects.descriptor import Garbage, Intent, ObjectsState, encode_row
from scripts.make_golden import ARROW_ROWS, PinnedCodec, arrow_payloads
from tests.unit.objects.objects_world import ObjectsWorld

GOLDEN = Path(__file__).resolve().parents[2] / "data" / "objects-1"


NOW_US = 1_760_000_000_000_000


def golden_world():
    """Upload a message topic and a table."""
    schema, batch = arrow_payloads()
    world = ObjectsWorld(index_bytes=200)
    # How often the clock is read is no part of the format.
    world.clock.now_us = lambda: NOW_US
    world.log.create(1, "/default/messages")
    world.log.create(2, "/default/table", kind="table")
    world.log.control(fmt.KIND_SCHEMA, 2, schema, schema=1)
    for number in range(5):
        world.log.plain(1, b"message %d" % number, producer="p1", sequence=number)
    world.gap(1, 5, 8)
    world.log.plain(1, b"behind the gap", b"", producer="p2")
    assert world.uploader.cycle(1)
    table = world.log.topic(2)
    world.log.commit(
        (table, PinnedCodec(fmt.KIND_ARROW, 1), (batch,), len(ARROW_ROWS), 9, None, None)
    )
    assert world.uploader.cycle(2)
    return world


def golden_files():
    """Return the golden files by name."""
    world = golden_world()
    files = {}
    for key, _size in world.store.written:
        name = "table.frz" if "/00000002-" in key else "topic.frz"
        files[name] = world.store.objects[key].data
        files[name.replace(".frz", ".key")] = key.encode()
    for key, entry in world.metadata._memory.entries.items():
        if key.startswith("/objects/"):
            files[key.removeprefix("/objects/").replace("/", "-") + ".row"] = entry.value
    files["intent.row"] = encode_row(ObjectsState(0, 1, 2, Intent("key", 1, 3)))
    files["garbage.row"] = encode_row(Garbage("key", 5, "why"))
    return files


def main():
    GOLDEN.mkdir(exist_ok=True)
    for name, data in golden_files().items():
        (GOLDEN / name).write_bytes(data)


if __name__ == "__main__":
    main()
