"""One flipped bit anywhere in a data directory: journal and metadata."""

from __future__ import annotations

import os
from random import Random

import pytest

from frazil.errors import CorruptionError, FrazilError
from tests.crash.test_engine_faults import _engine, _work
from tests.support.simulated_fs import SimulatedFileSystem

EXHAUSTIVE = bool(os.environ.get("FRAZIL_EXHAUSTIVE"))
FLIPS = 300
SHARDS = 16 if EXHAUSTIVE else 2
SEED = 20261115


def _reference():
    disk = SimulatedFileSystem()
    acked = {}
    _work(disk, acked)
    _work(disk, acked)
    return disk, acked


def _read(topic, name):
    """Return the records that are served, and whether damage was told on the way."""
    column = "id" if name == "rows" else "payload"
    held, told, start = {}, False, 0
    while True:
        try:
            for batch in topic.read(start):
                held.update((record["_offset"], record[column]) for record in batch.records())
                told = told or bool(batch.gaps)
        except CorruptionError as error:
            told = True
            start = int(error.details["offset_next"])
        except FrazilError:
            return held, True
        else:
            return held, told


def _check(disk, acked, where):
    try:
        engine = _engine(disk)
    except FrazilError:
        return
    try:
        told = bool(engine.warnings) or engine.stats()["health"] != "ok"
        for name, records in acked.items():
            if f"/default/{name}" not in engine.topics():
                assert told, (where, name)
                continue
            topic = engine.topic(name)
            held, damaged = _read(topic, name)
            for offset, value in held.items():
                assert records.get(offset, value) == value, (where, name, offset)
            missing = set(records) - set(held)
            assert not missing or damaged or told, (where, name, missing)
            ack = topic.append(id=99) if name == "rows" else topic.append(b"behind")
            assert ack.offset > max(records), (where, name)
    finally:
        engine.close()


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_flipped_bit_is_told_or_harmless(shard):
    """No flip gives a wrong record, hides an acked one, or lets an offset be used twice."""
    disk, acked = _reference()
    spots = [
        (path, position)
        for path in disk.paths()
        if "LOCK" not in path and "ballast" not in path
        for position in range(len(disk.read_bytes(path)) * 8)
    ]
    assert any("/journal/" in path for path, _ in spots)
    assert any(path.endswith("meta.db") for path, _ in spots)
    chosen = spots if EXHAUSTIVE else Random(SEED).sample(spots, FLIPS)
    for path, position in chosen[shard::SHARDS]:
        damaged = disk.kill_clone()

        def flip(data, position=position):
            data[position >> 3] ^= 1 << (position & 7)

        damaged.corrupt(path, flip)
        _check(damaged, acked, (path, position))
