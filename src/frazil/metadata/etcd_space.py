"""The keys of one store in etcd, and its transactions, which never apply late.

A transaction without an answer may still be under way, and etcd could apply it after later ones.
Therefore every transaction requires an unchanged ticket, and after one without an answer the
ticket is rewritten before any other call: etcd then refuses the late transaction, and the state
that a reader sees next is final.

<prefix>/topics/…            keys of callers, unchanged
<prefix>!store               written once; revisions are counted from it
<prefix>!ticket              rewritten after a commit without an answer: it cannot apply late
<prefix>!applied/<journal>   the LSN up to which a journal is applied
<prefix>!lease/<name>        the last epoch of a lease and its holder; it stays
<prefix>!held/<name>         the epoch of a held lease; etcd removes it with its own lease
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
    """The mapping of one store to etcd: the prefix of its keys and the revision of its creation."""

    prefix: bytes
    base: int = 0

    def of(self, key: str) -> bytes:
        """Return a key as etcd stores it."""
        return self.prefix + key.encode()

    def end(self, prefix: str) -> bytes:
        """Return the first key of etcd after all keys with the prefix."""
        return self.prefix + prefix_end(prefix).encode()

    def entry(self, found: wire.KeyValue) -> Entry:
        """Return a key-value pair of etcd as an entry of the store."""
        key = found.key[len(self.prefix) :].decode()
        return Entry(key, found.value, found.version, self.revision(found.mod_revision))

    def revision(self, number: int) -> Revision:
        """Return a revision of etcd as one of the store."""
        return Revision(number - self.base)

    def compare(self, compare: Compare) -> wire.Condition:
        """Return a caller's compare as a condition of etcd."""
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
        """Return the results of read steps, None for an absent key."""
        return [result.range.kvs[0] if result.range.kvs else None for result in results]


def modified_is(key: bytes, revision: int) -> wire.Condition:
    """Return the condition that a key was last put at a revision of etcd; 0 means absent."""
    return wire.Condition(target=wire.MOD, key=key, mod_revision=revision)


def created_is(key: bytes, revision: int) -> wire.Condition:
    """Return the condition that a key was created at a revision of etcd."""
    return wire.Condition(target=wire.CREATE, key=key, create_revision=revision)


FORMAT: Final = 1
TRIES_MAX: Final = 20
FIND_TRIES: Final = 3


@attrs.frozen
class Outcome:
    """The result of a transaction: its revision in etcd, or the keys that were read instead.

    Attributes:
        revision: of etcd; 0 if a condition did not hold.
        found: the keys read in this case, None for absent ones.
    """

    revision: int
    found: tuple[wire.KeyValue | None, ...] = ()


class StoreRecord(msgspec.Struct, frozen=True):
    """The record of the store itself."""

    format: int
    id: str
    """Random id made at creation: a different id shows that the store was removed and recreated."""


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
        """Open the store or create it: its revisions count from its creation."""
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
        """Send a repeatable request, again if the first try had no answer: a leader may be new."""
        for left in range(FIND_TRIES - 1, -1, -1):
            try:
                return self.servers.change("KV/Txn", request, wire.TxnResponse)
            except Unavailable as error:
                if not left or error.details.get("outcome") != "unknown":
                    raise
        raise AssertionError("the last try returns or raises")

    def read(self, *keys: str) -> tuple[int, list[wire.KeyValue | None]]:
        """Return etcd's revision and the values of some keys at this moment."""
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
            Unavailable: with `outcome="unknown"` it may have been applied; without, it was not.
            Closed: the store in etcd is not the one that was opened.
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
        raise Conflict("metadata is settled by others too often, try again")

    def _send(self, request: wire.TxnRequest) -> wire.TxnResponse:
        try:
            return self.servers.change("KV/Txn", request, wire.TxnResponse)
        except Unavailable as error:
            if error.details.get("outcome") == "unknown":
                self._unsettled = True
            raise

    def _settle(self) -> None:
        """Exclude a transaction without an answer before the next call."""
        if not self._unsettled:
            return
        request = wire.TxnRequest(
            compare=[created_is(self.keys.of(STORE), self.keys.base)],
            success=[self.keys.put(TICKET, b"")],
        )
        try:
            answer = self.servers.change("KV/Txn", request, wire.TxnResponse)
        except Unavailable as error:
            # The caller's own transaction has not been sent.
            facts = {key: value for key, value in error.details.items() if key != "outcome"}
            raise Unavailable(error.message, **facts) from error
        if not answer.succeeded:
            raise Closed("metadata in etcd was removed or replaced, open it again")
        # The order matters: a commit with the new ticket and no answer comes after this write, so
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
