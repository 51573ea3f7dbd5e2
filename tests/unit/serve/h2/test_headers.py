"""The header cache never answers from a table that has changed."""

from __future__ import annotations

import pytest
from hpack import Encoder
from hpack.hpack import encode_integer

from frazil.serve.h2.frames import ConnectionFailure, ErrorCode
from frazil.serve.h2.headers import HeaderReader, literal
from frazil.serve.h2.limits import ServerLimits

REQUEST = [(":method", "POST"), (":scheme", "http"), (":path", "/a.B/C"), ("x", "1")]


def reader(**limits):
    made = []
    found = HeaderReader(ServerLimits(**limits), lambda fields: made.append(fields) or len(made))
    return found, made


def test_a_block_that_changes_nothing_is_read_once():
    """The application sees equal headers once, and gets the same outcome for all calls."""
    headers, made = reader()
    encoder = Encoder()
    first = headers.read(encoder.encode(REQUEST))
    assert not headers.cache  # It filled the table.
    block = encoder.encode(REQUEST)
    again = headers.read(block)
    assert headers.read(block) is headers.read(block)
    assert headers.read(block).target == again.target
    assert again.fields == first.fields
    assert len(made) == 2


def test_an_insertion_by_another_block_empties_the_cache():
    """After it the same bytes mean other fields, and are read so."""
    headers, _ = reader()
    encoder = Encoder()
    headers.read(encoder.encode(REQUEST))
    block = encoder.encode(REQUEST)
    newest = bytes(encode_integer(62, 7))
    newest = bytes([newest[0] | 0x80, *newest[1:]])
    assert headers.read(block).fields[-1] == (b"x", b"1")
    before = headers.read(newest)
    assert newest in headers.cache
    headers.read(literal(b"y", b"2", indexed=True))
    assert not headers.cache
    assert headers.read(newest).fields == ((b"y", b"2"),)
    assert before.fields == ((b"x", b"1"),)


@pytest.mark.parametrize("update", [b"\x20", b"\x20\x3f\xe1\x1f", b"\x3e"])
def test_a_size_update_that_takes_something_away_empties_the_cache(update):
    """Shrinking the table, even for a moment, makes remembered blocks wrong."""
    headers, _ = reader()
    headers.read(literal(b"x", b"1", indexed=True))
    assert headers.read(b"\xbe").fields == ((b"x", b"1"),)
    headers.read(update)
    assert not headers.cache
    with pytest.raises(ConnectionFailure):
        headers.read(b"\xbe")


def test_the_cache_is_bounded():
    """Changing literals never hold more blocks than allowed, nor large ones."""
    headers, _ = reader(cached_blocks_max=4, cached_block_bytes_max=100)
    for number in range(50):
        headers.read(literal(b"x", b"%d" % number))
        assert len(headers.cache) <= 4
    headers.cache.clear()
    headers.read(literal(b"x", b"y" * 200))
    assert not headers.cache


@pytest.mark.parametrize(
    "block",
    [
        b"\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x80",
        b"\xbe",
        b"\x40\x85ab",
        b"\x3f\xe1\x7f",
        b"\x41",
    ],
)
def test_what_is_not_hpack_ends_the_connection(block):
    """Broken integers, indexes, strings and sizes are errors of compression."""
    headers, _ = reader()
    with pytest.raises(ConnectionFailure) as caught:
        headers.read(block)
    assert caught.value.code == ErrorCode.COMPRESSION_ERROR


def test_a_small_block_that_unpacks_to_much_ends_the_connection():
    """A large entry that is repeated a thousand times is refused while it is unpacked."""
    headers, _ = reader()
    headers.read(literal(b"x", b"y" * 3000, indexed=True))
    with pytest.raises(ConnectionFailure):
        headers.read(b"\xbe" * 1000)


def test_what_is_no_request_is_not_resolved():
    """The application is asked about requests only."""
    headers, made = reader()
    head = headers.read(literal(b"x", b"1"))
    assert head.problem is not None
    assert head.target is None
    assert not made


def test_large_headers_are_read_and_refused_by_the_application():
    """Above the limit a block still changes the table; above what is read it ends the connection."""
    headers = HeaderReader(ServerLimits(header_bytes_max=1_000), dict, lambda: "large")
    request = literal(b"x", b"y" * 900, indexed=True)
    head = headers.read(b"\x83\x86\x84" + request)
    assert (head.is_large, head.fields, head.target, head.problem) == (True, (), "large", None)
    small = headers.read(b"\x83\x86\x84" + literal(b"k", b"v"))
    assert (small.is_large, small.target[b"k"]) == (False, b"v")
    assert headers.read(b"\xbe").is_large is False
    with pytest.raises(ConnectionFailure) as caught:
        headers.read(b"\xbe" * 80)
    assert caught.value.code == ErrorCode.ENHANCE_YOUR_CALM
