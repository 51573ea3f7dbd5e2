"""Whether one Avro schema reads what another wrote: the specification's schema resolution.

A pair of types is looked at once, from a list of work instead of by recursion: records may refer
to each other in a circle, and a chain of them may be longer than the stack.
"""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, Final

import attrs

from frazil.registry.avro_nodes import (
    Array,
    Enum,
    Field,
    Fixed,
    Map,
    Named,
    Node,
    Primitive,
    Record,
    Union,
)
from frazil.registry.kinds import below, quoted
from frazil.registry.reasons import Reasons
from frazil.registry.work import TooMuchWork, Work

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["avro_reasons"]

_PROMOTIONS: Final[dict[str, frozenset[str]]] = {
    "int": frozenset(("long", "float", "double")),
    "long": frozenset(("float", "double")),
    "float": frozenset(("double",)),
    "string": frozenset(("bytes",)),
    "bytes": frozenset(("string",)),
}
"""What the writer wrote, and as what else a reader may take it."""

_SYMBOLS_TOLD_MAX: Final = 5


_PAIR_UNITS: Final = 4
"""Two types, compared."""
_SYMBOLS_SHIFT: Final = 3
"""8 symbols are found in an enum in one unit of work."""


def avro_reasons(*, reader: Node, writer: Node, work: Work | None = None) -> tuple[str, ...]:
    """Return why `reader` cannot read everything `writer` wrote, nothing if it can.

    Raises:
        Unavailable: if `work` says that all is to stop.
    """
    resolution = _Resolution(work or Work.of_comparison())
    try:
        resolution.run(reader, writer)
    except TooMuchWork:
        resolution.reasons.give_up()
    return resolution.reasons.lines()


@attrs.define
class _Index:
    """The branches of a union, which may be thousands."""

    named: dict[str, Named] = attrs.field(factory=dict)
    """By full name."""
    known: dict[str, list[Named]] = attrs.field(factory=dict)
    """By short name and by alias."""
    others: list[Node] = attrs.field(factory=list)
    """Those without a name: one of each kind at most."""


class _Resolution:
    def __init__(self, work: Work) -> None:
        self.reasons = Reasons()
        self._charge = work.charge
        self._seen: set[tuple[int, int]] = set()
        self._work: deque[tuple[Node, Node, str]] = deque()
        self._indexes: dict[int, _Index] = {}

    def run(self, reader: Node, writer: Node) -> None:
        self._later(reader, writer, "$")
        while self._work:
            self._compare(*self._work.popleft())

    def _later(self, reader: Node, writer: Node, path: str) -> None:
        key = (id(reader), id(writer))
        if key not in self._seen:
            self._seen.add(key)
            self._work.append((reader, writer, path))

    def _compare(self, reader: Node, writer: Node, path: str) -> None:
        self._charge(_PAIR_UNITS)
        if isinstance(writer, Union):
            for branch in writer.branches:
                self._later(reader, branch, path)
            return
        if isinstance(reader, Union):
            fitting = self._branch_for(reader, writer)
            if fitting is None:
                self.reasons.add(
                    path, f"no branch of the reader's {quoted(reader.label)} reads {writer.label}"
                )
            else:
                self._later(fitting, writer, path)
            return
        problem = _mismatch(reader, writer)
        if problem:
            self.reasons.add(path, problem)
        elif isinstance(reader, Array) and isinstance(writer, Array):
            self._later(reader.items, writer.items, below(path, "[*]"))
        elif isinstance(reader, Map) and isinstance(writer, Map):
            self._later(reader.values, writer.values, below(path, "{*}"))
        elif isinstance(reader, Record) and isinstance(writer, Record):
            self._compare_fields(reader, writer, path)
        elif isinstance(reader, Enum) and isinstance(writer, Enum):
            self._compare_symbols(reader, writer, path)

    def _branch_for(self, union: Union, writer: Node) -> Node | None:
        """Return the branch that takes the writer's type: the same type first, then any."""
        if isinstance(writer, Named):
            index = self._index_of(union)
            same = index.named.get(writer.name)
            candidates: Iterable[Node] = chain(
                (same,) if same is not None else (),
                index.known.get(writer.short_name, ()),
                index.known.get(writer.name, ()),
            )
        else:
            others = self._index_of(union).others
            candidates = chain(
                (branch for branch in others if branch.label == writer.label), others
            )
        for branch in candidates:
            # Branches with the same short name may be thousands, and none of them fit.
            self._charge(1)
            if not _mismatch(branch, writer):
                return branch
        return None

    def _index_of(self, union: Union) -> _Index:
        index = self._indexes.get(id(union))
        if index is None:
            index = self._indexes[id(union)] = _Index()
            for branch in union.branches:
                if isinstance(branch, Named):
                    index.named[branch.name] = branch
                    for name in {branch.short_name, *branch.aliases}:
                        index.known.setdefault(name, []).append(branch)
                else:
                    index.others.append(branch)
        return index

    def _compare_fields(self, reader: Record, writer: Record, path: str) -> None:
        self._charge(len(reader.fields) + len(writer.fields))
        written = {field.name: field for field in writer.fields}
        for field in reader.fields:
            self._charge(len(field.aliases))
            source = _source(field, written)
            place = below(path, ".", field.name)
            if source is not None:
                self._later(field.type, source.type, place)
            elif not field.has_default:
                self.reasons.add(place, "the writer has no such field and it has no default")

    def _compare_symbols(self, reader: Enum, writer: Enum, path: str) -> None:
        if reader.default is not None:
            return
        self._charge((len(reader.symbols) + len(writer.symbols)) >> _SYMBOLS_SHIFT)
        known = set(reader.symbols)
        missing = [symbol for symbol in writer.symbols if symbol not in known]
        if missing:
            told = ", ".join(quoted(symbol) for symbol in missing[:_SYMBOLS_TOLD_MAX])
            more = ", …" if len(missing) > _SYMBOLS_TOLD_MAX else ""
            self.reasons.add(
                path, f"the reader's {reader.label} lacks symbols and a default: {told}{more}"
            )


def _source(field: Field, written: dict[str, Field]) -> Field | None:
    """Return the writer's field that a reader's field takes: by its name, then by an alias."""
    found = written.get(field.name)
    if found is None:
        found = next((written[alias] for alias in sorted(field.aliases) if alias in written), None)
    return found


def _mismatch(reader: Node, writer: Node) -> str:
    """Return why two types that are no unions do not match at all, empty if they do.

    Parts (fields, items, symbols) are not looked at.
    """
    if isinstance(reader, Primitive) and isinstance(writer, Primitive):
        promoted = reader.kind in _PROMOTIONS.get(writer.kind, ())
        if reader.kind != writer.kind and not promoted:
            return f"the reader's {reader.kind} does not read {writer.kind}"
        return _decimal_mismatch(reader, writer)
    if type(reader) is not type(writer):
        return f"the reader's {quoted(reader.label)} does not read {quoted(writer.label)}"
    if isinstance(reader, Named) and isinstance(writer, Named):
        same = reader.short_name == writer.short_name or writer.name in reader.aliases
        if not same:
            return (
                f"the reader's {quoted(reader.label)} does not read {quoted(writer.label)}:"
                " neither its name nor an alias"
            )
    if isinstance(reader, Fixed) and isinstance(writer, Fixed):
        if reader.size != writer.size:
            return f"the reader's size {reader.size} is not the writer's {writer.size}"
        return _decimal_mismatch(reader, writer)
    return ""


def _decimal_mismatch(reader: Primitive | Fixed, writer: Primitive | Fixed) -> str:
    if reader.decimal is None or writer.decimal is None or reader.decimal == writer.decimal:
        return ""
    ours, theirs = reader.decimal, writer.decimal
    return (
        f"the reader's decimal({ours.precision},{ours.scale})"
        f" is not the writer's decimal({theirs.precision},{theirs.scale})"
    )
