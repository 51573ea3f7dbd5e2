"""The journal keeps its promises through kills and power losses at every sync point."""

from __future__ import annotations

import os

import pytest

from tests.crash.damage import DamagedSimulation, RewoundSimulation
from tests.crash.simulation import replay_command, run_seed, run_seeds

SEEDS = int(os.environ.get("FRAZIL_TEST_CRASH_SEEDS", "20000"))
BASE = int(os.environ.get("FRAZIL_TEST_CRASH_BASE", "1000000"))
"""The first seed; fixed, so that a run can be compared with the one before."""
CHUNKS = 40
DAMAGE_SEEDS = max(SEEDS // 20, 100)

FOUND = (
    ("an entry was answered again when the sync behind its ack failed", 477),
    ("a repeat in the group of its first try was acked without its sync", 549),
    ("a successor's checkpoint had the start from before the freeing", 98),
    ("the directory was lost that a killed process had made", 184),
    ("a cut took unsynced markers along", 861),
    ("a torn tail passed for lost records", 1680),
    ("a freed segment that was gone raised an alarm", 10439),
    ("a marker from a failed sync left a hole", 14525),
)
"""What was found once, with its seed: see TRACK_RECORD.md."""


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_promise_is_broken(chunk):
    """No fsynced record is lost, no offset used twice, nothing invented, doubled or reordered."""
    first = BASE + SEEDS * chunk // CHUNKS
    end = BASE + SEEDS * (chunk + 1) // CHUNKS
    print(f"seeds {first}..{end - 1}")
    failure = run_seeds(range(first, end))
    if failure is not None:
        seed, problem = failure
        pytest.fail(f"{problem}\nreplay: {replay_command(seed)}", pytrace=False)


@pytest.mark.parametrize("seed", [seed for _, seed in FOUND], ids=[bug for bug, _ in FOUND])
def test_what_was_found_stays_closed(seed):
    """A seed that once broke a promise keeps it."""
    simulation = run_seed(seed)
    assert simulation.recoveries >= 2
    assert simulation.crashes >= 1


def test_the_workload_reaches_what_it_is_for():
    """The seeds crash in recovery, resume, cut tails, rewrite, free and fail."""
    reports = []
    crashes = recoveries = freed = 0
    for seed in range(BASE, BASE + 150):
        simulation = run_seed(seed)
        crashes += simulation.crashes
        recoveries += simulation.recoveries
        reports += simulation.reports
        freed += simulation.work.journal.state.segment_first > 1
    assert crashes > 250
    assert recoveries > 400
    assert freed > 5
    assert sum(report.resumed for report in reports) > 100
    assert sum(report.frames_rewritten > 0 for report in reports) > 50
    assert sum(report.bytes_torn > 0 for report in reports) > 3


def test_damage_is_reported():
    """After a flipped bit every fsynced record is read as it was, or its loss is reported."""
    for seed in range(BASE, BASE + DAMAGE_SEEDS):
        simulation = DamagedSimulation(seed)
        simulation.run()
        assert simulation.recoveries >= 1


def test_a_rewound_log_gives_no_offset_out_again():
    """A log that came back from an older copy goes on behind every offset that is remembered."""
    for seed in range(BASE, BASE + 200):
        simulation = RewoundSimulation(seed)
        simulation.run()
        assert simulation.recoveries >= 2
