"""Whether one Protobuf definition reads what another wrote: the rules of the wire.

A name does not exist on the wire, so renaming is free; a number and its wire type are everything.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from frazil.registry.kinds import below, quoted
from frazil.registry.reasons import Reasons
from frazil.registry.work import TooMuchWork, Work

if TYPE_CHECKING:
    from frazil.registry.proto_model import (
        ProtobufSchema,
        ProtoEnum,
        ProtoField,
        ProtoMessage,
    )

__all__ = ["proto_reasons"]

_FAMILIES: Final = {
    **dict.fromkeys(("int32", "int64", "uint32", "uint64", "bool", "enum"), "varint"),
    **dict.fromkeys(("sint32", "sint64"), "zigzag varint"),
    **dict.fromkeys(("fixed32", "sfixed32"), "fixed32"),
    **dict.fromkeys(("fixed64", "sfixed64"), "fixed64"),
}
"""Kinds that are read as each other; every other kind only as itself."""
_AS_BYTES: Final = frozenset(("string", "message"))
_LENGTH_DELIMITED: Final = frozenset(("string", "bytes", "message"))
_PAIR_UNITS: Final = 4
"""Two messages, compared."""
_FIELD_UNITS: Final = 3
"""A field of the reader, in all that is looked at."""
_REASON_UNITS: Final = 3
"""A reserved range, or a value that is missing, which is told."""
_VALUES_SHIFT: Final = 3
"""8 values are found in an enum in one unit of work."""


def proto_reasons(
    *,
    reader: ProtobufSchema,
    writer: ProtobufSchema,
    reader_is_newer: bool,
    work: Work | None = None,
) -> tuple[str, ...]:
    """Return why `reader` cannot read everything `writer` wrote, nothing if it can.

    Raises:
        Unavailable: if `work` says that all is to stop.
    """
    comparison = _Comparison(
        reader, writer, work or Work.of_comparison(), reader_is_newer=reader_is_newer
    )
    try:
        comparison.run()
    except TooMuchWork:
        comparison.reasons.give_up()
    return comparison.reasons.lines()


class _Comparison:
    def __init__(
        self,
        reader: ProtobufSchema,
        writer: ProtobufSchema,
        work: Work,
        *,
        reader_is_newer: bool,
    ) -> None:
        self.reasons = Reasons()
        self._charge = work.charge
        self._reader = reader
        self._writer = writer
        self._reader_is_newer = reader_is_newer
        self._seen: set[tuple[str, str]] = set()
        self._work: deque[tuple[str, str]] = deque()

    def run(self) -> None:
        """Compare the roots, and each message that both have: another one may be sent too."""
        self._later(self._reader.root, self._writer.root)
        for name in self._writer.messages:
            if name in self._reader.messages:
                self._later(name, name)
        while self._work:
            ours, theirs = self._work.popleft()
            self._compare(self._reader.messages[ours], self._writer.messages[theirs])

    def _later(self, reader: str, writer: str) -> None:
        if (reader, writer) not in self._seen:
            self._seen.add((reader, writer))
            self._work.append((reader, writer))

    def _compare(self, reader: ProtoMessage, writer: ProtoMessage) -> None:
        self._charge(_PAIR_UNITS + _FIELD_UNITS * len(reader.fields) + len(writer.fields))
        for number, field in reader.fields.items():
            source = writer.fields.get(number)
            place = below(reader.name, ".", field.name)
            if source is not None:
                self._compare_field(field, source, place)
            promised = source is not None and source.label == "required"
            if field.label == "required" and not promised:
                self.reasons.add(place, f"number {number} is required, the writer may omit it")
        self._compare_oneofs(reader, writer)
        self._compare_reserved(reader, writer)

    def _compare_field(self, reader: ProtoField, writer: ProtoField, place: str) -> None:
        number = reader.number
        if not _reads_kind(reader.kind, writer.kind):
            was = f"'{quoted(writer.name)}' of {_kind_text(writer)}"
            self.reasons.add(place, f"number {number} is {_kind_text(reader)}, the writer's {was}")
            return
        many_to_one = reader.label != "repeated" and writer.label == "repeated"
        if many_to_one and writer.packed and reader.kind not in _LENGTH_DELIMITED:
            self.reasons.add(place, f"number {number} is one value, the writer packs many")
        if reader.kind == writer.kind == "message":
            self._later(reader.type_name, writer.type_name)
        elif reader.kind == writer.kind == "enum":
            self._compare_enum(
                self._reader.enums[reader.type_name], self._writer.enums[writer.type_name], place
            )

    def _compare_enum(self, reader: ProtoEnum, writer: ProtoEnum, place: str) -> None:
        # An open enum keeps a number that is new to it; one that was removed is an oversight.
        if not (reader.is_closed or self._reader_is_newer):
            return
        # Thousands of fields may be of one large enum.
        self._charge(len(writer.values) >> _VALUES_SHIFT)
        for number, name in writer.values.items():
            if number not in reader.values:
                self._charge(_REASON_UNITS)
                value = f"{number} ({quoted(name)})"
                self.reasons.add(place, f"enum {reader.name} has no value {value}")

    def _compare_oneofs(self, reader: ProtoMessage, writer: ProtoMessage) -> None:
        """Fields that the writer sets side by side must not push each other out in the reader."""
        groups: dict[int, list[ProtoField]] = {}
        for number, field in reader.fields.items():
            if field.oneof is not None and number in writer.fields:
                groups.setdefault(field.oneof, []).append(field)
        for fields in groups.values():
            sources = {writer.fields[field.number].oneof for field in fields}
            if len(fields) > 1 and (None in sources or len(sources) > 1):
                names = ", ".join(quoted(field.name) for field in fields[:5])
                self.reasons.add(
                    reader.name, f"fields share a oneof that the writer may set together: {names}"
                )

    def _compare_reserved(self, reader: ProtoMessage, writer: ProtoMessage) -> None:
        old, new = (writer, reader) if self._reader_is_newer else (reader, writer)
        for number, field in new.fields.items():
            if number in old.reserved:
                place = below(new.name, ".", field.name)
                self.reasons.add(place, f"number {number} was reserved and is used again")
        self._charge(_REASON_UNITS * len(old.reserved.ranges))
        for first, end in old.reserved.ranges:
            gap = new.reserved.first_outside(first, end)
            if gap is not None and gap not in new.fields:
                self.reasons.add(new.name, f"number {gap} was reserved and is not any more")


def _reads_kind(reader: str, writer: str) -> bool:
    if reader == writer:
        return True
    if reader == "bytes":
        return writer in _AS_BYTES
    return reader in _FAMILIES and _FAMILIES[reader] == _FAMILIES.get(writer)


def _kind_text(field: ProtoField) -> str:
    return f"{field.kind} {field.type_name}" if field.type_name else field.kind
