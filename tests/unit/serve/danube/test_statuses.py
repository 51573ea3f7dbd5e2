"""Errors end calls with the codes and texts of the protocol, and tell nobody else's business."""

from __future__ import annotations

from string import Formatter

import pytest

from frazil import errors
from frazil.serve.danube import statuses
from frazil.serve.danube.statuses import Refused, Status, status_of

CODES = [
    (errors.InvalidRequest, "INVALID_ARGUMENT"),
    (errors.NotFound, "NOT_FOUND"),
    (errors.Conflict, "FAILED_PRECONDITION"),
    (errors.Unavailable, "UNAVAILABLE"),
    (errors.Overloaded, "RESOURCE_EXHAUSTED"),
    (errors.Closed, "UNAVAILABLE"),
    (errors.CorruptionError, "DATA_LOSS"),
    (errors.CommitUnknown, "UNAVAILABLE"),
    (errors.FrazilError, "INTERNAL"),
]


def test_the_whole_tree_is_covered():
    """Every class of the error tree is in the table of this test."""
    assert {cls for cls, _ in CODES} == set(errors.CODES)


@pytest.mark.parametrize(("cls", "name"), CODES)
def test_each_error_has_its_code(cls, name):
    """An error, and a class made from it, ends a call with the code of the shared table."""
    made = type("Made", (cls,), {})
    for error in (cls("it went wrong"), made("it went wrong")):
        status = status_of(error)
        assert status.code.name == name
        assert status.text == "it went wrong"


def test_retried_codes_are_those_that_mean_try_again():
    """Clients try again exactly when the error tree says so."""
    retried = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}
    again = {errors.Unavailable, errors.Overloaded, errors.Closed, errors.CommitUnknown}
    for cls, name in CODES:
        assert (name in retried) == (cls in again)


@pytest.mark.parametrize(
    ("wording", "cls", "code", "text"),
    [
        ("PUBLISHING", "InvalidRequest", "PERMISSION_DENIED", "Unable to publish the message: "),
        ("PUBLISHING", "Overloaded", "RESOURCE_EXHAUSTED", ""),
        ("PUBLISHING", "Unavailable", "UNAVAILABLE", ""),
        ("PUBLISHING", "Closed", "UNAVAILABLE", ""),
        (
            "CREATING_PRODUCER",
            "InvalidRequest",
            "PERMISSION_DENIED",
            "Not able to create the Producer: ",
        ),
        ("CREATING_PRODUCER", "Unavailable", "UNAVAILABLE", ""),
        ("ACKING", "NotFound", "INTERNAL", "Error acknowledging message: "),
        ("ACKING", "Unavailable", "UNAVAILABLE", ""),
        ("NACKING", "NotFound", "INTERNAL", "Error negatively acknowledging message: "),
    ],
)
def test_a_call_words_some_errors_itself(wording, cls, code, text):
    """Where the protocol has a code and text for a call, they are used, and nowhere else."""
    status = status_of(getattr(errors, cls)("why", topic="/n/t"), getattr(statuses, wording))
    assert status.code.name == code
    assert status.text.startswith(f"{text}why")


def test_facts_of_the_caller_are_in_the_text():
    """The caller hears which value of his was wrong."""
    assert status_of(errors.NotFound("no such topic", topic="/n/t")).text == (
        "no such topic (topic=/n/t)"
    )


def test_facts_of_the_server_stay_here():
    """Files and causes are left out; whether a write may have happened is not."""
    error = errors.Unavailable(
        "segment sync failed", path="/data/journal/7", cause="EIO", outcome="unknown"
    )
    assert status_of(error).text == "segment sync failed (outcome=unknown)"
    assert status_of(errors.CorruptionError("damaged", path="/data/x")).text == "damaged"


def test_an_overload_tells_limits_and_when_to_come_again():
    """Of a limit the caller hears how much it is, not what is used, and never where."""
    full = errors.Overloaded(
        "the disk is nearly full",
        path="/data",
        free_bytes=12,
        free_bytes_min=34,
        cause="df",
        retry_after_ms=1000,
    )
    assert status_of(full).text == "the disk is nearly full (retry_after_ms=1000)"
    quota = errors.Overloaded("quota", topic="/n/t", bytes=5, bytes_max=4, retry_after_ms=9)
    assert status_of(quota, statuses.PUBLISHING).text == (
        "quota (topic=/n/t bytes_max=4 retry_after_ms=9)"
    )


def test_a_bug_is_internal_and_says_nothing():
    """An error outside the tree ends the call without its text."""
    assert status_of(ValueError("secret")) == status_of(KeyError("/data"))
    assert status_of(ValueError("secret")).code.name == "INTERNAL"
    assert "secret" not in status_of(ValueError("secret")).text


def test_a_refusal_is_its_own_status():
    """What is refused with a status ends with exactly that one, whatever the call's wording."""
    refused = Refused(statuses.status("producer_unknown", producer_id=7))
    assert status_of(refused, statuses.PUBLISHING) == refused.status
    assert (refused.code, refused.text) == refused.status
    assert refused.status.text == "The producer with id 7 does not exist"


def test_a_long_text_is_cut():
    """A status stays small enough for a trailer."""
    status = status_of(errors.InvalidRequest("x" * 100_000), statuses.PUBLISHING)
    assert len(status.text) == statuses.TEXT_CHARACTERS_MAX
    assert status.text.endswith("…")


FIXED = {
    "topic_not_found": ("NOT_FOUND", "Unable to find the requested topic: NAME"),
    "topic_missing": ("NOT_FOUND", "Unable to find the topic: NAME"),
    "topic_name_invalid": (
        "INVALID_ARGUMENT",
        "The topic: NAME has an invalid format, should be: /namespace_name/topic_name",
    ),
    "namespace_missing": (
        "UNAVAILABLE",
        (
            "Unable to find the namespace NAME, "
            "the topic can be created only for an exisiting namespace"
        ),
    ),
    "strategy_differs": (
        "FAILED_PRECONDITION",
        "Producer requested dispatch strategy does not match topic strategy",
    ),
    "strategy_unknown": ("INVALID_ARGUMENT", "The dispatch strategy 7 does not exist"),
    "subject_differs": (
        "FAILED_PRECONDITION",
        (
            "Topic 'NAME' uses schema subject 'NAME', cannot use 'NAME'. "
            "Only admin can change topic schema."
        ),
    ),
    "subject_unregistered": ("FAILED_PRECONDITION", "not found in registry"),
    "name_clash": ("ALREADY_EXISTS", "NAME"),
    "parts_fixed": ("ALREADY_EXISTS", "NAME was made with 7 partitions"),
    "producers_full": ("RESOURCE_EXHAUSTED", "7"),
    "consumers_full": ("RESOURCE_EXHAUSTED", "7"),
    "producer_unknown": ("NOT_FOUND", "The producer with id 7 does not exist"),
    "consumer_unknown": ("NOT_FOUND", "The consumer with the id 7 does not exist"),
    "record_refused": ("PERMISSION_DENIED", "Unable to publish the message: NAME"),
    "message_too_large": ("INVALID_ARGUMENT", "7"),
    "message_id_missing": ("INVALID_ARGUMENT", "msg_id"),
    "malformed_request": ("INVALID_ARGUMENT", "NAME"),
    "subscription_taken": (
        "PERMISSION_DENIED",
        (
            "Not able to subscribe to the topic NAME due to Not allowed to add the Consumer: NAME, "
            "the Exclusive subscription can't be shared with other consumers"
        ),
    ),
    "client_type_unknown": ("INVALID_ARGUMENT", "7"),
    "topic_draining": ("UNAVAILABLE", "NAME"),
    "part_not_deletable": ("FAILED_PRECONDITION", "Cannot delete individual partition"),
    "schema_id_unknown": ("NOT_FOUND", "Schema not found for ID: 7"),
    "schema_missing": ("NOT_FOUND", "Schema not found for subject: NAME"),
    "subject_unknown": ("NOT_FOUND", "Subject not found: NAME"),
    "mode_invalid": ("INVALID_ARGUMENT", "NAME"),
    "policy_invalid": ("INVALID_ARGUMENT", "NAME"),
    "credentials_missing": ("UNAUTHENTICATED", "Authentication credentials are missing"),
    "token_invalid": ("UNAUTHENTICATED", "Invalid token"),
    "not_granted": ("PERMISSION_DENIED", "no binding grants NAME on NAME"),
}


def made(name, text):
    """Make a status with `text` for each name and 7 for each number."""
    if name == "record_refused":
        return statuses.record_refused(text)
    numbers = {"strategy", "parts", "client", "producer_id", "consumer_id", "schema_id"}
    fields = [field for _, field, _, _ in Formatter().parse(statuses.TEXTS[name].text) if field]
    return statuses.status(
        name,
        **{
            each: 7 if each in numbers or each.endswith(("_max", "_bytes")) else text
            for each in fields
        },
    )


@pytest.mark.parametrize("name", FIXED)
def test_fixed_statuses_have_the_protocols_code_and_text(name):
    """Each status with a fixed text has the code and the words that clients look for."""
    code, text = FIXED[name]
    status = made(name, "NAME")
    assert isinstance(status, Status)
    assert status.code.name == code
    assert text in status.text


def test_every_status_of_the_module_is_checked():
    """No status is left out of the table above."""
    assert {*statuses.TEXTS, "record_refused"} == set(FIXED)


@pytest.mark.parametrize("name", FIXED)
def test_names_from_the_wire_cannot_break_or_flood_a_text(name):
    """A name with line breaks or of a megabyte gives one short line."""
    for text in ("a\r\nb\0\u2028", "x" * 1_000_000):
        status = made(name, text)
        assert len(status.text) <= statuses.TEXT_CHARACTERS_MAX
        if name not in {"record_refused", "malformed_request"}:
            assert status.text.isprintable()
