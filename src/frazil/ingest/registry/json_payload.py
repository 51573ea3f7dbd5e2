"""Check that a JSON value fits a JSON Schema, within bounds of depth and of steps.

Our own walk: a library's recursion ends a thread, or prints a crash, on a schema that refers to
itself, and takes time without end on choices in choices. `format` is a note, as the drafts say.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final

from frazil.ingest.registry.json_bounds import shown
from frazil.ingest.registry.json_patterns import matches
from frazil.ingest.registry.json_references import Missing, References
from frazil.ingest.registry.kinds import quoted

if TYPE_CHECKING:
    from frazil.ingest.registry.json_text import JsonValue

__all__ = ["PayloadCheck", "identity"]

_DEPTH_MAX: Final = 150
_STEPS_MAX: Final = 100_000
_STEP_CHARACTERS: Final = 256
"""So many characters of a text are one step of matching a pattern."""
_NOTHING: Final = frozenset[object]()
_Schema = dict[str, "JsonValue"]
_Evaluated = frozenset[object]
"""Names of an object or positions of an array that some keyword has looked at."""


class _Wrong(Exception):
    """The value does not fit; choices catch it."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(text)
        self.path = path
        self.text = text


class _Endless(Exception):
    """The check was given up; nothing catches it but the top."""


def identity(value: JsonValue) -> object:
    """Return what two equal values have in common: true is not 1, and 1 is 1.0."""
    if isinstance(value, bool) or value is None:
        return ("constant", str(value))
    if isinstance(value, list):
        return ("array", tuple(identity(each) for each in value))
    if isinstance(value, dict):
        return ("object", frozenset((name, identity(each)) for name, each in value.items()))
    return value


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class PayloadCheck:
    """A definition that values are checked by, one at a time; `draft` is 4, 6, 7, 2019 or 2020."""

    def __init__(self, root: JsonValue, draft: int) -> None:
        self._references = References(root)
        self._draft = draft
        self._steps = 0
        self._sets: dict[int, frozenset[object]] = {}

    def refusal(self, value: JsonValue) -> str | None:
        """Return why a value does not fit, nothing if it does."""
        self._steps = 0
        try:
            self._check(self._references.root, value, "$", 0)
        except _Wrong as wrong:
            return f"at {quoted(wrong.path)}: {wrong.text}"
        except (_Endless, RecursionError):
            return "it is nested too deep, or the schema refers to itself without end"
        return None

    def _check(self, schema: JsonValue, value: JsonValue, path: str, depth: int) -> _Evaluated:
        self._steps += 1
        if depth > _DEPTH_MAX or self._steps > _STEPS_MAX:
            raise _Endless
        if schema is False:
            raise _Wrong(path, "nothing is allowed here")
        if not isinstance(schema, dict):
            return _NOTHING
        if "$ref" in schema and self._draft < 2019:
            # Before 2019 what stands beside a reference does not count.
            return self._check(self._target(schema["$ref"], path), value, path, depth + 1)
        self._check_value(schema, value, path)
        seen = self._in_place(schema, value, path, depth)
        if isinstance(value, str):
            self._check_text(schema, value, path)
        elif isinstance(value, list):
            seen = self._check_array(schema, value, path, depth, seen)
        elif isinstance(value, dict):
            seen = self._check_object(schema, value, path, depth, seen)
        elif _is_number(value) and isinstance(value, (int, float)):
            self._check_number(schema, value, path)
        return seen

    def _target(self, reference: JsonValue, path: str) -> JsonValue:
        try:
            return self._references.resolve(str(reference))
        except Missing:
            raise _Wrong(path, f"the schema has nothing named '{quoted(reference)}'") from None

    def _fits(
        self, schema: JsonValue, value: JsonValue, path: str, depth: int
    ) -> _Evaluated | None:
        try:
            return self._check(schema, value, path, depth + 1)
        except _Wrong:
            return None

    # ------------------------------------------------------------------------- any value

    def _check_value(self, schema: _Schema, value: JsonValue, path: str) -> None:
        kinds = schema.get("type")
        if kinds is not None:
            named = kinds if isinstance(kinds, list) else [kinds]
            if not any(self._is_kind(value, kind) for kind in named):
                wanted = " or ".join(str(kind) for kind in named)
                raise _Wrong(path, f"{quoted(shown(value))} is not of type {wanted}")
        if "enum" in schema and identity(value) not in self._identities(schema["enum"]):
            raise _Wrong(path, f"{quoted(shown(value))} is none of the listed values")
        constant = "const" in schema and self._draft >= 6
        if constant and identity(value) != identity(schema["const"]):
            raise _Wrong(path, f"{quoted(shown(value))} is not {quoted(shown(schema['const']))}")

    def _identities(self, values: JsonValue) -> frozenset[object]:
        """Return the listed values as a set, made once: the definition does not change."""
        found = self._sets.get(id(values))
        if found is None:
            listed = values if isinstance(values, list) else []
            found = self._sets[id(values)] = frozenset(identity(each) for each in listed)
        return found

    def _is_kind(self, value: JsonValue, kind: JsonValue) -> bool:
        if kind == "null":
            return value is None
        if kind == "boolean":
            return isinstance(value, bool)
        if kind == "integer" and isinstance(value, float):
            return self._draft >= 6 and value.is_integer()
        if kind in {"integer", "number"}:
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            return is_whole or (kind == "number" and isinstance(value, float))
        kinds = {"string": str, "array": list, "object": dict}
        return isinstance(value, kinds.get(str(kind), ()))

    def _in_place(self, schema: _Schema, value: JsonValue, path: str, depth: int) -> _Evaluated:
        """Apply the schemas that are about the same value."""
        seen = _NOTHING
        for key in ("$ref", "$dynamicRef", "$recursiveRef"):
            if key in schema:
                seen |= self._check(self._target(schema[key], path), value, path, depth + 1)
        for each in _listed(schema, "allOf"):
            seen |= self._check(each, value, path, depth + 1)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                tried = [self._fits(each, value, path, depth) for each in _listed(schema, key)]
                fitting = [each for each in tried if each is not None]
                if not fitting:
                    raise _Wrong(path, f"no choice of '{key}' fits")
                if key == "oneOf" and len(fitting) > 1:
                    raise _Wrong(path, f"{len(fitting)} choices of 'oneOf' fit")
                seen = seen.union(*fitting)
        if "not" in schema and self._fits(schema["not"], value, path, depth) is not None:
            raise _Wrong(path, "it fits what 'not' excludes")
        if "if" in schema and self._draft >= 7:
            chosen = self._fits(schema["if"], value, path, depth)
            branch = "else" if chosen is None else "then"
            seen |= chosen or _NOTHING
            seen |= self._check(schema.get(branch, True), value, path, depth + 1)
        return seen

    def _check_text(self, schema: _Schema, value: str, path: str) -> None:
        _check_size(schema, len(value), path, ("minLength", "maxLength"), "characters")
        pattern = schema.get("pattern")
        if isinstance(pattern, str) and not self._matches(pattern, value):
            raise _Wrong(path, f"it does not match the pattern '{quoted(pattern)}'")

    def _matches(self, pattern: str, text: str) -> bool:
        """Match a pattern; long texts are more than one step."""
        self._steps += 1 + len(text) // _STEP_CHARACTERS
        if self._steps > _STEPS_MAX:
            raise _Endless
        return matches(pattern, text)

    def _check_number(self, schema: _Schema, value: float, path: str) -> None:
        low, high = schema.get("minimum"), schema.get("maximum")
        below, above = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
        if self._draft == 4:
            # There the exclusive ones only say how the others are meant.
            below = low if below is True else None
            above = high if above is True else None
        if isinstance(low, (int, float)) and value < low:
            raise _Wrong(path, f"{shown(value)} is less than the minimum of {shown(low)}")
        if isinstance(high, (int, float)) and value > high:
            raise _Wrong(path, f"{shown(value)} is greater than the maximum of {shown(high)}")
        if isinstance(below, (int, float)) and value <= below:
            raise _Wrong(path, f"{shown(value)} is not greater than {shown(below)}")
        if isinstance(above, (int, float)) and value >= above:
            raise _Wrong(path, f"{shown(value)} is not less than {shown(above)}")
        step = schema.get("multipleOf")
        if isinstance(step, (int, float)) and Fraction(repr(value)) % Fraction(repr(step)):
            raise _Wrong(path, f"{shown(value)} is not a multiple of {shown(step)}")

    # ---------------------------------------------------------------------------- arrays

    def _check_array(
        self, schema: _Schema, value: list[JsonValue], path: str, depth: int, seen: _Evaluated
    ) -> _Evaluated:
        _check_size(schema, len(value), path, ("minItems", "maxItems"), "items")
        unique = schema.get("uniqueItems") is True
        if unique and len({identity(each) for each in value}) != len(value):
            raise _Wrong(path, "its items are not different")
        first, rest = self._items(schema)
        for index, each in enumerate(value):
            part = first[index] if index < len(first) else rest
            if part is not None:
                self._check(part, each, f"{path}[{index}]", depth + 1)
        done = len(value) if rest is not None else min(len(first), len(value))
        seen |= frozenset(range(done))
        if "contains" in schema and self._draft >= 6:
            seen |= self._check_contains(schema, value, path, depth)
        if "unevaluatedItems" in schema and self._draft >= 2019:
            for index, each in enumerate(value):
                if index not in seen:
                    self._check(schema["unevaluatedItems"], each, f"{path}[{index}]", depth + 1)
            seen |= frozenset(range(len(value)))
        return seen

    def _items(self, schema: _Schema) -> tuple[list[JsonValue], JsonValue]:
        """Return the schemas of the first items, and that of all others."""
        items = schema.get("items")
        if self._draft >= 2020:
            return _listed(schema, "prefixItems"), items
        if isinstance(items, list):
            return items, schema.get("additionalItems")
        return [], items

    def _check_contains(
        self, schema: _Schema, value: list[JsonValue], path: str, depth: int
    ) -> _Evaluated:
        found = [
            index
            for index, each in enumerate(value)
            if self._fits(schema["contains"], each, path, depth) is not None
        ]
        low, high = schema.get("minContains"), schema.get("maxContains")
        bounded = self._draft >= 2019
        least = low if bounded and isinstance(low, (int, float)) else 1
        if len(found) < least:
            raise _Wrong(path, f"{len(found)} items fit 'contains', at least {least} must")
        if bounded and isinstance(high, (int, float)) and len(found) > high:
            raise _Wrong(path, f"{len(found)} items fit 'contains', at most {high} may")
        # Since 2020 an item that 'contains' found counts as looked at.
        return frozenset(found) if self._draft >= 2020 else _NOTHING

    # --------------------------------------------------------------------------- objects

    def _check_object(
        self, schema: _Schema, value: _Schema, path: str, depth: int, seen: _Evaluated
    ) -> _Evaluated:
        _check_size(schema, len(value), path, ("minProperties", "maxProperties"), "properties")
        for name in _listed(schema, "required"):
            if name not in value:
                raise _Wrong(path, f"'{quoted(name)}' is a required property")
        fields, patterns = _named(schema, "properties"), _named(schema, "patternProperties")
        known: set[object] = set()
        for name, each in value.items():
            parts = [fields[name]] if name in fields else []
            parts += [part for pattern, part in patterns.items() if self._matches(pattern, name)]
            if not parts and "additionalProperties" in schema:
                if schema["additionalProperties"] is False:
                    raise _Wrong(path, f"'{quoted(name)}' is an additional property")
                parts = [schema["additionalProperties"]]
            if parts:
                known.add(name)
            for part in parts:
                self._check(part, each, f"{path}.{name}", depth + 1)
        if "propertyNames" in schema and self._draft >= 6:
            for name in value:
                self._check(schema["propertyNames"], name, f"{path}.{name}", depth + 1)
        seen |= frozenset(known) | self._check_dependencies(schema, value, path, depth)
        if "unevaluatedProperties" in schema and self._draft >= 2019:
            for name, each in value.items():
                if name not in seen:
                    part = schema["unevaluatedProperties"]
                    self._check(part, each, f"{path}.{name}", depth + 1)
            seen |= frozenset(value)
        return seen

    def _check_dependencies(
        self, schema: _Schema, value: _Schema, path: str, depth: int
    ) -> _Evaluated:
        seen = _NOTHING
        newer = ("dependentRequired", "dependentSchemas")
        for key in newer if self._draft >= 2019 else ("dependencies",):
            for name, needed in _named(schema, key).items():
                if name not in value:
                    continue
                if isinstance(needed, list):
                    missing = [each for each in needed if each not in value]
                    if missing:
                        text = f"'{quoted(missing[0])}' is required beside '{quoted(name)}'"
                        raise _Wrong(path, text)
                else:
                    seen |= self._check(needed, value, path, depth + 1)
        return seen


def _listed(schema: _Schema, key: str) -> list[JsonValue]:
    found = schema.get(key)
    return found if isinstance(found, list) else []


def _named(schema: _Schema, key: str) -> _Schema:
    found = schema.get(key)
    return found if isinstance(found, dict) else {}


def _check_size(schema: _Schema, size: int, path: str, keys: tuple[str, str], what: str) -> None:
    low, high = schema.get(keys[0]), schema.get(keys[1])
    if isinstance(low, (int, float)) and size < low:
        raise _Wrong(path, f"it has {size} {what}, at least {shown(low)} are needed")
    if isinstance(high, (int, float)) and size > high:
        raise _Wrong(path, f"it has {size} {what}, at most {shown(high)} are allowed")
