"""The errors with which a journal refuses work. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frazil.errors import Closed, FrazilError, Overloaded, Unavailable
from frazil.model import Ack

if TYPE_CHECKING:
    from collections.abc import Sequence


def disk_full(directory: str) -> Overloaded:
    """Return the error for a write that met a full disk and was undone."""
    return Overloaded(
        "the disk is full, nothing was written; free space, then retry",
        path=directory,
        retry_after_ms=1000,
    )


def no_room_for_cursors(error: Overloaded) -> Unavailable:
    """Return the error for acks that found no room even after the ballast was given up."""
    return Unavailable(
        "there is no room for the progress of subscriptions, nothing was written; "
        "free space, then retry",
        cause=error.message,
        **error.details,
    )


def no_descriptors() -> Overloaded:
    """Return the error for a segment that cannot be opened for want of descriptors (F46)."""
    return Overloaded(
        "no file descriptors are left for the next segment, raise the limit of open files; "
        "nothing was written",
        retry_after_ms=1000,
    )


def not_owner() -> Unavailable:
    """Return the error for work that came when the owner's lease may have run out (F16)."""
    return Unavailable(
        "the broker's lease may have run out, nothing was written; it writes again when the "
        "metadata store answers",
        retry_after_ms=1000,
    )


def late(results: Sequence[Ack | BaseException]) -> list[Ack | BaseException]:
    """Turn acks into errors: the lease may have run out while the records were written (F19)."""
    unknown = Unavailable(
        "the broker's lease may have run out while the records were written; whether they count "
        "is unknown",
        outcome="unknown",
    )
    return [unknown if isinstance(result, Ack) else result for result in results]


def closed(failed: BaseException | None, directory: str) -> FrazilError:
    """Return the error for calls after the end, with what ended the journal."""
    if failed is None:
        return Closed("the engine is closed")
    if isinstance(failed, Closed):
        return Closed(failed.message, **failed.details)
    if isinstance(failed, OSError):
        text = "the journal is closed because storage failed; find the cause, then open it again"
    else:
        text = "the journal is closed because of a bug; please report it, then open it again"
    return Closed(text, cause=failed, directory=directory)
