"""Bytes, strings and numbers: types without a definition."""

from __future__ import annotations

import struct

import pytest

from frazil.errors import InvalidRequest
from frazil.registry.kinds import (
    check_subject,
    check_topic,
    compatibility_mode,
    plain_refusal,
    schema_type,
    validation_policy,
)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("bytes", "bytes"),
        ("string", "string"),
        ("number", "number"),
        ("int64", "number"),
        ("int", "number"),
        ("float", "number"),
        ("double", "number"),
        ("avro", "avro"),
        ("json_schema", "json_schema"),
        ("json", "json_schema"),
        ("protobuf", "protobuf"),
        ("proto", "protobuf"),
        ("JSON_Schema", "json_schema"),
    ],
)
def test_types_have_their_aliases(text, meant):
    """Each name of a type, in any case, means one type."""
    assert schema_type(text) == meant


def test_unknown_words_are_refused_with_the_known_ones():
    """The error for a wrong type, mode or policy lists the right ones."""
    with pytest.raises(InvalidRequest, match="Invalid schema type: 'xml', use one of: bytes, str"):
        schema_type("xml")
    with pytest.raises(InvalidRequest, match="Invalid compatibility mode: '', use one of: none"):
        compatibility_mode("")
    with pytest.raises(InvalidRequest, match="Invalid validation policy: 'x', use one of: none"):
        validation_policy("x")
    assert compatibility_mode("FULL") == "full"
    assert validation_policy("Enforce") == "enforce"


@pytest.mark.parametrize("name", ["a", "user-events", "com.example.User_1", "/default/t", "ü"])
def test_usual_subjects_are_taken(name):
    """Letters of any script, digits and some signs make a name."""
    check_subject(name)
    assert name


@pytest.mark.parametrize("name", ["", "a b", "a\n", "x" * 256, "\ud800", "a*", "\U00020000" * 250])
def test_odd_subjects_are_refused(name):
    """Empty, spaced, endless and unprintable names are no subjects."""
    with pytest.raises(InvalidRequest):
        check_subject(name)


@pytest.mark.parametrize("name", ["", "t" * 513, "\ud800", "\U00020000" * 300])
def test_odd_topics_are_refused(name):
    """A name that cannot be a key is no topic."""
    with pytest.raises(InvalidRequest):
        check_topic(name)


def test_bytes_take_everything_and_strings_take_utf8():
    """A string is checked for its encoding."""
    assert plain_refusal("bytes", b"\xff") is None
    assert plain_refusal("string", "é".encode()) is None
    assert plain_refusal("string", b"ab\xff") == "not a string: invalid UTF-8 at byte 2"


NUMBERS = (b"5", b"0", b"-0", b"-12.5e3", b"123456789", b"0.10", b"1E+3", b"1e-9")
NO_NUMBERS = (
    *(b"", b"abc", b'"5"', b"false", b"5\0", b"\xff" * 5, b"1" * 65, b"[1]", b"[" * 60),
    *(b"NaN", b"-Infinity", b"+Infinity", b" 1", b"1 ", b"1\n", b"\t1", b" 1.5 e"),
    *(b"+1", b"01", b"1.", b".5", b"1e", b"0x1", b"1_000", b"-", b"\xd9\xa1", b"--1"),
)


@pytest.mark.parametrize("payload", [struct.pack("<q", 5), struct.pack("<f", 1.5), *NUMBERS])
def test_numbers_are_binary_or_text(payload):
    """Four or eight bytes are a number, and so is the text of one."""
    assert plain_refusal("number", payload) is None


@pytest.mark.parametrize("payload", NO_NUMBERS)
def test_what_json_does_not_write_is_no_number(payload):
    """Neither NaN nor infinity, no spaces and no other sign: the text is a JSON number's alone."""
    assert "not a number" in plain_refusal("number", payload)


def test_numbers_in_text_have_64_bits():
    """What no common type holds is refused; the largest that one does is not."""
    for fine in (b"-9223372036854775808", b"18446744073709551615", b"1e300"):
        assert plain_refusal("number", fine) is None
    for wrong in (b"-9223372036854775809", b"18446744073709551616", b"1e400", b"9" * 64):
        assert plain_refusal("number", wrong) == "not a number of 64 bits: it is too large"
