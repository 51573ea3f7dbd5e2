"""Bounds of a JSON Schema: lengths, sizes, ranges, patterns; tightened is not compatible."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from frazil.registry.json_text import JsonValue

__all__ = ["BOUNDS", "bounds_problems", "bounds_units", "shown"]

_LOWER: Final = ("minLength", "minItems", "minProperties")
_UPPER: Final = ("maxLength", "maxItems", "maxProperties")
_EXACT: Final = ("pattern",)
BOUNDS: Final = frozenset(
    (
        *(*_LOWER, *_UPPER, *_EXACT, "minimum", "maximum", "exclusiveMinimum"),
        *("exclusiveMaximum", "uniqueItems", "multipleOf"),
    )
)
"""The keywords that are compared here."""
_TEXT_SHIFT: Final = 6
"""64 characters of a pattern are compared and shown in one unit of work."""
_NUMBER_SHIFT: Final = 5
"""32 bits of a number are: they are divided and written out, all of them."""
_SHOWN_CHARACTERS_MAX: Final = 60
_TOP: Final = float("inf")


def shown(value: JsonValue) -> str:
    """Return a value as it stands in a message."""
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else text[:_SHOWN_CHARACTERS_MAX] + "…"


def bounds_units(schema: dict[str, JsonValue]) -> int:
    """Return the work that the bounds of a schema are, one comparison of them."""
    units = 0
    for key in BOUNDS.intersection(schema):
        value = schema[key]
        if isinstance(value, str):
            units += len(value) >> _TEXT_SHIFT
        elif isinstance(value, int):
            units += value.bit_length() >> _NUMBER_SHIFT
    return units


def bounds_problems(reader: dict[str, JsonValue], writer: dict[str, JsonValue]) -> Iterator[str]:
    """Yield each bound of the reader that the writer does not keep."""
    for key in _LOWER:
        if _number(reader.get(key), 0) > _number(writer.get(key), 0):
            yield f"'{key}' is {shown(reader[key])}, the writer's {_told(writer, key)}"
    for key in _UPPER:
        if _number(reader.get(key), _TOP) < _number(writer.get(key), _TOP):
            yield f"'{key}' is {shown(reader[key])}, the writer's {_told(writer, key)}"
    if _floor(reader) > _floor(writer):
        yield "the smallest number is larger than the writer's"
    if _ceiling(reader) < _ceiling(writer):
        yield "the largest number is smaller than the writer's"
    for key in _EXACT:
        if key in reader and reader[key] != writer.get(key):
            yield f"'{key}' is {shown(reader[key])}, the writer's {_told(writer, key)}"
    if reader.get("uniqueItems") is True and writer.get("uniqueItems") is not True:
        yield "'uniqueItems' is new"
    if "multipleOf" in reader and not _is_multiple(writer.get("multipleOf"), reader["multipleOf"]):
        yield f"'multipleOf' is {shown(reader['multipleOf'])}, the writer's is not a multiple of it"


def _told(schema: dict[str, JsonValue], key: str) -> str:
    return shown(schema[key]) if key in schema else "has none"


def _number(value: JsonValue, default: float) -> float:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else default


def _floor(schema: dict[str, JsonValue]) -> tuple[float, bool]:
    """Return the smallest number, and whether it is excluded: both order as they bind."""
    low = _number(schema.get("minimum"), -_TOP)
    exclusive = schema.get("exclusiveMinimum")
    if exclusive is True:
        return low, True
    return max((low, False), (_number(exclusive, -_TOP), "exclusiveMinimum" in schema))


def _ceiling(schema: dict[str, JsonValue]) -> tuple[float, bool]:
    """Return the largest number, and whether it is included: both order as they bind."""
    high = _number(schema.get("maximum"), _TOP)
    exclusive = schema.get("exclusiveMaximum")
    if exclusive is True:
        return high, False
    return min((high, True), (_number(exclusive, _TOP), "exclusiveMaximum" not in schema))


def _is_multiple(value: JsonValue, divisor: JsonValue) -> bool:
    if value == divisor:
        return True
    if isinstance(value, int) and isinstance(divisor, int) and divisor:
        return value % divisor == 0
    return False
