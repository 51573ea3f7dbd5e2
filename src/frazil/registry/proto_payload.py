"""Check that bytes are a message of a Protobuf type, with all that it requires.

The library reads them, in one go. What that takes is reckoned before, on the bytes: each message in
the payload, be it empty, takes the room of all fields of its type, and a look at each of them.
Bytes of another type than their field's are none of its errors, they become unknown fields: only if
there are some are the bytes looked at once more, in Python.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from frazil.registry import limits
from frazil.registry.kinds import quoted
from frazil.registry.proto_wire import BYTES, Malformed, wire_fields, wrong_field
from frazil.registry.work import TOO_MUCH_WORK, TooMuchWork

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from frazil.registry.proto_model import ProtoMessage
    from frazil.registry.work import Work

__all__ = ["protobuf_refusal"]

_READ_SHIFT: Final = 5
"""32 bytes are read in one unit of work."""
_FIELDS_SHIFT: Final = 3
"""Room for 8 fields is made in one unit of work."""
_MISSING_TOLD_MAX: Final = 8


def protobuf_refusal(
    root: str,
    messages: Mapping[str, ProtoMessage],
    message_class: Any,
    payload: bytes,
    work: Work,
    *,
    has_maps: bool,
) -> str | None:
    """Return why the payload is not the message `root`, nothing if it is one.

    What a library does with unknown fields in entries of maps, `has_maps`, is not written anywhere:
    those bytes are looked at in any case.

    Raises:
        Unavailable: if all checks are to stop.
    """
    errors = importlib.import_module("google.protobuf.message")
    try:
        work.charge(len(payload) >> _READ_SHIFT)
        _reckon(root, messages, payload, work)
        message = message_class.FromString(payload)
        is_complete = message.IsInitialized()
        if has_maps or not is_complete or _has_unknown_fields(message):
            wrong = wrong_field(root, messages, payload, work)
            if wrong is not None:
                return f"not a message {root}: {quoted(wrong)}"
    except TooMuchWork:
        return TOO_MUCH_WORK
    except (errors.DecodeError, Malformed):
        return f"not a message {root}: its bytes are no such message"
    if not is_complete:
        found = _missing(message, messages, "")
        missing = ", ".join(name for name, _ in zip(found, range(_MISSING_TOLD_MAX), strict=False))
        return f"not a message {root}: required fields are missing: {quoted(missing)}"
    return None


def _has_unknown_fields(message: Any) -> bool:
    """Say whether a complete message has some, anywhere inside; it has none afterwards."""
    size = message.ByteSize()
    message.DiscardUnknownFields()
    return bool(message.ByteSize() != size)


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
            for number, wire, start, stop in wire_fields(payload, at, end, work):
                # What is inside of a group, which no field here is, counts as if it stood outside.
                field = message.fields.get(number) if wire == BYTES else None
                if field is None or field.kind != "message":
                    continue
                if depth < limits.PAYLOAD_NESTING_MAX:
                    parts.append((field.type_name, start, stop, depth + 1))
    except Malformed:
        return


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
                # The key is a part of the payload, and not told.
                yield from _missing(value[key], messages, f"{place}{{*}}.")
