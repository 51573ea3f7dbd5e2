"""The keywords of JSON Schema: what their values may be, checked in one pass over a definition.

A library's check by the dialect's own meta-schema takes a quarter of a minute for a megabyte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from frazil.errors import InvalidRequest
from frazil.ingest.registry import limits
from frazil.ingest.registry.json_patterns import check_pattern, match_units, pattern_size
from frazil.ingest.registry.kinds import quoted

if TYPE_CHECKING:
    from frazil.ingest.registry.json_text import JsonValue

__all__ = ["check_keywords"]

_TYPES: Final = ("array", "boolean", "integer", "null", "number", "object", "string")
_REFERENCES: Final = frozenset(("$ref", "$dynamicRef", "$recursiveRef"))


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: JsonValue) -> bool:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return whole and not isinstance(value, bool) and isinstance(value, (int, float)) and value >= 0


def _is_positive(value: JsonValue) -> bool:
    return _is_number(value) and isinstance(value, (int, float)) and value > 0


def _is_text(value: JsonValue) -> bool:
    return isinstance(value, str)


def _is_names(value: JsonValue) -> bool:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        return False
    return len({each for each in value if isinstance(each, str)}) == len(value)


def _is_names_by_name(value: JsonValue) -> bool:
    return isinstance(value, dict) and all(_is_names(each) for each in value.values())


def _is_type(value: JsonValue) -> bool:
    if isinstance(value, str):
        return value in _TYPES
    if not isinstance(value, list) or not value or not _is_names(value):
        return False
    return all(each in _TYPES for each in value)


_VALUES: Final[dict[str, tuple[Callable[[JsonValue], bool], str]]] = {
    **dict.fromkeys(("maximum", "minimum"), (_is_number, "a number")),
    **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum"), (_is_number, "a number")),
    "multipleOf": (_is_positive, "a number above 0"),
    **dict.fromkeys(
        (
            *("maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"),
            *("minContains", "maxContains"),
        ),
        (_is_count, "a whole number from 0"),
    ),
    **dict.fromkeys(
        (
            *("pattern", "format", "title", "description", "$schema", "$id", "id", "$comment"),
            *("$ref", "$anchor", "$dynamicRef", "$dynamicAnchor", "contentMediaType"),
            "contentEncoding",
        ),
        (_is_text, "a text"),
    ),
    "uniqueItems": (lambda value: isinstance(value, bool), "true or false"),
    "enum": (lambda value: isinstance(value, list), "a list of values"),
    "required": (_is_names, "a list of different names"),
    "dependentRequired": (_is_names_by_name, "an object of lists of names"),
    "type": (_is_type, f"one or some of {', '.join(_TYPES)}"),
}
_SCHEMA: Final = frozenset(
    (
        *("not", "if", "then", "else", "contains", "propertyNames", "additionalProperties"),
        *("additionalItems", "unevaluatedItems", "unevaluatedProperties", "contentSchema"),
    )
)
_SCHEMAS: Final = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
_SCHEMAS_BY_NAME: Final = frozenset(
    ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
)
_Work = list[tuple["JsonValue", str]]


def check_keywords(root: JsonValue, *, is_draft4: bool) -> None:
    """Refuse a definition with a keyword whose value has no meaning, with its place."""
    work: _Work = [(root, "$")]
    patterns: dict[str, str] = {}
    while work:
        schema, path = work.pop()
        if isinstance(schema, bool):
            continue
        if not isinstance(schema, dict):
            raise _refuse(path, "a schema is an object, true or false")
        for key, value in schema.items():
            place = f"{path}.{key}"
            if key in _VALUES:
                _check_value(key, value, place, is_draft4=is_draft4)
                if key == "pattern" and isinstance(value, str):
                    patterns.setdefault(value, place)
            elif key in _SCHEMA:
                work.append((value, place))
            elif key in _SCHEMAS:
                if not isinstance(value, list) or not value:
                    raise _refuse(place, "it is a list of schemas, not an empty one")
                work += [(each, f"{place}[{index}]") for index, each in enumerate(value)]
            elif key in _SCHEMAS_BY_NAME:
                work += _by_name(key, value, place)
                if key == "patternProperties" and isinstance(value, dict):
                    patterns.update(dict.fromkeys(value, place))
            elif key == "items":
                listed = value if isinstance(value, list) else [value]
                work += [(each, place) for each in listed]
    _check_patterns(patterns)


def _refuse(path: str, text: str) -> InvalidRequest:
    return InvalidRequest(f"invalid JSON Schema at {quoted(path)}: {text}")


def _check_value(key: str, value: JsonValue, place: str, *, is_draft4: bool) -> None:
    fits, what = _VALUES[key]
    if is_draft4 and key.startswith("exclusive"):
        fits, what = _VALUES["uniqueItems"]
    if not fits(value):
        raise _refuse(place, f"it is {what}")
    if key in _REFERENCES and isinstance(value, str) and not value.startswith("#"):
        raise _refuse(
            place,
            f"to '{quoted(value)}': only references inside the definition ('#…') are followed",
        )


def _by_name(key: str, value: JsonValue, place: str) -> _Work:
    if not isinstance(value, dict):
        raise _refuse(place, "it is an object of schemas")
    found: _Work = []
    for name, each in value.items():
        if key == "dependencies" and isinstance(each, list):
            if not _is_names(each):
                raise _refuse(f"{place}.{name}", "it is a list of different names")
        else:
            found.append((each, f"{place}.{name}"))
    return found


def _check_patterns(patterns: dict[str, str]) -> None:
    """Check patterns, which are told with their places: each, and what all of them take."""
    units = 0
    for pattern, place in patterns.items():
        units += match_units(pattern_size(pattern), 0)
        if units > limits.PATTERN_UNITS_MAX:
            raise _refuse(place, "the patterns need too much work, use fewer or repeat less")
        try:
            check_pattern(pattern)
        except InvalidRequest as error:
            raise _refuse(place, error.message) from error
