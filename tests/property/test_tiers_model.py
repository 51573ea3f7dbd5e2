"""The tiers equal a list of changes and its fold, whatever moves, ends or crashes in between."""

from __future__ import annotations

import os

import pytest

from tests.crash.engine_world import many_lives
from tests.property.tiers_replay import command
from tests.property.tiers_steps import Life, shrink
from tests.support import SimulatedCrash

RUNS = int(os.environ.get("FRAZIL_TEST_TIERS_RUNS", "200"))
BASE = int(os.environ.get("FRAZIL_TEST_TIERS_BASE", "1000000"))
CHUNKS = 20
RARELY = 0.15
"""Every check takes records into chunks and folds them: these lives are mostly left alone."""


def run_lives(seeds, *, checks, rewinds=False):
    """Run lives; fail with the command that repeats the first one that breaks a promise."""
    print(f"seeds {seeds.start}..{seeds.stop - 1} checks={checks} rewinds={rewinds}")
    crashes = queries = 0
    with many_lives():
        for seed in seeds:
            life = Life(seed, checks=checks, rewinds=rewinds)
            try:
                life.run()
            except (Exception, SimulatedCrash) as error:  # noqa: BLE001 - the seed is printed in any case
                text = f"{type(error).__name__}: {error}\nstep {life.step_now}"
                pytest.fail(
                    f"{text}\nreplay: {command(seed, checks, rewinds=rewinds)}", pytrace=False
                )
            crashes += life.crashes
            queries += life.queries
    return crashes, queries


@pytest.mark.timeout(0)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_answer_is_the_models(chunk):
    """After every step `get`, the list of all records and at times SQL equal the model."""
    seeds = range(BASE + RUNS * chunk // CHUNKS, BASE + RUNS * (chunk + 1) // CHUNKS)
    crashes, queries = run_lives(seeds, checks=1.0)
    assert crashes >= len(seeds)
    assert queries >= len(seeds)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("chunk", range(CHUNKS // 10))
def test_answers_after_many_steps_are_the_models(chunk):
    """What nobody looked at for a while is right as well."""
    count = RUNS // CHUNKS
    seeds = range(BASE + RUNS + count * chunk, BASE + RUNS + count * (chunk + 1))
    crashes, queries = run_lives(seeds, checks=RARELY)
    assert crashes >= len(seeds) // 2
    assert queries >= len(seeds)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("chunk", range(CHUNKS // 10))
def test_answers_with_old_metadata_are_the_models(chunk):
    """What the metadata forgot at a crash is found again in the log and in the files."""
    count = RUNS // CHUNKS
    first = BASE + 2 * RUNS + count * chunk
    crashes, queries = run_lives(range(first, first + count), checks=1.0, rewinds=True)
    assert crashes >= count
    assert queries >= count


def test_a_failing_life_shrinks_to_the_steps_it_needs(monkeypatch):
    """With a bug in the model itself a few steps are left, and they still fail."""
    monkeypatch.setattr("tests.property.tiers_steps.WIDER", {})
    monkeypatch.setattr(Life, "_reopen", _broken)
    with many_lives():
        skip, error = shrink(BASE, checks=0.0, steps=12)
    assert isinstance(error, AssertionError)
    assert 12 - len(skip) <= 1


def _broken(life):
    raise AssertionError("a restart fails")
