"""Leases in etcd: a stored epoch that only grows, and a key attached to etcd's own lease.

Both sides know how long a lease lasts. Etcd removes the key when the time is over. The holder
counts by its own monotonic clock from before the answered call, so it stops earlier, never later.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Final

import attrs

from frazil.errors import Conflict, FrazilError
from frazil.metadata.etcd_rpc import LeaseGone
from frazil.metadata.etcd_space import HELD, LEASE, modified_is
from frazil.metadata.lease import Lease, LeaseRecord, check_lease
from frazil.metadata.proto import etcd_pb2 as wire
from frazil.metadata.transaction import number_of

if TYPE_CHECKING:
    from frazil.clock import Clock
    from frazil.metadata.etcd_space import EtcdSpace

__all__ = ["EtcdLeases"]

TRIES_MAX: Final = 20
RELEASE_TIMEOUT_S: Final = 1.0


@attrs.frozen
class _Own:
    lease: Lease
    id: int
    """The id of etcd's lease."""


@attrs.frozen
class _Stored:
    """A lease as etcd stores it: the record and the key, with the revisions of their last puts."""

    record: LeaseRecord
    record_revision: int
    held: wire.KeyValue | None

    @property
    def epoch_held(self) -> int | None:
        return number_of(self.held)


class EtcdLeases:
    """The leases granted to one store. Safe for any thread."""

    def __init__(self, space: EtcdSpace, clock: Clock) -> None:
        self._space = space
        self._clock = clock
        self._lock = threading.Lock()
        self._own: dict[str, _Own] = {}

    def acquire(self, name: str, holder: str, ttl_s: float, epoch_above: int) -> Lease:
        """Take a lease under a new epoch; see the interface of the store."""
        check_lease(name, holder, ttl_s, epoch_above)
        for _ in range(TRIES_MAX):
            stored = self._free(name, holder)
            record = stored.record.following(holder, epoch_above=epoch_above)
            lease = self._grant(name, record, ttl_s, stored)
            if lease is not None:
                return lease
        raise Conflict("lease changes its holder too often, try again", lease=name)

    def _free(self, name: str, holder: str) -> _Stored:
        """Return the stored state of a lease that this holder may take."""
        stored = self._read(name)
        if stored.held is None or stored.record.holder == holder:
            return stored
        own = self._own.get(name)
        if own is not None and own.lease.epoch == stored.epoch_held and self._is_over(own.lease):
            # The lease is ours by etcd's clock and over by our own; our own clock decides.
            self._revoke(own)
            return self._read(name)
        raise Conflict(
            "lease is held by another",
            lease=name,
            holder=stored.record.holder,
            epoch=stored.epoch_held,
        )

    def _grant(self, name: str, record: LeaseRecord, ttl_s: float, stored: _Stored) -> Lease | None:
        """Put a lease into etcd; None if another holder was faster."""
        space, begun = self._space, self._clock.monotonic()
        granted = space.servers.change(
            "Lease/LeaseGrant",
            wire.LeaseGrantRequest(ttl=math.ceil(ttl_s)),
            wire.LeaseGrantResponse,
        )
        lease = Lease(name, record.holder, record.epoch, ttl_s, begun + ttl_s, record.since)
        own = _Own(lease, granted.id)
        held_revision = 0 if stored.held is None else stored.held.mod_revision
        try:
            outcome = space.transact(
                [
                    modified_is(space.keys.of(LEASE + name), stored.record_revision),
                    modified_is(space.keys.of(HELD + name), held_revision),
                ],
                [
                    space.keys.put(LEASE + name, record.encode()),
                    space.keys.put(HELD + name, b"%d" % record.epoch, lease=granted.id),
                ],
                otherwise=(),
            )
        except FrazilError:
            self._revoke(own)
            raise
        if not outcome.revision:
            self._revoke(own)
            return None
        with self._lock:
            before = self._own.get(name)
            self._own[name] = own
        if before is not None:
            self._revoke(before)
        return lease

    def renew(self, lease: Lease) -> Lease:
        """Extend a lease by its full time from now; see the interface of the store."""
        own = self._own.get(lease.name)
        if own is None or own.lease.epoch != lease.epoch or self._is_over(own.lease):
            raise self._lost(lease.name, lease.epoch)
        begun = self._clock.monotonic()
        # A hanging server must leave time for another try before the lease is over.
        if self._space.servers.keep_alive(own.id, timeout_s=own.lease.ttl_s / 3) <= 0:
            raise self._lost(lease.name, lease.epoch)
        # The key may belong to another by now, if the holder acquired the lease again elsewhere.
        _, (found,) = self._space.read(HELD + lease.name)
        if number_of(found) != lease.epoch:
            raise self._lost(lease.name, lease.epoch)
        renewed = attrs.evolve(own.lease, expires_at=begun + own.lease.ttl_s)
        with self._lock:
            if self._own.get(lease.name) is not own:
                raise self._lost(lease.name, lease.epoch)
            self._own[lease.name] = _Own(renewed, own.id)
        return renewed

    def release(self, lease: Lease) -> None:
        """Release a lease; a lost lease is ignored."""
        with self._lock:
            own = self._own.get(lease.name)
            if own is None or own.lease.epoch != lease.epoch:
                return
            del self._own[lease.name]
        self._revoke(own)

    def held(self, name: str) -> Lease | None:
        """Return the lease if it is held now; for another holder the remaining time is etcd's."""
        stored = self._read(name)
        epoch = stored.epoch_held
        if epoch is None or stored.held is None:
            return None
        own = self._own.get(name)
        if own is not None and own.lease.epoch == epoch:
            return None if self._is_over(own.lease) else own.lease
        now = self._clock.monotonic()
        answer = self._space.servers.read(
            "Lease/LeaseTimeToLive",
            wire.LeaseTimeToLiveRequest(id=stored.held.lease),
            wire.LeaseTimeToLiveResponse,
        )
        record = stored.record
        if answer.ttl < 0:
            return None
        return Lease(name, record.holder, epoch, answer.granted_ttl, now + answer.ttl, record.since)

    def check(self, name: str, epoch: int) -> None:
        """Refuse an epoch that is over by our own clock, even if etcd still has its key."""
        own = self._own.get(name)
        if own is not None and own.lease.epoch == epoch and self._is_over(own.lease):
            raise self._lost(name, epoch)

    def close(self) -> None:
        """Release all leases, as far as the servers answer at once."""
        with self._lock:
            own, self._own = list(self._own.values()), {}
        for each in own:
            if not self._revoke(each):
                return

    def _read(self, name: str) -> _Stored:
        _, (record, held) = self._space.read(LEASE + name, HELD + name)
        if record is None:
            return _Stored(LeaseRecord(0, ""), 0, held)
        return _Stored(LeaseRecord.decode(record.value), record.mod_revision, held)

    def _is_over(self, lease: Lease) -> bool:
        return lease.expires_at <= self._clock.monotonic()

    def _revoke(self, own: _Own) -> bool:
        """Revoke an unused lease of etcd; it expires by itself if this fails."""
        try:
            self._space.servers.change(
                "Lease/LeaseRevoke",
                wire.LeaseRevokeRequest(id=own.id),
                wire.LeaseRevokeResponse,
                timeout_s=RELEASE_TIMEOUT_S,
            )
        except LeaseGone:
            return True
        except FrazilError:
            return False
        return True

    def _lost(self, name: str, epoch: int) -> Conflict:
        return Conflict("lease is no longer held, stop acting under it", lease=name, epoch=epoch)
