"""Avro schemas from JSON: every rule of the specification that a definition can break is told.

A message names the place: `$.address.zip` is the field `zip` of the record in the field `address`,
`[*]` the items of an array, `{*}` the values of a map.
"""

from __future__ import annotations

import re
from typing import Final

from frazil.errors import InvalidRequest
from frazil.registry import limits
from frazil.registry.avro_defaults import Defaults
from frazil.registry.avro_nodes import (
    PRIMITIVES,
    Array,
    Decimal,
    Enum,
    Field,
    Fixed,
    Map,
    Named,
    Node,
    Primitive,
    Record,
    Union,
    has_no_width,
)
from frazil.registry.json_text import JsonValue
from frazil.registry.kinds import below, quoted
from frazil.registry.work import TooMuchWork, Work

__all__ = ["parse_avro"]

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_FULL_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*\Z")
_FIXED_BYTES_MAX: Final = 1 << 30
_NAME_SHIFT: Final = 5
"""32 characters of a name, with its namespace, are one unit of work."""
_NOTHING: Final = frozenset[str]()
_Object = dict[str, JsonValue]


def parse_avro(value: JsonValue) -> Node:
    """Return the schema's root; what breaks a rule is an InvalidRequest with its place."""
    parser = _Parser()
    root = parser.type_of(value, "$", namespace="", depth=0, direct=_NOTHING)
    parser.check_defaults()
    return root


def _refuse(path: str, text: str) -> InvalidRequest:
    return InvalidRequest(f"invalid Avro schema at {quoted(path)}: {text}")


class _Parser:
    """The names of one schema while it is read.

    `direct` are the records around a type of which each value contains one of it: a reference to
    one of those would make a value without end.
    """

    def __init__(self) -> None:
        self._named: dict[str, Named] = {}
        self._defaults: list[tuple[Field, str]] = []
        self._work = Work.of_definition()

    def check_defaults(self) -> None:
        """Check them when all is read: the type of a default may be a record around it."""
        defaults = Defaults(Work.of_definition())
        for field, place in self._defaults:
            try:
                problem = defaults.problem(field.type, field.default)
            except RecursionError:
                problem = "it is nested too deep"
            except TooMuchWork:
                text = "the defaults need too much work to check, use fewer or smaller ones"
                raise _refuse(place, text) from None
            if problem:
                raise _refuse(place, f"the default is wrong: {problem}")

    def type_of(
        self, value: JsonValue, path: str, *, namespace: str, depth: int, direct: frozenset[str]
    ) -> Node:
        if depth > limits.NESTING_MAX:
            raise _refuse(path, f"types are nested deeper than {limits.NESTING_MAX}")
        if isinstance(value, str):
            return self._reference(value, path, namespace, direct)
        if isinstance(value, list):
            return self._union(value, path, namespace, depth)
        if not isinstance(value, dict):
            raise _refuse(path, "a type is a name, an object or a list")
        kind = value.get("type")
        if isinstance(kind, (dict, list)):
            return self.type_of(kind, path, namespace=namespace, depth=depth + 1, direct=direct)
        if not isinstance(kind, str):
            raise _refuse(path, "an object of a type needs a 'type'")
        if kind in PRIMITIVES:
            return Primitive(kind, _decimal(value, path) if kind == "bytes" else None)
        if kind in {"record", "error"}:
            return self._record(value, path, namespace, depth, direct)
        if kind == "enum":
            return self._enum(value, path, namespace)
        if kind == "fixed":
            return self._fixed(value, path, namespace)
        if kind in {"array", "map"}:
            return self._collection(kind, value, path, namespace, depth)
        return self._reference(kind, path, namespace, direct)

    def _reference(self, text: str, path: str, namespace: str, direct: frozenset[str]) -> Node:
        if text in PRIMITIVES:
            return Primitive(text)
        name = text if "." in text or not namespace else f"{namespace}.{text}"
        # A name without a namespace may also mean a type that has none.
        found = self._named.get(name) or self._named.get(text)
        if found is None:
            raise _refuse(path, f"unknown type '{quoted(text)}'")
        if found.name in direct:
            raise _refuse(
                path, f"record {found.name} contains itself: a union, array or map must be between"
            )
        return found

    def _union(self, value: list[JsonValue], path: str, namespace: str, depth: int) -> Union:
        branches: list[Node] = []
        seen: set[str] = set()
        for each in value:
            branch = self.type_of(each, path, namespace=namespace, depth=depth + 1, direct=_NOTHING)
            if isinstance(branch, Union):
                raise _refuse(path, "a union may not contain a union")
            label = branch.name if isinstance(branch, Named) else branch.label
            if label in seen:
                raise _refuse(path, f"the union has {quoted(label)} twice")
            seen.add(label)
            branches.append(branch)
        if not branches:
            raise _refuse(path, "the union is empty")
        return Union(tuple(branches))

    def _collection(
        self, kind: str, value: _Object, path: str, namespace: str, depth: int
    ) -> Array | Map:
        key, mark = ("items", "[*]") if kind == "array" else ("values", "{*}")
        if key not in value:
            raise _refuse(path, f"a type '{kind}' needs '{key}'")
        inner = self.type_of(
            value[key], below(path, mark), namespace=namespace, depth=depth + 1, direct=_NOTHING
        )
        return Array(inner) if kind == "array" else Map(inner)

    def _record(
        self, value: _Object, path: str, namespace: str, depth: int, direct: frozenset[str]
    ) -> Record:
        name, aliases = self._name(value, path, namespace)
        fields = value.get("fields")
        if not isinstance(fields, list):
            raise _refuse(path, f"record {name} needs a list of 'fields'")
        record = Record(name, aliases)
        self._named[name] = record
        seen: set[str] = set()
        inner = name.rpartition(".")[0]
        for each in fields:
            field = self._field(each, path, inner, depth, direct | {name})
            if field.name in seen:
                raise _refuse(path, f"record {name} has the field '{field.name}' twice")
            seen.add(field.name)
            record.fields.append(field)
        record.no_width = all(has_no_width(field.type) for field in record.fields)
        return record

    def _field(
        self, value: JsonValue, path: str, namespace: str, depth: int, direct: frozenset[str]
    ) -> Field:
        if not isinstance(value, dict):
            raise _refuse(path, "a field is an object")
        name = value.get("name")
        if not isinstance(name, str) or not _NAME.match(name):
            raise _refuse(path, f"'{quoted(name)}' is no name of a field")
        place = below(path, ".", name)
        if "type" not in value:
            raise _refuse(place, "the field needs a 'type'")
        node = self.type_of(
            value["type"], place, namespace=namespace, depth=depth + 1, direct=direct
        )
        aliases = _names(value, "aliases", place)
        if not all(_NAME.match(alias) for alias in aliases):
            raise _refuse(place, "an alias is no name of a field")
        self._check_names(place, name, *aliases)
        field = Field(name, frozenset(aliases), node, "default" in value, value.get("default"))
        if field.has_default:
            self._defaults.append((field, place))
        return field

    def _enum(self, value: _Object, path: str, namespace: str) -> Enum:
        name, aliases = self._name(value, path, namespace)
        symbols = _names(value, "symbols", path)
        if "symbols" not in value:
            raise _refuse(path, f"enum {name} needs a list of 'symbols'")
        for symbol in symbols:
            if not _NAME.match(symbol):
                raise _refuse(path, f"'{quoted(symbol)}' is no symbol of an enum")
        if len(set(symbols)) != len(symbols):
            raise _refuse(path, f"enum {name} has a symbol twice")
        default = value.get("default")
        if default is not None and default not in symbols:
            raise _refuse(path, f"the default of enum {name} is none of its symbols")
        node = Enum(name, aliases, tuple(symbols), default if isinstance(default, str) else None)
        self._named[name] = node
        return node

    def _fixed(self, value: _Object, path: str, namespace: str) -> Fixed:
        name, aliases = self._name(value, path, namespace)
        size = value.get("size")
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _FIXED_BYTES_MAX:
            raise _refuse(path, f"fixed {name} needs a 'size' from 0 to {_FIXED_BYTES_MAX}")
        node = Fixed(name, aliases, size, _decimal(value, path))
        self._named[name] = node
        return node

    def _name(self, value: _Object, path: str, outer: str) -> tuple[str, frozenset[str]]:
        """Return the full name of a definition that is new, and its aliases."""
        name = value.get("name")
        if not isinstance(name, str) or not _FULL_NAME.match(name):
            raise _refuse(path, f"'{quoted(name)}' is no name of a type")
        namespace = value.get("namespace", outer)
        if not isinstance(namespace, str) or (namespace and not _FULL_NAME.match(namespace)):
            raise _refuse(path, f"'{quoted(namespace)}' is no namespace")
        if "." not in name:
            if name in PRIMITIVES:
                raise _refuse(path, f"'{name}' is the name of a primitive type")
            name = f"{namespace}.{name}" if namespace else name
        if name in self._named:
            raise _refuse(path, f"the type {name} is defined twice")
        above = name.rpartition(".")[0]
        aliases = _names(value, "aliases", path)
        if not all(_FULL_NAME.match(alias) for alias in aliases):
            raise _refuse(path, f"an alias of {quoted(name)} is no name of a type")
        self._check_names(path, name)
        found: list[str] = []
        for alias in aliases:
            found.append(alias if "." in alias or not above else f"{above}.{alias}")
            self._check_names(path, found[-1])
        return name, frozenset(found)

    def _check_names(self, path: str, *names: str) -> None:
        """Refuse names that are too long, each or together: a namespace is in all names below."""
        for name in names:
            if len(name) > limits.TYPE_NAME_CHARACTERS_MAX:
                text = (
                    f"'{quoted(name)}' has more than {limits.TYPE_NAME_CHARACTERS_MAX} characters"
                )
                raise _refuse(path, text)
            try:
                self._work.charge(1 + (len(name) >> _NAME_SHIFT))
            except TooMuchWork:
                text = "names of types and fields are too many or too long, all together"
                raise _refuse(path, text) from None


def _names(value: _Object, key: str, path: str) -> list[str]:
    found = value.get(key, [])
    if not isinstance(found, list):
        raise _refuse(path, f"'{key}' is a list of names")
    names = [each for each in found if isinstance(each, str)]
    if len(names) != len(found):
        raise _refuse(path, f"'{key}' is a list of names")
    return names


def _decimal(value: _Object, path: str) -> Decimal | None:
    """Return the decimal that an object declares; the specification ignores other annotations."""
    if value.get("logicalType") != "decimal":
        return None
    precision, scale = value.get("precision"), value.get("scale", 0)
    whole = type(precision) is int and type(scale) is int
    if not isinstance(precision, int) or not isinstance(scale, int) or not whole:
        raise _refuse(path, "a decimal needs a precision and a scale that are whole numbers")
    if precision == 0 or not 0 <= scale <= precision:
        raise _refuse(path, "a decimal needs a precision above 0 and a scale from 0 to it")
    return Decimal(precision, scale)
