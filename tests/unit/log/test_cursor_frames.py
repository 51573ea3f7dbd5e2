"""Cursor frames: their bytes, their folding, their bounds, and their way through a journal."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import msgspec
import pytest

from frazil.errors import InvalidRequest, Overloaded, Unavailable
from frazil.log import format as fmt
from frazil.log.codec import PLAIN, Control
from frazil.log.cursor import RANGES_MAX
from frazil.log.cursor_state import (
    ATTEMPTS_MAX,
    OFFSET_MAX,
    CursorState,
    Dropped,
    acked,
    attempted,
    decode_changes,
    delayed,
    encode_changes,
    fold,
    placed,
)
from frazil.model import Ack
from scripts import make_golden
from tests.crash.driven_log import DIRECTORY, DrivenLog, log_settings
from tests.support import Fault, FaultyFileSystem, SimulatedFileSystem

TOPIC = 7
GOLDEN = Path(__file__).resolve().parents[2] / "data" / "format-1" / "cursors"


def new_log(file_system=None, **changes):
    log = DrivenLog(file_system or SimulatedFileSystem(), settings=log_settings(**changes))
    log.create(TOPIC, "/default/mail")
    log.plain(TOPIC, *[b"%d" % number for number in range(100)])
    return log


def change(log, *changes):
    return log.control(fmt.KIND_CURSOR, TOPIC, encode_changes(changes))


def cursors(log):
    return log.topic(TOPIC).cursors


# -- the value -----------------------------------------------------------------------------------


def test_attempts_of_acked_records_are_forgotten():
    """Attempts only grow, and end with the ack, singly or by a large range."""
    cursor = CursorState(0, attempts=[(3, 2), (5, 4), (9, 2)])
    cursor.attempt(5, 3)
    assert cursor.attempts == {3: 2, 5: 4, 9: 2}
    cursor.ack_range(5, 6)
    cursor.attempt(5, 9)
    assert cursor.attempts == {3: 2, 9: 2}
    cursor.ack_range(0, 1000)
    assert cursor.attempts == {}


def test_a_cursor_without_ranges_takes_one_number():
    """Most cursors are one number; with ranges, distances keep them small."""
    assert CursorState(5).encode() == b"\x05"
    cursor = CursorState(10**9, [(10**9 + 2 * n, 10**9 + 2 * n + 1) for n in range(1, 1001)])
    assert len(cursor.encode()) < 2100
    assert CursorState.decode(cursor.encode()) == cursor


@pytest.mark.parametrize(
    "value",
    [
        -1,
        OFFSET_MAX + 1,
        (0, [0, 1], []),
        (0, [1, 0], []),
        (0, [1], []),
        (5, [], [0, 1]),
        (5, [], [-1, 2]),
        (5, [1, 1], [1, 2]),
        (0, [OFFSET_MAX, 5], []),
        "text",
        (1, 2),
        (1, [], [0, 2], [2, 5]),
        (1, [], [0, 2], [1]),
        (1, [], [0, 2], [1, -1]),
        (1, [], 3),
        ([], [], []),
    ],
)
def test_what_is_no_cursor_is_refused(value):
    """Bytes that are no cursor are refused: overlap, order, bounds, types."""
    with pytest.raises(ValueError, match=r"\w"):
        CursorState.decode(msgspec.msgpack.encode(value))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x91",
        msgspec.msgpack.encode([[1, "a", [5, 5]]]),
        msgspec.msgpack.encode([[1, "a", [5]]]),
        msgspec.msgpack.encode([[1, "a", [-1, 5]]]),
        msgspec.msgpack.encode([[2, "a", [5, 1]]]),
        msgspec.msgpack.encode([[3, "a", b"\xc0"]]),
        msgspec.msgpack.encode([[9, "a"]]),
        msgspec.msgpack.encode(["a", 5]),
    ],
)
def test_what_is_no_change_is_refused(payload):
    """A payload is read whole before anything of it is folded."""
    with pytest.raises(ValueError, match=r"\w"):
        decode_changes(payload)


def any_change(chance):
    name = chance.choice("ab")
    first = chance.randint(0, 30)
    return chance.choice(
        [
            acked(name, (first, first + chance.randint(1, 4))),
            acked(name, (first, first + 1), (first + 3, first + 5)),
            attempted(name, (first, chance.randint(2, 5))),
            placed(name, CursorState(first, [(first + 2, first + 3)])),
            Dropped(name),
        ]
    )


def test_folding_frames_again_changes_nothing():
    """Any run of changes, folded once more into its own result, leaves it as it is."""
    for seed in range(500):
        chance = random.Random(seed)
        cursors = {"a": CursorState(chance.randint(0, 5))}
        changes = [any_change(chance) for _ in range(chance.randint(1, 12))]
        fold(cursors, changes)
        once = {name: cursor.copy() for name, cursor in cursors.items()}
        fold(cursors, changes)
        assert cursors == once, seed
        fold(cursors, changes[chance.randint(0, len(changes)) :])
        assert cursors == once, seed


# -- the pinned bytes ----------------------------------------------------------------------------


def pinned():
    return {path.name: path.read_bytes() for path in sorted(GOLDEN.iterdir())}


def test_the_changes_written_today_are_the_pinned_ones():
    """The same calls give the same frames and the same checkpoint as when they were pinned."""
    disk = SimulatedFileSystem()
    make_golden.write_golden_cursors(disk)
    written = {path.rpartition("/")[2]: disk.read_bytes(path) for path in disk.paths()}
    assert written == pinned()


def test_the_pinned_changes_read_as_they_were_written():
    """Cursors of the checkpoint and the frames behind it come back exactly."""
    disk = SimulatedFileSystem()
    for name, data in pinned().items():
        disk.write_bytes(f"{DIRECTORY}/{name}", data)
    log = DrivenLog(disk)
    assert log.journal.report.resumed
    assert log.topic(make_golden.PLAIN_TOPIC).cursors == {
        "plain": CursorState(4, attempts=[(4, 2)]),
        "holes": CursorState(7, [(9, 10), (12, 20)], [(8, 301)]),
    }


# -- through a journal ---------------------------------------------------------------------------


def test_a_frame_is_in_the_group_of_the_data_and_costs_no_sync_of_its_own():
    """Acks that wait beside records are durable with the same sync."""
    log = new_log()
    change(log, placed("s", CursorState(0)))
    before = log.journal.sync_count
    state = log.topic(TOPIC)
    control = fmt.KIND_CURSOR, TOPIC, encode_changes([acked("s", (0, 5))])
    answers = log.commit(
        (state, PLAIN, (b"x",), 1, 1, None, None),
        (None, None, Control(*control), 0, 100, None, None),
    )
    assert [type(answer) for answer in answers] == [Ack, Ack]
    assert log.journal.sync_count == before + 1
    assert cursors(log) == {"s": CursorState(5)}


def test_cursors_survive_rotation_freeing_and_opening():
    """The newest checkpoint plus the frames behind it is all that is needed."""
    disk = SimulatedFileSystem()
    log = new_log(disk)
    change(log, placed("s", CursorState(3)), placed("gone", CursorState(0)))
    change(log, acked("s", (5, 6), (8, 10)), attempted("s", (6, 2)))
    for _ in range(3):
        log.journal.rotate()
    log.free(log.journal.active.id)
    change(log, acked("s", (3, 4)), Dropped("gone"))
    expected = {"s": CursorState(4, [(5, 6), (8, 10)], [(6, 2)])}
    assert cursors(log) == expected
    assert len(log.journal.segments) == 1
    for clone in (disk.kill_clone(), disk.crash_clone(1)):
        again = DrivenLog(clone)
        assert cursors(again) == expected
        again.journal.rotate()
        assert cursors(DrivenLog(clone.kill_clone())) == expected
    log.close()
    assert cursors(DrivenLog(disk)) == expected


def test_a_cursor_remembers_the_frame_that_changed_it():
    """The batch sequence of its last change is known, and after an opening not less."""
    disk = SimulatedFileSystem()
    log = new_log(disk)
    ack = change(log, placed("s", CursorState(3)))
    log.plain(TOPIC, b"x")
    assert cursors(log)["s"].lsn == ack.lsn
    assert cursors(DrivenLog(disk.kill_clone()))["s"].lsn >= ack.lsn


def test_a_frame_that_cannot_be_folded_is_not_written():
    """A bad payload, or one for no topic, is refused alone and leaves no trace."""
    log = new_log()
    lsn = log.journal.state.lsn
    assert isinstance(log.control(fmt.KIND_CURSOR, TOPIC, b"\x91"), InvalidRequest)
    payload = encode_changes([acked("s", (0, 1))])
    assert isinstance(log.control(fmt.KIND_CURSOR, 99, payload), InvalidRequest)
    assert log.journal.state.lsn == lsn


def test_an_ack_of_no_subscription_changes_nothing():
    """It may come behind the end of its subscription, and is no error."""
    log = new_log()
    assert isinstance(change(log, acked("s", (0, 1))), Ack)
    assert cursors(log) == {}


def full_cursor():
    return CursorState(0, [(2 * n, 2 * n + 1) for n in range(1, RANGES_MAX + 1)])


def test_a_cursor_never_has_more_ranges_than_it_may():
    """At the bound a further range is refused, but an ack that closes a hole is taken."""
    log = new_log()
    assert isinstance(change(log, placed("s", full_cursor())), Ack)
    refused = change(log, acked("s", (3 * RANGES_MAX, 3 * RANGES_MAX + 1)))
    assert isinstance(refused, Overloaded)
    assert refused.details["ranges_max"] == RANGES_MAX
    assert isinstance(change(log, acked("s", (0, 2))), Ack)
    assert cursors(log)["s"].range_count == RANGES_MAX - 1
    assert cursors(log)["s"].acked_below == 3


def test_the_bound_counts_what_waits_in_the_same_group():
    """Two frames of one group that would pass alone do not outgrow the bound together."""
    log = new_log()
    cursor = full_cursor()
    cursor.ack_range(0, 3)
    change(log, placed("s", cursor))
    far = 3 * RANGES_MAX
    payloads = [encode_changes([acked("s", (at, at + 1))]) for at in (far, far + 2, 3)]
    answers = log.commit(
        *[
            (None, None, Control(fmt.KIND_CURSOR, TOPIC, payload), 0, 100, None, None)
            for payload in payloads
        ]
    )
    assert [type(answer) for answer in answers] == [Ack, Overloaded, Ack]
    assert cursors(log)["s"].range_count == RANGES_MAX - 1
    assert far in cursors(log)["s"]
    assert far + 2 not in cursors(log)["s"]


def test_attempts_are_bounded_too():
    """More records with repeated deliveries than the bound are refused, acked ones make room."""
    log = new_log()
    change(log, placed("s", CursorState(0)))
    many = [(offset, 2) for offset in range(ATTEMPTS_MAX)]
    assert isinstance(change(log, attempted("s", *many)), Ack)
    assert isinstance(change(log, attempted("s", (ATTEMPTS_MAX, 2))), Overloaded)
    assert isinstance(change(log, acked("s", (0, 1)), attempted("s", (ATTEMPTS_MAX, 2))), Ack)


def without_room(log, *faults):
    """Let the next calls meet a full disk; return the list of times that the ballast was asked for."""
    log.journal._file_system.plan(*faults)
    asked = []
    log.journal.on_disk_full = lambda: asked.append(True)
    return asked


def beside_records(log):
    """Commit records and acks as one group; return the answers."""
    payload = encode_changes([acked("s", (0, 5))])
    return log.commit(
        (log.topic(TOPIC), PLAIN, (b"x",), 1, 1, None, None),
        (None, None, Control(fmt.KIND_CURSOR, TOPIC, payload), 0, 100, None, None),
    )


def test_acks_use_what_the_ballast_gives_up():
    """On a full disk records are refused, and the acks beside them are written all the same."""
    disk = SimulatedFileSystem()
    log = new_log(FaultyFileSystem(disk, []))
    change(log, placed("s", CursorState(0)))
    asked = without_room(log, Fault("write_at", error=errno.ENOSPC))
    assert [type(answer) for answer in beside_records(log)] == [Overloaded, Ack]
    assert len(asked) == 1
    again = DrivenLog(disk.crash_clone(3))
    assert cursors(again) == {"s": CursorState(5)}
    assert len(again.read(TOPIC).records) == 100


def test_acks_are_unavailable_when_there_is_no_room_at_all():
    """Without any room acks are refused as unavailable, and taken once there is room again."""
    disk = SimulatedFileSystem()
    log = new_log(FaultyFileSystem(disk, []))
    change(log, placed("s", CursorState(0)))
    without_room(log, *[Fault("write_at", nth=nth, error=errno.ENOSPC) for nth in (1, 2)])
    refused, unavailable = beside_records(log)
    assert isinstance(refused, Overloaded)
    assert isinstance(unavailable, Unavailable)
    assert "outcome" not in unavailable.details
    assert cursors(log) == {"s": CursorState(0)}
    assert [type(answer) for answer in beside_records(log)] == [Ack, Ack]
    assert cursors(DrivenLog(disk.crash_clone(3))) == {"s": CursorState(5)}


def test_acks_find_room_when_the_next_segment_does_not():
    """A rotation that meets the full disk asks for the ballast and is tried again for acks."""
    disk = SimulatedFileSystem()
    log = new_log(FaultyFileSystem(disk, []), segment_bytes_max=64 << 10)
    change(log, placed("s", CursorState(0)))
    log.plain(TOPIC, bytes(50 << 10))
    asked = without_room(log, Fault("open", error=errno.ENOSPC))
    payload = encode_changes([acked("s", (0, 5))])
    entry = (None, None, Control(fmt.KIND_CURSOR, TOPIC, payload), 0, 16 << 10, None, None)
    assert [type(answer) for answer in log.commit(entry)] == [Ack]
    assert len(asked) == 1
    assert len(log.journal.segments) == 2
    assert cursors(DrivenLog(disk.crash_clone(3))) == {"s": CursorState(5)}


def test_a_lost_definition_brings_the_remembered_cursor_back_and_frames_come_on_top():
    """Where the checkpoint is destroyed, the copy stands in for it, and no frame is overridden."""
    disk = SimulatedFileSystem()
    log = new_log(disk)
    change(log, placed("s", CursorState(0)))
    log.journal.rotate()
    log.free(log.journal.active.id)
    change(log, acked("s", (0, 9)))
    log.close()
    path = f"{DIRECTORY}/{log.journal.active.id:016x}.seg"
    data = bytearray(disk.read_bytes(path))
    data[fmt.SEGMENT_HEADER_BYTES + 200] ^= 0xFF
    disk.write_bytes(path, bytes(data))
    known = {TOPIC: (log.topic(TOPIC).spec, {})}
    copies = {TOPIC: {"s": CursorState(4, [(6, 7)])}}
    again = DrivenLog(disk, known_topics=known, known_cursors=copies)
    assert cursors(again) == {"s": CursorState(9)}


def test_a_whole_log_takes_no_notice_of_a_remembered_cursor():
    """What the log has counts, however far ahead the copy claims to be."""
    disk = SimulatedFileSystem()
    log = new_log(disk)
    change(log, placed("s", CursorState(2)))
    known = {TOPIC: (log.topic(TOPIC).spec, {})}
    copies = {TOPIC: {"s": CursorState(50), "other": CursorState(1)}}
    again = DrivenLog(disk.kill_clone(), known_topics=known, known_cursors=copies)
    assert cursors(again) == {"s": CursorState(2)}


def test_a_head_never_falls_below_a_cursor():
    """Offsets that a subscription has acked are never given to other records."""
    disk = SimulatedFileSystem()
    log = new_log(disk)
    change(log, placed("s", CursorState(150, [(160, 170)])))
    again = DrivenLog(disk.kill_clone())
    assert again.plain(TOPIC, b"x").offset == 170


def test_delays_belong_to_one_attempt_and_end_with_it():
    """A delay counts for the delivery it names; another attempt or an ack ends it."""
    cursors = {"s": CursorState(0)}
    fold(cursors, [attempted("s", (3, 2), (5, 2)), delayed("s", (3, 2, 1000), (5, 7, 2000))])
    assert cursors["s"].dues == {3: 1000}
    whole = CursorState.decode(cursors["s"].encode())
    assert whole == cursors["s"] == CursorState(0, (), [(3, 2), (5, 2)], [(3, 1000)])
    assert whole.copy() == whole != CursorState(0, (), [(3, 2), (5, 2)])
    fold(cursors, [attempted("s", (3, 3)), delayed("s", (5, 2, 3000))])
    assert cursors["s"].dues == {5: 3000}
    fold(cursors, [attempted("s", (3, 2), (5, 2)), delayed("s", (3, 2, 1000))])
    assert cursors["s"].dues == {5: 3000}
    fold(cursors, [acked("s", (5, 6))])
    assert cursors["s"].dues == {}
