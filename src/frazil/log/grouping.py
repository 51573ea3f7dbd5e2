"""Which of the waiting entries make the next group. Pure."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Final

from frazil.log import format as fmt

if TYPE_CHECKING:
    from frazil.log.codec import Entry

GROUP_BYTES_MAX: Final = 64 << 20
"""A call larger than this is written and synced in several groups."""
_codec_of = itemgetter(1)
_size_of = itemgetter(4)


def group_end(entries: list[Entry]) -> int:
    """Return how many entries make the next group: up to a barrier, and not too many bytes."""
    cut = _barrier(entries)
    if sum(map(_size_of, entries[:cut])) <= GROUP_BYTES_MAX:
        return cut
    size = 0
    for number, entry in enumerate(entries[:cut]):
        size += entry[4]
        if number and size > GROUP_BYTES_MAX:
            return number
    return cut


def part_cursors(entries: list[Entry]) -> tuple[list[Entry], list[Entry]]:
    """Return the entries that change cursors, and the others."""
    cursors: list[Entry] = []
    others: list[Entry] = []
    for entry in entries:
        is_cursor = entry[1] is None and entry[2].kind == fmt.KIND_CURSOR
        (cursors if is_cursor else others).append(entry)
    return cursors, others


def _barrier(entries: list[Entry]) -> int:
    """Return how many entries go before the state changes under the rest of them."""
    if None in set(map(_codec_of, entries)):
        for number, entry in enumerate(entries):
            if entry[1] is None and entry[2].kind in (fmt.KIND_TOPIC, fmt.KIND_SCHEMA):
                return number + 1
    return len(entries)
