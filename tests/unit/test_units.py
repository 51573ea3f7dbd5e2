"""Sizes and durations as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.errors import InvalidRequest
from frazil.units import format_bytes, format_duration, parse_bytes, parse_duration_s


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("128MB", 128_000_000),
        ("128MiB", 134_217_728),
        ("4096", 4096),
        (" 1.5 KiB ", 1536),
        ("1.5kb", 1500),
        ("100_000", 100_000),
        ("2GiB", 2 << 30),
        ("0", 0),
        (4096, 4096),
        (1e6, 1_000_000),
    ],
)
def test_sizes_are_read(text, size):
    """Decimal units are powers of 1000, binary ones of 1024, a plain number is bytes."""
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("20ms", 0.02),
        ("5m", 300.0),
        ("48h", 172_800.0),
        ("1h30m", 5400.0),
        ("1.5s", 1.5),
        ("250us", 0.00025),
        ("7d", 604_800.0),
        ("3", 3.0),
        (0.5, 0.5),
        (2, 2.0),
    ],
)
def test_durations_are_read(text, seconds):
    """Units go from nanoseconds to weeks and add up; a plain number is seconds."""
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize(
    "junk",
    [
        *["", "MB", "-1", "-1MB", "1.5B", "12 parsecs", "128M", "1e6", "0x10", "1MB2", "٣MB"],
        *["9" * 99, None, True, [], -1, 0.5, float("nan"), float("inf")],
    ],
)
def test_what_is_no_size_is_refused(junk):
    """A size that is negative, broken, endless or in unknown units is an InvalidRequest."""
    with pytest.raises(InvalidRequest):
        parse_bytes(junk)


@pytest.mark.parametrize(
    "junk",
    ["", "s", "-5m", "5 years", "5m3", "1:30", "5M", "9" * 99, None, False, {}, -1, float("nan")],
)
def test_what_is_no_duration_is_refused(junk):
    """A duration that is negative, broken, endless or in unknown units is an InvalidRequest."""
    with pytest.raises(InvalidRequest):
        parse_duration_s(junk)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_number_too_long_to_print_is_refused(sign):
    """An integer beyond what Python prints gives an error that can be printed."""
    for parse in (parse_bytes, parse_duration_s):
        with pytest.raises(InvalidRequest) as caught:
            parse(sign * 16**5000)
        assert "1e30" in str(caught.value)


def test_an_ambiguous_size_unit_names_both_readings():
    """`128M` could be decimal or binary: the error offers both."""
    with pytest.raises(InvalidRequest, match="MB or MiB"):
        parse_bytes("128M")


@given(st.integers(0, 1 << 62))
def test_a_written_size_is_read_back(count):
    """format_bytes loses nothing."""
    assert parse_bytes(format_bytes(count)) == count


@given(st.floats(0, 1e12, allow_nan=False, allow_subnormal=False) | st.integers(0, 10**9))
def test_a_written_duration_is_read_back(seconds):
    """format_duration loses nothing, down to the last bit of the float."""
    text = format_duration(seconds)
    if len(text) <= 64:
        assert parse_duration_s(text) == seconds
    else:
        assert seconds < 1e-40


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0.02, "20ms"), (90.0, "1m30s"), (172_800.0, "2d"), (0.0, "0s")),
        *((0.001234567, "1234567ns"), (5e-9, "5ns")),
    ],
)
def test_durations_are_written(value, text):
    """A duration is made of whole numbers, in the largest units that divide it."""
    assert format_duration(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0B"), (128 << 20, "128MiB"), (10_000_000, "10MB"), (1234, "1234B"), (999, "999B")],
)
def test_sizes_are_written(value, text):
    """A size is a whole number of the largest unit that divides it."""
    assert format_bytes(value) == text
