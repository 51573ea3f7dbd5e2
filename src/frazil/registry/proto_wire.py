"""The bytes of Protobuf messages, field by field: what a library passes over without a word.

A field whose number the message has, and whose bytes are not of its type, is an unknown field to
the library. So is one that is really unknown, which is allowed; only a look at the bytes tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from frazil.registry.proto_model import ProtoField, ProtoMessage
    from frazil.registry.work import Work

__all__ = ["BYTES", "Malformed", "wire_fields", "wrong_field"]

_VARINT, _FIXED64, BYTES, _GROUP, _GROUP_END, _FIXED32 = range(6)
_WIDTHS: Final = {_FIXED64: 8, _FIXED32: 4}
_NAMES: Final = {
    _VARINT: "a varint",
    _FIXED64: "8 bytes",
    BYTES: "bytes with their length",
    _GROUP: "a group",
    _FIXED32: "4 bytes",
}
_LENGTH_DELIMITED: Final = frozenset(("string", "bytes", "message"))
_WIRES: Final = {
    **dict.fromkeys(("double", "fixed64", "sfixed64"), _FIXED64),
    **dict.fromkeys(("float", "fixed32", "sfixed32"), _FIXED32),
    **dict.fromkeys(_LENGTH_DELIMITED, BYTES),
}
"""Of kinds; all others are varints."""

_Path = tuple["_Path", str] | None
"""Where a message is: where that is which has it, and the field's name there."""


class Malformed(Exception):
    """The bytes are no message; the library says so, too."""


def wrong_field(
    root: str, messages: Mapping[str, ProtoMessage], payload: bytes, work: Work
) -> str | None:
    """Return which field of a payload that the library takes has bytes of another type, if any.

    Raises:
        TooMuchWork: if there are too many fields.
        Unavailable: if all checks are to stop.
    """
    parts: list[tuple[str, int, int, _Path]] = [(root, 0, len(payload), None)]
    while parts:
        name, at, end, path = parts.pop()
        known = messages[name].fields
        groups = 0
        for number, wire, start, stop in wire_fields(payload, at, end, work):
            # Inside of a group, which no field here is, numbers mean something else.
            field = None if groups else known.get(number)
            if wire == _GROUP_END:
                groups -= 1
            elif field is not None and not _is_of(field, wire):
                place = _shown((path, field.name))
                return (
                    f"at {place}: the field is of type {field.kind}, its bytes are {_NAMES[wire]}"
                )
            elif wire == _GROUP:
                groups += 1
            elif field is not None and field.kind == "message":
                parts.append((field.type_name, start, stop, (path, field.name)))
    return None


def wire_fields(data: bytes, at: int, end: int, work: Work) -> Iterator[tuple[int, int, int, int]]:
    """Yield number and wire type of each field, and where its bytes are; one unit of work each.

    A group is two fields, its start and its end, and those between them.

    Raises:
        Malformed: if the bytes are no message.
    """
    while at < end:
        work.charge(1)
        tag, start = _number(data, at, end)
        wire = tag & 7
        at = start
        if wire == _VARINT:
            _, at = _number(data, start, end)
        elif wire in _WIDTHS:
            at += _WIDTHS[wire]
        elif wire == BYTES:
            size, start = _number(data, start, end)
            if size > end - start:
                raise Malformed
            at = start + size
        yield tag >> 3, wire, start, at


def _is_of(field: ProtoField, wire: int) -> bool:
    """Say whether a field is written so; numbers of a list may stand alone or together."""
    if wire == _WIRES.get(field.kind, _VARINT):
        return True
    return wire == BYTES and field.label == "repeated" and field.kind not in _LENGTH_DELIMITED


def _shown(path: _Path) -> str:
    parts: list[str] = []
    while path is not None:
        path, name = path
        parts.append(name)
    return ".".join(reversed(parts))


def _number(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    raise Malformed
