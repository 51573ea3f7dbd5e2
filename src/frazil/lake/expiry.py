"""Which snapshots of a table may go, so that its metadata stays small. Pure.

Iceberg writes all snapshots into each new metadata file, so a table without expiry writes with the
square of its commits. Only snapshots go, never rows: data files that the kept ones have stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from frazil.lake.table import Ends

__all__ = ["METADATA_BYTES_MAX", "SNAPSHOTS_MAX", "SNAPSHOTS_MIN", "SnapshotFact", "expirable"]

SNAPSHOTS_MAX: Final = 500
METADATA_BYTES_MAX: Final = 1 << 20
SNAPSHOTS_MIN: Final = 20
"""Readers and writers that have just looked find their snapshot again."""


class SnapshotFact(NamedTuple):
    """What expiry has to know of a snapshot; `ends` None if its summary has no watermark."""

    sid: int
    parent: int | None
    ends: Ends | None


def expirable(
    snapshots: Sequence[SnapshotFact],
    *,
    current: int | None,
    referenced: Collection[int] = (),
    metadata_bytes: int,
    snapshots_max: int = SNAPSHOTS_MAX,
    snapshots_min: int = SNAPSHOTS_MIN,
    metadata_bytes_max: int = METADATA_BYTES_MAX,
) -> list[int]:
    """Return the snapshots to expire, oldest first; none while both limits hold.

    Once a limit is reached half of it stays, so that expiry is rare. These stay whatever the
    limits: the newest `snapshots_min` of `main`, the heads of branches and tags (`referenced`), the
    newest with a watermark, for each part the newest that has its highest, and all of `main` above
    those: a snapshot is found from its children alone. Without them a table could tell its
    watermark by its property alone.

    The table's property must be set to its watermark before these are expired.
    """
    count = len(snapshots)
    if count <= snapshots_max and metadata_bytes <= metadata_bytes_max:
        return []
    share = metadata_bytes / max(count, 1)
    room = int(metadata_bytes_max / 2 / max(share, 1.0))
    keep = max(snapshots_min, min(snapshots_max // 2, room))
    line = _line(snapshots, current)
    kept = {each.sid for each in line[: max(keep, _marked(line))]} | set(referenced)
    return [each.sid for each in snapshots if each.sid not in kept]


def _line(snapshots: Iterable[SnapshotFact], current: int | None) -> list[SnapshotFact]:
    """Return the ancestors of `main`'s head that are left, newest first, the head included."""
    facts = {each.sid: each for each in snapshots}
    line: list[SnapshotFact] = []
    while current is not None and current in facts:
        # Taken out, so that a damaged chain that leads back to itself ends.
        fact = facts.pop(current)
        line.append(fact)
        current = fact.parent
    return line


def _marked(line: Sequence[SnapshotFact]) -> int:
    """Return how many of the newest snapshots are needed to tell the watermark of every part."""
    best: Ends = {}
    for each in line:
        for part, end in (each.ends or {}).items():
            best[part] = max(end, best.get(part, 0))
    needed = 0
    open_parts = set(best)
    for number, each in enumerate(line, start=1):
        if each.ends and not needed:
            needed = number
        found = {part for part in open_parts if (each.ends or {}).get(part) == best[part]}
        if found:
            open_parts -= found
            needed = number
    return needed
