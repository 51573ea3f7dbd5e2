"""Leases: the exclusive right to act under a name, and the epoch that fences earlier holders.

An epoch is stored and only grows. The process that keeps the lease book measures a lease by its
monotonic clock; after a restart no lease is held until it is acquired again, with a higher epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import msgspec

from frazil.errors import Conflict, CorruptionError, InvalidRequest
from frazil.metadata.transaction import NUMBER_MAX, check_name
from frazil.struct_types import learnt

if TYPE_CHECKING:
    from frazil.clock import Clock

__all__ = ["LEASE_TTL_S_MAX", "Lease", "LeaseBook", "LeaseRecord", "check_lease"]

LEASE_TTL_S_MAX: Final = 86_400.0


@attrs.frozen
class Lease:
    """The right to act under `name` until `expires_at` (by the clock's `monotonic`).

    `since` is the first epoch of this holder's unbroken tenure. A holder that lost the lease and
    took it again with a `since` not above its earlier epoch missed nothing.
    """

    name: str
    holder: str
    epoch: int
    ttl_s: float
    expires_at: float
    since: int = 0


class LeaseRecord(msgspec.Struct, frozen=True):
    """The stored record of a lease; it stays when the lease ends, so that epochs only grow."""

    epoch: int
    holder: str
    since: int = 0
    """The first epoch of this holder after the last one of another."""

    def following(self, holder: str, *, epoch_above: int) -> LeaseRecord:
        """Return the record of the next epoch, for this or another holder."""
        epoch = max(self.epoch, epoch_above) + 1
        return LeaseRecord(epoch, holder, self.since if holder == self.holder else epoch)

    def encode(self) -> bytes:
        """Return the stored form."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, value: bytes) -> LeaseRecord:
        """Read the stored form."""
        try:
            return msgspec.json.decode(value, type=learnt(cls))
        except msgspec.MsgspecError as error:
            raise CorruptionError("lease record is damaged", value=value.hex()) from error


def check_lease(name: str, holder: str, ttl_s: float, epoch_above: int) -> None:
    """Refuse an invalid request for a lease."""
    check_name(name, what="lease name")
    check_name(holder, what="lease holder")
    if not 0 < ttl_s <= LEASE_TTL_S_MAX:
        raise InvalidRequest(
            "ttl of a lease is out of range", ttl_s=ttl_s, ttl_s_max=LEASE_TTL_S_MAX
        )
    if not 0 <= epoch_above < NUMBER_MAX:
        raise InvalidRequest("epoch is out of range", epoch=epoch_above)


class LeaseBook:
    """The leases held now. Not thread-safe: the store calls it under its lock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._leases: dict[str, Lease] = {}

    def held(self, name: str) -> Lease | None:
        """Return the lease if it is held now."""
        lease = self._leases.get(name)
        return lease if lease is not None and lease.expires_at > self._clock.monotonic() else None

    def check_acquire(self, name: str, holder: str, ttl_s: float, epoch_above: int) -> None:
        """Refuse an invalid request, or a lease of another holder.

        Raises:
            Conflict: another holder has it; `remaining_s` is the longest time it can still last.
        """
        check_lease(name, holder, ttl_s, epoch_above)
        found = self.held(name)
        if found is not None and found.holder != holder:
            raise Conflict(
                "lease is held by another",
                lease=name,
                holder=found.holder,
                epoch=found.epoch,
                remaining_s=round(found.expires_at - self._clock.monotonic(), 3),
            )

    def grant(self, name: str, record: LeaseRecord, ttl_s: float) -> Lease:
        """Note the lease as held, from now on; the record must be durable."""
        expires_at = self._clock.monotonic() + ttl_s
        return self._note(Lease(name, record.holder, record.epoch, ttl_s, expires_at, record.since))

    def renew(self, lease: Lease) -> Lease:
        """Extend a held lease by its full time from now.

        Raises:
            Conflict: it expired or was acquired again; stop acting under it.
        """
        self.check(lease.name, lease.epoch)
        return self._note(attrs.evolve(lease, expires_at=self._clock.monotonic() + lease.ttl_s))

    def _note(self, lease: Lease) -> Lease:
        self._leases[lease.name] = lease
        return lease

    def release(self, lease: Lease) -> None:
        """End a lease; a lost lease is ignored."""
        found = self._leases.get(lease.name)
        if found is not None and found.epoch == lease.epoch:
            del self._leases[lease.name]

    def check(self, name: str, epoch: int) -> None:
        """Refuse an epoch that is not the held one.

        Raises:
            Conflict: the lease is expired, released, or held under another epoch.
        """
        found = self.held(name)
        if found is None or found.epoch != epoch:
            raise Conflict(
                "lease is no longer held, stop acting under it",
                lease=name,
                epoch=epoch,
                epoch_held=found.epoch if found is not None else "none",
            )
