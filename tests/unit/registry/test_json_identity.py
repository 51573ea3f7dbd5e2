"""Equal JSON values have one key, and others have keys of other hashes."""

from __future__ import annotations

import json

import pytest

from frazil.registry.definitions import parse_definition
from frazil.registry.json_identity import Listed, leaf_key
from tests.unit.registry.counted_lines import lines_at_most

PRIME = (1 << 61) - 1
"""Whole numbers that are multiples of it have one hash."""


def schema_of(value):
    return parse_definition("json_schema", json.dumps(value).encode())


def test_numbers_of_one_hash_have_keys_of_different_hashes():
    """Lists of large numbers, which definitions may have, are not compared number by number."""
    numbers = [PRIME * n << 61 for n in range(10_000)]
    assert len({hash(number) for number in numbers}) == 1
    assert len({hash(leaf_key(number)) for number in numbers}) > 9_000
    assert len(Listed({"enum": numbers}).numbers) == len(numbers)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (2**70, float(2**70), True),
        (-(2**70), -float(2**70), True),
        (10**30, 1e30, False),
        (10**400, 10**400, True),
        (10**400, 10**400 + 1, False),
        (10**400, 0.0, False),
        (2**64, 2.0**64, True),
        (2**64 - 1, 2**64, False),
        (2**70, str(float(2**70)), False),
    ],
)
def test_large_numbers_are_equal_as_others_are(one, other, equal):
    """A whole number is equal to the floating-point number that is exactly it."""
    assert (leaf_key(one) == leaf_key(other)) is equal


def test_a_list_that_was_taken_for_data_is_walked_once():
    """Each value of a payload is looked for in such a list by its hash."""
    values = [f"s{number}" for number in range(2_000)]
    schema = schema_of({"examples": [{"enum": values}], "items": {"$ref": "#/examples/0"}})
    with lines_at_most(200 * len(values)):
        assert schema.refusal(json.dumps(values[::-1]).encode()) is None
