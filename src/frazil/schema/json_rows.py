"""Rows from JSON and CSV: strict parsing, then conversion of text to types absent from JSON.

JSON has no timestamps, bytes or decimals, so those columns take strings: ISO 8601, base64, digits.
CSV has text only: every cell is read by its column's type, and an empty cell is null unless the
column holds text, where it is the empty string.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import json
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.types as pt

from frazil.errors import InvalidRequest
from frazil.schema.columns import column_of, is_text, type_name

__all__ = ["JsonRowReader", "converted", "json_converter", "parse_csv_row", "parse_json_row"]

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
_decode = msgspec.json.Decoder().decode
_KEY_GAPS: Final = (b" :", b"\t:", b"\n:", b"\r:")
_DECIMAL: Final = re.compile(
    r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d{1,3})?\Z", re.ASCII | re.IGNORECASE
)
_CLOCK: Final = r"\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?"
_LOCAL: Final = re.compile(rf"\d{{4}}-\d\d-\d\d[T ]{_CLOCK}\Z", re.ASCII)
_ZONED: Final = re.compile(rf"\d{{4}}-\d\d-\d\d[T ]{_CLOCK}(?:Z|z|[+-]\d\d:?\d\d)\Z", re.ASCII)
_TIME: Final = re.compile(rf"{_CLOCK}\Z", re.ASCII)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d\Z", re.ASCII)
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]*=*\Z", re.ASCII)
_INTEGER: Final = re.compile(r"[+-]?\d{1,20}\Z", re.ASCII)
_FLOAT: Final = re.compile(
    r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|nan|inf|infinity)\Z", re.ASCII | re.IGNORECASE
)
_BOOLEAN: Final = re.compile(r"(?:true|false)\Z", re.IGNORECASE)

Convert = Callable[[object], object]


def parse_json_row(line: bytes | bytearray | memoryview | str) -> dict[str, object]:
    """Parse the object in `line`, strictly by RFC 8259.

    Raises:
        InvalidRequest: for anything but one object; for NaN, Infinity, an integer beyond 64 bit,
            a key that comes twice (at any depth), invalid UTF-8 or too many levels.
    """
    data = line.encode(errors="surrogatepass") if isinstance(line, str) else bytes(line)
    try:
        row = _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidRequest("JSON is invalid", cause=error) from error
    except RecursionError as error:
        raise InvalidRequest("JSON is nested too deeply") from error
    if type(row) is not dict:
        raise InvalidRequest("JSON row must be an object", got=type(row).__name__)
    if _may_hide(row) or _may_repeat(data, len(row)):
        _check_strictly(data)
    return row


def _may_hide(row: dict[str, object]) -> bool:
    """Check the numbers of the top level; tell whether there are other levels."""
    for name, value in row.items():
        if type(value) is int and not INT64_MIN <= value <= INT64_MAX:
            raise _beyond_64_bit(column=name)
    return any(type(value) in {dict, list} for value in row.values())


def _may_repeat(data: bytes, count: int) -> bool:
    """Tell whether an object with `count` keys may have a duplicate key.

    Each key has one colon after it, its quote before that: equal counts prove that no key is
    duplicated. A colon inside of a text only makes the count too high.
    """
    if data.count(b":") == count:
        return False
    return data.count(b'":') != count or any(gap in data for gap in _KEY_GAPS)


def _check_strictly(data: bytes) -> None:
    """Refuse doubled keys and integers beyond 64 bit, at any depth."""
    try:
        json.loads(data, object_pairs_hook=_unique_keys, parse_int=_int64)
    except (RecursionError, ValueError) as error:
        raise InvalidRequest("JSON is invalid", cause=error) from error


def _unique_keys(pairs: list[tuple[str, object]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise InvalidRequest("JSON has a key twice in one object", key=key)
        seen.add(key)


def _int64(text: str) -> None:
    if not INT64_MIN <= int(text) <= INT64_MAX:
        raise _beyond_64_bit(integer=text[:40])


def _beyond_64_bit(**facts: str) -> InvalidRequest:
    return InvalidRequest(
        "JSON integer is beyond 64 bit, write it as a string for a decimal column", **facts
    )


class JsonRowReader:
    """Parses JSON rows for one schema, into the input of `RowEncoder`."""

    __slots__ = ("_convert",)

    def __init__(self, schema: pa.Schema) -> None:
        self._convert: dict[str, Convert] = {}
        for field in schema:
            convert = json_converter(field.type, path=field.name)
            if convert is not None:
                self._convert[field.name] = convert

    def read(self, line: bytes | bytearray | memoryview | str) -> dict[str, object]:
        """Return the row in `line` with values of the columns' types.

        Raises:
            InvalidRequest: as `parse_json_row`, or with the column whose text does not parse.
        """
        return self.convert(parse_json_row(line))

    def convert(self, row: dict[str, object]) -> dict[str, object]:
        """Replace, in a parsed row, the texts that represent other types; return the row."""
        for name, convert in self._convert.items():
            value = row.get(name)
            if value is not None:
                row[name] = convert(value)
        return row


def parse_csv_row(
    names: Sequence[str], cells: Sequence[str], schema: pa.Schema
) -> dict[str, object]:
    """Return one CSV row as a dict of the columns' types.

    An empty cell is null, but in a text column it is the empty string; a nested column's cell is
    JSON.

    Raises:
        InvalidRequest: if the number of cells is wrong, a column is unknown or comes twice, or a
            cell does not parse.
    """
    if len(names) != len(cells):
        raise InvalidRequest(
            "CSV row has the wrong number of cells", cells=len(cells), columns=len(names)
        )
    row: dict[str, object] = {}
    for name, cell in zip(names, cells, strict=True):
        if name in row:
            raise InvalidRequest("column comes twice", column=name)
        row[name] = _csv_value(cell, column_of(schema, name))
    return row


def _csv_value(cell: str, field: pa.Field) -> object:
    data_type, path = field.type, field.name
    if is_text(data_type):
        return cell
    if not cell:
        return None
    if not pt.is_nested(data_type):
        return _text_converter(data_type, path)(cell.strip())
    # The cell is wrapped into an object, so that the same strict parser handles it.
    row = parse_json_row(f'{{"cell":{cell}}}')
    if set(row) != {"cell"}:
        raise _misfit(cell, data_type, path)
    convert = json_converter(data_type, path=path)
    return row["cell"] if convert is None or row["cell"] is None else convert(row["cell"])


def json_converter(data_type: pa.DataType, *, path: str) -> Convert | None:
    """Return the converter of a JSON value to `data_type`, or None if none is needed."""
    if any(is_type(data_type) for is_type in _AS_JSON):
        return None
    if pt.is_struct(data_type):
        return _struct_converter(data_type, path=path)
    if pt.is_map(data_type):
        return _map_converter(data_type, path=path)
    if pt.is_list(data_type):
        inner = json_converter(data_type.value_type, path=f"{path}.item")
        return None if inner is None else partial(_converted_list, inner)
    return _text_converter(data_type, path)


def _struct_converter(data_type: pa.DataType, *, path: str) -> Convert | None:
    inner = {
        field.name: convert
        for field in data_type
        if (convert := json_converter(field.type, path=f"{path}.{field.name}")) is not None
    }
    return partial(converted, inner) if inner else None


def converted(convert: Mapping[str, Convert], value: object) -> object:
    """Return an object with its named values converted; anything else unchanged."""
    if not isinstance(value, Mapping):
        return value
    return {
        name: convert[name](item) if name in convert and item is not None else item
        for name, item in value.items()
    }


def _map_converter(data_type: pa.DataType, *, path: str) -> Convert:
    key_field = pa.field(f"{path}.key", data_type.key_type)
    inner = json_converter(data_type.item_type, path=f"{path}.value")

    def convert_map(value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        # The keys of a JSON object are text, those of the map may have any scalar type.
        return [
            (_csv_value(key, key_field), item if inner is None or item is None else inner(item))
            for key, item in value.items()
        ]

    return convert_map


def _converted_list(inner: Convert, value: object) -> object:
    if not isinstance(value, list):
        return value
    return [None if item is None else inner(item) for item in value]


def _text_converter(data_type: pa.DataType, path: str) -> Convert:
    """Return the parser of text to a value of a scalar type."""
    pattern, parse = next((form[1:] for form in _FORMS if form[0](data_type)), (_BASE64, _decode64))

    def convert(value: object) -> object:
        text = value
        if parse is Decimal and type(value) in {int, float}:
            # A JSON number with a fraction is a float by now; use its shortest text.
            text = repr(value)
        if isinstance(text, str) and pattern.match(text):
            with contextlib.suppress(ValueError, ArithmeticError):
                return parse(text)
        raise _misfit(value, data_type, path)

    return convert


def _decode64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _is_true(text: str) -> bool:
    return text.lower() == "true"


def _is_zoned(data_type: pa.DataType) -> bool:
    return bool(pt.is_timestamp(data_type) and data_type.tz is not None)


def _misfit(value: object, data_type: pa.DataType, path: str) -> InvalidRequest:
    return InvalidRequest(
        "text does not parse as the column's type",
        column=path,
        expected=type_name(data_type),
        got=value if isinstance(value, str) else type(value).__name__,
    )


_AS_JSON: Final = (pt.is_boolean, pt.is_integer, pt.is_floating, is_text)
"""The types with native JSON values."""
_FORMS: Final[
    tuple[
        tuple[Callable[[pa.DataType], bool], re.Pattern[str], Callable[[str], object]],
        ...,
    ]
] = (
    (pt.is_boolean, _BOOLEAN, _is_true),
    (pt.is_integer, _INTEGER, int),
    (pt.is_floating, _FLOAT, float),
    (_is_zoned, _ZONED, dt.datetime.fromisoformat),
    (pt.is_timestamp, _LOCAL, dt.datetime.fromisoformat),
    (pt.is_date, _DATE, dt.date.fromisoformat),
    (pt.is_time, _TIME, dt.time.fromisoformat),
    (pt.is_decimal, _DECIMAL, Decimal),
)
"""The text pattern and the parser of each scalar type; bytes are base64."""
