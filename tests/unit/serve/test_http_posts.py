"""The head of a request that brings JSON: what is taken, and with which status the rest is refused."""

from __future__ import annotations

import pytest

from frazil.serve.http_request import BODY_BYTES_MAX, BadRequest, parse_head

POSTS = {"/calls"}
JSON = "Content-Type: application/json"


def head(*fields, line="POST /calls HTTP/1.1", host="localhost"):
    return "\r\n".join([line, f"Host: {host}", *fields, "", ""]).encode("latin-1")


def status_of(data, *, posts=POSTS):
    try:
        parse_head(data, loopback_only=True, posts=posts)
    except BadRequest as error:
        return error.status
    return 200


def test_json_is_taken_where_it_is_awaited():
    """The length says how much follows; parameters of the content type do not matter."""
    for kind in (JSON, "content-type: APPLICATION/json; charset=utf-8"):
        found = parse_head(head(kind, "Content-Length: 12"), loopback_only=True, posts=POSTS)
        assert (found.path, found.length) == ("/calls", 12)


def test_other_paths_take_no_json():
    """Without a call behind the path POST is 405, as it is without any calls."""
    other = head(JSON, "Content-Length: 2", line="POST /metrics HTTP/1.1")
    assert status_of(other) == 405
    assert status_of(head(JSON, "Content-Length: 2"), posts=()) == 405
    assert status_of(head(JSON, "Content-Length: 2", line="PUT /calls HTTP/1.1")) == 405


def test_a_get_of_such_a_path_has_no_body():
    """GET is as before: no length, and none is taken."""
    get = "GET /calls HTTP/1.1"
    assert parse_head(head(line=get), loopback_only=True, posts=POSTS).length == 0
    assert status_of(head("Content-Length: 5", JSON, line=get)) == 413


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (["Content-Length: 2"], 415),
        (["Content-Length: 2", "Content-Type: text/plain"], 415),
        (["Content-Length: 2", "Content-Type: application/x-www-form-urlencoded"], 415),
        ([JSON], 400),
        ([JSON, "Content-Length: 0"], 400),
        ([JSON, "Content-Length: -2"], 400),
        ([JSON, "Content-Length: +2"], 400),
        ([JSON, "Content-Length: 2_0"], 400),
        ([JSON, "Content-Length: 1234567890123"], 400),
        ([JSON, "Content-Length: 2", "Content-Length: 2"], 400),
        ([JSON, f"Content-Length: {BODY_BYTES_MAX}"], 200),
        ([JSON, f"Content-Length: {BODY_BYTES_MAX + 1}"], 413),
        ([JSON, "Content-Length: 2", "Transfer-Encoding: chunked"], 413),
    ],
)
def test_bodies_that_are_not_taken(fields, status):
    """What a form of another site could send, or what has no clear end, is refused unread."""
    assert status_of(head(*fields)) == status


def test_the_host_is_checked_as_for_pages():
    """A name that is not this machine's is refused on a listener of this machine."""
    assert status_of(head(JSON, "Content-Length: 2", host="evil.example")) == 421
