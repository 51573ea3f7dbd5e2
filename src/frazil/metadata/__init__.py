"""Metadata store: an index over the log that can be rebuilt from the log."""

from __future__ import annotations

from frazil.metadata.counted import CountedStore
from frazil.metadata.lease import Lease
from frazil.metadata.memory import MemoryStore
from frazil.metadata.ownership import LEASE, Ownership, holder_of
from frazil.metadata.sqlite import SqliteStore
from frazil.metadata.sqlite_file import move_aside
from frazil.metadata.store import MetadataStore, Page, entries
from frazil.metadata.transaction import (
    LIST_BYTES_MAX,
    NUMBER_MAX,
    TRANSACTION_BYTES_MAX,
    VALUE_BYTES_MAX,
    Compare,
    Entry,
    LeaseEpoch,
    Revision,
    Transaction,
)

__all__ = [
    "LEASE",
    "LIST_BYTES_MAX",
    "NUMBER_MAX",
    "TRANSACTION_BYTES_MAX",
    "VALUE_BYTES_MAX",
    "Compare",
    "CountedStore",
    "Entry",
    "Lease",
    "LeaseEpoch",
    "MemoryStore",
    "MetadataStore",
    "Ownership",
    "Page",
    "Revision",
    "SqliteStore",
    "Transaction",
    "entries",
    "holder_of",
    "move_aside",
]
