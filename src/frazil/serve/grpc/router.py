"""Who handles which call: paths and handlers, and what a request's headers mean for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import attrs

from frazil.serve.grpc.codec import CallFailed, Code, metadata, timeout_seconds
from frazil.serve.grpc.runs import RunHandler

if TYPE_CHECKING:
    from frazil.serve.grpc.calls import Call
    from frazil.serve.h2.validation import Fields

Handler = Callable[["Call", bytes], None]
"""Answers a call now or later through the call; what it raises becomes the call's status."""
Guard = Callable[["Call"], "tuple[Code, str] | None"]
"""Runs before every handler; what it returns is the call's status, and no handler runs.

It is also told the calls that are refused without it, with an empty path, so that it can count
them: RESOURCE_EXHAUSTED is then their status.
"""
Foresee = Guard
"""Tells from the headers alone how the guard will refuse a call whose request still arrives."""
FreeCalls = Callable[[str, int], int]
"""Counts calls of a peer that the guard need not look at; returns how many of so many may pass."""

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_NO_BYTES: Final[Mapping[str, bytes]] = MappingProxyType({})
_CONTENT_TYPE: Final = b"application/grpc"


@attrs.frozen
class Unary:
    """One message in, one message out.

    `many`, if there is one, gets calls that came together. A server that stops refuses those that
    are `fresh` work.
    """

    handler: Handler
    many: RunHandler | None = None
    is_fresh: bool = False
    is_stream: bool = attrs.field(default=False, init=False)


@attrs.frozen
class Stream:
    """One message in, any number out; its answer's HEADERS go out when the handler begins."""

    handler: Handler
    many: None = attrs.field(default=None, init=False)
    is_fresh: bool = attrs.field(default=True, init=False)
    is_stream: bool = attrs.field(default=True, init=False)


Route = Unary | Stream


@attrs.frozen(eq=False)
class CallHead:
    """What a request's headers say; made once for all calls with equal headers.

    `plain_status` (of HTTP) or `refusal` is the whole answer, if there is one.
    """

    path: str
    handler: Handler | None
    is_stream: bool = False
    metadata: Mapping[str, str] = _NOTHING
    binary: Mapping[str, bytes] = _NO_BYTES
    timeout_s: float | None = None
    plain_status: int = 0
    refusal: tuple[Code, str] | None = None
    many: RunHandler | None = None
    """None also where each call needs to be looked at, as one with a deadline does."""
    is_fresh: bool = False
    """Whether it is refused by a server that stops."""

    @property
    def is_refused(self) -> bool:
        """Whether no handler is to be called."""
        return self.handler is None


class Router:
    """Paths with their handlers, and the guard in front of all of them."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        guard: Guard | None = None,
        free_calls: FreeCalls | None = None,
        foresee: Foresee | None = None,
    ) -> None:
        wrong = [path for path in routes if path.count("/") != 2 or not path.startswith("/")]
        assert not wrong, wrong
        self.routes: Mapping[str, Route] = MappingProxyType(dict(routes))
        self.guard = guard
        self.free_calls = free_calls
        self.foresee = foresee
        self.large = CallHead(
            "", None, refusal=(Code.RESOURCE_EXHAUSTED, "the request's metadata is too large")
        )
        """What requests mean whose headers are larger than allowed."""

    def resolve(self, fields: Fields) -> CallHead:
        """Return what a request's headers mean; whatever is wrong is part of it."""
        found = dict(fields)
        path = found[b":path"].decode("latin-1")
        # Also of what is refused: it counts for whoever sends it.
        texts: Mapping[str, str] = _NOTHING
        try:
            texts, binaries = metadata(fields)
            if found[b":method"] != b"POST":
                return CallHead(path, None, metadata=texts, plain_status=405)
            if not _is_grpc(found.get(b"content-type", b"")):
                return CallHead(path, None, metadata=texts, plain_status=415)
            route = self.routes.get(path)
            if route is None:
                unknown = (Code.UNIMPLEMENTED, "unknown method")
                return CallHead(path, None, metadata=texts, refusal=unknown)
            timeout = found.get(b"grpc-timeout")
            seconds = None if timeout is None else timeout_seconds(timeout)
        except CallFailed as error:
            return CallHead(path, None, metadata=texts, refusal=(error.code, error.text))
        return CallHead(
            path,
            route.handler,
            route.is_stream,
            MappingProxyType(texts),
            MappingProxyType(binaries),
            seconds,
            many=route.many if seconds is None else None,
            is_fresh=route.is_fresh,
        )


def _is_grpc(value: bytes) -> bool:
    return value.startswith(_CONTENT_TYPE) and value[len(_CONTENT_TYPE) :][:1] in {b"", b"+", b";"}
