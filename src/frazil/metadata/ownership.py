"""Ownership of a broker's data: the lease, its epoch, and the deadline for answers.

A lock on the directory keeps other processes of this machine out. With metadata on servers
another machine could take over; the lease excludes that. Its epoch is part of every transaction
and of the names of objects; after its deadline nothing is written and no call is answered.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final

from frazil.errors import Closed, Conflict, FrazilError
from frazil.fs import read_file
from frazil.metadata.transaction import LeaseEpoch
from frazil.telemetry import event, warn

if TYPE_CHECKING:
    from collections.abc import Callable

    from frazil.clock import Clock
    from frazil.fs import FileSystem
    from frazil.metadata.lease import Lease
    from frazil.metadata.store import MetadataStore

__all__ = ["LEASE", "Ownership", "holder_of"]

LEASE: Final = "broker"
LOCAL_TTL_S: Final = 86_400.0
MARGIN_SHARE: Final = 0.2
"""The last share of a lease's time: it still excludes others, but its holder has stopped."""
WAIT_S: Final = 0.2
_BOOT: Final = "/proc/sys/kernel/random/boot_id"


class Ownership:
    """The lease of one open data directory.

    `take` acquires it; a thread then renews a lease with a deadline. Before `take` the epoch is 0.
    All methods may be called from any thread.
    """

    def __init__(
        self, store: MetadataStore, clock: Clock, *, holder: str, ttl_s: float | None
    ) -> None:
        self._store = store
        self._clock = clock
        self._holder = holder
        self._ttl_s = LOCAL_TTL_S if ttl_s is None else ttl_s
        self.expires = ttl_s is not None
        """Whether the lease has a deadline, that is, whether another machine could take over."""
        self._lock = threading.Lock()
        self._lease: Lease | None = None
        self._deadline = 0.0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.fenced: Closed | None = None
        """Why this process may never write again; None while it may write."""
        self.trouble: FrazilError | None = None
        """Why the last renewal of the lease failed; None if it succeeded."""
        self.on_epoch: Callable[[int], None] = lambda _epoch: None
        """Called with each epoch after the first one."""
        self.on_fenced: Callable[[Closed], None] = lambda _error: None
        """Called once when another broker has taken over."""

    @property
    def epoch(self) -> int:
        """The epoch under which this process acts; it only grows.

        A lease without a deadline is extended by each read of its epoch.
        """
        if not self.expires:
            self._last_on()
        lease = self._lease
        return 0 if lease is None else lease.epoch

    def requires(self) -> LeaseEpoch | None:
        """Return the lease that a transaction must require; None if it was never taken."""
        epoch = self.epoch
        return LeaseEpoch(LEASE, epoch) if epoch else None

    def may_write(self) -> bool:
        """Tell whether this process is surely the owner: the journals' fence. Takes no lock."""
        return not self.expires or (
            self.fenced is None and self._clock.monotonic() < self._deadline
        )

    def take(self, *, epoch_above: int) -> int:
        """Acquire the lease above all epochs known from elsewhere and renew it; return the epoch.

        Waits until the lease of a dead owner expires.

        Raises:
            Conflict: another owner renews it: two brokers have the same metadata.
            Unavailable: the metadata store does not answer.
        """
        until = self._clock.monotonic() + (self._ttl_s * 2 + 1 if self.expires else 0)
        awaited = False
        while self._lease is None:
            try:
                self._hold(self._acquire(epoch_above))
            except Conflict as error:
                if self._clock.monotonic() >= until:
                    raise
                if not awaited:
                    event("lease_awaited", holder=error.details.get("holder"))
                awaited = True
                self._stopping.wait(WAIT_S)
        if self.expires:
            self._thread = threading.Thread(target=self._run, name="frazil-lease", daemon=True)
            self._thread.start()
        event("lease_taken", epoch=self.epoch)
        return self.epoch

    def stop(self) -> None:
        """Stop renewing the lease and release it. May be called again."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        with self._lock:
            lease, self._lease, self._deadline = self._lease, None, 0.0
        if lease is not None and self.fenced is None:
            # The lease is not needed any more; it expires by itself.
            with contextlib.suppress(FrazilError):
                self._store.release(lease)

    def _acquire(self, epoch_above: int) -> Lease:
        return self._store.acquire(LEASE, self._holder, self._ttl_s, epoch_above=epoch_above)

    def _hold(self, lease: Lease) -> None:
        self._deadline = lease.expires_at - MARGIN_SHARE * lease.ttl_s
        self._lease = lease

    def _last_on(self) -> None:
        """Extend a lease of this machine: the lock of the directory decides its holder."""
        if not self._is_half_over():
            return
        with self._lock:
            lease = self._lease
            if lease is None or not self._is_half_over():
                return
            try:
                self._lease = self._store.renew(lease)
            except Conflict:
                self._lease = self._acquire(lease.epoch)

    def _is_half_over(self) -> bool:
        lease = self._lease
        return lease is not None and self._clock.monotonic() >= lease.expires_at - lease.ttl_s / 2

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s = self._ttl_s / 3
        while not self._stopping.wait(pause_s if self.trouble is None else min(pause_s, 1.0)):
            try:
                self.keep()
            except FrazilError as error:
                if self.trouble is None:
                    warn("lease_not_renewed", error=error)
                self.trouble = error
                if isinstance(error, Closed):
                    return

    def keep(self) -> None:
        """Renew the lease, or take it again if it expired and no other holder had it since.

        Raises:
            Unavailable: the renewal failed for now; the deadline is unchanged.
            Closed: another holder had it: this process is fenced for good.
        """
        lease = self._lease
        if lease is None:
            return
        try:
            self._hold(self._store.renew(lease))
        except Conflict:
            self._regain(lease)
        if self.trouble is not None:
            event("lease_kept", epoch=self.epoch)
            self.trouble = None

    def _regain(self, lost: Lease) -> None:
        try:
            lease = self._acquire(lost.epoch)
        except Conflict as error:
            raise self._fence(lost, error.details.get("holder", "unknown")) from error
        if lease.since > lost.epoch:
            self._store.release(lease)
            raise self._fence(lost, "one that is gone")
        self._hold(lease)
        event("lease_regained", epoch=lease.epoch, epoch_before=lost.epoch)
        self.on_epoch(lease.epoch)

    def _fence(self, lost: Lease, holder: object) -> Closed:
        error = Closed(
            "another broker has taken over this broker's data; start this one again with its own "
            "metadata prefix or after the other has ended",
            epoch=lost.epoch,
            holder=holder,
        )
        self.fenced = error
        warn("broker_fenced", epoch=lost.epoch, holder=holder)
        self.on_fenced(error)
        return error


def holder_of(file_system: FileSystem, lock_path: str, clock: Clock) -> str:
    """Return a name for the owner of a data directory that only its restarts share.

    The name is this run of this machine's kernel and the lock's file. A process with that name
    holds the lock, so the previous process is dead and its lease may be taken at once. On a system
    without these facts the name is new each time, and the previous lease has to expire.
    """
    try:
        found, boot = file_system.stat(lock_path), read_file(_BOOT, 64)
    except OSError:
        found, boot = None, b""
    name = boot.decode(errors="replace").strip()
    if found is None or not found.identity or not name:
        return f"process:{clock.random_bytes(16).hex()}"
    return f"boot:{name}:file:{found.identity}"
