"""Map errors to the gRPC status codes and texts that published clients expect.

`status_of` converts every error to a status. `frazil.errors.CODES` has the codes of the error tree,
which all front ends share. A `Wording` overrides a code or a text where the protocol differs.
`status` builds the statuses whose texts the protocol fixes, from `TEXTS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from frazil.errors import (
    Conflict,
    FrazilError,
    InvalidRequest,
    NotFound,
    Overloaded,
    codes_of,
)
from frazil.registry import IncompatibleSchema
from frazil.serve.grpc.codec import CallFailed, Code

__all__ = [
    "ACKING",
    "CREATING_PRODUCER",
    "NACKING",
    "PUBLISHING",
    "TEXTS",
    "Refused",
    "Status",
    "Wording",
    "record_refused",
    "status",
    "status_of",
]

TEXT_CHARACTERS_MAX: Final = 1024
NAME_CHARACTERS_MAX: Final = 256


class Status(NamedTuple):
    """The end of a call: code and text."""

    code: Code
    text: str


class Refused(CallFailed):
    """Ends a call with a status; raised where the protocol names code and text exactly."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.code, status.text)
        self.status = status


Wording = Mapping[type[FrazilError], tuple[Code, str]]
"""The status of an error class for a call: its code, and a prefix of the error's text."""

PUBLISHING: Final[Wording] = {
    InvalidRequest: (Code.PERMISSION_DENIED, "Unable to publish the message: "),
}
CREATING_PRODUCER: Final[Wording] = {
    InvalidRequest: (Code.PERMISSION_DENIED, "Not able to create the Producer: "),
}
ACKING: Final[Wording] = {NotFound: (Code.INTERNAL, "Error acknowledging message: ")}
NACKING: Final[Wording] = {NotFound: (Code.INTERNAL, "Error negatively acknowledging message: ")}
_USUAL: Final[Wording] = {IncompatibleSchema: (Code.INTERNAL, "")}
"""The error's own text begins as the protocol's does."""

TEXTS: Final[Mapping[str, Status]] = MappingProxyType(
    {
        name: Status(code, text)
        for name, code, text in (
            ("malformed_request", Code.INVALID_ARGUMENT, "the request is not a valid {kind}"),
            ("message_id_missing", Code.INVALID_ARGUMENT, "the request has no msg_id"),
            (
                "topic_name_invalid",
                Code.INVALID_ARGUMENT,
                "The topic: {topic} has an invalid format, should be: /namespace_name/topic_name",
            ),
            ("credentials_missing", Code.UNAUTHENTICATED, "Authentication credentials are missing"),
            ("token_invalid", Code.UNAUTHENTICATED, "Invalid token"),
            ("not_granted", Code.PERMISSION_DENIED, "no binding grants {action} on {resource}"),
            ("topic_not_found", Code.NOT_FOUND, "Unable to find the requested topic: {topic}"),
            ("topic_missing", Code.NOT_FOUND, "Unable to find the topic: {topic}"),
            (
                "namespace_missing",
                Code.UNAVAILABLE,
                "Unable to find the namespace {namespace}, the topic can be created only for an exisiting namespace",
            ),
            (
                "name_clash",
                Code.ALREADY_EXISTS,
                "The topic {topic} can't be created, {other} already exists",
            ),
            (
                "parts_fixed",
                Code.ALREADY_EXISTS,
                "The topic {topic} can't be created, {whole} was made with {parts} partitions",
            ),
            (
                "part_not_deletable",
                Code.FAILED_PRECONDITION,
                "Cannot delete individual partition {topic}, delete the whole topic",
            ),
            ("topic_draining", Code.UNAVAILABLE, "The topic {topic} is closing, try again"),
            (
                "strategy_unknown",
                Code.INVALID_ARGUMENT,
                "The dispatch strategy {strategy} does not exist",
            ),
            (
                "strategy_differs",
                Code.FAILED_PRECONDITION,
                "Producer requested dispatch strategy does not match topic strategy",
            ),
            (
                "subject_differs",
                Code.FAILED_PRECONDITION,
                "Topic '{topic}' uses schema subject '{used}', cannot use '{asked}'. Only admin can change topic schema.",
            ),
            (
                "subject_unregistered",
                Code.FAILED_PRECONDITION,
                "Schema subject '{subject}' not found in registry, register it first",
            ),
            (
                "producers_full",
                Code.RESOURCE_EXHAUSTED,
                "The topic {topic} has the maximum of {producers_max} producers",
            ),
            (
                "producer_unknown",
                Code.NOT_FOUND,
                "The producer with id {producer_id} does not exist",
            ),
            (
                "message_too_large",
                Code.INVALID_ARGUMENT,
                "The message of {size_bytes} bytes is larger than the maximum of {size_bytes_max} bytes",
            ),
            (
                "subscription_taken",
                Code.PERMISSION_DENIED,
                "Not able to subscribe to the topic {topic} due to Not allowed to add the Consumer: {consumer}, the Exclusive subscription can't be shared with other consumers",
            ),
            (
                "consumers_full",
                Code.RESOURCE_EXHAUSTED,
                "The topic {topic} has the maximum of {consumers_max} consumers",
            ),
            (
                "consumer_unknown",
                Code.NOT_FOUND,
                "The consumer with the id {consumer_id} does not exist",
            ),
            (
                "client_type_unknown",
                Code.INVALID_ARGUMENT,
                "The client type {client} does not exist",
            ),
            ("schema_id_unknown", Code.NOT_FOUND, "Schema not found for ID: {schema_id}"),
            ("schema_missing", Code.NOT_FOUND, "Schema not found for subject: {subject}"),
            ("subject_unknown", Code.NOT_FOUND, "Subject not found: {subject}"),
            (
                "mode_invalid",
                Code.INVALID_ARGUMENT,
                "Invalid compatibility mode: {mode}, use none, backward, forward or full",
            ),
            (
                "policy_invalid",
                Code.INVALID_ARGUMENT,
                "Invalid validation policy: {policy}, use none, warn or enforce",
            ),
        )
    }
)
"""The statuses that the protocol fixes: code, and the text with its facts in braces."""

_CALLERS_FACTS: Final = (InvalidRequest, NotFound, Conflict)
"""Errors with facts from the caller. Other errors have the server's: files, causes."""
_FACTS_FOR_ALL: Final = frozenset({"outcome", "retry_after_ms"})
_FACTS_OF_A_LIMIT: Final = _FACTS_FOR_ALL | {"topic", "subscription"}
_LIMIT: Final = "_max"
"""The end of the name of a limit; how much of the server is in use is not disclosed."""
_INTERNAL: Final = Status(Code.INTERNAL, "internal error")


def status(name: str, **facts: object) -> Status:
    """Return the status of this name in `TEXTS`; names from the wire are printed on one line."""
    code, text = TEXTS[name]
    shown = {key: _shown(fact) if isinstance(fact, str) else fact for key, fact in facts.items()}
    return Status(code, _cut(text.format(**shown)))


def status_of(error: BaseException, wording: Wording = _USUAL) -> Status:
    """Return how a call ends that met `error`.

    A stranger is a bug of ours: its text stays in the log and does not go to the client.
    """
    if isinstance(error, CallFailed):
        return Status(error.code, error.text)
    if not isinstance(error, FrazilError):
        return _INTERNAL
    text = _text_of(error)
    for cls in type(error).__mro__:
        if cls in wording:
            code, before = wording[cls]
            return Status(code, _cut(before + text))
    return Status(Code[codes_of(error).grpc], _cut(text))


def _text_of(error: FrazilError) -> str:
    if isinstance(error, _CALLERS_FACTS):
        return str(error)
    if isinstance(error, Overloaded):
        facts = {
            key: value
            for key, value in error.details.items()
            if key in _FACTS_OF_A_LIMIT or key.endswith(_LIMIT)
        }
    else:
        facts = {key: value for key, value in error.details.items() if key in _FACTS_FOR_ALL}
    return str(FrazilError(error.message, **facts))


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARACTERS_MAX else text[: TEXT_CHARACTERS_MAX - 1] + "…"


def _shown(name: str) -> str:
    """Render a name from the wire on one line of a bounded length."""
    if not name.isprintable():
        name = ascii(name)[1:-1]
    return name if len(name) <= NAME_CHARACTERS_MAX else name[:NAME_CHARACTERS_MAX] + "…"


def record_refused(reason: str) -> Status:
    """Return the status of a record that cannot be published, with the reason."""
    return Status(Code.PERMISSION_DENIED, _cut(f"Unable to publish the message: {reason}"))
