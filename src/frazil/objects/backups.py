"""Backups of an engine's metadata into its object store: every so often, and when asked for.

A backup is soon made when topics, their columns or subscriptions were changed: objects tell less of
those than of records.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from typing import TYPE_CHECKING, Any, Final

import msgspec

from frazil.errors import Conflict, FrazilError
from frazil.log import encode_checkpoint
from frazil.metadata import LEASE
from frazil.objects.backup import (
    KEPT,
    Backup,
    LaneCopy,
    TopicCopy,
    backup_keys,
    write_backup,
)
from frazil.telemetry import event, warn
from frazil.topic import StateTag

if TYPE_CHECKING:
    from frazil.objects.catalog import ObjectCatalog
    from frazil.objects.store import ObjectStore
    from frazil.topic import Instance

__all__ = ["Backups"]

TRY_AGAIN_S: Final = 30.0
SOON_S: Final = 5.0
"""Changes of topics wait at least so long for the next backup."""


class Backups:
    """Makes the backups of one engine. Any thread may call."""

    def __init__(self, engine: Instance, catalog: ObjectCatalog, store: ObjectStore) -> None:
        self._engine = engine
        self._catalog = catalog
        self._store = store
        self._lock = threading.Lock()
        self._seq = 0
        """The number of the last backup in the store; 0 while it is not known."""
        self._content = b""
        self._shape: tuple[int, ...] = ()
        self._next_at = self._made_at = 0.0
        self.last: dict[str, Any] = {}
        """What `now` returned last."""

    def tick(self) -> None:
        """Make a backup if one is due: at the interval, or soon after topics were changed."""
        now = self._engine.clock.monotonic()
        shape = self._shape_now()
        soon = shape != self._shape and self._content and now >= self._made_at + SOON_S
        if now < self._next_at and not soon:
            return
        self._made_at = now
        self._next_at = now + min(TRY_AGAIN_S, self._engine.settings.objects.backup_interval_s)
        self.make(only_changed=True)
        self._shape = shape
        self._next_at = now + self._engine.settings.objects.backup_interval_s

    def now(self) -> dict[str, Any]:
        """Make a backup and return what it has, ready for JSON.

        Raises:
            Unavailable: if the store or a journal does not answer.
            Conflict: if another broker with the same objects is in use.
        """
        self.make(only_changed=False)
        return self.last

    def make(self, *, only_changed: bool) -> None:
        """Write a backup, unless nothing has changed since the last one and that is enough."""
        with self._lock:
            lanes = (self._copy(),)
            topics = tuple(
                TopicCopy(topic, picture.state, picture.descriptors)
                for topic, picture in sorted(self._catalog.topics().items())
            )
            content = hashlib.sha256(msgspec.msgpack.encode([lanes, topics])).digest()
            if only_changed and content == self._content:
                return
            self._write(lanes, topics)
            self._content = content

    def _write(self, lanes: tuple[LaneCopy, ...], topics: tuple[TopicCopy, ...]) -> None:
        engine = self._engine
        broker = engine.log.journal.journal_id
        self._check_alone(broker)
        backup = Backup(
            broker=broker,
            epoch=engine.ownership.epoch,
            seq=self._seq + 1,
            created_us=engine.clock.now_us(),
            lanes=lanes,
            topics=topics,
        )
        key, size = write_backup(self._store, backup)
        self._seq = backup.seq
        self.last = {
            "key": key,
            "bytes": size,
            "epoch": backup.epoch,
            "created_us": backup.created_us,
            "topics": len(engine.log.journal.state.topics),
            "objects": sum(len(copy.descriptors) for copy in topics),
        }
        event("backup_made", key=key, bytes=size)
        # Older ones may go; that this fails is no reason to make the backup again.
        with contextlib.suppress(FrazilError):
            self._forget(broker, backup.epoch)

    def _check_alone(self, broker: bytes) -> None:
        """Look at who else backs up under this broker's name, and go on behind the last number.

        Raises:
            Conflict: one that was restored from this store is at work, and counts for more.
        """
        found = backup_keys(self._store, broker)
        epoch = self._engine.ownership.epoch
        if found and found[-1].epoch > epoch:
            if not self._engine.ownership.expires:
                # The next life of this one then counts for more than the other.
                value = b"%d" % found[-1].epoch
                self._engine.states.put(StateTag.EPOCH, LEASE, value)
            raise Conflict(
                "another broker with these objects is in use, restored from this store or from a "
                "copy: what this one uploads would not be restored; end the other one, then start "
                "this one again",
                epoch=epoch,
                epoch_found=found[-1].epoch,
                key=found[-1].key,
            )
        seq = max((key.seq for key in found), default=0)
        if self._seq and seq > self._seq:
            warn("restored_elsewhere", key=found[-1].key, seq=seq, seq_own=self._seq)
        self._seq = max(seq, self._seq)

    def _forget(self, broker: bytes, epoch: int) -> None:
        """Remove old backups, none of an owner that came after this one."""
        keys = backup_keys(self._store, broker)
        gone = [found.key for found in keys[:-KEPT] if found.epoch <= epoch]
        if gone:
            self._store.delete(gone)

    def _copy(self) -> LaneCopy:
        journal = self._engine.log.journal

        def take() -> LaneCopy:
            checkpoint = encode_checkpoint(journal.state, lsn=journal.state.lsn)
            return LaneCopy(0, journal.journal_id, checkpoint, journal.state.lsn)

        # Its state belongs to the journal's thread.
        found: LaneCopy = self._engine.log.queue.call(take)
        return found

    def _shape_now(self) -> tuple[int, ...]:
        """Return numbers that change when topics, columns or subscriptions do."""
        known = list(self._engine.log.journal.state.topics.values())
        return (
            len(known),
            sum(topic.spec.version for topic in known),
            sum(topic.schema_version for topic in known),
            sum(len(runtime.state.cursors) for runtime in self._engine.runtimes),
        )
