"""Measure the tiers: `python bench/tiers.py [--only NAME ...] [--quick] [--minutes N]`."""

from __future__ import annotations

import os
import sys

MEASURES = ("flush_speed", "tier_append", "steady_load")


if __name__ == "__main__":
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    from bench import program

    raise SystemExit(program.main("tiers", MEASURES, about="Measure the tiers against their bars."))
