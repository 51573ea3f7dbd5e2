"""Parts of two JSON Schemas that are compared: what each is, found out once and paid for.

Whatever takes longer for a larger definition is charged for, so that a comparison ends with
`TooMuchWork` however often references lead to the same large part.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

import attrs

from frazil.registry.json_bounds import shown
from frazil.registry.json_identity import leaf_key
from frazil.registry.json_patterns import match_units, matching, pattern_size
from frazil.registry.json_references import Missing, References
from frazil.registry.json_text import JsonValue

if TYPE_CHECKING:
    from collections.abc import Collection

    from frazil.registry.work import Work

__all__ = ["ANY", "Document", "Parts", "Schema", "Values", "fields_of", "named"]

Schema = dict[str, JsonValue]

ANY: Final = frozenset(("null", "boolean", "object", "array", "number", "string"))
_ONE: Final = {name: frozenset((name,)) for name in (*ANY, "integer")}
_NO_TYPE: Final = frozenset[str]()
_LOOKED_SHIFT: Final = 4
"""16 bytes of JSON are looked at as a whole in one unit of work."""
_TEXT_SHIFT: Final = 10
"""1,024 characters of names or values that are equal are compared in one unit of work."""
_VALUES_SHIFT: Final = 3
"""8 values that were looked at before are found in a list in one unit of work."""
_PART_UNITS: Final = 4
"""One part that is looked at for what it names."""
_REFERENCES_MAX: Final = 64
_BESIDE: Final = frozenset(
    (
        *("$ref", "$schema", "$id", "id", "$defs", "definitions", "$comment"),
        *("title", "description", "default", "examples"),
    )
)
_NEIGHBOURS: Final = {
    "additionalProperties": frozenset(("properties", "patternProperties")),
    "items": frozenset(("prefixItems",)),
    "additionalItems": frozenset(("items",)),
    **dict.fromkeys(("then", "else"), frozenset(("if",))),
    **dict.fromkeys(("minContains", "maxContains"), frozenset(("contains",))),
}
"""Keywords that mean something else when others stand beside them in the same object."""
_IN_PLACE: Final = (
    *("allOf", "anyOf", "oneOf", "if", "then", "else"),
    *("dependencies", "dependentSchemas"),
)
"""What is about the same value and may name its properties."""
_OLDER: Final = re.compile(r"json-schema\.org/draft-0[467]/")
_ENCODER: Final = json.JSONEncoder(sort_keys=True)


@attrs.frozen
class Values:
    """The values that a schema lists; equal ones have the same key."""

    listed: list[JsonValue]
    keys: tuple[object, ...]
    different: frozenset[object]
    types: frozenset[str]
    units: int
    """Of a later look at all of them."""


class Document(References):
    """One of the two definitions."""

    def __init__(self, root: JsonValue, work: Work) -> None:
        super().__init__(root)
        marked = root.get("$schema") if isinstance(root, dict) else None
        self._ignores_the_rest = isinstance(marked, str) and _OLDER.search(marked) is not None
        """Whether what stands beside a reference does not count: before 2019."""
        self._work = work
        self._followed: dict[int, tuple[JsonValue, list[Schema] | None]] = {}
        """By the ids of schemas, which are kept with them."""

    def part(self, target: str) -> JsonValue:
        """Return what a reference leads to, nothing if that is nowhere."""
        try:
            return self.resolve(target)
        except Missing:
            return None

    def followed(self, value: JsonValue) -> list[Schema] | None:
        """Return the schemas, mostly one, that a value is or refers to; true and false as objects.

        Nothing if a reference leads nowhere, or in a circle.
        """
        found = self._followed.get(id(value))
        if found is None:
            found = self._followed[id(value)] = (value, self._follow(value))
        return found[1]

    def merged(self, rest: Schema, branch: JsonValue) -> JsonValue:
        """Return a choice together with what stands beside it; nothing if both say something."""
        if not isinstance(branch, dict):
            return branch if not rest or branch is False else None
        self._work.charge(len(rest) + len(branch))
        if not _can_join(rest, branch):
            return None
        if "$ref" in branch and set(rest) - _BESIDE and self._ignores_the_rest:
            return None
        return {**rest, **branch} if rest else branch

    def _follow(self, value: JsonValue) -> list[Schema] | None:
        found: list[Schema] = []
        for _ in range(_REFERENCES_MAX):
            if isinstance(value, bool):
                value = {} if value else {"not": {}}
            if not isinstance(value, dict):
                return None
            target = value.get("$ref")
            if not isinstance(target, str):
                return self._joined([*found, value]) if found else [value]
            self._work.charge(len(value))
            if len(value) > 1 and not self._ignores_the_rest:
                beside = {name: each for name, each in value.items() if name not in _BESIDE}
                found += [beside] if beside else []
            try:
                value = self.resolve(target)
            except Missing:
                return None
        return None

    def _joined(self, schemas: list[Schema]) -> list[Schema]:
        """Return schemas that all hold as one, if that means the same; else as they are."""
        one = schemas[-1]
        for each in schemas[:-1]:
            self._work.charge(len(one) + len(each))
            if not _can_join(one, each):
                return schemas
            one = {**one, **each}
        return [one]


class Parts:
    """What is known of the parts of two definitions while they are compared."""

    def __init__(self, reader: JsonValue, writer: JsonValue, work: Work) -> None:
        self.work = work
        self.reader = Document(reader, work)
        self.writer = Document(writer, work)
        self._sizes: dict[int, int] = {}
        """Of parts, by their ids, as below: all of them live as long as this."""
        self._targets: dict[int, list[str]] = {}
        self._listed: dict[int, Values] = {}
        self._names_units: dict[int, int] = {}
        self._pattern_sizes: dict[str, int] = {}
        self._leading: dict[str, list[str] | None] = {}
        """What is referred to by that which references lead to; nothing where that differs."""
        self._alike: set[str] = set()
        """References that lead to the same in both, and so do all that are inside."""

    # -------------------------------------------------------------------------- sameness

    def is_same(self, ours: JsonValue, theirs: JsonValue) -> bool:
        """Say whether two parts are the same text, and all that they refer to as well."""
        if not self.is_equal(ours, theirs):
            return False
        targets = self._targets_in(ours)
        return not targets or self._lead_alike(targets)

    def is_equal(self, ours: JsonValue, theirs: JsonValue) -> bool:
        """Say whether two parts are the same text."""
        if isinstance(ours, (dict, list, str)) and isinstance(theirs, (dict, list, str)):
            if type(ours) is not type(theirs) or len(ours) != len(theirs):
                return False
            self._look_at(ours)
            self._look_at(theirs)
        return ours == theirs

    def _look_at(self, part: JsonValue) -> None:
        """Charge for a look at all that is in a part."""
        size = self._sizes.get(id(part))
        if size is None:
            size = self._sizes[id(part)] = len(json.dumps(part))
        self.work.charge(size >> _LOOKED_SHIFT)

    def _targets_in(self, part: JsonValue) -> list[str]:
        if not isinstance(part, (dict, list)):
            return []
        found = self._targets.get(id(part))
        if found is None:
            found = self._targets[id(part)] = _targets(part)
        return found

    def _lead_alike(self, targets: list[str]) -> bool:
        seen: set[str] = set()
        work = [*targets]
        while work:
            self.work.charge(1)
            target = work.pop()
            if target in self._alike or target in seen:
                continue
            if target not in self._leading:
                ours, theirs = self.reader.part(target), self.writer.part(target)
                is_equal = self.is_equal(ours, theirs)
                self._leading[target] = self._targets_in(ours) if is_equal else None
            inside = self._leading[target]
            if inside is None:
                return False
            seen.add(target)
            work += inside
        self._alike |= seen
        return True

    # ---------------------------------------------------------------------------- values

    def types(self, schema: Schema, values: Values | None) -> frozenset[str]:
        """Return the types that the values of a schema may have; `values` are those it lists."""
        kinds = schema.get("type")
        if isinstance(kinds, str):
            return ANY if kinds == "any" else _ONE.get(kinds) or frozenset((kinds,))
        if isinstance(kinds, list):
            return frozenset(each for each in kinds if isinstance(each, str))
        if values is not None:
            return values.types
        return _NO_TYPE if schema.get("not") == {} else ANY

    def values(self, schema: Schema) -> Values | None:
        """Return the values that a schema lists, nothing if it lists none."""
        listed = schema.get("enum")
        found = self._values_of(listed) if isinstance(listed, list) else None
        if "const" not in schema:
            return found
        only = schema["const"]
        if isinstance(only, (dict, list, str)):
            self._look_at(only)
        is_possible = found is None or _key(only) in found.different
        return _values([only] if is_possible else [])

    def _values_of(self, listed: list[JsonValue]) -> Values:
        found = self._listed.get(id(listed))
        if found is None:
            self._look_at(listed)
            inside = sum(isinstance(each, (dict, list)) for each in listed)
            self.work.charge(len(listed) + inside)
            size = self._sizes[id(listed)]
            found = self._listed[id(listed)] = _values(listed, size)
        self.work.charge(found.units)
        return found

    def shown_outside(self, ours: Values, theirs: Values) -> str | None:
        """Return the first of their values that is none of ours, as it is told, if there is one."""
        if theirs.different <= ours.different:
            return None
        at = next(at for at, key in enumerate(theirs.keys) if key not in ours.different)
        if isinstance(theirs.listed[at], (dict, list, str)):
            self._look_at(theirs.listed[at])
        return shown(theirs.listed[at])

    # ----------------------------------------------------------------------------- names

    def look_at_names(self, names: JsonValue) -> None:
        """Charge for a look at each name of an object, or of a list."""
        if not isinstance(names, (dict, list)):
            return
        units = self._names_units.get(id(names))
        if units is None:
            size = sum(len(each) for each in names if isinstance(each, str))
            units = self._names_units[id(names)] = 2 * len(names) + (size >> _TEXT_SHIFT)
        self.work.charge(units)

    def matched(self, patterns: Schema, names: Collection[str]) -> dict[str, list[str]]:
        """Return the patterns that each name matches."""
        found: dict[str, list[str]] = {}
        if not patterns or not names:
            return found
        texts = list(names)
        length = sum(map(len, texts))
        for pattern in patterns:
            size = self._pattern_sizes.get(pattern)
            if size is None:
                size = self._pattern_sizes[pattern] = pattern_size(pattern)
            self.work.charge(match_units(size, length) + len(texts))
            for name in matching(pattern, texts):
                found.setdefault(name, []).append(pattern)
        return found

    def named_inside(self, writer: Schema, names: set[str]) -> set[str]:
        """Return those of some names that parts of the writer, about the same value, describe."""
        found: set[str] = set()
        work = self._in_place(writer) if names else []
        seen: set[int] = set()
        while work:
            part = work.pop()
            if id(part) in seen:
                continue
            seen.add(id(part))
            for schema in self.writer.followed(part) or ():
                fields = fields_of(schema)
                self.look_at_names(fields)
                found |= names & set(fields)
                found |= set(self.matched(named(schema, "patternProperties"), names))
                if isinstance(schema.get("additionalProperties"), dict):
                    return names
                work += self._in_place(schema)
        return found

    def _in_place(self, schema: Schema) -> list[JsonValue]:
        found = _parts_in_place(schema)
        self.work.charge(_PART_UNITS * len(found))
        return found


def named(schema: Schema, key: str) -> Schema:
    """Return the parts that a keyword gives names to."""
    found = schema.get(key)
    return found if isinstance(found, dict) else {}


def fields_of(schema: Schema) -> Schema:
    """Return the properties of a schema, by name."""
    return named(schema, "properties")


def _can_join(one: Schema, other: Schema) -> bool:
    if set(one) & set(other) - _BESIDE:
        return False
    return not any(
        (key in one and not beside.isdisjoint(other))
        or (key in other and not beside.isdisjoint(one))
        for key, beside in _NEIGHBOURS.items()
    )


def _parts_in_place(schema: Schema) -> list[JsonValue]:
    """Return the schemas inside of one that are about the same value, other than `not`."""
    found: list[JsonValue] = []
    for key in _IN_PLACE:
        part = schema.get(key)
        if isinstance(part, list):
            found += part
        elif isinstance(part, dict) and key.startswith("depend"):
            found += [each for each in part.values() if isinstance(each, (dict, bool))]
        elif part is not None:
            found.append(part)
    return found


def _targets(value: JsonValue) -> list[str]:
    """Return what the references in a part of a schema name."""
    found: list[str] = []
    work = [value]
    while work:
        each = work.pop()
        if isinstance(each, list):
            work.extend(each)
        elif isinstance(each, dict):
            target = each.get("$ref")
            found += [target] if isinstance(target, str) else []
            work.extend(each.values())
    return found


def _values(listed: list[JsonValue], size: int = 0) -> Values:
    keys = tuple(map(_key, listed))
    return Values(
        listed,
        keys,
        frozenset(keys),
        frozenset(map(_type_of, listed)),
        (len(listed) >> _VALUES_SHIFT) + (size >> _TEXT_SHIFT),
    )


def _key(value: JsonValue) -> object:
    """Return what two equal values have in common; true is not 1, and 1 is 1.0."""
    if isinstance(value, (dict, list)):
        return "json", _ENCODER.encode(value)
    return leaf_key(value)


def _type_of(value: JsonValue) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "integer" if value.is_integer() else "number"
    return _TYPE_NAMES[type(value)]


_TYPE_NAMES: Final = {str: "string", list: "array", dict: "object"}
