"""What is where: an index over the log that can be rebuilt from it."""

from __future__ import annotations

from frazil.metadata.counted import CountedStore
from frazil.metadata.lease import Lease
from frazil.metadata.memory import MemoryStore
from frazil.metadata.sqlite import SqliteStore
from frazil.metadata.sqlite_file import move_aside
from frazil.metadata.store import MetadataStore, Page, compare_and_set, entries
from frazil.metadata.transaction import Compare, Entry, LeaseEpoch, Revision, Transaction
from frazil.metadata.watch import Event, Watch

__all__ = [
    "Compare",
    "CountedStore",
    "Entry",
    "Event",
    "Lease",
    "LeaseEpoch",
    "MemoryStore",
    "MetadataStore",
    "Page",
    "Revision",
    "SqliteStore",
    "Transaction",
    "Watch",
    "compare_and_set",
    "entries",
    "move_aside",
]
