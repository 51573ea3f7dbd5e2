"""The journal's thread on a real disk: groups, a full queue, the end, failures, wake-ups."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager

import msgspec
import pytest

from frazil.clock import SystemClock
from frazil.config import Settings
from frazil.errors import Closed, Overloaded, Unavailable
from frazil.fs import RealFileSystem
from frazil.log import format as fmt
from frazil.log.codec import PLAIN, Control, PlainCodec
from frazil.log.committer import Committer, Pending
from frazil.log.journal import Journal
from frazil.log.reader import LogSource
from frazil.model import Ack, TopicSpec
from tests.crash.driven_log import codec_of, log_settings, read_topic
from tests.support.faulty_fs import Fault, FaultyFileSystem
from tests.support.log_limits import set_log_limits

WAIT_S = 20


class Broken(PlainCodec):
    """A codec with a bug."""

    def encode(self, records):
        raise MemoryError


class Blocked:
    """Keeps the journal's thread busy until `go`."""

    def __init__(self, committer):
        self._go = threading.Event()
        self._entered = threading.Event()
        self._thread = threading.Thread(target=lambda: committer.call(self._wait))
        self._thread.start()
        assert self._entered.wait(WAIT_S)

    def _wait(self):
        self._entered.set()
        assert self._go.wait(WAIT_S)

    def go(self):
        self._go.set()
        self._thread.join(WAIT_S)


def entry(topic, data, waiter, count=0):
    size = len(data) if isinstance(data, bytes) else sum(map(len, data))
    return (topic, PLAIN, data, count, size, waiter, None)


@contextmanager
def running(tmp_path, file_system=None, *, limits=None, **settings):
    """A committer over a journal with topic 1, stopped at the end."""
    set_log_limits(**(limits or {}))
    file_system = file_system or RealFileSystem()
    journal = Journal.open(
        file_system,
        str(tmp_path / "journal"),
        clock=SystemClock(),
        settings=log_settings(**settings),
        producers=Settings().producers,
    )
    committer = Committer(journal, log_settings(**settings), name="test-journal")
    committer.start()
    try:
        if 1 not in journal.state.topics:
            spec = TopicSpec(id=1, name="/default/a", kind="message", created_us=1)
            control = Control(fmt.KIND_TOPIC, 1, msgspec.msgpack.encode(spec))
            pending = Pending()
            committer.submit((None, None, control, 0, 100, pending, None))
            pending.result(WAIT_S)
        journal.state.topics[1].codec = codec_of(journal.state.topics[1])
        yield committer
    finally:
        committer.stop()


def publish(committer, data):
    pending = Pending()
    committer.submit_waiting(entry(committer.journal.state.topics[1], data, pending))
    return pending.result(WAIT_S)


def test_threads_share_syncs(tmp_path):
    """Many threads get acks with different offsets, and groups need fewer syncs than records."""
    with running(tmp_path) as committer:
        acks, lock = [], threading.Lock()

        def producer(number):
            for index in range(40):
                ack = publish(committer, b"%d/%d" % (number, index))
                with lock:
                    acks.append((ack.offset, b"%d/%d" % (number, index)))

        threads = [threading.Thread(target=producer, args=(n,)) for n in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(offset for offset, _ in acks) == list(range(480))
        content = read_topic(LogSource(committer.journal), 1)
        assert {o: r["payload"] for o, r in content.records.items()} == dict(acks)
        assert committer.journal.sync_count < 480


def test_what_waits_together_is_one_group(tmp_path):
    """Entries that wait while the thread is busy are written and synced once."""
    with running(tmp_path) as committer:
        blocked = Blocked(committer)
        syncs = committer.journal.sync_count
        topic = committer.journal.state.topics[1]
        waiting = [Pending() for _ in range(50)]
        for number, pending in enumerate(waiting):
            assert committer.submit(entry(topic, b"%d" % number, pending))
        assert committer.queued[0] == 50
        blocked.go()
        assert [pending.result(WAIT_S).offset for pending in waiting] == list(range(50))
        assert committer.journal.sync_count == syncs + 1


def test_a_full_queue_refuses(tmp_path):
    """Beyond the limits `submit` says no and waiting for room ends in Overloaded."""
    with running(tmp_path, limits={"queue_records_max": 3, "queue_wait_s": 0.05}) as committer:
        blocked = Blocked(committer)
        topic = committer.journal.state.topics[1]
        waiting = [Pending() for _ in range(3)]
        assert all(committer.submit(entry(topic, b"x", pending)) for pending in waiting)
        assert not committer.submit(entry(topic, b"x", Pending()))
        with pytest.raises(Overloaded, match="queue is full"):
            committer.submit_waiting(entry(topic, b"x", Pending()))
        blocked.go()
        assert [pending.result(WAIT_S).offset for pending in waiting] == [0, 1, 2]


def test_room_in_the_queue_lets_a_waiting_publish_in(tmp_path):
    """A publish that waits for room goes on when the thread has taken the queue."""
    with running(tmp_path, limits={"queue_records_max": 1, "queue_wait_s": WAIT_S}) as committer:
        blocked = Blocked(committer)
        topic = committer.journal.state.topics[1]
        assert committer.submit(entry(topic, b"first", Pending()))
        second, called = Pending(), threading.Event()
        committer.on_space(called.set)
        thread = threading.Thread(
            target=committer.submit_waiting, args=(entry(topic, b"second", second),)
        )
        thread.start()
        blocked.go()
        assert second.result(WAIT_S).offset == 1
        thread.join(WAIT_S)
        assert called.wait(WAIT_S)


def test_one_entry_larger_than_the_queue_is_taken(tmp_path):
    """The limit bounds what waits; a single large write is not refused for ever."""
    with running(tmp_path, queue_bytes_max=1024) as committer:
        assert publish(committer, bytes(5000)).offset == 0


def test_stop_commits_what_waits(tmp_path):
    """Everything in the queue is acked and durable when stop returns; later calls are closed."""
    with running(tmp_path) as committer:
        blocked = Blocked(committer)
        topic = committer.journal.state.topics[1]
        waiting = [Pending() for _ in range(20)]
        for pending in waiting:
            committer.submit(entry(topic, b"x", pending))
        stopper = threading.Thread(target=committer.stop)
        stopper.start()
        blocked.go()
        stopper.join(WAIT_S)
        assert [pending.result(WAIT_S).offset for pending in waiting] == list(range(20))
        with pytest.raises(Closed):
            committer.submit(entry(topic, b"late", Pending()))
        with pytest.raises(Closed):
            committer.call(int)
    with running(tmp_path) as committer:
        assert committer.journal.report.resumed
        assert publish(committer, b"next").offset == 20


def test_a_failing_sync_answers_all_waiters(tmp_path):
    """Every waiter of the group gets an unknown outcome, every later call is closed."""
    faulty = FaultyFileSystem(RealFileSystem())
    with running(tmp_path, faulty, limits={"marker_delay_s": 60.0}) as committer:
        blocked = Blocked(committer)
        topic = committer.journal.state.topics[1]
        waiting = [Pending() for _ in range(10)]
        for pending in waiting:
            committer.submit(entry(topic, b"x", pending))
        faulty.plan(Fault("sync"))
        blocked.go()
        for pending in waiting:
            with pytest.raises(Unavailable) as caught:
                pending.result(WAIT_S)
            assert caught.value.details["outcome"] == "unknown"
        with pytest.raises(Closed, match="storage failed"):
            committer.submit(entry(topic, b"late", Pending()))
    assert faulty.sync_retried == 0


def test_a_call_taken_with_a_fatal_group_is_answered(tmp_path):
    """A task that was taken together with entries that broke the thread does not hang."""
    with running(tmp_path) as committer:
        blocked, refused = Blocked(committer), threading.Event()

        def call():
            with pytest.raises(Closed):
                committer.call(int)
            refused.set()

        topic = committer.journal.state.topics[1]
        committer.submit((topic, Broken(), b"x", 0, 1, Pending(), None))
        caller = threading.Thread(target=call, daemon=True)
        caller.start()
        while not committer._tasks:
            caller.join(0.001)
        blocked.go()
        assert refused.wait(WAIT_S)


def test_a_bug_behind_a_barrier_answers_each_waiter_once(tmp_path):
    """Entries before the one that met the bug keep their acks, the others learn that theirs is unknown."""
    with running(tmp_path) as committer:
        blocked = Blocked(committer)
        topic = committer.journal.state.topics[1]
        spec = TopicSpec(id=2, name="/default/b", kind="message", created_us=1)
        control = Control(fmt.KIND_TOPIC, 2, msgspec.msgpack.encode(spec))
        waiting = [Pending() for _ in range(4)]
        committer.submit(entry(topic, b"good", waiting[0]))
        committer.submit((None, None, control, 0, 100, waiting[1], None))
        committer.submit((topic, Broken(), b"x", 0, 1, waiting[2], None))
        committer.submit(entry(topic, b"behind", waiting[3]))
        blocked.go()
        assert waiting[0].result(WAIT_S).offset == 0
        assert isinstance(waiting[1].result(WAIT_S), Ack)
        for pending in waiting[2:]:
            with pytest.raises(Unavailable, match="MemoryError") as caught:
                pending.result(WAIT_S)
            assert caught.value.details["outcome"] == "unknown"
        with pytest.raises(Closed):
            publish(committer, b"late")
        with pytest.raises(Closed):
            committer.call(int, WAIT_S)


def test_call_runs_on_the_journals_thread(tmp_path):
    """Results and errors of a call come back to its caller."""
    with running(tmp_path) as committer:
        assert committer.call(lambda: threading.current_thread().name) == "test-journal"
        with pytest.raises(ZeroDivisionError):
            committer.call(lambda: 1 // 0)
        assert publish(committer, b"x").offset == 0


def test_a_reader_at_the_end_is_woken(tmp_path):
    """A waiter registered on the topic is called when its record is durable, and only once."""
    with running(tmp_path) as committer:
        woken = threading.Event()
        topic = committer.journal.state.topics[1]
        committer.call(lambda: topic.waiters.append(woken.set))
        assert not woken.is_set()
        ack = publish(committer, b"x")
        assert woken.wait(WAIT_S)
        assert topic.durable == ack.offset + 1
        assert topic.waiters == []


def test_asyncio_futures_are_settled_on_their_loop(tmp_path):
    """Futures get their acks, a cancelled one is passed over."""

    async def publish_many(committer):
        loop = asyncio.get_running_loop()
        topic = committer.journal.state.topics[1]
        futures = [loop.create_future() for _ in range(20)]
        for number, future in enumerate(futures):
            committer.submit(entry(topic, b"%d" % number, future))
        futures[7].cancel()
        kept = [future for future in futures if not future.cancelled()]
        return await asyncio.wait_for(asyncio.gather(*kept), WAIT_S)

    with running(tmp_path) as committer:
        acks = asyncio.run(publish_many(committer))
        assert len(acks) == 19
        assert all(isinstance(ack, Ack) for ack in acks)


def test_an_idle_log_is_marked_and_rotated_by_time(tmp_path):
    """The thread wakes by itself for what is due."""
    with running(tmp_path, limits={"marker_delay_s": 0.01}) as committer:
        publish(committer, b"x")
        journal = committer.journal
        deadline = time.monotonic() + WAIT_S
        while journal.marked_lsn != journal.synced_lsn:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_late_answer_is_unknown():
    """Waiting with a limit ends in an unknown outcome; of several answers the first one counts."""
    pending = Pending()
    with pytest.raises(Unavailable) as caught:
        pending.result(0.01)
    assert caught.value.details["outcome"] == "unknown"
    pending.settle(None)
    pending.settle(2)
    assert pending.result() is None
