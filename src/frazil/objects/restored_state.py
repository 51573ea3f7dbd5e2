"""What a broker's journals must know to live again: from a backup and the footers of objects. Pure.

The backup has topics, columns, subscriptions and producers as they were. Objects written since tell
of newer topics, columns and producers. Offsets that may have been given out and are in no object
are never given again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import attrs
import msgspec

from frazil.log import JournalState, Sent, decode_checkpoint
from frazil.metadata import LEASE
from frazil.model import TopicSpec, part_name, topic_uid
from frazil.objects.chain import chained
from frazil.objects.descriptor import ObjectsState
from frazil.topic import StateTag

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from frazil.log import TopicState
    from frazil.log import format as fmt
    from frazil.objects.backup import Backup
    from frazil.objects.chain import Chain
    from frazil.objects.finding import FoundObjects
    from frazil.objects.format import TopicSlice

__all__ = ["OBJECTS_HOLD", "JournalPlan", "RestorePlan", "TopicPlan", "plan_restore", "take_runs"]

OBJECTS_HOLD: Final = "objects"
LAKE_HOLD: Final = "lake"
NO_OBJECTS: Final = ObjectsState()


class TopicPlan(NamedTuple):
    """What becomes of one topic."""

    spec: TopicSpec
    chain: Chain
    head_known: int
    """The offset behind the last record that the backup knew of."""
    local_from: int | None
    """From here on its records are written into the journal; None leaves them where they are."""

    @property
    def unsaved(self) -> int:
        """Return how many offsets the backup knew that no object has."""
        return max(self.head_known - self.chain.end, 0)


@attrs.define
class JournalPlan:
    """One journal to write: the main one has `topic` 0."""

    topic: int
    journal: bytes
    state: JournalState


@attrs.define
class RestorePlan:
    """All that is to be written."""

    journals: list[JournalPlan]
    topics: list[TopicPlan]
    warnings: list[str]

    def journal_of(self, topic_id: int) -> JournalPlan:
        """Return the journal that has a topic's records."""
        own = (plan for plan in self.journals if plan.topic == topic_id)
        return next(own, self.journals[0])


def plan_restore(
    broker: bytes,
    backup: Backup | None,
    found: FoundObjects,
    *,
    local_all: bool,
    offset_margin: int,
    producer_window: int,
    new_id: bytes,
) -> RestorePlan:
    """Say what the journals of a restored broker know and which records they hold.

    Args:
        broker: the id of the main journal.
        backup: the newest one, if there is any.
        found: the objects in the store.
        local_all: whether all records are wanted on this machine.
        offset_margin: so many offsets may have been given out that nothing in the store knows of.
        producer_window: so many batches of a producer are remembered.
        new_id: from it come the ids of lanes that the backup does not know.
    """
    warnings: list[str] = []
    lanes = {lane.topic: lane for lane in backup.lanes} if backup is not None else {}

    def state_of(topic_id: int) -> JournalState:
        if topic_id not in lanes:
            return JournalState(producer_window=producer_window)
        return decode_checkpoint(lanes[topic_id].checkpoint, producer_window=producer_window)

    main = JournalPlan(0, broker, state_of(0))
    plan = RestorePlan([main], [], warnings)
    _define_found(main.state, found, warnings)
    for topic in list(main.state.topics.values()):
        if topic.spec.lane == "dedicated" and not (topic.spec.partitions or topic.spec.deleted_us):
            state = state_of(topic.id)
            _give_schemas(state.define_topic(topic.spec), topic.schemas)
            known = topic.id in lanes
            journal = lanes[topic.id].journal if known else _lane_id(new_id, topic.id)
            plan.journals.append(JournalPlan(topic.id, journal, state))
    for each in plan.journals:
        each.state.lsn = max(each.state.lsn, found.lsn_last)
    starts = {copy.topic: copy.state.start for copy in backup.topics} if backup is not None else {}
    for topic in list(main.state.topics.values()):
        if topic.spec.partitions or topic.spec.deleted_us:
            continue
        state = plan.journal_of(topic.id).state
        chain = chained(found.candidates.get(topic.id, ()), start=starts.get(topic.id, 0))
        _name_producers(state, topic.id, found.slices.get(topic.id, ()))
        plan.topics.append(
            _settle(state, topic.id, chain, local_all=local_all, offset_margin=offset_margin)
        )
    main.state.values[StateTag.EPOCH, LEASE] = b"%d" % found.epoch_last
    return plan


def take_runs(state: JournalState, head: fmt.FrameHead, runs: Sequence[fmt.Run]) -> None:
    """Put the batches of an object's frame into their producers' windows, unless they are there."""
    offset = head.offset
    for run in runs:
        producer = state.producers.get(run.producer) if run.producer else None
        if producer is not None:
            last = producer.window[-1] if producer.window else None
            newer = run.epoch > producer.epoch or last is None or run.sequence > last.sequence
            if newer and run.epoch >= producer.epoch:
                sent = Sent(run.sequence, run.records, offset, head.lsn, head.time)
                state.record_sent(run.producer, sent, epoch=run.epoch)
        offset += run.records


def _lane_id(new_id: bytes, topic_id: int) -> bytes:
    return new_id[:12] + topic_id.to_bytes(4, "big")


def _give_schemas(topic: TopicState, schemas: dict[int, bytes]) -> None:
    for version, data in schemas.items():
        topic.schemas.setdefault(version, data)
    topic.schema_version = max(topic.schemas, default=0)


def _define_found(state: JournalState, found: FoundObjects, warnings: list[str]) -> None:
    """Define what objects know and the backup does not: topics, definitions, columns."""
    for topic_id, slices in sorted(found.slices.items()):
        newest = max(slices, key=lambda item: (item[1].spec.version, item[0]))[1]
        known = state.topics.get(topic_id)
        if known is not None and topic_uid(known.spec) != newest.uid:
            warnings.append(
                f"objects of topic {topic_id} belong to another topic of that number and are left out"
            )
            found.candidates[topic_id] = [
                each for each in found.candidates[topic_id] if each.key not in found.unnamed
            ]
            found.slices[topic_id] = []
            continue
        if known is None or known.spec.version < newest.spec.version:
            known = state.define_topic(newest.spec)
        for _epoch, each in slices:
            _give_schemas(known, each.schemas)
    for spec in list(_families(state, warnings)):
        state.define_topic(spec)
    _settle_names(state, warnings)


def _families(state: JournalState, warnings: list[str]) -> Iterator[TopicSpec]:
    """Yield the partitioned topics, and their parts without objects, that only parts tell of."""
    orphans: dict[int, list[TopicSpec]] = {}
    for topic in state.topics.values():
        spec = topic.spec
        if spec.part_of and not spec.deleted_us and spec.part_of not in state.topics:
            orphans.setdefault(spec.part_of, []).append(spec)
    for parent_id, parts in orphans.items():
        # Parts are made with the ids behind their parent's.
        count = max(part.part_index for part in parts) + 1
        first = parts[0]
        name = first.name.removesuffix(part_name("", first.part_index))
        warnings.append(
            f"topic {name} is newer than the backup: it has at least {count} parts, those behind "
            "the last one with records are not known"
        )
        have = {part.part_index for part in parts}
        for index in range(count):
            if index not in have:
                yield msgspec.structs.replace(
                    first, id=parent_id + 1 + index, name=part_name(name, index), part_index=index
                )
        yield msgspec.structs.replace(
            first, id=parent_id, name=name, partitions=count, part_of=0, part_index=-1
        )


def _settle_names(state: JournalState, warnings: list[str]) -> None:
    """Of two topics of one name the older one was deleted, which the backup did not know yet."""
    by_name: dict[str, TopicState] = {}
    for topic in sorted(state.topics.values(), key=lambda topic: (topic.spec.created_us, topic.id)):
        if topic.spec.deleted_us:
            continue
        older = by_name.get(topic.spec.name)
        if older is not None:
            warnings.append(f"an older topic {topic.spec.name} was deleted since the backup")
            older.define(
                msgspec.structs.replace(older.spec, deleted_us=max(topic.spec.created_us, 1))
            )
        by_name[topic.spec.name] = topic


def _name_producers(
    state: JournalState, topic_id: int, slices: Sequence[tuple[int, TopicSlice]]
) -> None:
    for _epoch, each in slices:
        for producer_id, name in each.producers.items():
            if producer_id and producer_id not in state.producers:
                state.add_producer(producer_id, topic=topic_id, name=name, epoch=0)


def _settle(
    state: JournalState, topic_id: int, chain: Chain, *, local_all: bool, offset_margin: int
) -> TopicPlan:
    """Put a topic's heads and holds where the objects end, and its producers with them."""
    topic = state.topics[topic_id]
    head_known = topic.next
    local_from = _local_from(topic, chain, local_all=local_all)
    kept_below = chain.end if local_from is None else local_from
    for producer in topic.producers.values():
        # A batch that is in no object is gone: its repeat must be written, not taken for known.
        kept = [sent for sent in producer.window if sent.offset + sent.records <= kept_below]
        producer.window.clear()
        producer.window.extend(kept)
    topic.ranges = []
    topic.reserved = max(topic.reserved, head_known, chain.end) + offset_margin
    at = chain.end if chain.descriptors else head_known
    topic.start = topic.next = at if local_from is None else local_from
    topic.durable = topic.visible = topic.next
    # The hold says what is registered; it must not know of more than there is.
    topic.holds.pop(OBJECTS_HOLD, None)
    if chain.descriptors:
        topic.holds[OBJECTS_HOLD] = at
    return TopicPlan(topic.spec, chain, head_known, local_from)


def _local_from(topic: TopicState, chain: Chain, *, local_all: bool) -> int | None:
    """Return from where on records must lie on this machine.

    The newest rows of a keyed topic are looked up by key, and the lake takes records from files.
    """
    if not chain.descriptors:
        return None
    if local_all or topic.spec.primary_key:
        return chain.start
    if topic.spec.lake:
        held = max(topic.holds.get(LAKE_HOLD, chain.start), chain.start)
        return held if held < chain.end else None
    return None
