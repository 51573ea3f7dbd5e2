"""Ranges of offsets that a table declares in its own properties, so that they outlive the log.

`frazil.skipped`: given up by an operator. `frazil lake resume --accept` continues after records that
are neither in the table nor held any more, or after rows that another program removed.

`frazil.adopted`: filled by another log. `frazil lake adopt` continues after these rows.

`frazil.rejects-replayed`, `frazil.rejects-dropped`, in the side table: settled rejects.

Each is JSON: by part, ranges `[first, end)`, ordered and disjoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from frazil.errors import CorruptionError
from frazil.offsets import Range, RangeSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from frazil.lake.table import Ends

__all__ = [
    "ADOPTED",
    "SKIPPED",
    "Ranges",
    "decode_ranges",
    "encode_ranges",
    "ranges_between",
    "united",
    "without",
]

SKIPPED: Final = "frazil.skipped"
ADOPTED: Final = "frazil.adopted"
Ranges: TypeAlias = dict[int, RangeSet]
_decoder: Final = msgspec.json.Decoder(dict[int, tuple[Range, ...]], strict=False)


def united(*sources: Mapping[int, Iterable[Range]]) -> Ranges:
    """Return the ranges of several sources, by part."""
    parts = sorted({part for source in sources for part in source})
    return {
        part: RangeSet(each for source in sources for each in source.get(part, ()))
        for part in parts
    }


def without(ranges: Ranges, others: Ranges) -> Ranges:
    """Return what is left of ranges, by part, without those of others."""
    return {part: own - others.get(part, ()) for part, own in ranges.items()}


def ranges_between(lows: Ends, highs: Ends) -> Ranges:
    """Return, by part, the range between two ends; parts with nothing between are left out."""
    return {
        part: RangeSet([(lows.get(part, 0), high)])
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
    return {part: RangeSet(ranges) for part, ranges in found.items()}


def encode_ranges(known: Ranges, new: Ranges) -> str:
    """Return the property's text with more ranges in it."""
    every = united(known, new)
    return msgspec.json.encode(msgspec.to_builtins(every, str_keys=True)).decode()
