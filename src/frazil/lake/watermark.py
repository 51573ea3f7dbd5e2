"""The watermarks of a table and the decision for a plan: the pure part of the commit protocol.

`docs/internals/lake.md` has the table of cases. A part that is done, or whose watermark is inside
its range, is handled alone; a reason to stop in any part stops the whole plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import msgspec

from frazil.lake.table import Ends

if TYPE_CHECKING:
    from collections.abc import Iterable

    from frazil.lake.plan import PartRange, TableName
    from frazil.lake.table import TableState

__all__ = [
    "AHEAD_OF_LOG",
    "FOREIGN_TABLE",
    "MISSING_RANGE",
    "ROLLED_BACK",
    "Choice",
    "Decision",
    "Known",
    "decide",
    "rejects_state",
    "rows_between",
    "stray_starts",
    "watermarks",
]

FOREIGN_TABLE: Final = "foreign_table"
AHEAD_OF_LOG: Final = "ahead_of_log"
ROLLED_BACK: Final = "rolled_back"
MISSING_RANGE: Final = "missing_range"

Choice: TypeAlias = Literal["", "replay", "accept"]
"""The operator's choice for a table that was rolled back: move its rows again, or accept it.

`accept` also continues after a range that is held nowhere any more.
"""


class Known(NamedTuple):
    """The engine's knowledge, by part; every part of the topic is in `durable`.

    `remembered` is the highest watermark ever seen in the table, `durable` the log's, `held` the
    first offset that is still held locally. `chosen` are the table's watermarks when the operator
    made the `choice`: a table below them has been rolled back once more.
    """

    topic_id: str
    remembered: Ends
    durable: Ends
    held: Ends
    choice: Choice = ""
    chosen: Ends = {}  # noqa: RUF012 - never changed


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The decision for a plan: `move` the rows from `starts` on, or one of three others.

    `done`: the table has all of it. `replan`: the watermark is below the plan's first offset and
    all records from there on are held, so another plan has to be made from `marks`. `stop`: nothing
    may be written or released until an operator has decided.
    """

    case: Literal["move", "done", "replan", "stop"]
    reason: str = ""
    message: str = ""
    marks: Ends
    """The watermarks of all known parts, with the operator's choice applied."""
    stated: Ends
    """The watermark that the table itself states."""
    choice_spent: bool = False
    """The operator's choice has had its effect: forget it."""
    starts: Ends = {}
    """The first offset to move, for the parts of the plan that are not done."""
    rows: int = 0
    """The number of records of the plan from `starts` on."""


def watermarks(view: TableState, remembered: Ends) -> tuple[Ends, bool]:
    """Return the watermarks by part, and whether they come from the table alone.

    A summary has the exact watermark. A table without any snapshot is exact as well, as expiry
    never removes the current one. If only foreign snapshots are left, the result is the highest of
    three lower bounds. None of them is enough alone: the property may be old, the last rows may
    have been rejected, the remembered ends may have been lost.
    """
    if view.summary_ends is not None:
        return dict(view.summary_ends), True
    if view.sid is None:
        # Not the property: it stays when another program replaces the table.
        return dict(view.begin_ends or view.property_ends), True
    sources = (view.property_ends, view.bound_ends, remembered)
    parts = {part for ends in sources for part in ends}
    return {part: max(ends.get(part, 0) for ends in sources) for part in sorted(parts)}, False


def stray_starts(view: TableState, remembered: Ends, durable: Ends) -> Ends:
    """Return, by part, the end of the log's own rows in a table with a late foreign commit."""
    return {
        part: min(max(first, remembered.get(part, 0)), durable.get(part, 0))
        for part, (first, _end) in view.strays.items()
    }


def rejects_state(view: TableState, marks: Ends) -> TableState:
    """Return a side table's state; rows below its main table's watermarks are settled."""
    strays = {
        part: (max(first, marks.get(part, 0)), end)
        for part, (first, end) in view.strays.items()
        if end > marks.get(part, 0)
    }
    return msgspec.structs.replace(view, strays=strays)


def rows_between(ranges: Iterable[PartRange], starts: Ends) -> int:
    """Return how many records ranges have from given offsets on; a part not given has none."""
    total = 0
    for each in ranges:
        if each.part in starts:
            start = starts[each.part]
            gaps = sum(max(0, end - max(first, start)) for first, end in each.gaps)
            total += each.hi - start - gaps
    return total


def decide(
    table: TableName, view: TableState, known: Known, ranges: tuple[PartRange, ...] = ()
) -> Decision:
    """Compare a table's state with the engine's knowledge, for a plan's ranges or for none.

    Without ranges, as for a binding, the answer is `stop`, or `done` with the marks.
    """
    if view.topic_id != known.topic_id:
        return _foreign(table, view, known)
    remembered = known.chosen if known.choice == "replay" else known.remembered
    stated, conclusive = watermarks(view, remembered)
    marks = dict(stated)
    own = {**known.durable, **stray_starts(view, known.remembered, known.durable)}
    ahead = [part for part, mark in sorted(marks.items()) if mark > own.get(part, 0)]
    if ahead:
        return _ahead(table, ahead[0], marks, own)
    if conclusive:
        behind = _behind(marks, known.chosen if known.choice else known.remembered)
        if behind:
            return _rolled_back(table, marks, behind)
        if known.choice == "accept":
            marks |= _behind(marks, known.remembered)
    gaps = {each.part: each.gaps for each in ranges}
    for part, held in sorted(known.held.items()):
        missing = _first_missing(marks.get(part, 0), held, gaps.get(part, ()))
        if missing is not None and known.choice != "accept":
            return _missing(table, part, missing, stated)
        if missing is not None:
            marks[part] = missing[1]
    spent = marks == stated and not _behind(stated, known.remembered)
    return msgspec.structs.replace(_placed(marks, stated, ranges), choice_spent=spent)


def _behind(marks: Ends, others: Ends) -> Ends:
    """Return those of the other marks that the table has not reached."""
    return {part: end for part, end in others.items() if marks.get(part, 0) < end}


def _placed(marks: Ends, stated: Ends, ranges: tuple[PartRange, ...]) -> Decision:
    starts: Ends = {}
    for each in ranges:
        mark = marks.get(each.part, 0)
        if mark < each.lo:
            return Decision(
                case="replan",
                reason="replan",
                message=(
                    f"the table's watermark is below the plan (part={each.part} table={mark} "
                    f"plan={each.lo}); plan again from there"
                ),
                marks=marks,
                stated=stated,
            )
        if mark < each.hi:
            starts[each.part] = mark
    if not starts:
        return Decision(case="done", marks=marks, stated=stated)
    return Decision(
        case="move", marks=marks, stated=stated, starts=starts, rows=rows_between(ranges, starts)
    )


def _first_missing(start: int, end: int, gaps: Iterable[tuple[int, int]]) -> tuple[int, int] | None:
    """Return the range from the first offset in `[start, end)` that no gap explains."""
    for first, after in sorted(gaps):
        if first <= start < after:
            start = after
    return (start, end) if start < end else None


def _foreign(table: TableName, view: TableState, known: Known) -> Decision:
    found = "none" if view.topic_id is None else view.topic_id
    return Decision(
        case="stop",
        reason=FOREIGN_TABLE,
        message=(
            f"table belongs to another topic (table={table} topic_id={found} "
            f"ours={known.topic_id}); `frazil lake adopt` takes it over"
        ),
        marks={},
        stated={},
    )


def _ahead(table: TableName, part: int, marks: Ends, own: Ends) -> Decision:
    return Decision(
        case="stop",
        reason=AHEAD_OF_LOG,
        message=(
            f"table has records that the log never had (table={table} part={part} "
            f"table_end={marks[part]} durable={own.get(part, 0)}); the data directory is "
            "older than the table or new; `frazil lake adopt` continues after the table's end"
        ),
        marks=marks,
        stated=marks,
    )


def _rolled_back(table: TableName, marks: Ends, behind: Ends) -> Decision:
    part, end = next(iter(sorted(behind.items())))
    return Decision(
        case="stop",
        reason=ROLLED_BACK,
        message=(
            f"table was rolled back (table={table} part={part} table_end={marks.get(part, 0)} "
            f"seen={end}); `frazil lake resume --replay` moves the rows again, "
            "`--accept` continues without them"
        ),
        marks=marks,
        stated=marks,
    )


def _missing(table: TableName, part: int, missing: tuple[int, int], marks: Ends) -> Decision:
    return Decision(
        case="stop",
        reason=MISSING_RANGE,
        message=(
            f"offsets from {missing[0]} to {missing[1] - 1} are neither in the table nor held "
            f"here (table={table} part={part}); `frazil lake resume --accept` skips them"
        ),
        marks=marks,
        stated=marks,
    )
