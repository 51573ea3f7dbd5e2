"""Whether one JSON Schema accepts what another one describes: rule by rule, never by guessing.

The reader accepts all values of the writer when it asks for nothing that the writer does not
promise. What this module cannot compare (`allOf`, `not`, `if`, `patternProperties`, ...) must not
change. A property that only the reader names is compared with what the writer's patterns, or its
rule for other names, say of it. One rule is stricter than that: a field that the writer requires
must be known to the reader, for a field somebody promised always to send is not dropped by an
oversight.

All of it is counted as work of one comparison. When that is too much, every loop ends at once.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from frazil.registry.json_bounds import BOUNDS, bounds_problems, bounds_units
from frazil.registry.json_parts import ANY, Parts, fields_of, named
from frazil.registry.kinds import below
from frazil.registry.reasons import TOO_MUCH, Reasons
from frazil.registry.work import TooMuchWork, Work

if TYPE_CHECKING:
    from frazil.registry.json_parts import Schema, Values
    from frazil.registry.json_text import JsonValue

__all__ = ["json_reasons"]

_UNCOMPARED: Final = (
    *("allOf", "not", "if", "then", "else", "patternProperties", "propertyNames", "contains"),
    *("dependencies", "dependentRequired", "dependentSchemas", "unevaluatedProperties"),
    *("unevaluatedItems", "prefixItems", "additionalItems", "$dynamicRef", "$recursiveRef"),
    *("extends", "disallow", "divisibleBy", "minContains", "maxContains"),
)
_UNCOMPARED_NAMES: Final = frozenset(_UNCOMPARED)
_PARTWISE: Final = frozenset(("allOf", "patternProperties", "prefixItems"))
"""Of them those whose parts are compared one by one when there are as many."""
_CHOICES: Final = ("anyOf", "oneOf")
_CHOICES_NESTED_MAX: Final = 24
_OF_OBJECTS: Final = frozenset(
    ("properties", "required", "additionalProperties", "patternProperties")
)
_EVALUATING: Final = (
    *("allOf", "anyOf", "oneOf", "if", "then", "else", "dependencies", "dependentSchemas"),
    *("not", "patternProperties", "additionalProperties", "items", "prefixItems", "contains"),
)
"""Keywords that decide, beside `properties`, what is left for `unevaluated…`."""
_UNEVALUATED: Final = ("unevaluatedProperties", "unevaluatedItems")
_PAIR_UNITS: Final = 8
"""Two parts, compared."""
_KEYWORDS_SHIFT: Final = 3
"""8 keywords of them are looked at in one unit of work."""
_CHOICE_UNITS: Final = 8
"""A comparison inside of another one, of a choice."""
_APART_UNITS: Final = 4
"""A choice whose types are compared with those of the others."""


def json_reasons(
    *, reader: JsonValue, writer: JsonValue, work: Work | None = None
) -> tuple[str, ...]:
    """Return why `reader` does not accept everything `writer` describes, nothing if it does.

    Raises:
        Unavailable: if `work` says that all is to stop.
    """
    comparison = _Comparison(Parts(reader, writer, work or Work.of_comparison()))
    try:
        comparison.run(reader, writer)
    except TooMuchWork:
        comparison.reasons.give_up()
    return comparison.reasons.lines()


class _Comparison:
    """One comparison of two definitions, or of a choice inside them (`inside`)."""

    def __init__(self, parts: Parts, inside: _Comparison | None = None) -> None:
        self.reasons = Reasons()
        self._parts = parts
        self._charge = parts.work.charge
        self._is_inside = inside is not None
        self.seen: list[set[tuple[int, int]]] = [*(inside.seen if inside else ()), set()]
        """Pairs that are compared, by their ids: of the comparisons around this one, and of it."""
        self._work: deque[tuple[JsonValue, JsonValue, str]] = deque()

    def run(self, reader: JsonValue, writer: JsonValue) -> None:
        """Compare two parts and all that is in them; of a choice the first reason is enough."""
        self._later(reader, writer, "$")
        while self._work and not (self._is_inside and self.reasons.count):
            if len(self.seen) > _CHOICES_NESTED_MAX:
                self.reasons.add("$", TOO_MUCH)
                return
            self._compare(*self._work.popleft())

    def _later(self, reader: JsonValue, writer: JsonValue, path: str) -> None:
        # A pair that is being compared further out counts as compatible: if it is not, that is
        # told there, and a circle ends.
        key = (id(reader), id(writer))
        for seen in self.seen:
            if key in seen:
                return
        self.seen[-1].add(key)
        self._work.append((reader, writer, path))

    def _accepts(self, reader: JsonValue, writer: JsonValue) -> bool:
        """Compare two parts for themselves, in the same documents."""
        self._charge(_CHOICE_UNITS)
        inner = _Comparison(self._parts, self)
        inner.run(reader, writer)
        return not inner.reasons.count

    def _compare(self, reader_value: JsonValue, writer_value: JsonValue, path: str) -> None:
        self._charge(_PAIR_UNITS)
        parts = self._parts
        ours, theirs = parts.reader.followed(reader_value), parts.writer.followed(writer_value)
        if ours is None or theirs is None:
            self.reasons.add(path, "a reference leads nowhere, or in a circle")
            return
        if len(ours) > 1 or len(theirs) > 1:
            if len(ours) != len(theirs) or not all(map(parts.is_same, ours, theirs)):
                self.reasons.add(path, "a reference changed, or what stands beside it")
            return
        reader, writer = ours[0], theirs[0]
        self._charge((len(reader) + len(writer)) >> _KEYWORDS_SHIFT)
        if writer.get("not") == {} or not self._compare_choices(reader, writer, path):
            return
        ours_listed, theirs_listed = parts.values(reader), parts.values(writer)
        types = parts.types(writer, theirs_listed)
        self._compare_types(parts.types(reader, ours_listed), types, (reader, writer), path)
        self._compare_values(ours_listed, theirs_listed, path)
        if not BOUNDS.isdisjoint(reader):
            self._charge(bounds_units(reader) + bounds_units(writer))
            for problem in bounds_problems(reader, writer):
                self.reasons.add(path, problem)
        if not _UNCOMPARED_NAMES.isdisjoint(reader):
            self._compare_uncompared(reader, writer, path)
        has_fields = not (_OF_OBJECTS.isdisjoint(reader) and _OF_OBJECTS.isdisjoint(writer))
        if has_fields and "object" in types:
            self._compare_fields(reader, writer, path)
        if "array" in types and ("items" in reader or "items" in writer):
            self._compare_items(reader, writer, path)

    def _compare_choices(self, reader: Schema, writer: Schema, path: str) -> bool:
        """Compare `anyOf` and `oneOf`; say whether the rest is still to be compared."""
        for key in _CHOICES:
            if key not in reader and key not in writer:
                continue
            ours, theirs = reader.get(key), writer.get(key)
            if self._parts.is_same(ours, theirs):
                continue
            if isinstance(ours, list) and isinstance(theirs, list):
                self._compare_branches(key, ours, theirs, path)
            elif isinstance(theirs, list):
                # The rest of the writer holds for each of its choices.
                rest = _without(writer, key)
                merged = (self._parts.writer.merged(rest, branch) for branch in theirs)
                if not all(each is not None and self._accepts(reader, each) for each in merged):
                    self.reasons.add(path, f"the reader does not accept all of '{key}'")
                return False
            elif isinstance(ours, list):
                rest = _without(reader, key)
                merged = (self._parts.reader.merged(rest, branch) for branch in ours)
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

    def _are_apart(self, choices: list[JsonValue]) -> bool:
        """Say whether no value can be two of the choices, for their types alone."""
        taken: set[str] = set()
        for choice in choices:
            self._charge(_APART_UNITS)
            kinds = set(ANY)
            for schema in self._parts.reader.followed(choice) or ():
                types = self._parts.types(schema, self._parts.values(schema))
                kinds &= {"number" if kind == "integer" else kind for kind in types}
            if kinds & taken:
                return False
            taken |= kinds
        return True

    def _compare_types(
        self,
        ours: frozenset[str],
        theirs: frozenset[str],
        schemas: tuple[Schema, Schema],
        path: str,
    ) -> None:
        if theirs <= ours:
            return
        lost = sorted(kind for kind in theirs if kind not in ours)
        if "integer" in lost and "number" in ours:
            lost.remove("integer")
        if lost:
            now, was = _type_text(schemas[0], ours), _type_text(schemas[1], theirs)
            self.reasons.add(
                path, f"type changed: the writer's {was} is not the reader's {now}: {lost[0]}"
            )

    def _compare_values(self, ours: Values | None, theirs: Values | None, path: str) -> None:
        if ours is None:
            return
        if theirs is None:
            self.reasons.add(path, "the reader takes listed values only, the writer does not")
        else:
            lost = self._parts.shown_outside(ours, theirs)
            if lost is not None:
                self.reasons.add(path, f"the reader does not list the value {lost}")

    def _compare_uncompared(self, reader: Schema, writer: Schema, path: str) -> None:
        for key in _UNCOMPARED:
            ours, theirs = reader.get(key), writer.get(key)
            # Without a number at least one item must be found.
            is_tighter = key == "minContains" and theirs == 0 and "contains" in reader
            if (key not in reader and not is_tighter) or self._parts.is_same(ours, theirs):
                continue
            pairs = _pairs(ours, theirs) if key in _PARTWISE else None
            if pairs is None:
                self.reasons.add(path, f"'{key}' changed, which cannot be shown to be compatible")
                continue
            place = below(path, ".", key)
            self._charge(len(pairs))
            for one, other in pairs:
                self._later(one, other, place)
        for key in _UNEVALUATED:
            if key in reader and not self._evaluates_as_much(reader, writer):
                self.reasons.add(path, f"what '{key}' leaves over changed")

    def _evaluates_as_much(self, reader: Schema, writer: Schema) -> bool:
        ours, theirs = fields_of(reader), fields_of(writer)
        self._parts.look_at_names(ours)
        self._parts.look_at_names(theirs)
        if not set(theirs) <= set(ours):
            return False
        return all(self._parts.is_same(reader.get(key), writer.get(key)) for key in _EVALUATING)

    def _compare_fields(self, reader: Schema, writer: Schema, path: str) -> None:
        ours, theirs = fields_of(reader), fields_of(writer)
        needed, promised = self._required(reader), self._required(writer)
        for name in sorted(needed - promised):
            state = "optional in" if name in theirs else "unknown to"
            text = f"required by the reader, {state} the writer"
            self.reasons.add(below(path, ".", name), text)
        rest = reader.get("additionalProperties", True)
        open_end = writer.get("additionalProperties", True)
        patterns = named(writer, "patternProperties")
        if patterns and rest is not True and "patternProperties" not in reader:
            self.reasons.add(path, "'patternProperties' are gone and other properties are bound")
        matched = self._parts.matched(patterns, {**theirs, **ours}) if patterns else {}
        inside = self._parts.named_inside(writer, ours.keys() - theirs.keys())
        for name in ours:
            # All that the writer says of the name holds, so it is enough to accept one of it.
            said = [theirs[name]] if name in theirs else []
            said += [patterns[pattern] for pattern in matched.get(name, ())]
            if not said and isinstance(open_end, dict):
                said = [open_end]
            place = below(path, ".", name)
            if not said and name in inside and open_end is True and ours[name] not in (True, {}):
                text = "new to the reader, a choice or part of the writer says what it is"
                self.reasons.add(place, text)
            self._later_one(ours[name], said, place)
        for name, field in theirs.items():
            if name in ours or (name in matched and "patternProperties" in reader):
                # The reader has the writer's patterns, or that they changed is told elsewhere.
                continue
            place = below(path, ".", name)
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
                self._later(rest, open_end, below(path, "{*}"))

    def _required(self, schema: Schema) -> set[str]:
        """Return the names of fields that must be there, and charge for a look at all fields."""
        found, fields = schema.get("required"), fields_of(schema)
        self._parts.look_at_names(found)
        self._parts.look_at_names(fields)
        listed = found if isinstance(found, list) else []
        names = {each for each in listed if isinstance(each, str)}
        # Draft 3 says it beside the field.
        return names | {
            name
            for name, field in fields.items()
            if isinstance(field, dict) and field.get("required") is True
        }

    def _later_one(self, reader: JsonValue, writers: list[JsonValue], path: str) -> None:
        """Compare a part with those that all hold for the same value: one must be accepted."""
        if len(writers) > 1 and any(self._accepts(reader, each) for each in writers):
            return
        if writers:
            self._later(reader, writers[0], path)

    def _compare_items(self, reader: Schema, writer: Schema, path: str) -> None:
        ours, theirs = reader.get("items", True), writer.get("items", True)
        if isinstance(ours, list) or isinstance(theirs, list):
            if not self._parts.is_equal(ours, theirs):
                self.reasons.add(path, "a list of 'items' changed")
        elif ours is not True:
            place = below(path, "[*]")
            self._later(ours, theirs, place)
            first = writer.get("prefixItems")
            if isinstance(first, list) and "prefixItems" not in reader:
                self._charge(len(first))
                for each in first:
                    self._later(ours, each, place)


def _without(schema: Schema, key: str) -> Schema:
    """Return the rest of a schema; who merges it with a choice pays for both."""
    return {name: value for name, value in schema.items() if name != key}


def _pairs(ours: JsonValue, theirs: JsonValue) -> list[tuple[JsonValue, JsonValue]] | None:
    """Return the parts of two lists or objects that belong together, if all of them do."""
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return list(zip(ours, theirs, strict=True))
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        return [(ours[name], theirs[name]) for name in ours]
    return None


def _type_text(schema: Schema, types: frozenset[str]) -> str:
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return kinds
    return " or ".join(sorted(types)) or "nothing"
