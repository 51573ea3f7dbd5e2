"""How the metadata's keys and revisions look in etcd, and transactions of both. Pure.

<prefix>/topics/…            keys of callers, as they are
<prefix>!store               made once; revisions are counted from it
<prefix>!ticket              written when a commit had no answer, so that it cannot come late
<prefix>!applied/<journal>   the batch sequence up to which a journal is applied
<prefix>!generation          the generation
<prefix>!lease/<name>        the last epoch of a lease and who had it; it stays
<prefix>!held/<name>         the epoch of a lease that is held; it goes with etcd's own lease
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from frazil.errors import CorruptionError
from frazil.metadata.proto import etcd_pb2 as wire
from frazil.metadata.transaction import Entry, Revision, prefix_end

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.metadata.transaction import Compare

__all__ = [
    "APPLIED",
    "GENERATION",
    "HELD",
    "LEASE",
    "STORE",
    "TICKET",
    "Keys",
    "created_is",
    "held_value",
    "modified_is",
    "number_of",
    "value_is",
]

STORE: Final = "!store"
TICKET: Final = "!ticket"
APPLIED: Final = "!applied/"
GENERATION: Final = "!generation"
LEASE: Final = "!lease/"
HELD: Final = "!held/"


@attrs.frozen
class Keys:
    """The place of one store in etcd: what stands before its keys, and the revision of its birth."""

    prefix: bytes
    birth: int = 0

    def of(self, key: str) -> bytes:
        """Return a key as etcd has it."""
        return self.prefix + key.encode()

    def end(self, prefix: str) -> bytes:
        """Return the first key of etcd behind all that start with `prefix`."""
        return self.prefix + prefix_end(prefix).encode()

    def entry(self, found: wire.KeyValue) -> Entry:
        """Return a pair of etcd as an entry of the store."""
        key = found.key[len(self.prefix) :].decode()
        return Entry(key, found.value, found.version, self.revision(found.mod_revision))

    def revision(self, number: int) -> Revision:
        """Return a revision of etcd as one of the store."""
        return Revision(number - self.birth)

    def compare(self, compare: Compare) -> wire.Condition:
        """Return a caller's condition."""
        key = self.of(compare.key)
        if compare.mod_revision is not None:
            return modified_is(key, compare.mod_revision + self.birth)
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


def value_is(key: bytes, value: bytes) -> wire.Condition:
    """Return the condition that a key exists and has a value."""
    return wire.Condition(target=wire.VALUE, key=key, value=value)


def held_value(epoch: int) -> bytes:
    """Return what the key of a held lease has as its value."""
    return b"%d" % epoch


def number_of(found: wire.KeyValue | None) -> int | None:
    """Read a number; None if it was never put."""
    if found is None:
        return None
    if not found.value.isdigit():
        raise CorruptionError(
            "metadata number is damaged", key=repr(found.key), value=found.value.hex()
        )
    return int(found.value)
