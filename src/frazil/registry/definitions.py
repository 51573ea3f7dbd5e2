"""Definitions of every type behind one face: a fingerprint, a check of payloads, a comparison."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from frazil.errors import InvalidRequest
from frazil.registry import json_text, limits
from frazil.registry.avro_nodes import Node
from frazil.registry.avro_parser import parse_avro
from frazil.registry.avro_payload import avro_refusal
from frazil.registry.avro_resolution import avro_reasons
from frazil.registry.json_compatibility import json_reasons
from frazil.registry.json_definition import JsonSchema
from frazil.registry.kinds import SchemaType
from frazil.registry.proto_compatibility import proto_reasons
from frazil.registry.proto_model import ProtobufSchema, parse_protobuf
from frazil.registry.work import Work

if TYPE_CHECKING:
    from frazil.registry.kinds import CompatibilityMode

__all__ = ["Definition", "incompatibilities", "parse_definition"]

_NUMBER_WIDTHS: Final = frozenset((4, 8))
_NUMBER_TEXT_BYTES_MAX: Final = 64
_NUMBER_TEXT: Final = re.compile(rb"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
"""JSON's, as RFC 8259 writes it: no space around it, no sign before it but a minus, no NaN."""


class Definition(Protocol):
    """What the registry needs to know of a parsed definition."""

    @property
    def type(self) -> SchemaType:
        """The type, never an alias."""

    @property
    def fingerprint(self) -> str:
        """Equal for definitions that mean the same text."""

    def refusal(self, payload: bytes, work: Work | None = None) -> str | None:
        """Return why a payload does not fit, nothing if it does; `work` bounds and counts it.

        Raises:
            Unavailable: if all checks are to stop, and nothing else.
        """


@attrs.frozen
class _Plain:
    """Bytes, strings and numbers need no definition."""

    type: SchemaType

    @property
    def fingerprint(self) -> str:
        return self.type

    def refusal(self, payload: bytes, work: Work | None = None) -> str | None:
        del work  # One look at the payload is little.
        if self.type == "string":
            try:
                payload.decode()
            except UnicodeDecodeError as error:
                return f"not a string: invalid UTF-8 at byte {error.start}"
        if self.type == "number" and len(payload) not in _NUMBER_WIDTHS:
            return _text_refusal(payload)
        return None


@attrs.frozen(eq=False)
class _Avro:
    node: Node
    fingerprint: str
    type: SchemaType = "avro"

    def refusal(self, payload: bytes, work: Work | None = None) -> str | None:
        return avro_refusal(self.node, payload, work or Work())


@attrs.frozen(eq=False)
class _Json:
    schema: JsonSchema
    fingerprint: str
    type: SchemaType = "json_schema"

    def refusal(self, payload: bytes, work: Work | None = None) -> str | None:
        return self.schema.refusal(payload, work or Work())


@attrs.frozen(eq=False)
class _Protobuf:
    schema: ProtobufSchema
    type: SchemaType = "protobuf"

    @property
    def fingerprint(self) -> str:
        return self.schema.fingerprint

    def refusal(self, payload: bytes, work: Work | None = None) -> str | None:
        return self.schema.refusal(payload, work or Work())


def parse_definition(kind: SchemaType, data: bytes) -> Definition:
    """Return a definition; whatever is wrong with it is an InvalidRequest that says what."""
    if len(data) > limits.DEFINITION_BYTES_MAX:
        raise InvalidRequest(
            "the schema definition is too large",
            bytes=len(data),
            bytes_max=limits.DEFINITION_BYTES_MAX,
        )
    if kind == "avro":
        value = json_text.read_definition(data, nesting_max=limits.AVRO_TEXT_NESTING_MAX)
        canonical = json_text.canonical(value)
        return _Avro(parse_avro(value), json_text.fingerprint(canonical))
    if kind == "json_schema":
        value = json_text.read_definition(data, nesting_max=limits.NESTING_MAX)
        canonical = json_text.canonical(value)
        return _Json(JsonSchema(value), json_text.fingerprint(canonical))
    if kind == "protobuf":
        return _Protobuf(parse_protobuf(data))
    return _Plain(kind)


def incompatibilities(
    *, old: Definition, new: Definition, mode: CompatibilityMode, work: Work | None = None
) -> tuple[str, ...]:
    """Return why `new` may not follow `old` in a mode, nothing if it may.

    `work` bounds and counts all of it, both directions together; what is too much is a reason.

    Raises:
        Unavailable: if `work` says that all is to stop.
    """
    if mode == "none" or (old.type, old.fingerprint) == (new.type, new.fingerprint):
        return ()
    if old.type != new.type:
        return (f"schema type changed from {old.type} to {new.type}",)
    found: list[str] = []
    work = work or Work.of_comparison()
    if mode in {"backward", "full"}:
        told = _reasons(reader=new, writer=old, reader_is_newer=True, work=work)
        found += [f"backward: {reason}" for reason in told]
    if mode in {"forward", "full"}:
        told = _reasons(reader=old, writer=new, reader_is_newer=False, work=work)
        found += [f"forward: {reason}" for reason in told]
    return tuple(found)


def _reasons(
    *, reader: Definition, writer: Definition, reader_is_newer: bool, work: Work
) -> tuple[str, ...]:
    if isinstance(reader, _Avro) and isinstance(writer, _Avro):
        return avro_reasons(reader=reader.node, writer=writer.node, work=work)
    if isinstance(reader, _Json) and isinstance(writer, _Json):
        return json_reasons(reader=reader.schema.value, writer=writer.schema.value, work=work)
    if isinstance(reader, _Protobuf) and isinstance(writer, _Protobuf):
        return proto_reasons(
            reader=reader.schema,
            writer=writer.schema,
            reader_is_newer=reader_is_newer,
            work=work,
        )
    return ()


def _text_refusal(payload: bytes) -> str | None:
    """Return why a payload of an odd width is no number in text."""
    found = None
    if len(payload) <= _NUMBER_TEXT_BYTES_MAX:
        found = _NUMBER_TEXT.fullmatch(payload)
    if found is None:
        return f"not a number: neither 4 or 8 bytes nor the text of one ({len(payload)} bytes)"
    if found[1] is None and found[2] is None:
        is_held = json_text.INTEGER_MIN <= int(payload) <= json_text.INTEGER_MAX
    else:
        is_held = math.isfinite(float(payload))
    return None if is_held else "not a number of 64 bits: it is too large"
