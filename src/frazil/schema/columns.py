"""A table topic's columns: names, types and ids that outlive every rename.

A schema is a `pa.Schema` in canonical form. Every field, nested ones too, carries its id in the
metadata `frazil.id`; the schema carries the highest id ever given in `frazil.last-id`, so that the
id of a dropped column is never given to another one. All other metadata is left out.

Integers of 8 and 16 bits and unsigned ones stay as they are in Arrow; Iceberg knows int and long
only, so the lake stores them in the narrower of the two that holds all their values.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Final
from uuid import UUID

import pyarrow as pa
import pyarrow.types as pt
from attrs import frozen

from frazil.errors import InvalidRequest

__all__ = [
    "IngestLimits",
    "check_column_name",
    "check_schema",
    "column_id",
    "column_of",
    "declare_schema",
    "field_with_ids",
    "ids_of",
    "infer_schema",
    "last_id",
    "map_children",
    "normal_name",
    "parse_field",
    "parse_type",
    "schema_with",
    "strip_ids",
    "type_name",
]

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


ID_KEY: Final = b"frazil.id"
LAST_ID_KEY: Final = b"frazil.last-id"
RESERVED_NAMES: Final = frozenset({"_offset", "_time", "_op", "_present", "_part", "_pos", "_file"})
RESERVED_PREFIX: Final = "_change_"


@frozen
class IngestLimits:
    """How much of everything one record, message or schema may have."""

    message_bytes_max: int = 1024 * 1024
    key_bytes_max: int = 1024
    attributes_max: int = 64
    attributes_bytes_max: int = 32 * 1024
    columns_max: int = 1000
    nesting_max: int = 8
    future_time_max_us: int = 3_600_000_000
    name_characters_max: int = 255


LIMITS_DEFAULT: Final = IngestLimits()


def declare_schema(
    columns: Mapping[str, str | pa.DataType] | pa.Schema | Sequence[pa.Field],
    *,
    limits: IngestLimits = LIMITS_DEFAULT,
    primary_key: Sequence[str] = (),
) -> pa.Schema:
    """Return the canonical schema of `columns`, with a fresh id for every field.

    A type is an Arrow type or text such as `long`, `decimal(10,2)` or `list<string> not null`.
    Columns may hold nulls unless they say otherwise; those of the primary key never do. A time
    zone is kept as UTC: it is the same instant, and the lake knows no other.

    Raises:
        InvalidRequest: for a name, type or number of columns that a table topic cannot have.
    """
    fields = [_canonical(field) for field in _fields_of(columns)]
    keys = _key_names(primary_key)
    fields = [field.with_nullable(False) if field.name in keys else field for field in fields]
    plain = pa.schema(fields)
    check_schema(plain, limits=limits)
    _check_primary_key(plain, keys)
    next_id = 1
    numbered = [
        field.with_metadata({ID_KEY: b"%d" % (next_id + i)}) for i, field in enumerate(plain)
    ]
    next_id += len(numbered)
    done: list[pa.Field] = []
    for field in numbered:
        data_type, next_id = _number_children(field.type, next_id)
        done.append(field.with_type(data_type))
    return schema_with(done, last=next_id - 1)


def schema_with(fields: Sequence[pa.Field], *, last: int) -> pa.Schema:
    """Return the schema of `fields` that remembers `last` as the highest id ever given."""
    return pa.schema(fields, metadata={LAST_ID_KEY: b"%d" % last})


def column_id(field: pa.Field) -> int:
    """Return the id of `field`, which must come from a declared schema."""
    metadata = field.metadata
    if metadata is None or ID_KEY not in metadata:
        raise InvalidRequest("field has no id, declare the schema first", column=field.name)
    return int(metadata[ID_KEY])


def last_id(schema: pa.Schema) -> int:
    """Return the highest id `schema` or one of its ancestors ever gave."""
    metadata = schema.metadata
    if metadata is None or LAST_ID_KEY not in metadata:
        raise InvalidRequest("schema has no ids, declare it first")
    return int(metadata[LAST_ID_KEY])


def ids_of(schema: pa.Schema) -> dict[str, int]:
    """Return the id of each column by name."""
    return {field.name: column_id(field) for field in schema}


def column_of(schema: pa.Schema, name: str) -> pa.Field:
    """Return the column `name`.

    Raises:
        InvalidRequest: if there is none; the details name the columns there are.
    """
    index = schema.get_field_index(normal_name(name))
    if index < 0:
        raise InvalidRequest("column does not exist", column=name, columns=",".join(schema.names))
    return schema.field(index)


def strip_ids(schema: pa.Schema) -> pa.Schema:
    """Return `schema` without ids or any other metadata, as a user would have written it."""
    return pa.schema([_stripped(field) for field in schema])


def map_children(data_type: pa.DataType, change: Callable[[pa.Field], pa.Field]) -> pa.DataType:
    """Return `data_type` with `change` applied to each of its direct child fields."""
    if pt.is_struct(data_type):
        return pa.struct([change(field) for field in data_type])
    if pt.is_map(data_type):
        return pa.map_(change(data_type.key_field), change(data_type.item_field))
    if pt.is_list(data_type):
        return pa.list_(change(data_type.value_field))
    return data_type


def field_with_ids(field: pa.Field, *, next_id: int) -> tuple[pa.Field, int]:
    """Return a canonical `field` with ids from `next_id` on, and the next id that is free."""
    numbered = _canonical(field).with_metadata({ID_KEY: b"%d" % next_id})
    data_type, next_id = _number_children(numbered.type, next_id + 1)
    return numbered.with_type(data_type), next_id


def check_schema(schema: pa.Schema, *, limits: IngestLimits = LIMITS_DEFAULT) -> None:
    """Refuse names, types, a depth or a number of columns that no table topic can have."""
    if not schema.names:
        raise InvalidRequest("schema has no columns")
    total = sum(1 for field in schema for _ in _walk(field))
    if total > limits.columns_max:
        raise InvalidRequest(
            "schema has too many columns, nested ones counted",
            columns=total,
            columns_max=limits.columns_max,
        )
    _check_names(schema.names, limits=limits, inside="")
    for field in schema:
        check_column_name(field.name, limits=limits)
        _check_type(field.type, limits=limits, path=field.name, depth=1)


def check_column_name(name: str, *, limits: IngestLimits = LIMITS_DEFAULT) -> None:
    """Refuse a name that no top-level column can have."""
    _check_name(name, limits=limits)
    lowered = name.lower()
    if lowered in RESERVED_NAMES or lowered.startswith(RESERVED_PREFIX):
        raise InvalidRequest("column name is reserved for the system, choose another", column=name)


def _fields_of(columns: object) -> Iterator[pa.Field]:
    if isinstance(columns, Mapping):
        for name, declared in columns.items():
            if not isinstance(name, str):
                raise InvalidRequest("column name must be a string", got=type(name).__name__)
            if isinstance(declared, pa.DataType):
                yield pa.field(normal_name(name), declared)
            else:
                yield parse_field(normal_name(name), declared)
        return
    if not isinstance(columns, (pa.Schema, list, tuple)):
        raise InvalidRequest(
            "columns must be a mapping of names to types, a schema or a list of fields",
            got=type(columns).__name__,
        )
    for field in columns:
        if not isinstance(field, pa.Field):
            raise InvalidRequest("columns must be Arrow fields", got=type(field).__name__)
        yield field.with_name(normal_name(field.name))


def normal_name(name: str) -> str:
    """Return `name` in NFC, the one form in which names are stored and compared.

    Raises:
        InvalidRequest: if it is not text that UTF-8 can hold, which Arrow would crash upon.
    """
    try:
        name.encode()
    except (AttributeError, UnicodeEncodeError):
        raise InvalidRequest("column name must be valid text", column=ascii(name)) from None
    return unicodedata.normalize("NFC", name)


def _key_names(primary_key: Sequence[str]) -> tuple[str, ...]:
    if isinstance(primary_key, str):
        raise InvalidRequest("primary key must be a list of columns", got=primary_key)
    for name in primary_key:
        if type(name) is not str:
            raise InvalidRequest("primary key must name columns", got=type(name).__name__)
    keys = tuple(normal_name(name) for name in primary_key)
    if len(set(keys)) != len(keys):
        raise InvalidRequest("primary key names a column twice", primary_key=",".join(keys))
    return keys


def _canonical(field: pa.Field) -> pa.Field:
    """Drop metadata and write UTC for any time zone, in nested fields too."""
    data_type = field.type
    if pt.is_timestamp(data_type) and data_type.tz is not None:
        data_type = pa.timestamp(data_type.unit, "UTC")
    elif pt.is_nested(data_type):
        data_type = map_children(
            data_type, lambda child: _canonical(_child_named(data_type, child))
        )
    return pa.field(normal_name(field.name), data_type, nullable=field.nullable)


def _child_named(parent: pa.DataType, child: pa.Field) -> pa.Field:
    """Give the items of lists and maps the names of the Arrow specification."""
    if pt.is_list(parent):
        return child.with_name("item")
    if pt.is_map(parent):
        return child.with_name("key" if child.name == parent.key_field.name else "value")
    return child


def _stripped(field: pa.Field) -> pa.Field:
    data_type = map_children(field.type, _stripped)
    return pa.field(field.name, data_type, nullable=field.nullable)


def _number_children(data_type: pa.DataType, next_id: int) -> tuple[pa.DataType, int]:
    def number(field: pa.Field) -> pa.Field:
        nonlocal next_id
        done, next_id = field_with_ids(field, next_id=next_id)
        return done

    return map_children(data_type, number), next_id


def _walk(field: pa.Field) -> Iterator[pa.Field]:
    yield field
    for index in range(field.type.num_fields):
        yield from _walk(field.type.field(index))


def _check_name(name: str, *, limits: IngestLimits) -> None:
    if not name or name.isspace():
        raise InvalidRequest("column name is empty")
    if len(name) > limits.name_characters_max:
        raise InvalidRequest(
            "column name is too long", column=name, characters_max=limits.name_characters_max
        )
    if any(unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"} for character in name):
        raise InvalidRequest("column name has a control character", column=name)


def _check_names(names: Sequence[str], *, limits: IngestLimits, inside: str) -> None:
    seen: dict[str, str] = {}
    for name in names:
        _check_name(name, limits=limits)
        folded = name.casefold()
        if folded in seen:
            raise InvalidRequest(
                "column is declared twice, names that differ only in case count as one",
                column=f"{inside}{name}",
                other=f"{inside}{seen[folded]}",
            )
        seen[folded] = name


_SUPPORTED: Final = frozenset(
    {
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.uint8(),
        pa.uint16(),
        pa.uint32(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.large_binary(),
        pa.date32(),
        pa.time64("us"),
    }
)
_INSTEAD: Final[tuple[tuple[Callable[[pa.DataType], bool], str], ...]] = (
    (pt.is_uint64, "use decimal(20,0), or long if the values fit"),
    (pt.is_float16, "use float"),
    (pt.is_null, "declare the type that the values will have"),
    (pt.is_dictionary, "use the type of the dictionary's values"),
    (pt.is_union, "use a struct with one nullable field for each kind"),
    (pt.is_interval, "use long with a unit in the name"),
    (pt.is_duration, "use long with a unit in the name"),
    (pt.is_date64, "use date"),
    (pt.is_time, "use time, which counts microseconds"),
    (pt.is_decimal256, "use decimal with at most 38 digits"),
    (pt.is_decimal, "use decimal with 1 to 38 digits and 0 <= scale <= precision"),
    (pt.is_string_view, "use string"),
    (pt.is_binary_view, "use bytes"),
    (pt.is_large_list, "use list"),
    (pt.is_fixed_size_list, "use list"),
    (pt.is_list_view, "use list"),
    (pt.is_large_list_view, "use list"),
)


def _check_type(data_type: pa.DataType, *, limits: IngestLimits, path: str, depth: int) -> None:
    if depth > limits.nesting_max:
        raise InvalidRequest(
            "column is nested too deeply", column=path, nesting_max=limits.nesting_max
        )
    if data_type in _SUPPORTED or pt.is_timestamp(data_type):
        return
    if pt.is_decimal128(data_type) and 0 <= data_type.scale <= data_type.precision:
        return
    if pt.is_fixed_size_binary(data_type) and data_type.byte_width > 0:
        return
    if pt.is_struct(data_type) or pt.is_list(data_type) or pt.is_map(data_type):
        _check_nested(data_type, limits=limits, path=path, depth=depth)
        return
    if isinstance(data_type, pa.BaseExtensionType):
        instead = f"use its storage type, {data_type.storage_type}"
    else:
        instead = next((text for test, text in _INSTEAD if test(data_type)), "use another type")
    raise InvalidRequest(
        "column type is not supported", column=path, type=data_type, instead=instead
    )


def _check_nested(data_type: pa.DataType, *, limits: IngestLimits, path: str, depth: int) -> None:
    if pt.is_struct(data_type):
        if data_type.num_fields == 0:
            raise InvalidRequest("struct column has no fields", column=path)
        _check_names([field.name for field in data_type], limits=limits, inside=f"{path}.")
    if pt.is_map(data_type):
        if pt.is_nested(data_type.key_type) or pt.is_floating(data_type.key_type):
            raise InvalidRequest(
                "map key must be a scalar that is not a float",
                column=path,
                type=type_name(data_type.key_type),
            )
        children = [data_type.key_field, data_type.item_field]
    else:
        children = [data_type.field(index) for index in range(data_type.num_fields)]
    for child in children:
        _check_type(child.type, limits=limits, path=f"{path}.{child.name}", depth=depth + 1)


def _check_primary_key(schema: pa.Schema, keys: tuple[str, ...]) -> None:
    for name in keys:
        field = column_of(schema, name)
        if pt.is_nested(field.type):
            raise InvalidRequest(
                "primary key column must be a scalar", column=name, type=type_name(field.type)
            )
        if pt.is_floating(field.type):
            raise InvalidRequest(
                "primary key column cannot be a float, use decimal or long",
                column=name,
                type=type_name(field.type),
            )


DECIMAL_PRECISION: Final = 38
_SCALARS: Final[tuple[tuple[type, pa.DataType], ...]] = (
    # The order matters: bool is an int, and datetime is a date.
    (bool, pa.bool_()),
    (int, pa.int64()),
    (float, pa.float64()),
    (str, pa.string()),
    (bytes, pa.binary()),
    (bytearray, pa.binary()),
    (memoryview, pa.binary()),
    (dt.date, pa.date32()),
    (dt.time, pa.time64("us")),
)


def infer_schema(
    *rows: Mapping[str, object],
    limits: IngestLimits = LIMITS_DEFAULT,
    primary_key: Sequence[str] = (),
) -> pa.Schema:
    """Return a declared schema that all `rows` fit; a column may be null in some, not in all.

    Raises:
        InvalidRequest: if a column is null everywhere, or two rows disagree about its type.
    """
    if not rows:
        raise InvalidRequest("no row to infer columns from")
    found: dict[str, pa.DataType] = {}
    for row in rows:
        if not isinstance(row, Mapping):
            raise InvalidRequest("row must be a dict", got=type(row).__name__)
        if not row:
            raise InvalidRequest("row has no columns, nothing can be inferred")
        for name, value in row.items():
            if not isinstance(name, str):
                raise InvalidRequest("column name must be a string", got=type(name).__name__)
            inferred = _type_of(value, path=name, limits=limits, depth=1)
            found[name] = _merged(found.get(name, pa.null()), inferred, path=name)
    for name, data_type in found.items():
        _refuse_null(data_type, path=name)
    return declare_schema(found, limits=limits, primary_key=primary_key)


def _type_of(value: object, *, path: str, limits: IngestLimits, depth: int) -> pa.DataType:
    if depth > limits.nesting_max:
        raise InvalidRequest(
            "value is nested too deeply", column=path, nesting_max=limits.nesting_max
        )
    if value is None:
        return pa.null()
    if isinstance(value, dt.datetime):
        return pa.timestamp("us", None if value.utcoffset() is None else "UTC")
    if isinstance(value, Decimal):
        return _decimal_type(value, path=path)
    if isinstance(value, UUID):
        raise InvalidRequest("column type cannot be inferred, use str(uuid)", column=path)
    for kind, data_type in _SCALARS:
        if isinstance(value, kind):
            return data_type
    if isinstance(value, Mapping):
        return _struct_type(value, path=path, limits=limits, depth=depth)
    if isinstance(value, (list, tuple)):
        item: pa.DataType = pa.null()
        for element in value:
            inferred = _type_of(element, path=f"{path}.item", limits=limits, depth=depth + 1)
            item = _merged(item, inferred, path=f"{path}.item")
        return pa.list_(item)
    raise InvalidRequest(
        "column type cannot be inferred, declare the column", column=path, got=type(value).__name__
    )


def _decimal_type(value: Decimal, *, path: str) -> pa.DataType:
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int):
        raise InvalidRequest("decimal must be finite", column=path, got=value)
    scale = max(0, -exponent)
    if max(scale, value.adjusted() + 1 + scale) > DECIMAL_PRECISION:
        raise InvalidRequest("decimal has more than 38 digits", column=path, got=value)
    return pa.decimal128(DECIMAL_PRECISION, scale)


def _struct_type(
    value: Mapping[str, object], *, path: str, limits: IngestLimits, depth: int
) -> pa.DataType:
    fields: list[pa.Field] = []
    for name, child in value.items():
        if not isinstance(name, str):
            raise InvalidRequest(
                "struct field name must be a string", column=path, got=type(name).__name__
            )
        inner = _type_of(child, path=f"{path}.{name}", limits=limits, depth=depth + 1)
        fields.append(pa.field(name, inner))
    return pa.struct(fields)


def _merged(left: pa.DataType, right: pa.DataType, *, path: str) -> pa.DataType:
    """Return the type that holds values of both; only nulls and number widths give way."""
    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    if {left, right} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_decimal(left) and pa.types.is_decimal(right):
        return pa.decimal128(DECIMAL_PRECISION, max(left.scale, right.scale))
    if pa.types.is_list(left) and pa.types.is_list(right):
        return pa.list_(_merged(left.value_type, right.value_type, path=f"{path}.item"))
    if pa.types.is_struct(left) and pa.types.is_struct(right):
        merged = {field.name: field.type for field in left}
        for field in right:
            known = merged.get(field.name, pa.null())
            merged[field.name] = _merged(known, field.type, path=f"{path}.{field.name}")
        return pa.struct(list(merged.items()))
    raise InvalidRequest(
        "rows disagree about a column's type, declare the column",
        column=path,
        one=type_name(left),
        other=type_name(right),
    )


def _refuse_null(data_type: pa.DataType, *, path: str) -> None:
    if pa.types.is_null(data_type):
        raise InvalidRequest(
            "column type cannot be inferred from null, declare the column", column=path
        )
    for index in range(data_type.num_fields):
        child = data_type.field(index)
        _refuse_null(child.type, path=f"{path}.{child.name}")
