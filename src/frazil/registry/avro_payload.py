"""Check that bytes are one value of an Avro type, all of it and nothing behind.

Nothing is built: the walk skips over the value. (A library that builds it, with recursion in C,
ends the process on a long list of nested records, and fills the memory with an array of a
billion items that take no byte.) Each value is charged for: one byte of a payload may be a record
of thousands of fields that take none. No reason has a value of the payload in it.
"""

from __future__ import annotations

from typing import Final

from frazil.registry import limits
from frazil.registry.avro_nodes import (
    Array,
    Enum,
    Fixed,
    Map,
    Node,
    Primitive,
    Record,
    Union,
    has_no_width,
)
from frazil.registry.kinds import quoted
from frazil.registry.work import TOO_MUCH_WORK, TooMuchWork, Work

__all__ = ["avro_refusal"]

_VARINT_BYTES_MAX: Final = 10
_WIDTHS: Final = {"float": 4, "double": 8}
_INT_BOUND: Final = 1 << 31
_LONG_BOUND: Final = 1 << 63


class _WrongError(Exception):
    """What is wrong; the path is completed on the way out."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.path = ""


def avro_refusal(node: Node, payload: bytes, work: Work) -> str | None:
    """Return why the payload is no value of the type, nothing if it is one.

    Raises:
        Unavailable: if all checks are to stop.
    """
    try:
        end = _skip(node, payload, 0, 0, work)
    except TooMuchWork:
        return TOO_MUCH_WORK
    except _WrongError as wrong:
        return f"not a value of the Avro schema at {quoted('$' + wrong.path)}: {wrong.text}"
    if end != len(payload):
        return f"not a value of the Avro schema: {len(payload) - end} bytes are left behind it"
    return None


def _skip(node: Node, data: bytes, at: int, depth: int, work: Work) -> int:
    """Return where the value that starts at `at` ends."""
    work.charge(1)
    if isinstance(node, Primitive):
        return _skip_primitive(node.kind, data, at)
    if depth > limits.PAYLOAD_NESTING_MAX:
        raise _WrongError(f"values are nested deeper than {limits.PAYLOAD_NESTING_MAX}")
    if isinstance(node, Record):
        if node.no_width:
            return at
        for field in node.fields:
            try:
                at = _skip(field.type, data, at, depth + 1, work)
            except _WrongError as wrong:
                wrong.path = f".{field.name}{wrong.path}"
                raise
        return at
    if isinstance(node, Union):
        index, at = _long(data, at)
        if not 0 <= index < len(node.branches):
            raise _WrongError(f"a branch that a union of {len(node.branches)} does not have")
        return _skip(node.branches[index], data, at, depth + 1, work)
    if isinstance(node, Enum):
        index, at = _long(data, at)
        if not 0 <= index < len(node.symbols):
            raise _WrongError(f"a symbol that {node.label} with {len(node.symbols)} does not have")
        return at
    if isinstance(node, Fixed):
        return _forward(data, at, node.size, node.label)
    assert isinstance(node, (Array, Map))
    return _skip_blocks(node, data, at, depth, work)


def _skip_blocks(node: Array | Map, data: bytes, at: int, depth: int, work: Work) -> int:
    inner = node.items if isinstance(node, Array) else node.values
    mark = "[*]" if isinstance(node, Array) else "{*}"
    free = isinstance(node, Array) and has_no_width(inner)
    while True:
        work.charge(1)
        count, at = _long(data, at)
        if count == 0:
            return at
        end = -1
        if count < 0:
            count = -count
            size, at = _long(data, at)
            end = _forward(data, at, size, "block")
        # Items without a byte are not walked over: their number has no bound.
        for _ in range(0 if free else count):
            try:
                if isinstance(node, Map):
                    work.charge(1)
                    at = _skip_primitive("string", data, at)
                at = _skip(inner, data, at, depth + 1, work)
            except _WrongError as wrong:
                wrong.path = mark + wrong.path
                raise
        if end >= 0 and at != end:
            raise _WrongError(f"a block of an {node.label} has another size than it says")


def _skip_primitive(kind: str, data: bytes, at: int) -> int:
    if kind == "null":
        return at
    if kind in {"int", "long"}:
        value, end = _long(data, at)
        if kind == "int" and not -_INT_BOUND <= value < _INT_BOUND:
            raise _WrongError("a number is out of the range of int")
        return end
    if kind == "boolean":
        end = _forward(data, at, 1, "boolean")
        if data[at] > 1:
            raise _WrongError("a boolean that is neither 0 nor 1")
        return end
    if kind in _WIDTHS:
        return _forward(data, at, _WIDTHS[kind], kind)
    size, start = _long(data, at)
    end = _forward(data, start, size, kind)
    if kind == "string":
        try:
            data[start:end].decode()
        except UnicodeDecodeError:
            raise _WrongError("a string is not valid UTF-8") from None
    return end


def _forward(data: bytes, at: int, size: int, what: str) -> int:
    if size < 0:
        raise _WrongError(f"a {what} of negative size")
    if size > len(data) - at:
        raise _WrongError(f"a {what} is longer than the {len(data) - at} bytes that are left")
    return at + size


def _long(data: bytes, at: int) -> tuple[int, int]:
    """Return the zigzag number at `at`, and where it ends."""
    value = 0
    for index in range(_VARINT_BYTES_MAX):
        if at + index >= len(data):
            raise _WrongError("the payload ends inside a number")
        byte = data[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            number = (value >> 1) ^ -(value & 1)
            if not -_LONG_BOUND <= number < _LONG_BOUND:
                raise _WrongError("a number is out of the range of long")
            return number, at + index + 1
    raise _WrongError(f"a number is longer than {_VARINT_BYTES_MAX} bytes")
