"""Junk never crashes a decoder: it is refused with an error of ours, or read as what it is."""

from __future__ import annotations

import os
from random import randrange

import pytest

from tests.fuzz import mutate, run, seeds, targets

SECONDS = int(os.environ.get("FRAZIL_TEST_FUZZ_SECONDS", "10"))


@pytest.mark.parametrize("name", run.ENGINE_NAMES)
def test_junk_never_crashes_a_decoder(name):
    """No input makes a decoder raise anything but an error of ours, hang, or eat memory."""
    engine = "atheris" if run.has_atheris() else "plain"
    outcome = run.run_target(name, seconds=SECONDS, engine=engine, seed=randrange(1 << 31))
    print(f"{name}: {outcome.executions:,} executions ({engine})")
    assert outcome.code == 0, outcome.output[-6000:]
    assert outcome.executions > 20


def test_the_plain_mutator_finds_a_bug():
    """A decoder that trips over one byte is caught, and the error has the input."""

    def fragile(data):
        if b"\xff\xff" in data:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        mutate.fuzz(fragile, [b"seed"], seconds=10, seed=1)
    assert "input: bytes.fromhex" in caught.value.__notes__[0]


def test_a_crashing_child_is_reported():
    """A target that does not exist ends its child with an error, and that is not success."""
    assert run.run_target("nothing", seconds=1, engine="plain", seed=1).code != 0


def test_the_committed_seeds_are_those_of_the_script():
    """Every target has its seeds in the corpus."""
    for name, inputs in seeds.seeds().items():
        assert len(set(run.corpus(name))) >= len(set(inputs))
    assert set(seeds.seeds()) == set(targets.TARGETS) == set(run.ENGINE_NAMES)
