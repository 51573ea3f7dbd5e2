"""What became of another process, by its number."""

from __future__ import annotations

import time


def state_of(pid):
    """Return the letter of a process's state, X if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def is_alive(pid):
    return state_of(pid) not in "ZX"


def wait_gone(pids, seconds):
    """Return whether processes are gone in time."""
    deadline = time.monotonic() + seconds
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(is_alive, pids))
