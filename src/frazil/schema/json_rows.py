"""Rows from JSON and CSV: strict parsing, then text to the types that only Arrow has.

JSON has no timestamps, bytes or decimals, so those columns take strings: ISO 8601, base64, digits.
CSV has text only: every cell is read by its column's type, and an empty cell is null unless the
column holds text, where it is the empty string.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Final, NoReturn

import msgspec
import pyarrow as pa
import pyarrow.types as pt

from frazil.errors import InvalidRequest
from frazil.schema.columns import column_of, type_name

__all__ = ["JsonRowReader", "parse_csv_row", "parse_json_row"]

DEPTH_MAX: Final = 64
INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
_decode = msgspec.json.Decoder().decode
_KEY_GAPS: Final = (b" :", b"\t:", b"\n:", b"\r:")
_KEY_END: Final = re.compile(rb'"[ \t\r\n]*:')
_INTEGER: Final = re.compile(r"[+-]?\d{1,20}\Z", re.ASCII)
_FLOAT: Final = re.compile(
    r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|nan|inf|infinity)\Z", re.ASCII | re.IGNORECASE
)
_DECIMAL: Final = re.compile(
    r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d{1,3})?\Z", re.ASCII | re.IGNORECASE
)
_TIMESTAMP: Final = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|z|[+-]\d\d:?\d\d)?\Z", re.ASCII
)
_TIME: Final = re.compile(r"\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?\Z", re.ASCII)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d\Z", re.ASCII)
_BOOLEANS: Final = {"true": True, "false": False}

_Convert = Callable[[object], object]


def parse_json_row(line: bytes | bytearray | memoryview | str) -> dict[str, object]:
    """Return the object in `line`, strictly by RFC 8259.

    Raises:
        InvalidRequest: for anything but one object; for NaN, Infinity, an integer beyond 64 bit,
            a key that comes twice (at any depth), invalid UTF-8 or more than 64 levels.
    """
    data = line.encode(errors="surrogatepass") if isinstance(line, str) else bytes(line)
    try:
        row = _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidRequest("JSON is invalid", cause=error) from error
    except RecursionError as error:
        raise InvalidRequest("JSON is nested too deeply", depth_max=DEPTH_MAX) from error
    if type(row) is not dict:
        raise InvalidRequest("JSON row must be an object", got=type(row).__name__)
    nested = False
    for name, value in row.items():
        kind = type(value)
        if kind is int:
            if not INT64_MIN <= value <= INT64_MAX:
                _check_integers(value, name)
        elif kind is dict or kind is list:
            nested = True
    if nested:
        _check_depth(row)
        _check_integers(row)
    if data.count(b":") != len(row):
        _check_keys(data, _count_keys(row) if nested else len(row))
    return row


class JsonRowReader:
    """Read JSON rows for one schema: the result is what `RowEncoder` takes."""

    __slots__ = ("_convert",)

    def __init__(self, schema: pa.Schema) -> None:
        self._convert: dict[str, _Convert] = {}
        for field in schema:
            convert = _json_converter(field.type, path=field.name)
            if convert is not None:
                self._convert[field.name] = convert

    def read(self, line: bytes | bytearray | memoryview | str) -> dict[str, object]:
        """Return the row in `line` with values of the columns' types.

        Raises:
            InvalidRequest: as `parse_json_row`, or with the column whose text does not parse.
        """
        return self.convert(parse_json_row(line))

    def convert(self, row: dict[str, object]) -> dict[str, object]:
        """Replace, in a parsed row, the texts that stand for other types; return the row."""
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
    if pt.is_string(data_type) or pt.is_large_string(data_type):
        return cell
    if not cell:
        return None
    if pt.is_boolean(data_type):
        found = _BOOLEANS.get(cell.strip().lower())
        return _refuse(cell, data_type, path=path) if found is None else found
    if pt.is_integer(data_type):
        return int(_matching(_INTEGER, cell.strip(), data_type, path=path))
    if pt.is_floating(data_type):
        return float(_matching(_FLOAT, cell.strip(), data_type, path=path))
    if pt.is_nested(data_type):
        # The cell is wrapped into an object, so that it passes through the same strict parser.
        value = parse_json_row(f'{{"cell":{cell}}}')
        if set(value) != {"cell"}:
            _refuse(cell, data_type, path=path)
        nested = value["cell"]
    else:
        nested = cell.strip()
    convert = _json_converter(data_type, path=path)
    return nested if convert is None or nested is None else convert(nested)


def _json_converter(data_type: pa.DataType, *, path: str) -> _Convert | None:
    """Return what turns a JSON value into one of `data_type`, or None if it is one already."""
    for is_type, make in _SCALARS:
        if is_type(data_type):
            return make(data_type, path)
    if pt.is_struct(data_type):
        return _struct_converter(data_type, path=path)
    if pt.is_map(data_type):
        return _map_converter(data_type, path=path)
    if pt.is_list(data_type):
        inner = _json_converter(data_type.value_type, path=f"{path}.item")
        return None if inner is None else lambda value: _converted_list(value, inner)
    return None


def _struct_converter(data_type: pa.DataType, *, path: str) -> _Convert | None:
    inner = {
        field.name: convert
        for field in data_type
        if (convert := _json_converter(field.type, path=f"{path}.{field.name}")) is not None
    }
    if not inner:
        return None

    def convert_struct(value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        return {
            name: inner[name](item) if name in inner and item is not None else item
            for name, item in value.items()
        }

    return convert_struct


def _map_converter(data_type: pa.DataType, *, path: str) -> _Convert:
    key_type = data_type.key_type
    key_field = pa.field(f"{path}.key", key_type)
    inner = _json_converter(data_type.item_type, path=f"{path}.value")

    def convert_map(value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        # The keys of a JSON object are text, whatever the map's keys are.
        return [
            (_csv_value(key, key_field), item if inner is None or item is None else inner(item))
            for key, item in value.items()
        ]

    return convert_map


def _converted_list(value: object, inner: _Convert) -> object:
    if not isinstance(value, list):
        return value
    return [None if item is None else inner(item) for item in value]


def _refuse(value: object, data_type: pa.DataType, *, path: str, why: str = "") -> NoReturn:
    shown = value if isinstance(value, str) else type(value).__name__
    raise InvalidRequest(
        why or "text does not parse as the column's type",
        column=path,
        expected=type_name(data_type),
        got=shown,
    )


def _matching(pattern: re.Pattern[str], value: object, data_type: pa.DataType, *, path: str) -> str:
    if not isinstance(value, str) or pattern.match(value) is None:
        _refuse(value, data_type, path=path)
    return value


def _timestamp_converter(data_type: pa.DataType, path: str) -> _Convert:
    aware = data_type.tz is not None

    def convert(value: object) -> object:
        text = _matching(_TIMESTAMP, value, data_type, path=path)
        try:
            moment = dt.datetime.fromisoformat(text)
        except ValueError:
            _refuse(value, data_type, path=path)
        if (moment.tzinfo is not None) is not aware:
            _refuse(value, data_type, path=path, why=_zone_text(aware=aware))
        return moment

    return convert


def _zone_text(*, aware: bool) -> str:
    if aware:
        return "timestamp needs a zone, such as 2026-01-31T12:00:00Z"
    return "timestamp must have no zone, such as 2026-01-31T12:00:00"


def _date_converter(data_type: pa.DataType, path: str) -> _Convert:
    def convert(value: object) -> object:
        text = _matching(_DATE, value, data_type, path=path)
        try:
            return dt.date.fromisoformat(text)
        except ValueError:
            _refuse(value, data_type, path=path)

    return convert


def _time_converter(data_type: pa.DataType, path: str) -> _Convert:
    def convert(value: object) -> object:
        text = _matching(_TIME, value, data_type, path=path)
        try:
            return dt.time.fromisoformat(text)
        except ValueError:
            _refuse(value, data_type, path=path)

    return convert


def _binary_converter(data_type: pa.DataType, path: str) -> _Convert:
    def convert(value: object) -> object:
        if not isinstance(value, str):
            _refuse(value, data_type, path=path)
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            _refuse(value, data_type, path=path, why="text is not base64")

    return convert


def _decimal_converter(data_type: pa.DataType, path: str) -> _Convert:
    def convert(value: object) -> object:
        if isinstance(value, int) and not isinstance(value, bool):
            return Decimal(value)
        # A JSON number with a fraction has become a float; its shortest text is what was written.
        text = repr(value) if isinstance(value, float) else value
        try:
            return Decimal(_matching(_DECIMAL, text, data_type, path=path))
        except InvalidOperation:
            _refuse(value, data_type, path=path)

    return convert


_SCALARS: Final[
    tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, str], _Convert]], ...]
] = (
    (pt.is_timestamp, _timestamp_converter),
    (pt.is_date, _date_converter),
    (pt.is_time, _time_converter),
    (pt.is_binary, _binary_converter),
    (pt.is_large_binary, _binary_converter),
    (pt.is_fixed_size_binary, _binary_converter),
    (pt.is_decimal, _decimal_converter),
)


def _check_keys(data: bytes, count: int) -> None:
    """Refuse a key that comes twice, given the number of different keys.

    Each key stands before one colon, and its quote before that, so equal counts prove that no key
    came twice. A colon or a quote and a colon inside a string only makes a count too high, which
    the slow parser settles.
    """
    if data.count(b'":') == count and not any(data.count(gap) for gap in _KEY_GAPS):
        return
    if len(_KEY_END.findall(data)) == count:
        return
    try:
        json.loads(data, object_pairs_hook=_unique_keys)
    except (RecursionError, ValueError) as error:
        raise InvalidRequest("JSON is invalid", cause=error) from error


def _unique_keys(pairs: list[tuple[str, object]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise InvalidRequest("JSON has a key twice in one object", key=key)
        seen.add(key)


def _count_keys(value: object) -> int:
    count = 0
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            count += len(item)
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
    return count


def _check_depth(row: dict[str, object]) -> None:
    level: list[object] = [row]
    for _ in range(DEPTH_MAX):
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        level = [item for item in below if isinstance(item, (dict, list))]
        if not level:
            return
    raise InvalidRequest("JSON is nested too deeply", depth_max=DEPTH_MAX)


def _check_integers(value: object, path: str = "") -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _check_integers(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for item in value:
            _check_integers(item, f"{path}.item")
    elif type(value) is int and not INT64_MIN <= value <= INT64_MAX:
        raise InvalidRequest(
            "JSON integer is beyond 64 bit, write it as a string for a decimal column",
            column=path,
            bits=value.bit_length(),
        )
