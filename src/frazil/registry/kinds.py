"""The words of the registry: schema types and their aliases, modes, policies, names."""

from __future__ import annotations

import re
from typing import Final, Literal, get_args

from frazil.errors import InvalidRequest
from frazil.registry import limits

__all__ = [
    "CompatibilityMode",
    "SchemaType",
    "ValidationPolicy",
    "below",
    "check_subject",
    "check_text",
    "check_topic",
    "compatibility_mode",
    "quoted",
    "schema_type",
    "validation_policy",
]

SchemaType = Literal["bytes", "string", "number", "avro", "json_schema", "protobuf"]
CompatibilityMode = Literal["none", "backward", "forward", "full"]
ValidationPolicy = Literal["none", "warn", "enforce"]

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
_SHOWN_CHARACTERS_MAX: Final = 128


def quoted(text: object) -> str:
    """Return text of a caller as it may stand in a message: one line, not too long."""
    line = str(text)
    if len(line) > _SHOWN_CHARACTERS_MAX:
        line = line[:_SHOWN_CHARACTERS_MAX] + "…"
    return line if line.isprintable() else ascii(line)[1:-1]


def below(place: str, mark: str, name: str = "") -> str:
    """Return a place inside of another one, no longer than what is told of it.

    A name may be as long as a definition, and have thousands of places below it.
    """
    if len(place) > _SHOWN_CHARACTERS_MAX:
        return place
    return f"{place}{mark}{name[: _SHOWN_CHARACTERS_MAX + 1]}"


def schema_type(text: str) -> SchemaType:
    """Return the type that a name or an alias means."""
    word = text.lower()
    found = _TYPES.get(word) or _ALIASES.get(word)
    if found is None:
        raise InvalidRequest(_unknown("schema type", text, (*_TYPES, *_ALIASES)))
    return found


def compatibility_mode(text: str) -> CompatibilityMode:
    """Return the mode of that name."""
    found = _MODES.get(text.lower())
    if found is None:
        raise InvalidRequest(_unknown("compatibility mode", text, tuple(_MODES)))
    return found


def validation_policy(text: str) -> ValidationPolicy:
    """Return the policy of that name."""
    found = _POLICIES.get(text.lower())
    if found is None:
        raise InvalidRequest(_unknown("validation policy", text, tuple(_POLICIES)))
    return found


def _unknown(what: str, text: str, known: tuple[str, ...]) -> str:
    return f"Invalid {what}: '{quoted(text)}', use one of: {', '.join(known)}"


def check_subject(subject: str) -> None:
    """Refuse a name that no subject may have."""
    if not subject:
        raise InvalidRequest("a subject has a name, this one is empty")
    if len(subject) > limits.SUBJECT_CHARACTERS_MAX:
        raise InvalidRequest(
            "the subject's name is too long",
            characters=len(subject),
            characters_max=limits.SUBJECT_CHARACTERS_MAX,
        )
    if not _SUBJECT.match(subject):
        raise InvalidRequest(
            f"Invalid subject: '{quoted(subject)}', use letters, digits and _ - . / : + @"
        )
    _check_bytes("subject's name", subject)


def check_topic(topic: str) -> None:
    """Refuse what cannot be a topic's name; the rules of topic names are checked above."""
    if not topic:
        raise InvalidRequest("a topic has a name, this one is empty")
    check_text("topic's name", topic, limits.TOPIC_CHARACTERS_MAX)
    _check_bytes("topic's name", topic)


def _check_bytes(what: str, text: str) -> None:
    size = len(text.encode())
    if size > limits.NAME_BYTES_MAX:
        raise InvalidRequest(f"the {what} is too long", bytes=size, bytes_max=limits.NAME_BYTES_MAX)


def check_text(what: str, text: str, characters_max: int) -> None:
    """Refuse text that is too long or that cannot be written as UTF-8."""
    if len(text) > characters_max:
        raise InvalidRequest(
            f"the {what} is too long", characters=len(text), characters_max=characters_max
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"the {what} is not valid Unicode text") from error
