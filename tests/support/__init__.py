"""Stand-ins for the operating system: simulated files and time, and files that fail on purpose."""

from __future__ import annotations

from tests.support.faulty_fs import ERRNOS, VERBS, Call, Fault, FaultyFileSystem, Verb
from tests.support.simulated_clock import SimulatedClock
from tests.support.simulated_fs import SimulatedCrash, SimulatedFileSystem
from tests.support.simulated_inode import SECTOR_BYTES, Survival
from tests.support.simulated_store import SimulatedStore

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
