"""The engine keeps its promises through crashes in which the metadata loses its last transactions.

The log is the truth: whatever the metadata forgot, or if it is gone, comes back from the log.
"""

from __future__ import annotations

import os

import pytest

from frazil.errors import FrazilError
from tests.crash.engine_simulation import EngineSimulation
from tests.crash.simulation import replay_command
from tests.support import SimulatedCrash

SEEDS = max(1000, int(os.environ.get("FRAZIL_CRASH_SEEDS", "20000")) // 20)
BASE = int(os.environ.get("FRAZIL_CRASH_BASE", "1000000"))
CHUNKS = 20


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_promise_is_broken_with_old_metadata(chunk):
    """No topic, schema, hold or fsynced record is lost, whatever the metadata forgot."""
    first = BASE + SEEDS * chunk // CHUNKS
    end = BASE + SEEDS * (chunk + 1) // CHUNKS
    print(f"seeds {first}..{end - 1}")
    rewound = 0
    for seed in range(first, end):
        simulation = EngineSimulation(seed)
        try:
            simulation.run()
        except (AssertionError, FrazilError, OSError, SimulatedCrash) as error:
            command = replay_command(seed, engine=True)
            pytest.fail(f"{type(error).__name__}: {error}\nreplay: {command}", pytrace=False)
        rewound += simulation.rewound
    assert rewound > (end - first) // 2
