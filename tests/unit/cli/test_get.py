"""Keys on the command line: by the types of the key's columns, as text, CSV or JSON."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest

from frazil.cli.get import parse_key
from frazil.errors import InvalidRequest
from frazil.schema import IngestLimits, declare_schema

SCHEMA = declare_schema(
    {
        "id": "long",
        "name": "string",
        "day": "date",
        "price": "decimal(10,2)",
        "flag": "boolean",
        "raw": "bytes",
    },
    limits=IngestLimits(),
)

KEYS = [
    ("7", ["id"], {"id": 7}),
    ("-7", ["id"], {"id": -7}),
    ("7", ["name"], {"name": "7"}),
    ("a,b", ["name"], {"name": "a,b"}),
    ("", ["name"], {"name": ""}),
    ('["a"]', ["name"], {"name": '["a"]'}),
    ("2026-01-31", ["day"], {"day": dt.date(2026, 1, 31)}),
    ("1.50", ["price"], {"price": Decimal("1.50")}),
    ("true", ["flag"], {"flag": True}),
    ("AAE=", ["raw"], {"raw": b"\0\1"}),
    ("7,a", ["id", "name"], {"id": 7, "name": "a"}),
    ('7,"a,b"', ["id", "name"], {"id": 7, "name": "a,b"}),
    ('[7, "a,b"]', ["id", "name"], {"id": 7, "name": "a,b"}),
    ('{"name": "x", "id": 7}', ["id", "name"], {"id": 7, "name": "x"}),
    (
        '["2026-01-31", "1.5"]',
        ["day", "price"],
        {"day": dt.date(2026, 1, 31), "price": Decimal("1.5")},
    ),
]


@pytest.mark.parametrize(("text", "names", "key"), KEYS)
def test_keys_are_read_by_their_columns(text, names, key):
    """One column takes the text as it is; several take CSV in order, a JSON array or object."""
    assert parse_key(text, SCHEMA, names) == key


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("x", ["id"]),
        ("", ["id"]),
        ("7", ["id", "name"]),
        ("7,a,b", ["id", "name"]),
        (",a", ["id", "name"]),
        ("[7]", ["id", "name"]),
        ("[7, null]", ["id", "name"]),
        ('{"id": 7}', ["id", "name"]),
        ('{"id": 7, "name": "a", "more": 1}', ["id", "name"]),
        ("[7, ", ["id", "name"]),
        ("7,a\nb", ["id", "name"]),
        ('7,"a', ["id", "name"]),
        ("", ["id", "name"]),
    ],
)
def test_keys_that_do_not_fit_are_refused(text, names):
    """A wrong type, too few or too many values, nulls and broken JSON are refused."""
    with pytest.raises(InvalidRequest):
        parse_key(text, SCHEMA, names)
