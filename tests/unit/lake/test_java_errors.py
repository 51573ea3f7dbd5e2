"""Failures of Java become one sentence of the right class; what is not known is never a conflict."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="the extra lake is not installed")

from frazil.errors import (
    CommitUnknown,
    Conflict,
    CorruptionError,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from frazil.lake.java_errors import Cause, causes_of, java_calls, meaning_of


def meant(*causes, writes=True):
    return meaning_of(
        [Cause(*each) for each in causes], action="append", table="a.b", writes=writes
    )


CASES = [
    ([("ValidationException", "Found conflicting files")], Conflict, Conflict),
    ([("CommitFailedException", "has changed")], Conflict, Conflict),
    (
        [("CommitStateUnknownException", "lost"), ("CommitFailedException", "x")],
        CommitUnknown,
        CommitUnknown,
    ),
    (
        [("RESTException", "Error occurred"), ("NoHttpResponseException", "")],
        CommitUnknown,
        Unavailable,
    ),
    ([("ServiceFailureException", "Server error")], CommitUnknown, Unavailable),
    ([("ConnectException", "Connection refused")], CommitUnknown, Unavailable),
    ([("Py4JNetworkError", "Answer from Java side is empty")], CommitUnknown, Unavailable),
    ([("NoSuchTableException", "Table does not exist")], NotFound, NotFound),
    ([("AnalysisException", "[TABLE_OR_VIEW_NOT_FOUND] gone")], NotFound, NotFound),
    ([("AnalysisException", "[INCOMPATIBLE_DATA] x")], Conflict, InvalidRequest),
    ([("IllegalArgumentException", "Cannot fast-forward: main is no")], Conflict, Unavailable),
    ([("NotAuthorizedException", "401")], InvalidRequest, InvalidRequest),
    (
        [("SparkException", "Job aborted"), ("IOException", "No space left on device")],
        Unavailable,
        Unavailable,
    ),
    ([("SparkException", "x"), ("FileNotFoundException", "f")], CorruptionError, CorruptionError),
    (
        [("SparkException", "[FAILED_READ_FILE.NO_HINT] x"), ("ArithmeticException", "")],
        CorruptionError,
        CorruptionError,
    ),
    ([("OutOfMemoryError", "Java heap space")], Unavailable, Unavailable),
    ([("SomethingNew", "never seen")], CommitUnknown, Unavailable),
]


@pytest.mark.parametrize(("causes", "writing", "reading"), CASES, ids=lambda each: str(each)[:60])
def test_each_failure_has_its_class(causes, writing, reading):
    """For a write and for a read; a read is never of unknown outcome."""
    assert type(meant(*causes)) is writing
    if writing is not Conflict and writing is not CommitUnknown:
        assert type(meant(*causes, writes=False)) is reading
    if reading is Unavailable:
        assert type(meant(*causes, writes=False)) is Unavailable


def test_the_sentence_names_table_action_and_cause():
    """On one line, without the trace that Java puts behind its first line."""
    error = meant(
        ("ValidationException", "Found conflicting files: [f]\n\tat org.apache.x(Y.java)")
    )
    text = str(error)
    assert "table=a.b" in text
    assert "cause=ValidationException: Found conflicting files: [f]" in text
    assert "\tat" not in text
    assert "\n" not in text


def test_a_long_cause_is_cut():
    """A list of a thousand files does not flood the log or the terminal."""
    assert len(str(meant(("ValidationException", "f" * 10_000)))) < 500


def test_python_failures_have_their_own_name():
    """Without Java behind it the exception itself is the cause."""
    assert causes_of(ConnectionResetError("gone")) == [Cause("ConnectionResetError", "gone")]
    with (
        pytest.raises(CommitUnknown, match="ConnectionResetError"),
        java_calls("x", "t", writes=True),
    ):
        raise ConnectionResetError("gone")
    with pytest.raises(Unavailable), java_calls("x", "t"):
        raise ConnectionResetError("gone")
