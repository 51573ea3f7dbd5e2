"""The metadata store in etcd: metadata shared between machines, and leases that fence owners.

A call without an answer leaves the store open; the store works again when the servers do. See
`docs/internals/metadata.md` for the keys and `docs/adr/0020-etcd.md` for the choice of client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from frazil.errors import Conflict
from frazil.metadata.etcd_lease import EtcdLeases
from frazil.metadata.etcd_rpc import Compacted, EtcdServers, TooLarge
from frazil.metadata.etcd_space import (
    APPLIED,
    HELD,
    STORE,
    EtcdSpace,
    modified_is,
)
from frazil.metadata.proto import etcd_pb2 as wire
from frazil.metadata.transaction import (
    LIST_BYTES_MAX,
    LIST_ENTRIES_MAX,
    Entry,
    Revision,
    Transaction,
    check_key,
    check_name,
    check_page,
    check_transaction,
    number_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from frazil.clock import Clock
    from frazil.config import EtcdSettings
    from frazil.metadata.lease import Lease
    from frazil.metadata.store import Page

__all__ = ["EtcdStore"]

# The default limits of etcd: 128 conditions, steps and reads each, and 1.5 MiB in all.
OPERATIONS_MAX: Final = 120
BYTES_MAX: Final = (1 << 20) + (64 << 10)
PAGE_ENTRIES_FIRST: Final = 32
PAGE_GROWTH: Final = 8
TRIES_MAX: Final = 20


class EtcdStore:
    """A metadata store in etcd; see `frazil.metadata.store.MetadataStore` for the contract."""

    operations_max = OPERATIONS_MAX
    bytes_max = BYTES_MAX

    def __init__(self, servers: EtcdServers, space: EtcdSpace, clock: Clock) -> None:
        self._servers = servers
        self._space = space
        self._keys = space.keys
        self.id = space.id
        """Distinguishes this store from others, including a later one under the same keys."""
        self._leases = EtcdLeases(space, clock)
        self._numbers: dict[str, wire.KeyValue | None] = {}

    @classmethod
    def open(cls, settings: EtcdSettings, *, clock: Clock) -> EtcdStore:
        """Connect to the servers and open the store; create it if it does not exist.

        Raises:
            Unavailable: if no server answers.
            InvalidRequest: if the settings are wrong or the user is refused.
        """
        servers = EtcdServers(settings, clock)
        try:
            space = EtcdSpace(servers, settings.prefix, fresh_id=clock.random_bytes(16).hex())
        except BaseException:
            servers.close()
            raise
        return cls(servers, space, clock)

    # -- reading ---------------------------------------------------------------------------------

    def get(self, key: str) -> Entry | None:
        check_key(key)
        _, (found,) = self._space.read(key)
        return None if found is None else self._keys.entry(found)

    def list(self, prefix: str, *, limit: int = LIST_ENTRIES_MAX, after: str | None = None) -> Page:
        check_page(prefix, limit=limit, after=after)
        # The smallest key after another is that key with a zero byte.
        first = self._keys.of(prefix)
        if after is not None:
            first = max(first, self._keys.of(after) + b"\0")
        end = self._keys.end(prefix)
        page: Page = []
        size = revision = 0
        some = min(limit, PAGE_ENTRIES_FIRST)
        while first < end:
            request = wire.RangeRequest(key=first, range_end=end, limit=some, revision=revision)
            try:
                answer = self._servers.read("KV/Range", request, wire.RangeResponse)
            except Compacted:
                # Each page is consistent in itself; the next page may show a later state.
                return page
            except TooLarge:
                some = max(1, some // 2)
                continue
            revision = revision or answer.header.revision
            for found in answer.kvs:
                size += len(found.value)
                if page and size > LIST_BYTES_MAX:
                    return page
                page.append(self._keys.entry(found))
            if not answer.more or len(page) >= limit:
                return page
            first = answer.kvs[-1].key + b"\0"
            some = min(limit - len(page), some * PAGE_GROWTH)
        return page

    def revision(self) -> Revision:
        number, _ = self._space.read(STORE)
        return self._keys.revision(number)

    def applied_lsn(self, journal_id: str) -> int | None:
        check_name(journal_id, what="journal id")
        _, (found,) = self._space.read(APPLIED + journal_id)
        return number_of(found)

    # -- changing --------------------------------------------------------------------------------

    def commit(self, transaction: Transaction) -> Revision:
        check_transaction(transaction, operations_max=OPERATIONS_MAX, bytes_max=BYTES_MAX)
        requires = transaction.requires
        if requires is not None:
            self._leases.check(requires.name, requires.epoch)
        numbers = {APPLIED + journal: lsn for journal, lsn in transaction.applied.items()}
        keys = self._keys
        steps = [keys.put(key, value) for key, value in transaction.puts.items()]
        steps += [keys.delete(key) for key in transaction.deletes]
        steps += [keys.put(key, b"%d" % number) for key, number in numbers.items()]
        fixed, otherwise = self._conditions(transaction)
        # The cached numbers may be old; the transaction detects that.
        known = {key: self._numbers.get(key) for key in numbers}
        for _ in range(TRIES_MAX):
            unchanged = [
                modified_is(keys.of(key), 0 if found is None else found.mod_revision)
                for key, found in known.items()
            ]
            found: Sequence[wire.KeyValue | None]
            if all(_is_forward(known[key], number) for key, number in numbers.items()):
                outcome = self._space.transact(
                    [*fixed, *unchanged], steps, otherwise=[*otherwise, *numbers]
                )
                if outcome.revision:
                    return self._note(numbers, outcome.revision)
                found = outcome.found
            else:
                # The cache may be old, or a compare may explain why the transaction was refused.
                _, found = self._space.read(*otherwise, *numbers)
            _check_lease(transaction, found[: len(otherwise)])
            for compare, pair in zip(transaction.compares, found, strict=False):
                compare.check(None if pair is None else keys.entry(pair))
            known = dict(zip(numbers, found[len(otherwise) :], strict=True))
            for key, number in numbers.items():
                if not _is_forward(known[key], number):
                    stored = number_of(known[key])
                    raise Conflict(
                        "metadata number would decrease", key=key, number=number, stored=stored
                    )
        raise Conflict("metadata is changed by others too often, try again")

    def _conditions(
        self, transaction: Transaction
    ) -> tuple[Sequence[wire.Condition], Sequence[str]]:
        """Return the conditions of a transaction, and the keys that explain a refusal."""
        found = [self._keys.compare(compare) for compare in transaction.compares]
        otherwise = [compare.key for compare in transaction.compares]
        requires = transaction.requires
        if requires is not None:
            held, epoch = self._keys.of(HELD + requires.name), b"%d" % requires.epoch
            found.append(wire.Condition(target=wire.VALUE, key=held, value=epoch))
            otherwise.append(HELD + requires.name)
        return found, otherwise

    def _note(self, numbers: Mapping[str, int], revision: int) -> Revision:
        for key, number in numbers.items():
            self._numbers[key] = wire.KeyValue(value=b"%d" % number, mod_revision=revision)
        return self._keys.revision(revision)

    # -- leases --------------------------------------------------------------------------------

    def acquire(self, name: str, holder: str, ttl_s: float, *, epoch_above: int = 0) -> Lease:
        return self._leases.acquire(name, holder, ttl_s, epoch_above)

    def renew(self, lease: Lease) -> Lease:
        self._servers.check_open()
        return self._leases.renew(lease)

    def release(self, lease: Lease) -> None:
        self._servers.check_open()
        self._leases.release(lease)

    def held(self, name: str) -> Lease | None:
        check_name(name, what="lease name")
        return self._leases.held(name)

    def close(self) -> None:
        self._leases.close()
        self._servers.close()


def _is_forward(known: wire.KeyValue | None, number: int) -> bool:
    return known is None or number >= (number_of(known) or 0)


def _check_lease(transaction: Transaction, found: Sequence[wire.KeyValue | None]) -> None:
    requires = transaction.requires
    if requires is not None and number_of(found[-1]) != requires.epoch:
        raise Conflict(
            "lease is no longer held, stop acting under it",
            lease=requires.name,
            epoch=requires.epoch,
            epoch_held=number_of(found[-1]) or "none",
        )
