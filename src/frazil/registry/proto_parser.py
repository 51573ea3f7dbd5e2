"""A .proto text (proto2 or proto3) as the descriptor that the protobuf library takes.

What has no meaning on the wire (options, services, defaults) is read over. Groups, extensions,
editions and imports of other files are refused: a definition stands alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from frazil.registry import limits
from frazil.registry.kinds import quoted
from frazil.registry.proto_tokens import END, Tokens, tokenize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.registry.proto_tokens import Token

__all__ = ["FILE_NAME", "WELL_KNOWN", "canonical_proto", "parse_proto", "parse_tokens"]

FILE_NAME: Final = "schema.proto"
WELL_KNOWN: Final = {
    f"google/protobuf/{name}.proto": f"google.protobuf.{name}_pb2"
    for name in ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
}
_SCALARS: Final = {
    "double": 1,
    "float": 2,
    "int64": 3,
    "uint64": 4,
    "int32": 5,
    "fixed64": 6,
    "fixed32": 7,
    "bool": 8,
    "string": 9,
    "bytes": 12,
    "uint32": 13,
    "sfixed32": 15,
    "sfixed64": 16,
    "sint32": 17,
    "sint64": 18,
}
_KEYS: Final = frozenset(_SCALARS) - {"double", "float", "bytes"}
_LABELS: Final = {"optional": 1, "required": 2, "repeated": 3}
_MESSAGE_TYPE: Final = 11
_NUMBER_MAX: Final = (1 << 29) - 1
_ENUM_MAX: Final = (1 << 31) - 1
_REFUSED: Final = {
    "extend": "extensions of other messages are not supported",
    "group": "groups are not supported, use a nested message",
    "edition": "editions are not supported, use syntax proto2 or proto3",
}


def canonical_proto(tokens: Sequence[Token]) -> bytes:
    """Return the words of a text alone: spaces and comments make no other schema."""
    return " ".join(token.text for token in tokens).encode()


def parse_proto(text: str) -> Any:
    """Return the FileDescriptorProto of a text."""
    return parse_tokens(tokenize(text))


def parse_tokens(tokens: list[Token]) -> Any:
    """Return the FileDescriptorProto of the words of a text."""
    return _Parser(tokens).file()


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = Tokens(tokens)
        self._descriptors = importlib.import_module("google.protobuf.descriptor_pb2")
        self._is_proto3 = False

    def file(self) -> Any:
        tokens = self._tokens
        found = self._descriptors.FileDescriptorProto(name=FILE_NAME)
        if tokens.accept("syntax"):
            tokens.expect("=")
            syntax = tokens.string("a syntax")
            if syntax not in {"proto2", "proto3"}:
                raise tokens.refuse(f"syntax '{quoted(syntax)}' is not supported")
            tokens.expect(";")
            self._is_proto3 = syntax == "proto3"
        found.syntax = "proto3" if self._is_proto3 else "proto2"
        while tokens.next.kind != END:
            self._top_level(found)
        return found

    def _top_level(self, found: Any) -> None:
        tokens = self._tokens
        self._refuse_unsupported()
        if tokens.accept("import"):
            found.dependency.append(self._import())
        elif tokens.accept("package"):
            if found.package:
                raise tokens.refuse("there is more than one package")
            found.package = tokens.full_name("a package")
            tokens.expect(";")
        elif tokens.accept("option"):
            tokens.skip_statement()
        elif tokens.accept("message"):
            self._message(found.message_type.add(), 1)
        elif tokens.accept("enum"):
            self._enum(found.enum_type.add())
        elif tokens.accept("service"):
            tokens.take("name", "the name of a service")
            tokens.skip_block()
        else:
            tokens.expect(";")

    def _refuse_unsupported(self) -> None:
        token = self._tokens.next
        if token.kind == "name" and token.text in _REFUSED:
            raise self._tokens.refuse(_REFUSED[token.text])

    def _import(self) -> str:
        tokens = self._tokens
        if not tokens.accept("public"):
            tokens.accept("weak")
        path = tokens.string("the path of a file")
        if path not in WELL_KNOWN:
            raise tokens.refuse(
                f"import of '{quoted(path)}': a definition stands alone; write its messages into"
                " the text, or register a serialized FileDescriptorSet with all files"
            )
        tokens.expect(";")
        return path

    def _message(self, found: Any, depth: int) -> None:
        tokens = self._tokens
        if depth > limits.NESTING_MAX:
            raise tokens.refuse(f"messages are nested deeper than {limits.NESTING_MAX}")
        found.name = tokens.take("name", "the name of a message")
        tokens.expect("{")
        while not tokens.accept("}"):
            if tokens.accept("message"):
                self._message(found.nested_type.add(), depth + 1)
            elif tokens.accept("enum"):
                self._enum(found.enum_type.add())
            elif tokens.accept("option"):
                tokens.skip_statement()
            elif tokens.accept("reserved"):
                self._reserved(found, _NUMBER_MAX, exclusive=1)
            elif tokens.accept("extensions"):
                self._ranges(found.extension_range, _NUMBER_MAX, exclusive=1)
                tokens.skip_statement()
            elif tokens.accept("oneof"):
                self._oneof(found)
            elif not tokens.accept(";"):
                self._refuse_unsupported()
                self._field(found, None)
        self._add_presence(found)

    def _add_presence(self, found: Any) -> None:
        """Give each `optional` field of proto3 the oneof of its own that presence is told by."""
        for field in found.field:
            if field.proto3_optional:
                field.oneof_index = len(found.oneof_decl)
                found.oneof_decl.add(name=f"_{field.name}")

    def _oneof(self, found: Any) -> None:
        tokens = self._tokens
        index = len(found.oneof_decl)
        found.oneof_decl.add(name=tokens.take("name", "the name of a oneof"))
        tokens.expect("{")
        while not tokens.accept("}"):
            if tokens.accept("option"):
                tokens.skip_statement()
            elif not tokens.accept(";"):
                self._refuse_unsupported()
                self._field(found, index)

    def _field(self, found: Any, oneof: int | None) -> None:
        tokens = self._tokens
        label = ""
        if tokens.next.text in _LABELS and tokens.next.kind == "name":
            label = tokens.take("name", "a label")
            if oneof is not None:
                raise tokens.refuse(f"a field of a oneof has no label '{label}'")
            self._refuse_unsupported()
        if not label and tokens.accept("map"):
            if oneof is not None:
                raise tokens.refuse("a map cannot be in a oneof")
            self._map(found)
            return
        field = found.field.add(label=_LABELS[label or "optional"])
        self._type(field)
        field.name = tokens.take("name", "the name of a field")
        tokens.expect("=")
        field.number = self._number("the number of a field", 1, _NUMBER_MAX)
        self._field_options(field)
        if oneof is not None:
            field.oneof_index = oneof
        elif self._is_proto3:
            if label == "required":
                raise tokens.refuse("proto3 has no required fields")
            field.proto3_optional = label == "optional"
        elif not label:
            raise tokens.refuse("a field of proto2 is optional, required or repeated")

    def _type(self, field: Any) -> None:
        name = self._tokens.full_name("a type")
        if name in _SCALARS:
            field.type = _SCALARS[name]
        else:
            field.type_name = name

    def _map(self, found: Any) -> None:
        tokens = self._tokens
        tokens.expect("<")
        key = tokens.take("name", "the key's type")
        if key not in _KEYS:
            raise tokens.refuse(f"'{quoted(key)}' cannot be the key of a map")
        tokens.expect(",")
        value = self._descriptors.FieldDescriptorProto(name="value", number=2, label=1)
        self._type(value)
        tokens.expect(">")
        name = tokens.take("name", "the name of a field")
        tokens.expect("=")
        number = self._number("the number of a field", 1, _NUMBER_MAX)
        field = found.field.add(name=name, number=number, label=3, type=_MESSAGE_TYPE)
        self._field_options(field)
        entry = found.nested_type.add(
            name="".join(part[:1].upper() + part[1:] for part in name.split("_")) + "Entry"
        )
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=1, type=_SCALARS[key])
        entry.field.append(value)
        field.type_name = entry.name

    def _field_options(self, field: Any) -> None:
        """Read `[...]` for `packed`, the one option that changes the wire, to the semicolon."""
        tokens = self._tokens
        if tokens.accept("["):
            depth = 1
            while depth:
                if tokens.next.kind == END:
                    raise tokens.refuse("']' expected, found the end")
                if depth == 1 and tokens.accept("packed"):
                    tokens.expect("=")
                    field.options.packed = tokens.accept("true")
                    continue
                depth += tokens.accept("[") - tokens.accept("]")
                if depth and tokens.next.text not in {"[", "]"}:
                    tokens.skip()
        tokens.expect(";")

    def _number(self, what: str, low: int, high: int) -> int:
        number = self._tokens.integer(what)
        if not low <= number <= high:
            raise self._tokens.refuse(f"{what} is from {low} to {high}, not {quoted(number)}")
        return number

    def _enum(self, found: Any) -> None:
        tokens = self._tokens
        found.name = tokens.take("name", "the name of an enum")
        tokens.expect("{")
        while not tokens.accept("}"):
            if tokens.accept("option"):
                if tokens.accept("allow_alias"):
                    tokens.expect("=")
                    found.options.allow_alias = tokens.accept("true")
                tokens.skip_statement()
            elif tokens.accept("reserved"):
                self._reserved(found, _ENUM_MAX, exclusive=0)
            elif not tokens.accept(";"):
                name = tokens.take("name", "the name of a value")
                tokens.expect("=")
                number = self._number("the number of a value", -_ENUM_MAX - 1, _ENUM_MAX)
                found.value.add(name=name, number=number)
                tokens.skip_statement()

    def _reserved(self, found: Any, number_max: int, *, exclusive: int) -> None:
        tokens = self._tokens
        if tokens.next.kind == "text":
            found.reserved_name.append(tokens.string("a name"))
            while tokens.accept(","):
                found.reserved_name.append(tokens.string("a name"))
        else:
            self._ranges(found.reserved_range, number_max, exclusive=exclusive)
        tokens.expect(";")

    def _ranges(self, found: Any, number_max: int, *, exclusive: int) -> None:
        """Read `1, 3 to 5, 9 to max`; the end of a message's range is exclusive."""
        tokens = self._tokens
        low = 1 if exclusive else -_ENUM_MAX - 1
        while True:
            start = end = self._number("a number", low, number_max)
            if tokens.accept("to"):
                end = number_max
                if not tokens.accept("max"):
                    end = self._number("a number", start, number_max)
            found.add(start=start, end=end + exclusive)
            if not tokens.accept(","):
                return
