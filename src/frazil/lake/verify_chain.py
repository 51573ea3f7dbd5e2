"""What a table's own metadata proves: counts that add up, and commits without a hole between them.

Pure: it is given the metadata as the catalog sent it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from frazil.errors import CorruptionError
from frazil.lake.certificate import Problem
from frazil.lake.declared import decode_ranges, united, without
from frazil.lake.table import (
    ROWS_DROPPED,
    ROWS_IN,
    ROWS_OUT,
    ROWS_REJECTED,
    TOPIC_ID,
    Ends,
    ends_of,
)
from frazil.struct_types import learnt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.lake.declared import Ranges

__all__ = [
    "Chain",
    "Removal",
    "Snapshot",
    "check_chain",
    "declared_in",
    "holes",
    "line_of",
    "records_between",
]

REMOVED: Final = ("deleted-records", "added-position-deletes", "added-equality-deletes")
PLACES_MAX: Final = 20
REPLACE: Final = "replace"

Gaps = tuple[tuple[int, int], ...]
NONE: Final[Mapping[int, Gaps]] = MappingProxyType({})


class Snapshot(msgspec.Struct, frozen=True, rename="kebab"):
    """A snapshot in a table's metadata."""

    snapshot_id: int
    parent_snapshot_id: int | None = None
    summary: dict[str, str] = {}

    def number(self, key: str) -> int:
        """Return a count of the summary, 0 without it."""
        return int(self.summary.get(key, "0"))


class _Metadata(msgspec.Struct, frozen=True, rename="kebab"):
    current_snapshot_id: int | None = None
    snapshots: list[Snapshot] = []
    properties: dict[str, str] = {}


class Removal(NamedTuple):
    """A snapshot of others that may have removed rows; `parent` None if it is not there.

    `rows` is by how many the table became smaller: rows that were rewritten are added again.
    """

    sid: int
    parent: int | None
    rows: int


class Chain(NamedTuple):
    """What the snapshots tell.

    `begins` is where the table's rows begin, None where the first snapshot is not left or is of
    another topic.
    """

    problems: tuple[Problem, ...]
    removals: tuple[Removal, ...]
    begins: Ends | None
    length: int


def line_of(metadata: bytes) -> list[Snapshot]:
    """Return the snapshots that led to the current one, oldest first.

    Raises:
        CorruptionError: if the metadata cannot be read.
    """
    found = _decoded(metadata)
    by_id = {each.snapshot_id: each for each in found.snapshots}
    line: list[Snapshot] = []
    following = found.current_snapshot_id
    while following is not None and following in by_id:
        line.append(by_id.pop(following))
        following = line[-1].parent_snapshot_id
    return line[::-1]


def declared_in(metadata: bytes, key: str) -> Ranges:
    """Return the ranges that a property of the table declares, by part.

    Raises:
        CorruptionError: if the metadata cannot be read.
    """
    return decode_ranges(_decoded(metadata).properties, key)


def _decoded(metadata: bytes) -> _Metadata:
    try:
        return msgspec.json.decode(metadata, type=learnt(_Metadata))
    except msgspec.MsgspecError as error:
        raise CorruptionError("metadata of the table cannot be read", reason=error) from error


def records_between(first: int, end: int, gaps: Gaps) -> int:
    """Return how many offsets of `[first, end)` have a record."""
    return end - first - sum(max(0, min(end, b) - max(first, a)) for a, b in gaps)


def check_chain(
    line: Sequence[Snapshot],
    topic_id: str,
    gaps: Mapping[int, Gaps],
    *,
    side: bool = False,
    skipped: Mapping[int, Gaps] = NONE,
    adopted: Mapping[int, Gaps] = NONE,
    begin: Ends | None = None,
) -> Chain:
    """Check the counts of each commit, and that each goes on where the one before ended.

    A commit may have the records of ranges that were given up or lost later or not, both is right;
    so may one of another life of the log, whose records are gaps in this one. What others committed
    to adopted ranges in between is not of this chain.
    `begin` is where the table says that it began; without it the first commit tells it. It also
    counts for a table without a snapshot and for one that others have put in its place.
    A side table has no commit for a plan without rejects: its own do not chain, and it may have had
    a part of a plan's rejects before.
    """
    bad: list[str] = []
    broken: list[str] = []
    before: Ends | None = None
    begins: Ends | None = dict(begin) if begin and _is_whole(line, topic_id) else None
    fewer = united(gaps, skipped)
    views = (
        gaps,
        fewer,
        without(gaps, adopted),
        without(fewer, adopted),
        united(fewer, adopted),
    )
    for snapshot in line:
        if snapshot.summary.get(TOPIC_ID) != topic_id or ROWS_IN not in snapshot.summary:
            continue
        sid = str(snapshot.snapshot_id)
        if not _adds_up(snapshot, side=side):
            bad.append(sid)
        ends = ends_of(snapshot.summary)
        if before is None and snapshot.parent_snapshot_id is None:
            before = {part: begin.get(part, 0) for part in ends} if begin else None
            begins = {**begin, **before} if begin and before else None
        if before is None:
            if snapshot.parent_snapshot_id is None:
                begins = _begins(snapshot, ends, fewer)
            before = ends
        elif not any(_follows(snapshot, before, ends, each) for each in views):
            broken.append(sid)
        before = {part: max(end, before.get(part, 0)) for part, end in {**before, **ends}.items()}
    found = [Problem("miscounted", len(bad), tuple(bad[:PLACES_MAX]))] if bad else []
    if broken and not side:
        found.append(Problem("unchained", len(broken), tuple(broken[:PLACES_MAX])))
    return Chain(tuple(found), tuple(_removals(line, topic_id)), begins, len(line))


def _is_whole(line: Sequence[Snapshot], topic_id: str) -> bool:
    """Tell whether nothing came before what is left, and whether nobody else began it."""
    if not line:
        return True
    return (
        line[0].parent_snapshot_id is None and line[0].summary.get(TOPIC_ID, topic_id) == topic_id
    )


def _adds_up(snapshot: Snapshot, *, side: bool) -> bool:
    rows_out, rejected = snapshot.number(ROWS_OUT), snapshot.number(ROWS_REJECTED)
    added = snapshot.number("added-records")
    fits = added <= rejected if side else added == rows_out
    return fits and snapshot.number(ROWS_IN) == rows_out + rejected + snapshot.number(ROWS_DROPPED)


def _follows(snapshot: Snapshot, before: Ends, ends: Ends, gaps: Mapping[int, Gaps]) -> bool:
    # One without rows is no conflict for a commit that was made at the same time.
    if not snapshot.number(ROWS_IN) and all(end <= before.get(p, 0) for p, end in ends.items()):
        return True
    records = sum(
        records_between(before.get(part, 0), max(end, before.get(part, 0)), gaps.get(part, ()))
        for part, end in ends.items()
    )
    return records == snapshot.number(ROWS_IN)


def _begins(snapshot: Snapshot, ends: Ends, gaps: Mapping[int, Gaps]) -> Ends | None:
    """Return where the rows of a table's very first commit begin, if that can be told."""
    rows = snapshot.number(ROWS_IN)
    if sum(records_between(0, end, gaps.get(p, ())) for p, end in ends.items()) == rows:
        return dict.fromkeys(ends, 0)
    if len(ends) > 1:
        return None
    [(part, end)] = ends.items()
    own = gaps.get(part, ())
    # The records between fall as the begin rises.
    low = bisect_left(range(end + 1), -rows, key=lambda at: -records_between(at, end, own))
    return {part: low} if records_between(low, end, own) == rows else None


def _removals(line: Sequence[Snapshot], topic_id: str) -> list[Removal]:
    kept = {snapshot.snapshot_id for snapshot in line}
    found: list[Removal] = []
    for snapshot in line:
        ours = snapshot.summary.get(TOPIC_ID) == topic_id
        if ours or snapshot.summary.get("operation") == REPLACE:
            continue
        rows = sum(snapshot.number(key) for key in REMOVED)
        if rows:
            parent = snapshot.parent_snapshot_id
            less = max(rows - snapshot.number("added-records"), 0)
            found.append(Removal(snapshot.snapshot_id, parent if parent in kept else None, less))
    return found


def holes(present: Sequence[int], first: int, end: int, gaps: Gaps) -> list[tuple[int, int]]:
    """Return the ranges of `[first, end)` that have a record and are not in `present`."""
    taken = sorted({*((each, each + 1) for each in present), *gaps})
    found: list[tuple[int, int]] = []
    reached = first
    for low, high in taken:
        if low >= end:
            break
        if low > reached:
            found.append((reached, low))
        reached = max(reached, high)
    if reached < end:
        found.append((reached, end))
    return found
