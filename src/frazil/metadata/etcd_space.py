"""One store's place in etcd and its transactions, each of which happens now or never.

A transaction that had no answer may still be under way, and could be applied after others that
followed it. Therefore every transaction requires the ticket to be unchanged, and after one
without an answer the ticket is written anew before anything else is: what comes late is refused,
and what a reader then sees is what counts.

<prefix>/topics/…            keys of callers, as they are
<prefix>!store               made once; revisions are counted from it
<prefix>!ticket              written when a commit had no answer, so that it cannot come late
<prefix>!applied/<journal>   the LSN up to which a journal is applied
<prefix>!lease/<name>        the last epoch of a lease and who had it; it stays
<prefix>!held/<name>         the epoch of a lease that is held; it goes with etcd's own lease
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import msgspec

from frazil.errors import Closed, Conflict, CorruptionError, InvalidRequest, Unavailable
from frazil.metadata.proto import etcd_pb2 as wire
from frazil.metadata.transaction import Entry, Revision, prefix_end
from frazil.struct_types import learnt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.metadata.etcd_rpc import EtcdServers
    from frazil.metadata.transaction import Compare

__all__ = [
    "APPLIED",
    "HELD",
    "LEASE",
    "STORE",
    "TICKET",
    "EtcdSpace",
    "Keys",
    "Outcome",
    "created_is",
    "modified_is",
]

STORE: Final = "!store"
TICKET: Final = "!ticket"
APPLIED: Final = "!applied/"
LEASE: Final = "!lease/"
HELD: Final = "!held/"


@attrs.frozen
class Keys:
    """How one store is kept in etcd: the prefix of its keys, and the revision that created it."""

    prefix: bytes
    base: int = 0

    def of(self, key: str) -> bytes:
        """Return a key as etcd has it."""
        return self.prefix + key.encode()

    def end(self, prefix: str) -> bytes:
        """Return the first key of etcd after all that start with `prefix`."""
        return self.prefix + prefix_end(prefix).encode()

    def entry(self, found: wire.KeyValue) -> Entry:
        """Return a pair of etcd as an entry of the store."""
        key = found.key[len(self.prefix) :].decode()
        return Entry(key, found.value, found.version, self.revision(found.mod_revision))

    def revision(self, number: int) -> Revision:
        """Return a revision of etcd as one of the store."""
        return Revision(number - self.base)

    def compare(self, compare: Compare) -> wire.Condition:
        """Return a caller's condition."""
        key = self.of(compare.key)
        if compare.mod_revision is not None:
            return modified_is(key, compare.mod_revision + self.base)
        return wire.Condition(target=wire.VERSION, key=key, version=compare.version)

    def put(self, key: str, value: bytes, *, lease: int = 0) -> wire.Operation:
        """Return the step that puts a key."""
        return wire.Operation(put=wire.PutRequest(key=self.of(key), value=value, lease=lease))

    def delete(self, key: str) -> wire.Operation:
        """Return the step that deletes a key."""
        return wire.Operation(delete=wire.DeleteRequest(key=self.of(key)))

    def read(self, key: str) -> wire.Operation:
        """Return the step that reads a key."""
        return wire.Operation(range=wire.RangeRequest(key=self.of(key)))

    def found(self, results: Sequence[wire.Result]) -> list[wire.KeyValue | None]:
        """Return what steps that read have found, None for a key that is not there."""
        return [result.range.kvs[0] if result.range.kvs else None for result in results]


def modified_is(key: bytes, revision: int) -> wire.Condition:
    """Return the condition that a key was last put at a revision of etcd, 0 that it is absent."""
    return wire.Condition(target=wire.MOD, key=key, mod_revision=revision)


def created_is(key: bytes, revision: int) -> wire.Condition:
    """Return the condition that a key is the one that was made at a revision of etcd."""
    return wire.Condition(target=wire.CREATE, key=key, create_revision=revision)


FORMAT: Final = 1
TRIES_MAX: Final = 20
FIND_TRIES: Final = 3


@attrs.frozen
class Outcome:
    """What became of a transaction: its revision in etcd, or what was found instead.

    Attributes:
        revision: of etcd; 0 if a condition did not hold.
        found: the keys that were to be read in this case, None for those that are absent.
    """

    revision: int
    found: tuple[wire.KeyValue | None, ...] = ()


class StoreRecord(msgspec.Struct, frozen=True):
    """What is kept about the store itself."""

    format: int
    id: str
    """Random id made at creation: another one shows that the store was removed and made again."""


class EtcdSpace:
    """Reads and transactions of one store. Safe for any thread."""

    def __init__(self, servers: EtcdServers, prefix: str, *, fresh_id: str) -> None:
        self.servers = servers
        self.id = fresh_id
        self.keys = Keys(prefix.encode())
        self._ticket = 0
        self._unsettled = False
        self._find()

    def _find(self) -> None:
        """Find the store, or make it: its revisions count from the one that created it."""
        record = msgspec.json.encode(StoreRecord(FORMAT, self.id))
        request = wire.TxnRequest(
            compare=[modified_is(self.keys.of(STORE), 0)],
            success=[self.keys.put(STORE, record)],
            failure=[self.keys.read(STORE), self.keys.read(TICKET)],
        )
        answer = self._insist(request)
        if answer.succeeded:
            self.keys = Keys(self.keys.prefix, answer.header.revision)
            return
        store, ticket = self.keys.found(answer.responses)
        assert store is not None, "the condition says that it is there"
        self.id = _record(store).id
        self.keys = Keys(self.keys.prefix, store.create_revision)
        self._ticket = 0 if ticket is None else ticket.mod_revision

    def _insist(self, request: wire.TxnRequest) -> wire.TxnResponse:
        """Send what may be done twice, also if the first try had no answer: a leader may be new."""
        for left in range(FIND_TRIES - 1, -1, -1):
            try:
                return self.servers.change("KV/Txn", request, wire.TxnResponse)
            except Unavailable as error:
                if not left or error.details.get("outcome") != "unknown":
                    raise
        raise AssertionError("the last try returns or raises")

    def read(self, *keys: str) -> tuple[int, list[wire.KeyValue | None]]:
        """Return etcd's revision and what some keys have at this moment."""
        request = wire.TxnRequest(success=[self.keys.read(key) for key in keys])
        answer = self.servers.read("KV/Txn", request, wire.TxnResponse)
        return answer.header.revision, self.keys.found(answer.responses)

    def transact(
        self,
        conditions: Sequence[wire.Condition],
        steps: Sequence[wire.Operation],
        *,
        otherwise: Sequence[str],
    ) -> Outcome:
        """Do all steps if all conditions hold, else read the keys of `otherwise`.

        Raises:
            Unavailable: with `outcome="unknown"` if it may have been done; without, it was not.
            Closed: the store in etcd is another one than at the opening.
        """
        for _ in range(TRIES_MAX):
            self._settle()
            ticket = self._ticket
            keys = self.keys
            request = wire.TxnRequest(
                compare=[
                    created_is(keys.of(STORE), keys.base),
                    modified_is(keys.of(TICKET), ticket),
                    *conditions,
                ],
                success=steps,
                failure=[keys.read(key) for key in (STORE, TICKET, *otherwise)],
            )
            answer = self._send(request)
            if answer.succeeded:
                return Outcome(answer.header.revision)
            store, now, *found = keys.found(answer.responses)
            if store is None or store.create_revision != keys.base:
                raise Closed("metadata in etcd was removed or replaced, open it again")
            if (0 if now is None else now.mod_revision) == ticket:
                return Outcome(0, tuple(found))
            self._ticket = 0 if now is None else now.mod_revision
        raise Conflict("metadata is settled again and again by others, try again")

    def _send(self, request: wire.TxnRequest) -> wire.TxnResponse:
        try:
            return self.servers.change("KV/Txn", request, wire.TxnResponse)
        except Unavailable as error:
            if error.details.get("outcome") == "unknown":
                self._unsettled = True
            raise

    def _settle(self) -> None:
        """Keep out what had no answer, before anything else is done."""
        if not self._unsettled:
            return
        request = wire.TxnRequest(
            compare=[created_is(self.keys.of(STORE), self.keys.base)],
            success=[self.keys.put(TICKET, b"")],
        )
        try:
            answer = self.servers.change("KV/Txn", request, wire.TxnResponse)
        except Unavailable as error:
            # Of the caller's own transaction nothing was sent.
            facts = {key: value for key, value in error.details.items() if key != "outcome"}
            raise Unavailable(error.message, **facts) from error
        if not answer.succeeded:
            raise Closed("metadata in etcd was removed or replaced, open it again")
        # In this order: a commit with the new ticket that gets no answer comes after it, so that
        # its mark stays; one with the old ticket is refused and tried again.
        self._unsettled = False
        self._ticket = answer.header.revision


def _record(store: wire.KeyValue) -> StoreRecord:
    try:
        record = msgspec.json.decode(store.value, type=learnt(StoreRecord))
    except msgspec.MsgspecError as error:
        raise CorruptionError(
            "what etcd has under the prefix is not Frazil's, use another metadata.etcd.prefix",
            key=repr(store.key),
            value=repr(store.value),
        ) from error
    if record.format != FORMAT:
        raise InvalidRequest(
            "metadata in etcd was written by another Frazil, use that one",
            format=record.format,
            format_known=FORMAT,
        )
    return record
