"""A store whose calls are counted: how many, how long they took, how many it could not answer."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Self

from frazil.clock import SystemClock
from frazil.errors import Closed, Unavailable
from frazil.metadata.transaction import LIST_ENTRIES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from frazil.clock import Clock
    from frazil.metadata.lease import Lease
    from frazil.metadata.store import MetadataStore, Page
    from frazil.metadata.transaction import Entry, Revision, Transaction

__all__ = ["CountedStore"]


class CountedStore:
    """Passes every call on to another store. Safe for threads.

    A refusal that is an answer, as a compare that failed is, does not count as a failure. `clock`
    measures calls and nothing else: it need not be the clock that the store goes by.
    """

    def __init__(self, store: MetadataStore, *, clock: Clock | None = None) -> None:
        self._store = store
        self._clock: Clock = clock or SystemClock()
        self._lock = threading.Lock()
        self.operations = 0
        self.failures = 0
        self.seconds = 0.0

    @contextlib.contextmanager
    def _counted(self) -> Iterator[MetadataStore]:
        begun_s = self._clock.monotonic()
        failed = 0
        try:
            yield self._store
        except (Unavailable, Closed):
            failed = 1
            raise
        finally:
            taken_s = self._clock.monotonic() - begun_s
            with self._lock:
                self.operations += 1
                self.failures += failed
                self.seconds += taken_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def operations_max(self) -> int:
        """See `MetadataStore`."""
        return self._store.operations_max

    @property
    def bytes_max(self) -> int:
        """See `MetadataStore`."""
        return self._store.bytes_max

    def get(self, key: str) -> Entry | None:
        """See `MetadataStore`."""
        with self._counted() as store:
            return store.get(key)

    def list(self, prefix: str, *, limit: int = LIST_ENTRIES_MAX, after: str | None = None) -> Page:
        """See `MetadataStore`."""
        with self._counted() as store:
            return store.list(prefix, limit=limit, after=after)

    def commit(self, transaction: Transaction) -> Revision:
        """See `MetadataStore`."""
        with self._counted() as store:
            return store.commit(transaction)

    def revision(self) -> Revision:
        """See `MetadataStore`."""
        with self._counted() as store:
            return store.revision()

    def applied_lsn(self, journal_id: str) -> int | None:
        """See `MetadataStore`."""
        with self._counted() as store:
            return store.applied_lsn(journal_id)

    def generation(self) -> int:
        """See `MetadataStore`."""
        with self._counted() as store:
            return store.generation()

    def acquire(self, name: str, holder: str, ttl_s: float, *, epoch_above: int = 0) -> Lease:
        """See `MetadataStore`."""
        with self._counted() as store:
            return store.acquire(name, holder, ttl_s, epoch_above=epoch_above)

    def renew(self, lease: Lease) -> Lease:
        """See `MetadataStore`."""
        with self._counted() as store:
            return store.renew(lease)

    def release(self, lease: Lease) -> None:
        """See `MetadataStore`."""
        with self._counted() as store:
            store.release(lease)

    def held(self, name: str) -> Lease | None:
        """See `MetadataStore`."""
        with self._counted() as store:
            return store.held(name)

    def close(self) -> None:
        """See `MetadataStore`."""
        self._store.close()
