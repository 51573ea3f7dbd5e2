"""The journal's thread: what waits is answered, whatever happens to the thread."""

from __future__ import annotations

import threading

import pytest

from frazil.config import ProducerSettings
from frazil.config.sections import LogSettings
from frazil.errors import Closed, Overloaded, Unavailable
from frazil.log import PLAIN, Committer, Journal, Pending
from tests.support import SimulatedClock, SimulatedFileSystem
from tests.support.log_limits import set_log_limits


@pytest.fixture
def committer():
    """A committer with its thread on a simulated disk."""
    settings = LogSettings()
    set_log_limits(queue_records_max=3, queue_wait_s=0.05)
    journal = Journal.open(
        SimulatedFileSystem(),
        "/journal",
        clock=SimulatedClock(),
        settings=settings,
        producers=ProducerSettings(),
    )
    found = Committer(journal, settings, name="test")
    found.start()
    yield found
    found.stop()


def test_a_call_runs_on_the_journals_thread(committer):
    """`call` returns the function's result, or raises its error, from the thread."""
    assert committer.call(lambda: threading.current_thread().name) == "test"
    with pytest.raises(ZeroDivisionError):
        committer.call(lambda: 1 // 0)
    assert committer.call(lambda: 5) == 5


def test_a_bug_in_the_thread_answers_everybody(committer, monkeypatch):
    """After an unexpected error the taken entries' outcome is unknown; later calls are closed."""

    def broken(entries, deliver):
        raise RuntimeError("a bug")

    monkeypatch.setattr(committer.journal, "commit", broken)
    pending = Pending()
    committer.submit((None, PLAIN, b"x", 0, 1, pending, None))
    with pytest.raises(Unavailable, match="a bug"):
        pending.result(5)
    with pytest.raises(Closed, match="a bug"):
        committer.submit((None, PLAIN, b"x", 0, 1, Pending(), None))
    committer._thread.join(5)
    with pytest.raises(Closed, match="a bug"):
        committer.call(lambda: 5, timeout_s=5)


def test_a_call_taken_with_a_fatal_group_is_answered(committer, monkeypatch):
    """A task that was taken together with entries that broke the thread does not hang."""
    gate = threading.Event()
    started = threading.Event()
    errors = []

    def broken(entries, deliver):
        raise RuntimeError("a bug")

    def hold_up():
        started.set()
        gate.wait(5)

    def call(function):
        try:
            committer.call(function)
        except Closed as error:
            errors.append(error)

    first = threading.Thread(target=call, args=(hold_up,))
    first.start()
    started.wait(5)
    monkeypatch.setattr(committer.journal, "commit", broken)
    committer.submit((None, PLAIN, b"x", 0, 1, Pending(), None))
    second = threading.Thread(target=call, args=(lambda: 5,), daemon=True)
    second.start()
    while not committer._tasks:
        pass
    gate.set()
    second.join(5)
    first.join(5)
    assert not second.is_alive()
    assert len(errors) == 1


def test_a_full_queue_refuses_after_its_wait(committer):
    """What does not fit waits as long as the settings say, then is refused."""
    gate = threading.Event()
    started = threading.Event()

    def hold_up():
        started.set()
        gate.wait(5)

    caller = threading.Thread(target=committer.call, args=(hold_up,))
    caller.start()
    started.wait(5)
    for _ in range(3):
        assert committer.submit((None, PLAIN, b"x", 0, 1, Pending(), None))
    assert not committer.submit((None, PLAIN, b"x", 0, 1, Pending(), None))
    with pytest.raises(Overloaded, match="queue is full"):
        committer.submit_waiting((None, PLAIN, b"x", 0, 1, Pending(), None))
    assert committer.queued == (3, 3)
    committer.journal.commit = lambda entries, deliver: None
    gate.set()
    caller.join(5)


def test_an_answer_that_does_not_come_is_unknown():
    """A wait with a time limit ends with an unknown outcome; only the first answer counts."""
    pending = Pending()
    with pytest.raises(Unavailable) as caught:
        pending.result(0.01)
    assert caught.value.details["outcome"] == "unknown"
    pending.settle(None)
    pending.settle(2)
    assert pending.result() is None
    assert pending.result() is None
