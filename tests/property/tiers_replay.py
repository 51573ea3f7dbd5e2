"""Repeat one life of the tiers: `--seed N [--checks SHARE] [--rewinds] [--shrink]`; tells what happened."""

from __future__ import annotations

import argparse
import traceback

from tests.crash.engine_world import many_lives
from tests.property.tiers_steps import failure, shrink


def command(seed, checks, *, rewinds=False):
    """The command line that repeats a life."""
    more = " --rewinds" * rewinds
    module = "PYTHONPATH=src .venv/bin/python -m tests.property.tiers_replay"
    return f"{module} --seed {seed} --checks {checks}{more} --shrink"


def main():
    """Run the life, with as few steps as it needs to fail if that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--checks", type=float, default=1.0)
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--rewinds", action="store_true")
    arguments = parser.parse_args()
    options = {"checks": arguments.checks, "rewinds": arguments.rewinds}
    with many_lives():
        skip = shrink(arguments.seed, **options)[0] if arguments.shrink else ()
        life, error = failure(arguments.seed, skip=skip, **options)
    print(*life.world.history, sep="\n")
    if error is None:
        print("no promise was broken")
        return
    traceback.print_exception(error)


if __name__ == "__main__":
    main()
