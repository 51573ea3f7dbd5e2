"""Repeat one life of the tiers: `--seed N [--checks SHARE] [--shrink]`; tells what happened."""

from __future__ import annotations

import argparse
import traceback

from tests.crash.engine_world import crashes_passed_over
from tests.property.tiers_steps import failure, shrink


def command(seed, checks):
    """The command line that repeats a life."""
    python = "PYTHONPATH=src .venv/bin/python"
    return f"{python} -m tests.property.tiers_replay --seed {seed} --checks {checks} --shrink"


def main():
    """Run the life, with as few steps as it needs to fail if that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--checks", type=float, default=1.0)
    parser.add_argument("--shrink", action="store_true")
    arguments = parser.parse_args()
    with crashes_passed_over():
        skip = shrink(arguments.seed, checks=arguments.checks)[0] if arguments.shrink else ()
        life, error = failure(arguments.seed, checks=arguments.checks, skip=skip)
    print(*life.world.history, sep="\n")
    if error is None:
        print("no promise was broken")
        return
    traceback.print_exception(error)


if __name__ == "__main__":
    main()
