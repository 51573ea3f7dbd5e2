"""Stand-ins for the operating system: simulated files and time, and files that fail on purpose."""

from __future__ import annotations

from frazil.testing.faulty_fs import ERRNOS, VERBS, Call, Fault, FaultyFileSystem, Verb
from frazil.testing.simulated_clock import SimulatedClock
from frazil.testing.simulated_fs import SimulatedCrash, SimulatedFileSystem
from frazil.testing.simulated_inode import SECTOR_BYTES, Survival
from frazil.testing.simulated_store import SimulatedStore

__all__ = [
    "ERRNOS",
    "SECTOR_BYTES",
    "VERBS",
    "Call",
    "Fault",
    "FaultyFileSystem",
    "SimulatedClock",
    "SimulatedCrash",
    "SimulatedFileSystem",
    "SimulatedStore",
    "Survival",
    "Verb",
]
