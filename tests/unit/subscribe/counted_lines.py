"""The work of a call, counted in lines of Python: a measure that no machine's speed changes."""

from __future__ import annotations

import contextlib
import sys


@contextlib.contextmanager
def lines_at_most(count):
    """Fail as soon as the block has run more lines than that, however long it would go on."""
    lines = 0

    def tell(_frame, event, _argument):
        nonlocal lines
        if event == "line":
            lines += 1
            assert lines <= count, f"more than {count} lines were run"
        return tell

    before = sys.gettrace()
    sys.settrace(tell)
    try:
        yield
    finally:
        sys.settrace(before)
