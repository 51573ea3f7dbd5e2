"""What is counted of a metadata store's calls."""

from __future__ import annotations

import pytest

from frazil.errors import Closed, Conflict
from frazil.metadata import Compare, CountedStore, MemoryStore, Transaction
from tests.support import SimulatedClock


class SlowStore(MemoryStore):
    """A store whose commits take three seconds of the clock that measures."""

    measuring = SimulatedClock(step_us=0)

    def commit(self, transaction):
        self.measuring.advance(3)
        return super().commit(transaction)


def test_calls_their_time_and_their_failures_are_counted():
    """A refusal is an answer; what a closed store does not answer is a failure, and takes time."""
    store = CountedStore(SlowStore(clock=SimulatedClock()), clock=SlowStore.measuring)
    store.commit(Transaction(puts={"/a": b"1"}))
    assert store.get("/a").value == b"1"
    assert (store.operations, store.failures, store.seconds) == (2, 0, 3.0)
    taken = Transaction(compares=(Compare.absent("/a"),), puts={"/a": b"2"})
    with pytest.raises(Conflict):
        store.commit(taken)
    assert (store.operations, store.failures, store.seconds) == (3, 0, 6.0)
    store.close()
    for call in (lambda: store.get("/a"), lambda: store.commit(taken)):
        with pytest.raises(Closed):
            call()
    assert (store.operations, store.failures, store.seconds) == (5, 2, 9.0)
