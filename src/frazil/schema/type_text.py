"""Column types as text: `long`, `decimal(10,2)`, `list<string>`, `struct<a:int,b:string not null>`.

`parse_type` reads the words of SQL, Iceberg and Arrow; `type_name` writes one canonical form that
`parse_type` reads back to the same type. Neither decides what a topic supports: `columns.py` does.
"""

from __future__ import annotations

import json
import re
from typing import Final

import pyarrow as pa
import pyarrow.types as pt

from frazil.errors import InvalidRequest

__all__ = ["parse_field", "parse_type", "type_name"]

TYPE_TEXT_CHARACTERS_MAX: Final = 64 * 1024
DEPTH_MAX: Final = 64
DECIMAL_PRECISION_MAX: Final = 38

_WORDS: Final[dict[str, pa.DataType]] = {
    "bool": pa.bool_(),
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "tinyint": pa.int8(),
    "int16": pa.int16(),
    "smallint": pa.int16(),
    "int32": pa.int32(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "int64": pa.int64(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "string": pa.string(),
    "text": pa.string(),
    "varchar": pa.string(),
    "large_string": pa.large_string(),
    "bytes": pa.binary(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "date": pa.date32(),
    "date32": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}
_CANONICAL: Final[dict[pa.DataType, str]] = {
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.binary(): "bytes",
    pa.date32(): "date",
    pa.time64("us"): "time",
    pa.timestamp("us"): "timestamp",
    pa.timestamp("us", "UTC"): "timestamptz",
}
_TOKEN: Final = re.compile(
    r'\s*(?:(?P<word>\w+)|(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<sign>[<>()\[\],:/+-]))'
)
_PLAIN_NAME: Final = re.compile(r"\w+\Z")
_TIMESTAMP: Final = re.compile(r"timestamp\[(s|ms|us|ns)(?:,\s*tz=(.+))?\]\Z")


def parse_type(text: str) -> pa.DataType:
    """Return the Arrow type that `text` names.

    Raises:
        InvalidRequest: if it names none; the details say what was found where.
    """
    return parse_field("", text).type


def parse_field(name: str, text: str) -> pa.Field:
    """Return the column `name` of the type in `text`, which may end in `not null`."""
    parser = _Parser(text, column=name)
    data_type, nullable = parser.typed(depth=0)
    parser.expect_end()
    return pa.field(name, data_type, nullable=nullable)


def type_name(data_type: pa.DataType) -> str:
    """Return the canonical text of `data_type`, the inverse of `parse_type`."""
    word = _CANONICAL.get(data_type)
    if word is not None:
        return word
    if pt.is_decimal(data_type):
        return f"decimal({data_type.precision},{data_type.scale})"
    if pt.is_fixed_size_binary(data_type):
        return f"fixed[{data_type.byte_width}]"
    if pt.is_map(data_type):
        value = _named(data_type.item_field)
        return f"map<{type_name(data_type.key_type)},{value}>"
    if pt.is_list(data_type):
        return f"list<{_named(data_type.value_field)}>"
    if pt.is_struct(data_type):
        children = ",".join(f"{_quoted(field.name)}:{_named(field)}" for field in data_type)
        return f"struct<{children}>"
    match = _TIMESTAMP.match(str(data_type))
    if match is not None:
        zone = f", {match[2]}" if match[2] else ""
        return f"timestamp[{match[1]}{zone}]"
    return str(data_type)


def _named(field: pa.Field) -> str:
    text = type_name(field.type)
    return text if field.nullable else f"{text} not null"


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.match(name) else json.dumps(name, ensure_ascii=False)


class _Parser:
    """A recursive descent over the tokens of one type text."""

    def __init__(self, text: str, *, column: str) -> None:
        if not isinstance(text, str):
            raise InvalidRequest(
                "column type must be text or an Arrow type", column=column, got=type(text).__name__
            )
        if len(text) > TYPE_TEXT_CHARACTERS_MAX:
            raise InvalidRequest("column type text is too long", column=column)
        self._text = text
        self._column = column
        self._tokens = self._split(text)
        self._index = 0

    def typed(self, *, depth: int) -> tuple[pa.DataType, bool]:
        """Read one type and its optional `not null`."""
        if depth > DEPTH_MAX:
            raise self._error("column type is nested too deeply")
        word = self._take().lower()
        data_type = self._type_of(word, depth=depth)
        if self._peek().lower() != "not":
            return data_type, True
        self._take()
        if self._take().lower() != "null":
            raise self._error("column type says 'not' without 'null'")
        return data_type, False

    def expect_end(self) -> None:
        """Refuse text behind the type."""
        if self._index != len(self._tokens):
            raise self._error("column type has text behind its end")

    def _type_of(self, word: str, *, depth: int) -> pa.DataType:
        if word in {"list", "array"}:
            self._expect("<")
            data_type, nullable = self.typed(depth=depth + 1)
            self._expect(">")
            return pa.list_(pa.field("item", data_type, nullable=nullable))
        if word == "map":
            self._expect("<")
            key, _ = self.typed(depth=depth + 1)
            self._expect(",")
            data_type, nullable = self.typed(depth=depth + 1)
            self._expect(">")
            return pa.map_(key, pa.field("value", data_type, nullable=nullable))
        if word == "struct":
            return pa.struct(self._children(depth=depth))
        if word in {"decimal", "decimal128", "numeric"}:
            return self._decimal()
        if word in {"fixed", "fixed_size_binary"}:
            return pa.binary(self._number_in("[", "]"))
        if word == "timestamp" and self._peek() == "[":
            return self._timestamp()
        if word == "time64" and self._peek() == "[":
            self._expect("[")
            unit = self._take()
            self._expect("]")
            if unit == "us":
                return pa.time64("us")
        found = _WORDS.get(word)
        if found is None:
            raise self._error("column type is not known", word=word)
        return found

    def _children(self, *, depth: int) -> list[pa.Field]:
        self._expect("<")
        children: list[pa.Field] = []
        while self._peek() != ">":
            if children:
                self._expect(",")
            name = self._take()
            if name.startswith('"'):
                name = self._unquoted(name)
            self._expect(":")
            data_type, nullable = self.typed(depth=depth + 1)
            children.append(pa.field(name, data_type, nullable=nullable))
        self._expect(">")
        return children

    def _decimal(self) -> pa.DataType:
        self._expect("(")
        precision = self._number()
        scale = 0
        if self._peek() == ",":
            self._take()
            scale = self._number()
        self._expect(")")
        if not 1 <= precision <= DECIMAL_PRECISION_MAX or scale > precision:
            raise self._error(
                "decimal needs 1 <= precision <= 38 and scale <= precision",
                precision=precision,
                scale=scale,
            )
        return pa.decimal128(precision, scale)

    def _timestamp(self) -> pa.DataType:
        self._expect("[")
        unit = self._take()
        zone = ""
        if self._peek() == ",":
            self._take()
            while self._peek() not in {"]", ""}:
                zone += self._take()
        self._expect("]")
        if unit not in {"s", "ms", "us", "ns"}:
            raise self._error("timestamp unit must be s, ms, us or ns", unit=unit)
        return pa.timestamp(unit, zone or None)

    def _number_in(self, opening: str, closing: str) -> int:
        self._expect(opening)
        number = self._number()
        self._expect(closing)
        if not 1 <= number <= 1 << 20:
            raise self._error("length must be between 1 and 1048576", length=number)
        return number

    def _number(self) -> int:
        token = self._take()
        if not token.isascii() or not token.isdigit() or len(token) > len(str(1 << 20)):
            raise self._error("column type needs a number", found=token)
        return int(token)

    def _unquoted(self, token: str) -> str:
        try:
            return str(json.loads(token))
        except ValueError:
            raise self._error("quoted name is not a JSON string", name=token) from None

    def _split(self, text: str) -> list[str]:
        tokens: list[str] = []
        position = 0
        stop = len(text.rstrip())
        while position < stop:
            match = _TOKEN.match(text, position)
            if match is None:
                raise self._error("column type has a character that fits nowhere", at=position)
            tokens.append(match[0].lstrip())
            position = match.end()
        return tokens

    def _peek(self) -> str:
        return self._tokens[self._index] if self._index < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        if not token:
            raise self._error("column type ends too early")
        self._index += 1
        return token

    def _expect(self, sign: str) -> None:
        if self._peek() != sign:
            raise self._error(f"column type needs {sign!r}", found=self._peek() or "end of text")
        self._index += 1

    def _error(self, message: str, **details: object) -> InvalidRequest:
        facts = {"column": self._column} if self._column else {}
        return InvalidRequest(message, **facts, type=self._text, **details)
