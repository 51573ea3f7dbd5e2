"""The head of a request: what is read, and with which status everything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.serve.http_request import BadRequest, Reply, encode_reply, parse_head, text_reply


def head(line="GET /metrics HTTP/1.1", *fields, host="localhost"):
    """Put a head together."""
    named = [] if host is None else [f"Host: {host}"]
    return "\r\n".join([line, *named, *fields, "", ""]).encode("latin-1")


def status_of(data, *, loopback_only=True):
    """Return the status that refuses the bytes, 200 if they are read."""
    try:
        parse_head(data, loopback_only=loopback_only)
    except BadRequest as error:
        return error.status
    return 200


def test_a_request_is_read():
    """The path comes without its query, the fields in lower case and trimmed."""
    found = parse_head(
        head("GET /metrics?x=1 HTTP/1.1", "Accept:  */* ", "X-A:"), loopback_only=True
    )
    assert found.path == "/metrics"
    assert found.fields == {"host": "localhost", "accept": "*/*", "x-a": ""}


@pytest.mark.parametrize("method", ["POST", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "PRI"])
def test_only_get_is_taken(method):
    """Another method is 405, and the answer says what is allowed."""
    assert status_of(head(f"{method} /metrics HTTP/1.1")) == 405
    assert b"\r\nAllow: GET\r\n" in encode_reply(text_reply(405, "x"))


@pytest.mark.parametrize(
    "line",
    [
        "",
        "GET",
        "GET /",
        "GET / HTTP/2.0",
        "GET / HTTP/1.2",
        "get / HTTP/1.1",
        "GET  / HTTP/1.1",
        "GET / HTTP/1.1 ",
        "GET /\tx HTTP/1.1",
        "GET http://localhost/ HTTP/1.1",
        "GET * HTTP/1.1",
        "GET /\xe9 HTTP/1.1",
        "GET /\n HTTP/1.1",
        "PRI * HTTP/2.0",
        "\x16\x03\x01",
    ],
)
def test_a_malformed_line_is_refused(line):
    """Anything but method, path and version is 400."""
    assert status_of(head(line)) == 400


@pytest.mark.parametrize(
    "field",
    [
        " folded: x",
        "\tfolded",
        "no colon",
        "spa ce: x",
        "space : x",
        ": x",
        "X: a\x00b",
        "X: a\nb",
        "X: a\rb",
        "X\x7f: a",
        "",
    ],
)
def test_a_malformed_field_is_refused(field):
    """Folding, spaces in names, control characters and empty lines in between are 400."""
    assert status_of(head("GET / HTTP/1.1", field, "Y: z")) == 400


@pytest.mark.parametrize("name", ["Host", "Content-Length", "Authorization", "Transfer-Encoding"])
def test_a_field_that_decides_is_given_once(name):
    """Two of them could mean different things to different readers."""
    line = "GET / HTTP/1.1"
    assert status_of(head(line, f"{name}: 0", f"{name.lower()}: 0", host=None)) == 400


def test_a_body_is_refused():
    """GET with a length or an encoding is 413; a length of zero is none."""
    line = "GET / HTTP/1.1"
    assert status_of(head(line, "Content-Length: 0")) == 200
    assert status_of(head(line, "Content-Length: 5")) == 413
    assert status_of(head(line, "Content-Length: -1")) == 413
    assert status_of(head(line, "Transfer-Encoding: chunked")) == 413


def test_too_much_is_refused():
    """More than 64 fields are 431, a target above 1,024 characters is 414."""
    line = "GET / HTTP/1.1"
    fields = [f"X-{n}: y" for n in range(64)]
    assert status_of(head(line, *fields[:63])) == 200
    assert status_of(head(line, *fields)) == 431
    assert status_of(head(f"GET /{'x' * 1023} HTTP/1.1")) == 200
    assert status_of(head(f"GET /{'x' * 1024} HTTP/1.1")) == 414


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:9040",
        "localhost.",
        "127.0.0.1",
        "127.0.0.1:80",
        "[::1]:9040",
        "[::1]",
    ],
)
def test_this_machine_may_be_named(host):
    """All names of loopback are taken, with and without a port."""
    assert status_of(head(host=host)) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example:9040",
        "192.0.2.1",
        "0.0.0.0",
        "[::]",
        "",
        "localhost:",
        "localhost@evil.example",
        "a:b:c",
        "::1",
    ],
)
def test_another_host_is_refused_on_loopback_alone(host):
    """A name that a web page made point here is 421; a public listener has names of its own."""
    assert status_of(head(host=host)) == 421
    assert status_of(head(host=host), loopback_only=False) == 200


def test_the_host_may_be_missing_in_the_old_version_only():
    """HTTP/1.1 needs it, 1.0 does not."""
    assert status_of(head(host=None)) == 400
    assert status_of(head("GET / HTTP/1.0", host=None)) == 200


def test_an_answer_is_the_last_of_its_connection():
    """It has its length and type, is not cached and closes the connection."""
    data = encode_reply(Reply(200, b"a\n", "text/x"))
    lines, _, body = data.partition(b"\r\n\r\n")
    assert lines.split(b"\r\n") == [
        b"HTTP/1.1 200 OK",
        b"Content-Type: text/x",
        b"Content-Length: 2",
        b"Cache-Control: no-store",
        b"X-Content-Type-Options: nosniff",
        b"Connection: close",
    ]
    assert body == b"a\n"


@given(st.binary(max_size=300))
def test_junk_is_refused(data):
    """No bytes crash the reader: they are a request or a status."""
    assert status_of(data.replace(b"\r\n\r\n", b"") + b"\r\n\r\n") in {200, 400, 405, 413, 414, 421}


@given(
    st.lists(
        st.sampled_from(
            ["GET", " ", "/", "HTTP/1.1", "\r\n", "Host", ":", "localhost", "x", "\t", "POST", "\n"]
        ),
        max_size=25,
    )
)
def test_no_mixture_smuggles_a_second_request(pieces):
    """What is read has one line, and no field holds a line break."""
    data = "".join(pieces).encode() + b"\r\n\r\n"
    data = data[: data.index(b"\r\n\r\n") + 4]
    try:
        found = parse_head(data, loopback_only=False)
    except BadRequest:
        return
    texts = [found.path, *found.fields, *found.fields.values()]
    assert not any(mark in text for text in texts for mark in "\r\n \x00"[:2])
