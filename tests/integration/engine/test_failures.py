"""When storage fails: a failed sync, a full disk, a second process, a clock that jumps."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import frazil
from frazil.errors import Closed, Conflict, Overloaded, Unavailable
from frazil.fs import RealFileSystem
from tests.integration.engine.opening import (
    open_small,
    payloads_of,
    rotate,
    rows_of,
    small_settings,
    wait_until,
)
from tests.support import Fault, FaultyFileSystem, SimulatedClock, SimulatedFileSystem


class FailsWhenTold(FaultyFileSystem):
    """Real files whose syncs of segments fail from the moment that a test says."""

    def __init__(self):
        super().__init__(RealFileSystem())
        self.broken = False

    def enter(self, verb, path, *more):
        if self.broken and verb == "sync" and "/journal/" in path:
            raise OSError(errno.EIO, "Input/output error (injected)", path)
        return super().enter(verb, path, *more)


def test_a_failed_sync_is_unknown_then_closed_then_recovered(tmp_path):
    """Waiters get an unknown outcome, later calls `Closed` with the cause; a restart has all."""
    files = FailsWhenTold()
    db = open_small(tmp_path, file_system=files)
    topic = db.create_topic("t")
    acked = [topic.append(b"%d" % number).offset for number in range(5)]
    files.broken = True
    with pytest.raises(Unavailable) as caught:
        topic.append(b"doubt")
    assert caught.value.details["outcome"] == "unknown"
    for call in (
        lambda: topic.append(b"late"),
        lambda: topic.append_many([b"late"]),
        lambda: topic.hold("h", 0),
        lambda: db.create_topic("u"),
    ):
        with pytest.raises(Closed, match="Input/output error"):
            call()
    assert payloads_of(topic, limit=5) == [b"%d" % number for number in acked]
    assert db.stats()["health"] == "failed"
    db.close()
    assert files.sync_retried == 0
    with open_small(tmp_path) as db:
        stored = payloads_of(db.topic("t"))
        assert stored in ([b"0", b"1", b"2", b"3", b"4"], [b"0", b"1", b"2", b"3", b"4", b"doubt"])
        assert db.stats()["health"] == "ok"
        assert db.topic("t").append(b"next").offset == len(stored)


def test_all_waiters_of_a_failed_sync_are_answered(tmp_path):
    """Threads and tasks that wait when the sync fails all get an error, none hangs."""
    files = FailsWhenTold()
    db = open_small(tmp_path, file_system=files)
    topic = db.create_topic("t")

    def publish():
        while True:
            topic.append(b"x")

    async def publish_async():
        wrapped = frazil.AsyncEngine(db).topic("t")

        async def one():
            while True:
                await wrapped.append(b"y")

        return await asyncio.gather(*(one() for _ in range(8)), return_exceptions=True)

    with ThreadPoolExecutor(6) as pool:
        waiting = [pool.submit(publish) for _ in range(4)]
        waiting.append(pool.submit(list, topic.tail()))
        tasks = pool.submit(lambda: asyncio.run(publish_async()))
        threading.Event().wait(0.1)
        files.broken = True
        errors = [*(each.exception(60) for each in waiting), *tasks.result(60)]
    assert len(errors) == 4 + 1 + 8
    assert all(isinstance(error, Unavailable | Closed) for error in errors)
    db.close()


@pytest.mark.parametrize("verb", ["open", "lock", "make_directory", "list_directory", "read_at"])
def test_a_directory_that_cannot_be_opened_is_an_error_of_ours(tmp_path, verb):
    """Whatever the disk refuses while opening is a `FrazilError`, and the next opening works."""
    with open_small(tmp_path / "d") as db:
        db.append("t", b"x")
    files = FaultyFileSystem(RealFileSystem(), [Fault(verb, persistent=True)])
    with pytest.raises(frazil.FrazilError):
        open_small(tmp_path / ("e" if verb == "make_directory" else "d"), file_system=files)
    with open_small(tmp_path / "d") as db:
        assert payloads_of(db.topic("t")) == [b"x"]


def test_a_full_disk_refuses_and_goes_on_by_itself(tmp_path):
    """A write that meets a full disk is undone and refused; with room it works again."""
    disk = SimulatedFileSystem(capacity_bytes=1 << 20)
    with open_small("/data", file_system=disk, prefill_bytes=0, free_check_s=0.02) as db:
        topic = db.create_topic("t")
        stored = 0
        with pytest.raises(Overloaded, match="full"):
            for _ in range(100):
                topic.append(b"x" * 50_000)
                stored += 1
        assert stored > 3
        disk.capacity_bytes = 2 << 20
        wait_until(lambda: not db.stats()["disk"]["publishing_stopped"])
        assert topic.append(b"y").offset == stored
        assert len(payloads_of(topic)) == stored + 1
    with open_small("/data", file_system=disk) as db:
        assert len(payloads_of(db.topic("t"))) == stored + 1


def test_publishing_stops_before_the_disk_is_full_and_resumes(tmp_path):
    """Below the mark publishes are refused, reads and holds work; above it they go on alone."""
    disk = SimulatedFileSystem(capacity_bytes=10 << 20)
    options = {"free_bytes_min": 2 << 20, "ballast_bytes": 1 << 20, "free_check_s": 0.02}
    with open_small("/data", file_system=disk, **options) as db:
        topic = db.create_topic("t")
        topic.append(b"x" * 1000)
        assert "/data/ballast" in disk.paths()
        disk.capacity_bytes = 3 << 20
        wait_until(lambda: db.stats()["disk"]["publishing_stopped"])
        for call in (
            lambda: topic.append(b"y"),
            lambda: topic.append_many([b"y"]),
            lambda: db.append("t", b"y"),
            lambda: db.create_topic("u", exist_ok=True).append(b"y"),
        ):
            with pytest.raises(Overloaded, match="nearly full") as caught:
                call()
            assert caught.value.details["retry_after_ms"] > 0
        assert db.stats()["health"] == "degraded"
        assert len(payloads_of(topic)) == 1
        topic.hold("h", 0)
        disk.capacity_bytes = 1_500_000
        wait_until(lambda: "/data/ballast" not in disk.paths())
        disk.capacity_bytes = 10 << 20
        wait_until(lambda: not db.stats()["disk"]["publishing_stopped"])
        assert topic.append(b"z").offset == 1
        wait_until(lambda: "/data/ballast" in disk.paths())
        assert db.stats()["health"] == "ok"


def test_times_never_go_backwards(tmp_path):
    """When the clock jumps back, append times stand still; offsets order the log."""
    clock = SimulatedClock()
    disk = SimulatedFileSystem()
    with open_small("/data", file_system=disk, clock=clock) as db:
        topic = db.create_topic("t")
        for jump in (0, 3600, -7200, 100, -50, 86_400):
            clock.jump(jump)
            topic.append(b"x")
        times = [record["_time"] for record in rows_of(topic)]
        assert times == sorted(times)
    clock.jump(-1_000_000)
    with open_small("/data", file_system=disk, clock=clock) as db:
        db.topic("t").append(b"y")
        times = [record["_time"] for record in rows_of(db.topic("t"))]
        assert times == sorted(times)


def test_another_process_is_refused_with_our_pid(tmp_path):
    """A second process gets a conflict that names the first one's pid and host."""
    import os

    code = (
        "import sys, frazil\n"
        "try:\n    frazil.open(sys.argv[1])\n"
        "except frazil.errors.Conflict as error:\n    print(error)\n"
    )
    with open_small(tmp_path):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            timeout=60,
        )
    assert f"pid={os.getpid()}" in done.stdout
    with pytest.raises(Conflict), open_small(tmp_path):
        open_small(tmp_path)


def test_metadata_that_cannot_be_written_does_not_stop_publishing(tmp_path):
    """The log is the truth: with a failing index publishes go on and the next start rebuilds it."""

    class IndexFails(FailsWhenTold):
        def enter(self, verb, path, *more):
            if self.broken and verb == "write_at" and "meta.db" in path:
                raise OSError(errno.EIO, "injected", path)
            return FaultyFileSystem.enter(self, verb, path, *more)

    files = IndexFails()
    with open_small(tmp_path, file_system=files) as db:
        db.create_topic("a").append(b"1")
        files.broken = True
        topic = db.create_topic("b", {"n": "long"})
        topic.append(n=1)
        db.alter_topic("b", add={"x": "int"})
        topic.append(n=2, x=3)
        rotate(db)
        assert db.stats()["health"] == "degraded"
        assert db.metadata_failed
    with open_small(tmp_path) as db:
        assert db.topics() == ["/default/a", "/default/b"]
        assert [row["x"] for row in rows_of(db.topic("b"))] == [None, 3]
        assert db.stats()["health"] == "ok"


def test_metadata_that_is_missing_or_garbage_is_rebuilt(tmp_path):
    """Without its metadata, or with garbage in its place, the engine has everything."""
    with open_small(tmp_path) as db:
        db.create_topic("a").append(b"1")
        db.create_topic("p", {"id": "long"}, primary_key="id", partitions=2).append(id=1)
        db.topic("a").hold("h", 0)
        before = {name: db.describe(name) for name in db.topics()}
    for damage in (None, b"", b"garbage" * 1000):
        for path in tmp_path.glob("meta.db*"):
            path.unlink()
        if damage is not None:
            (tmp_path / "meta.db").write_bytes(damage)
        with open_small(tmp_path) as db:
            assert {name: db.describe(name) for name in db.topics()} == before
            if damage:
                assert any("metadata was damaged" in text for text in db.warnings)
                assert list((tmp_path / "quarantine").glob("meta.db*"))


def test_settings_may_keep_metadata_in_memory(tmp_path):
    """With the memory backend nothing is written beside the log, and all is rebuilt from it."""
    settings = small_settings(tmp_path).model_copy(
        update={"metadata": frazil.Settings().metadata.model_copy(update={"backend": "memory"})}
    )
    with frazil.open(settings) as db:
        db.create_topic("a").append(b"1")
    assert not list(tmp_path.glob("meta.db*"))
    with frazil.open(settings) as db:
        assert payloads_of(db.topic("a")) == [b"1"]
