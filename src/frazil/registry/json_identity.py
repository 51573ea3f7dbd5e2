"""Equality of JSON values, each looked at once: equal values get the same number.

Numbers are given from the leaves up, so that values of any size are compared as two numbers. Those
of the values that a definition lists are made once; those of a payload last for its check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from frazil.registry.json_references import subschemas

if TYPE_CHECKING:
    from frazil.registry.json_text import JsonValue
    from frazil.registry.work import Work

__all__ = ["Identities", "Listed", "leaf_key"]

TEXT_SHIFT: Final = 10
"""1,024 characters that are hashed or compared are one unit of work."""
_LARGE: Final = 1 << 64
"""Whole numbers from here on may have one hash, as many of them as somebody likes to write."""


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
            key = leaf_key(value)
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
        self._sets: dict[int, frozenset[int]] = {}
        """As those of the definition, of lists that were taken for data."""

    def number(self, value: JsonValue) -> int:
        """Return the number of a value: true is not 1, and 1 is 1.0."""
        if isinstance(value, (list, dict, str)):
            found = self._known.get(id(value))
            if found is None:
                found = self._known[id(value)] = self._find(value)
            return found
        self._work.charge(1)
        return self._number_of(leaf_key(value))

    def is_listed(self, value: JsonValue, values: JsonValue) -> bool:
        """Say whether a value is one of an `enum`."""
        found = self._listed.sets.get(id(values), self._sets.get(id(values)))
        if found is None:
            # A reference may lead into what was taken for data, and make a schema of it.
            listed = values if isinstance(values, list) else []
            found = self._sets[id(values)] = frozenset(self.number(each) for each in listed)
        return self.number(value) in found

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
            return self._number_of(leaf_key(value))
        self._work.charge(1 + len(value))
        if isinstance(value, list):
            return self._number_of(("array", tuple(map(self.number, value))))
        parts = frozenset((name, self.number(each)) for name, each in value.items())
        return self._number_of(("object", parts))

    def _number_of(self, key: object) -> int:
        found = self._listed.numbers.get(key)
        return self._others.setdefault(key, -1 - len(self._others)) if found is None else found


def leaf_key(value: str | float | bool | None) -> object:  # noqa: FBT001 - a JSON value
    """Return what equal values have in common, with few others of its hash: true is not 1."""
    if isinstance(value, bool) or value is None:
        return ("constant", str(value))
    if isinstance(value, int) and not -_LARGE < value < _LARGE:
        return _large_key(value)
    return value


def _large_key(value: int) -> object:
    """Return a large number as text, for texts have hashes that nobody can foresee.

    One that is a floating-point number, too, is that: it is equal to one that was written so.
    """
    try:
        near = float(value)
    except OverflowError:
        near = 0.0
    return near if near == value else ("number", hex(value))
