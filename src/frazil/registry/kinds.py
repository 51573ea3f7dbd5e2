"""The vocabulary of the registry: schema types and their aliases, modes, policies, names.

Types without a definition are fully implemented here.
"""

from __future__ import annotations

import math
import re
from typing import Final, Literal, TypeVar, get_args

from frazil.errors import InvalidRequest

__all__ = [
    "INTEGER_MAX",
    "INTEGER_MIN",
    "PLAIN",
    "SHOWN_CHARACTERS_MAX",
    "CompatibilityMode",
    "SchemaType",
    "ValidationPolicy",
    "check_subject",
    "check_text",
    "check_topic",
    "compatibility_mode",
    "plain_refusal",
    "quoted",
    "schema_type",
    "validation_policy",
]

SchemaType = Literal["bytes", "string", "number", "avro", "json_schema", "protobuf"]
CompatibilityMode = Literal["none", "backward", "forward", "full"]
ValidationPolicy = Literal["none", "warn", "enforce"]

_Word = TypeVar("_Word")

PLAIN: Final = frozenset(("bytes", "string", "number"))
"""Types without a definition: their fingerprint is their name."""
_TYPES: Final[dict[str, SchemaType]] = {name: name for name in get_args(SchemaType)}
_ALIASES: Final[dict[str, SchemaType]] = {
    "int64": "number",
    "int": "number",
    "float": "number",
    "double": "number",
    "json": "json_schema",
    "proto": "protobuf",
}
_MODES: Final[dict[str, CompatibilityMode]] = {name: name for name in get_args(CompatibilityMode)}
_POLICIES: Final[dict[str, ValidationPolicy]] = {name: name for name in get_args(ValidationPolicy)}
_SUBJECT: Final = re.compile(r"[\w./:+@-]+\Z")
SHOWN_CHARACTERS_MAX: Final = 128

SUBJECT_CHARACTERS_MAX: Final = 255
NAME_BYTES_MAX: Final = 960
"""The limit of a subject's or a topic's name in UTF-8: an entry's key has at most 1,024 bytes."""
TOPIC_CHARACTERS_MAX: Final = 512

INTEGER_MIN: Final = -(1 << 63)
INTEGER_MAX: Final = (1 << 64) - 1
"""The range of a whole number in a payload: 64 bits, with or without a sign."""
_NUMBER_WIDTHS: Final = frozenset((4, 8))
_NUMBER_TEXT_BYTES_MAX: Final = 64
_NUMBER_TEXT: Final = re.compile(rb"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
"""A JSON number by RFC 8259: no space around it, no sign before it but a minus, no NaN."""


def quoted(text: object, *, most: int = SHOWN_CHARACTERS_MAX) -> str:
    """Return text of a caller or a library in a form safe for messages: one short line."""
    line = str(text)
    if len(line) > most:
        line = line[:most] + "…"
    return line if line.isprintable() else ascii(line)[1:-1]


def schema_type(text: str) -> SchemaType:
    """Return the type of a name or an alias."""
    return _meant("schema type", text, {**_TYPES, **_ALIASES})


def compatibility_mode(text: str) -> CompatibilityMode:
    """Return the mode of that name."""
    return _meant("compatibility mode", text, _MODES)


def validation_policy(text: str) -> ValidationPolicy:
    """Return the policy of that name."""
    return _meant("validation policy", text, _POLICIES)


def _meant(what: str, text: str, known: dict[str, _Word]) -> _Word:
    found = known.get(text.lower())
    if found is None:
        words = ", ".join(known)
        raise InvalidRequest(f"Invalid {what}: '{quoted(text)}', use one of: {words}")
    return found


def check_subject(subject: str) -> None:
    """Refuse an invalid name of a subject."""
    _check_name("subject", subject, SUBJECT_CHARACTERS_MAX)
    if not _SUBJECT.match(subject):
        raise InvalidRequest(
            f"Invalid subject: '{quoted(subject)}', use letters, digits and _ - . / : + @"
        )


def check_topic(topic: str) -> None:
    """Refuse an invalid key; front ends check the other rules of topic names."""
    _check_name("topic", topic, TOPIC_CHARACTERS_MAX)


def _check_name(what: str, name: str, characters_max: int) -> None:
    if not name:
        raise InvalidRequest(f"a {what} has a name, this one is empty")
    check_text(f"{what}'s name", name, characters_max)
    size = len(name.encode())
    if size > NAME_BYTES_MAX:
        raise InvalidRequest(f"the {what}'s name is too long", bytes=size, bytes_max=NAME_BYTES_MAX)


def plain_refusal(kind: SchemaType, payload: bytes) -> str | None:
    """Return why a payload does not fit a type without a definition, None if it does."""
    if kind == "string":
        try:
            payload.decode()
        except UnicodeDecodeError as error:
            return f"not a string: invalid UTF-8 at byte {error.start}"
    if kind != "number" or len(payload) in _NUMBER_WIDTHS:
        return None
    found = _NUMBER_TEXT.fullmatch(payload[: _NUMBER_TEXT_BYTES_MAX + 1])
    if found is None or len(payload) > _NUMBER_TEXT_BYTES_MAX:
        return f"not a number: neither 4 or 8 bytes nor the text of one ({len(payload)} bytes)"
    if found[1] is None and found[2] is None:
        is_held = INTEGER_MIN <= int(payload) <= INTEGER_MAX
    else:
        is_held = math.isfinite(float(payload))
    return None if is_held else "not a number of 64 bits: it is too large"


def check_text(what: str, text: str, characters_max: int) -> None:
    """Refuse text that is too long or cannot be encoded as UTF-8."""
    if len(text) > characters_max:
        raise InvalidRequest(
            f"the {what} is too long", characters=len(text), characters_max=characters_max
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"the {what} is not valid Unicode text") from error
