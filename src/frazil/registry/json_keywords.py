"""The keywords of JSON Schema: what their values may be, checked in one pass over a definition.

A library's check by the dialect's own meta-schema takes a quarter of a minute for a megabyte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from frazil.errors import InvalidRequest
from frazil.registry import limits
from frazil.registry.json_patterns import check_pattern, match_units, pattern_size
from frazil.registry.json_places import told_place
from frazil.registry.json_references import Missing, References
from frazil.registry.kinds import quoted

if TYPE_CHECKING:
    from frazil.registry.json_places import Place
    from frazil.registry.json_text import JsonValue

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
_Work = list[tuple["JsonValue", "Place"]]


def check_keywords(root: JsonValue, *, is_draft4: bool) -> None:
    """Refuse a definition with a keyword whose value has no meaning, with its place."""
    check = _Check(root, is_draft4=is_draft4)
    check.run()
    _check_patterns(check.patterns)


class _Check:
    """One pass over a definition, and over what is a schema only because a reference leads there."""

    def __init__(self, root: JsonValue, *, is_draft4: bool) -> None:
        self.patterns: dict[str, Place] = {}
        """With the places where they stand."""
        self._is_draft4 = is_draft4
        self._references = References(root)
        self._seen: set[int] = set()
        self._work: _Work = [(root, None)]
        self._targets: _Work = []

    def run(self) -> None:
        while self._work:
            schema, path = self._work.pop()
            if isinstance(schema, dict):
                if id(schema) not in self._seen:
                    self._seen.add(id(schema))
                    self._check(schema, path)
            elif not isinstance(schema, bool):
                raise _refuse(path, "a schema is an object, true or false")
            if not self._work:
                # In their own place at first: that is what is told.
                self._work, self._targets = self._targets, []

    def _check(self, schema: dict[str, JsonValue], path: Place) -> None:
        for key, value in schema.items():
            if key in _VALUES:
                _check_value(key, value, path, is_draft4=self._is_draft4)
                if key == "pattern" and isinstance(value, str):
                    self.patterns.setdefault(value, (path, key))
            elif key in _SCHEMA:
                self._work.append((value, (path, key)))
            elif key in _SCHEMAS:
                place = (path, key)
                if not isinstance(value, list) or not value:
                    raise _refuse(place, "it is a list of schemas, not an empty one")
                self._work += [(each, (place, index)) for index, each in enumerate(value)]
            elif key in _SCHEMAS_BY_NAME:
                place = (path, key)
                self._work += _by_name(key, value, place)
                if key == "patternProperties" and isinstance(value, dict):
                    self.patterns.update(dict.fromkeys(value, place))
            elif key == "items":
                listed = value if isinstance(value, list) else [value]
                place = (path, key)
                self._work += [(each, place) for each in listed]
            if key in _REFERENCES and isinstance(value, str):
                self._follow(value, (path, key))

    def _follow(self, target: str, place: Place) -> None:
        try:
            self._targets.append((self._references.resolve(target), place))
        except Missing:
            # Told by who follows the references of the whole definition.
            return


def _refuse(path: Place, text: str) -> InvalidRequest:
    return InvalidRequest(f"invalid JSON Schema at {quoted(told_place(path))}: {text}")


def _check_value(key: str, value: JsonValue, path: Place, *, is_draft4: bool) -> None:
    fits, what = _VALUES[key]
    if is_draft4 and key.startswith("exclusive"):
        fits, what = _VALUES["uniqueItems"]
    if not fits(value):
        raise _refuse((path, key), f"it is {what}")
    if key in _REFERENCES and isinstance(value, str) and not value.startswith("#"):
        raise _refuse(
            (path, key),
            f"to '{quoted(value)}': only references inside the definition ('#…') are followed",
        )


def _by_name(key: str, value: JsonValue, place: Place) -> _Work:
    if not isinstance(value, dict):
        raise _refuse(place, "it is an object of schemas")
    found: _Work = []
    for name, each in value.items():
        if key == "dependencies" and isinstance(each, list):
            if not _is_names(each):
                raise _refuse((place, name), "it is a list of different names")
        else:
            found.append((each, (place, name)))
    return found


def _check_patterns(patterns: dict[str, Place]) -> None:
    """Check patterns, which are told with their places: what all of them take, then each."""
    units = 0
    for pattern, place in patterns.items():
        units += match_units(pattern_size(pattern), 0)
        if units > limits.PATTERN_UNITS_MAX:
            raise _refuse(place, "the patterns need too much work, use fewer or repeat less")
    for pattern, place in patterns.items():
        try:
            check_pattern(pattern)
        except InvalidRequest as error:
            raise _refuse(place, error.message) from error
