"""Publishers that wait for the end of red: threads, tasks, and the process itself."""

from __future__ import annotations

import asyncio
import threading

import pytest

from frazil.clock import SystemClock
from frazil.config import MemorySettings
from frazil.errors import Overloaded
from frazil.tiers.pressure import Pressure, release_unused, rss_bytes
from tests.unit.tiers.pressure_world import BUDGET, POINT, SOON_S, World


@pytest.fixture
def world():
    return World()


# -- threads and loops ---------------------------------------------------------------------------


def real(percent, **settings):
    """Return a pressure in real time, and a function that sets its use."""
    batches = [0]
    options = {"budget_bytes": BUDGET, **settings}
    pressure = Pressure(MemorySettings(**options), SystemClock(), rss=lambda: 0)
    pressure.add_source("batches", lambda: batches[0])

    def fill(points):
        batches[0] = round(points * POINT)
        pressure.refresh()

    fill(percent)
    return pressure, fill


def until(condition):
    """Wait until a condition holds."""
    pause = threading.Event()
    for _turn in range(int(SOON_S * 1000)):
        if condition():
            return
        pause.wait(0.001)
    pytest.fail("it did not happen in time")


def test_all_waiting_threads_go_on_at_the_end_of_red():
    """Eight publishers wait in real threads; freeing memory lets all of them through."""
    pressure, fill = real(85, wait_s=60.0)
    done = []

    def publish():
        pressure.admit()
        done.append(1)

    threads = [threading.Thread(target=publish) for _each in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: pressure.snapshot().waiting == 8)
    assert not done
    fill(10)
    for thread in threads:
        thread.join(SOON_S)
    assert len(done) == 8
    assert pressure.snapshot().waiting == 0


def test_tasks_wait_in_red_without_holding_up_their_loop():
    """Tasks wait while the loop runs on, and the end of red, seen by a thread, lets all of them go on."""
    pressure, fill = real(85, wait_s=60.0)

    async def run():
        tasks = [asyncio.create_task(pressure.admit_async()) for _each in range(20)]
        await asyncio.sleep(0)  # Each task runs until it waits.
        assert pressure.snapshot().waiting == 20
        await asyncio.to_thread(fill, 10)
        await asyncio.wait_for(asyncio.gather(*tasks), SOON_S)

    asyncio.run(run())
    found = pressure.snapshot()
    assert (found.waiting, found.waits, found.refusals) == (0, 20, 0)


def test_a_task_is_refused_at_its_deadline():
    """The refusal of a task is that of a thread, and none counts as waiting afterwards."""
    pressure, _fill = real(85, wait_s=0.02)

    async def run():
        with pytest.raises(Overloaded, match="memory is nearly full"):
            await pressure.admit_async()

    asyncio.run(run())
    found = pressure.snapshot()
    assert (found.waiting, found.waits, found.refusals) == (0, 1, 1)


def test_a_cancelled_task_no_longer_waits():
    """A publish whose task was cancelled while it waited does not count any more."""
    pressure, _fill = real(85, wait_s=60.0)

    async def run():
        task = asyncio.create_task(pressure.admit_async())
        await asyncio.sleep(0)  # The task runs until it waits.
        assert pressure.snapshot().waiting == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert pressure.snapshot().waiting == 0


# -- the operating system ------------------------------------------------------------------------


def test_the_resident_size_is_that_of_this_process():
    """Memory that is written to is seen, as the kernel's own report has it."""
    before = rss_bytes()
    block = bytearray(b"x" * (64 << 20))
    after = rss_bytes()
    assert before > 1 << 20
    assert (48 << 20) < after - before < (160 << 20)
    assert len(block) == 64 << 20


def test_unused_memory_is_given_back():
    """What was freed in small pieces is no longer resident afterwards."""
    pieces = [b"x" * 60_000 for _each in range(2000)]
    last = b"x" * 60_000
    full = rss_bytes()
    del pieces
    release_unused()
    assert full - rss_bytes() > 60 << 20
    assert len(last) == 60_000
