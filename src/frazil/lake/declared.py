"""Ranges of offsets that a table declares in its own properties, so that they outlive the log.

`frazil.skipped`: given up by an operator. `frazil lake resume --accept` continues after records that
are neither in the table nor held any more, or after rows that somebody removed.

`frazil.adopted`: filled by another log. `frazil lake adopt` continues after these rows.

`frazil.rejects-replayed`, `frazil.rejects-dropped`, in the side table: settled rejects.

Each is JSON: by part, ranges `[first, end)`, ordered and disjoint.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from frazil.errors import CorruptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from frazil.lake.table import Ends

__all__ = [
    "ADOPTED",
    "SKIPPED",
    "Ranges",
    "covers",
    "decode_ranges",
    "encode_ranges",
    "merged",
    "ranges_between",
    "united",
    "without",
]

SKIPPED: Final = "frazil.skipped"
ADOPTED: Final = "frazil.adopted"
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


def united(*sources: Mapping[int, Iterable[Range]]) -> Ranges:
    """Return the ranges of several sources, by part."""
    parts = sorted({part for source in sources for part in source})
    return {
        part: merged(each for source in sources for each in source.get(part, ())) for part in parts
    }


def without(ranges: Mapping[int, Iterable[Range]], others: Mapping[int, Iterable[Range]]) -> Ranges:
    """Return what is left of ranges, by part, without those of others."""
    left: Ranges = {}
    for part, own in ranges.items():
        pieces: list[Range] = []
        taken = merged(others.get(part, ()))
        for first, end in merged(own):
            at = first
            for low, high in taken:
                pieces.append((at, min(low, end)))
                at = max(at, high)
            pieces.append((at, end))
        left[part] = merged(pieces)
    return left


def ranges_between(lows: Ends, highs: Ends) -> Ranges:
    """Return, by part, the range between two ends; parts with nothing between are left out."""
    return {
        part: ((lows.get(part, 0), high),)
        for part, high in sorted(highs.items())
        if high > lows.get(part, 0)
    }


def decode_ranges(properties: Mapping[str, str], key: str) -> Ranges:
    """Return what a table's property says.

    Raises:
        CorruptionError: if that cannot be read.
    """
    try:
        found = _decoder.decode(properties.get(key, "{}"))
    except msgspec.MsgspecError as error:
        raise CorruptionError(
            "the table's declared ranges cannot be read", property=key, reason=error
        ) from error
    return {part: merged(ranges) for part, ranges in found.items()}


def encode_ranges(known: Ranges, new: Ranges) -> str:
    """Return the property's text with more ranges in it."""
    every = united(known, new)
    return msgspec.json.encode(msgspec.to_builtins(every, str_keys=True)).decode()


def covers(ranges: Sequence[Range], offset: int) -> bool:
    """Return whether an offset lies in one of some merged ranges."""
    index = bisect.bisect_right(ranges, (offset, 1 << 63)) - 1
    return index >= 0 and ranges[index][1] > offset
