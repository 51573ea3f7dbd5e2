"""How far deliveries went, in cursors and their frames: its bytes and its folding."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from frazil.log.cursor_state import (
    OFFSET_MAX,
    Acked,
    CursorState,
    acked,
    attempted,
    decode_changes,
    encode_changes,
    fold,
    placed,
)
from scripts import make_golden
from tests.crash.driven_log import DIRECTORY, DrivenLog
from tests.support import SimulatedFileSystem

GOLDEN = Path(__file__).resolve().parents[2] / "data" / "format-1" / "reserved"


def reserving(below, reserved, **more):
    cursor = CursorState(below, **more)
    cursor.reserve(reserved)
    return cursor


@pytest.mark.parametrize(
    "cursor",
    [
        reserving(5, 0),
        reserving(5, 17),
        reserving(5, 17, ranges=[(7, 9)], attempts=[(6, 2)], dues=[(6, 99)]),
        CursorState(5, [(7, 9)]),
    ],
)
def test_a_cursor_comes_back_with_what_is_reserved(cursor):
    """What is reserved is read as it was written; a copy that may lag says nothing of it."""
    found = CursorState.decode(cursor.encode())
    assert (found, found.reserved) == (cursor, cursor.reserved)
    assert cursor.copy().reserved == cursor.reserved
    lagging = CursorState.decode(cursor.encode(is_copy=True))
    assert (lagging, lagging.reserved) == (cursor, None)


def test_what_later_versions_add_is_passed_by():
    """Parts of a cursor behind those that are known, and fields of a change, harm nothing."""
    cursor = CursorState.decode(msgspec.msgpack.encode((5, [], [], [], 9, [1], 7)))
    assert (cursor, cursor.reserved) == (CursorState(5), 9)
    (change,) = decode_changes(msgspec.msgpack.encode([[1, "s", [5, 6], 9, True, "more"]]))
    assert change == Acked("s", [5, 6], 9, is_exact=True)


def test_an_ack_that_reserves_nothing_has_the_bytes_that_it_always_had():
    """Readers from before know these; those see no more than the ranges in the others, too."""
    assert msgspec.msgpack.decode(encode_changes([acked("s", (5, 6))])) == [[1, "s", [5, 6]]]
    longer = msgspec.msgpack.decode(encode_changes([acked("s", (5, 6), reserved=9)]))
    assert longer == [[1, "s", [5, 6], 9, False]]


@pytest.mark.parametrize("value", [(5, [], [], [], -1), (5, [], [], [], OFFSET_MAX + 1)])
def test_what_is_reserved_is_an_offset(value):
    """Anything else is no cursor, and in a frame no change."""
    with pytest.raises(ValueError, match=r"\w"):
        CursorState.decode(msgspec.msgpack.encode(value))
    with pytest.raises(ValueError, match=r"\w"):
        decode_changes(msgspec.msgpack.encode([[1, "s", [], value[4]]]))


def test_what_is_reserved_only_grows_until_it_is_exact():
    """Frames may come in another order than they were made: the highest end counts."""
    cursors = {"s": CursorState(0)}
    fold(cursors, [acked("s", (0, 1))])
    assert cursors["s"].reserved is None
    fold(cursors, [acked("s", (1, 2), reserved=20), acked("s", reserved=12)])
    assert (cursors["s"].acked_below, cursors["s"].reserved) == (2, 20)
    fold(cursors, [Acked("s", [], 3, is_exact=True)])
    assert cursors["s"].reserved == 3
    fold(cursors, [acked("s", reserved=13)])
    assert cursors["s"].reserved == 13
    fold(cursors, [Acked("s", [], 0, is_exact=True)])
    assert cursors["s"].reserved == 0


def test_folding_what_is_reserved_again_changes_nothing():
    """Any run of changes, from any of them on, folded into its own result leaves it as it is."""
    for seed in range(300):
        chance = random.Random(seed)
        changes = [_any_change(chance) for _ in range(chance.randint(1, 12))]
        cursors = {"s": CursorState(0)}
        fold(cursors, changes)
        once = cursors["s"].reserved
        fold(cursors, changes[chance.randint(0, len(changes)) :])
        assert cursors["s"].reserved == once, seed


def _any_change(chance):
    end = chance.randint(0, 30)
    return chance.choice(
        [
            acked("s", (end, end + 1), reserved=end),
            Acked("s", [], end, is_exact=True),
            attempted("s", (end, 2)),
            placed("s", reserving(end, end)),
        ]
    )


def _pinned():
    return {path.name: path.read_bytes() for path in sorted(GOLDEN.iterdir())}


def test_the_changes_written_today_are_the_pinned_ones():
    """The same calls give the same frames and the same checkpoint as when they were pinned."""
    disk = SimulatedFileSystem()
    make_golden.write_golden_reserved(disk)
    written = {path.rpartition("/")[2]: disk.read_bytes(path) for path in disk.paths()}
    assert written == _pinned()


def test_the_pinned_changes_read_as_they_were_written():
    """What checkpoint and frames say of deliveries comes back exactly."""
    disk = SimulatedFileSystem()
    for name, data in _pinned().items():
        disk.write_bytes(f"{DIRECTORY}/{name}", data)
    log = DrivenLog(disk)
    assert log.journal.report.resumed
    found = log.topic(make_golden.PLAIN_TOPIC).cursors
    assert found == {
        "ahead": CursorState(4),
        "exact": CursorState(3, attempts=[(4, 2)]),
        "silent": CursorState(2),
    }
    reserved = {name: cursor.reserved for name, cursor in found.items()}
    assert reserved == {"ahead": 14, "exact": 5, "silent": None}
