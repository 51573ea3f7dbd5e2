"""The head of an HTTP/1.1 request, read strictly, and the bytes of an answer. Pure.

Only what health checks, a scrape and a few calls need is understood: GET without a body, and POST
of JSON to the paths that take it. Everything else is answered with a status and the connection is
closed, so that nothing of a request is left to be taken for the next one.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Container, Mapping
from types import MappingProxyType
from typing import Final

import attrs

__all__ = ["HEAD_END", "BadRequest", "Reply", "Request", "encode_reply", "parse_head", "text_reply"]

HEAD_END: Final = b"\r\n\r\n"
FIELDS_MAX: Final = 64
TARGET_CHARACTERS_MAX: Final = 1024
BODY_BYTES_MAX: Final = 64 << 10

_LINE: Final = re.compile(rb"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.([01])")
_FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*?)[ \t]*")
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    413: "Content Too Large",
    414: "URI Too Long",
    415: "Unsupported Media Type",
    421: "Misdirected Request",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@attrs.frozen
class Request:
    """A request that may be answered: the path without its query, and the fields by lower name.

    `length` is how many bytes of a POST follow; 0 is a GET.
    """

    path: str
    fields: Mapping[str, str] = attrs.field(repr=False)
    length: int = 0


@attrs.frozen
class Reply:
    """An answer."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    fields: tuple[tuple[str, str], ...] = ()


class BadRequest(Exception):
    """The request is answered with a status right away."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def parse_head(head: bytes, *, loopback_only: bool, posts: Container[str] = ()) -> Request:
    """Read everything up to the empty line.

    Args:
        head: the bytes, the empty line included.
        loopback_only: the listener is of this machine alone, so a request must name this machine;
            a page in a browser could otherwise reach it under a name of its own.
        posts: the paths that take JSON.

    Raises:
        BadRequest: with the status to answer.
    """
    assert head.endswith(HEAD_END)
    first, *lines = head[: -len(HEAD_END)].split(b"\r\n")
    found = _LINE.fullmatch(first)
    if found is None:
        raise BadRequest(400, "the request line is malformed")
    method, target, minor = found.groups()
    path = target.decode("ascii").partition("?")[0]
    is_post = method == b"POST" and path in posts
    if method != b"GET" and not is_post:
        raise BadRequest(405, "only GET is understood")
    if len(target) > TARGET_CHARACTERS_MAX:
        raise BadRequest(414, "the target is too long")
    fields = _fields(lines)
    length = _length(fields) if is_post else 0
    has_body = not is_post and fields.get("content-length", "0") != "0"
    if has_body or "transfer-encoding" in fields:
        raise BadRequest(413, "a body is not taken")
    _check_host(fields.get("host"), is_required=minor == b"1", loopback_only=loopback_only)
    return Request(path, MappingProxyType(fields), length)


def _length(fields: Mapping[str, str]) -> int:
    """Return the length of a body of JSON.

    That it is declared as JSON matters: a browser asks first before it sends that to another site.
    """
    kind = fields.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise BadRequest(415, "the body must be JSON, and say so")
    text = fields.get("content-length", "")
    if re.fullmatch("[0-9]{1,9}", text) is None or text == "0":
        raise BadRequest(400, "the length of the body is missing")
    if int(text) > BODY_BYTES_MAX:
        raise BadRequest(413, "the body is too large")
    return int(text)


def _fields(lines: list[bytes]) -> dict[str, str]:
    if len(lines) > FIELDS_MAX:
        raise BadRequest(431, "there are too many fields")
    fields: dict[str, str] = {}
    for line in lines:
        found = _FIELD.fullmatch(line)
        if found is None:
            raise BadRequest(400, "a field is malformed")
        name = found[1].decode("ascii").lower()
        # Two of these could be read differently by somebody in between.
        if name in fields and name in {
            *("host", "content-length", "transfer-encoding", "authorization"),
        }:
            raise BadRequest(400, "a field is given twice")
        fields[name] = found[2].decode("latin-1")
    return fields


def _check_host(host: str | None, *, is_required: bool, loopback_only: bool) -> None:
    if host is None:
        if is_required:
            raise BadRequest(400, "the host is missing")
        return
    if loopback_only and not _names_this_machine(host):
        raise BadRequest(421, "the host is not this machine")


def _names_this_machine(host: str) -> bool:
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::[0-9]{1,5})?", host)
    if found is None:
        return False
    name = found[1].strip("[]").lower().removesuffix(".")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def text_reply(status: int, text: str) -> Reply:
    """Return an answer of one line."""
    fields = (("Allow", "GET"),) if status == 405 else ()
    return Reply(status, f"{text}\n".encode(), fields=fields)


def encode_reply(reply: Reply) -> bytes:
    """Return an answer's bytes; it is the last one on its connection."""
    fields = (
        ("Content-Type", reply.content_type),
        ("Content-Length", str(len(reply.body))),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("Connection", "close"),
        *reply.fields,
    )
    assert not any(mark in text for field in fields for text in field for mark in "\r\n")
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
    return f"HTTP/1.1 {reply.status} {_REASONS[reply.status]}\r\n{lines}\r\n".encode() + reply.body
