"""The server's header blocks are read by any HPACK decoder."""

from __future__ import annotations

import pytest
from hpack import Decoder

from frazil.serve.h2.headers import SHORT_HEAD, SHORT_TAIL, ReplyBlocks, integer, literal

BEGIN = [(":status", "200"), ("content-type", "application/grpc")]


def read(decoder, block):
    return [tuple(field) for field in decoder.decode(block)]


def test_blocks_become_three_bytes():
    """After the first good answer the blocks of the next ones are short, and mean the same."""
    blocks, decoder = ReplyBlocks(), Decoder()
    assert read(decoder, blocks.begin()) == BEGIN
    assert not blocks.are_short
    assert read(decoder, blocks.good_end()) == [("grpc-status", "0")]
    assert blocks.are_short
    assert blocks.begin() == SHORT_HEAD
    assert blocks.good_end() == SHORT_TAIL
    assert read(decoder, SHORT_HEAD) == BEGIN
    assert read(decoder, SHORT_TAIL) == [("grpc-status", "0")]


def test_a_failure_first_leaves_the_table_in_step():
    """Whatever order answers come in, the decoder reads them all."""
    blocks, decoder = ReplyBlocks(), Decoder()
    failed = [*BEGIN, ("grpc-status", "5"), ("grpc-message", "no")]
    assert read(decoder, blocks.only_end(5, b"no")) == failed
    assert read(decoder, blocks.begin()) == BEGIN
    assert read(decoder, blocks.end(13, b"")) == [("grpc-status", "13")]
    assert read(decoder, blocks.end(0, b"")) == [("grpc-status", "0")]
    assert read(decoder, blocks.only_end(5, b"no")) == failed
    assert read(decoder, blocks.plain(415)) == [(":status", "415")]
    assert read(decoder, SHORT_HEAD + SHORT_TAIL) == [*BEGIN, ("grpc-status", "0")]


@pytest.mark.parametrize("answered", [0, 1, 3])
@pytest.mark.parametrize("size", [0, 50, 4095])
def test_a_peer_with_a_small_table_gets_an_update_and_literals(answered, size):
    """The first block after the peer's setting says that the table is empty from now on."""
    blocks, decoder = ReplyBlocks(), Decoder()
    for _ in range(answered):
        read(decoder, blocks.begin())
        read(decoder, blocks.good_end())
    decoder.max_allowed_table_size = size
    blocks.peer_table(size)
    assert not blocks.are_short
    assert read(decoder, blocks.begin()) == BEGIN
    for _ in range(2):
        assert read(decoder, blocks.good_end()) == [("grpc-status", "0")]
        assert read(decoder, blocks.only_end(1, b"a")) == [
            *BEGIN,
            ("grpc-status", "1"),
            ("grpc-message", "a"),
        ]
    blocks.peer_table(size)
    assert read(decoder, blocks.begin()) == BEGIN
    assert not decoder.header_table.dynamic_entries


def test_a_peer_with_a_larger_table_changes_nothing():
    """The usual table is enough."""
    blocks = ReplyBlocks()
    blocks.begin()
    blocks.good_end()
    blocks.peer_table(65_536)
    assert blocks.are_short


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 254, 255, 256, 3000, 70_000])
def test_values_of_any_length_are_read_back(size):
    """Lengths over 126 take more than one byte."""
    decoder = Decoder(max_header_list_size=1 << 20)
    value = b"v" * size
    assert read(decoder, literal(b"grpc-message", value)) == [("grpc-message", "v" * size)]
    assert read(decoder, literal(31, value, indexed=True)) == [("content-type", "v" * size)]


def test_integers_are_those_of_the_standard():
    """The examples of RFC 7541, C.1."""
    assert integer(10, 5, 0) == b"\x0a"
    assert integer(1337, 5, 0) == b"\x1f\x9a\x0a"
    assert integer(42, 8, 0) == b"\x2a"
