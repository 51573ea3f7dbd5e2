"""Where metadata stores come back from, one home for each kind of store."""

from __future__ import annotations

import json

from frazil.fs import RealFileSystem
from frazil.metadata import Compare, CountedStore, MemoryStore, SqliteStore, Transaction
from frazil.metadata.etcd import EtcdStore


class ManualClock:
    def __init__(self):
        self.seconds = 100.0

    def now_us(self):
        return int(self.seconds * 1_000_000)

    def monotonic(self):
        return self.seconds

    def random_bytes(self, size):
        return bytes(size)


def swap(store, key, value, *, expected):
    """Put a value if the key is still as it was read; None expects no key."""
    compare = Compare.absent(key) if expected is None else Compare.unchanged(expected)
    return store.commit(Transaction(compares=(compare,), puts={key: value}))


class MemoryHome:
    """Where a memory store comes back from: a clone of the one before."""

    def __init__(self, tmp_path, clock):
        self.store = MemoryStore(clock=clock)

    def reopen(self):
        clone = self.store.clone()
        self.store.close()
        self.store = clone
        return clone


class CountedHome(MemoryHome):
    """A memory store whose calls are counted."""

    def __init__(self, tmp_path, clock):
        super().__init__(tmp_path, clock)
        self._inner, self.store = self.store, CountedStore(self.store, clock=clock)

    def reopen(self):
        inner = self._inner.clone()
        self.store.close()
        self._inner, self.store = inner, CountedStore(inner)
        return self.store


class SqliteHome:
    """Where an SQLite store comes back from: its file."""

    def __init__(self, tmp_path, clock):
        self.path = str(tmp_path / "metadata.db")
        self.clock = clock
        self.store = self.open()

    def open(self):
        return SqliteStore.open(self.path, file_system=RealFileSystem(), clock=self.clock)

    def reopen(self):
        self.store.close()
        self.store = self.open()
        return self.store


class EtcdHome:
    """Where a store in etcd comes back from: the server, which has forgotten its history."""

    server = None
    stores = 0

    def __init__(self, tmp_path, clock):
        EtcdHome.stores += 1
        self.settings = self.server.settings(prefix=f"/store-{EtcdHome.stores}", timeout_s=30)
        self.clock = clock
        self.store = EtcdStore.open(self.settings, clock=clock)

    def reopen(self):
        self.store.close()
        revision = json.loads(self.server.control("get", "/", "-w", "json"))["header"]["revision"]
        self.server.control("compact", str(revision))
        self.store = EtcdStore.open(self.settings, clock=self.clock)
        return self.store
