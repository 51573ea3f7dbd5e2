"""Offsets that an operator gave up: written into the table that goes on without them.

`frazil lake resume --accept` lets a table go on behind records that are neither in it nor held any
more, or behind rows that somebody took from it. The table's property `frazil.skipped` has them, as
JSON: by part, ranges `[first, end)`, in order and apart. Whoever verifies the table finds them there
when nothing else is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from frazil.errors import CorruptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from frazil.lake.table import Ends

__all__ = ["SKIPPED", "Ranges", "decode_skipped", "encode_skipped", "merged", "skipped_ranges"]

SKIPPED: Final = "frazil.skipped"
Range: TypeAlias = tuple[int, int]
Ranges: TypeAlias = dict[int, tuple[Range, ...]]
_decoder: Final = msgspec.json.Decoder(dict[int, tuple[Range, ...]], strict=False)


def merged(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Return ranges in order, those that touch or overlap as one, without empty ones."""
    found: list[Range] = []
    for first, end in sorted(each for each in ranges if each[0] < each[1]):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((first, end))
    return tuple(found)


def skipped_ranges(told: Ends, marks: Ends) -> dict[int, Range]:
    """Return, by part, what lies between the table's own word and where it is to go on."""
    return {
        part: (told.get(part, 0), mark)
        for part, mark in sorted(marks.items())
        if mark > told.get(part, 0)
    }


def decode_skipped(properties: Mapping[str, str]) -> Ranges:
    """Return what a table's properties say.

    Raises:
        CorruptionError: if that cannot be read.
    """
    text = properties.get(SKIPPED, "{}")
    try:
        found = _decoder.decode(text)
    except msgspec.MsgspecError as error:
        raise CorruptionError(
            "the table's skipped ranges cannot be read", property=SKIPPED, reason=error
        ) from error
    return {part: merged(ranges) for part, ranges in found.items()}


def encode_skipped(known: Ranges, new: Mapping[int, Range]) -> str:
    """Return the property's text with more ranges in it."""
    every = {
        part: merged([*known.get(part, ()), *([new[part]] if part in new else [])])
        for part in sorted({*known, *new})
    }
    return msgspec.json.encode(msgspec.to_builtins(every, str_keys=True)).decode()
