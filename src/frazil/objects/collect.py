"""Delete what is no longer needed in the store, slowly and in an order that forgives (F26, F28).

An object is condemned first, by a row in the metadata, and deleted in a later cycle. Objects that
nothing registered are found by listing the store FIRST and looking at the metadata THEN: whatever
was registered meanwhile is seen. A list alone never deletes anything.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, NamedTuple

from frazil.errors import Unavailable
from frazil.metadata import LeaseEpoch, Transaction, entries
from frazil.objects import descriptor as rows
from frazil.objects.catalog import LEASE_NAME
from frazil.objects.descriptor import Garbage
from frazil.objects.format import parse_key
from frazil.objects.store import LIST_KEYS_MAX
from frazil.telemetry import event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from frazil.clock import Clock
    from frazil.metadata import MetadataStore
    from frazil.objects.catalog import ObjectCatalog
    from frazil.objects.store import ObjectMeta, ObjectStore

__all__ = ["Collected", "Collector"]

DELETE_KEYS_MAX: Final = 1_000
UNREGISTERED: Final = "nothing registered it"


class Collected(NamedTuple):
    """What a cycle did, or would do in a dry run."""

    deleted: list[Garbage]
    """Condemned in an earlier cycle, and gone now."""
    condemned: list[ObjectMeta]
    """Registered by nothing and old enough: deleted in a later cycle."""
    spared: int
    """Objects that nothing registered and that are too young to be judged."""
    suspended: str = ""
    """Why nothing was looked at, if so."""


class Collector:
    """Collects the garbage of one broker. Cycles run one after another, whoever calls.

    Args:
        store: where the objects are.
        catalog: knows which of them are in use.
        metadata: has the rows of the condemned.
        clock: tells the age of objects; their own times are the store's.
        broker: the id in the keys of this broker; other keys are never touched.
        epoch: returns this owner's epoch; what a later one wrote is never touched.
        grace_us: how old an object must be that nothing registered.
        is_suspect: tells whether the metadata may lack what was registered once.
    """

    def __init__(
        self,
        store: ObjectStore,
        catalog: ObjectCatalog,
        metadata: MetadataStore,
        *,
        clock: Clock,
        broker: bytes,
        epoch: Callable[[], int],
        grace_us: int,
        is_suspect: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._metadata = metadata
        self._clock = clock
        self._broker = broker
        self._epoch = epoch
        self._grace_us = grace_us
        self._is_suspect = is_suspect
        self._turn = threading.Lock()
        self._cycle_us = clock.now_us()
        """What was condemned before this is old enough to be deleted."""

    def cycle(self, *, unregistered: bool = True, dry_run: bool = False) -> Collected:
        """Delete what earlier cycles condemned, then condemn what nothing registered.

        Args:
            unregistered: also look for objects that nothing registered; it lists the store.
            dry_run: change nothing, and return what would be changed.

        Raises:
            Unavailable: if the store or the metadata cannot be reached; nothing is half done that
                the next cycle would not go on with.
        """
        with self._turn:
            return self._cycle(unregistered=unregistered, dry_run=dry_run)

    def _cycle(self, *, unregistered: bool, dry_run: bool) -> Collected:
        reason = self._suspended()
        if reason:
            return Collected([], [], 0, reason)
        now_us = self._clock.now_us()
        going = [row for row in self._condemned() if row.since_us < self._cycle_us]
        if not dry_run:
            going = list(self._delete(going))
        found, spared = self._unregistered(now_us) if unregistered else ([], 0)
        reason = self._suspended()
        if reason:
            # Some change of the metadata is in doubt since this cycle began.
            return Collected(going, [], spared, reason)
        if not dry_run:
            self._condemn([meta.key for meta in found], now_us)
            self._cycle_us = self._clock.now_us()
        return Collected(going, found, spared)

    def _suspended(self) -> str:
        if self._is_suspect():
            return "metadata may lack objects that were registered"
        if self._catalog.suspect:
            return "the outcome of a change of the metadata is unknown"
        return ""

    # -- the condemned -----------------------------------------------------------------------------

    def _condemned(self) -> Iterator[Garbage]:
        """Yield the condemned objects that nothing names; the metadata itself is asked."""
        for entry in entries(self._metadata, rows.GARBAGE_PREFIX):
            row = rows.decode_row(Garbage, entry.key, entry.value)
            if not self._catalog.in_use(row.key):
                yield row

    def _delete(self, going: Sequence[Garbage]) -> Iterator[Garbage]:
        for start in range(0, len(going), DELETE_KEYS_MAX):
            # Once more, right before: what is in use must never go.
            page = [
                row
                for row in going[start : start + DELETE_KEYS_MAX]
                if not self._catalog.in_use(row.key)
            ]
            self._store.delete([row.key for row in page])
            # First the objects, then their rows: after a crash they are deleted once more.
            self._catalog.forget_garbage([row.key for row in page])
            for row in page:
                event("object_deleted", key=row.key, why=row.why)
                yield row

    def _condemn(self, keys: Sequence[str], now_us: int) -> None:
        count = max(1, self._metadata.operations_max - 8)
        for start in range(0, len(keys), count):
            garbage = [Garbage(key, now_us, UNREGISTERED) for key in keys[start : start + count]]
            puts = {rows.garbage_key(row.key): rows.encode_row(row) for row in garbage}
            lease = LeaseEpoch(LEASE_NAME, self._epoch())
            self._metadata.commit(Transaction(puts=puts, requires=lease))
            for row in garbage:
                event("object_condemned", key=row.key, why=row.why)

    # -- what nothing registered -------------------------------------------------------------------

    def _unregistered(self, now_us: int) -> tuple[list[ObjectMeta], int]:
        """Return objects that nothing registered, and how many are too young to be judged."""
        listed = list(self._listed())
        # Only now: what was registered while the store was listed is in use by now.
        condemned = {row.key for row in self._condemned()}
        found: list[ObjectMeta] = []
        spared = 0
        for meta in listed:
            if meta.key in condemned or self._catalog.in_use(meta.key):
                continue
            if meta.modified_us + self._grace_us > now_us:
                spared += 1
                continue
            found.append(meta)
        return found, spared

    def _listed(self) -> Iterator[ObjectMeta]:
        """Yield the objects whose keys this broker made, up to its own epoch."""
        prefix, after, epoch = f"{self._broker.hex()}/", "", self._epoch()
        while True:
            page = self._store.list(prefix, after=after, limit=LIST_KEYS_MAX)
            if not page:
                return
            for meta in page:
                parts = parse_key(meta.key)
                if parts is not None and parts.broker == self._broker and parts.epoch <= epoch:
                    yield meta
            if page[-1].key <= after:
                raise Unavailable("store lists its keys out of order", key=page[-1].key)
            after = page[-1].key
