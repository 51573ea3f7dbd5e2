"""A table topic's columns: names, types, and ids that survive every rename.

A schema is a `pa.Schema` in canonical form. Every field, nested ones too, carries its id in the
metadata `frazil.id`; the schema carries the highest id ever assigned in `frazil.last-id`, so that
the id of a dropped column is never reused. All other metadata is dropped.

Integers of 8 and 16 bits and unsigned ones keep their Arrow types; Iceberg has only int and long,
so the lake stores them in the narrower of the two that holds all their values.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.types as pt
from attrs import frozen

from frazil.errors import InvalidRequest

__all__ = [
    "IngestLimits",
    "check_column_name",
    "check_schema",
    "children_of",
    "column_id",
    "column_of",
    "declare_schema",
    "field_with_ids",
    "ids_of",
    "infer_schema",
    "is_bytes",
    "is_text",
    "last_id",
    "map_children",
    "normal_name",
    "numbered_schema",
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
    "time64[us]": pa.time64("us"),
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
_NOT_NULL: Final = re.compile(r"\s+not\s+null\s*\Z", re.IGNORECASE)
_NESTED: Final = re.compile(r"(list|array|map|struct)\s*<(.*)>\Z", re.IGNORECASE | re.DOTALL)
_CHILD: Final = re.compile(r'\s*(\w+|"(?:[^"\\]|\\.)*")\s*:(.*)\Z', re.DOTALL)
_SIGN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[<>()\[\],]')
_DECIMAL: Final = re.compile(
    r"(?:decimal|decimal128|numeric)\s*\(\s*(\d{1,3})\s*(?:,\s*(\d{1,3})\s*)?\)\Z", re.ASCII
)
_FIXED: Final = re.compile(
    r"(?:fixed|fixed_size_binary)\s*\[\s*(\d{1,7})\s*\]\Z", re.ASCII | re.IGNORECASE
)
_ANY_TIMESTAMP: Final = re.compile(
    r"timestamp\s*\[\s*(s|ms|us|ns)\s*(?:,\s*([\w/:+-]+)\s*)?\]\Z", re.IGNORECASE
)
_PLAIN_NAME: Final = re.compile(r"\w+\Z")
_TIMESTAMP: Final = re.compile(r"timestamp\[(s|ms|us|ns)(?:,\s*tz=(.+))?\]\Z")


def parse_type(text: str) -> pa.DataType:
    """Return the Arrow type named by `text`.

    Raises:
        InvalidRequest: if it names none; the details have the invalid part.
    """
    return parse_field("", text).type


def parse_field(name: str, text: str) -> pa.Field:
    """Return the column `name` of the type in `text`, which may end in `not null`."""
    if not isinstance(text, str):
        raise InvalidRequest(
            "column type must be text or an Arrow type", column=name, got=type(text).__name__
        )
    if len(text) > TYPE_TEXT_CHARACTERS_MAX:
        raise InvalidRequest("column type text is too long", column=name)
    try:
        return _typed(name, text, 0)
    except ValueError as error:
        facts = {"column": name} if name else {}
        raise InvalidRequest("column type is not known", **facts, type=text, part=error) from None


def _typed(name: str, text: str, depth: int) -> pa.Field:
    """Return the field of a type and its optional `not null`; ValueError names the invalid part."""
    body = text.strip()
    required = _NOT_NULL.search(body)
    if required is not None:
        body = body[: required.start()]
    return pa.field(name, _type_in(body, depth), nullable=required is None)


def _type_in(text: str, depth: int) -> pa.DataType:
    word = text.lower()
    if word in _WORDS:
        return _WORDS[word]
    nested = _NESTED.match(text)
    if nested is not None and depth < DEPTH_MAX:
        return _nested_type(nested[1].lower(), _split(nested[2]), depth + 1)
    decimal = _DECIMAL.match(word)
    if decimal is not None:
        precision, scale = int(decimal[1]), int(decimal[2] or 0)
        if 1 <= precision <= DECIMAL_PRECISION_MAX and scale <= precision:
            return pa.decimal128(precision, scale)
    fixed = _FIXED.match(word)
    if fixed is not None and 1 <= int(fixed[1]) <= 1 << 20:
        return pa.binary(int(fixed[1]))
    timestamp = _ANY_TIMESTAMP.match(text)
    if timestamp is not None:
        return pa.timestamp(timestamp[1].lower(), timestamp[2])
    raise ValueError(text)


def _nested_type(word: str, parts: list[str], depth: int) -> pa.DataType:
    if word == "struct":
        return pa.struct([_struct_child(part, depth) for part in parts if part or len(parts) > 1])
    if word == "map" and len(parts) == 2:
        return pa.map_(_typed("key", parts[0], depth).type, _typed("value", parts[1], depth))
    if word in {"list", "array"} and len(parts) == 1:
        return pa.list_(_typed("item", parts[0], depth))
    raise ValueError(f"{word}<{','.join(parts)}>")


def _struct_child(text: str, depth: int) -> pa.Field:
    match = _CHILD.match(text)
    if match is None:
        raise ValueError(text)
    name = json.loads(match[1]) if match[1].startswith('"') else match[1]
    return _typed(name, match[2], depth)


def _split(text: str) -> list[str]:
    """Return the parts between the commas outside of brackets and quotes."""
    parts, start, depth = [], 0, 0
    for match in _SIGN.finditer(text):
        sign = match[0]
        if sign == "," and not depth:
            parts.append(text[start : match.start()])
            start = match.end()
        depth += (sign in "<([") - (sign in ">)]")
    return [*parts, text[start:]]


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
        return f"map<{type_name(data_type.key_type)},{_named(data_type.item_field)}>"
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


ID_KEY: Final = b"frazil.id"
LAST_ID_KEY: Final = b"frazil.last-id"
RESERVED_NAMES: Final = frozenset({"_offset", "_time", "_op", "_present", "_part", "_pos", "_file"})
RESERVED_PREFIX: Final = "_change_"


@frozen
class IngestLimits:
    """The limits of one record, message or schema."""

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
    Columns are nullable unless they say otherwise; primary key columns never are. A time zone
    is stored as UTC: it is the same instant, and the lake has no other zone.

    Raises:
        InvalidRequest: for a name, type or number of columns that a table topic cannot have.
    """
    fields = [_canonical(field) for field in _fields_of(columns)]
    keys = _key_names(primary_key)
    fields = [field.with_nullable(False) if field.name in keys else field for field in fields]
    plain = pa.schema(fields)
    check_schema(plain, limits=limits)
    _check_primary_key(plain, keys)
    return numbered_schema(fields)


def numbered_schema(fields: Sequence[pa.Field]) -> pa.Schema:
    """Return a schema of canonical fields with ids: first the columns, then their nested fields."""
    next_id = len(fields) + 1
    numbered: list[pa.Field] = []
    for number, field in enumerate(fields, 1):
        data_type, next_id = _number_children(field.type, next_id)
        numbered.append(field.with_type(data_type).with_metadata({ID_KEY: b"%d" % number}))
    return schema_with(numbered, last=next_id - 1)


def schema_with(fields: Sequence[pa.Field], *, last: int) -> pa.Schema:
    """Return the schema of `fields` with `last` as the highest id ever assigned."""
    return pa.schema(fields, metadata={LAST_ID_KEY: b"%d" % last})


def column_id(field: pa.Field) -> int:
    """Return the id of `field`, which must come from a declared schema."""
    return int(field.metadata[ID_KEY])


def last_id(schema: pa.Schema) -> int:
    """Return the highest id that `schema` or one of its ancestors ever assigned."""
    return int(schema.metadata[LAST_ID_KEY])


def ids_of(schema: pa.Schema) -> dict[str, int]:
    """Return the id of each column by name."""
    return {field.name: column_id(field) for field in schema}


def column_of(schema: pa.Schema, name: str) -> pa.Field:
    """Return the column `name`.

    Raises:
        InvalidRequest: if there is none; the details name the existing columns.
    """
    index = schema.get_field_index(normal_name(name))
    if index < 0:
        raise InvalidRequest("column does not exist", column=name, columns=",".join(schema.names))
    return schema.field(index)


def strip_ids(schema: pa.Schema) -> pa.Schema:
    """Return `schema` without ids or any other metadata, as a user would write it."""
    return pa.schema([_stripped(field) for field in schema])


def is_bytes(data_type: pa.DataType) -> bool:
    """Tell whether a type holds bytes, of a fixed length or not."""
    return any(
        is_kind(data_type)
        for is_kind in (pt.is_binary, pt.is_large_binary, pt.is_fixed_size_binary)
    )


def is_text(data_type: pa.DataType) -> bool:
    """Tell whether a type holds text."""
    return bool(pt.is_string(data_type) or pt.is_large_string(data_type))


def map_children(data_type: pa.DataType, change: Callable[[pa.Field], pa.Field]) -> pa.DataType:
    """Return `data_type` with `change` applied to each of its direct child fields."""
    if pt.is_struct(data_type):
        return pa.struct([change(field) for field in data_type])
    if pt.is_map(data_type):
        return pa.map_(change(data_type.key_field), change(data_type.item_field))
    if pt.is_list(data_type):
        return pa.list_(change(data_type.value_field))
    return data_type


def children_of(data_type: pa.DataType) -> list[pa.Field]:
    """Return the direct child fields of a type."""
    if pt.is_map(data_type):
        return [data_type.key_field, data_type.item_field]
    return [data_type.field(index) for index in range(data_type.num_fields)]


def field_with_ids(field: pa.Field, *, next_id: int) -> tuple[pa.Field, int]:
    """Return a canonical `field` with ids from `next_id` on, and the next free id."""
    numbered = _canonical(field).with_metadata({ID_KEY: b"%d" % next_id})
    data_type, next_id = _number_children(numbered.type, next_id + 1)
    return numbered.with_type(data_type), next_id


def check_schema(schema: pa.Schema, *, limits: IngestLimits = LIMITS_DEFAULT) -> None:
    """Refuse names, types, a depth or a number of columns that are invalid for a table topic."""
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
    """Refuse an invalid name of a top-level column."""
    _check_name(name, limits=limits)
    lowered = name.lower()
    if lowered in RESERVED_NAMES or lowered.startswith(RESERVED_PREFIX):
        raise InvalidRequest("column name is reserved for the system, choose another", column=name)


def _fields_of(columns: object) -> Iterator[pa.Field]:
    if isinstance(columns, Mapping):
        for name, declared in columns.items():
            is_type = isinstance(declared, pa.DataType)
            yield (pa.field if is_type else parse_field)(normal_name(name), declared)
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
    """Return `name` in NFC, the form for storing and comparing names.

    Raises:
        InvalidRequest: if UTF-8 cannot encode it: Arrow would crash on it.
    """
    try:
        name.encode()
    except (AttributeError, UnicodeEncodeError):
        raise InvalidRequest("column name must be valid text", column=ascii(name)) from None
    return unicodedata.normalize("NFC", name)


def _key_names(primary_key: Sequence[str]) -> tuple[str, ...]:
    if isinstance(primary_key, str):
        raise InvalidRequest("primary key must be a list of columns", got=primary_key)
    keys = tuple(normal_name(name) for name in primary_key)
    if len(set(keys)) != len(keys):
        raise InvalidRequest("primary key names a column twice", primary_key=",".join(keys))
    return keys


def _canonical(field: pa.Field) -> pa.Field:
    """Drop metadata and replace any time zone by UTC, in nested fields too."""
    data_type = field.type
    if pt.is_timestamp(data_type) and data_type.tz is not None:
        data_type = pa.timestamp(data_type.unit, "UTC")
    elif pt.is_nested(data_type):
        data_type = map_children(
            data_type, lambda child: _canonical(_child_named(data_type, child))
        )
    return pa.field(normal_name(field.name), data_type, nullable=field.nullable)


def _child_named(parent: pa.DataType, child: pa.Field) -> pa.Field:
    """Rename the items of lists and maps as the Arrow specification does."""
    if pt.is_list(parent):
        return child.with_name("item")
    if pt.is_map(parent):
        return child.with_name("key" if child.name == parent.key_field.name else "value")
    return child


def _stripped(field: pa.Field) -> pa.Field:
    return pa.field(field.name, map_children(field.type, _stripped), nullable=field.nullable)


def _number_children(data_type: pa.DataType, next_id: int) -> tuple[pa.DataType, int]:
    def number(field: pa.Field) -> pa.Field:
        nonlocal next_id
        done, next_id = field_with_ids(field, next_id=next_id)
        return done

    return map_children(data_type, number), next_id


def _walk(field: pa.Field) -> Iterator[pa.Field]:
    yield field
    for child in children_of(field.type):
        yield from _walk(child)


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
    if _is_supported(data_type):
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


def _is_supported(data_type: pa.DataType) -> bool:
    """Tell whether a type without parts is supported."""
    if pt.is_decimal128(data_type):
        return bool(0 <= data_type.scale <= data_type.precision)
    if pt.is_fixed_size_binary(data_type):
        return bool(data_type.byte_width > 0)
    return data_type in _SUPPORTED or bool(pt.is_timestamp(data_type))


def _check_nested(data_type: pa.DataType, *, limits: IngestLimits, path: str, depth: int) -> None:
    if pt.is_struct(data_type):
        if data_type.num_fields == 0:
            raise InvalidRequest("struct column has no fields", column=path)
        _check_names([field.name for field in data_type], limits=limits, inside=f"{path}.")
    if pt.is_map(data_type) and (
        pt.is_nested(data_type.key_type) or pt.is_floating(data_type.key_type)
    ):
        raise InvalidRequest(
            "map key must be a scalar that is not a float",
            column=path,
            type=type_name(data_type.key_type),
        )
    for child in children_of(data_type):
        _check_type(child.type, limits=limits, path=f"{path}.{child.name}", depth=depth + 1)


def _check_primary_key(schema: pa.Schema, keys: tuple[str, ...]) -> None:
    for name in keys:
        field = column_of(schema, name)
        if pt.is_nested(field.type) or pt.is_floating(field.type):
            raise InvalidRequest(
                "primary key column must be a scalar and no float, use decimal or long",
                column=name,
                type=type_name(field.type),
            )


def infer_schema(
    *rows: Mapping[str, object],
    limits: IngestLimits = LIMITS_DEFAULT,
    primary_key: Sequence[str] = (),
) -> pa.Schema:
    """Return a declared schema that fits all `rows`; a column may be null in some, not in all.

    Raises:
        InvalidRequest: if a column is null everywhere, or two rows disagree about its type.
    """
    if not rows:
        raise InvalidRequest("no row to infer columns from")
    found: dict[str, pa.DataType] = {}
    for row in rows:
        if not isinstance(row, Mapping):
            raise InvalidRequest("row must be a dict", got=type(row).__name__)
        for name, value in row.items():
            found[name] = _merged(found.get(name, pa.null()), _type_of(name, value), path=name)
    return declare_schema(found, limits=limits, primary_key=primary_key)


def _type_of(name: str, value: object) -> pa.DataType:
    try:
        return _wide(pa.infer_type([value]))
    except (pa.ArrowException, ValueError, TypeError, RecursionError) as error:
        raise InvalidRequest(
            "column type cannot be inferred, declare the column",
            column=name,
            got=type(value).__name__,
            cause=error,
        ) from error


def _wide(data_type: pa.DataType) -> pa.DataType:
    """Return an inferred type widened to all digits of a decimal, UTC and microseconds."""
    if isinstance(data_type, pa.BaseExtensionType):
        raise TypeError("extension type")
    if pt.is_decimal(data_type):
        if data_type.precision > DECIMAL_PRECISION_MAX:
            raise ValueError("more than 38 digits")
        return pa.decimal128(DECIMAL_PRECISION_MAX, data_type.scale)
    if pt.is_timestamp(data_type):
        return pa.timestamp("us", data_type.tz and "UTC")
    return map_children(data_type, lambda field: field.with_type(_wide(field.type)))


def _merged(left: pa.DataType, right: pa.DataType, *, path: str) -> pa.DataType:
    """Return the type that holds values of both; only nulls and number widths are widened."""
    if left == right or pt.is_null(right):
        return left
    if pt.is_null(left):
        return right
    if {left, right} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pt.is_decimal(left) and pt.is_decimal(right):
        return pa.decimal128(DECIMAL_PRECISION_MAX, max(left.scale, right.scale))
    if pt.is_list(left) and pt.is_list(right):
        return pa.list_(_merged(left.value_type, right.value_type, path=f"{path}.item"))
    if pt.is_struct(left) and pt.is_struct(right):
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
