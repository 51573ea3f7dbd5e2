"""Equality of JSON values, each looked at once: equal values get the same number.

Numbers are given from the leaves up, so that values of any size are compared as two numbers. Those
of the values that a definition lists are made once; those of a payload last for its check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from frazil.ingest.registry.json_references import subschemas

if TYPE_CHECKING:
    from frazil.ingest.registry.json_text import JsonValue
    from frazil.ingest.registry.work import Work

__all__ = ["Identities", "Listed"]

TEXT_SHIFT: Final = 10
"""1,024 characters that are hashed or compared are one unit of work."""


class Listed:
    """The values that a definition lists, numbered."""

    def __init__(self, root: JsonValue) -> None:
        self.numbers: dict[object, int] = {}
        self.sets: dict[int, frozenset[int]] = {}
        """By the id of the list; the definition lives as long as this."""
        self.constants: dict[int, int] = {}
        """By the id of the schema that has the constant."""
        for schema, _ in subschemas(root):
            values = schema.get("enum")
            if isinstance(values, list):
                self.sets[id(values)] = frozenset(self._number(each) for each in values)
            if "const" in schema:
                self.constants[id(schema)] = self._number(schema["const"])

    def _number(self, value: JsonValue) -> int:
        if isinstance(value, list):
            key: object = ("array", tuple(self._number(each) for each in value))
        elif isinstance(value, dict):
            parts = ((name, self._number(each)) for name, each in value.items())
            key = ("object", frozenset(parts))
        else:
            key = _leaf(value)
        return self.numbers.setdefault(key, len(self.numbers))


class Identities:
    """The numbers of the values of one payload; `work` pays for finding them."""

    def __init__(self, listed: Listed, work: Work) -> None:
        self._listed = listed
        self._work = work
        self._others: dict[object, int] = {}
        self._known: dict[int, int] = {}
        """By the id of a value that lives as long as the check."""
        self._different: dict[int, bool] = {}

    def number(self, value: JsonValue) -> int:
        """Return the number of a value: true is not 1, and 1 is 1.0."""
        if isinstance(value, (list, dict, str)):
            found = self._known.get(id(value))
            if found is None:
                found = self._known[id(value)] = self._find(value)
            return found
        self._work.charge(1)
        return self._number_of(_leaf(value))

    def is_listed(self, value: JsonValue, values: JsonValue) -> bool:
        """Say whether a value is one of an `enum`."""
        found = self._listed.sets.get(id(values))
        if found is not None:
            return self.number(value) in found
        # A reference may lead into what was taken for data, and make a schema of it.
        wanted = self.number(value)
        listed = values if isinstance(values, list) else []
        return any(self.number(each) == wanted for each in listed)

    def is_constant(self, value: JsonValue, schema: dict[str, JsonValue]) -> bool:
        """Say whether a value is the `const` of a schema."""
        found = self._listed.constants.get(id(schema))
        return self.number(value) == (self.number(schema["const"]) if found is None else found)

    def are_different(self, values: list[JsonValue]) -> bool:
        """Say whether no value is there twice."""
        found = self._different.get(id(values))
        if found is None:
            different = len({self.number(each) for each in values})
            found = self._different[id(values)] = different == len(values)
        return found

    def _find(self, value: list[JsonValue] | dict[str, JsonValue] | str) -> int:
        if isinstance(value, str):
            self._work.charge(1 + (len(value) >> TEXT_SHIFT))
            return self._number_of(_leaf(value))
        self._work.charge(1 + len(value))
        if isinstance(value, list):
            return self._number_of(("array", tuple(map(self.number, value))))
        parts = frozenset((name, self.number(each)) for name, each in value.items())
        return self._number_of(("object", parts))

    def _number_of(self, key: object) -> int:
        found = self._listed.numbers.get(key)
        return self._others.setdefault(key, -1 - len(self._others)) if found is None else found


def _leaf(value: str | float | bool | None) -> object:  # noqa: FBT001 - a JSON value
    if isinstance(value, bool) or value is None:
        return ("constant", str(value))
    return value
