"""Measure the objects tier: `python bench/objects.py [--only NAME ...] [--quick]`.

The store is a real S3 server (SeaweedFS), a child process of the measure, but for `objects_hot`.
"""

from __future__ import annotations

import os
import sys

MEASURES = ("objects_upload", "objects_read", "objects_seek", "objects_hot")


if __name__ == "__main__":
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    from bench import program

    about = "Measure the objects tier against its bars."
    raise SystemExit(program.main("objects", MEASURES, about=about))
