"""The frames of HTTP/2 (RFC 9113): kinds, flags, error codes, and how each is written.

| length (24) | kind (8) | flags (8) | stream (32, top bit reserved) | payload (length) |
"""

from __future__ import annotations

import enum
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITISED: Final = 0x20

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

FRAME_BYTES_DEFAULT: Final = 16_384
FRAME_BYTES_LARGEST: Final = (1 << 24) - 1
WINDOW_DEFAULT: Final = 65_535
WINDOW_LARGEST: Final = (1 << 31) - 1
STREAM_LARGEST: Final = (1 << 31) - 1
TABLE_BYTES_DEFAULT: Final = 4096

HEAD: Final = struct.Struct(">HBBBI")
"""A frame's head; the length is (first << 8) | second."""

_WORD: Final = struct.Struct(">I")
_SETTING: Final = struct.Struct(">HI")


class ErrorCode(enum.IntEnum):
    """The error codes of streams and connections (RFC 9113, section 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class ConnectionFailure(Exception):
    """The peer broke a rule that ends the whole connection; never leaves the connection."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def require(holds: bool, code: ErrorCode, text: str) -> None:  # noqa: FBT001 - as assert has it
    """Check a rule for the peer.

    Raises:
        ConnectionFailure: The peer violated it.
    """
    if not holds:
        raise ConnectionFailure(code, text)


def head(length: int, kind: int, flags: int, stream: int) -> bytes:
    """Return the nine bytes in front of a payload of `length` bytes."""
    return HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a whole frame."""
    return head(len(payload), kind, flags, stream) + payload


def settings(values: Mapping[int, int]) -> bytes:
    """Return a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*item) for item in values.items()))


def settings_items(payload: bytes) -> list[tuple[int, int]]:
    """Return the settings in a payload whose size is a multiple of six."""
    return list(_SETTING.iter_unpack(payload))


SETTINGS_ACK: Final = frame(SETTINGS, ACK, 0)


def window_update(stream: int, increment: int) -> bytes:
    """Return a WINDOW_UPDATE frame."""
    return frame(WINDOW_UPDATE, 0, stream, _WORD.pack(increment))


def reset(stream: int, code: int) -> bytes:
    """Return a RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream, _WORD.pack(code))


def ping(payload: bytes, *, ack: bool = False) -> bytes:
    """Return a PING frame of eight bytes, or the answer to one."""
    assert len(payload) == 8
    return frame(PING, ACK if ack else 0, 0, payload)


def goaway(last: int, code: int, text: str = "") -> bytes:
    """Return a GOAWAY frame: streams above `last` were not and will not be processed."""
    return frame(
        GOAWAY, 0, 0, _WORD.pack(last) + _WORD.pack(code) + text.encode("ascii", "replace")
    )


def unpad(payload: bytes) -> bytes:
    """Return the content of a padded payload.

    Raises:
        ConnectionFailure: The padding is as long as the payload or longer.
    """
    require(len(payload) > 0, ErrorCode.FRAME_SIZE_ERROR, "padded frame without length")
    padding = payload[0]
    require(padding < len(payload), ErrorCode.PROTOCOL_ERROR, "padding longer than the frame")
    return payload[1 : len(payload) - padding]
