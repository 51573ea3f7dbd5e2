"""gRPC on the wire: status codes, messages with their prefix, metadata, status texts."""

from __future__ import annotations

import enum
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from frazil.serve.h2.headers import Fields

STATUS_TEXT_MAX: Final = 1_024
"""Characters of a status text; the rest is cut."""

_PREFIX: Final = struct.Struct(">BI")
_RESERVED: Final = frozenset({b"te", b"content-type", b"content-length", b"user-agent"})


class Code(enum.IntEnum):
    """The status of a call."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class CallFailed(Exception):  # the caller of an RPC acts on its code
    """Raised by a handler to end its call with a status."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def only_message(body: bytes) -> bytes:
    """Return the one message of a request.

    Raises:
        CallFailed: There is none, more than one, half of one, or a compressed one.
    """
    if len(body) < 5:
        if not body:
            raise CallFailed(Code.UNIMPLEMENTED, "request has no message")
        raise CallFailed(Code.INVALID_ARGUMENT, "message is cut short")
    flag, size = _PREFIX.unpack_from(body)
    if flag:
        if flag == 1:
            raise CallFailed(Code.UNIMPLEMENTED, "compressed messages are not supported")
        raise CallFailed(Code.INVALID_ARGUMENT, "message has an unknown flag")
    if size > len(body) - 5:
        raise CallFailed(Code.INVALID_ARGUMENT, "message is cut short")
    if size < len(body) - 5:
        raise CallFailed(Code.UNIMPLEMENTED, "request has more than one message")
    return body[5:]


def status_text(text: str) -> bytes:
    """Return a status text in the percent encoding of `grpc-message`."""
    raw = text[:STATUS_TEXT_MAX].encode("utf-8", "replace")
    return b"".join(
        bytes((byte,)) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte
        for byte in raw
    )


def metadata(fields: Fields) -> dict[str, str]:
    """Return a request's metadata as text, without names that end in `-bin`.

    The values of a repeated name are joined by a comma, as in HTTP.
    """
    found: dict[str, str] = {}
    for raw_name, raw_value in fields:
        if raw_name.startswith((b":", b"grpc-")) or raw_name in _RESERVED:
            continue
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        if not name.endswith("-bin"):
            found[name] = f"{found[name]},{value}" if name in found else value
    return found
