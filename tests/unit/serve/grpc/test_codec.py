"""Messages, statuses, time-outs and metadata are what gRPC's protocol page says."""

from __future__ import annotations

from urllib.parse import unquote

import pytest

from frazil.serve.grpc.codec import (
    CallFailed,
    Code,
    metadata,
    only_message,
    status_text,
)


def test_a_message_is_read_back():
    """The prefix is a flag and the size."""
    assert only_message(b"\0\0\0\0\x03abc") == b"abc"
    assert only_message(b"\0\0\0\0\0") == b""


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", Code.UNIMPLEMENTED),
        (b"\0\0\0", Code.INVALID_ARGUMENT),
        (b"\0\0\0\0\x05abc", Code.INVALID_ARGUMENT),
        (b"\0\xff\xff\xff\xffabc", Code.INVALID_ARGUMENT),
        (b"\x01\0\0\0\x03abc", Code.UNIMPLEMENTED),
        (b"\x02\0\0\0\x03abc", Code.INVALID_ARGUMENT),
        (b"\0\0\0\0\x01a\0\0\0\0\x01b", Code.UNIMPLEMENTED),
    ],
)
def test_what_is_not_one_message_is_refused(body, code):
    """None, half of one, two and compressed ones have their statuses."""
    with pytest.raises(CallFailed) as caught:
        only_message(body)
    assert caught.value.code == code


@pytest.mark.parametrize("text", ["plain", "50 % of ünits\n", "\x00\x7f", "日本", "\ud800", ""])
def test_status_texts_survive_the_wire(text):
    """The encoding is plain ASCII without line breaks, and is undone by percent decoding."""
    sent = status_text(text)
    assert all(0x20 <= byte <= 0x7E for byte in sent)
    assert unquote(sent.decode()) == text.encode("utf-8", "replace").decode()


def test_long_status_texts_are_cut():
    """A text cannot make a header block larger than a frame."""
    assert len(status_text("é" * 100_000)) == 1024 * 6


def test_metadata_leaves_the_protocols_own_headers_out():
    """Text is text, doubles are joined, bytes are left out."""
    fields = (
        (b":path", b"/a"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"grpc-timeout", b"1S"),
        (b"authorization", b"Bearer x"),
        (b"two", b"1"),
        (b"two", b"2"),
        (b"trace-bin", b"AAEC"),
    )
    assert metadata(fields) == {"authorization": "Bearer x", "two": "1,2"}
