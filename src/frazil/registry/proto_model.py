"""A Protobuf definition: its messages as they are on the wire, and the check of payloads."""

from __future__ import annotations

import contextlib
import importlib
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, Final

import attrs

from frazil.errors import InvalidRequest
from frazil.registry import json_text, limits
from frazil.registry.kinds import quoted
from frazil.registry.proto_parser import WELL_KNOWN, canonical_proto, parse_tokens
from frazil.registry.proto_payload import protobuf_refusal
from frazil.registry.proto_tokens import tokenize
from frazil.registry.work import TooMuchWork, Work

__all__ = [
    "NumberRanges",
    "ProtoEnum",
    "ProtoField",
    "ProtoMessage",
    "ProtobufSchema",
    "parse_protobuf",
]

_KINDS: Final = {
    1: "double",
    2: "float",
    3: "int64",
    4: "uint64",
    5: "int32",
    6: "fixed64",
    7: "fixed32",
    8: "bool",
    9: "string",
    10: "group",
    11: "message",
    12: "bytes",
    13: "uint32",
    14: "enum",
    15: "sfixed32",
    16: "sfixed64",
    17: "sint32",
    18: "sint64",
}
_LABELS: Final = {1: "optional", 2: "required", 3: "repeated"}
_UNPACKED: Final = frozenset(("string", "bytes", "message", "group"))
_LIBRARY_NUMBERS: Final = range(19_000, 20_000)
_FILES_MAX: Final = 256
_PART_UNITS: Final = 5
"""A message, an enum, a field or a value."""
_NAME_SHIFT: Final = 6
"""64 characters of a full name are one unit of work."""
_TEXT_CONTROLS: Final = frozenset("\t\n\r\f\v")


@attrs.frozen
class ProtoField:
    """A field as the wire knows it; `type_name` is the full name of a message or an enum."""

    number: int
    name: str
    kind: str
    label: str
    packed: bool
    type_name: str
    oneof: int | None


@attrs.frozen
class NumberRanges:
    """Half-open ranges of numbers, sorted and apart from each other."""

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]]) -> NumberRanges:
        """Return ranges in any order as one set of numbers."""
        merged: list[tuple[int, int]] = []
        for first, end in sorted(ranges):
            if merged and first <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((first, end))
        return cls(tuple(merged))

    def __contains__(self, number: int) -> bool:
        return self.first_outside(number, number + 1) is None

    def first_outside(self, first: int, end: int) -> int | None:
        """Return the first number of a range that is not here, nothing if all are."""
        at = bisect_right(self.ranges, first, key=lambda each: each[0]) - 1
        if at >= 0 and first < self.ranges[at][1]:
            first = self.ranges[at][1]
        return first if first < end else None


@attrs.frozen
class ProtoMessage:
    """Fields by number, and the numbers that none may have."""

    name: str
    fields: dict[int, ProtoField]
    reserved: NumberRanges
    is_map_entry: bool


@attrs.frozen
class ProtoEnum:
    """Values by number; a closed enum (proto2) does not keep a number that it has no name for."""

    name: str
    values: dict[int, str]
    is_closed: bool


@attrs.frozen(eq=False)
class ProtobufSchema:
    """A checked definition; payloads are values of the message `root`."""

    root: str
    messages: dict[str, ProtoMessage]
    enums: dict[str, ProtoEnum]
    fingerprint: str
    _message_class: Any
    _has_maps: bool

    def refusal(self, payload: bytes, work: Work | None = None) -> str | None:
        """Return why the payload is not the root message, nothing if it is one."""
        return protobuf_refusal(
            self.root,
            self.messages,
            self._message_class,
            payload,
            work or Work(),
            has_maps=self._has_maps,
        )


def parse_protobuf(data: bytes) -> ProtobufSchema:
    """Return the schema of a .proto text or of a serialized FileDescriptorSet."""
    text = _text_of(data)
    if text is None:
        files = _read_set(data)
        fingerprint = json_text.fingerprint(data)
    else:
        tokens = tokenize(text)
        files = [parse_tokens(tokens)]
        fingerprint = json_text.fingerprint(canonical_proto(tokens))
    if not files[-1].message_type:
        raise InvalidRequest("the Protobuf definition has no message")
    pool, resolved = _resolve(files)
    messages: dict[str, ProtoMessage] = {}
    enums: dict[str, ProtoEnum] = {}
    for each in resolved:
        _collect(each, messages, enums)
    package = files[-1].package
    first = files[-1].message_type[0].name
    root = f"{package}.{first}" if package else first
    message_class = _message_class(pool, root, messages)
    has_maps = any(message.is_map_entry for message in messages.values())
    return ProtobufSchema(root, messages, enums, fingerprint, message_class, has_maps)


def _message_class(pool: Any, root: str, messages: Iterable[str]) -> Any:
    """Return the class of a message.

    The library makes a class, and then those of its fields, one inside of the other. In a chain of
    messages that is longer than the stack those that were made stay, and the rest is made after.
    """
    factory = importlib.import_module("google.protobuf.message_factory")
    wanted = pool.FindMessageTypeByName(root)
    try:
        return factory.GetMessageClass(wanted)
    except RecursionError:
        for name in messages:
            with contextlib.suppress(RecursionError):
                factory.GetMessageClass(pool.FindMessageTypeByName(name))
    return factory.GetMessageClass(wanted)


def _text_of(data: bytes) -> str | None:
    """Return a .proto text; nothing for bytes that no text has, which a descriptor always has."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    if any(each < " " and each not in _TEXT_CONTROLS for each in set(text)):
        return None
    return text


def _read_set(data: bytes) -> list[Any]:
    descriptors = importlib.import_module("google.protobuf.descriptor_pb2")
    errors = importlib.import_module("google.protobuf.message")
    try:
        found = descriptors.FileDescriptorSet.FromString(data)
    except errors.DecodeError as error:
        raise InvalidRequest(
            "the Protobuf definition is neither .proto text nor a serialized FileDescriptorSet"
        ) from error
    files = list(found.file)
    if not files:
        raise InvalidRequest("the FileDescriptorSet has no file")
    if len(files) > _FILES_MAX:
        raise InvalidRequest(
            "the FileDescriptorSet has too many files", files=len(files), files_max=_FILES_MAX
        )
    for each in files:
        if each.syntax not in {"", "proto2", "proto3"}:
            raise InvalidRequest(
                f"the file '{quoted(each.name)}' has syntax '{quoted(each.syntax)}',"
                " known are proto2 and proto3"
            )
        if each.extension:
            raise InvalidRequest("extensions of other messages are not supported")
    return files


def _resolve(files: list[Any]) -> tuple[Any, list[Any]]:
    """Return a pool with the files, and them with the full name of each type."""
    pools = importlib.import_module("google.protobuf.descriptor_pool")
    descriptors = importlib.import_module("google.protobuf.descriptor_pb2")
    pool = pools.DescriptorPool()
    given = {each.name for each in files}
    try:
        for path in {path for each in files for path in each.dependency} - given:
            _add_well_known(pool, path)
        sizes = _Sizes()
        for each in files:
            _check_names(each, sizes)
        sizes.check_references()
        for each in files:
            pool.AddSerializedFile(each.SerializeToString())
        resolved = []
        for name in dict.fromkeys(_all_names(pool, files)):
            copy = descriptors.FileDescriptorProto()
            pool.FindFileByName(name).CopyToProto(copy)
            resolved.append(copy)
    except (TypeError, ValueError, KeyError) as error:
        text = str(error).partition("descriptor pool: ")[2] or str(error)
        raise InvalidRequest(f"invalid Protobuf definition: {quoted(text)}") from error
    return pool, resolved


def _add_well_known(pool: Any, path: str) -> None:
    if path not in WELL_KNOWN:
        raise InvalidRequest(f"the Protobuf definition lacks the file '{quoted(path)}'")
    module = importlib.import_module(WELL_KNOWN[path])
    pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)


def _all_names(pool: Any, files: list[Any]) -> list[str]:
    names = [path for each in files for path in each.dependency] + [each.name for each in files]
    return [name for name in names if pool.FindFileByName(name)]


class _Sizes:
    """The parts of a definition and their full names, which the library writes out for each.

    Parts are counted before any of them is looked at: half a million empty messages are one
    megabyte, and each is an object of Python once it is.
    """

    def __init__(self) -> None:
        self._work = Work.of_definition()
        self._fields = 0
        self._longest = 0

    def add(self, name: str, parts: int, *, fields: int = 0) -> None:
        """Count so many parts of a package, a message or an enum, which all have its name."""
        if len(name) > limits.TYPE_NAME_CHARACTERS_MAX:
            raise InvalidRequest(
                f"a full name of the Protobuf definition is too long: '{quoted(name)}'",
                characters=len(name),
                characters_max=limits.TYPE_NAME_CHARACTERS_MAX,
            )
        self._fields += fields
        self._longest = max(self._longest, len(name))
        self._charge(parts * (_PART_UNITS + (len(name) >> _NAME_SHIFT)))

    def check_references(self) -> None:
        """Count the full names of the types of fields: none is longer than the longest."""
        self._charge(self._fields * (self._longest >> _NAME_SHIFT))

    def _charge(self, units: int) -> None:
        try:
            self._work.charge(units)
        except TooMuchWork:
            raise InvalidRequest(
                "the Protobuf definition has too many messages, fields and values, or their full"
                " names are too long, all together"
            ) from None


def _check_names(file: Any, sizes: _Sizes) -> None:
    """Refuse what the library lets pass: numbers and names twice, or reserved, or its own."""
    sizes.add(file.package, len(file.message_type) + len(file.enum_type))
    work = [(message, 1, file.package) for message in file.message_type]
    enums = [(each, file.package) for each in file.enum_type]
    while work:
        message, depth, scope = work.pop()
        if depth > limits.NESTING_MAX:
            raise InvalidRequest("messages are nested too deep", levels_max=limits.NESTING_MAX)
        name = f"{scope}.{message.name}"
        fields = len(message.field)
        parts = fields + len(message.nested_type) + len(message.enum_type)
        sizes.add(name, parts, fields=fields)
        work.extend((inner, depth + 1, name) for inner in message.nested_type)
        enums.extend((each, name) for each in message.enum_type)
        if message.extension:
            raise InvalidRequest("extensions of other messages are not supported")
        _check_fields(message)
    for each, scope in enums:
        sizes.add(f"{scope}.{each.name}", len(each.value))


def _check_fields(message: Any) -> None:
    place = f"invalid Protobuf definition: message '{quoted(message.name)}'"
    reserved = _reserved(message)
    reserved_names = set(message.reserved_name)
    numbers: set[int] = set()
    names: set[str] = set()
    for field in message.field:
        name = quoted(field.name)
        if field.number in numbers:
            raise InvalidRequest(f"{place} has the number {field.number} twice")
        if field.name in names:
            raise InvalidRequest(f"{place} has the field '{name}' twice")
        if field.number in _LIBRARY_NUMBERS:
            raise InvalidRequest(f"{place}: 19000 to 19999 belong to the library: '{name}'")
        if field.number in reserved:
            raise InvalidRequest(f"{place}: the number of '{name}' is reserved: {field.number}")
        if field.name in reserved_names:
            raise InvalidRequest(f"{place}: the name of '{name}' is reserved")
        if field.type == 10:
            raise InvalidRequest(f"{place}: groups are not supported: '{name}'")
        numbers.add(field.number)
        names.add(field.name)


def _reserved(message: Any) -> NumberRanges:
    return NumberRanges.of((each.start, each.end) for each in message.reserved_range)


def _collect(file: Any, messages: dict[str, ProtoMessage], enums: dict[str, ProtoEnum]) -> None:
    is_proto3 = file.syntax == "proto3"
    prefix = f"{file.package}." if file.package else ""
    work = [(prefix, message) for message in file.message_type]
    found = [(prefix, each) for each in file.enum_type]
    while work:
        scope, message = work.pop()
        name = scope + message.name
        messages[name] = ProtoMessage(
            name,
            {field.number: _field(field, is_proto3=is_proto3) for field in message.field},
            _reserved(message),
            is_map_entry=message.options.map_entry,
        )
        work.extend((f"{name}.", inner) for inner in message.nested_type)
        found.extend((f"{name}.", each) for each in message.enum_type)
    for scope, each in found:
        name = scope + each.name
        enums[name] = ProtoEnum(
            name, {value.number: value.name for value in each.value}, is_closed=not is_proto3
        )


def _field(field: Any, *, is_proto3: bool) -> ProtoField:
    kind = _KINDS[field.type]
    can_pack = field.label == 3 and kind not in _UNPACKED
    packed = field.options.packed if field.options.HasField("packed") else is_proto3
    in_oneof = field.HasField("oneof_index") and not field.proto3_optional
    return ProtoField(
        number=field.number,
        name=field.name,
        kind=kind,
        label=_LABELS[field.label],
        packed=can_pack and packed,
        type_name=field.type_name.removeprefix("."),
        oneof=field.oneof_index if in_oneof else None,
    )
