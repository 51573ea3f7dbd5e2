"""The answers of a call to several parts: one ack for each, or what went wrong and what is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from frazil.errors import FrazilError, Unavailable
from frazil.model import Ack

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from frazil.log import Pending

PARTS_TOLD_MAX: Final = 10

Answers = list[Ack | FrazilError]
"""What the frames of one part were answered, in their order."""


def answer(pending: Pending) -> Ack | FrazilError:
    """Wait for one frame's answer; an error is returned, for the others count as well."""
    try:
        value: Ack = pending.result()
    except FrazilError as error:
        return error
    return value


def written_text(acks: Iterable[tuple[int, Ack]]) -> str:
    """Return where records are: for each ack its part, and its first and last offset."""
    return ", ".join(f"{part}: {ack.offset}-{ack.offset_last}" for part, ack in acks)


def part_acks(parts: Sequence[int], answers: Sequence[Answers]) -> list[Ack]:
    """Return one ack for each part, from its first record to its last.

    Raises:
        FrazilError: what a frame met, if none was written.
        Unavailable: with `outcome="unknown"` and what is there, if only some were written.
    """
    _check_written(parts, answers)
    return [
        Ack(found[0].offset, found[-1].offset_last, found[-1].lsn, part)
        for part, found in zip(parts, _acks(answers), strict=True)
    ]


def _acks(answers: Sequence[Answers]) -> list[list[Ack]]:
    return [[each for each in found if isinstance(each, Ack)] for found in answers]


def _check_written(parts: Sequence[int], answers: Sequence[Answers]) -> None:
    errors = [each for found in answers for each in found if isinstance(each, FrazilError)]
    if not errors:
        return
    unknown = [error for error in errors if error.details.get("outcome") == "unknown"]
    error = (unknown or errors)[0]
    written = [
        (part, ack) for part, acks in zip(parts, _acks(answers), strict=True) for ack in acks
    ]
    if not written:
        raise error
    raise Unavailable(
        "only some parts of the call were written, look before sending the rest",
        outcome="unknown",
        parts_written=written_text(written[:PARTS_TOLD_MAX]),
        frames_written=len(written),
        frames=sum(map(len, answers)),
        cause=error,
    ) from error
