"""What a change builds on while others are on their way: repeats, refusals, whole batches."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from frazil.clock import SystemClock
from frazil.config import load_settings
from frazil.engine import Engine
from frazil.errors import Overloaded
from frazil.fs import RealFileSystem
from tests.integration.engine.opening import wait_until
from tests.support.log_limits import set_log_limits

ROW = {"k": "int64", "a": "int64", "b": "int64"}


class HeldFile:
    def __init__(self, file, gate, path):
        self._file = file
        self._gate = gate
        self._held = "/journal" in path

    def sync(self):
        if self._held:
            self._gate.wait()
        self._file.sync()

    def __getattr__(self, name):
        return getattr(self._file, name)


class Gate(RealFileSystem):
    """Syncs of the journal wait here while the gate is shut."""

    def __init__(self):
        self.shut = False
        self._arrived = threading.Semaphore(0)
        self._pass = threading.Semaphore(0)

    def open(self, path, mode):
        return HeldFile(super().open(path, mode), self, path)

    def wait(self):
        if self.shut:
            self._arrived.release()
            self._pass.acquire()

    def arrived(self):
        assert self._arrived.acquire(timeout=20)

    def let_one_pass(self):
        self._pass.release()

    def open_up(self):
        self.shut = False
        self._pass.release()


class Calls:
    """Calls in threads of their own, begun one behind another."""

    def __init__(self, queue):
        self._queue = queue
        self._pool = ThreadPoolExecutor()
        self.answers = {}

    def begin(self, name, call, *, waits):
        self.answers[name] = self._pool.submit(call)
        wait_until(lambda: self._queue.queued[0] >= waits, "the call did not come to the queue")

    def end(self):
        for each in self.answers.values():
            each.result(20)
        self._pool.shutdown()


@pytest.fixture
def gate():
    return Gate()


@pytest.fixture
def db(tmp_path, gate):
    set_log_limits(queue_records_max=4, queue_wait_s=0.2, marker_delay_s=60.0)
    overrides = {
        "data_dir": str(tmp_path / "d"),
    }
    engine = Engine(load_settings(overrides=overrides), file_system=gate, clock=SystemClock())
    yield engine
    gate.open_up()
    engine.close()


@pytest.mark.parametrize("kind", ["row", "batch"])
def test_a_repeat_that_is_refused_early_hides_no_change_before_it(db, gate, kind):
    """An update that comes while a group is synced builds on the update in it, not behind it."""
    topic = db.create_topic("t", ROW, primary_key="k")
    topic.upsert(k=1, a=0, b=0)
    batch = pa.table({"k": [5], "a": [0], "b": [0]})

    def send():
        if kind == "row":
            return topic.append({"k": 1, "a": 0, "b": 0}, producer="p", sequence=0)
        return topic.append_arrow(batch, producer="p", sequence=0)

    first = send()
    if kind == "row":
        topic.upsert(k=1, a=0, b=0)
    calls = Calls(db.log.queue)
    gate.shut = True
    calls.begin("filler", lambda: topic.upsert(k=99, a=0, b=0), waits=0)
    gate.arrived()
    calls.begin("one", lambda: topic.update(1, {"a": 7}), waits=1)
    calls.begin("repeat", send, waits=2)
    gate.let_one_pass()
    gate.arrived()
    calls.begin("two", lambda: topic.update(1, {"b": 5}), waits=1)
    gate.open_up()
    calls.end()
    assert calls.answers["repeat"].result() == first
    assert topic.get(1) == {"k": 1, "a": 7, "b": 5}


def test_a_batch_that_found_no_room_is_forgotten(db, gate):
    """Updates go on after a batch was refused because the queue was full."""
    topic = db.create_topic("t", ROW, primary_key="k")
    topic.append_arrow(pa.table({"k": [1], "a": [0], "b": [0]}))
    calls = Calls(db.log.queue)
    gate.shut = True
    calls.begin("filler", lambda: topic.upsert(k=50, a=0, b=0), waits=0)
    gate.arrived()
    calls.begin("waiting", lambda: topic.update(50, {"a": 8}), waits=1)
    with pytest.raises(Overloaded):
        topic.append_arrow(pa.table({"k": [6, 7, 8, 9], "a": [1] * 4, "b": [1] * 4}))
    gate.open_up()
    calls.end()
    topic.update(1, {"a": 3})
    topic.update(50, {"b": 4})
    assert topic.get(1) == {"k": 1, "a": 3, "b": 0}
    assert topic.get(50) == {"k": 50, "a": 8, "b": 4}
    assert topic.get(6) is None


def test_a_row_of_nanoseconds_moves_in_one_entry(db):
    """The delete of the old key and the insert of the new one are one frame."""
    columns = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("ns", "UTC"))])
    topic = db.create_topic("t", columns, primary_key="k")
    times = pa.array([1_234_567_891], pa.timestamp("ns", "UTC"))
    topic.append_arrow(pa.table({"k": pa.array([1], pa.int64()), "ts": times}))
    ack = topic.update(1, {"k": 2})
    assert (ack.offset, ack.offset_last) == (1, 2)
    [batch] = list(topic.read(1))
    assert batch.data.column("k").to_pylist() == [1, 2]
    assert batch.data.column("ts").cast(pa.int64()).to_pylist() == [None, 1_234_567_891]
    assert topic.get(1) is None


def test_written_changes_are_not_kept_for_long(db):
    """What the sequencer remembers of large rows is bounded in bytes."""
    topic = db.create_topic("t", {"k": "int64", "text": "string"}, primary_key="k")
    for number in range(40):
        topic.upsert(k=number, text="x" * 500_000)
    newest = topic.runtime.queue._newest
    assert sum(len(change.packed) for change in newest.values()) < 6_000_000


def test_appended_rows_count_as_no_change_and_explicit_ones_do(db):
    """Upserts through `upsert` are changes for the signal; rows through `append` are not."""
    topic = db.create_topic("t", ROW, primary_key="k")
    for number in range(3):
        topic.append(k=number, a=0, b=0)
    memory = topic.runtime.tiers.memory
    assert memory.unflushed(0).changes == 0
    for number in range(3):
        topic.upsert(k=number, a=1, b=0)
    assert memory.unflushed(0).changes == 3
