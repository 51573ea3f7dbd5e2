"""Writing header blocks: the few that a gRPC server sends, without a general encoder.

Two fields ever enter the peer's table: the content type with the first answer, and the good status
with the first good one. Then an answer's blocks are two bytes and one. All others are literals that
leave the table alone. A peer with a table smaller than usual gets literals only.
"""

from __future__ import annotations

from typing import Final

from frazil.serve.h2.frames import TABLE_BYTES_DEFAULT

_STATUS_200: Final = b"\x88"
_TABLE_OF_NOTHING: Final = b"\x20"
_NAME_STATUS: Final = 8
_NAME_CONTENT_TYPE: Final = 31
_CONTENT_TYPE: Final = b"application/grpc"
_NEWEST: Final = 62

SHORT_HEAD: Final = b"\x88\xbf"
"""200 and the content type, once both fields are in the peer's table."""
SHORT_TAIL: Final = b"\xbe"
"""The good status, likewise."""


def integer(value: int, prefix_bits: int, pattern: int) -> bytes:
    """Return an integer of HPACK whose first byte carries `pattern` in its upper bits."""
    largest = (1 << prefix_bits) - 1
    if value < largest:
        return bytes((pattern | value,))
    found = bytearray((pattern | largest,))
    value -= largest
    while value >= 128:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def literal(name: bytes | int, value: bytes, *, indexed: bool = False) -> bytes:
    """Return a field as a literal; `name` is its text or its place in the static table."""
    pattern, bits = (0x40, 6) if indexed else (0x00, 4)
    place = name if isinstance(name, int) else 0
    found = integer(place, bits, pattern)
    if isinstance(name, bytes):
        found += integer(len(name), 7, 0) + name
    return found + integer(len(value), 7, 0) + value


class ReplyBlocks:
    """The header blocks of one connection, in the order they are sent.

    `are_short` says that `SHORT_HEAD` and `SHORT_TAIL` mean the same as `begin` and `good_end`.
    """

    def __init__(self) -> None:
        self.are_short = False
        self._may_index = True
        self._has_type = False
        self._has_status = False
        self._shrinks = False

    def peer_table(self, size: int) -> None:
        """Take note of the size of the table that the peer allows."""
        if size < TABLE_BYTES_DEFAULT and self._may_index:
            self._may_index = self.are_short = False
            self._has_type = self._has_status = False
            self._shrinks = True

    def begin(self) -> bytes:
        """Return the block that begins an answer."""
        return self._opening() + _STATUS_200 + self._type()

    def good_end(self) -> bytes:
        """Return the block that ends an answer well."""
        opening = self._opening()
        if self._has_status:
            return opening + SHORT_TAIL
        if self._may_index and self._has_type:
            self._has_status = self.are_short = True
            return opening + literal(b"grpc-status", b"0", indexed=True)
        return opening + literal(b"grpc-status", b"0")

    def end(self, code: int, text: bytes) -> bytes:
        """Return the block that ends an answer that has begun."""
        if code == 0:
            return self.good_end()
        return self._opening() + self._status(code, text)

    def only_end(self, code: int, text: bytes) -> bytes:
        """Return the block that is a whole answer without message."""
        return self.begin() + self._status(code, text)

    def plain(self, status: int) -> bytes:
        """Return the block that is an answer of HTTP to what is no call."""
        return self._opening() + literal(_NAME_STATUS, b"%d" % status)

    def _opening(self) -> bytes:
        if self._shrinks:
            self._shrinks = False
            return _TABLE_OF_NOTHING
        return b""

    def _type(self) -> bytes:
        if self._has_type:
            return integer(_NEWEST + self._has_status, 7, 0x80)
        self._has_type = self._may_index
        return literal(_NAME_CONTENT_TYPE, _CONTENT_TYPE, indexed=self._may_index)

    @staticmethod
    def _status(code: int, text: bytes) -> bytes:
        block = literal(b"grpc-status", b"%d" % code)
        return block + literal(b"grpc-message", text) if text else block
