"""What a list of headers must be to be a request, or a request's trailers (RFC 9113, section 8)."""

from __future__ import annotations

import re
from typing import Final

Fields = tuple[tuple[bytes, bytes], ...]

_PSEUDO: Final = frozenset({b":method", b":scheme", b":path", b":authority"})
_OF_HTTP1: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_BAD_NAME: Final = re.compile(rb"[\x00-\x20A-Z\x7f-\xff]|(?<=.):")
_BAD_VALUE: Final = re.compile(rb"[\x00\r\n]")


def request_problem(fields: Fields) -> tuple[str | None, int]:
    """Return why the headers are no request, if they are none, and their content length or -1."""
    pseudo: dict[bytes, bytes] = {}
    length = -1
    for position, (name, value) in enumerate(fields):
        if name.startswith(b":"):
            if name not in _PSEUDO or name in pseudo or len(pseudo) != position:
                return "pseudo header unknown, doubled or behind others", -1
            pseudo[name] = value
        problem = _field_problem(name, value)
        if problem is not None:
            return problem, -1
        if name == b"content-length":
            if not value.isdigit() or len(value) > 18 or length not in {-1, int(value)}:
                return "content-length is not one number", -1
            length = int(value)
    if not pseudo.get(b":path") or b":method" not in pseudo or b":scheme" not in pseudo:
        return "method, scheme or path missing", -1
    return None, length


def trailers_problem(fields: Fields) -> str | None:
    """Return why the headers cannot end a request, if they cannot."""
    for name, value in fields:
        if name.startswith(b":"):
            return "pseudo header in trailers"
        problem = _field_problem(name, value)
        if problem is not None:
            return problem
    return None


def _field_problem(name: bytes, value: bytes) -> str | None:
    if not name or _BAD_NAME.search(name):
        return "header name not allowed"
    if _BAD_VALUE.search(value):
        return "header value not allowed"
    if name in _OF_HTTP1 or (name == b"te" and value != b"trailers"):
        return "header of HTTP/1"
    return None
