"""The metadata store's interface: small enough for SQLite, memory and etcd alike.

Keys are paths, values are bytes, a change is a transaction of compares, puts and deletes, and
every transaction with changes has a revision. `docs/internals/metadata.md` has the format of the
SQLite file and the effects of a crash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from frazil.metadata.transaction import (
    LIST_ENTRIES_MAX,
    Entry,
    Revision,
    Transaction,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from frazil.metadata.lease import Lease

__all__ = ["MetadataStore", "Page", "entries"]

Page: TypeAlias = list[Entry]


class MetadataStore(Protocol):
    """Metadata of one broker. All methods may be called from any thread.

    Every method raises `Closed` when the store is closed or has failed, `InvalidRequest` for
    arguments beyond the limits in `frazil.metadata.transaction`, `CorruptionError` for damage, and
    `Unavailable` when storage fails. A local store stays closed after a failure: open it again. A
    store over the network stays open and works again when its servers do. Either way, read
    before deciding anything about a commit with `outcome="unknown"`.
    """

    @property
    def operations_max(self) -> int:
        """The limit of operations (`Transaction.operations`) of one transaction."""

    @property
    def bytes_max(self) -> int:
        """The limit of bytes of keys and values that one transaction puts and deletes."""

    def get(self, key: str) -> Entry | None:
        """Return the entry stored under `key`."""

    def list(self, prefix: str, *, limit: int = LIST_ENTRIES_MAX, after: str | None = None) -> Page:
        """Return entries whose keys start with `prefix`, sorted, from the first one after `after`.

        A page is the state at one moment and has at most `limit` entries. Large values can make
        it shorter: only an empty page marks the end.
        """

    def commit(self, transaction: Transaction) -> Revision:
        """Apply a transaction; it is durable on return.

        Returns:
            The transaction's revision, or the current one if it changed nothing.

        Raises:
            Conflict: a compare failed (`key` names it), an applied LSN would go
                back, or the required lease is lost. Nothing was applied.
            Unavailable: with `outcome="unknown"` it may have been applied; without, it was not.
        """

    def revision(self) -> Revision:
        """Return the revision of the last change, 0 for a new store.

        Where several stores share servers, the changes of the others count as well.
        """

    def applied_lsn(self, journal_id: str) -> int | None:
        """Return the LSN up to which the journal is applied, None if it never was."""

    def acquire(self, name: str, holder: str, ttl_s: float, *, epoch_above: int = 0) -> Lease:
        """Take a lease under a new epoch, higher than all before; the epoch is durable on return.

        A holder that acquires its own lease again gets a new epoch as well, which fences its
        earlier self. `epoch_above` is the highest epoch seen elsewhere, for rebuilt metadata.

        Raises:
            Conflict: another holder has it.
        """

    def renew(self, lease: Lease) -> Lease:
        """Extend a lease by its `ttl_s` from now; raises `Conflict` if it is lost."""

    def release(self, lease: Lease) -> None:
        """Release a lease; a lost lease is ignored."""

    def held(self, name: str) -> Lease | None:
        """Return the lease if it is held now."""

    def close(self) -> None:
        """Release everything. May be called again."""


def entries(
    store: MetadataStore, prefix: str, *, page_entries: int = LIST_ENTRIES_MAX
) -> Iterator[Entry]:
    """Yield all entries under `prefix` in order; each page is consistent, the whole is not."""
    after: str | None = None
    while page := store.list(prefix, limit=page_entries, after=after):
        yield from page
        after = page[-1].key
