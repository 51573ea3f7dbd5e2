"""How a call ends when it fails: a gRPC status code and a text, as published clients know them.

`status_of` is the one way from an error to a status. The codes of the error tree are those of
`frazil.errors.CODES`, which all front ends share; a `Wording` says where the protocol has a code
or a text of its own for what a call met. The functions are the statuses with a fixed text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from frazil.errors import (
    Conflict,
    FrazilError,
    InvalidRequest,
    NotFound,
    Overloaded,
    codes_of,
)
from frazil.serve.grpc.codec import CallFailed, Code

__all__ = [
    "ACKING",
    "CREATING_PRODUCER",
    "NACKING",
    "PUBLISHING",
    "REGISTERING",
    "Refused",
    "Status",
    "Wording",
    "client_type_unknown",
    "consumer_unknown",
    "consumers_full",
    "credentials_missing",
    "malformed_request",
    "message_id_missing",
    "message_too_large",
    "mode_invalid",
    "name_clash",
    "namespace_missing",
    "not_granted",
    "part_not_deletable",
    "parts_fixed",
    "policy_invalid",
    "producer_unknown",
    "producers_full",
    "record_refused",
    "schema_id_unknown",
    "schema_missing",
    "status_of",
    "strategy_differs",
    "strategy_unknown",
    "subject_differs",
    "subject_unknown",
    "subject_unregistered",
    "subscription_taken",
    "token_invalid",
    "topic_draining",
    "topic_missing",
    "topic_name_invalid",
    "topic_not_found",
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
"""What a call makes of an error class: its code, and the text before the error's own."""

PUBLISHING: Final[Wording] = {
    InvalidRequest: (Code.PERMISSION_DENIED, "Unable to publish the message: "),
}
CREATING_PRODUCER: Final[Wording] = {
    InvalidRequest: (Code.PERMISSION_DENIED, "Not able to create the Producer: "),
}
ACKING: Final[Wording] = {NotFound: (Code.INTERNAL, "Error acknowledging message: ")}
NACKING: Final[Wording] = {NotFound: (Code.INTERNAL, "Error negatively acknowledging message: ")}
REGISTERING: Final[Wording] = {Conflict: (Code.INTERNAL, "Failed to register schema: ")}

_CALLERS_FACTS: Final = (InvalidRequest, NotFound, Conflict)
"""Errors whose facts are the caller's own. Those of the others are the server's: files, causes."""
_FACTS_FOR_ALL: Final = frozenset({"outcome", "retry_after_ms"})
_FACTS_OF_A_LIMIT: Final = _FACTS_FOR_ALL | {"topic", "subscription"}
_LIMIT: Final = "_max"
"""What the name of a limit ends with; how much of the server is in use is not told."""
_INTERNAL: Final = Status(Code.INTERNAL, "internal error")


def status_of(error: BaseException, wording: Wording | None = None) -> Status:
    """Return how a call ends that met `error`.

    A stranger is a bug of ours: its text stays in the log and does not go to the client.
    """
    if isinstance(error, CallFailed):
        return Status(error.code, error.text)
    if not isinstance(error, FrazilError):
        return _INTERNAL
    text = _text_of(error)
    for cls in type(error).__mro__:
        if wording is not None and cls in wording:
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
    if len(text) <= TEXT_CHARACTERS_MAX:
        return text
    return text[: TEXT_CHARACTERS_MAX - 1] + "…"


def _shown(name: str) -> str:
    """Render a name from the wire on one line of a bounded length."""
    if not name.isprintable():
        name = ascii(name)[1:-1]
    return name if len(name) <= NAME_CHARACTERS_MAX else name[:NAME_CHARACTERS_MAX] + "…"


# ------------------------------------------------------------------------------- any call
def malformed_request(kind: str) -> Status:
    """Say that the bytes are no message of this type, or a text in it is not UTF-8."""
    return Status(Code.INVALID_ARGUMENT, f"the request is not a valid {_shown(kind)}")


def message_id_missing() -> Status:
    """Say that a message names no record."""
    return Status(Code.INVALID_ARGUMENT, "the request has no msg_id")


def topic_name_invalid(topic: str) -> Status:
    """Say that a topic name has the wrong shape."""
    return Status(
        Code.INVALID_ARGUMENT,
        f"The topic: {_shown(topic)} has an invalid format, should be: /namespace_name/topic_name",
    )


def credentials_missing() -> Status:
    """Say that a call needs a token or key and has none."""
    return Status(Code.UNAUTHENTICATED, "Authentication credentials are missing")


def token_invalid() -> Status:
    """Say that a token or key is not accepted; not why, which would help to guess one."""
    return Status(Code.UNAUTHENTICATED, "Invalid token")


def not_granted(action: str, resource: str) -> Status:
    """Say that no role lets the caller do this."""
    return Status(
        Code.PERMISSION_DENIED, f"no binding grants {_shown(action)} on {_shown(resource)}"
    )


# --------------------------------------------------------------------- look-up and topics
def topic_not_found(topic: str) -> Status:
    """Answer a look-up of a topic that does not exist."""
    return Status(Code.NOT_FOUND, f"Unable to find the requested topic: {_shown(topic)}")


def topic_missing(topic: str) -> Status:
    """Answer a producer, where topics are not made for it, or a consumer of a missing topic."""
    return Status(Code.NOT_FOUND, f"Unable to find the topic: {_shown(topic)}")


def namespace_missing(namespace: str) -> Status:
    """Say that a topic cannot be made; the misspelling is the protocol's."""
    return Status(
        Code.UNAVAILABLE,
        f"Unable to find the namespace {_shown(namespace)}, "
        "the topic can be created only for an exisiting namespace",
    )


def name_clash(topic: str, other: str) -> Status:
    """Say that a plain topic and parts of the same base name exclude each other."""
    return Status(
        Code.ALREADY_EXISTS,
        f"The topic {_shown(topic)} can't be created, {_shown(other)} already exists",
    )


def parts_fixed(topic: str, whole: str, parts: int) -> Status:
    """Say that a topic that was made with its parts gets no more of them."""
    return Status(
        Code.ALREADY_EXISTS,
        f"The topic {_shown(topic)} can't be created, {_shown(whole)} was made with {parts} partitions",
    )


def part_not_deletable(topic: str) -> Status:
    """Say that one part cannot be deleted without the others."""
    return Status(
        Code.FAILED_PRECONDITION,
        f"Cannot delete individual partition {_shown(topic)}, delete the whole topic",
    )


def topic_draining(topic: str) -> Status:
    """Say that a topic is closing; clients try again."""
    return Status(Code.UNAVAILABLE, f"The topic {_shown(topic)} is closing, try again")


# ------------------------------------------------------------------------------ producers
def strategy_unknown(strategy: int) -> Status:
    """Say that a producer asks for a kind of delivery that does not exist."""
    return Status(Code.INVALID_ARGUMENT, f"The dispatch strategy {strategy} does not exist")


def strategy_differs() -> Status:
    """Say that a topic is reliable and the producer wants it otherwise, or the reverse."""
    return Status(
        Code.FAILED_PRECONDITION,
        "Producer requested dispatch strategy does not match topic strategy",
    )


def subject_differs(topic: str, *, used: str, asked: str) -> Status:
    """Say that a topic has another schema subject."""
    return Status(
        Code.FAILED_PRECONDITION,
        f"Topic '{_shown(topic)}' uses schema subject '{_shown(used)}', "
        f"cannot use '{_shown(asked)}'. Only admin can change topic schema.",
    )


def subject_unregistered(subject: str) -> Status:
    """Say that a producer names a subject without a schema."""
    return Status(
        Code.FAILED_PRECONDITION,
        f"Schema subject '{_shown(subject)}' not found in registry, register it first",
    )


def producers_full(topic: str, *, producers_max: int) -> Status:
    """Say that a topic has as many producers as it may."""
    return Status(
        Code.RESOURCE_EXHAUSTED,
        f"The topic {_shown(topic)} has the maximum of {producers_max} producers",
    )


def producer_unknown(producer_id: int) -> Status:
    """Say that no producer has this id."""
    return Status(Code.NOT_FOUND, f"The producer with id {producer_id} does not exist")


def record_refused(reason: str) -> Status:
    """Say that the record itself cannot be published, and why."""
    return Status(Code.PERMISSION_DENIED, _cut(f"Unable to publish the message: {reason}"))


def too_many_attributes(*, attributes_max: int) -> Status:
    """Say that a message has so many attributes that it is not looked at."""
    error = InvalidRequest("message has too many attributes", attributes_max=attributes_max)
    return status_of(error, PUBLISHING)


def message_too_large(*, size_bytes: int, size_bytes_max: int) -> Status:
    """Say that a message is above its limit."""
    return Status(
        Code.INVALID_ARGUMENT,
        f"The message of {size_bytes} bytes is larger than the maximum of {size_bytes_max} bytes",
    )


# ------------------------------------------------------------------------------ consumers
def subscription_taken(topic: str, consumer: str) -> Status:
    """Say that an Exclusive subscription has a consumer already."""
    return Status(
        Code.PERMISSION_DENIED,
        f"Not able to subscribe to the topic {_shown(topic)} due to Not allowed to add the "
        f"Consumer: {_shown(consumer)}, "
        "the Exclusive subscription can't be shared with other consumers",
    )


def consumers_full(topic: str, *, consumers_max: int) -> Status:
    """Say that a topic has as many consumers as it may."""
    return Status(
        Code.RESOURCE_EXHAUSTED,
        f"The topic {_shown(topic)} has the maximum of {consumers_max} consumers",
    )


def consumer_unknown(consumer_id: int) -> Status:
    """Say that no consumer has this id."""
    return Status(Code.NOT_FOUND, f"The consumer with the id {consumer_id} does not exist")


def client_type_unknown(client: int) -> Status:
    """Say that a health check is for neither a producer nor a consumer."""
    return Status(Code.INVALID_ARGUMENT, f"The client type {client} does not exist")


# --------------------------------------------------------------------------------- schemas
def schema_id_unknown(schema_id: int) -> Status:
    """Say that no schema has this id."""
    return Status(Code.NOT_FOUND, f"Schema not found for ID: {schema_id}")


def schema_missing(subject: str) -> Status:
    """Say that a subject has no schema; the answer to GetLatestSchema."""
    return Status(Code.NOT_FOUND, f"Schema not found for subject: {_shown(subject)}")


def subject_unknown(subject: str) -> Status:
    """Say that a subject does not exist; the answer to ListVersions."""
    return Status(Code.NOT_FOUND, f"Subject not found: {_shown(subject)}")


def mode_invalid(mode: str) -> Status:
    """Say that there is no such compatibility mode."""
    return Status(
        Code.INVALID_ARGUMENT,
        f"Invalid compatibility mode: {_shown(mode)}, use none, backward, forward or full",
    )


def policy_invalid(policy: str) -> Status:
    """Say that there is no such validation policy."""
    return Status(
        Code.INVALID_ARGUMENT,
        f"Invalid validation policy: {_shown(policy)}, use none, warn or enforce",
    )
