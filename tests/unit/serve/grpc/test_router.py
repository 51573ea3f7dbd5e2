"""What a request's headers mean is found once, and says all that is wrong with them."""

from __future__ import annotations

import pytest

from frazil.serve.grpc.codec import Code
from frazil.serve.grpc.router import Router, Stream, Unary


def answer(call, message):
    call.ok(message)


def feed(call, message):
    call.finish()


ROUTER = Router({"/a.B/One": Unary(answer), "/a.B/Many": Stream(feed)})


def resolve(path=b"/a.B/One", method=b"POST", kind=b"application/grpc", *extra):
    fields = ((b":method", method), (b":scheme", b"http"), (b":path", path))
    return ROUTER.resolve((*fields, (b"content-type", kind), *extra))


def test_paths_lead_to_handlers():
    """Each path has its handler and its kind."""
    assert resolve().handler is answer
    assert not resolve().is_stream
    assert resolve(b"/a.B/Many").handler is feed
    assert resolve(b"/a.B/Many").is_stream


def test_unknown_paths_are_unimplemented():
    """A method that does not exist has its status."""
    head = resolve(b"/a.B/Other")
    assert head.handler is None
    assert head.refusal[0] == Code.UNIMPLEMENTED


@pytest.mark.parametrize("kind", [b"application/grpc+proto", b"application/grpc;charset=utf-8"])
def test_content_types_of_grpc_are_taken(kind):
    """A subtype may follow."""
    assert resolve(b"/a.B/One", b"POST", kind).handler is answer


@pytest.mark.parametrize(
    ("method", "kind", "status"),
    [
        (b"GET", b"application/grpc", 405),
        (b"POST", b"application/json", 415),
        (b"POST", b"application/grpc-web", 415),
        (b"POST", b"", 415),
    ],
)
def test_what_is_no_call_gets_a_status_of_http(method, kind, status):
    """Browsers and curl get an answer they understand."""
    head = resolve(b"/a.B/One", method, kind)
    assert head.handler is None
    assert head.plain_status == status


def test_metadata_is_read():
    """It is part of what is kept for equal headers; nobody can change it."""
    head = resolve(
        b"/a.B/One",
        b"POST",
        b"application/grpc",
        (b"authorization", b"t"),
    )
    assert head.metadata == {"authorization": "t"}
    with pytest.raises(TypeError):
        head.metadata["authorization"] = "other"


def test_paths_have_a_service_and_a_method():
    """A router with a path that no client can ask for is a bug."""
    with pytest.raises(AssertionError):
        Router({"One": Unary(answer)})
