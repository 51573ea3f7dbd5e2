"""Whether one JSON Schema accepts what another one describes: rule by rule, never by guessing.

The reader accepts all values of the writer when it asks for nothing that the writer does not
promise. What this module cannot compare (`allOf`, `not`, `if`, `patternProperties`, ...) must not
change. One rule is stricter than that: a field that the writer requires must be known to the
reader, for a field somebody promised always to send is not dropped by an oversight.
"""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING, Final

from frazil.ingest.registry.json_bounds import bounds_problems, shown
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
        self.steps: list[int] = inside.steps if inside else [0, 0]
        """Pairs of choices, and bytes: one count for all comparisons inside of one."""
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
        reader = _followed(reader_value, self._reader)
        writer = _followed(writer_value, self._writer)
        if reader is None or writer is None:
            self.reasons.add(path, "a reference leads nowhere, in a circle, or has more beside it")
            return
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
                merged = [_merged(rest, branch) for branch in theirs]
                if not all(each is not None and self._accepts(reader, each) for each in merged):
                    self.reasons.add(path, f"the reader does not accept all of '{key}'")
                return False
            elif isinstance(ours, list):
                rest = {name: value for name, value in reader.items() if name != key}
                merged = [_merged(rest, branch) for branch in ours]
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
            schema = _followed(choice, self._reader)
            kinds = {"number" if kind == "integer" else kind for kind in _types(schema or {})}
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
            if key not in reader or self._is_same(ours, theirs):
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

    def _compare_fields(self, reader: _Schema, writer: _Schema, path: str) -> None:
        ours, theirs = _fields(reader), _fields(writer)
        needed, promised = _required(reader), _required(writer)
        for name in sorted(needed - promised):
            state = "optional in" if name in theirs else "unknown to"
            self.reasons.add(f"{path}.{name}", f"required by the reader, {state} the writer")
        rest = reader.get("additionalProperties", True)
        patterns = writer.get("patternProperties")
        if patterns and rest is not True and "patternProperties" not in reader:
            self.reasons.add(path, "'patternProperties' are gone and other properties are bound")
        for name, field in theirs.items():
            place = f"{path}.{name}"
            if name in ours:
                self._later(ours[name], field, place)
            elif name in promised and reader:
                self.reasons.add(place, "required by the writer, unknown to the reader")
            elif rest is False:
                self.reasons.add(place, "the reader takes no additional property")
            elif isinstance(rest, dict):
                self._later(rest, field, place)
        open_end = writer.get("additionalProperties", True)
        if open_end is not False:
            if rest is False:
                self.reasons.add(path, "the reader takes no additional property, the writer does")
            elif isinstance(rest, dict):
                self._later(rest, open_end, f"{path}{{*}}")
            for name in sorted(set(ours) - set(theirs)):
                if isinstance(open_end, dict):
                    self._later(ours[name], open_end, f"{path}.{name}")

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


def _followed(value: JsonValue, references: References) -> _Schema | None:
    """Return the schema that a value is or refers to; true and false as objects."""
    beside: _Schema = {}
    for _ in range(_REFERENCES_MAX):
        if isinstance(value, bool):
            value = {} if value else {"not": {}}
        if not isinstance(value, dict) or set(beside) & set(value) - _BESIDE:
            return None
        target = value.get("$ref")
        if not isinstance(target, str):
            return {**value, **beside} if beside else value
        beside |= {name: each for name, each in value.items() if name not in _BESIDE}
        try:
            value = references.resolve(target)
        except Missing:
            return None
    return None


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


def _merged(rest: _Schema, branch: JsonValue) -> JsonValue:
    """Return a choice together with what stands beside it; nothing if both say something."""
    if not isinstance(branch, dict):
        return branch if not rest or branch is False else None
    if set(rest) & set(branch) - {"title", "description", "$comment"}:
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


def _fields(schema: _Schema) -> _Schema:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def _required(schema: _Schema) -> set[str]:
    found = schema.get("required")
    names = {each for each in found if isinstance(each, str)} if isinstance(found, list) else set()
    # Draft 3 says it beside the field.
    fields = _fields(schema).items()
    return names | {
        name for name, field in fields if isinstance(field, dict) and field.get("required") is True
    }
