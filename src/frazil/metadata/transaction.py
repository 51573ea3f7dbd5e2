"""The data model of the metadata store: entries, compares, transactions, limits.

No I/O. Every limit and every rule about keys is checked here, once, so that all stores refuse the
same calls with the same messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, NewType

import attrs

from frazil.errors import Conflict, CorruptionError, InvalidRequest

__all__ = [
    "KEY_BYTES_MAX",
    "LIST_BYTES_MAX",
    "LIST_ENTRIES_MAX",
    "NUMBER_MAX",
    "TRANSACTION_BYTES_MAX",
    "TRANSACTION_OPERATIONS_MAX",
    "VALUE_BYTES_MAX",
    "Compare",
    "Entry",
    "LeaseEpoch",
    "Revision",
    "Transaction",
    "check_key",
    "check_name",
    "check_page",
    "check_transaction",
    "number_of",
    "page_of",
    "prefix_end",
]

KEY_BYTES_MAX: Final = 1 << 10
NAME_BYTES_MAX: Final = 256
VALUE_BYTES_MAX: Final = 1 << 20
TRANSACTION_OPERATIONS_MAX: Final = 1_000
TRANSACTION_BYTES_MAX: Final = 8 << 20
LIST_ENTRIES_MAX: Final = 1_000
LIST_BYTES_MAX: Final = 8 << 20
NUMBER_MAX: Final = (1 << 63) - 1

_CHARACTER_LAST: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)

Revision = NewType("Revision", int)
"""The number of a change to the store: each transaction with changes increments it."""


@attrs.frozen
class Entry:
    """One key as stored.

    `version` counts the puts since the creation of the key, from 1; a deleted and recreated key
    starts at 1 again. `mod_revision` is the revision of the last put and never repeats: compare
    with it when the key may have been deleted in between.
    """

    key: str
    value: bytes
    version: int
    mod_revision: Revision


@attrs.frozen
class Compare:
    """A condition of a transaction on one key; `absent` and `unchanged` make the usual ones."""

    key: str
    version: int | None = None
    mod_revision: int | None = None

    @classmethod
    def absent(cls, key: str) -> Compare:
        """Require that the key does not exist."""
        return cls(key, version=0)

    @classmethod
    def unchanged(cls, entry: Entry) -> Compare:
        """Require that the key was neither put nor deleted since `entry` was read."""
        return cls(entry.key, mod_revision=entry.mod_revision)

    def check(self, found: Entry | None) -> None:
        """Check the condition against the stored entry.

        Raises:
            Conflict: if the condition does not hold.
        """
        version = 0 if found is None else found.version
        revision = None if found is None else found.mod_revision
        is_same = version == self.version
        if self.mod_revision is not None:
            is_same = revision == self.mod_revision
        if not is_same:
            raise Conflict(
                "metadata key has changed, read it again",
                key=self.key,
                version=version,
                mod_revision=revision or 0,
            )


@attrs.frozen
class LeaseEpoch:
    """The lease that a transaction must still hold, by its name and epoch."""

    name: str
    epoch: int


@attrs.frozen(kw_only=True)
class Transaction:
    """Conditions and changes that happen together or not at all.

    Attributes:
        compares: all must hold before anything is changed.
        puts: keys and their new values.
        deletes: keys to remove; an absent one is fine.
        applied: per journal the LSN up to which this transaction applies it to the metadata. It
            is stored in the same transaction as the data it describes and never decreases.
        requires: the caller's lease; the transaction is refused if it is no longer held.
    """

    compares: tuple[Compare, ...] = ()
    puts: Mapping[str, bytes] = attrs.field(factory=dict)
    deletes: tuple[str, ...] = ()
    applied: Mapping[str, int] = attrs.field(factory=dict)
    requires: LeaseEpoch | None = None

    @property
    def operations(self) -> int:
        """The number of conditions and changes; it is limited."""
        parts = (self.compares, self.puts, self.deletes, self.applied)
        return sum(map(len, parts)) + (self.requires is not None)


def page_of(entries: Iterable[Entry]) -> list[Entry]:
    """Return the first entries, as many as fit into the bytes of a page."""
    page: list[Entry] = []
    size = 0
    for entry in entries:
        size += len(entry.value)
        if page and size > LIST_BYTES_MAX:
            break
        page.append(entry)
    return page


def number_of(found: Any) -> int | None:
    """Parse the number under a key, from an entry or a pair of etcd; None if it was never put."""
    if found is None:
        return None
    if not found.value.isdigit():
        raise CorruptionError(
            "metadata number is damaged", key=repr(found.key), value=found.value.hex()
        )
    return int(found.value)


def check_key(key: str) -> int:
    """Refuse an invalid key or prefix of keys; return its size in bytes."""
    size = _text_bytes(key, what="key", bytes_max=KEY_BYTES_MAX)
    if not key.startswith("/"):
        raise InvalidRequest("metadata key must start with '/'", key=key)
    return size


def check_name(name: str, *, what: str) -> int:
    """Refuse an invalid name of a journal or a lease; return its size in bytes."""
    return _text_bytes(name, what=what, bytes_max=NAME_BYTES_MAX)


def _text_bytes(text: str, *, what: str, bytes_max: int) -> int:
    if not isinstance(text, str):
        raise InvalidRequest(f"metadata {what} must be a string", got=type(text).__name__)
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"metadata {what} is not valid unicode", text=ascii(text)) from error
    if not 0 < size <= bytes_max:
        raise InvalidRequest(
            f"metadata {what} is empty or too long", text=text, bytes=size, bytes_max=bytes_max
        )
    if min(text) < " ":
        raise InvalidRequest(f"metadata {what} has a control character", text=text)
    return size


def check_page(prefix: str, *, limit: int, after: str | None) -> None:
    """Refuse a listing with invalid bounds."""
    check_key(prefix)
    if after is not None:
        check_key(after)
    if not 1 <= limit <= LIST_ENTRIES_MAX:
        raise InvalidRequest(
            "limit of a metadata listing is out of range", limit=limit, limit_max=LIST_ENTRIES_MAX
        )


def check_transaction(
    transaction: Transaction,
    *,
    operations_max: int = TRANSACTION_OPERATIONS_MAX,
    bytes_max: int = TRANSACTION_BYTES_MAX,
) -> None:
    """Refuse a transaction that is too large, names a key twice, or has a bad key or value."""
    operations = transaction.operations
    if operations > operations_max:
        raise InvalidRequest(
            "metadata transaction has too many operations, split it",
            operations=operations,
            operations_max=operations_max,
        )
    size = sum(map(_put_bytes, transaction.puts.items())) + sum(map(check_key, transaction.deletes))
    if size > bytes_max:
        raise InvalidRequest(
            "metadata transaction is too large, split it", bytes=size, bytes_max=bytes_max
        )
    counts = Counter((*transaction.puts, *transaction.deletes))
    twice = [key for key, count in counts.items() if count > 1]
    if twice:
        raise InvalidRequest("metadata transaction changes a key twice", key=twice[0])
    for compare in transaction.compares:
        check_key(compare.key)
        if (compare.version is None) == (compare.mod_revision is None):
            raise InvalidRequest("compare needs version or mod_revision", key=compare.key)
    for journal_id, lsn in transaction.applied.items():
        check_name(journal_id, what="journal id")
        _check_lsn(lsn)
    if transaction.requires is not None:
        check_name(transaction.requires.name, what="lease name")


def _put_bytes(put: tuple[str, bytes]) -> int:
    key, value = put
    if not isinstance(value, bytes):
        raise InvalidRequest("metadata value must be bytes", key=key, got=type(value).__name__)
    if len(value) > VALUE_BYTES_MAX:
        raise InvalidRequest(
            "metadata value is too large", key=key, bytes=len(value), bytes_max=VALUE_BYTES_MAX
        )
    return check_key(key) + len(value)


def _check_lsn(lsn: object) -> None:
    if not isinstance(lsn, int) or not 0 <= lsn <= NUMBER_MAX:
        raise InvalidRequest("applied lsn is out of range", number=lsn, number_max=NUMBER_MAX)


def prefix_end(prefix: str) -> str:
    """Return the smallest string above every string that starts with `prefix`.

    Strings are ordered by code point, which is also the order of their UTF-8 bytes. There is
    such a string because a prefix starts with '/'.
    """
    kept = prefix.rstrip(chr(_CHARACTER_LAST))
    assert kept, "a prefix starts with '/'"
    following = ord(kept[-1]) + 1
    if following in _SURROGATES:
        following = _SURROGATES.stop
    return kept[:-1] + chr(following)
