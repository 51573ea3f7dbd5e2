"""Check that a JSON value fits a JSON Schema, within bounds of depth and of work.

Our own walk: a library's recursion ends a thread, or prints a crash, on a schema that refers to
itself, and takes time without end on choices in choices. `format` is a note, as the drafts say.
Whatever takes longer for a larger value or schema is charged for, before it is done.

A reason has nothing of the payload in it: it names what the schema asks for and the kind of value
that is there. A place is made of names that the schema has; another name is a part of the payload,
and its position stands for it, as in `$.{2}`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final

from frazil.registry.json_bounds import shown
from frazil.registry.json_identity import Identities, Listed
from frazil.registry.json_patterns import match_units, matches, pattern_size
from frazil.registry.json_places import told_place
from frazil.registry.json_references import Missing, References, subschemas
from frazil.registry.kinds import quoted
from frazil.registry.work import TOO_MUCH_WORK, TooMuchWork, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from frazil.registry.json_places import Place
    from frazil.registry.json_text import JsonValue

__all__ = ["PayloadCheck"]

_DEPTH_MAX: Final = 150
_SCHEMA_UNITS: Final = 4
"""One schema, looked at for one value."""
_NAME_SHIFT: Final = 12
"""4,096 characters of a name that is found are one unit of work."""
_DIVISION_UNITS: Final = 8
_NOTHING: Final = frozenset[object]()
_Schema = dict[str, "JsonValue"]
_Evaluated = frozenset[object]
"""Names of an object or positions of an array that some keyword has looked at."""


class _Wrong(Exception):
    """The value does not fit; choices catch it, so its text is made only when it is told."""

    def __init__(self, path: Place, text: str | Callable[[], str]) -> None:
        super().__init__()
        self.path = path
        self.text = text

    def told(self) -> str:
        text = self.text if isinstance(self.text, str) else self.text()
        return f"at {quoted(told_place(self.path))}: {text}"


class _Endless(Exception):
    """The check went too deep; nothing catches it but the top."""


def _kind_of(value: JsonValue) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "an integer", float: "a number", str: "a string"}
    return names.get(type(value)) or ("an array" if isinstance(value, list) else "an object")


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class PayloadCheck:
    """A definition that values are checked by, one at a time; `draft` is 4, 6, 7, 2019 or 2020."""

    def __init__(self, root: JsonValue, draft: int) -> None:
        self._references = References(root)
        self._draft = draft
        self._sizes: dict[str, int] = {}
        """Of patterns."""
        self._listed: Listed | None = None
        self._names: frozenset[str] | None = None
        self._tracks = False
        """Whether any schema asks which parts of a value others have looked at."""
        self._work = Work()
        self._identities = Identities(Listed(None), self._work)

    @property
    def names(self) -> frozenset[str]:
        """All names of properties that the definition has, which may be told."""
        if self._names is None:
            self._names = frozenset(_names(self._references.root))
        return self._names

    def refusal(self, value: JsonValue, work: Work | None = None) -> str | None:
        """Return why a value does not fit, nothing if it does.

        Raises:
            Unavailable: if all checks are to stop.
        """
        self._work = work or Work()
        self._identities = Identities(self._prepared(), self._work)
        try:
            self._check(self._references.root, value, None, 0)
        except _Wrong as wrong:
            return wrong.told()
        except TooMuchWork:
            return TOO_MUCH_WORK
        except (_Endless, RecursionError):
            return "it is nested too deep, or the schema refers to itself without end"
        finally:
            # What was found out about the payload is not kept until the next one.
            self._identities = Identities(Listed(None), self._work)
        return None

    def _prepared(self) -> Listed:
        """Return what is found out about the definition, once."""
        if self._listed is None:
            root = self._references.root
            self._tracks = _asks_for_the_rest(root)
            self._listed = Listed(root)
        return self._listed

    def _check(self, schema: JsonValue, value: JsonValue, path: Place, depth: int) -> _Evaluated:
        self._work.charge(_SCHEMA_UNITS)
        if depth > _DEPTH_MAX:
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

    def _target(self, reference: JsonValue, path: Place) -> JsonValue:
        try:
            return self._references.resolve(str(reference))
        except Missing:
            raise _Wrong(path, f"the schema has nothing named '{quoted(reference)}'") from None

    def _fits(
        self, schema: JsonValue, value: JsonValue, path: Place, depth: int
    ) -> _Evaluated | None:
        try:
            return self._check(schema, value, path, depth + 1)
        except _Wrong:
            return None

    # ------------------------------------------------------------------------- any value

    def _check_value(self, schema: _Schema, value: JsonValue, path: Place) -> None:
        kinds = schema.get("type")
        if kinds is not None:
            named = kinds if isinstance(kinds, list) else [kinds]
            if not any(self._is_kind(value, kind) for kind in named):
                wanted = " or ".join(str(kind) for kind in named)
                raise _Wrong(path, f"{_kind_of(value)} is not of type {wanted}")
        if "enum" in schema and not self._identities.is_listed(value, schema["enum"]):
            raise _Wrong(path, "it is none of the listed values")
        constant = "const" in schema and self._draft >= 6
        if constant and not self._identities.is_constant(value, schema):
            raise _Wrong(path, lambda: f"it is not {quoted(shown(schema['const']))}")

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

    def _in_place(self, schema: _Schema, value: JsonValue, path: Place, depth: int) -> _Evaluated:
        """Apply the schemas that are about the same value."""
        seen = _NOTHING
        for key in ("$ref", "$dynamicRef", "$recursiveRef"):
            if key in schema:
                part = self._target(schema[key], path)
                seen = self._with(seen, self._check(part, value, path, depth + 1))
        for each in _listed(schema, "allOf"):
            seen = self._with(seen, self._check(each, value, path, depth + 1))
        for key in ("anyOf", "oneOf"):
            if key in schema:
                tried = [self._fits(each, value, path, depth) for each in _listed(schema, key)]
                fitting = [each for each in tried if each is not None]
                if not fitting:
                    raise _Wrong(path, f"no choice of '{key}' fits")
                if key == "oneOf" and len(fitting) > 1:
                    raise _Wrong(path, f"{len(fitting)} choices of 'oneOf' fit")
                for more in fitting:
                    seen = self._with(seen, more)
        if "not" in schema and self._fits(schema["not"], value, path, depth) is not None:
            raise _Wrong(path, "it fits what 'not' excludes")
        if "if" in schema and self._draft >= 7:
            chosen = self._fits(schema["if"], value, path, depth)
            branch = "else" if chosen is None else "then"
            seen = self._with(seen, chosen or _NOTHING)
            part = schema.get(branch, True)
            seen = self._with(seen, self._check(part, value, path, depth + 1))
        return seen

    def _check_text(self, schema: _Schema, value: str, path: Place) -> None:
        _check_size(schema, len(value), path, ("minLength", "maxLength"), "characters")
        pattern = schema.get("pattern")
        if isinstance(pattern, str) and not self._matches(pattern, value):
            raise _Wrong(path, f"it does not match the pattern '{quoted(pattern)}'")

    def _matches(self, pattern: str, text: str) -> bool:
        size = self._sizes.get(pattern)
        if size is None:
            size = self._sizes[pattern] = pattern_size(pattern)
        self._work.charge(match_units(size, len(text)))
        return matches(pattern, text)

    def _check_number(self, schema: _Schema, value: float, path: Place) -> None:
        low, high = schema.get("minimum"), schema.get("maximum")
        below, above = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
        if self._draft == 4:
            # There the exclusive ones only say how the others are meant.
            below = low if below is True else None
            above = high if above is True else None
        if isinstance(low, (int, float)) and value < low:
            raise _Wrong(path, lambda: f"it is less than the minimum of {shown(low)}")
        if isinstance(high, (int, float)) and value > high:
            raise _Wrong(path, lambda: f"it is greater than the maximum of {shown(high)}")
        if isinstance(below, (int, float)) and value <= below:
            raise _Wrong(path, lambda: f"it is not greater than {shown(below)}")
        if isinstance(above, (int, float)) and value >= above:
            raise _Wrong(path, lambda: f"it is not less than {shown(above)}")
        step = schema.get("multipleOf")
        if not isinstance(step, (int, float)):
            return
        self._work.charge(_DIVISION_UNITS + (_digits(value) + _digits(step) >> 4))
        if Fraction(repr(value)) % Fraction(repr(step)):
            raise _Wrong(path, lambda: f"it is not a multiple of {shown(step)}")

    # ---------------------------------------------------------------------------- arrays

    def _check_array(
        self, schema: _Schema, value: list[JsonValue], path: Place, depth: int, seen: _Evaluated
    ) -> _Evaluated:
        _check_size(schema, len(value), path, ("minItems", "maxItems"), "items")
        unique = schema.get("uniqueItems") is True
        if unique and not self._identities.are_different(value):
            raise _Wrong(path, "its items are not different")
        first, rest = self._items(schema)
        done = len(value) if rest is not None else min(len(first), len(value))
        for index in range(done):
            part = first[index] if index < len(first) else rest
            self._check(part, value[index], (path, index), depth + 1)
        if self._tracks:
            seen = self._with(seen, range(done))
        if "contains" in schema and self._draft >= 6:
            seen = self._with(seen, self._check_contains(schema, value, path, depth))
        if "unevaluatedItems" in schema and self._draft >= 2019:
            self._work.charge(len(value))
            for index, each in enumerate(value):
                if index not in seen:
                    part = schema["unevaluatedItems"]
                    self._check(part, each, (path, index), depth + 1)
            seen = self._with(seen, range(len(value)))
        return seen

    def _with(self, seen: _Evaluated, more: Collection[object]) -> _Evaluated:
        """Return names or positions that were looked at, and more of them."""
        if not more or not self._tracks:
            return seen
        self._work.charge(len(seen) + len(more))
        return seen.union(more)

    def _items(self, schema: _Schema) -> tuple[list[JsonValue], JsonValue]:
        """Return the schemas of the first items, and that of all others."""
        items = schema.get("items")
        if self._draft >= 2020:
            return _listed(schema, "prefixItems"), items
        if isinstance(items, list):
            return items, schema.get("additionalItems")
        return [], items

    def _check_contains(
        self, schema: _Schema, value: list[JsonValue], path: Place, depth: int
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
        self, schema: _Schema, value: _Schema, path: Place, depth: int, seen: _Evaluated
    ) -> _Evaluated:
        _check_size(schema, len(value), path, ("minProperties", "maxProperties"), "properties")
        required = _listed(schema, "required")
        self._work.charge(len(required) >> 1)
        for name in required:
            if not self._has(value, name):
                raise _Wrong(path, f"'{quoted(name)}' is a required property")
        seen = self._with(seen, self._check_fields(schema, value, path, depth))
        if "propertyNames" in schema and self._draft >= 6:
            for index, name in enumerate(value):
                place = self._place(name, index)
                self._check(schema["propertyNames"], name, (path, place), depth + 1)
        seen = self._with(seen, self._check_dependencies(schema, value, path, depth))
        if "unevaluatedProperties" in schema and self._draft >= 2019:
            self._work.charge(len(value))
            for index, (name, each) in enumerate(value.items()):
                if name not in seen:
                    part, place = schema["unevaluatedProperties"], self._place(name, index)
                    self._check(part, each, (path, place), depth + 1)
            seen = self._with(seen, value)
        return seen

    def _check_fields(
        self, schema: _Schema, value: _Schema, path: Place, depth: int
    ) -> Collection[object]:
        """Check each property by all that is said of its name; return those looked at."""
        fields, patterns = _named(schema, "properties"), _named(schema, "patternProperties")
        known: set[object] = set()
        if not fields and not patterns and "additionalProperties" not in schema:
            return known
        self._work.charge(len(value))
        for index, (name, each) in enumerate(value.items()):
            is_named = self._has(fields, name)
            parts = [fields[name]] if is_named else []
            parts += [part for pattern, part in patterns.items() if self._matches(pattern, name)]
            if not parts and "additionalProperties" in schema:
                if schema["additionalProperties"] is False:
                    place = self._place(name, index)
                    raise _Wrong((path, place), "no additional property is allowed")
                parts = [schema["additionalProperties"]]
            if not parts:
                continue
            known.add(name)
            place = name if is_named else self._place(name, index)
            for part in parts:
                self._check(part, each, (path, place), depth + 1)
        return known

    def _place(self, name: str, index: int) -> str:
        """Return what stands for a property's name in a reason: not a name of the payload alone."""
        if name not in self.names:
            return f"{{{index}}}"
        self._work.charge(len(name) >> _NAME_SHIFT)
        return name

    def _has(self, value: _Schema, name: JsonValue) -> bool:
        """Say whether an object has a name; a long one that it has is compared to its end."""
        if name not in value:
            return False
        self._work.charge(len(str(name)) >> _NAME_SHIFT)
        return True

    def _check_dependencies(
        self, schema: _Schema, value: _Schema, path: Place, depth: int
    ) -> _Evaluated:
        seen = _NOTHING
        newer = ("dependentRequired", "dependentSchemas")
        for key in newer if self._draft >= 2019 else ("dependencies",):
            named = _named(schema, key)
            self._work.charge(len(named))
            for name, needed in named.items():
                if not self._has(value, name):
                    continue
                if isinstance(needed, list):
                    self._work.charge(len(needed))
                    missing = next((each for each in needed if not self._has(value, each)), None)
                    if missing is not None:
                        text = f"'{quoted(missing)}' is required beside '{quoted(name)}'"
                        raise _Wrong(path, text)
                else:
                    found = self._check(needed, value, path, depth + 1)
                    seen = self._with(seen, found)
        return seen


def _asks_for_the_rest(root: JsonValue) -> bool:
    """Say whether an `unevaluated…` stands anywhere, also where a reference alone makes a schema."""
    work = [root]
    while work:
        each = work.pop()
        if isinstance(each, dict):
            if "unevaluatedItems" in each or "unevaluatedProperties" in each:
                return True
            work.extend(each.values())
        elif isinstance(each, list):
            work.extend(each)
    return False


def _names(root: JsonValue) -> Iterator[str]:
    """Yield the names of properties in a definition."""
    for schema, _ in subschemas(root):
        for key in ("properties", "dependencies", "dependentRequired", "dependentSchemas"):
            for name, part in _named(schema, key).items():
                yield name
                yield from _texts(part)
        yield from _texts(schema.get("required"))


def _texts(value: JsonValue) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _digits(number: float) -> int:
    """Return about how many binary digits a number has, written out."""
    return number.bit_length() if isinstance(number, int) else 1_024


def _listed(schema: _Schema, key: str) -> list[JsonValue]:
    found = schema.get(key)
    return found if isinstance(found, list) else []


def _named(schema: _Schema, key: str) -> _Schema:
    found = schema.get(key)
    return found if isinstance(found, dict) else {}


def _check_size(schema: _Schema, size: int, path: Place, keys: tuple[str, str], what: str) -> None:
    low, high = schema.get(keys[0]), schema.get(keys[1])
    if isinstance(low, (int, float)) and size < low:
        raise _Wrong(path, f"it has {size} {what}, at least {shown(low)} are needed")
    if isinstance(high, (int, float)) and size > high:
        raise _Wrong(path, f"it has {size} {what}, at most {shown(high)} are allowed")
