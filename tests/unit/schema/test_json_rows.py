"""Rows from JSON and CSV."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest

from frazil.errors import InvalidRequest
from frazil.schema.columns import declare_schema
from frazil.schema.json_rows import JsonRowReader, parse_csv_row, parse_json_row
from frazil.schema.rows import RowEncoder

TYPES = {
    "id": "long",
    "ok": "boolean",
    "name": "string",
    "amount": "double",
    "raw": "bytes",
    "at": "timestamptz",
    "local": "timestamp",
    "day": "date",
    "hour": "time",
    "price": "decimal(10,2)",
    "tags": "list<date>",
    "more": "struct<at:timestamptz,x:int>",
    "pairs": "map<int,bytes>",
}
SCHEMA = declare_schema(TYPES)


@pytest.mark.parametrize(
    ("line", "row"),
    [
        (b"{}", {}),
        (b' {"a": 1, "b": [1, {"c": null}]} ', {"a": 1, "b": [1, {"c": None}]}),
        ('{"a":"é"}', {"a": "é"}),
        (rb'{"a":"x\":","b":":"}', {"a": 'x":', "b": ":"}),
        (rb'{"a":"{\"b\":1,\"b\":2}"}', {"a": '{"b":1,"b":2}'}),
        (b'{"a" :1,"b"\t:\n{"a":2}}', {"a": 1, "b": {"a": 2}}),
        (b'{"a":{"x":1},"b":{"x":1}}', {"a": {"x": 1}, "b": {"x": 1}}),
        (b'{"a":9223372036854775807}', {"a": 2**63 - 1}),
        (b'{"a":"12345678901234567890123"}', {"a": "12345678901234567890123"}),
        (b'{"a":' + b"[" * 63 + b"]" * 63 + b"}", None),
    ],
)
def test_valid_objects_are_read(line, row):
    """Colons, quotes, spaces and digits inside strings do not mislead the strict checks."""
    found = parse_json_row(line)
    assert row is None or found == row


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[1]",
        b"1",
        b"null",
        b'"x"',
        b"{",
        b'{"a":1}x',
        b'{"a":1}{"a":1}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'{"a":1e999}',
        b"{'a':1}",
        b'{"a":1,}',
        b'{"a":"\xff"}',
        b'{"\xff":1}',
        rb'{"a":"\ud800"}',
        '{"a":"\ud800"}',
        b'{"a":9223372036854775808}',
        b'{"a":-9223372036854775809}',
        b'{"a":[{"b":18446744073709551616}]}',
        pytest.param(b'{"a":' + b"9" * 5000 + b"}", id="digits"),
        b'{"a":1,"a":2}',
        b'{"a":1,"a" :2}',
        b'{"a":1,"a"\n:2}',
        rb'{"a":1,"\u0061":2}',
        b'{"x":[{"a":1,"a":2}]}',
        rb'{"a":"x\":","a":1}',
        b'{"t":"12:00:00","a":1,"a":2}',
        b'{"t":" :","a":1,"a":2}',
        pytest.param(b'{"a":' + b"[" * 100_000, id="bottomless"),
    ],
)
def test_anything_but_one_strict_object_is_refused(line):
    """Extensions of JSON, doubled keys, big integers, bad text and depth are refused."""
    with pytest.raises(InvalidRequest):
        parse_json_row(line)


def test_json_text_becomes_the_columns_types():
    """Strings become timestamps, dates, bytes and decimals, and the row then encodes."""
    line = (
        b'{"id":1,"ok":true,"name":"x","amount":2,"raw":"AP8=","at":"2026-01-31T13:00:00.5+01:00",'
        b'"local":"2026-01-31 12:00","day":"2026-01-31","hour":"23:59:59.000001","price":1.10,'
        b'"tags":["2026-01-31",null],"more":{"at":"2026-01-31T12:00:00Z","x":null},'
        b'"pairs":{"5":"eA==","6":null}}'
    )
    row = JsonRowReader(SCHEMA).read(line)
    noon = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
    encoder = RowEncoder(SCHEMA)
    assert encoder.batch([encoder.values(row)]).to_pylist()[0] == {
        "id": 1,
        "ok": True,
        "name": "x",
        "amount": 2.0,
        "raw": b"\x00\xff",
        "at": noon.replace(microsecond=500_000),
        "local": noon.replace(tzinfo=None),
        "day": noon.date(),
        "hour": dt.time(23, 59, 59, 1),
        "price": Decimal("1.10"),
        "tags": [noon.date(), None],
        "more": {"at": noon, "x": None},
        "pairs": [(5, b"x"), (6, None)],
    }


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("raw", '"?"'),
        ("raw", '"eA"'),
        ("raw", "1"),
        ("at", '"2026-01-31T12:00:00"'),
        ("at", '"2026-02-30T12:00:00Z"'),
        ("at", '"yesterday"'),
        ("at", "1700000000"),
        ("at", '"2026-01-31T12:00:00.1234567Z"'),
        ("local", '"2026-01-31T12:00:00Z"'),
        ("day", '"2026-1-31"'),
        ("day", '"20260131"'),
        ("day", '"2026-13-01"'),
        ("hour", '"24:00"'),
        ("hour", '"12:00Z"'),
        ("price", '"1,5"'),
        ("price", '"NaN"'),
        ("price", "true"),
        ("price", "1.005"),
        ("tags", '["x"]'),
        ("tags", '"2026-01-31"'),
        ("more", '{"at":"x"}'),
        ("more", '{"zz":1}'),
        ("pairs", '{"x":"eA=="}'),
        ("id", '"1"'),
        ("id", "1.0"),
        ("name", "1"),
    ],
)
def test_text_that_does_not_fit_is_refused_with_its_column(column, value):
    """Each wrong text is refused by the reader or the encoder, and the error names the column."""
    with pytest.raises(InvalidRequest) as caught:
        RowEncoder(SCHEMA).values(JsonRowReader(SCHEMA).read(f'{{"{column}":{value}}}'))
    assert str(caught.value.details["column"]).split(".")[0] == column


def test_csv_cells_become_the_columns_types():
    """Each cell is read by its column; an empty one is null, in a text column the empty text."""
    names = list(TYPES)
    cells = ["-5", "TRUE", "", "1e3", "AP8=", "2026-01-31T12:00:00Z", "", "2026-01-31", "01:02"]
    cells += ["1.10", '["2026-01-31"]', '{"x":1}', ""]
    row = parse_csv_row(names, cells, SCHEMA)
    encoder = RowEncoder(SCHEMA)
    found = encoder.batch([encoder.values(row)]).to_pylist()[0]
    assert list(found.values()) == [
        -5,
        True,
        "",
        1000.0,
        b"\x00\xff",
        dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC),
        None,
        dt.date(2026, 1, 31),
        dt.time(1, 2),
        Decimal("1.10"),
        [dt.date(2026, 1, 31)],
        {"at": None, "x": 1},
        None,
    ]


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("id", "1_000"),
        ("id", "1.0"),
        ("id", "\u0663"),
        ("id", "x"),
        ("ok", "1"),
        ("ok", "yes"),
        ("amount", "1,5"),
        ("amount", "0x1"),
        ("raw", "?"),
        ("at", "x"),
        ("tags", "[1"),
        ("more", '1,"x":2'),
        ("nope", "1"),
    ],
)
def test_a_csv_cell_that_does_not_fit_is_refused(name, cell):
    """Only the plain spelling of a type is accepted, in a column that exists."""
    with pytest.raises(InvalidRequest):
        parse_csv_row([name], [cell], SCHEMA)


def test_a_csv_row_must_have_each_column_once():
    """Too few, too many and doubled cells are refused."""
    for names, cells in ((["id"], []), (["id"], ["1", "2"]), (["id", "id"], ["1", "2"])):
        with pytest.raises(InvalidRequest):
            parse_csv_row(names, cells, SCHEMA)
