"""Go on behind the end of a table that a topic did not fill: no offset may mean two records.

A table of another topic has rows where this topic has records of its own, and so has the topic's own
table if the log is an older copy that was published to. These records are published again behind the
table's end, and only then the table becomes this topic's: a crash before leaves a table that is not
ours, or a log that is known to have branched off, and calling it again goes on where it stood. What
is left to do is in the metadata; records that were published and not yet noted there are known by
their producer.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from frazil.errors import InvalidRequest, NotFound
from frazil.lake.declared import ADOPTED, ranges_between
from frazil.lake.plans import Adoption, Wishes
from frazil.lake.watermark import side_view, stray_begins, watermarks
from frazil.log import RANGE_GAP, Control, Pending, Sender, deliver
from frazil.log import format as fmt
from frazil.telemetry import event
from frazil.topic import Reader, first_held

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from frazil.lake.context import Tables
    from frazil.lake.plans import LakePlans
    from frazil.lake.table import Ends, View
    from frazil.lake.topics import LakeTopic
    from frazil.topic import TopicRuntime

__all__ = ["Begun", "begin_adoption", "finish_adoption", "publish_again"]

REASON: Final = "the table has records of another log"


class Begun(NamedTuple):
    """An adoption whose offsets are safe: `adoption` is None if nothing is to be published again."""

    marks: Ends
    raised: Ends
    below: dict[int, tuple[int, int]]
    """The own records that lay below the table's end."""
    adoption: Adoption | None

    def is_foreign(self, topic: LakeTopic) -> bool:
        """Tell whether the table was another topic's."""
        return self.adoption is not None and self.adoption.owner != topic.uid

    def told(self, topic: LakeTopic) -> dict[str, Any]:
        """Return what was done, ready for JSON."""
        return {
            "table": str(topic.table),
            "ends": {str(part): end for part, end in sorted(self.marks.items())},
            "raised": {str(part): count for part, count in self.raised.items() if count},
            "taken_over": self.is_foreign(topic),
            "again": {str(part): list(each) for part, each in self.below.items()},
        }


def begin_adoption(
    topic: LakeTopic, tables: Tables, plans: LakePlans, *, confirm: bool, name: str
) -> Begun:
    """Raise the topic's head to the table's end, and note what must be published again.

    Raises:
        InvalidRequest: if the table is another topic's and `confirm` is missing.
        NotFound: if there is no table.
    """
    view = tables.look(topic.table)
    beside = _beside(topic, tables, view)
    marks = _marks(view, beside)
    foreign = view.topic_id != topic.uid
    strays = {} if foreign else _strays(topic, view, beside)
    firsts = _first_offsets(topic) if foreign else {**topic.own_to(), **strays}
    durable = topic.durable()
    below = ranges_between(firsts, {p: min(end, marks.get(p, 0)) for p, end in durable.items()})
    if foreign and not confirm:
        raise InvalidRequest(
            "the table is another topic's; with confirm=True it becomes this one's, and this "
            "topic's records below the table's end are published again behind it",
            table=topic.table,
            topic_id=view.topic_id,
            ours=topic.uid,
            records_again=sum(end - first for first, end in below.values()),
        )
    ahead = {} if foreign else ranges_between(firsts, {p: marks.get(p, 0) for p in firsts})
    if ahead:
        # Before the head is raised: afterwards nothing tells where the table's own records ended.
        if strays:
            topic.branch_off(strays)
        topic.note_own()
        _declare(topic, tables, ahead)
    raised = {each.part: _raise_head(each, marks.get(each.part, 0)) for each in topic.runtimes}
    if not foreign and not ahead:
        return Begun(marks, raised, below, None)
    known = plans.adoption(topic.uid)
    # One that was cut off at its very end has made the table ours already.
    if known is None or (foreign and known.owner != view.topic_id):
        known = Adoption(name=name, owner=view.topic_id or "")
    adoption = _extended(known, firsts, marks)
    plans.set_adoption(topic.uid, adoption)
    return Begun(marks, raised, below, adoption)


def _beside(topic: LakeTopic, tables: Tables, view: View) -> View | None:
    """Look at the side table, if there is one that belongs to the table or to the topic."""
    try:
        beside = tables.look(topic.table.rejects)
    except NotFound:
        return None
    return beside if beside.topic_id in {view.topic_id, topic.uid} else None


def _marks(view: View, beside: View | None) -> Ends:
    """Return where the table ends, its side table included."""
    marks, _certain = watermarks(view, {})
    others = {} if beside is None else watermarks(beside, {})[0]
    return {part: max(marks.get(part, 0), others.get(part, 0)) for part in {*marks, *others}}


def _strays(topic: LakeTopic, view: View, beside: View | None) -> Ends:
    """Return, by part, where commits for another topic that came late took this one's offsets."""
    durable = topic.own_to()
    found = stray_begins(view, topic.remembered(), durable)
    if beside is None:
        return found
    own = {**watermarks(view, {})[0], **found}
    return {**stray_begins(side_view(beside, own), {}, durable), **found}


def _declare(topic: LakeTopic, tables: Tables, ahead: Mapping[int, tuple[int, int]]) -> None:
    """Declare offsets that another log has taken: in the side table first, as the main one tells."""
    with contextlib.suppress(NotFound):
        tables.declare(topic.table.rejects, ADOPTED, ahead)
    tables.declare(topic.table, ADOPTED, ahead)


def _first_offsets(topic: LakeTopic) -> Ends:
    return {each.part: first_held(each) for each in topic.runtimes}


def _extended(known: Adoption, firsts: Ends, marks: Ends) -> Adoption:
    """Return an adoption with everything of this topic that the table's end is above.

    A table that grew since the last call may be above what was published again then.
    """
    left, ends = dict(known.left), dict(known.ends)
    for part, first_own in firsts.items():
        first, end = ends.get(part, first_own), marks.get(part, 0)
        if first < end:
            left[part] = (*left.get(part, ()), (first, end))
            ends[part] = end
    return replace(known, left=left, ends=ends)


def finish_adoption(topic: LakeTopic, tables: Tables, plans: LakePlans, begun: Begun) -> None:
    """Make the table this topic's, once everything is published again, and go on with it."""
    if begun.adoption is not None:
        # Its side table may be ahead of it: what this log had there is published again as well.
        tables.advance(topic.table, begun.marks)
    if begun.is_foreign(topic):
        everything = {part: (0, end) for part, end in begun.marks.items() if end}
        tables.take_over(topic.table, topic.uid, everything)
    # Also where a crash came between the two: the table is ours, nothing is left to do.
    plans.set_adoption(topic.uid, None)
    topic.decide(Wishes(paused=topic.wishes.paused), adopted=True)
    event("lake_adopted", topic=topic.name, foreign=begun.is_foreign(topic), ends=begun.marks)


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
        runtime.log.journal.commit([(None, None, control, 0, size, pending, None)], deliver)
        pending.result()
        # The frame is synced, and with it everything before: nothing lies between.
        state.durable = state.visible = state.next
        return end - first

    count: int = runtime.log.queue.call(declare)
    return count


def publish_again(topic: LakeTopic, plans: LakePlans, adoption: Adoption) -> None:
    """Publish what an adoption has left, behind everything; durable on return."""
    for runtime in topic.runtimes:
        part = runtime.part
        while adoption.left.get(part):
            (first, end), *rest = adoption.left[part]
            for offset, sent in _published(runtime, adoption, first, end):
                left = {**adoption.left, part: ((offset, end), *rest)}
                adoption = replace(adoption, left=left, sent={**adoption.sent, part: sent})
                plans.set_adoption(topic.uid, adoption)
            adoption = replace(adoption, left={**adoption.left, part: tuple(rest)})
            plans.set_adoption(topic.uid, adoption)


def _published(
    runtime: TopicRuntime, adoption: Adoption, first: int, end: int
) -> Iterator[tuple[int, int]]:
    """Publish the records of a range; give the offset behind each batch, and how many were sent."""
    producer = f"frazil-adopt-{adoption.name}"
    sent = adoption.sent.get(runtime.part, 0)
    # Published by a life that ended before it could take note.
    before = _sent_by(runtime, producer) - sent
    reader = Reader(runtime, start=first, follow=False, limit=None, bytes_max=None, timeout_s=None)
    with reader:
        for batch in reader:
            own = batch.slice(0, max(end - batch.offset, 0))
            if not own.count:
                return
            known = min(max(before, 0), own.count)
            before -= known
            sent += known
            if known < own.count:
                for frame in runtime.prepare_arrow(own.slice(known).data):
                    pending = Pending()
                    sender = Sender(producer, 0, sent, sync=True)
                    runtime.queue.submit_waiting(*runtime.entries([frame], [pending], sender))
                    pending.result()
                    sent += frame[2] or 1
            yield own.offset_next, sent


def _sent_by(runtime: TopicRuntime, producer: str) -> int:
    """Return how many records a producer has published, as far as the topic remembers."""
    found = runtime.state.producers.get(producer)
    if found is None or not found.window:
        return 0
    last = found.window[-1]
    return last.sequence + last.records
