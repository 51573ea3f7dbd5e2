"""Junk of a client never crashes the broker: it is refused, or read as what it is."""

from __future__ import annotations

import os
from random import randrange

import pytest

from tests.fuzz import mutate, run
from tests.fuzz.request_targets import REQUEST_TARGETS
from tests.fuzz.serve_seeds import serve_seeds
from tests.fuzz.transport_targets import TRANSPORT_TARGETS

SERVE_TARGETS = {**TRANSPORT_TARGETS, **REQUEST_TARGETS}
SECONDS = int(os.environ.get("FRAZIL_TEST_FUZZ_SECONDS", "1"))
GUIDED = ("h2", "headers")
"""The targets with many branches; `make fuzz` does the others as well."""


@pytest.mark.parametrize("name", GUIDED)
def test_junk_of_a_client_never_crashes_the_broker(name):
    """No input makes a decoder raise anything but its own refusal, hang, or eat memory."""
    engine = "atheris" if run.has_atheris() else "plain"
    outcome = run.run_target(name, seconds=SECONDS, engine=engine, seed=randrange(1 << 31))
    print(f"{name}: {outcome.executions:,} executions ({engine})")
    assert outcome.code == 0, outcome.output[-6000:]
    assert outcome.executions > 20


@pytest.mark.parametrize("name", run.SERVE_NAMES)
def test_the_plain_mutator_finds_nothing_in_the_broker(name):
    """Mutated requests crash nothing either."""
    found = run.corpus(name)
    assert mutate.fuzz(SERVE_TARGETS[name], found, seconds=0.4, seed=randrange(1 << 31))


def test_the_committed_seeds_of_the_broker_are_those_of_the_script():
    """Every target has its seeds in the corpus, and those do not crash it."""
    for name, inputs in serve_seeds().items():
        known = set(run.corpus(name))
        assert known.issuperset(inputs)
        for data in known:
            SERVE_TARGETS[name](data)
    assert set(serve_seeds()) == set(SERVE_TARGETS) == set(run.SERVE_NAMES)
