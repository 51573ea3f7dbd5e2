"""The state of a restored journal, from a backup and the footers of objects. Pure.

The backup has topics, columns, subscriptions and producers of its time. Footers of newer objects
have newer topics, columns and producers. Offsets that the lost machine may have assigned, and that
no object has, are not assigned again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import attrs
import msgspec

from frazil.log import JournalState, Sent, decode_checkpoint
from frazil.metadata import LEASE
from frazil.model import TopicSpec, part_name, topic_uid
from frazil.objects.restore_find import chained
from frazil.objects.retention import OBJECTS_HOLD
from frazil.topic import StateTag

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from frazil.log import TopicState
    from frazil.log import format as fmt
    from frazil.objects.backup import Backup
    from frazil.objects.descriptor import Descriptor
    from frazil.objects.format import Footer
    from frazil.objects.restore_find import Chain, FoundObjects

__all__ = ["RestorePlan", "TopicPlan", "plan_restore", "take_runs"]

LAKE_HOLD: Final = "lake"


class TopicPlan(NamedTuple):
    """One topic to restore."""

    spec: TopicSpec
    chain: Chain
    head_known: int
    """The offset after the last record in the backup's state."""
    local_from: int | None
    """Records from this offset on are written into the journal; None leaves them in the store."""
    next_offset: int
    """The first offset that the restored topic assigns."""

    @property
    def local(self) -> Sequence[Descriptor]:
        """Return the objects with records for the journal."""
        if self.local_from is None:
            return ()
        return [each for each in self.chain.descriptors if each.end > self.local_from]

    @property
    def unsaved(self) -> int:
        """Return the number of offsets that are in the backup's state but in no object."""
        return max(self.head_known - self.chain.end, 0)


@attrs.define
class RestorePlan:
    """The journal to write: its state, and the topics with their objects."""

    state: JournalState
    topics: list[TopicPlan]
    warnings: list[str]


def plan_restore(
    backup: Backup,
    found: FoundObjects,
    *,
    local_all: bool,
    offset_margin: int,
) -> RestorePlan:
    """Plan the restored journal: its state, and the records to write into it.

    Args:
        backup: the newest backup, or an empty one.
        found: the objects in the store.
        local_all: whether all records are written to this machine.
        offset_margin: the number of offsets of a topic that may have been assigned without a trace
            in the store.
    """
    state = JournalState()
    if backup.checkpoint:
        state = decode_checkpoint(backup.checkpoint)
    plan = RestorePlan(state, [], [])
    _define_found(state, found, plan.warnings)
    state.lsn = max(state.lsn, found.lsn_last)
    starts = {copy.topic: copy.state.start for copy in backup.topics}
    for topic in list(state.topics.values()):
        if topic.spec.partitions or topic.spec.deleted_us:
            continue
        chain = chained(found.candidates.get(topic.id, ()), start=starts.get(topic.id, 0))
        _name_producers(state, topic.id, found.footers.get(topic.id, ()))
        plan.topics.append(_settle(topic, chain, local_all=local_all, offset_margin=offset_margin))
    state.values[StateTag.EPOCH, LEASE] = b"%d" % found.epoch_last
    return plan


def take_runs(state: JournalState, head: fmt.FrameHead, runs: Sequence[fmt.Run]) -> None:
    """Add the batches of an object's frame to their producers' windows if they are missing."""
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


def _give_schemas(topic: TopicState, schemas: dict[int, bytes]) -> None:
    for version, data in schemas.items():
        topic.schemas.setdefault(version, data)
    topic.schema_version = max(topic.schemas, default=0)


def _define_found(state: JournalState, found: FoundObjects, warnings: list[str]) -> None:
    """Define the topics and columns that footers have and the backup does not."""
    for topic_id, footers in sorted(found.footers.items()):
        newest = max(footers, key=lambda each: (each.spec.version, each.epoch))
        known = state.topics.get(topic_id)
        if known is not None and topic_uid(known.spec) != newest.uid:
            warnings.append(
                f"objects of topic {topic_id} belong to another topic with that id and are ignored"
            )
            found.candidates[topic_id] = [
                each for each in found.candidates[topic_id] if each.key not in found.unnamed
            ]
            found.footers[topic_id] = []
            continue
        if known is None or known.spec.version < newest.spec.version:
            known = state.define_topic(newest.spec)
        for each in footers:
            _give_schemas(known, each.schemas)
    for spec in list(_families(state, warnings)):
        state.define_topic(spec)
    _settle_names(state, warnings)


def _families(state: JournalState, warnings: list[str]) -> Iterator[TopicSpec]:
    """Yield the partitioned topics, and parts without objects, that other parts imply."""
    orphans: dict[int, list[TopicSpec]] = {}
    for topic in state.topics.values():
        spec = topic.spec
        if spec.part_of and not spec.deleted_us and spec.part_of not in state.topics:
            orphans.setdefault(spec.part_of, []).append(spec)
    for parent_id, parts in orphans.items():
        # The ids of parts follow their parent's.
        count = max(part.part_index for part in parts) + 1
        first = parts[0]
        name = first.name.removesuffix(part_name("", first.part_index))
        warnings.append(
            f"topic {name} is newer than the backup: it has at least {count} parts, later ones "
            "without records are not known"
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
    """Mark the older of two topics of one name as deleted: it was deleted after the backup."""
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


def _name_producers(state: JournalState, topic_id: int, footers: Sequence[Footer]) -> None:
    for each in footers:
        for producer_id, name in each.producers.items():
            if producer_id and producer_id not in state.producers:
                state.add_producer(producer_id, topic=topic_id, name=name, epoch=0)


def _settle(topic: TopicState, chain: Chain, *, local_all: bool, offset_margin: int) -> TopicPlan:
    """Set a topic's heads and holds to the end of its objects, and its producers with them."""
    head_known = topic.next
    local_from = _local_from(topic, chain, local_all=local_all)
    kept_below = chain.end if local_from is None else local_from
    for producer in topic.producers.values():
        # A batch that is in no object is lost: its repeat must be written.
        kept = [sent for sent in producer.window if sent.offset + sent.records <= kept_below]
        producer.window.clear()
        producer.window.extend(kept)
    topic.ranges = []
    at = chain.end if chain.descriptors else head_known
    topic.start = topic.next = at if local_from is None else local_from
    topic.durable = topic.next
    # The hold is the end of registered objects: it must not be above the end of found objects.
    topic.holds.pop(OBJECTS_HOLD, None)
    if chain.descriptors:
        topic.holds[OBJECTS_HOLD] = at
    next_offset = max(head_known, chain.end) + offset_margin
    return TopicPlan(topic.spec, chain, head_known, local_from, next_offset)


def _local_from(topic: TopicState, chain: Chain, *, local_all: bool) -> int | None:
    """Return the offset from which on records must be on this machine; it is a frame's first.

    The newest rows of a keyed topic are looked up by key, and the lake takes records from files.
    """
    needed = chain.start
    if topic.spec.lake and not (local_all or topic.spec.primary_key):
        needed = max(topic.holds.get(LAKE_HOLD, needed), needed)
    is_local = local_all or topic.spec.primary_key or topic.spec.lake
    if not is_local or needed >= chain.end:
        return None
    first = next(each for each in chain.descriptors if each.end > needed)
    frames = [each.offset for each in first.entries() if each.offset <= needed]
    return max(frames, default=needed)
