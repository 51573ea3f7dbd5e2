"""DuckDB's errors as Frazil's, by what the caller does next."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from frazil.errors import (
    CorruptionError,
    FrazilError,
    InvalidRequest,
    Overloaded,
    Unavailable,
)

if TYPE_CHECKING:
    import duckdb

__all__ = ["query_failure"]

_MESSAGE_CHARACTERS_MAX: Final = 2_000
RETRY_AFTER_MS: Final = 1_000


def query_failure(
    error: duckdb.Error | OSError, *, stopped: FrazilError | None, files: Iterable[str] = ()
) -> FrazilError:
    """Return the error to raise for one of DuckDB's.

    `stopped` is why the query was interrupted, if it was; an error that tells of one of `files`
    is damage, not a mistake in the statement. While a result is read Arrow hands DuckDB's errors
    on as `OSError`, with the same text.
    """
    text = str(error)
    if stopped is not None:
        return stopped
    for path in files:
        if path in text:
            return CorruptionError("a file of the disk tier cannot be read", file=path, cause=text)
    kind, _, rest = text.partition(" Error: ")
    return _KINDS.get(kind, _invalid)(_first_part(rest or text))


def _first_part(text: str) -> str:
    """Leave out the excerpt of the text that ran: it is not what the user wrote."""
    message = text.split("\n\nLINE ", 1)[0].strip()
    return " ".join(message.split())[:_MESSAGE_CHARACTERS_MAX]


def _invalid(message: str) -> FrazilError:
    return InvalidRequest(message)


def _interrupted(_message: str) -> FrazilError:
    return Unavailable("query was interrupted, run it again")


def _out_of_memory(message: str) -> FrazilError:
    return Overloaded(
        "query needs more memory than query.memory_bytes, or query.memory_each_bytes, allows; read "
        "less or raise it",
        retry_after_ms=RETRY_AFTER_MS,
        cause=message,
    )


def _storage(message: str) -> FrazilError:
    return Unavailable("query could not read its data, run it again", cause=message)


_KINDS: Final[dict[str, Callable[[str], FrazilError]]] = {
    "INTERRUPT": _interrupted,
    "Out of Memory": _out_of_memory,
    "IO": _storage,
    "Permission": _storage,
    "FATAL": _storage,
    "INTERNAL": _storage,
}
