"""Queries when memory is nearly full: publishes come first."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from frazil.errors import Overloaded, Unavailable
from frazil.tiers import topic_tiers
from tests.integration.engine.opening import open_small, wait_until
from tests.integration.engine.tier_world import noise

ENDLESS = "SELECT sum(a.i * b.i) FROM range(100000000) a(i), range(100000) b(i), t"
WAIT_S = 20
BUDGET = 16 << 20
RECORD = 50_000


def test_red_ends_a_query_that_runs_and_refuses_the_next(tmp_path, monkeypatch):
    """Records that cannot be flushed fill memory; the error of the query says why it ended, and it runs later."""
    flushing = threading.Event()
    flush_set = topic_tiers.flush_set

    def held(disk, **options):
        flushing.wait(WAIT_S)
        return flush_set(disk, **options)

    monkeypatch.setattr(topic_tiers, "flush_set", held)
    with (
        open_small(tmp_path, memory={"budget_bytes": BUDGET, "wait_s": 0.2}) as db,
        ThreadPoolExecutor() as pool,
    ):
        topic = db.create_topic("t")
        topic.append(b"x")
        query = pool.submit(db.query, ENDLESS, timeout_s=2 * WAIT_S)
        wait_until(lambda: len(db.queries().running()) == 1)
        with pytest.raises(Overloaded, match="memory is nearly full"):
            for number in range(2 * BUDGET // RECORD):
                topic.append(noise(number, RECORD))
        with pytest.raises(Unavailable) as caught:
            query.result(WAIT_S)
        assert caught.value.details["reason"] == "memory is short, publishes come first"
        with pytest.raises(Overloaded, match="publishes come first"):
            db.query("SELECT count(*) FROM t")
        flushing.set()
        db.tiers.flush()
        db.tiers.evict()
        wait_until(lambda: db.tiers.pressure.snapshot().zone != "red")
        assert db.query("SELECT count(*) FROM t").rows()[0][0] > 1
