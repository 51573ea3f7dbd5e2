"""Patterns of JSON Schema: what the standard means by them, in bounded time."""

from __future__ import annotations

import json

import pytest

from frazil.errors import InvalidRequest
from frazil.registry.definitions import parse_definition
from frazil.registry.json_patterns import check_pattern, matches


@pytest.mark.parametrize(
    ("pattern", "text", "is_found"),
    [
        ("b", "abc", True),
        ("^b", "abc", False),
        (r"^\d+$", "123", True),
        (r"^\d+$", "123\n", False),
        (r"^\d+$", "\u0663", False),
        (r"\u0041", "A", True),
        (r"\\u0041", "\\u0041", True),
        (r"^\p{L}+$", "\u00e4\u00f6", True),
        (r"^\S+@\S+\.\w+$", "a@b.c", True),
        ("^(a|b)*$", "abba", True),
        ("^.$", "\ud800", True),
        ("\ud800", "x", False),
        ("", "", True),
    ],
)
def test_a_pattern_is_found_anywhere_in_a_text(pattern, text, is_found):
    """Anchors, classes and escapes are those of the standard, for any text that JSON can have."""
    check_pattern(pattern)
    assert matches(pattern, text) is is_found


@pytest.mark.parametrize("pattern", ["(", "[", "(?=a)", "(?<!a)b", r"(a)\1", "x{5000}", "a" * 5000])
def test_what_cannot_be_matched_in_bounded_time_is_refused(pattern):
    """The refusal comes with the definition, not with a record."""
    with pytest.raises(InvalidRequest):
        check_pattern(pattern)


def test_no_payload_takes_for_ever():
    """A pattern that others need years for is answered, and the process goes on meanwhile."""
    schema = {"pattern": "^(a+)+$", "patternProperties": {"^(a|a)*$": {"type": "null"}}}
    definition = parse_definition("json_schema", json.dumps(schema).encode())
    text = "a" * 5000 + "b"
    assert definition.refusal(json.dumps(text).encode()) is not None
    assert definition.refusal(json.dumps({text: 1}).encode()) is None


def test_many_patterns_on_many_names_are_given_up():
    """Names times patterns are work like other work, which is bounded."""
    schema = {"patternProperties": {f"^x{number}$": {} for number in range(2000)}}
    definition = parse_definition("json_schema", json.dumps(schema).encode())
    payload = json.dumps({f"n{number}": 1 for number in range(2000)}).encode()
    assert definition.refusal(payload) == "schema needs too much work for this payload"
