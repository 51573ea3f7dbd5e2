"""The protocol of the engine and the lake worker: JSON with a length prefix, without a version.

Both are processes of one installation.

    0        4
    +--------+----------------------------------------+
    |length  |{"id":7,"op":"commit", ...} UTF-8        |
    |u32, BE |                                        |
    +--------+----------------------------------------+

A request has an id, which its answers repeat: any number of `progress` answers, then one `done` or
`failed`. The worker ends when the socket does.
"""

from __future__ import annotations

import socket
import struct
from typing import Any, Final

import msgspec

from frazil.errors import Closed, CorruptionError, InvalidRequest

__all__ = ["Answer", "Request", "body_of", "decode", "encode", "receive", "send"]

MESSAGE_BYTES_MAX: Final = 64 << 20
_LENGTH: Final = struct.Struct(">I")


class Request(msgspec.Struct, tag_field="type", tag="request", omit_defaults=True):
    """A request of the engine: `op` is hello, ping, commit, maintain or verify."""

    id: int
    op: str
    body: dict[str, Any] = {}


class Answer(msgspec.Struct, tag_field="type", tag="answer", omit_defaults=True):
    """An answer of the worker: `state` is progress, done or failed.

    A failure has `error` (the class of Frazil's tree by its `code`), one sentence in `message` and
    the facts in `body`.
    """

    id: int
    state: str
    body: dict[str, Any] = {}
    error: str = ""
    message: str = ""


def body_of(value: msgspec.Struct) -> dict[str, Any]:
    """Return a value as the body of a request or an answer."""
    found: dict[str, Any] = msgspec.to_builtins(value, str_keys=True)
    return found


_decoder: Final[msgspec.json.Decoder[Request | Answer]] = msgspec.json.Decoder(Request | Answer)


def encode(message: Request | Answer) -> bytes:
    """Return a message with its length in front."""
    data = msgspec.json.encode(message)
    if len(data) > MESSAGE_BYTES_MAX:
        raise InvalidRequest("message is too large", bytes=len(data), bytes_max=MESSAGE_BYTES_MAX)
    return _LENGTH.pack(len(data)) + data


def decode(data: bytes) -> Request | Answer:
    """Return the message that JSON text is.

    Raises:
        CorruptionError: if it is none of ours.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptionError("message cannot be read", reason=error) from error


def send(connection: socket.socket, message: Request | Answer) -> None:
    """Write one message.

    Raises:
        Closed: if the other side is gone.
    """
    try:
        connection.sendall(encode(message))
    except OSError as error:
        raise Closed("the other side of the lake's socket is gone", error=error) from error


def receive(connection: socket.socket) -> Request | Answer:
    """Wait for one message.

    Raises:
        Closed: if the other side is gone.
        CorruptionError: if the bytes are not a message; the connection is unusable then.
    """
    length = _LENGTH.unpack(_exactly(connection, _LENGTH.size))[0]
    if not 0 < length <= MESSAGE_BYTES_MAX:
        raise CorruptionError("message has a wrong length", bytes=length)
    return decode(_exactly(connection, length))


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        try:
            piece = connection.recv(size - len(data))
        except OSError as error:
            raise Closed("the other side of the lake's socket is gone", error=error) from error
        if not piece:
            raise Closed("the other side of the lake's socket is gone")
        data += piece
    return bytes(data)
