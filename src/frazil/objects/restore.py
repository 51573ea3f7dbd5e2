"""Build a broker's data directory from its object store: `frazil restore`.

A restore lists the store, reads the footers, and uses the newest backup for the state that footers
do not have. All files are written to a directory next to the target, which is then renamed. So an
interrupted restore leaves no partial data directory at the target.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from frazil.errors import Conflict, CorruptionError, InvalidRequest, NotFound, Unavailable
from frazil.fs import write_fully
from frazil.log import (
    RANGE_GAP,
    RANGE_LOST,
    CursorState,
    DataDirectory,
    SpecialRange,
    create_segment,
    encode_checkpoint,
    initial_frames,
)
from frazil.log import format as fmt
from frazil.metadata import LEASE, entries
from frazil.objects.backup import (
    Backup,
    TopicCopy,
    backup_keys,
    brokers_in,
    copies_of,
    newest_backup,
    write_backup,
)
from frazil.objects.catalog import ObjectCatalog
from frazil.objects.descriptor import ObjectsState
from frazil.objects.restore_find import find_objects, frames_of, register_chain
from frazil.objects.restore_plan import plan_restore, take_runs
from frazil.struct_types import learnt
from frazil.telemetry import event
from frazil.topic import SUBSCRIPTIONS, CursorRow, open_stores

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from frazil.clock import Clock
    from frazil.config import Settings
    from frazil.fs import FileSystem
    from frazil.log import Frame, JournalState
    from frazil.objects.backup import Newest
    from frazil.objects.restore_find import FoundObjects
    from frazil.objects.restore_plan import RestorePlan, TopicPlan
    from frazil.objects.store import ObjectStore

__all__ = ["OFFSET_MARGIN", "restore"]

SUFFIX: Final = ".restoring"
OFFSET_MARGIN: Final = 1_000_000
"""Offsets of a topic that the lost machine may have assigned without a trace in the store."""


def restore(
    store: ObjectStore,
    target: str,
    *,
    settings: Settings,
    file_system: FileSystem,
    clock: Clock,
    local_all: bool = False,
    broker: bytes | None = None,
    offset_margin: int = OFFSET_MARGIN,
) -> dict[str, Any]:
    """Make `target` the data directory of a broker from its objects; durable on return.

    The report is ready for JSON. For each topic it has the offsets `[first, end)` of its records,
    whether they were written to this machine, the ranges whose objects are missing or damaged, and
    the number of offsets from `end` on that are in the backup but in no object (`unsaved`).

    Args:
        store: the store of the objects; the restore is recorded there as a backup.
        target: a directory that does not exist or is empty.
        settings: the settings of the restored broker; `data_dir` is ignored.
        file_system: the file system of the target.
        clock: for times and new ids.
        local_all: fetch all records, not only those that must be on the machine.
        broker: the id of the broker, if the store has several.
        offset_margin: the number of offsets of a topic that may have been assigned without a trace
            in the store; they become a gap.

    Raises:
        Conflict: the target is not empty, an earlier restore was interrupted, or a broker still
            owns the data.
        NotFound: the store has no objects of a broker.
        InvalidRequest: the store has several brokers and none was named.
        Unavailable: the store or the disk does not answer.
    """
    target = target.rstrip("/") or "/"
    _check_target(file_system, target)
    broker = _broker_of(store, broker)
    newest = newest_backup(store, broker)
    found, plan = _planned(
        store, newest, settings, clock, local_all=local_all, offset_margin=offset_margin
    )
    work = DataDirectory(target + SUFFIX)
    try:
        file_system.make_directory(work.root)
        bytes_local = _write_journal(
            store, plan, work.journal, broker, settings=settings, files=file_system, clock=clock
        )
        _record_restore(store, broker, plan, found, clock)
        _register(plan, settings, work, file_system, clock)
        _put_in_place(file_system, work.root, target)
    except OSError as error:
        raise Unavailable(
            "the directory cannot be written", path=work.root, reason=error
        ) from error
    event("restored", broker=broker.hex(), topics=len(plan.topics), bytes_local=bytes_local)
    return _report(broker, newest, found, plan, bytes_local)


def _planned(
    store: ObjectStore,
    newest: Newest,
    settings: Settings,
    clock: Clock,
    *,
    local_all: bool,
    offset_margin: int,
) -> tuple[FoundObjects, RestorePlan]:
    """Find the broker's objects and plan its journal."""
    kept, cursors = _kept_by_etcd(settings, clock)
    backup = newest.backup
    broker = backup.broker
    named = {each.key for copy in backup.topics for each in copy.descriptors}
    if kept:
        # Metadata in etcd is newer than any backup.
        epoch = backup.epoch if newest.key else _epoch_last(kept)
        backup = msgspec.structs.replace(backup, topics=kept, epoch=epoch)
    found = find_objects(store, broker, backup.topics, epoch=backup.epoch, named=named)
    if not newest.key and not newest.unreadable and not found.candidates:
        raise NotFound("the store has no objects of this broker", broker=broker.hex())
    plan = plan_restore(backup, found, local_all=local_all, offset_margin=offset_margin)
    if not newest.key and newest.unreadable:
        plan.warnings.append(
            "no backup can be read: subscriptions and topics without records are not restored"
        )
    _take_newer_cursors(plan.state, cursors)
    for topic in plan.topics:
        if not topic.local:
            _remember_runs(store, plan, topic, found)
    return found, plan


def _epoch_last(topics: Iterable[TopicCopy]) -> int:
    return max((each.epoch for copy in topics for each in copy.descriptors), default=0)


def _check_target(file_system: FileSystem, target: str) -> None:
    found = file_system.stat(target)
    if found is not None and (not found.is_directory or file_system.list_directory(target)):
        raise Conflict("the target is not empty, restore into a new directory", path=target)
    if file_system.stat(target + SUFFIX) is not None:
        raise Conflict(
            "an earlier restore was interrupted, remove its files and try again",
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


def _kept_by_etcd(
    settings: Settings, clock: Clock
) -> tuple[tuple[TopicCopy, ...], list[CursorRow]]:
    """Return the objects and cursors in etcd; empty with another metadata backend.

    Raises:
        Conflict: a broker still owns the data.
    """
    if settings.metadata.backend != "etcd":
        return (), []
    from frazil.metadata.etcd import EtcdStore

    with contextlib.closing(EtcdStore.open(settings.metadata.etcd, clock=clock)) as store:
        held = store.held(LEASE)
        if held is not None:
            raise Conflict(
                "a broker owns these data, stop it first; one that died is forgotten by itself "
                "after metadata.etcd.lease_ttl_s",
                holder=held.holder,
            )
        catalog = ObjectCatalog(store, clock=clock)
        catalog.load()
        cursors: list[CursorRow] = []
        for entry in entries(store, SUBSCRIPTIONS):
            # If the row is damaged, the backup's cursor is used.
            with contextlib.suppress(msgspec.MsgspecError):
                cursors.append(msgspec.msgpack.decode(entry.value, type=learnt(CursorRow)))
    return copies_of(catalog), cursors


def _take_newer_cursors(state: JournalState, cursors: Sequence[CursorRow]) -> None:
    """Use the cursors of etcd that are newer than the backup's, except damaged ones."""
    for row in cursors:
        topic = state.topics.get(row.topic)
        if topic is None or topic.spec.deleted_us:
            continue
        known = topic.cursors.get(row.name)
        if known is not None and row.lsn <= known.lsn:
            continue
        with contextlib.suppress(msgspec.MsgspecError, ValueError):
            topic.cursors[row.name] = CursorState.decode(row.cursor)
            topic.cursors[row.name].lsn = row.lsn
            state.lsn = max(state.lsn, row.lsn)


def _remember_runs(
    store: ObjectStore, plan: RestorePlan, topic: TopicPlan, found: FoundObjects
) -> None:
    """Add producers' batches since the backup to their windows, to recognise repeats."""
    if not plan.state.topics[topic.spec.id].producers:
        return
    for descriptor in topic.chain.descriptors:
        if descriptor.key not in found.unnamed:
            continue
        try:
            for frame in frames_of(store, descriptor, topic.spec.id):
                if frame.head.offset >= descriptor.first and frame.head.runs:
                    runs = [fmt.Run(*each) for each in fmt.RUN.iter_unpack(_runs_of(frame))]
                    take_runs(plan.state, frame.head, runs)
        except (CorruptionError, NotFound) as error:
            plan.warnings.append(
                f"topic {topic.spec.name}: repeats of its producers may be written twice: {error}"
            )


def _runs_of(frame: Frame) -> bytes:
    return frame.buffer[frame.start - frame.head.runs * fmt.RUN.size : frame.start]


# -- the journal -----------------------------------------------------------------------------------


def _write_journal(
    store: ObjectStore,
    plan: RestorePlan,
    directory: str,
    broker: bytes,
    *,
    settings: Settings,
    files: FileSystem,
    clock: Clock,
) -> int:
    """Write the journal with the records that must be on this machine; return their bytes."""
    files.make_directory(directory)
    local = [topic for topic in plan.topics if topic.local]
    written = RestoredJournal(
        files,
        directory,
        state=plan.state,
        journal=broker,
        clock=clock,
        segment_bytes_max=settings.log.segment_bytes_max,
    )
    with contextlib.closing(written):
        for topic in local:
            _write_topic(store, written, plan, topic)
        for topic in plan.topics:
            first = plan.state.topics[topic.spec.id].next
            if first < topic.next_offset:
                reason = "may have been assigned before the restore"
                gap = SpecialRange(first, topic.next_offset, RANGE_GAP, reason)
                written.gap(topic.spec.id, gap)
    files.sync_directory(directory)
    return written.bytes if local else 0


def _write_topic(
    store: ObjectStore, written: RestoredJournal, plan: RestorePlan, topic: TopicPlan
) -> None:
    state = plan.state.topics[topic.spec.id]
    for descriptor in topic.local:
        ranges = list(descriptor.ranges)
        try:
            for frame in frames_of(store, descriptor, topic.spec.id):
                head = frame.head
                if head.offset + head.records <= state.next:
                    continue
                while ranges and ranges[0].first <= state.next < head.offset:
                    written.gap(topic.spec.id, ranges.pop(0)._replace(first=state.next))
                payload = memoryview(frame.buffer)[frame.start : frame.start + head.size]
                written.frame(head, payload, _runs_of(frame))
        except (CorruptionError, NotFound) as error:
            plan.warnings.append(f"topic {topic.spec.name}: records are lost: {error}")
        for special in ranges:
            if special.end > state.next:
                written.gap(topic.spec.id, special._replace(first=state.next))
        if state.next < descriptor.end:
            lost = SpecialRange(state.next, descriptor.end, RANGE_LOST, "their object is damaged")
            written.gap(topic.spec.id, lost)


class RestoredJournal:
    """A new journal in an empty directory, durable after `close`.

    The first segment's checkpoint is the given state. Frames keep their offsets, records and
    producers, and get new LSNs.
    """

    def __init__(
        self,
        file_system: FileSystem,
        directory: str,
        *,
        state: JournalState,
        journal: bytes,
        clock: Clock,
        segment_bytes_max: int,
    ) -> None:
        self._file_system = file_system
        self._directory = directory
        self._state = state
        self._journal = journal
        self._clock = clock
        self._bytes_max = segment_bytes_max
        self.bytes = 0
        """Bytes written, checkpoints included."""
        state.segment_first = 1
        self._begin(segment=1, previous_length=0)

    def frame(self, head: fmt.FrameHead, payload: memoryview, runs: bytes) -> None:
        """Add a frame of records; its offsets continue those of the topic in the journal.

        Raises:
            CorruptionError: if they do not: an undeclared gap, or duplicate records.
        """
        following = self._state.topics[head.topic].next
        if head.offset != following:
            raise CorruptionError(
                "frames of a topic's objects do not follow each other",
                topic_id=head.topic,
                offset=head.offset,
                offset_expected=following,
            )
        self._put(head._replace(lsn=self._state.lsn + 1), payload, runs)

    def gap(self, topic: int, special: SpecialRange) -> None:
        """Declare a range of offsets as a gap or a lost range."""
        payload = msgspec.msgpack.encode((special.end, special.kind, special.reason))
        head = fmt.FrameHead(
            offset=special.first, length=0, crc=0, kind=fmt.KIND_GAP, salt=b"", flags=0, runs=0,
            topic=topic, records=0, schema=0, lsn=self._state.lsn + 1, synced=0, generation=0,
            size=len(payload), time=self._header.created_us, head_crc=0, zero=0,
        )  # fmt: skip
        self._put(head, memoryview(payload), b"")

    def close(self) -> None:
        """Write a last marker and make the journal durable."""
        try:
            lsn = self._state.lsn
            marker = fmt.frame_buffers(
                fmt.KIND_MARKER,
                b"",
                0,
                offset=0,
                salt=self._header.salt,
                generation=self._header.generation,
                lsn=lsn,
                synced=lsn,
                time_us=max(self._clock.now_us(), self._state.time_us),
            )
            # The marker means that all bytes before it are synced: sync first, then write it.
            self._file.sync()
            self._position += write_fully(self._file, self._position, marker[:3])
            self._file.sync()
        finally:
            self._file.close()
        self._file_system.sync_directory(self._directory)

    def _put(self, head: fmt.FrameHead, payload: memoryview, runs: bytes) -> None:
        if self._position > self._bytes_max:
            self._rotate()
        first, data, padding, size = fmt.frame_buffers(
            head.kind,
            payload,
            head.size,
            offset=head.offset,
            salt=self._header.salt,
            generation=self._header.generation,
            lsn=head.lsn,
            synced=self._header.previous_lsn,
            time_us=head.time,
            topic=head.topic,
            count=head.records,
            schema=head.schema,
            flags=head.flags,
            runs=runs,
        )
        write_fully(self._file, self._position, [first, data, padding])
        self._position += size
        self.bytes += size
        decoded = [fmt.Run(*fields) for fields in fmt.RUN.iter_unpack(runs)]
        self._state.apply(head, bytes(payload) if head.kind == fmt.KIND_GAP else b"", decoded)

    def _rotate(self) -> None:
        """Begin the next segment; the current one is durable before the next records its end."""
        self._file.sync()
        self._file.close()
        self._begin(segment=self._header.segment + 1, previous_length=self._position)

    def _begin(self, *, segment: int, previous_length: int) -> None:
        lsn = self._state.lsn
        self._header = fmt.SegmentHeader(
            journal=self._journal,
            segment=segment,
            salt=self._clock.random_bytes(8),
            generation=segment,
            previous_segment=segment - 1,
            previous_length=previous_length,
            previous_lsn=lsn,
            created_us=max(self._clock.now_us(), self._state.time_us),
        )
        checkpoint = encode_checkpoint(self._state, lsn=lsn)
        buffers = initial_frames(self._header, checkpoint, lsn=lsn, time_us=self._header.created_us)
        self._file, self._position = create_segment(
            self._file_system, self._directory, self._header, buffers
        )
        self.bytes += self._position


# -- metadata and the store ------------------------------------------------------------------------


def _record_restore(
    store: ObjectStore, broker: bytes, plan: RestorePlan, found: FoundObjects, clock: Clock
) -> None:
    """Put a backup of the restored state into the store before the new broker can run.

    If the new machine is lost before its first backup, the next restore must not assign the
    offsets that this machine may have assigned.
    """
    now_us = clock.now_us()
    topics = tuple(
        TopicCopy(
            topic.spec.id,
            ObjectsState(topic.chain.start, topic.chain.end, now_us),
            topic.chain.descriptors,
        )
        for topic in plan.topics
        if topic.chain.descriptors
    )
    backup = Backup(
        broker=broker,
        epoch=found.epoch_last,
        seq=max((key.seq for key in backup_keys(store, broker)), default=0) + 1,
        created_us=now_us,
        checkpoint=encode_checkpoint(plan.state, lsn=plan.state.lsn),
        topics=topics,
    )
    try:
        write_backup(store, backup)
    except InvalidRequest as error:
        plan.warnings.append(
            "the store could not be written to: should this machine be lost before its first "
            f"backup, offsets may be given twice: {error}"
        )


def _register(
    plan: RestorePlan,
    settings: Settings,
    work: DataDirectory,
    file_system: FileSystem,
    clock: Clock,
) -> None:
    """Register the topics' objects; the opening rebuilds all other metadata from the journal."""
    with contextlib.closing(
        open_stores(settings, work, file_system=file_system, clock=clock)
    ) as stores:
        for topic in plan.topics:
            # Without any object the rows in etcd are kept: reads report the missing objects.
            if topic.chain.descriptors:
                register_chain(stores.shared, topic.spec.id, topic.chain, now_us=clock.now_us())


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
    broker: bytes, newest: Newest, found: FoundObjects, plan: RestorePlan, bytes_local: int
) -> dict[str, Any]:
    topics = [
        {
            "name": topic.spec.name,
            "first": topic.chain.start,
            "end": topic.chain.end,
            "objects": len(topic.chain.descriptors),
            "local": topic.local_from is not None,
            "lost": topic.chain.lost,
            "unsaved": topic.unsaved,
            "subscriptions": len(plan.state.topics[topic.spec.id].cursors),
        }
        for topic in sorted(plan.topics, key=lambda topic: topic.spec.name)
    ]
    return {
        "broker": broker.hex(),
        "backup": newest.key,
        "backup_us": newest.backup.created_us,
        "unreadable_backups": newest.unreadable,
        "topics": topics,
        "stale_objects": len(found.stale),
        "damaged_objects": found.damaged,
        "missing_objects": found.missing,
        "warnings": plan.warnings,
        "bytes_local": bytes_local,
    }
