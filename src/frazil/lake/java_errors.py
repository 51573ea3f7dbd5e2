"""Convert Java's failures to Frazil's errors: one sentence with cause, table and remedy.

`causes_of` follows the causes of PySpark's exception to the root; `meaning_of` is pure. A failure
during a write is `Conflict` only if Iceberg reports that nothing was committed; every other failure
that is not known to be harmless is `CommitUnknown`. The worker's log gets the whole trace.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from frazil.errors import (
    CommitUnknown,
    Conflict,
    CorruptionError,
    FrazilError,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from frazil.telemetry import LOGGER

if TYPE_CHECKING:
    from frazil.lake.plan import TableName

__all__ = ["Cause", "causes_of", "java_calls", "meaning_of"]

CAUSES_MAX: Final = 32
TEXT_CHARACTERS_MAX: Final = 200


class Cause(NamedTuple):
    """One link of a failure: its class, without the package, and its message."""

    name: str
    text: str


def causes_of(error: BaseException) -> list[Cause]:
    """Return the links from the raised exception to its root."""
    java: Any = None
    if isinstance(error, Py4JJavaError):
        java = error.java_exception
    elif isinstance(error, PySparkException):
        java = getattr(error, "_origin", None)
    causes: list[Cause] = []
    try:
        while java is not None and len(causes) < CAUSES_MAX:
            text = java.getMessage()
            causes.append(Cause(java.getClass().getSimpleName(), "" if text is None else str(text)))
            java = java.getCause()
    except (Py4JError, OSError) as lost:
        # The JVM ended during the look at its exception.
        causes.append(Cause(type(lost).__name__, str(lost)))
    return causes or [Cause(type(error).__name__, str(error))]


@contextlib.contextmanager
def java_calls(action: str, table: TableName | str, *, writes: bool = False) -> Iterator[None]:
    """Convert errors of Spark, Iceberg or Java to Frazil's errors; log the trace."""
    try:
        yield
    except (PySparkException, Py4JError, OSError) as error:
        causes = causes_of(error)
        LOGGER.warning(
            "java_failed",
            extra={"facts": {"action": action, "table": str(table)}, "trace": _trace(error)},
        )
        raise meaning_of(causes, action=action, table=str(table), writes=writes) from error


def _trace(error: BaseException) -> str:
    """Return the whole trace of a failure."""
    try:
        return str(error)
    except (Py4JError, OSError, AssertionError):
        return type(error).__name__


class _Meaning(NamedTuple):
    """The meaning of an exception class; the message must contain `text`, if it is set."""

    names: frozenset[str]
    text: str
    error: type[FrazilError]
    message: str


def _means(names: str, error: type[FrazilError], message: str, *, text: str = "") -> _Meaning:
    return _Meaning(frozenset(names.split()), text, error, message)


_LOST_ANSWERS: Final = (
    "CommitStateUnknownException RESTException ServiceFailureException ServiceUnavailableException "
    "NoHttpResponseException SocketException SocketTimeoutException ConnectionClosedException "
    "ConnectionRequestTimeoutException SSLException EOFException Py4JNetworkError Py4JError "
    "ConnectionResetError ConnectionRefusedError BrokenPipeError"
)
_NO_CATALOG: Final = (
    "ConnectException HttpHostConnectException ConnectTimeoutException UnknownHostException "
    "NoRouteToHostException"
)
_UNKNOWN: Final = "outcome of the commit is not known, look before anything else"

_WRITE_MEANINGS: Final = (
    _means(
        "CommitStateUnknownException",
        CommitUnknown,
        _UNKNOWN,
    ),
    _means(
        "ValidationException CommitFailedException",
        Conflict,
        "another program committed to the table first, look again",
    ),
    _means(
        "IllegalArgumentException",
        Conflict,
        "another program committed to the table first, look again",
        text="Cannot fast-forward",
    ),
    _means("", NotFound, "table does not exist", text="TABLE_OR_VIEW_NOT_FOUND"),
    # The stages have compared the columns: they were changed since, and Spark began nothing.
    _means(
        "AnalysisException ExtendedAnalysisException",
        Conflict,
        "columns of the table do not fit the rows, look again",
    ),
    _means(f"{_LOST_ANSWERS} {_NO_CATALOG}", CommitUnknown, _UNKNOWN),
)
_MEANINGS: Final = (
    _means(
        "NoSuchTableException NoSuchNamespaceException",
        NotFound,
        "table does not exist",
    ),
    _means("", NotFound, "table does not exist", text="TABLE_OR_VIEW_NOT_FOUND"),
    _means(
        "NotAuthorizedException ForbiddenException",
        InvalidRequest,
        "catalog refuses the token, correct lake.catalog.token",
    ),
    _means(
        "",
        Unavailable,
        "no room left for the table's files, free some in the warehouse or in Spark's scratch",
        text="No space left on device",
    ),
    _means(
        "AccessDeniedException AccessControlException",
        Unavailable,
        "files of the table cannot be written, check the rights on lake.warehouse",
    ),
    _means(
        "",
        Unavailable,
        "files of the table cannot be written, check the rights on lake.warehouse",
        text="Permission denied",
    ),
    _means(
        "OutOfMemoryError SparkOutOfMemoryError",
        Unavailable,
        "Spark ran out of memory, raise lake.worker.heap_bytes",
    ),
    _means(
        "",
        CorruptionError,
        "staged file is damaged, run `frazil doctor`",
        text="checksum",
    ),
    _means(
        "SparkFileNotFoundException FileNotFoundException",
        CorruptionError,
        "a file is gone that is needed, run `frazil doctor`",
    ),
    _means(
        "",
        CorruptionError,
        "a file cannot be read, run `frazil doctor`",
        text="FAILED_READ_FILE",
    ),
    _means(
        "AnalysisException ExtendedAnalysisException",
        InvalidRequest,
        "columns of the table do not fit, undo what others changed",
    ),
    _means(
        f"{_LOST_ANSWERS} {_NO_CATALOG}",
        Unavailable,
        "catalog or Spark cannot be reached, check that both run",
    ),
)


def meaning_of(causes: Sequence[Cause], *, action: str, table: str, writes: bool) -> FrazilError:
    """Return the error for the caller: the first meaning that fits any link of the failure."""
    table_of_meanings = (*_WRITE_MEANINGS, *_MEANINGS) if writes else _MEANINGS
    for meaning in table_of_meanings:
        for cause in causes:
            if _fits(meaning, cause):
                return _error(meaning.error, meaning.message, cause, action=action, table=table)
    root = causes[-1]
    if writes:
        return _error(CommitUnknown, _UNKNOWN, root, action=action, table=table)
    return _error(
        Unavailable, "Spark failed, logs/lake.log has the trace", root, action=action, table=table
    )


def _fits(meaning: _Meaning, cause: Cause) -> bool:
    named = not meaning.names or cause.name in meaning.names
    return named and meaning.text in cause.text


def _error(
    error: Callable[..., FrazilError], message: str, cause: Cause, *, action: str, table: str
) -> FrazilError:
    return error(message, table=table, action=action, cause=_sentence(cause))


def _sentence(cause: Cause) -> str:
    """Return a cause on one line: its class and the first line of its message."""
    first = re.sub(r"\s+", " ", cause.text.strip().split("\n", 1)[0])
    text = f"{cause.name}: {first}" if first else cause.name
    return text if len(text) <= TEXT_CHARACTERS_MAX else text[:TEXT_CHARACTERS_MAX] + "…"
