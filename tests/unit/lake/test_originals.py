"""A rejected record's text gives its values back, in the types of its columns."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from frazil.errors import CorruptionError
from frazil.lake.originals import decode_original

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("seconds", pa.timestamp("s")),
        ("millis", pa.timestamp("ms", "UTC")),
        ("micros", pa.timestamp("us")),
        ("day", pa.date32()),
        ("money", pa.decimal128(9, 2)),
        ("data", pa.binary()),
        ("ratio", pa.float64()),
        ("big", pa.uint64()),
        (
            "nest",
            pa.struct([("m", pa.map_(pa.int32(), pa.binary())), ("l", pa.list_(pa.date32()))]),
        ),
    ]
)
TEXT = (
    b'{"id":7,"seconds":3000,"millis":-5,"micros":9,"day":-1,"money":"80000.00","data":"AP8=",'
    b'"ratio":"Infinity","big":"18446744073709551615",'
    b'"nest":{"m":[{"key":1,"value":"AA=="},{"key":2}],"l":[0,null]}}'
)


def test_values_come_back():
    """Units, digits, bytes, keys of maps and what JSON has no word for."""
    found = decode_original(TEXT, SCHEMA)
    assert found == {
        "id": 7,
        "seconds": 3,
        "millis": -5,
        "micros": 9,
        "day": -1,
        "money": Decimal("80000.00"),
        "data": b"\x00\xff",
        "ratio": float("inf"),
        "big": 2**64 - 1,
        "nest": {"m": [(1, b"\x00"), (2, None)], "l": [0, None]},
    }


def test_what_is_left_out_is_null():
    """A column without a value has none in the text."""
    assert decode_original(b"{}", SCHEMA) == dict.fromkeys(SCHEMA.names)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b'{"money":"x"}', b'{"data":"*"}', b'{"nest":{"m":[{}]}}', b'{"nest":1}']
)
def test_other_text_is_refused(text):
    """What is no record of these columns is said to be damaged."""
    with pytest.raises(CorruptionError):
        decode_original(text, SCHEMA)
