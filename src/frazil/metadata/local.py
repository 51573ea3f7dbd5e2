"""The metadata store's rules for one process, independent of the storage of its rows.

`LocalStore` decides under one lock whether a transaction may happen and what it changes; `Rows`
stores the result. Facts about the store itself (applied LSNs, lease epochs) are rows as well;
their keys start with '!', which no caller's key can.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from frazil.errors import Closed, Conflict, CorruptionError, Unavailable
from frazil.metadata.lease import Lease, LeaseBook, LeaseRecord
from frazil.metadata.transaction import (
    LIST_ENTRIES_MAX,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_OPERATIONS_MAX,
    Entry,
    Revision,
    Transaction,
    check_key,
    check_name,
    check_page,
    check_transaction,
    number_of,
    prefix_end,
)

if TYPE_CHECKING:
    from frazil.clock import Clock
    from frazil.metadata.store import Page

__all__ = ["Change", "LocalStore", "Rows"]

APPLIED_PREFIX: Final = "!applied/"
LEASE_PREFIX: Final = "!lease/"


@attrs.frozen
class Change:
    """One key before and after a transaction; None where it does not exist."""

    key: str
    before: Entry | None
    after: Entry | None


class Rows(Protocol):
    """The storage of the entries. Called under the store's lock, one call at a time."""

    @property
    def revision(self) -> Revision:
        """The revision of the last `write`."""

    def read(self, key: str) -> Entry | None:
        """Return one entry."""

    def scan(self, *, first: str, end: str, after: str | None, limit: int) -> Page:
        """Return entries with `first` <= key < `end` after `after`, sorted; empty at the end."""

    def write(self, revision: Revision, changes: Sequence[Change]) -> None:
        """Apply all changes or none; durable on return. After an error the rows are not used."""

    def close(self) -> None:
        """Release everything; must not raise after a storage failure."""


class LocalStore:
    """A metadata store over `Rows`; see `frazil.metadata.store.MetadataStore` for the contract."""

    operations_max = TRANSACTION_OPERATIONS_MAX
    bytes_max = TRANSACTION_BYTES_MAX

    def __init__(self, rows: Rows, clock: Clock) -> None:
        self._rows = rows
        self._lock = threading.Lock()
        self._leases = LeaseBook(clock)
        self._closed = False
        self._cause: BaseException | None = None

    def get(self, key: str) -> Entry | None:
        check_key(key)
        with self._open():
            return self._rows.read(key)

    def list(self, prefix: str, *, limit: int = LIST_ENTRIES_MAX, after: str | None = None) -> Page:
        check_page(prefix, limit=limit, after=after)
        with self._open():
            return self._rows.scan(first=prefix, end=prefix_end(prefix), after=after, limit=limit)

    def commit(self, transaction: Transaction) -> Revision:
        check_transaction(transaction)
        with self._open():
            self._check(transaction)
            puts = dict(transaction.puts)
            for journal_id, lsn in transaction.applied.items():
                puts[APPLIED_PREFIX + journal_id] = b"%d" % lsn
            return self._write(puts, transaction.deletes)

    def revision(self) -> Revision:
        with self._open():
            return self._rows.revision

    def applied_lsn(self, journal_id: str) -> int | None:
        check_name(journal_id, what="journal id")
        with self._open():
            return self._number(APPLIED_PREFIX + journal_id)

    def acquire(self, name: str, holder: str, ttl_s: float, *, epoch_above: int = 0) -> Lease:
        with self._open():
            self._leases.check_acquire(name, holder, ttl_s, epoch_above)
            found = self._rows.read(LEASE_PREFIX + name)
            last = LeaseRecord.decode(found.value) if found is not None else LeaseRecord(0, "")
            record = last.following(holder, epoch_above=epoch_above)
            # Durable before it is granted: a crash may skip an epoch but never grants one twice.
            self._write({LEASE_PREFIX + name: record.encode()}, ())
            return self._leases.grant(name, record, ttl_s)

    def renew(self, lease: Lease) -> Lease:
        with self._open():
            return self._leases.renew(lease)

    def release(self, lease: Lease) -> None:
        with self._open():
            self._leases.release(lease)

    def held(self, name: str) -> Lease | None:
        check_name(name, what="lease name")
        with self._open():
            return self._leases.held(name)

    def close(self) -> None:
        with self._lock:
            self._stop(None)

    @contextlib.contextmanager
    def _open(self) -> Iterator[None]:
        """Hold the lock of the open store; damage or failing storage stops it for good."""
        with self._lock:
            if self._closed and self._cause is not None:
                raise Closed(
                    "metadata store stopped after a failure, open it again", cause=self._cause
                )
            if self._closed:
                raise Closed("metadata store is closed")
            try:
                yield
            except (CorruptionError, Unavailable) as error:
                self._stop(error)
                raise

    def _stop(self, cause: BaseException | None) -> None:
        if self._closed:
            return
        self._closed = True
        self._cause = cause
        self._rows.close()

    def _check(self, transaction: Transaction) -> None:
        if transaction.requires is not None:
            self._leases.check(transaction.requires.name, transaction.requires.epoch)
        for compare in transaction.compares:
            compare.check(self._rows.read(compare.key))
        for journal_id, lsn in transaction.applied.items():
            key = APPLIED_PREFIX + journal_id
            stored = self._number(key)
            if stored is not None and lsn < stored:
                raise Conflict("metadata number would decrease", key=key, number=lsn, stored=stored)

    def _number(self, key: str) -> int | None:
        return number_of(self._rows.read(key))

    def _write(self, puts: dict[str, bytes], deletes: Sequence[str]) -> Revision:
        revision = Revision(self._rows.revision + 1)
        changes = [self._put(key, value, revision) for key, value in puts.items()]
        removed = [(key, self._rows.read(key)) for key in deletes]
        changes += [Change(key, found, None) for key, found in removed if found is not None]
        if not changes:
            return self._rows.revision
        try:
            self._rows.write(revision, changes)
        except BaseException as error:
            # The state on disk is unknown now: no later call may build on it.
            self._stop(error)
            raise
        return revision

    def _put(self, key: str, value: bytes, revision: Revision) -> Change:
        before = self._rows.read(key)
        version = 1 if before is None else before.version + 1
        return Change(key, before, Entry(key, value, version, revision))
