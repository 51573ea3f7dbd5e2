"""An Avro schema as nodes: names resolved, references are the nodes themselves."""

from __future__ import annotations

from typing import Final

import attrs

from frazil.registry.json_text import JsonValue

__all__ = [
    "PRIMITIVES",
    "Array",
    "Decimal",
    "Enum",
    "Field",
    "Fixed",
    "Map",
    "Named",
    "Node",
    "Primitive",
    "Record",
    "Union",
    "has_no_width",
]

PRIMITIVES: Final = frozenset(
    ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
)
_BRANCHES_TOLD_MAX: Final = 8


@attrs.frozen
class Decimal:
    """The logical type of a number with a fixed point."""

    precision: int
    scale: int


@attrs.define(eq=False)
class Node:
    """A type; two nodes are the same when they are one object."""

    @property
    def label(self) -> str:
        """How a message names the type."""
        raise NotImplementedError


@attrs.define(eq=False)
class Primitive(Node):
    """A type without parts."""

    kind: str
    decimal: Decimal | None = None

    @property
    def label(self) -> str:
        return self.kind


@attrs.define(eq=False)
class Named(Node):
    """A type with a full name; `aliases` are full names too."""

    name: str
    aliases: frozenset[str]

    @property
    def short_name(self) -> str:
        """The name without its namespace."""
        return self.name.rpartition(".")[2]


@attrs.define(eq=False)
class Field:
    """A field of a record."""

    name: str
    aliases: frozenset[str]
    type: Node
    has_default: bool
    default: JsonValue = None


@attrs.define(eq=False)
class Record(Named):
    """Fields in their order. `no_width`: no value takes a byte (all fields are such types)."""

    fields: list[Field] = attrs.field(factory=list)
    no_width: bool = False

    @property
    def label(self) -> str:
        return f"record {self.name}"


@attrs.define(eq=False)
class Enum(Named):
    """Symbols in their order, and the one that stands for unknown ones."""

    symbols: tuple[str, ...] = ()
    default: str | None = None

    @property
    def label(self) -> str:
        return f"enum {self.name}"


@attrs.define(eq=False)
class Fixed(Named):
    """So many bytes."""

    size: int = 0
    decimal: Decimal | None = None

    @property
    def label(self) -> str:
        return f"fixed {self.name}({self.size})"


@attrs.define(eq=False)
class Array(Node):
    """Items of one type."""

    items: Node

    @property
    def label(self) -> str:
        return "array"


@attrs.define(eq=False)
class Map(Node):
    """Strings to values of one type."""

    values: Node

    @property
    def label(self) -> str:
        return "map"


@attrs.define(eq=False)
class Union(Node):
    """One of several types, none of them a union."""

    branches: tuple[Node, ...]

    @property
    def label(self) -> str:
        told = ", ".join(branch.label for branch in self.branches[:_BRANCHES_TOLD_MAX])
        return f"union of {told}" + (", …" if len(self.branches) > _BRANCHES_TOLD_MAX else "")


def has_no_width(node: Node) -> bool:
    """Say whether each value of the type is encoded in no byte at all."""
    if isinstance(node, Primitive):
        return node.kind == "null"
    if isinstance(node, Fixed):
        return node.size == 0
    return isinstance(node, Record) and node.no_width
