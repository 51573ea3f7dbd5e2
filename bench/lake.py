"""Measure the lake: `python bench/lake.py [--only NAME ...] [--quick]`."""

from __future__ import annotations

import os
import sys

MEASURES = (
    "lake_append",
    "lake_small",
    "lake_growth",
    "lake_latency",
    "lake_publish",
    "lake_memory",
)


if __name__ == "__main__":
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    from bench import program

    raise SystemExit(program.main("lake", MEASURES, about="Measure the lake against its bars."))
