"""Build a broker's data directory from its object store: `frazil restore`.

Everything is written beside the target and put in its place by one rename: an interrupted restore
leaves nothing that could be taken for a broker's data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from frazil.errors import Conflict, CorruptionError, InvalidRequest, NotFound, Unavailable
from frazil.log import RANGE_LOST, DataDirectory, SpecialRange, encode_checkpoint
from frazil.log import format as fmt
from frazil.objects.backup import (
    Backup,
    LaneCopy,
    TopicCopy,
    backup_keys,
    brokers_in,
    newest_backup,
    write_backup,
)
from frazil.objects.finding import find_objects, frames_of
from frazil.objects.restored_journal import RestoredJournal
from frazil.objects.restored_metadata import (
    kept_by_servers,
    newer_cursors,
    objects_state,
    register_objects,
    with_kept,
)
from frazil.objects.restored_state import plan_restore, take_runs
from frazil.telemetry import event

if TYPE_CHECKING:
    from collections.abc import Iterator

    from frazil.clock import Clock
    from frazil.config import Settings
    from frazil.fs import FileSystem
    from frazil.objects.backup import Newest
    from frazil.objects.descriptor import Descriptor
    from frazil.objects.finding import FoundObjects
    from frazil.objects.restored_state import JournalPlan, RestorePlan, TopicPlan
    from frazil.objects.store import ObjectStore

__all__ = ["RestoreReport", "RestoredTopic", "restore"]

SUFFIX: Final = ".restoring"


@attrs.frozen
class RestoredTopic:
    """One topic after a restore."""

    name: str
    first: int
    end: int
    """Its records are those of `[first, end)`."""
    objects: int
    local: bool
    """Whether records of it were written to this machine."""
    lost: tuple[tuple[int, int], ...]
    """Ranges whose objects are missing or damaged."""
    unsaved: int
    """Offsets behind `end` that the backup knew and no object has."""
    subscriptions: int


@attrs.frozen
class RestoreReport:
    """What was restored, and what was not."""

    broker: str
    backup: str
    """The key of the backup that was used; empty if there was none."""
    backup_us: int
    unreadable_backups: dict[str, str]
    topics: tuple[RestoredTopic, ...]
    stale_objects: int
    damaged_objects: dict[str, str]
    missing_objects: tuple[str, ...]
    warnings: tuple[str, ...]
    bytes_local: int


def restore(
    store: ObjectStore,
    target: str,
    *,
    settings: Settings,
    file_system: FileSystem,
    clock: Clock,
    local_all: bool = False,
    broker: bytes | None = None,
    offset_margin: int | None = None,
) -> RestoreReport:
    """Make `target` the data directory of the broker whose objects a store has; durable on return.

    Args:
        store: has the objects; the restore is noted there as a backup.
        target: a directory that does not exist or is empty.
        settings: of the broker to be; `data_dir` is not looked at.
        file_system: where the target is.
        clock: for times and new ids.
        local_all: fetch all records, not only those that must lie on the machine.
        broker: which one, if the store has several.
        offset_margin: so many offsets of a topic may have been given out that nothing in the store
            knows of; `log.reserve_offsets` without it.

    Raises:
        Conflict: the target is not empty, an earlier restore was cut short beside it, or a broker
            still owns the data.
        NotFound: the store has nothing of a broker.
        InvalidRequest: it has several brokers and none was named.
        Unavailable: the store or the disk does not answer.
    """
    target = target.rstrip("/") or "/"
    _check_target(file_system, target)
    broker = _broker_of(store, broker)
    newest, damage = _newest(store, broker)
    own = newest.backup if newest is not None else None
    kept = kept_by_servers(settings, clock)
    backup = with_kept(broker, own, kept)
    found = find_objects(store, broker, backup, known=_keys(own))
    if newest is None and not found.candidates:
        raise NotFound("the store has no objects of this broker", broker=broker.hex())
    plan = plan_restore(
        broker,
        backup,
        found,
        local_all=local_all,
        offset_margin=settings.log.reserve_offsets if offset_margin is None else offset_margin,
        producer_window=settings.producers.window_batches,
    )
    plan.warnings += damage
    if kept is not None:
        newer_cursors(plan, kept)
    for topic in plan.topics:
        if topic.local_from is None:
            _remember_runs(store, plan, topic, found)
    bytes_local = _write(
        store, target, plan, found, settings=settings, file_system=file_system, clock=clock
    )
    event("restored", broker=broker.hex(), topics=len(plan.topics), bytes_local=bytes_local)
    return _report(broker, newest, found, plan, bytes_local)


def _newest(store: ObjectStore, broker: bytes) -> tuple[Newest | None, list[str]]:
    """Return the newest backup; if none can be read the objects must do, and that is told."""
    try:
        return newest_backup(store, broker), []
    except CorruptionError as error:
        return None, [f"subscriptions and topics without records are not restored: {error}"]


def _write(
    store: ObjectStore,
    target: str,
    plan: RestorePlan,
    found: FoundObjects,
    *,
    settings: Settings,
    file_system: FileSystem,
    clock: Clock,
) -> int:
    """Write the planned directory, note it in the store and put it in place; return its bytes."""
    work = DataDirectory(target + SUFFIX)
    try:
        file_system.make_directory(work.root)
        bytes_local = sum(
            _write_journal(store, file_system, clock, settings, work, plan, each)
            for each in plan.journals
        )
        _note_restore(store, plan, found, clock)
        register_objects(settings, work, plan.topics, file_system=file_system, clock=clock)
        _put_in_place(file_system, work.root, target)
    except OSError as error:
        raise Unavailable(
            "the directory cannot be written", path=work.root, reason=error
        ) from error
    return bytes_local


def _note_restore(store: ObjectStore, plan: RestorePlan, found: FoundObjects, clock: Clock) -> None:
    """Put a backup of what was restored into the store, before anybody can use it.

    Should the new machine be lost before it makes a backup itself, the next restore must not give
    out the offsets that this one may have.
    """
    broker = plan.journals[0].journal
    states = [(each, each.state.lsn) for each in plan.journals]
    lanes = tuple(
        LaneCopy(each.topic, each.journal, encode_checkpoint(each.state, lsn=lsn), lsn)
        for each, lsn in states
    )
    topics = tuple(
        TopicCopy(
            topic.spec.id, objects_state(topic.chain, clock.now_us()), topic.chain.descriptors
        )
        for topic in plan.topics
        if topic.chain.descriptors
    )
    backup = Backup(
        broker=broker,
        epoch=found.epoch_last,
        seq=max((key.seq for key in backup_keys(store, broker)), default=0) + 1,
        created_us=clock.now_us(),
        lanes=lanes,
        topics=topics,
    )
    try:
        write_backup(store, backup)
    except InvalidRequest as error:
        plan.warnings.append(
            "the store could not be written to: should this machine be lost before its first "
            f"backup, offsets may be given twice: {error}"
        )


def _keys(backup: Backup | None) -> set[str]:
    """Return the objects that a backup names."""
    topics = backup.topics if backup is not None else ()
    return {each.key for copy in topics for each in copy.descriptors}


def _check_target(file_system: FileSystem, target: str) -> None:
    found = file_system.stat(target)
    if found is not None and (not found.is_directory or file_system.list_directory(target)):
        raise Conflict("the target is not empty, restore into a new directory", path=target)
    if file_system.stat(target + SUFFIX) is not None:
        raise Conflict(
            "an earlier restore was cut short, remove what it left and try again",
            path=target + SUFFIX,
        )


def _broker_of(store: ObjectStore, wanted: bytes | None) -> bytes:
    found = brokers_in(store)
    if wanted is not None:
        if wanted not in found:
            raise NotFound("the store has no objects of this broker", broker=wanted.hex())
        return wanted
    if not found:
        raise NotFound("the store has no objects of any broker here, check its root")
    if len(found) > 1:
        raise InvalidRequest(
            "the store has objects of several brokers, name one with --broker",
            brokers=", ".join(each.hex() for each in found),
        )
    return found[0]


def _remember_runs(
    store: ObjectStore, plan: RestorePlan, topic: TopicPlan, found: FoundObjects
) -> None:
    """Put what producers sent since the backup into their windows: repeats must be recognised."""
    state = plan.journal_of(topic.spec.id).state
    if not state.topics[topic.spec.id].producers:
        return
    for descriptor in topic.chain.descriptors:
        if descriptor.key not in found.unnamed:
            continue
        try:
            for head, _payload, runs in frames_of(store, descriptor, topic.spec.id):
                if head.offset >= descriptor.first and runs:
                    take_runs(state, head, [fmt.Run(*each) for each in fmt.RUN.iter_unpack(runs)])
        except (CorruptionError, NotFound) as error:
            plan.warnings.append(
                f"topic {topic.spec.name}: repeats of its producers may be taken twice: {error}"
            )


def _write_journal(
    store: ObjectStore,
    file_system: FileSystem,
    clock: Clock,
    settings: Settings,
    work: DataDirectory,
    plan: RestorePlan,
    journal: JournalPlan,
) -> int:
    """Write one journal with the records that belong to this machine; return their bytes."""
    directory = work.journal
    file_system.make_directory(directory)
    wanted = [
        topic
        for topic in plan.topics
        if topic.local_from is not None and plan.journal_of(topic.spec.id) is journal
    ]
    for topic in wanted:
        _begin_topic(store, journal, topic)
    written = RestoredJournal(
        file_system,
        directory,
        state=journal.state,
        journal=journal.journal,
        clock=clock,
        segment_bytes_max=settings.log.segment_bytes_max,
    )
    try:
        for topic in wanted:
            _write_topic(store, written, journal, topic, plan.warnings)
    finally:
        written.close()
    file_system.sync_directory(directory)
    return written.bytes if wanted else 0


def _begin_topic(store: ObjectStore, journal: JournalPlan, topic: TopicPlan) -> None:
    """Let a topic begin with a whole frame: the first one that has records it needs."""
    assert topic.local_from is not None
    state = journal.state.topics[topic.spec.id]
    first = next(_needed(topic))
    for head, _payload, _runs in frames_of(store, first, topic.spec.id):
        if head.offset + head.records > topic.local_from:
            start = min(head.offset, topic.local_from)
            state.start = state.next = state.durable = state.visible = start
            return


def _needed(topic: TopicPlan) -> Iterator[Descriptor]:
    assert topic.local_from is not None
    for descriptor in topic.chain.descriptors:
        if descriptor.end > topic.local_from:
            yield descriptor


def _write_topic(
    store: ObjectStore,
    written: RestoredJournal,
    journal: JournalPlan,
    topic: TopicPlan,
    warnings: list[str],
) -> None:
    state = journal.state.topics[topic.spec.id]
    for descriptor in _needed(topic):
        ranges = [SpecialRange(*each) for each in _ranges(descriptor)]
        try:
            for head, payload, runs in frames_of(store, descriptor, topic.spec.id):
                if head.offset + head.records <= state.next:
                    continue
                while ranges and ranges[0].first <= state.next < head.offset:
                    written.gap(topic.spec.id, ranges.pop(0)._replace(first=state.next))
                written.frame(head, payload, runs)
        except (CorruptionError, NotFound) as error:
            warnings.append(f"topic {topic.spec.name}: records are lost: {error}")
        for special in ranges:
            if special.end > state.next:
                written.gap(topic.spec.id, special._replace(first=state.next))
        if state.next < descriptor.end:
            lost = SpecialRange(state.next, descriptor.end, RANGE_LOST, "their object is damaged")
            written.gap(topic.spec.id, lost)


def _ranges(descriptor: Descriptor) -> Iterator[tuple[int, int, str, str]]:
    for each in descriptor.ranges:
        yield each.first, each.end, each.kind, each.reason


def _put_in_place(file_system: FileSystem, work: str, target: str) -> None:
    file_system.sync_directory(work)
    parent = target.rpartition("/")[0] or "/"
    file_system.sync_directory(parent)
    try:
        file_system.rename(work, target)
    except OSError as error:
        raise Unavailable(
            "the restored directory is complete but could not get its name, move it there",
            path=work,
            target=target,
            reason=error,
        ) from error
    file_system.sync_directory(parent)


def _report(
    broker: bytes, newest: Newest | None, found: FoundObjects, plan: RestorePlan, bytes_local: int
) -> RestoreReport:
    topics = [
        RestoredTopic(
            name=topic.spec.name,
            first=topic.chain.start,
            end=topic.chain.end,
            objects=len(topic.chain.descriptors),
            local=topic.local_from is not None,
            lost=topic.chain.lost,
            unsaved=topic.unsaved,
            subscriptions=len(plan.journal_of(topic.spec.id).state.topics[topic.spec.id].cursors),
        )
        for topic in plan.topics
    ]
    return RestoreReport(
        broker=broker.hex(),
        backup=newest.key if newest is not None else "",
        backup_us=newest.backup.created_us if newest is not None else 0,
        unreadable_backups=newest.unreadable if newest is not None else {},
        topics=tuple(sorted(topics, key=lambda topic: topic.name)),
        stale_objects=len(found.stale),
        damaged_objects=dict(found.damaged),
        missing_objects=tuple(found.missing),
        warnings=tuple(plan.warnings),
        bytes_local=bytes_local,
    )
