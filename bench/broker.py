"""Measure the broker: `python bench/broker.py [--only unary delivery ...] [--quick]`."""

from __future__ import annotations

import os
import sys

PARTS = (
    "start",
    "noop",
    "unary",
    "real",
    "client",
    "delivery",
    "fanout",
    "way",
    "topics",
    "laggards",
)
PARTS = (
    "start",
    "noop",
    "unary",
    "real",
    "client",
    "delivery",
    "fanout",
    "way",
    "topics",
    "laggards",
)
MEASURES = tuple(f"broker_{part}" for part in PARTS)


if __name__ == "__main__":
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.argv = [f"broker_{word}" if word in PARTS else word for word in sys.argv]
    from bench import program

    raise SystemExit(program.main("broker", MEASURES, about="Measure the broker against its bars."))
