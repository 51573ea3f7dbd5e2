"""The header cache says what plain `hpack` says, block after block."""

from __future__ import annotations

from hpack import Decoder, Encoder, HPACKError
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.serve.h2.frames import ConnectionFailure
from frazil.serve.h2.headers import HeaderReader
from frazil.serve.h2.limits import ServerLimits

LIMITS = ServerLimits(cached_blocks_max=3)
FIELD = st.tuples(
    st.sampled_from([b":path", b":method", b"te", b"x", b"a-long-name-that-fills-the-table"]),
    st.sampled_from([b"", b"1", b"2", b"POST", b"v" * 1500]),
    st.booleans(),
)
BLOCK = st.lists(FIELD, max_size=5)


def plain(decoder, block):
    """Return what `hpack` alone reads, or None if it cannot."""
    try:
        return tuple(tuple(field) for field in decoder.decode(block, raw=True))
    except HPACKError:
        return None


def cached(reader, block):
    try:
        return reader.read(block).fields
    except ConnectionFailure:
        return None


def check_same(blocks):
    """Read blocks with and without cache until one is unreadable."""
    reader = HeaderReader(LIMITS, lambda fields: None)
    decoder = Decoder(max_header_list_size=LIMITS.header_bytes_max)
    for block in blocks:
        expected = plain(decoder, block)
        assert cached(reader, block) == expected
        if expected is None:
            break


@settings(max_examples=100)
@given(st.lists(st.tuples(BLOCK, st.sampled_from([None, None, 0, 200, 4096])), max_size=8))
def test_the_cache_reads_what_an_encoder_wrote(script):
    """Repeated blocks, new fields and new sizes of the table are read alike with and without it."""
    encoder = Encoder()
    blocks = []
    for fields, size in script:
        if size is not None:
            encoder.header_table_size = size
        # Twice: the second block is short, and is what a cache is for.
        blocks += [encoder.encode(fields), encoder.encode(fields)]
    check_same(blocks)


@settings(max_examples=200)
@given(st.lists(st.lists(st.one_of(st.integers(0, 255), st.sampled_from([0x82, 0xBE, 0xBF, 0x20])),
                         max_size=12).map(bytes), max_size=10))  # fmt: skip
def test_the_cache_reads_junk_as_plain_hpack_does(blocks):
    """Any bytes are read alike, or refused alike."""
    check_same([*blocks, *blocks])


@settings(max_examples=200)
@given(st.lists(st.sampled_from([
    b"\x82", b"\xbe", b"\xbf", b"\xc0", b"\x20", b"\x3f\xe1\x1f", b"\x20\x3f\xe1\x1f", b"\x3e",
    b"\x40\x01x\x011", b"\x40\x01x\x012", b"\x00\x01x\x011", b"\x40\x01y\x7f\x80\x08" + b"v" * 1151,
    b"\x82\xbe", b"\xbe\xbf",
]), max_size=20))  # fmt: skip
def test_the_cache_follows_every_change_of_the_table(blocks):
    """Insertions, evictions and sizes between equal blocks change what they mean."""
    check_same(blocks)
