"""Refusals: the errors of the Iceberg REST specification, raised by the catalog's inner calls.

A refusal carries the status and the error type of the specification; its text is Frazil's
usual message with facts. `app` turns one into the specification's body.
"""

from __future__ import annotations

from typing import Final

from frazil.errors import FrazilError

__all__ = [
    "OutcomeUnknown",
    "Refusal",
    "already_exists",
    "bad_request",
    "commit_failed",
    "no_namespace",
    "no_table",
]

NOT_FOUND: Final = 404
CONFLICT: Final = 409


class Refusal(FrazilError):
    """A request is refused; nothing was changed by it."""

    def __init__(self, status: int, kind: str, message: str, /, **details: object) -> None:
        super().__init__(message, **details)
        self.status = status
        self.kind = kind

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.status, self.kind, self.message, self.details))


def _rebuild(status: int, kind: str, message: str, details: dict[str, object]) -> Refusal:
    return Refusal(status, kind, message, **details)


class OutcomeUnknown(FrazilError):
    """The swap of metadata may or may not have happened: storage failed in the middle of it."""


def bad_request(message: str, /, **details: object) -> Refusal:
    """Return a refusal of a request that is wrong in itself."""
    return Refusal(400, "BadRequestException", message, **details)


def no_namespace(namespace: str) -> Refusal:
    """Return a refusal that names a missing namespace."""
    return Refusal(
        NOT_FOUND, "NoSuchNamespaceException", "namespace does not exist", namespace=namespace
    )


def no_table(namespace: str, name: str) -> Refusal:
    """Return a refusal that names a missing table."""
    return Refusal(
        NOT_FOUND, "NoSuchTableException", "table does not exist", table=f"{namespace}.{name}"
    )


def already_exists(message: str, /, **details: object) -> Refusal:
    """Return a refusal because something of that name is there."""
    return Refusal(CONFLICT, "AlreadyExistsException", message, **details)


def commit_failed(message: str, /, **details: object) -> Refusal:
    """Return a refusal of a commit that had no effect; the client may refresh and retry."""
    return Refusal(CONFLICT, "CommitFailedException", message, **details)
