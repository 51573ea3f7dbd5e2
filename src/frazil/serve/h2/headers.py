"""Header blocks: `hpack` with a cache of whole blocks, and the blocks that a gRPC server sends.

Decoding even a short block costs ten times as much as the rest of a call, and a client's calls
repeat one block. A block may be cached only if its decoding did not change the table, and any
change of the table (by any block) empties the cache.

For writing, only two fields enter the peer's table: the content type with the first answer, and the
OK status with the first successful one. From then on an answer's blocks are two bytes and one. All
other fields are literals that do not change the table. A peer with a table smaller than usual gets
literals only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import attrs
from hpack import Decoder, HPACKError, OversizedHeaderListError
from hpack.table import HeaderTable

from frazil.serve.h2.frames import TABLE_BYTES_DEFAULT, ConnectionFailure, ErrorCode

if TYPE_CHECKING:
    from frazil.serve.h2.limits import ServerLimits

Fields = tuple[tuple[bytes, bytes], ...]
Resolve = Callable[[Fields], object]
"""Returns the application's target for a request's headers, once per block; never raises."""
Refuse = Callable[[], object]
"""Returns the same for headers that are too large."""

_FIELD_BYTES: Final = 32
"""Added to the size of a field's name and value (RFC 9113, section 6.5.2)."""
_PSEUDO: Final = frozenset({b":method", b":scheme", b":path", b":authority"})
_NEEDED: Final = frozenset({b":method", b":scheme"})
_OF_HTTP1: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_BAD_NAME: Final = re.compile(rb"[\x00-\x20A-Z\x7f-\xff]|(?<=.):")
_BAD_VALUE: Final = re.compile(rb"[\x00\r\n]")

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


# -- reading -------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class Head:
    """A decoded header block.

    `problem` is the reason if it is not a request; `target` (from the application) and
    `content_length` (-1 if not given) are valid only without one. A block that `is_large` has no
    fields, and its target is the application's refusal.
    """

    fields: Fields
    problem: str | None
    content_length: int
    target: object
    size: int = 0
    is_large: bool = False


class CountingTable(HeaderTable):
    """A table of `hpack` that counts its insertions."""

    def __init__(self) -> None:
        super().__init__()
        self.additions = 0

    def add(self, name: bytes, value: bytes) -> None:
        self.additions += 1
        super().add(name, value)

    def state(self) -> tuple[int, int, int]:
        """Return a value that differs if the table was changed in between.

        Without an insertion entries can only be lost, so their count shows it; a size update that
        evicts nothing and leaves the size as it was is no change.
        """
        return self.additions, self.maxsize, len(self.dynamic_entries)


class HeaderReader:
    """One connection's header blocks, in the order they arrive.

    A caller may look in `cache` first and use `read` for a miss.
    """

    def __init__(
        self, limits: ServerLimits, resolve: Resolve, refuse: Refuse = lambda: None
    ) -> None:
        self.cache: dict[bytes, Head] = {}
        self._limits = limits
        self._resolve = resolve
        self._refuse = refuse
        self._table = CountingTable()
        most = max(limits.header_bytes_read_max, limits.header_bytes_max)
        self._decoder = Decoder(max_header_list_size=most)
        self._decoder.header_table = self._table

    def read(self, block: bytes) -> Head:
        """Decode a block and apply its changes to the table.

        Raises:
            ConnectionFailure: It is not HPACK, or is too large after decompression.
        """
        known = self.cache.get(block)
        if known is not None:
            return known
        before = self._table.state()
        try:
            fields: Fields = tuple((n, v) for n, v in self._decoder.decode(block, raw=True))
        except OversizedHeaderListError as error:
            raise ConnectionFailure(
                ErrorCode.ENHANCE_YOUR_CALM, "header block too large"
            ) from error
        except HPACKError as error:
            raise ConnectionFailure(
                ErrorCode.COMPRESSION_ERROR, "unreadable header block"
            ) from error
        head = self._head(fields)
        if self._table.state() != before:
            self.cache.clear()
        elif len(block) <= self._limits.cached_block_bytes_max:
            if len(self.cache) >= self._limits.cached_blocks_max:
                self.cache.clear()
            self.cache[block] = head
        return head

    def _head(self, fields: Fields) -> Head:
        problem, content_length = request_problem(fields)
        size = sum(len(name) + len(value) + _FIELD_BYTES for name, value in fields)
        if size > self._limits.header_bytes_max:
            return Head((), problem, content_length, self._refuse(), size, is_large=True)
        target = self._resolve(fields) if problem is None else None
        return Head(fields, problem, content_length, target, size)


def request_problem(fields: Fields) -> tuple[str | None, int]:
    """Return why headers are no request (RFC 9113, section 8), and their content length or -1."""
    problem = _pseudo_problem(fields) or _fields_problem(fields)
    lengths = {value for name, value in fields if name == b"content-length"}
    if problem is not None or not lengths:
        return problem, -1
    value = lengths.pop()
    if lengths or not value.isdigit() or len(value) > 18:
        return "content-length is not one number", -1
    return None, int(value)


def _pseudo_problem(fields: Fields) -> str | None:
    names = [name for name, _ in fields if name.startswith(b":")]
    pseudo = dict(fields[: len(names)])
    if list(pseudo) != names or not _PSEUDO.issuperset(names):
        return "pseudo header unknown, doubled or after others"
    if not pseudo.get(b":path") or not _NEEDED.issubset(pseudo):
        return "method, scheme or path missing"
    return None


def trailers_problem(fields: Fields) -> str | None:
    """Return why headers cannot end a request, None if they can."""
    if any(name.startswith(b":") for name, _ in fields):
        return "pseudo header in trailers"
    return _fields_problem(fields)


def _fields_problem(fields: Fields) -> str | None:
    return next(filter(None, (_field_problem(*field) for field in fields)), None)


def _field_problem(name: bytes, value: bytes) -> str | None:
    if not name or _BAD_NAME.search(name):
        return "header name not allowed"
    if _BAD_VALUE.search(value):
        return "header value not allowed"
    if name in _OF_HTTP1 or (name == b"te" and value != b"trailers"):
        return "header of HTTP/1"
    return None


# -- writing -------------------------------------------------------------------------------------


def integer(value: int, prefix_bits: int, pattern: int) -> bytes:
    """Return an HPACK integer with `pattern` in the upper bits of its first byte."""
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
    """Return a field as a literal; `name` is its text or its index in the static table."""
    pattern, bits = (0x40, 6) if indexed else (0x00, 4)
    found = integer(name if isinstance(name, int) else 0, bits, pattern)
    if isinstance(name, bytes):
        found += integer(len(name), 7, 0) + name
    return found + integer(len(value), 7, 0) + value


class ReplyBlocks:
    """The header blocks of one connection, in the order they are sent.

    While `are_short`, `SHORT_HEAD` and `SHORT_TAIL` mean the same as `begin` and `good_end`.
    """

    def __init__(self) -> None:
        self.are_short = False
        self._may_index = True
        self._has_type = False
        self._has_status = False
        self._shrinks = False

    def peer_table(self, size: int) -> None:
        """Take the size of the table that the peer allows."""
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
        """Return the block that answers a request that is not gRPC with an HTTP status."""
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
