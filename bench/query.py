"""Measure look-ups and SQL: `python bench/query.py [--only NAME ...] [--quick]`."""

from __future__ import annotations

import os
import sys

MEASURES = (
    "key_lookup",
    "sql_lookup",
    "change_visible",
    "hot_aggregates",
    "warm_aggregates",
    "warm_keyed",
)


if __name__ == "__main__":
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    from bench import program

    raise SystemExit(program.main("query", MEASURES, about="Measure SQL against its bars."))
