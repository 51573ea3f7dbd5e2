"""Defaults of Avro fields: whether a JSON value is a value of a type."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from frazil.registry.avro_nodes import (
    Array,
    Enum,
    Fixed,
    Map,
    Node,
    Primitive,
    Record,
    Union,
)
from frazil.registry.kinds import quoted

if TYPE_CHECKING:
    from frazil.registry.json_text import JsonValue
    from frazil.registry.work import Work

__all__ = ["Defaults"]

_PAIR_UNITS: Final = 2
"""A type and a value, looked at."""
_TEXT_SHIFT: Final = 10
"""1,024 characters that are bytes are looked at in one unit of work."""
_PROBLEM_CHARACTERS_MAX: Final = 400
_NOT_JSON: Final = frozenset(("NaN", "Infinity", "-Infinity"))


class Defaults:
    """The defaults of one schema, whose types and values live as long as this.

    The recursion is bounded by the nesting of a JSON value, and each pair of a type and a value
    is looked at once: unions of records that contain each other would take time without end. What
    is left of that, each value with each branch of a large union, is charged for.
    """

    def __init__(self, work: Work) -> None:
        self._charge = work.charge
        self._known: dict[tuple[int, int], str] = {}
        self._symbols: dict[int, frozenset[str]] = {}

    def problem(self, node: Node, value: JsonValue) -> str:
        """Return why `value` is no default of the type, empty when it is one.

        Raises:
            TooMuchWork: if that cannot be said with as much work as there is.
        """
        key = (id(node), id(value))
        known = self._known.get(key)
        if known is None:
            self._charge(_PAIR_UNITS)
            known = self._known[key] = self._problem(node, value)
        return known

    def _problem(self, node: Node, value: JsonValue) -> str:
        if isinstance(node, Primitive):
            if node.kind == "bytes" and isinstance(value, str):
                return "" if self._is_bytes(value) else "it is no bytes"
            return _of_primitive(node.kind, value)
        if isinstance(node, Union):
            fits = any(not self.problem(branch, value) for branch in node.branches)
            return "" if fits else f"it is none of {quoted(node.label)}"
        if isinstance(node, Enum):
            fits = isinstance(value, str) and value in self._symbols_of(node)
            return "" if fits else f"it is no symbol of {node.label}"
        if isinstance(node, Fixed):
            fits = isinstance(value, str) and len(value) == node.size and self._is_bytes(value)
            return "" if fits else f"it is no {node.label}"
        if isinstance(node, Array):
            if not isinstance(value, list):
                return "it is no array"
            return _first(self.problem(node.items, each) for each in value)
        if isinstance(node, Map):
            if not isinstance(value, dict):
                return "it is no map"
            return _first(self.problem(node.values, each) for each in value.values())
        assert isinstance(node, Record)
        return self._of_record(node, value)

    def _of_record(self, node: Record, value: JsonValue) -> str:
        if not isinstance(value, dict):
            return f"it is no {node.label}"
        for field in node.fields:
            if field.name in value:
                problem = self.problem(field.type, value[field.name])
            else:
                self._charge(1)
                problem = "" if field.has_default else "it is missing"
            if problem:
                return f"field '{quoted(field.name)}': {problem}"[:_PROBLEM_CHARACTERS_MAX]
        return ""

    def _symbols_of(self, node: Enum) -> frozenset[str]:
        found = self._symbols.get(id(node))
        if found is None:
            found = self._symbols[id(node)] = frozenset(node.symbols)
        return found

    def _is_bytes(self, text: str) -> bool:
        self._charge(len(text) >> _TEXT_SHIFT)
        try:
            text.encode("latin-1")
        except UnicodeEncodeError:
            return False
        return True


def _of_primitive(kind: str, value: JsonValue) -> str:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if kind == "null":
        fits = value is None
    elif kind == "boolean":
        fits = isinstance(value, bool)
    elif kind in {"int", "long"}:
        bound = 1 << (31 if kind == "int" else 63)
        fits = is_whole and isinstance(value, int) and -bound <= value < bound
    elif kind in {"float", "double"}:
        # Many writers give what JSON has no number for as text.
        fits = is_number or (isinstance(value, str) and value in _NOT_JSON)
    else:
        fits = kind == "string" and isinstance(value, str)
    return "" if fits else f"it is no {kind}"


def _first(problems: Iterable[str]) -> str:
    return next((problem for problem in problems if problem), "")
