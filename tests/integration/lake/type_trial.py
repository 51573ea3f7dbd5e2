"""The values with which types are tried, and how what engines read is compared with them."""

from __future__ import annotations

import datetime as dt
import re
import struct
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.types as pt

from frazil.fs import RealFileSystem
from frazil.lake import StagedFile
from frazil.schema import parse_field
from frazil.tiers import RowsWriter, file_schema

PAGE = Path(__file__).resolve().parents[3] / "docs" / "types.md"
TIME_US = 1_790_000_000_000_000
NAN, INFINITY = float("nan"), float("inf")
UTC = dt.UTC
SECOND = dt.datetime(1999, 12, 31, 23, 59, 59)  # noqa: DTZ001 - a wall clock without a zone

DAYS = [0, -1, -719162, -719163, -719529, -141428, -141427, 2932896, 2932897, -(2**31), 2**31 - 1]
MICROS = [
    *(0, 1, -1, -62135596800000000, -62135596800000001, -12219292800000001, -12219292800000000),
    *(253402300799999999, 253402300800000000, 2**63 - 1, -(2**63), -(2**63) + 1),
]
MILLIS = [0, 1, -1, -62135596800001, 253402300800000, 9 * 10**15, -9 * 10**15]
SECONDS = [0, 1, -1, -62135596801, 253402300800, 9 * 10**12, -9 * 10**12]
FLOATS = [0.0, -0.0, NAN, INFINITY, -INFINITY]
FLOAT_ENDS = [1.401298464324817e-45, 3.4028234663852886e38, -3.4028234663852886e38]
DOUBLE_ENDS = [5e-324, 1.7976931348623157e308, -1.7976931348623157e308, 0.1]
NINES = "9" * 38
TEXTS = ["", "a", "\0", "\U0001f600 é", "e\u0301", "x" * 70_000, "null", " "]

# Each type as text, and values of it; a null is added to every column.
CASES: dict[str, list[object]] = {
    "boolean": [True, False],
    "int8": [-128, 127, 0],
    "int16": [-(2**15), 2**15 - 1],
    "int": [-(2**31), 2**31 - 1],
    "long": [-(2**63), 2**63 - 1],
    "uint8": [0, 255],
    "uint16": [0, 65535],
    "uint32": [0, 2**31, 2**32 - 1],
    "uint64": [0, 2**63 - 1, 2**63, 2**64 - 1],
    "float": [*FLOATS, *FLOAT_ENDS],
    "double": [*FLOATS, *DOUBLE_ENDS],
    "decimal(38,10)": [
        Decimal(f"{NINES[:28]}.{NINES[:10]}"),
        Decimal(f"-{NINES[:28]}.{NINES[:10]}"),
    ],
    "decimal(38,0)": [Decimal(NINES), Decimal(f"-{NINES}"), Decimal(0)],
    "decimal(38,38)": [Decimal(f"0.{NINES}"), Decimal(f"-0.{'0' * 37}1")],
    "decimal(9,2)": [Decimal("9999999.99"), Decimal("-9999999.99")],
    "decimal(18,9)": [Decimal("999999999.999999999"), Decimal("-0.000000001")],
    "decimal(1,0)": [Decimal(9), Decimal(-9)],
    "string": TEXTS,
    "large_string": TEXTS,
    "bytes": [b"", b"\0\xff", bytes(range(256))],
    "large_binary": [b"", b"\xff"],
    "fixed[16]": [b"\0" * 16, b"\xff" * 16],
    "fixed[1]": [b"\0", b"\xff"],
    "date": DAYS,
    "timestamp": MICROS,
    "timestamptz": MICROS,
    "timestamp[ms]": MILLIS,
    "timestamp[ms, UTC]": MILLIS,
    "timestamp[s]": SECONDS,
    "timestamp[s, UTC]": SECONDS,
    "list<int>": [[], [1, None], [2**31 - 1]],
    "list<string not null>": [[], ["", "a"]],
    "list<uint64>": [[], [2**64 - 1, None]],
    "list<list<double>>": [[], [[]], [None, [NAN, -0.0, None]]],
    "list<timestamp[ms]>": [[SECOND, None], []],
    "list<timestamp[s, UTC]>": [[SECOND.replace(tzinfo=UTC)], []],
    "map<string,long>": [[], [("a", 1), ("", None)]],
    "map<string,int>": [[("a", 1), ("a", 2)]],
    "map<date,int>": [[(dt.date(1, 1, 1), 1)], []],
    "map<timestamp,int>": [[(dt.datetime(1, 1, 1), 1)], []],  # noqa: DTZ001 - as above
    "map<bytes,int>": [[(b"", 1), (b"\xff", 2)], []],
    "map<decimal(20,2),int>": [[(Decimal("-1.10"), 1)], []],
    "map<boolean,int>": [[(True, 1), (False, 2)], []],
    "map<fixed[2],int>": [[(b"ab", 1)], []],
    "map<uint8,int>": [[(255, 1)], []],
    "map<long,list<struct<x:fixed[4]>>>": [[(1, []), (2, None), (-1, [{"x": b"abcd"}, None])], []],
    "struct<a:int,b:string>": [{"a": None, "b": ""}, {"a": -1, "b": "x"}],
    "struct<a:int8,b:struct<c:decimal(38,2),d:timestamptz>>": [
        {"a": None, "b": None},
        {"a": -128, "b": {"c": Decimal("1.25"), "d": SECOND.replace(tzinfo=UTC)}},
    ],
    "struct<u8:uint8,u32:uint32,u64:uint64,l:large_string,f:float>": [
        {"u8": 255, "u32": 2**32 - 1, "u64": 2**64 - 1, "l": "x", "f": -0.0}
    ],
}
ROWS = 1 + max(map(len, CASES.values()))


def trial_columns():
    """Return a name, a field and an array for each case; the text of the type is the name."""
    fields = [parse_field(text, text) for text in CASES]
    return fields, [_array(field.type, CASES[field.name]) for field in fields]


def _array(data_type, values):
    padded = [*values, *[None] * (ROWS - len(values))]
    if pt.is_timestamp(data_type):
        return pa.array(padded, pa.int64()).cast(data_type)
    if pt.is_date(data_type):
        return pa.array(padded, pa.int32()).cast(data_type)
    return pa.array(padded, data_type)


def stage(path, schema, arrays):
    """Write a file of the disk tier with the disk tier's own writer."""
    rows = len(arrays[0])
    full = file_schema(schema, keyed=False)
    times = pa.array(range(TIME_US, TIME_US + rows), pa.int64()).cast(full.field("_time").type)
    writer = RowsWriter(RealFileSystem(), str(path), full)
    columns = [pa.array(range(rows), pa.int64()), times, *arrays]
    writer.write(pa.RecordBatch.from_arrays(columns, schema=full))
    facts = writer.finish({})
    return StagedFile(str(path), rows, facts.bytes, 0, rows - 1)


def values_of(column):
    """Return values in a form in which equal means exactly equal."""
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    data_type = column.type
    if pt.is_timestamp(data_type):
        column = column.cast(pa.timestamp("us", data_type.tz)).cast(pa.int64())
    elif pt.is_date(data_type):
        column = column.cast(pa.int32())
    return [exact(value) for value in column.to_pylist()]


def exact(value):
    """Return a value with floats as bits, and numbers that are whole as integers."""
    if isinstance(value, float):
        return struct.pack(">d", value)
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else value
    if isinstance(value, dict):
        return {name: exact(child) for name, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [exact(child) for child in value]
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None)
    return bytes(value) if isinstance(value, bytearray) else value


def page_rows(heading):
    """Return the cells of the table below a heading of the page, without their marks."""
    text = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+) \|$", text, re.MULTILINE)[1:]
    return [[cell.strip().strip("`") for cell in row.split(" | ")] for row in rows]
