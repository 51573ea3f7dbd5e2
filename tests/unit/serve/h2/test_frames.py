"""Frames are the bytes that RFC 9113 draws."""

from __future__ import annotations

import pytest

from frazil.serve.h2 import frames as f


@pytest.mark.parametrize(
    ("built", "expected"),
    [
        (f.frame(f.DATA, f.END_STREAM, 3, b"ab"), "000002 00 01 00000003 6162"),
        (f.settings({f.INITIAL_WINDOW_SIZE: 65_536}), "000006 04 00 00000000 0004 00010000"),
        (f.SETTINGS_ACK, "000000 04 01 00000000"),
        (f.window_update(7, 1000), "000004 08 00 00000007 000003e8"),
        (f.reset(5, f.ErrorCode.CANCEL), "000004 03 00 00000005 00000008"),
        (f.ping(b"12345678"), "000008 06 00 00000000 3132333435363738"),
        (f.ping(b"12345678", ack=True), "000008 06 01 00000000 3132333435363738"),
        (f.goaway(9, f.ErrorCode.NO_ERROR, "x"), "000009 07 00 00000000 00000009 00000000 78"),
        (f.head(70_000, f.DATA, 0, 1), "011170 00 00 00000001"),
    ],
)
def test_builders_write_the_bytes_of_the_standard(built, expected):
    """Each builder gives the frame the standard draws."""
    assert built.hex() == expected.replace(" ", "")


def test_settings_are_read_back():
    """What `settings` writes, `settings_items` reads."""
    values = {f.MAX_FRAME_SIZE: 16_384, f.ENABLE_PUSH: 0}
    assert dict(f.settings_items(f.settings(values)[9:])) == values


def test_padding_is_taken_off():
    """Padding and its length are no content."""
    assert f.unpad(b"\x02abc\0\0") == b"abc"
    assert f.unpad(b"\x00") == b""


@pytest.mark.parametrize("payload", [b"", b"\x01", b"\x04abc"])
def test_padding_longer_than_the_frame_ends_the_connection(payload):
    """Padding that leaves nothing for its own length is an error of the connection."""
    with pytest.raises(f.ConnectionFailure):
        f.unpad(payload)
