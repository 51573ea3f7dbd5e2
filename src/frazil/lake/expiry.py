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
    metadata_bytes_max: int = METADATA_BYTES_MAX,
) -> list[int]:
    """Return the snapshots to expire, oldest first; none while both limits hold.

    Once a limit is reached half of it stays, so that expiry is rare. These stay whatever the
    limits: the newest 20 of `main`, the heads of branches and tags (`referenced`), the newest with
    a watermark, and for each part the newest that has its highest: without them a table could
    tell its watermark by its property alone.

    The table's property must be set to its watermark before these are expired.
    """
    count = len(snapshots)
    if count <= snapshots_max and metadata_bytes <= metadata_bytes_max:
        return []
    share = metadata_bytes / max(count, 1)
    room = int(metadata_bytes_max / 2 / max(share, 1.0))
    keep = max(SNAPSHOTS_MIN, min(snapshots_max // 2, room))
    line = _line(snapshots, current)
    kept = {each.sid for each in line[:keep]} | set(referenced) | _marked(line)
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


def _marked(line: Iterable[SnapshotFact]) -> set[int]:
    marked = [each for each in line if each.ends]
    best: dict[int, tuple[int, int]] = {}
    for each in reversed(marked):
        for part, end in (each.ends or {}).items():
            if end >= best.get(part, (-1, 0))[0]:
                best[part] = end, each.sid
    return {sid for _end, sid in best.values()} | {each.sid for each in marked[:1]}
