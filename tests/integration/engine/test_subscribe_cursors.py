"""Subscriptions of an engine: durable progress, holds that follow, a copy that never leads."""

from __future__ import annotations

import asyncio
import errno
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from frazil.clock import SystemClock
from frazil.engine import Engine
from frazil.errors import Closed, Conflict, InvalidRequest, NotFound, Overloaded, Unavailable
from frazil.fs import RealFileSystem
from frazil.log import (
    RANGES_MAX,
    STATE_HOLD,
    Control,
    CursorState,
    acked,
    attempted,
    deliver,
)
from frazil.log import format as fmt
from frazil.model import Ack
from frazil.subscribe import HOLD_PREFIX
from frazil.topic import BYTES_MAX, VALUE_BYTES_MAX, StateTag, known_cursors
from tests.integration.engine.objects_world import wait_until
from tests.integration.engine.opening import (
    LOG_ALONE,
    apply,
    open_small,
    payloads_of,
    rotate,
    small_settings,
)
from tests.support import Fault, FaultyFileSystem, SimulatedClock, SimulatedFileSystem

NOTHING_KEPT = {"retention_age_s": 0.0, "memory": LOG_ALONE}
HOLD = f"{HOLD_PREFIX}s"


def open_quiet(path, *, file_system=None, clock=None, **settings):
    """Open an engine in which nothing happens by itself."""
    return Engine(
        small_settings(path, **settings),
        file_system=file_system or RealFileSystem(),
        clock=clock or SystemClock(),
        threads=False,
    )


def with_topic(path, records=10, opened=open_quiet, **settings):
    db = opened(path, **settings)
    topic = db.create_topic("t")
    topic.append_many([b"%d" % number for number in range(records)])
    return db


def fail_next_write(disk, nth=1):
    """Let the n-th write to the journal from now on meet a full disk."""
    fault = Fault("write_at", nth=nth, error=errno.ENOSPC, path_part="/journal/")
    disk._plan = (*[each for each in disk._plan if nth > 1], fault)
    disk._seen = [0] * len(disk._plan)


def start_of(db):
    return db.describe("t")["watermarks"]["start"]


def holds(db):
    return db.describe("t")["holds"]


def test_what_was_acked_is_there_after_a_restart(tmp_path):
    """Acks, attempts, a reset and an end of a subscription survive, each exactly."""
    with with_topic(tmp_path) as db:
        for name in ("s", "back", "gone"):
            db.cursors.create("t", name, 2)
        ack = apply(
            db, [acked("s", (2, 3), (5, 7)), attempted("s", (4, 3)), acked("back", (2, 9))]
        ).result()
        assert isinstance(ack, Ack)
        db.cursors.reset("t", "back", CursorState(1, [(3, 4)]))
        db.cursors.drop("t", "gone")
        expected = {"s": CursorState(3, [(5, 7)], [(4, 3)]), "back": CursorState(1, [(3, 4)])}
        assert db.cursors.load("t") == expected
    with open_quiet(tmp_path) as db:
        assert db.cursors.load("t") == expected
        apply(db, [acked("s", (3, 5))]).result()
        assert db.cursors.load("t")["s"] == CursorState(7)


def test_copies_are_handed_out(tmp_path):
    """What a caller does with a loaded cursor changes nothing."""
    with with_topic(tmp_path) as db:
        db.cursors.create("t", "s", 0)
        db.cursors.load("t")["s"].ack_range(0, 5)
        assert db.cursors.load("t")["s"] == CursorState(0)


def test_wrong_calls_are_refused_and_change_nothing(tmp_path):
    """Unknown names, places outside the records and wrong changes have their own errors."""
    with with_topic(tmp_path) as db:
        cursors = db.cursors
        cursors.create("t", "s", 3)
        db.create_topic("parts", partitions=2)
        for wrong, error in (
            (lambda: cursors.create("t", "s", 3), Conflict),
            (lambda: cursors.create("t", "x", 11), InvalidRequest),
            (lambda: cursors.create("t", "x", CursorState(0, [(9, 12)])), InvalidRequest),
            (lambda: cursors.create("t", "", 0), InvalidRequest),
            (lambda: cursors.create("t", "\ud800", 0), InvalidRequest),
            (lambda: cursors.create("t", "x" * 513, 0), InvalidRequest),
            (lambda: cursors.create("none", "x", 0), NotFound),
            (lambda: cursors.create("parts", "x", 0), InvalidRequest),
            (lambda: cursors.reset("t", "x", 0), NotFound),
            (lambda: cursors.reset("t", "s", 11), InvalidRequest),
            (lambda: cursors.drop("t", "x"), NotFound),
            (lambda: apply(db, [acked("x", (3, 4))]), NotFound),
            (lambda: db.topic("t").hold(f"{HOLD_PREFIX}x", 0), InvalidRequest),
            (lambda: db.topic("t").advance(HOLD, 5), InvalidRequest),
            (lambda: db.topic("t").drop(HOLD), InvalidRequest),
        ):
            with pytest.raises(error):
                wrong()
        assert cursors.load("t") == {"s": CursorState(3)}
        assert holds(db) == {HOLD: 3}
    with pytest.raises(Closed):
        apply(db, [acked("s", (3, 4))])


def test_any_name_is_stored(tmp_path):
    """The protocol has no rules for names: control characters and slashes come back as they are."""
    names = ["a b", "x/y", "\n\x00", "ü" * 200]
    with with_topic(tmp_path) as db:
        for place, name in enumerate(names):
            db.cursors.create("t", name, place)
        db.cursors.follow()
    with open_quiet(tmp_path) as db:
        assert db.cursors.load("t") == {name: CursorState(n) for n, name in enumerate(names)}
        copies = known_cursors(db._indexer._store)
        assert copies[db.topic_runtime("t").state.id] == db.cursors.load("t")


def test_a_subscription_holds_its_records_and_the_hold_follows(tmp_path):
    """Records are kept from the first unacked one on, and go once they are acked."""
    with open_quiet(tmp_path, **NOTHING_KEPT) as db:
        topic = db.create_topic("t")
        topic.append(b"0")
        db.cursors.create("t", "s", 0)
        for number in range(1, 5):
            rotate(db)
            topic.append(b"%d" % number)
        rotate(db)
        db.upkeep.free()
        assert start_of(db) == 0
        apply(db, [acked("s", (0, 2), (3, 4))]).result()
        assert holds(db) == {HOLD: 0}
        db.cursors.follow()
        assert holds(db) == {HOLD: 2}
        db.upkeep.free()
        assert payloads_of(topic) == [b"2", b"3", b"4"]
        with pytest.raises(InvalidRequest, match="within the topic's records"):
            db.cursors.reset("t", "s", 1)
        apply(db, [acked("s", (2, 3))]).result()
        db.cursors.follow()
        db.cursors.reset("t", "s", 2)
        assert holds(db) == {HOLD: 2}
        db.cursors.drop("t", "s")
        assert holds(db) == {}
        db.upkeep.free()
        assert start_of(db) == 5


def test_holds_and_subscriptions_are_settled_after_a_crash():
    """A hold whose subscription was never made goes, one that is missing comes back."""
    disk, clock = SimulatedFileSystem(), SimulatedClock()
    db = open_quiet("/data", file_system=disk, clock=clock)
    db.create_topic("t").append_many([b"x"] * 9)
    db.cursors.create("t", "s", 3)
    runtime = db.topic_runtime("t")
    for name, offset in (("half", 2), ("s", None)):
        payload = msgspec.msgpack.encode((STATE_HOLD, HOLD_PREFIX + name, offset))
        runtime.log.control(Control(fmt.KIND_STATE, runtime.state.id, payload))
    db.topic("t").hold("users", 5)
    assert holds(db) == {f"{HOLD_PREFIX}half": 2, "users": 5}
    disk = disk.crash_clone(1)
    db = open_quiet("/data", file_system=disk, clock=clock)
    assert holds(db) == {HOLD: 3, "users": 5}
    disk = disk.crash_clone(2)
    db = open_quiet("/data", file_system=disk, clock=clock)
    assert holds(db) == {HOLD: 3, "users": 5}
    assert db.cursors.load("t") == {"s": CursorState(3)}


def test_upkeep_lets_the_hold_follow_by_itself(tmp_path):
    """Nobody has to ask for it: a round of upkeep moves the holds before it frees."""
    with with_topic(tmp_path, opened=open_small, retention_check_s=0.01) as db:
        db.cursors.create("t", "s", 0)
        apply(db, [acked("s", (0, 7))]).result()
        db.upkeep.task.make_all_due()
        wait_until(lambda: holds(db) == {HOLD: 7})
        assert db.upkeep.errors == {}


def test_cursors_survive_the_segments_and_the_metadata(tmp_path):
    """Rotation, freeing of every older segment and lost metadata take nothing of them away."""
    with with_topic(tmp_path, **NOTHING_KEPT) as db:
        db.cursors.create("t", "s", 0)
        apply(db, [acked("s", (0, 8), (9, 10)), attempted("s", (8, 4))]).result()
        db.states.put(StateTag.POLICY, "p", b"kept")
        db.cursors.follow()
        rotate(db)
        db.topic("t").append(b"10")
        apply(db, [acked("s", (8, 9))]).result()
        db.cursors.follow()
        db.upkeep.free()
        assert len(db.log.journal.segments) == 1
    for path in tmp_path.glob("meta.db*"):
        path.unlink()
    with open_quiet(tmp_path, **NOTHING_KEPT) as db:
        assert db.cursors.load("t") == {"s": CursorState(10)}
        assert db.states.items(StateTag.POLICY) == {"p": b"kept"}
        assert holds(db) == {HOLD: 10}


def test_older_metadata_overrides_nothing(tmp_path):
    """A copy of the metadata from before, with cursors behind and ahead, changes no cursor."""
    with with_topic(tmp_path) as db:
        db.cursors.create("t", "s", 0)
        apply(db, [acked("s", (0, 9))]).result()
    old = {path: path.read_bytes() for path in tmp_path.glob("meta.db*")}
    with open_quiet(tmp_path) as db:
        db.cursors.reset("t", "s", 4)
        db.cursors.create("t", "new", 1)
    for path, data in old.items():
        path.write_bytes(data)
    with open_quiet(tmp_path) as db:
        expected = {"s": CursorState(4), "new": CursorState(1)}
        assert db.cursors.load("t") == expected
        state = db.topic_runtime("t").state
        assert known_cursors(db._indexer._store)[state.id] == expected


def test_a_lost_journal_leaves_the_copy(tmp_path):
    """When every segment is gone, the metadata's cursor is better than none."""
    with with_topic(tmp_path, memory=LOG_ALONE) as db:
        db.cursors.create("t", "s", 0)
        apply(db, [acked("s", (0, 4), (6, 7))]).result()
    for path in (tmp_path / "journal").glob("*.seg"):
        path.unlink()
    with open_quiet(tmp_path, memory=LOG_ALONE) as db:
        assert db.cursors.load("t") == {"s": CursorState(4, [(6, 7)])}
        assert HOLD in holds(db)
        assert db.topic("t").append(b"x").offset == 10
        db.cursors.reset("t", "s", 10)
    with open_quiet(tmp_path, memory=LOG_ALONE) as db:
        assert db.cursors.load("t") == {"s": CursorState(10)}


def test_the_copy_in_the_metadata_lags_and_is_removed_with_its_subscription(tmp_path):
    """The copy has a value that the cursor had, its batch sequence, and goes when it must."""
    with with_topic(tmp_path) as db:
        store, topic_id = db._indexer._store, db.topic_runtime("t").state.id
        db.cursors.create("t", "s", 0)
        db.cursors.follow()
        apply(db, [acked("s", (0, 5))]).result()
        assert known_cursors(store)[topic_id] == {"s": CursorState(0)}
        db.cursors.follow()
        assert known_cursors(store)[topic_id] == {"s": CursorState(5)}
        revision = store.revision()
        db.cursors.follow()
        assert store.revision() == revision
        db.cursors.drop("t", "s")
        db.cursors.follow()
        assert known_cursors(store) == {}


def test_a_deleted_topic_takes_its_cursors_along(tmp_path):
    """A new topic of the same name begins without subscriptions."""
    with with_topic(tmp_path) as db:
        db.cursors.create("t", "s", 0)
        db.cursors.follow()
        db.delete_topic("t")
        db.create_topic("t")
        assert db.cursors.load("t") == {}
        db.cursors.follow()
        assert known_cursors(db._indexer._store) == {}
    with open_quiet(tmp_path) as db:
        assert db.cursors.load("t") == {}
        assert known_cursors(db._indexer._store) == {}


def test_many_threads_and_a_loop_ack_at_once(tmp_path):
    """Every answered ack is there; futures are settled on their own loop."""
    with with_topic(tmp_path, records=1200, opened=open_small) as db:
        db.cursors.create("t", "s", 0)
        before = db.log.journal.sync_count

        def work(first):
            for offset in range(first, 400, 4):
                apply(db, [acked("s", (offset, offset + 1))]).result()

        async def loop_work():
            loop = asyncio.get_running_loop()
            return await asyncio.gather(
                *[
                    apply(db, [acked("s", (offset, offset + 10))], loop.create_future())
                    for offset in range(400, 1200, 10)
                ]
            )

        with ThreadPoolExecutor(4) as pool:
            working = pool.map(work, range(4))
            answers = asyncio.run(loop_work())
            list(working)
        assert {type(answer) for answer in answers} == {Ack}
        assert db.cursors.load("t") == {"s": CursorState(1200)}
        assert db.log.journal.sync_count - before < 480


def test_the_bound_of_ranges_is_named(tmp_path):
    """The range too many is refused through the waiter; closing a hole is not."""
    with with_topic(tmp_path, records=3 * RANGES_MAX) as db:
        db.cursors.create("t", "s", 0)
        every_other = [(2 * n, 2 * n + 1) for n in range(1, RANGES_MAX + 1)]
        apply(db, [acked("s", *every_other)]).result()
        far = 3 * RANGES_MAX - 1
        with pytest.raises(Overloaded, match="too many acked ranges"):
            apply(db, [acked("s", (far, far + 1))]).result()
        apply(db, [acked("s", (0, 2))]).result()
        apply(db, [acked("s", (far, far + 1))]).result()
        assert db.cursors.load("t")["s"].range_count == RANGES_MAX


def test_acks_go_on_while_publishing_is_stopped_until_nothing_is_left(tmp_path):
    """On a full disk acks use the ballast; when that is used up they are unavailable."""
    disk = SimulatedFileSystem()
    settings = {"ballast_bytes": 64 << 10, "prefill_bytes": 0, "free_check_s": 3600.0}
    db = with_topic("/data", file_system=disk, clock=SimulatedClock(), memory=LOG_ALONE, **settings)
    db.cursors.create("t", "s", 0)
    assert disk.stat("/data/ballast") is not None
    disk.capacity_bytes -= disk.space("/data").free_bytes
    with pytest.raises(Overloaded):
        for _ in range(100):
            db.topic("t").append(bytes(1000))
    acks = 0
    with pytest.raises(Unavailable, match="no room for the progress"):
        for acks in range(3000):
            apply(db, [attempted("s", (5, acks + 2))]).result()
    assert disk.stat("/data/ballast") is None
    assert acks > 100
    assert db.cursors.load("t")["s"].attempts == {5: acks + 1}
    disk.capacity_bytes += 10 << 20
    apply(db, [acked("s", (0, 5))]).result()
    db.close()
    with open_quiet("/data", file_system=disk, clock=SimulatedClock(), **settings) as db:
        assert db.cursors.load("t")["s"] == CursorState(5, attempts=[(5, acks + 1)])


def test_a_subscription_is_never_placed_without_its_hold():
    """Where the hold finds no room the cursor stays as it was, though it alone might find some."""
    disk = FaultyFileSystem(SimulatedFileSystem(), [])
    db = with_topic("/data", file_system=disk, clock=SimulatedClock(), memory=LOG_ALONE)
    db.cursors.create("t", "s", 5)
    for call in (lambda: db.cursors.create("t", "x", 0), lambda: db.cursors.reset("t", "s", 0)):
        fail_next_write(disk)
        with pytest.raises(Overloaded):
            call()
        assert db.cursors.load("t") == {"s": CursorState(5)}
        assert holds(db) == {HOLD: 5}
        db.upkeep.check_space()


def test_a_hold_that_a_failed_call_left_is_dropped():
    """The next round of upkeep finds a hold without a subscription."""
    disk = FaultyFileSystem(SimulatedFileSystem(), [])
    db = with_topic("/data", file_system=disk, clock=SimulatedClock(), memory=LOG_ALONE)
    for nth in (2, 3):
        fail_next_write(disk, nth)
    with pytest.raises(Unavailable):
        db.cursors.create("t", "s", 5)
    assert db.cursors.load("t") == {}
    assert holds(db) == {HOLD: 5}
    db.cursors.follow()
    assert holds(db) == {}
    db.cursors.create("t", "s", 5)
    assert holds(db) == {HOLD: 5}


# -- states --------------------------------------------------------------------------------------


def test_values_are_durable_by_tag_and_key(tmp_path):
    """Values come back after a restart, changed and removed as they were."""
    with open_quiet(tmp_path) as db:
        db.states.put(StateTag.SCHEMA, "a", b"1")
        db.states.put(StateTag.SCHEMA, "a", b"2")
        db.states.put(StateTag.SCHEMA, "b", b"")
        db.states.put(StateTag.ROLE, "a", b"3")
        db.states.put(StateTag.ROLE, "c", b"4")
        db.states.delete(StateTag.ROLE, "c")
        db.states.delete(StateTag.ROLE, "never")
        rotate(db)
    with open_quiet(tmp_path) as db:
        assert db.states.items(StateTag.SCHEMA) == {"a": b"2", "b": b""}
        assert db.states.items(StateTag.ROLE) == {"a": b"3"}
        assert db.states.items(StateTag.CLIENT) == {}


def test_what_cannot_be_a_value_is_refused(tmp_path):
    """Tags of the log itself, odd keys and large values are refused before anything is written."""
    with open_quiet(tmp_path) as db:
        lsn = db.log.journal.state.lsn
        for tag, key, value in (
            (1, "a", b""),
            (15, "a", b""),
            (1 << 31, "a", b""),
            (16, "", b""),
            (16, "x" * 1025, b""),
            (16, "\ud800", b""),
            (16, 5, b""),
            (16, "a", "text"),
            (16, "a", bytes(VALUE_BYTES_MAX + 1)),
        ):
            with pytest.raises(InvalidRequest):
                db.states.put(tag, key, value)
        assert db.log.journal.state.lsn == lsn


def test_what_was_refused_takes_no_room(tmp_path, monkeypatch):
    """Values that a full queue or a full disk refused count no more than before."""
    with open_small(tmp_path) as db:
        states, big = db.states, bytes(VALUE_BYTES_MAX)
        states.put(16, "kept", b"12")
        states.put(16, "gone", b"1")
        states.delete(16, "gone")
        states.put(16, "kept", b"123")
        with monkeypatch.context() as patch:
            patch.setattr(db.log.queue, "submit", lambda _entry: False)
            for number in range(2 * BYTES_MAX // VALUE_BYTES_MAX):
                with pytest.raises(Overloaded, match="queue"):
                    states.put(16, f"{number}", big)
            with pytest.raises(Overloaded, match="queue"):
                states.delete(16, "kept")
        refuse_all(db, monkeypatch)
        for number in range(2 * BYTES_MAX // VALUE_BYTES_MAX):
            with pytest.raises(Unavailable, match="no room"):
                states.put(16, f"{number}", big)
        with pytest.raises(Unavailable, match="no room"):
            states.put(16, "kept", big)
        with pytest.raises(Unavailable, match="no room"):
            states.delete(16, "kept")
        asyncio.run(refused_in_a_loop(states, big))
        monkeypatch.undo()
        for number in range(BYTES_MAX // VALUE_BYTES_MAX // 2):
            states.put(16, f"{number}", big)


def refuse_all(db, monkeypatch):
    """Let the journal refuse each entry when its turn comes, as on a full disk."""

    def submit(entry):
        deliver([entry[5]], [Unavailable("no room")])
        return True

    monkeypatch.setattr(db.log.queue, "submit", submit)


async def refused_in_a_loop(states, value):
    for key in ("a", "b"):
        waiter = asyncio.get_running_loop().create_future()
        states.submit(16, key, value, waiter)
        with pytest.raises(Unavailable, match="no room"):
            await waiter


def test_values_are_bounded_together(tmp_path):
    """Beyond the bound a new value is refused, a smaller one and a removal are not."""
    with open_quiet(tmp_path, segment_bytes_max=256 << 20, sync="periodic") as db:
        big = bytes(VALUE_BYTES_MAX)
        count = BYTES_MAX // VALUE_BYTES_MAX
        for number in range(count - 1):
            db.states.put(16, f"{number}", big)
        with pytest.raises(Overloaded, match="too much room"):
            db.states.put(16, "more", big)
        db.states.put(16, "0", b"small")
        db.states.delete(16, "1")
        db.states.put(16, "more", big)
