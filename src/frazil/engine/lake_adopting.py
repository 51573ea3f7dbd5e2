"""Go on behind the end of a table that a topic did not fill: no offset may mean two records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from frazil.engine.lake_plans import Wishes
from frazil.engine.moments import first_held
from frazil.engine.reading import Reader
from frazil.errors import InvalidRequest
from frazil.lake.watermark import watermarks
from frazil.log import format as fmt
from frazil.log.codec import Control, Sender
from frazil.log.committer import Pending, deliver
from frazil.log.state import RANGE_GAP
from frazil.telemetry import event

if TYPE_CHECKING:
    from frazil.engine.lake_topics import LakeTopic
    from frazil.engine.lake_world import Tables
    from frazil.engine.runtime import TopicRuntime
    from frazil.lake.table import Ends

__all__ = ["adopt", "publish_again"]

REASON: Final = "the table has records of another log"


def adopt(topic: LakeTopic, tables: Tables, *, confirm: bool) -> dict[str, Any]:
    """Raise the topic's head to the table's end; take the table over if it is another topic's.

    Returns what was done: where the table stands, and the ranges that must be published again.

    Raises:
        InvalidRequest: if the table is another topic's and `confirm` is missing.
        NotFound: if there is no table.
    """
    view = tables.look(topic.table)
    marks, _certain = watermarks(view, {})
    foreign = view.topic_id != topic.uid
    again: dict[int, tuple[int, int]] = {}
    if foreign:
        again = {
            each.part: (first, min(each.state.durable, marks.get(each.part, 0)))
            for each in topic.runtimes
            if (first := first_held(each)) < min(each.state.durable, marks.get(each.part, 0))
        }
        if not confirm:
            raise InvalidRequest(
                "the table is another topic's; with confirm=True it becomes this one's, and this "
                "topic's records below the table's end are published again behind it",
                table=topic.table,
                topic_id=view.topic_id,
                ours=topic.uid,
                records_again=sum(end - first for first, end in again.values()),
            )
    raised = {each.part: _raise_head(each, marks.get(each.part, 0)) for each in topic.runtimes}
    if foreign:
        tables.take_over(topic.table, topic.uid)
    topic.decide(Wishes(paused=topic.wishes.paused))
    event("lake_adopted", topic=topic.name, foreign=foreign, ends=marks)
    return {
        "table": str(topic.table),
        "ends": _ends(marks),
        "raised": {str(part): count for part, count in raised.items() if count},
        "taken_over": foreign,
        "again": {str(part): list(each) for part, each in again.items()},
    }


def _ends(marks: Ends) -> dict[str, int]:
    return {str(part): end for part, end in sorted(marks.items())}


def _raise_head(runtime: TopicRuntime, end: int) -> int:
    """Declare the offsets up to `end` a gap, so that none of them is given again.

    On the journal's thread: no publish gets an offset in between. Returns how many there are.
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
        # The frame is synced, and with it everything before: nothing lies between.
        state.durable = state.visible = state.next
        return end - first

    count: int = runtime.lane.queue.call(declare)
    return count


def publish_again(runtime: TopicRuntime, first: int, end: int) -> int:
    """Publish a topic's own records of a range once more, behind everything; return how many."""
    count = 0
    reader = Reader(runtime, start=first, follow=False, limit=None, bytes_max=None, timeout_s=None)
    with reader:
        for batch in reader:
            own = batch.slice(0, max(end - batch.offset, 0))
            if not own.count:
                break
            prepared = runtime.prepare_arrow(own.data)
            waiting = [Pending() for _each in prepared]
            sender = Sender(sync=True)
            runtime.queue.submit_waiting(*runtime.entries(prepared, waiting, sender))
            for pending in waiting:
                pending.result()
            count += own.count
    return count
