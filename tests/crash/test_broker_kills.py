"""A broker killed under the published client's producers and consumers, and they with it.

`FRAZIL_TEST_CRASH_KILLS` is the number of kills, 25 without it.
"""

from __future__ import annotations

import contextlib
import os
import random
import time

import pytest

from tests.crash.broker_process import Broker, Forks
from tests.crash.broker_world import Clients, checked

KILLS = int(os.environ.get("FRAZIL_TEST_CRASH_KILLS", "25"))
EARLY_SHARE = 0.4
EARLY_S = 0.1
LATE_S = 0.8
TYPES = 4
CLIENTS_EVERY = 10


def kill_loop(broker, clients, *, kills, seed):
    """Kill the broker while it starts and while clients work; leave it running."""
    chosen = random.Random(seed)
    broker.start()
    broker.wait_ready()
    clients.begin()
    for generation in range(kills):
        early = generation % CLIENTS_EVERY > 1 and chosen.random() < EARLY_SHARE
        if generation > 0:
            broker.start()
            clients.ledger.note("started", generation)
        if early:
            time.sleep(chosen.uniform(0, EARLY_S))
        else:
            broker.wait_ready()
            clients.ledger.note("ready", generation)
            clients.wait_for_work()
            time.sleep(chosen.uniform(0, LATE_S))
            if generation % CLIENTS_EVERY == 1:
                clients.replace()
        broker.kill()
        clients.ledger.note("killed", generation)
    broker.start()
    broker.wait_ready()


@pytest.mark.integration
@pytest.mark.long
@pytest.mark.timeout(0 if KILLS > 25 else 300)
def test_no_kill_breaks_a_promise_to_a_client(tmp_path):
    """Nothing published is lost, nothing acked comes again, offsets and order stay, 25 kills on."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    with (
        contextlib.closing(Forks()) as forks,
        contextlib.closing(Broker(tmp_path, forks=forks)) as broker,
        contextlib.closing(
            Clients(tmp_path, broker.url, admin_port=broker.admin_port, seed=seed)
        ) as clients,
    ):
        kill_loop(broker, clients, kills=KILLS, seed=seed)
        clients.drain()
        assert broker.stop() == 0, broker.last_words()
    found = checked(tmp_path, tmp_path / "data")
    print(found)
    assert not found["broken"], f"seed {seed}: {found}"
    assert found["events"]["killed"] == KILLS
    assert found["published"] >= KILLS
    assert found["events"]["replaced"] >= KILLS // CLIENTS_EVERY
    assert found["acked"] > (TYPES - 1) * found["records"]
    assert found["dead_letters"] > 0
