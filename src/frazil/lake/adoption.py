"""`frazil lake adopt`: continue after the end of a table that a topic did not fill.

No offset may mean two records, so the topic's head is raised to the table's end with a declared gap.
Called again after a crash it does what is left.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from frazil.errors import InvalidRequest, NotFound
from frazil.lake.declared import ADOPTED, ranges_between, without
from frazil.lake.plans import OperatorOverrides
from frazil.lake.watermark import rejects_state, stray_starts, watermarks
from frazil.log import RANGE_GAP, Control, Pending, deliver
from frazil.log import format as fmt
from frazil.offsets import RangeSet
from frazil.telemetry import event
from frazil.topic import first_held, special_ranges

if TYPE_CHECKING:
    from frazil.lake.declared import Ranges
    from frazil.lake.table import Ends, TableState
    from frazil.lake.tables import CatalogTables
    from frazil.lake.topics import LakeTopic
    from frazil.topic import TopicRuntime

__all__ = ["adopt"]

REASON: Final = "the table has records of another log"


def adopt(topic: LakeTopic, tables: CatalogTables, *, confirm: bool) -> dict[str, Any]:
    """Raise a topic's head to its table's end and make the table this topic's.

    Raises:
        InvalidRequest: the table is another topic's, or own records would be left out, and
            `confirm` is missing.
        NotFound: there is no table.
    """
    view = tables.look(topic.table)
    side = _side_view(topic, tables, view)
    ends = _ends(view, side)
    foreign = view.topic_id != topic.uid
    strays = {} if foreign else _strays(topic, view, side)
    if foreign:
        firsts = {each.part: first_held(each) for each in topic.runtimes}
    else:
        firsts = {**topic.lineage_ends(), **strays}
    theirs = ranges_between(firsts, {part: ends.get(part, 0) for part in firsts})
    left_out = _own_records(topic, theirs)
    if (foreign or left_out) and not confirm:
        raise InvalidRequest(
            "the table has records of another log; with confirm=True this topic continues after "
            "them, and its own records at these offsets do not get into the table: read them and "
            "publish them again",
            table=topic.table,
            topic_id=view.topic_id,
            ours=topic.uid,
            left_out=sum(each.size for each in left_out.values()),
        )
    if theirs and not foreign:
        # Before the head is raised: afterwards nothing says where the table's own records ended.
        if strays:
            topic.mark_diverged(strays)
        topic.note_own()
        # In the side table first, because the main one decides.
        with contextlib.suppress(NotFound):
            tables.declare(topic.table.rejects, ADOPTED, theirs)
        tables.declare(topic.table, ADOPTED, theirs)
    raised = {each.part: _raise_head(each, ends.get(each.part, 0)) for each in topic.runtimes}
    if theirs or foreign:
        # The side table may be ahead of it.
        tables.advance(topic.table, ends)
    if foreign:
        everything = {part: RangeSet([(0, end)]) for part, end in ends.items() if end}
        tables.take_over(topic.table, topic.uid, everything)
    topic.decide(OperatorOverrides(paused=topic.overrides.paused), adopted=True)
    event("lake_adopted", topic=topic.name, foreign=foreign, ends=ends, left_out=left_out)
    return {
        "table": str(topic.table),
        "ends": {str(part): end for part, end in sorted(ends.items())},
        "raised": {str(part): count for part, count in raised.items() if count},
        "taken_over": foreign,
        "left_out": {str(part): [list(each) for each in own] for part, own in left_out.items()},
    }


def _side_view(topic: LakeTopic, tables: CatalogTables, view: TableState) -> TableState | None:
    """Return the state of the side table, if it belongs to the table's topic or to this one."""
    try:
        side = tables.look(topic.table.rejects)
    except NotFound:
        return None
    return side if side.topic_id in {view.topic_id, topic.uid} else None


def _ends(view: TableState, side: TableState | None) -> Ends:
    """Return where the table ends, its side table included."""
    ends, _certain = watermarks(view, {})
    others = {} if side is None else watermarks(side, {})[0]
    return {part: max(ends.get(part, 0), others.get(part, 0)) for part in {*ends, *others}}


def _strays(topic: LakeTopic, view: TableState, side: TableState | None) -> Ends:
    """Return, by part, where late commits for another topic took this one's offsets."""
    durable = topic.lineage_ends()
    found = stray_starts(view, topic.remembered(), durable)
    if side is None:
        return found
    own = {**watermarks(view, {})[0], **found}
    return {**stray_starts(rejects_state(side, own), {}, durable), **found}


def _own_records(topic: LakeTopic, ranges: Ranges) -> Ranges:
    """Return the durable offsets of ranges at which the topic has records, by part."""
    durable = topic.durable()
    outside = {
        each.part: RangeSet(
            [
                (durable[each.part], 1 << 63),
                *((gap.first, gap.end) for gap in special_ranges(each)),
            ]
        )
        for each in topic.runtimes
    }
    return {part: own for part, own in without(ranges, outside).items() if own}


def _raise_head(runtime: TopicRuntime, end: int) -> int:
    """Declare the offsets up to `end` a gap, so that none of them is used; return how many.

    On the journal's thread: no publish gets an offset in between.
    """

    def declare() -> int:
        state, first = runtime.state, runtime.state.next
        if first >= end:
            return 0
        payload = msgspec.msgpack.encode((end, RANGE_GAP, REASON))
        control = Control(fmt.KIND_GAP, state.id, payload, offset=first)
        pending = Pending()
        size = len(payload) + fmt.FRAME_HEAD_BYTES
        runtime.lane.journal.commit([(None, None, control, 0, size, pending, None)], deliver)
        pending.result()
        # The frame is synced, and with it everything before.
        state.durable = state.visible = state.next
        return end - first

    count: int = runtime.lane.queue.call(declare)
    return count
