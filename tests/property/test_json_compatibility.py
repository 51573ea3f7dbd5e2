"""Whatever a JSON Schema is said to be compatible with, it accepts: values are the judges.

Another implementation says which values are valid. Objects say what their other properties are, or
have no others, for the one thing that is taken on trust: names that an open object leaves open.
"""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from frazil.registry import json_reasons

NAMES = ("x1", "x2", "y1")
LEAVES = st.sampled_from(
    [
        {"type": "integer"},
        {"type": "number"},
        {"type": "string"},
        {"type": ["integer", "string"]},
        {"enum": [1, "s"]},
        {"const": 1},
        {"minimum": 1},
        {},
        False,
    ]
)
OBJECTS = st.fixed_dictionaries(
    {"additionalProperties": st.just(False) | LEAVES.filter(lambda leaf: leaf != {})},
    optional={
        "type": st.just("object"),
        "properties": st.dictionaries(st.sampled_from(NAMES), LEAVES),
        "patternProperties": st.dictionaries(st.sampled_from(["^x", "1$"]), LEAVES),
        "required": st.lists(st.sampled_from(NAMES), max_size=1),
        "unevaluatedProperties": LEAVES,
    },
)
SCHEMAS = st.one_of(
    OBJECTS,
    st.builds(lambda part, rest: {**rest, "allOf": [part]}, OBJECTS, OBJECTS),
    st.builds(lambda parts, rest: {**rest, "anyOf": parts}, st.lists(OBJECTS, min_size=1), OBJECTS),
    st.builds(
        lambda part, rest: {**rest, "$defs": {"d": part}, "$ref": "#/$defs/d"}, OBJECTS, OBJECTS
    ),
)
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "properties": st.dictionaries(st.sampled_from(NAMES), LEAVES),
        "patternProperties": st.dictionaries(st.sampled_from(["^x", "1$"]), LEAVES),
        "additionalProperties": LEAVES,
    },
)
NAMING = ("properties", "patternProperties")
VALUES = [
    {name: value for name, value in zip(NAMES, values, strict=True) if value is not None}
    for values in product((None, 1, 1.5, "s"), repeat=len(NAMES))
]


@settings(max_examples=600, deadline=None)
@given(writer=SCHEMAS, changes=CHANGES)
def test_what_is_called_compatible_accepts_all_values(writer, changes):
    """No value is valid for the writer alone when no reason is told."""
    reader = dict(writer)
    for key, change in changes.items():
        before = writer.get(key)
        both = isinstance(before, dict) and isinstance(change, dict) and key in NAMING
        reader[key] = {**before, **change} if both else change
    if json_reasons(reader=reader, writer=writer):
        return
    ours, theirs = Draft202012Validator(reader), Draft202012Validator(writer)
    assert [each for each in VALUES if theirs.is_valid(each) and not ours.is_valid(each)] == []
