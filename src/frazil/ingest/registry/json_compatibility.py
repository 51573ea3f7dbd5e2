"""Whether one JSON Schema accepts what another one describes: rule by rule, never by guessing.

The reader accepts all values of the writer when it asks for nothing that the writer does not
promise. What this module cannot compare (`allOf`, `not`, `if`, `patternProperties`, ...) must not
change. A property that only the reader names is compared with what the writer's patterns, or its
rule for other names, say of it. One rule is stricter than that: a field that the writer requires must be known to the
reader, for a field somebody promised always to send is not dropped by an oversight.
"""

from __future__ import annotations

import json
import re
from collections import deque
from typing import TYPE_CHECKING, Final

from frazil.ingest.registry import limits
from frazil.ingest.registry.json_bounds import bounds_problems, shown
from frazil.ingest.registry.json_patterns import match_units, matching, pattern_size
from frazil.ingest.registry.json_references import Missing, References
from frazil.ingest.registry.reasons import Reasons

if TYPE_CHECKING:
    from frazil.ingest.registry.json_text import JsonValue

__all__ = ["json_reasons"]

_TYPES: Final = ("null", "boolean", "object", "array", "number", "string")
_UNCOMPARED: Final = (
    *("allOf", "not", "if", "then", "else", "patternProperties", "propertyNames", "contains"),
    *("dependencies", "dependentRequired", "dependentSchemas", "unevaluatedProperties"),
    *("unevaluatedItems", "prefixItems", "additionalItems", "$dynamicRef", "$recursiveRef"),
    *("extends", "disallow", "divisibleBy", "minContains", "maxContains"),
)
_PARTWISE: Final = frozenset(("allOf", "patternProperties", "prefixItems"))
"""Of them those whose parts are compared one by one when there are as many."""
_CHOICES: Final = ("anyOf", "oneOf")
_PAIRS_MAX: Final = 200_000
_CHOICE_PAIRS_MAX: Final = 10_000
"""Of the parts of choices: each is compared with each, and choices may be in choices."""
_CHOICES_NESTED_MAX: Final = 24
_WEIGHED: Final = ("enum", "const", *_CHOICES, *_UNCOMPARED)
"""What is looked at as a whole, each time a schema that has it is compared."""
_WEIGHT_MAX: Final = 8 << 20
"""Of all that was looked at as a whole, in bytes of JSON."""
_TOO_MUCH: Final = "there are too many parts, or choices in choices, to compare"
_BESIDE: Final = frozenset(
    (
        *("$ref", "$schema", "$id", "id", "$defs", "definitions", "$comment"),
        *("title", "description", "default", "examples"),
    )
)
_REFERENCES_MAX: Final = 64
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
_NAME_BYTES: Final = 32
"""That a name of such a part counts, among all that is looked at as a whole."""
_EVALUATING: Final = (
    *_IN_PLACE,
    *("not", "patternProperties", "additionalProperties", "items", "prefixItems", "contains"),
)
"""Keywords that decide, beside `properties`, what is left for `unevaluated…`."""
_UNEVALUATED: Final = ("unevaluatedProperties", "unevaluatedItems")
_OLDER: Final = re.compile(r"json-schema\.org/draft-0[467]/")

_Schema = dict[str, "JsonValue"]


def json_reasons(*, reader: JsonValue, writer: JsonValue) -> tuple[str, ...]:
    """Return why `reader` does not accept everything `writer` describes, nothing if it does."""
    comparison = _Comparison(References(reader), References(writer))
    comparison.run(reader, writer, reasons_max=_PAIRS_MAX)
    return comparison.reasons.lines()


class _Comparison:
    """One comparison of two definitions, or of a choice inside them (`inside`)."""

    def __init__(
        self, reader: References, writer: References, inside: _Comparison | None = None
    ) -> None:
        self.reasons = Reasons()
        self.steps: list[int] = inside.steps if inside else [0, 0, 0]
        """Pairs of choices, bytes, work of patterns: one count for all comparisons inside of one."""
        self.parts: dict[int, tuple[JsonValue, list[_Schema] | None]] = (
            inside.parts if inside else {}
        )
        """By the ids of schemas, which are kept with them: what holds for their values."""
        self.weights: dict[int, int] = inside.weights if inside else {}
        """Of parts of both definitions, by their ids."""
        self.seen: list[set[tuple[int, int]]] = [*(inside.seen if inside else ()), set()]
        self._reader = reader
        self._writer = writer
        self._work: deque[tuple[JsonValue, JsonValue, str]] = deque()

    def run(self, reader: JsonValue, writer: JsonValue, *, reasons_max: int) -> None:
        self._later(reader, writer, "$")
        while self._work and self.reasons.count < reasons_max:
            if self._is_endless():
                self.reasons.add("$", _TOO_MUCH)
                return
            self._compare(*self._work.popleft())
        if self.steps[1] > _WEIGHT_MAX:
            # A comparison inside of this one was given up, and counts as a choice that does not fit.
            self.reasons.add("$", _TOO_MUCH)

    def _is_endless(self) -> bool:
        if self.steps[1] > _WEIGHT_MAX:
            return True
        if len(self.seen) == 1:
            return len(self.seen[0]) > _PAIRS_MAX
        self.steps[0] += 1
        return self.steps[0] > _CHOICE_PAIRS_MAX or len(self.seen) > _CHOICES_NESTED_MAX

    def _later(self, reader: JsonValue, writer: JsonValue, path: str) -> None:
        # A pair that is being compared further out counts as compatible: if it is not, that is
        # told there, and a circle ends.
        key = (id(reader), id(writer))
        if not any(key in seen for seen in self.seen):
            self.seen[-1].add(key)
            self._work.append((reader, writer, path))

    def _accepts(self, reader: JsonValue, writer: JsonValue) -> bool:
        """Compare two parts for themselves, in the same documents."""
        inner = _Comparison(self._reader, self._writer, self)
        inner.run(reader, writer, reasons_max=1)
        return not inner.reasons.count

    def _compare(self, reader_value: JsonValue, writer_value: JsonValue, path: str) -> None:
        ours = self._followed(reader_value, self._reader)
        theirs = self._followed(writer_value, self._writer)
        if ours is None or theirs is None:
            self.reasons.add(path, "a reference leads nowhere, or in a circle")
            return
        if len(ours) > 1 or len(theirs) > 1:
            if not self._is_same([*ours], [*theirs]):
                self.reasons.add(path, "a reference changed, or what stands beside it")
            return
        reader, writer = ours[0], theirs[0]
        self.steps[1] += self._weight(reader) + self._weight(writer)
        if self.steps[1] > _WEIGHT_MAX:
            # Told by `run`, before it takes the next pair.
            self._work.append((reader_value, writer_value, path))
        elif writer.get("not") != {} and self._compare_choices(reader, writer, path):
            self._compare_types(reader, writer, path)
            self._compare_values(reader, writer, path)
            self._compare_uncompared(reader, writer, path)
            if "object" in _types(writer):
                self._compare_fields(reader, writer, path)
            if "array" in _types(writer):
                self._compare_items(reader, writer, path)

    def _followed(self, value: JsonValue, references: References) -> list[_Schema] | None:
        key = id(value)
        if key not in self.parts:
            self.parts[key] = (value, _followed(value, references))
        return self.parts[key][1]

    def _weight(self, schema: _Schema) -> int:
        total = 0
        for key in _WEIGHED:
            part = schema.get(key)
            if isinstance(part, (dict, list, str)):
                if id(part) not in self.weights:
                    self.weights[id(part)] = len(json.dumps(part))
                total += self.weights[id(part)]
        return total

    def _compare_choices(self, reader: _Schema, writer: _Schema, path: str) -> bool:
        """Compare `anyOf` and `oneOf`; say whether the rest is still to be compared."""
        for key in _CHOICES:
            ours, theirs = reader.get(key), writer.get(key)
            if self._is_same(ours, theirs):
                continue
            if isinstance(ours, list) and isinstance(theirs, list):
                self._compare_branches(key, ours, theirs, path)
            elif isinstance(theirs, list):
                # The rest of the writer holds for each of its choices.
                rest = {name: value for name, value in writer.items() if name != key}
                merged = [_merged(rest, branch, self._writer) for branch in theirs]
                if not all(each is not None and self._accepts(reader, each) for each in merged):
                    self.reasons.add(path, f"the reader does not accept all of '{key}'")
                return False
            elif isinstance(ours, list):
                rest = {name: value for name, value in reader.items() if name != key}
                merged = [_merged(rest, branch, self._reader) for branch in ours]
                if not any(each is not None and self._accepts(each, writer) for each in merged):
                    self.reasons.add(path, f"no choice of the reader's new '{key}' accepts it")
                self._check_apart(key, ours, path)
                return False
        return True

    def _compare_branches(
        self, key: str, ours: list[JsonValue], theirs: list[JsonValue], path: str
    ) -> None:
        for index, branch in enumerate(theirs):
            if not any(self._accepts(each, branch) for each in ours):
                self.reasons.add(path, f"no choice of the reader's '{key}' accepts choice {index}")
        self._check_apart(key, ours, path)

    def _check_apart(self, key: str, choices: list[JsonValue], path: str) -> None:
        if key == "oneOf" and not self._are_apart(choices):
            self.reasons.add(path, "a value may be more than one of the changed 'oneOf'")

    def _is_same(self, ours: JsonValue, theirs: JsonValue) -> bool:
        """Say whether two parts are the same text, and all that they refer to as well."""
        if ours != theirs:
            return False
        seen: set[str] = set()
        work = _targets(ours)
        while work:
            target = work.pop()
            if target not in seen:
                seen.add(target)
                part = _part(self._reader, target)
                if part != _part(self._writer, target):
                    return False
                work += _targets(part)
        return True

    def _are_apart(self, choices: list[JsonValue]) -> bool:
        """Say whether no value can be two of the choices, for their types alone."""
        taken: set[str] = set()
        for choice in choices:
            kinds = set(_ANY)
            for schema in self._followed(choice, self._reader) or ():
                kinds &= {"number" if kind == "integer" else kind for kind in _types(schema)}
            if kinds & taken:
                return False
            taken |= kinds
        return True

    def _compare_types(self, reader: _Schema, writer: _Schema, path: str) -> None:
        ours, theirs = _types(reader), _types(writer)
        lost = sorted(kind for kind in theirs if kind not in ours)
        if "integer" in lost and "number" in ours:
            lost.remove("integer")
        if lost:
            was, now = _type_text(writer), _type_text(reader)
            self.reasons.add(
                path, f"type changed: the writer's {was} is not the reader's {now}: {lost[0]}"
            )

    def _compare_values(self, reader: _Schema, writer: _Schema, path: str) -> None:
        ours, theirs = _values(reader), _values(writer)
        if ours is not None:
            if theirs is None:
                self.reasons.add(path, "the reader takes listed values only, the writer does not")
            else:
                listed = {_key(value) for value in ours}
                lost = [value for value in theirs if _key(value) not in listed]
                if lost:
                    self.reasons.add(path, f"the reader does not list the value {shown(lost[0])}")
        for problem in bounds_problems(reader, writer):
            self.reasons.add(path, problem)

    def _compare_uncompared(self, reader: _Schema, writer: _Schema, path: str) -> None:
        for key in _UNCOMPARED:
            ours, theirs = reader.get(key), writer.get(key)
            # Without a number at least one item must be found.
            is_tighter = key == "minContains" and theirs == 0 and "contains" in reader
            if (key not in reader and not is_tighter) or self._is_same(ours, theirs):
                continue
            if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
                pairs = zip(ours, theirs, strict=True)
            elif isinstance(ours, dict) and isinstance(theirs, dict) and set(ours) == set(theirs):
                pairs = zip(ours.values(), (theirs[name] for name in ours), strict=True)
            else:
                pairs = None
            if pairs is None or key not in _PARTWISE:
                self.reasons.add(path, f"'{key}' changed, which cannot be shown to be compatible")
            else:
                for one, other in pairs:
                    self._later(one, other, f"{path}.{key}")
        for key in _UNEVALUATED:
            if key in reader and not self._evaluates_as_much(reader, writer):
                self.reasons.add(path, f"what '{key}' leaves over changed")

    def _evaluates_as_much(self, reader: _Schema, writer: _Schema) -> bool:
        if not set(_fields(writer)) <= set(_fields(reader)):
            return False
        return all(self._is_same(reader.get(key), writer.get(key)) for key in _EVALUATING)

    def _compare_fields(self, reader: _Schema, writer: _Schema, path: str) -> None:
        ours, theirs = _fields(reader), _fields(writer)
        needed, promised = _required(reader), _required(writer)
        for name in sorted(needed - promised):
            state = "optional in" if name in theirs else "unknown to"
            self.reasons.add(f"{path}.{name}", f"required by the reader, {state} the writer")
        rest = reader.get("additionalProperties", True)
        open_end = writer.get("additionalProperties", True)
        patterns = _named(writer, "patternProperties")
        if patterns and rest is not True and "patternProperties" not in reader:
            self.reasons.add(path, "'patternProperties' are gone and other properties are bound")
        matched = self._matched(patterns, {**theirs, **ours})
        inside = self._named_inside(writer, set(ours) - set(theirs))
        if matched is None or inside is None:
            self.reasons.add(path, _TOO_MUCH)
            return
        for name in ours:
            # All that the writer says of the name holds, so it is enough to accept one of it.
            said = [theirs[name]] if name in theirs else []
            said += [patterns[pattern] for pattern in matched.get(name, ())]
            if not said and isinstance(open_end, dict):
                said = [open_end]
            if not said and name in inside and open_end is True and ours[name] not in (True, {}):
                text = "new to the reader, a choice or part of the writer says what it is"
                self.reasons.add(f"{path}.{name}", text)
            self._later_one(ours[name], said, f"{path}.{name}")
        for name, field in theirs.items():
            place = f"{path}.{name}"
            if name in ours or (name in matched and "patternProperties" in reader):
                # The reader has the writer's patterns, or that they changed is told elsewhere.
                continue
            if name in promised and reader:
                self.reasons.add(place, "required by the writer, unknown to the reader")
            elif rest is False:
                self.reasons.add(place, "the reader takes no additional property")
            elif isinstance(rest, dict):
                self._later(rest, field, place)
        if open_end is not False:
            if rest is False:
                self.reasons.add(path, "the reader takes no additional property, the writer does")
            elif isinstance(rest, dict):
                self._later(rest, open_end, f"{path}{{*}}")

    def _later_one(self, reader: JsonValue, writers: list[JsonValue], path: str) -> None:
        """Compare a part with those that all hold for the same value: one must be accepted."""
        if len(writers) > 1 and any(self._accepts(reader, each) for each in writers):
            return
        if writers:
            self._later(reader, writers[0], path)

    def _named_inside(self, writer: _Schema, names: set[str]) -> set[str] | None:
        """Return those of some names that parts of the writer, about the same value, describe."""
        found: set[str] = set()
        work = _parts_in_place(writer) if names else []
        seen: set[int] = set()
        while work:
            part = work.pop()
            if id(part) in seen:
                continue
            seen.add(id(part))
            for schema in self._followed(part, self._writer) or ():
                self.steps[1] += self._weight(schema) + _NAME_BYTES * len(_fields(schema))
                matched = self._matched(_named(schema, "patternProperties"), dict.fromkeys(names))
                if matched is None or self.steps[1] > _WEIGHT_MAX:
                    return None
                found |= (names & set(_fields(schema))) | set(matched)
                if isinstance(schema.get("additionalProperties"), dict):
                    return names
                work += _parts_in_place(schema)
        return found

    def _matched(self, patterns: _Schema, names: _Schema) -> dict[str, list[str]] | None:
        """Return the patterns that each name matches; nothing at all if that is too much work."""
        found: dict[str, list[str]] = {}
        texts = list(names)
        length = sum(map(len, texts))
        for pattern in patterns if texts else ():
            self.steps[2] += match_units(pattern_size(pattern), length)
            if self.steps[2] > limits.PATTERN_UNITS_MAX:
                return None
            for name in matching(pattern, texts):
                found.setdefault(name, []).append(pattern)
        return found

    def _compare_items(self, reader: _Schema, writer: _Schema, path: str) -> None:
        ours, theirs = reader.get("items", True), writer.get("items", True)
        if isinstance(ours, list) or isinstance(theirs, list):
            if ours != theirs:
                self.reasons.add(path, "a list of 'items' changed")
        elif ours is not True:
            self._later(ours, theirs, f"{path}[*]")
            first = writer.get("prefixItems")
            if isinstance(first, list) and "prefixItems" not in reader:
                for each in first:
                    self._later(ours, each, f"{path}[*]")


def _followed(value: JsonValue, references: References) -> list[_Schema] | None:
    """Return the schemas, mostly one, that a value is or refers to; true and false as objects."""
    found: list[_Schema] = []
    is_alone = _ignores_the_rest(references.root)
    for _ in range(_REFERENCES_MAX):
        if isinstance(value, bool):
            value = {} if value else {"not": {}}
        if not isinstance(value, dict):
            return None
        target = value.get("$ref")
        if not isinstance(target, str):
            return _joined([*found, value])
        beside = {name: each for name, each in value.items() if name not in _BESIDE}
        if beside and not is_alone:
            found.append(beside)
        try:
            value = references.resolve(target)
        except Missing:
            return None
    return None


def _ignores_the_rest(root: JsonValue) -> bool:
    """Say whether what stands beside a reference does not count: before 2019."""
    named = root.get("$schema") if isinstance(root, dict) else None
    return isinstance(named, str) and _OLDER.search(named) is not None


def _joined(schemas: list[_Schema]) -> list[_Schema]:
    """Return schemas that all hold as one, if that means the same; else as they are."""
    one = schemas[-1]
    for each in schemas[:-1]:
        if not _can_join(one, each):
            return schemas
        one = {**one, **each}
    return [one]


def _can_join(one: _Schema, other: _Schema) -> bool:
    if set(one) & set(other) - _BESIDE:
        return False
    return not any(
        (key in one and not beside.isdisjoint(other))
        or (key in other and not beside.isdisjoint(one))
        for key, beside in _NEIGHBOURS.items()
    )


def _parts_in_place(schema: _Schema) -> list[JsonValue]:
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


def _part(references: References, target: str) -> JsonValue:
    try:
        return references.resolve(target)
    except Missing:
        return None


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


def _merged(rest: _Schema, branch: JsonValue, references: References) -> JsonValue:
    """Return a choice together with what stands beside it; nothing if both say something."""
    if not isinstance(branch, dict):
        return branch if not rest or branch is False else None
    if not _can_join(rest, branch):
        return None
    if "$ref" in branch and set(rest) - _BESIDE and _ignores_the_rest(references.root):
        return None
    return {**rest, **branch} if rest else branch


def _types(schema: _Schema) -> frozenset[str]:
    named = schema.get("type")
    if isinstance(named, str):
        return _ANY if named == "any" else frozenset((named,))
    if isinstance(named, list):
        return frozenset(each for each in named if isinstance(each, str))
    values = _values(schema)
    if values is not None:
        return frozenset(_type_of(value) for value in values)
    return frozenset() if schema.get("not") == {} else _ANY


_ANY: Final = frozenset(_TYPES)


def _type_of(value: JsonValue) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer"
    if isinstance(value, float):
        return "number"
    names = {str: "string", list: "array", dict: "object"}
    return names[type(value)]


def _type_text(schema: _Schema) -> str:
    named = schema.get("type")
    if isinstance(named, str):
        return named
    return " or ".join(sorted(_types(schema))) or "nothing"


def _values(schema: _Schema) -> list[JsonValue] | None:
    listed = schema.get("enum")
    values = listed if isinstance(listed, list) else None
    if "const" not in schema:
        return values
    only = schema["const"]
    keys = [_key(only)] if values is None else [_key(value) for value in values]
    return [only] if _key(only) in keys else []


def _key(value: JsonValue) -> tuple[str, object]:
    """Return what two equal values have in common; true is not 1, and 1 is 1.0."""
    if isinstance(value, bool):
        return "boolean", value
    if isinstance(value, (int, float)):
        return "number", value
    return "text", json.dumps(value, sort_keys=True)


def _named(schema: _Schema, key: str) -> _Schema:
    found = schema.get(key)
    return found if isinstance(found, dict) else {}


def _fields(schema: _Schema) -> _Schema:
    return _named(schema, "properties")


def _required(schema: _Schema) -> set[str]:
    found = schema.get("required")
    names = {each for each in found if isinstance(each, str)} if isinstance(found, list) else set()
    # Draft 3 says it beside the field.
    fields = _fields(schema).items()
    return names | {
        name for name, field in fields if isinstance(field, dict) and field.get("required") is True
    }
