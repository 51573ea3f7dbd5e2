"""When a loop asks again before it sleeps: by how long the last waits took, and who ended them."""

from __future__ import annotations

import asyncio
import selectors
import socket
import threading

import pytest

from frazil.serve.grpc.router import Router, Unary
from frazil.serve.grpc.server import Server
from frazil.serve.h2 import frames as f
from frazil.serve.waiting import (
    CREDIT_MAX,
    MISS_COST,
    Patience,
    PollingLoop,
    PollingSelector,
)
from tests.unit.serve.h2.peer import Peer, prefixed

POLL_S = 0.001
SHORT, LONG = POLL_S / 2, POLL_S * 2


class Ticks:
    """A clock that goes on by a step each time it is read, and does something at a reading."""

    def __init__(self, step_s, *, at=0, act=None):
        self.readings = 0
        self._step_s = step_s
        self._at = at
        self._act = act

    def monotonic(self):
        self.readings += 1
        if self.readings == self._at:
            self._act()
        return self.readings * self._step_s

    def now_us(self):
        return 0

    def random_bytes(self, size):
        return bytes(size)


def eager():
    """Return a patience that has seen short waits only."""
    patience = Patience(POLL_S)
    for _ in range(CREDIT_MAX):
        patience.note(SHORT, from_client=True)
    assert patience.is_worth_it
    return patience


def test_at_first_nothing_is_worth_it():
    """Waits must have been short several times before it is asked again."""
    patience = Patience(POLL_S)
    seen = []
    for _ in range(MISS_COST + 1):
        seen.append(patience.is_worth_it)
        patience.note(SHORT, from_client=True)
    assert seen == [False] * MISS_COST + [True]


@pytest.mark.parametrize(("waited_s", "from_client"), [(LONG, True), (SHORT, False), (LONG, False)])
def test_waits_that_do_not_pay_end_it(waited_s, from_client):
    """Long waits, and those that a thread of the process ends, soon have the loop sleep at once."""
    patience = eager()
    misses = 0
    while patience.is_worth_it:
        patience.note(waited_s, from_client=from_client)
        misses += 1
    assert misses == CREDIT_MAX // MISS_COST


def test_calls_that_wait_for_a_thread_are_never_polled_for():
    """A client whose every call is answered by another thread has short and told waits in turn."""
    patience = Patience(POLL_S)
    for _ in range(100):
        patience.note(SHORT, from_client=True)
        assert not patience.is_worth_it
        patience.note(SHORT, from_client=False)


@pytest.mark.parametrize("is_eager", [True, False])
def test_the_kernel_is_asked_again_only_where_it_pays(is_eager):
    """What comes while it is asked is found; who sleeps does not look at the clock meanwhile."""
    ours, theirs = socket.socketpair()
    clock = Ticks(POLL_S / 10, at=4, act=lambda: theirs.send(b"x"))
    patience = eager() if is_eager else Patience(POLL_S)
    with ours, theirs, PollingSelector(patience, clock) as selector:
        selector.register(ours, selectors.EVENT_READ)
        found = selector.select(0.02)
        assert len(found) == is_eager
        assert patience.is_worth_it is is_eager


def test_asking_ends_at_its_time():
    """With nothing to find it is asked for `poll_s`, then it sleeps; the whole is one long wait."""
    patience = eager()
    clock = Ticks(POLL_S / 10)
    with PollingSelector(patience, clock) as selector:
        assert selector.select(POLL_S * 1.5) == []
        # One reading before, one behind each of ten questions, one behind the sleep.
        assert clock.readings == 12
        for _ in range(CREDIT_MAX // MISS_COST - 1):
            assert selector.select(POLL_S * 1.5) == []
        assert not patience.is_worth_it


def test_calls_that_come_together_are_not_polled_for():
    """Who has many calls under way has threads of its own to run; it must show one at a time anew."""
    patience = eager()
    patience.crowd()
    assert not patience.is_worth_it
    for _ in range(MISS_COST):
        patience.note(SHORT, from_client=True)
    assert patience.is_worth_it


@pytest.mark.parametrize(("together", "is_worth_it"), [(1, True), (3, False)])
def test_a_server_tells_its_loop_what_came_together(together, is_worth_it):
    """Several calls in one piece end the loop's polling, one alone does not."""
    with asyncio.Runner(loop_factory=lambda: PollingLoop(POLL_S)) as runner:
        patience = runner.get_loop()._polling.patience

        async def scene():
            server = Server(Router({"/t.T/Echo": Unary(lambda call, message: call.ok(message))}))
            _, port = await server.start("127.0.0.1", 0)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            peer = Peer()
            writer.write(f.PREFACE + f.frame(f.SETTINGS, 0, 0))
            await reader.readexactly(9)
            whole = b"".join(
                peer.headers(sid) + f.frame(f.DATA, f.END_STREAM, sid, prefixed(b"x"))
                for sid in range(1, 2 * together, 2)
            )
            for _ in range(CREDIT_MAX):
                patience.note(SHORT, from_client=True)
            writer.write(whole)
            while server.counters.calls_total < together:
                await reader.read(1000)
            found = patience.is_worth_it
            writer.close()
            await server.drain(0.1)
            return found

        assert runner.run(scene()) is is_worth_it


def test_what_is_due_at_once_is_not_waited_for():
    """A turn with something to do asks once and is no wait at all."""
    clock = Ticks(POLL_S)
    with PollingSelector(eager(), clock) as selector:
        assert selector.select(0) == []
    assert clock.readings == 0


def test_a_loop_knows_what_its_own_threads_tell_it():
    """A wait that `call_soon_threadsafe` ends counts as none of a client's."""
    with asyncio.Runner(loop_factory=lambda: PollingLoop(10.0)) as runner:
        loop = runner.get_loop()
        patience = loop._polling.patience
        for _ in range(CREDIT_MAX):
            patience.note(0.0, from_client=True)

        async def hear_from_threads():
            for _ in range(CREDIT_MAX):
                told = asyncio.Event()
                # Late enough for the loop to wait for it.
                timer = threading.Timer(0.005, loop.call_soon_threadsafe, (told.set,))
                timer.start()
                await told.wait()
                timer.join()

        runner.run(hear_from_threads())
        assert not patience.is_worth_it
