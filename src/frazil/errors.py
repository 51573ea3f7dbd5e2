"""The error tree: one class for each reaction of a caller.

    FrazilError
    ├── InvalidRequest    fix the call; nothing was written
    ├── NotFound          the topic, segment or key does not exist
    ├── Conflict          refresh, then retry
    ├── Unavailable       back off, then retry; an outcome of UNKNOWN says so
    ├── Overloaded        slow down, then retry
    ├── Closed            open the engine again
    ├── CorruptionError   stop and run `frazil doctor`
    └── CommitUnknown     never retry blindly: it may have happened

`CODES` maps each class to the code of every front end, so that all of them agree.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

__all__ = [
    "CODES",
    "Closed",
    "CommitUnknown",
    "Conflict",
    "CorruptionError",
    "FrazilError",
    "InvalidRequest",
    "NotFound",
    "Overloaded",
    "Unavailable",
    "codes_of",
]

DETAIL_CHARACTERS_MAX = 256


def _shown(value: object) -> str:
    """Render one fact on one line: user text cannot inject a line break or flood a log."""
    try:
        text = str(value)
    except ValueError:
        # Python refuses to print integers of thousands of digits.
        text = f"<{type(value).__name__}>"
    if not text.isprintable():
        text = ascii(text)[1:-1]
    if len(text) > DETAIL_CHARACTERS_MAX:
        text = text[:DETAIL_CHARACTERS_MAX] + "…"
    return text


class FrazilError(Exception):
    """The root of every error Frazil raises on purpose.

    The facts are in `details` and are printed as `key=value` after the message.
    """

    code: ClassVar[str] = "internal"

    def __init__(self, message: str, /, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __str__(self) -> str:
        if not self.details:
            return self.message
        facts = " ".join(f"{key}={_shown(value)}" for key, value in self.details.items())
        return f"{self.message} ({facts})"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.details))


def _rebuild(cls: type[FrazilError], message: str, details: dict[str, object]) -> FrazilError:
    return cls(message, **details)


class InvalidRequest(FrazilError):
    """The call itself is wrong: fix it. Nothing was written."""

    code = "invalid"


class NotFound(FrazilError):
    """The named object does not exist, or not any more."""

    code = "not_found"


class Conflict(FrazilError):
    """Another caller was first, or the sequence does not fit: refresh and retry."""

    code = "conflict"


class Unavailable(FrazilError):
    """Try again later: back off and retry. With `outcome="unknown"` the write may have happened."""

    code = "unavailable"


class Overloaded(FrazilError):
    """A limit is reached: slow down and retry after `retry_after_ms`. Nothing was written."""

    code = "overloaded"


class Closed(FrazilError):
    """The engine is closed, by the caller or because storage failed (see `cause`)."""

    code = "closed"


class CorruptionError(FrazilError):
    """Stored data is damaged. Stop and run `frazil doctor`; the details name the lost data."""

    code = "corruption"


class CommitUnknown(FrazilError):
    """A commit may or may not have happened: check before doing anything else."""

    code = "commit_unknown"


class Codes(NamedTuple):
    """One error class as every front end reports it."""

    grpc: str
    http: int
    flight: str
    sqlstate: str
    exit: int


CODES: dict[type[FrazilError], Codes] = {
    InvalidRequest: Codes("INVALID_ARGUMENT", 400, "INVALID_ARGUMENT", "22000", 2),
    NotFound: Codes("NOT_FOUND", 404, "NOT_FOUND", "42P01", 3),
    Conflict: Codes("FAILED_PRECONDITION", 409, "ALREADY_EXISTS", "40001", 4),
    Unavailable: Codes("UNAVAILABLE", 503, "UNAVAILABLE", "57P03", 5),
    Overloaded: Codes("RESOURCE_EXHAUSTED", 429, "UNAVAILABLE", "53000", 6),
    Closed: Codes("UNAVAILABLE", 503, "CANCELLED", "57P01", 7),
    CorruptionError: Codes("DATA_LOSS", 500, "INTERNAL", "XX001", 8),
    CommitUnknown: Codes("UNAVAILABLE", 503, "INTERNAL", "08007", 9),
    FrazilError: Codes("INTERNAL", 500, "INTERNAL", "XX000", 1),
}


def codes_of(error: BaseException) -> Codes:
    """Return the codes of `error`'s nearest class in the table; any other error is internal."""
    for cls in type(error).__mro__:
        if cls in CODES:
            return CODES[cls]
    return CODES[FrazilError]
