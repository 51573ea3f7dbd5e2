"""A metadata store does what a dictionary does: random calls, compared after each one."""

from __future__ import annotations

import shutil
import tempfile

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from frazil.errors import Conflict
from frazil.fs import RealFileSystem
from frazil.metadata import (
    Compare,
    LeaseEpoch,
    MemoryStore,
    SqliteStore,
    Transaction,
    entries,
)
from tests.support import SimulatedClock

KEYS = ["/", "/a", "/a/", "/a/b", "/a/é", "/a\U0010ffff", "/b", "/b/\ud7ff"]
PREFIXES = ["/", "/a", "/a/", "/a\U0010ffff", "/b/\ud7ff", "/c"]
JOURNALS = ["main", "other"]
LEASES = ["lake", "topic"]
HOLDERS = ["one", "two"]

keys = st.sampled_from(KEYS)
small = st.integers(min_value=0, max_value=5)
values = st.one_of(st.binary(max_size=8), st.sampled_from([b"x" * 5000, b"y" * 20_000]))
compares = st.one_of(
    st.builds(Compare.absent, keys),
    st.builds(Compare, keys, small),
    st.builds(lambda key, revision: Compare(key, mod_revision=revision), keys, st.integers(0, 20)),
)


class Model:
    """What the store must look like, in plain dictionaries."""

    def __init__(self):
        self.entries = {}
        self.revision = 0
        self.applied = {}
        self.epochs = {}
        self.held = {}

    def refuses(self, transaction, now):
        if transaction.requires is not None:
            _, epoch, expires_at = self.held.get(transaction.requires.name, ("", 0, now))
            if expires_at <= now or epoch != transaction.requires.epoch:
                return True
        for compare in transaction.compares:
            _, version, revision = self.entries.get(compare.key, (b"", 0, None))
            if compare.mod_revision is None and version != compare.version:
                return True
            if compare.mod_revision is not None and revision != compare.mod_revision:
                return True
        return any(lsn < self.applied.get(name, 0) for name, lsn in transaction.applied.items())

    def apply(self, transaction):
        revision = self.revision + 1
        deleted = [key for key in transaction.deletes if self.entries.pop(key, None)]
        for key, value in transaction.puts.items():
            version = self.entries.get(key, (b"", 0, 0))[1] + 1
            self.entries[key] = (value, version, revision)
        self.applied.update(transaction.applied)
        if transaction.puts or deleted or transaction.applied:
            self.revision = revision


class StoreMachine(RuleBasedStateMachine):
    """Random calls on a store and on the model; subclasses say how to open one."""

    leases = Bundle("leases")

    def __init__(self):
        super().__init__()
        self.clock = SimulatedClock(step_us=0)
        self.model = Model()
        self.store = None

    @initialize()
    def open(self):
        self.store = self.open_first()

    @rule(
        compares=st.lists(compares, max_size=1),
        puts=st.dictionaries(keys, values, max_size=4),
        deletes=st.lists(keys, max_size=2, unique=True),
        applied=st.dictionaries(st.sampled_from(JOURNALS), small, max_size=1),
        requires=st.one_of(
            st.none(), st.builds(LeaseEpoch, st.sampled_from(LEASES), st.integers(1, 4))
        ),
    )
    def commit(self, *, compares, puts, deletes, applied, requires):
        transaction = Transaction(
            compares=tuple(compares),
            puts=puts,
            deletes=tuple(key for key in deletes if key not in puts),
            applied=applied,
            requires=requires,
        )
        if self.model.refuses(transaction, self.clock.monotonic()):
            with pytest.raises(Conflict):
                self.store.commit(transaction)
            return
        self.model.apply(transaction)
        assert self.store.commit(transaction) == self.model.revision

    @rule(
        prefix=st.sampled_from(PREFIXES),
        after=st.one_of(st.none(), keys),
        limit=st.integers(1, 4),
    )
    def list_page(self, prefix, after, limit):
        expected = [
            key
            for key in sorted(self.model.entries)
            if key.startswith(prefix) and (after is None or key > after)
        ]
        found = self.store.list(prefix, limit=limit, after=after)
        assert [entry.key for entry in found] == expected[:limit]

    @rule(
        target=leases,
        name=st.sampled_from(LEASES),
        holder=st.sampled_from(HOLDERS),
        ttl_s=st.integers(1, 5),
    )
    def acquire(self, name, holder, ttl_s):
        now = self.clock.monotonic()
        held = self.model.held.get(name)
        if held is not None and held[2] > now and held[0] != holder:
            with pytest.raises(Conflict):
                self.store.acquire(name, holder, ttl_s)
            return self.store.held(name)
        lease = self.store.acquire(name, holder, ttl_s)
        epoch = self.model.epochs.get(name, 0) + 1
        assert (lease.epoch, lease.holder, lease.expires_at) == (epoch, holder, now + ttl_s)
        self.model.epochs[name] = epoch
        self.model.held[name] = (holder, epoch, now + ttl_s)
        self.model.revision += 1
        return lease

    @rule(lease=leases)
    def renew(self, lease):
        held = self.model.held.get(lease.name)
        if held is None or held[2] <= self.clock.monotonic() or held[1] != lease.epoch:
            with pytest.raises(Conflict):
                self.store.renew(lease)
            return
        renewed = self.store.renew(lease)
        self.model.held[lease.name] = (held[0], held[1], renewed.expires_at)
        assert renewed.expires_at == self.clock.monotonic() + lease.ttl_s

    @rule(lease=leases)
    def release(self, lease):
        self.store.release(lease)
        if self.model.held.get(lease.name, ("", 0, 0))[1] == lease.epoch:
            del self.model.held[lease.name]

    @rule(seconds=st.integers(1, 4))
    def wait(self, seconds):
        self.clock.advance(seconds)

    @rule()
    def restart(self):
        self.store = self.reopen()
        self.model.held = {}

    @invariant()
    def store_equals_model(self):
        if self.store is None:
            return
        found = {
            entry.key: (entry.value, entry.version, entry.mod_revision)
            for entry in entries(self.store, "/", page_entries=3)
        }
        assert found == self.model.entries
        for key in KEYS:
            entry = self.store.get(key)
            assert (entry and (entry.value, entry.version, entry.mod_revision)) == found.get(key)
        assert self.store.revision() == self.model.revision
        for name in JOURNALS:
            assert self.store.applied_lsn(name) == self.model.applied.get(name)
        for name in LEASES:
            lease = self.store.held(name)
            held = self.model.held.get(name)
            if held is not None and held[2] <= self.clock.monotonic():
                held = None
            assert (lease and (lease.holder, lease.epoch, lease.expires_at)) == held

    def teardown(self):
        if self.store is not None:
            self.store.close()


class MemoryMachine(StoreMachine):
    def open_first(self):
        return MemoryStore(clock=self.clock)

    def reopen(self):
        self.store.close()
        return self.store.clone()


class SqliteMachine(StoreMachine):
    def open_first(self):
        self.directory = tempfile.mkdtemp()
        return self.open_file()

    def open_file(self):
        return SqliteStore.open(
            f"{self.directory}/metadata.db", file_system=RealFileSystem(), clock=self.clock
        )

    def reopen(self):
        self.store.close()
        return self.open_file()

    def teardown(self):
        super().teardown()
        if self.store is not None:
            shutil.rmtree(self.directory)


TestMemoryModel = MemoryMachine.TestCase
TestMemoryModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestSqliteModel = SqliteMachine.TestCase
TestSqliteModel.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
