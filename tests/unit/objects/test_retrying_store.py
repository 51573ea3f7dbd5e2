"""Retries of a store: pauses, deadline, budget and bound, in virtual time."""

from __future__ import annotations

import threading

import pytest

from frazil.errors import Closed, Conflict, NotFound, Unavailable
from frazil.objects import store as module
from frazil.objects.store import RETRY_BUDGET_MAX, RETRY_RATIO, RetryingStore
from tests.support import SimulatedClock
from tests.support.simulated_store import STORM_S, SimulatedStore


def make(seed=0, *, timeout_s=120.0):
    clock = SimulatedClock(seed)
    store = SimulatedStore(clock, seed=seed)
    pauses = []

    def sleep(seconds):
        pauses.append(seconds)
        clock.advance(seconds)

    patient = RetryingStore(store, timeout_s=timeout_s, clock=clock, sleep=sleep)
    return patient, store, clock, pauses


def test_a_storm_is_outlasted():
    """A put during five seconds of refusals arrives, once."""
    patient, store, clock, pauses = make()
    store.fail("put", "throttled")
    before = clock.monotonic()
    assert patient.put("k", b"data").size == 4
    assert clock.monotonic() - before >= STORM_S
    assert store.written == [("k", 4)]
    assert patient.retries == len(pauses) > 0


def test_pauses_are_random_up_to_a_length_that_doubles(monkeypatch):
    """Each pause is below its limit, the limits double up to the longest, and chance differs."""
    monkeypatch.setattr(module, "RETRY_DELAY_S", 1)
    monkeypatch.setattr(module, "RETRY_DELAY_MAX_S", 8)
    longest, shortest = {}, {}
    for seed in range(60):
        patient, store, _, pauses = make(seed, timeout_s=600)
        for nth in range(1, 9):
            store.fail("get", "short", nth=nth)
        store.plant("k", b"0123")
        assert patient.get("k", start=0, length=4) == b"0123"
        for n, pause in enumerate(pauses):
            assert 0 <= pause <= min(8, 2**n)
            longest[n] = max(longest.get(n, 0), pause)
            shortest[n] = min(shortest.get(n, 8), pause)
    assert all(longest[n] > 0.7 * min(8, 2**n) for n in range(8))
    assert all(shortest[n] < 0.3 * min(8, 2**n) for n in range(8))


def test_the_pause_that_the_store_asks_for_is_the_least():
    """A store that asks for a second gets a second and more."""
    patient, store, _, pauses = make()
    store.fail("head", "throttled")
    assert patient.head("k") is None
    assert all(pause >= 1 for pause in pauses)


def test_the_deadline_holds_for_all_tries():
    """No pause is begun that ends behind it; the error tells how often it was tried."""
    patient, store, clock, _ = make(timeout_s=60)
    store.rates = {"short": 1.0}
    store.plant("k", b"0123")
    before = clock.monotonic()
    with pytest.raises(Unavailable) as caught:
        patient.get("k", start=0, length=4)
    assert clock.monotonic() - before <= 60
    assert caught.value.details["tries"] > 3


def test_a_store_that_is_down_is_not_flooded():
    """Beyond a saved-up few, further tries are a fifth of the calls; success fills them again."""
    patient, store, _, _ = make(timeout_s=86_400)
    store.rates = {"stall": 1.0}
    for _ in range(200):
        with pytest.raises(Unavailable):
            patient.head("k")
    assert patient.retries <= RETRY_BUDGET_MAX + RETRY_RATIO * 200
    assert store.calls["head"] == 200 + patient.retries
    store.heal()
    assert patient.head("k") is None


def test_the_bound_bounds_calls_under_way():
    """Of ten callers two are let through at a time, and all get their answer."""
    gate = threading.Semaphore(0)
    mutex = threading.Lock()
    seen = {"now": 0, "most": 0}

    class Slow(SimulatedStore):
        def head(self, key):
            with mutex:
                seen["now"] += 1
                seen["most"] = max(seen["most"], seen["now"])
            gate.acquire()
            with mutex:
                seen["now"] -= 1

    patient = RetryingStore(Slow(SimulatedClock()), timeout_s=120, requests_max=2)
    threads = [threading.Thread(target=patient.head, args=("k",)) for _ in range(10)]
    for thread in threads:
        thread.start()
    for _ in threads:
        gate.release()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert seen == {"now": 0, "most": 2}


@pytest.mark.parametrize("error", ["missing", "exists"])
def test_answers_are_not_tried_again(error):
    """Not found and exists are answers, not trouble."""
    patient, store, _, pauses = make()
    store.plant("k", b"x")
    with pytest.raises(NotFound if error == "missing" else Conflict):
        if error == "missing":
            patient.get("none", start=0, length=1)
        else:
            patient.put("k", b"y")
    assert pauses == []


def test_a_put_whose_answer_was_lost_ends_in_a_conflict():
    """The second try finds the first one's object: whose it is, the caller looks."""
    patient, store, _, _ = make()
    store.fail("put", "lost_answer")
    with pytest.raises(Conflict):
        patient.put("k", b"mine")
    assert store.written == [("k", 4)]


def test_an_unknown_outcome_is_not_forgotten():
    """After a write that may have happened, a refusal of the last try says so still."""
    patient, store, _, _ = make(timeout_s=3)
    store.fail("put", "partial")
    store.fail("put", "throttled", nth=2)
    with pytest.raises(Unavailable) as caught:
        patient.put("k", b"mine")
    assert caught.value.details["outcome"] == "unknown"
    assert caught.value.details["status"] == 503


def test_a_stream_is_not_repeated():
    """Pieces are sent once, and never in part."""
    patient, store, _, _ = make()
    store.fail("put_stream", "partial")
    with pytest.raises(Unavailable):
        patient.put_stream("k", [b"ab", b"cd"])
    assert store.objects == {}


def test_closing_ends_a_pause(monkeypatch):
    """A call in a pause raises Closed at once, and so do later calls."""
    monkeypatch.setattr(module, "RETRY_DELAY_S", 60)
    monkeypatch.setattr(module, "RETRY_DELAY_MAX_S", 3_600)
    store = SimulatedStore(SimulatedClock(), rates={"stall": 1.0})
    patient = RetryingStore(store, timeout_s=86_400)
    caught = []

    def ask():
        try:
            patient.head("k")
        except Closed as error:
            caught.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    while not store.calls["head"]:
        thread.join(0.01)
    patient.close()
    thread.join(60)
    assert not thread.is_alive()
    assert len(caught) == 1
    with pytest.raises(Closed):
        patient.head("k")
