"""Check that bytes are a message of a Protobuf type, with all that it requires.

The library reads them, in one go. What that takes is reckoned before, on the bytes: each message in
the payload, be it empty, takes the room of all fields of its type, and a look at each of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from frazil.ingest.registry import limits
from frazil.ingest.registry.kinds import quoted
from frazil.ingest.registry.work import TOO_MUCH_WORK, TooMuchWork

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from frazil.ingest.registry.proto_model import ProtoMessage
    from frazil.ingest.registry.work import Work

__all__ = ["protobuf_refusal"]

_READ_SHIFT: Final = 5
"""32 bytes are read in one unit of work."""
_FIELDS_SHIFT: Final = 3
"""Room for 8 fields is made in one unit of work."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIDTHS: Final = {_FIXED64: 8, _FIXED32: 4}
_MISSING_TOLD_MAX: Final = 8


class _Malformed(Exception):
    """The bytes are no message; the library says so, too."""


def protobuf_refusal(
    root: str,
    messages: Mapping[str, ProtoMessage],
    message_class: Any,
    payload: bytes,
    work: Work,
) -> str | None:
    """Return why the payload is not the message `root`, nothing if it is one.

    Raises:
        Unavailable: if all checks are to stop.
    """
    errors = importlib.import_module("google.protobuf.message")
    try:
        work.charge(len(payload) >> _READ_SHIFT)
        _reckon(root, messages, payload, work)
    except TooMuchWork:
        return TOO_MUCH_WORK
    try:
        message = message_class.FromString(payload)
    except errors.DecodeError:
        return f"not a message {root}: its bytes are no such message"
    if not message.IsInitialized():
        found = _missing(message, messages, "")
        missing = ", ".join(name for name, _ in zip(found, range(_MISSING_TOLD_MAX), strict=False))
        return f"not a message {root}: required fields are missing: {quoted(missing)}"
    return None


def _units(message: ProtoMessage) -> int:
    return 1 + (len(message.fields) >> _FIELDS_SHIFT)


def _reckon(root: str, messages: Mapping[str, ProtoMessage], payload: bytes, work: Work) -> None:
    """Charge for the messages in a payload."""
    largest = max(_units(each) for each in messages.values())
    # A message takes two bytes at least: most payloads are too short to be looked at here.
    if (len(payload) // 2 + 1) * largest <= limits.WORK_UNITS_MAX - work.units:
        return
    parts = [(root, 0, len(payload), 0)]
    try:
        while parts:
            name, at, end, depth = parts.pop()
            message = messages[name]
            work.charge(_units(message))
            for kind, start, stop in _fields(message, payload, at, end, work):
                if depth < limits.PAYLOAD_NESTING_MAX:
                    parts.append((kind, start, stop, depth + 1))
    except _Malformed:
        return


def _fields(
    message: ProtoMessage, data: bytes, at: int, end: int, work: Work
) -> Iterator[tuple[str, int, int]]:
    """Yield the type and the place of each message that is a field of a message."""
    while at < end:
        work.charge(1)
        tag, at = _number(data, at, end)
        wire = tag & 7
        if wire == _VARINT:
            _, at = _number(data, at, end)
        elif wire in _WIDTHS:
            at += _WIDTHS[wire]
        elif wire == _BYTES:
            size, at = _number(data, at, end)
            if size > end - at:
                raise _Malformed
            field = message.fields.get(tag >> 3)
            if field is not None and field.kind == "message":
                yield field.type_name, at, at + size
            at += size
        # What is inside of a group, which no field here is, counts as if it stood outside.


def _number(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    raise _Malformed


def _missing(message: Any, messages: Mapping[str, ProtoMessage], path: str) -> Iterator[str]:
    """Yield the places of required fields that are not there."""
    fields = messages[message.DESCRIPTOR.full_name].fields
    for field in fields.values():
        if field.label == "required" and not message.HasField(field.name):
            yield f"{path}{field.name}"
    for found, value in message.ListFields():
        if found.message_type is None:
            continue
        place = f"{path}{found.name}"
        if fields[found.number].label != "repeated":
            yield from _missing(value, messages, f"{place}.")
        elif not found.message_type.GetOptions().map_entry:
            for index, each in enumerate(value):
                yield from _missing(each, messages, f"{place}[{index}].")
        elif found.message_type.fields_by_name["value"].message_type is not None:
            for key in value:
                yield from _missing(value[key], messages, f"{place}[{quoted(key)}].")
