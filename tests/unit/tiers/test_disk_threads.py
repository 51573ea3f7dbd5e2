"""Readers see whole rows and the newest keys while files are flushed, merged and evicted."""

from __future__ import annotations

import threading

import pytest

from frazil.errors import NotFound
from frazil.tiers.disk.writer import merge_once
from tests.unit.tiers.disk_world import (
    BY_COUNTRY,
    KEYS,
    SHAPE,
    TOPIC,
    World,
    present_of,
    rows_of,
)

SETS, ROWS = 24, 20


def follow(world, stop, problems):
    """Read from the start to the end, over and over; note every row that is wrong or missing."""
    try:
        while not stop.is_set():
            at = world.tier.start(TOPIC)
            end = world.tier.flushed(TOPIC)
            while at < end:
                try:
                    piece = world.tier.history.read(TOPIC, offset=at, bytes_max=700)
                except NotFound as error:
                    # Evicted under the reader: it goes on where records are.
                    assert at < world.tier.start(TOPIC), error
                    at = world.tier.start(TOPIC)
                    continue
                (batch,) = piece.batches
                assert batch.offset == at
                for found in rows_of(batch):
                    assert found == world.expected(found["_offset"])
                at = piece.offset_next
    except BaseException as error:
        problems.append(error)
        raise


def look_up(world, stop, problems):
    """Look keys up over and over; what is found is never older than what was flushed before."""
    try:
        while not stop.is_set():
            for number in range(KEYS):
                flushed = world.tier.flushed(TOPIC)
                key = f"key {number}"
                found = world.tier.lookup.find_many(TOPIC, [key], SHAPE, 1 << 40).get(key)
                if flushed - world.tier.start(TOPIC) < 2 * KEYS:
                    continue
                assert found is not None
                newest = (flushed - 1 - number) // KEYS * KEYS + number
                # An update of a key without a row is not found.
                assert found.offset >= newest - (KEYS if present_of(newest) else 0)
    except BaseException as error:
        problems.append(error)
        raise


@pytest.mark.parametrize("partition_by", [(), BY_COUNTRY])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_readers_and_movers_do_not_meet(partition_by):
    """Threads that read and look up never see a wrong, doubled or missing record."""
    world = World(keyed=True, partition_by=partition_by, row_group_rows=16, open_files_max=3)
    world.tier.open()
    world.flush(0, ROWS)
    stop, problems = threading.Event(), []
    threads = [
        threading.Thread(target=target, args=(world, stop, problems))
        for target in (follow, follow, look_up)
    ]
    for thread in threads:
        thread.start()
    try:
        for number in range(1, SETS):
            world.flush(number * ROWS, (number + 1) * ROWS)
            merge_once(world.tier, TOPIC)
            spans = world.tier.picture(TOPIC).spans
            if number % 8 == 6 and len(spans) > 1:
                world.tier.space.expire(TOPIC, spans[0].end)
            if problems:
                break
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert problems == []
    assert world.tier.flushed(TOPIC) == SETS * ROWS
    assert world.tier.start(TOPIC) > 0
    world.check_history(world.tier.start(TOPIC), SETS * ROWS)
