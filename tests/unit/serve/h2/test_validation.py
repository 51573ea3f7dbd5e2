"""Headers that are a request, and headers that are none."""

from __future__ import annotations

import pytest

from frazil.serve.h2.headers import request_problem, trailers_problem

GOOD = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/"))


@pytest.mark.parametrize(
    "extra",
    [
        (),
        ((b"te", b"trailers"),),
        ((b"content-length", b"12"),),
        ((b"x-y_z.1", b"\xffvalue "),),
    ],
)
def test_requests_are_taken(extra):
    """A method, a scheme, a path and lower case names are enough."""
    problem, length = request_problem(GOOD + extra)
    assert problem is None
    assert length == (12 if extra and extra[0][0] == b"content-length" else -1)


@pytest.mark.parametrize(
    "fields",
    [
        GOOD[1:],
        GOOD[:2],
        (GOOD[0], GOOD[2]),
        ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"")),
        (*GOOD, GOOD[0]),
        (*GOOD, (b":status", b"200")),
        ((b"x", b"1"), *GOOD),
        (*GOOD, (b"Upper", b"1")),
        (*GOOD, (b"", b"1")),
        (*GOOD, (b"a b", b"1")),
        (*GOOD, (b"a:b", b"1")),
        (*GOOD, (b"x", b"a\r\nb")),
        (*GOOD, (b"x", b"a\0b")),
        (*GOOD, (b"connection", b"close")),
        (*GOOD, (b"transfer-encoding", b"chunked")),
        (*GOOD, (b"te", b"gzip")),
        (*GOOD, (b"content-length", b"-1")),
        (*GOOD, (b"content-length", b"1"), (b"content-length", b"2")),
        (*GOOD, (b"content-length", b"9" * 5000)),
    ],
)
def test_what_is_no_request_is_refused(fields):
    """Each broken rule alone is enough."""
    problem, _ = request_problem(fields)
    assert problem is not None


def test_trailers_have_no_pseudo_headers():
    """Trailers are plain fields."""
    assert trailers_problem(((b"x", b"1"),)) is None
    assert trailers_problem(GOOD[:1]) is not None
    assert trailers_problem(((b"X", b"1"),)) is not None
