"""Encode a group of queued entries into frames: offsets, producers and their runs. No I/O.

The state does not change here: a group that cannot be written leaves no trace.
"""

from __future__ import annotations

from collections import Counter
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import pyarrow as pa

from frazil.errors import Conflict, CorruptionError, FrazilError, InvalidRequest, Overloaded
from frazil.log import format as fmt
from frazil.log.codec import (
    Control,
    TailEntry,
    codec_of,
    count_of,
    data_of,
    sender_of,
    size_of,
    topic_of,
    waiter_of,
)
from frazil.log.cursor import RANGES_MAX
from frazil.log.cursor_state import (
    ATTEMPTS_MAX,
    Acked,
    Attempted,
    Change,
    CursorState,
    Delayed,
    decode_changes,
    fold,
)
from frazil.log.state import STATE_PRODUCER, Producer, Sent
from frazil.model import Ack

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from typing_extensions import Buffer

    from frazil.log.codec import Codec, Entry, Payload, Sender, Tail, Waiter
    from frazil.log.segment import Segment
    from frazil.log.state import JournalState, TopicState

__all__ = []

JOIN_BYTES_MAX: Final = 16 << 10
"""Frames up to this size are joined before writing; larger ones are written without a copy."""
FRAME_RECORDS_MAX: Final = 60_000
NOT_ENCODABLE: Final = (
    FrazilError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    pa.ArrowException,
)
"""Errors of a record that cannot be encoded: it is refused alone, nothing is written yet."""


class CursorBounds:
    """Refuses cursor frames of one group that would exceed the limits of a cursor.

    A count alone admits most changes. If the count says that a cursor may exceed its limits, the
    group's changes to it are folded into a copy.
    """

    def __init__(self, state: JournalState) -> None:
        self._state = state
        self._added: Counter[int] = Counter()
        """The most ranges and attempts that the group adds to each topic's cursors."""
        self._changes: dict[int, list[Change]] = {}
        """The group's changes by topic: the state does not have them yet."""

    def refusal(self, topic_id: int, payload: bytes) -> FrazilError | None:
        """Return why a frame must not be written, None if it may be written."""
        topic = self._state.topics.get(topic_id)
        if topic is None:
            return InvalidRequest("the cursor's topic does not exist", topic_id=topic_id)
        try:
            changes = decode_changes(payload)
        except ValueError as error:
            return InvalidRequest("changes of a cursor cannot be read", error=error)
        added = self._added[topic_id] + sum(map(_added_most, changes))
        earlier = self._changes.setdefault(topic_id, [])
        names = {change.name for change in changes}
        crowded = {name for name in names if not _has_room(topic.cursors.get(name), added)}
        error_found = _overgrown(topic, crowded, [*earlier, *changes]) if crowded else None
        if error_found is None:
            # Only after all changes are admitted: a frame is written whole or not at all.
            earlier += changes
            self._added[topic_id] = added
        return error_found


def _has_room(cursor: CursorState | None, added: int) -> bool:
    """Tell by counts alone that more changes fit; False means uncertain."""
    if cursor is None:
        return False
    return max(cursor.range_count, len(cursor.attempts)) + added <= min(RANGES_MAX, ATTEMPTS_MAX)


def _added_most(change: Change) -> int:
    """Return the most ranges or attempts that a change can add to its cursor."""
    match change:
        case Acked(ranges=numbers) | Attempted(attempts=numbers):
            return len(numbers) // 2
        case Delayed():
            return 0
    return RANGES_MAX


def _overgrown(
    topic: TopicState, names: Collection[str], changes: Sequence[Change]
) -> Overloaded | None:
    """Return the error of a cursor that is too large after the changes, None if there is none."""
    after = {name: cursor.copy() for name, cursor in topic.cursors.items() if name in names}
    fold(after, [change for change in changes if change.name in names])
    for name, cursor in after.items():
        if cursor.range_count > RANGES_MAX or len(cursor.attempts) > ATTEMPTS_MAX:
            return Overloaded(
                "too many acked ranges above the first unacked record, or too many unacked records "
                "that were delivered again; ack the older ones first",
                subscription=name,
                ranges_max=RANGES_MAX,
                attempts_max=ATTEMPTS_MAX,
                acked_below=cursor.acked_below,
                retry_after_ms=1000,
            )
    return None


class _Batches:
    """An idempotent producer after the group: its epoch and the window of its batches."""

    __slots__ = ("epoch", "producer", "window")

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.epoch = producer.epoch
        self.window = list(producer.window)


class Group:
    """One group of entries as frames ready to be written at `position` of the active segment."""

    def __init__(
        self,
        state: JournalState,
        segment: Segment,
        *,
        synced: int,
        time_us: int,
        position: int,
        bytes_max: int,
    ) -> None:
        self.buffers: list[Buffer] = []
        self.size = 0
        self.data: list[tuple[TopicState, int, int, int, int]] = []
        """(topic, offset, position, length, count) of each data frame"""
        self.kept: list[tuple[Tail, TailEntry]] = []
        """The frames for the memory tier, once the group is written."""
        self.live: list[tuple[TopicState, int, Sequence[Any]]] = []
        """Messages of topics with followers: topic, first offset, records."""
        self.tracked: list[Entry] = []
        """Entries with tracked records."""
        self.controls: list[tuple[fmt.FrameHead, bytes]] = []
        self.sent: list[tuple[Producer, Sent, int]] = []
        self.waiters: list[Waiter] = []
        self.results: list[Any] = []
        self.sync = False
        self.lsn = state.lsn
        self.time_us = time_us
        self._state = state
        self._segment = segment
        self._synced = synced
        self._position = position
        self._bytes_max = bytes_max
        self._next: dict[int, int] = {}
        self._producers: dict[tuple[int, str], _Batches] = {}
        self._repeats: list[tuple[_Batches, Entry]] = []
        self._cursors: CursorBounds | None = None

    def encode(self, entries: list[Entry]) -> None:
        """Encode all entries; each waiter gets its ack or its error in `results`."""
        if self._is_one_run(entries):
            self._encode_run(entries)
            return
        buckets: dict[TopicState | None, list[Entry]] = {}
        for entry in entries:
            buckets.setdefault(entry[0], []).append(entry)
        for bucket in buckets.values():
            self._encode_topic(bucket)
        self.finish()

    def _encode_topic(self, entries: list[Entry]) -> None:
        """Encode entries of one topic: a frame for each run of one codec within the size limit."""
        topic = entries[0][0]
        if self._is_one_run(entries):
            self._encode_run(entries)
            return
        run: list[Entry] = []
        size = records = 0
        for entry in entries:
            if entry[1] is None:
                self._encode_run(run)
                run, size, records = [], 0, 0
                self._encode_control(entry)
                continue
            assert topic is not None
            ready = self._ready(topic, entry)
            if ready is None:
                continue
            codec = ready[1]
            full = size + ready[4] > self._bytes_max or records + ready[3] > FRAME_RECORDS_MAX
            if run and (full or codec.solo or codec is not run[0][1]):
                self._encode_run(run)
                run, size, records = [], 0, 0
            run.append(ready)
            size += ready[4]
            records += ready[3] or 1
        self._encode_run(run)

    def _is_one_run(self, entries: list[Entry]) -> bool:
        """Tell whether entries make one frame without splitting."""
        topic, codec = entries[0][:2]
        return (
            codec is not None
            and topic is not None
            and codec.version == topic.schema_version
            and len(set(map(topic_of, entries))) == 1
            and len(set(map(codec_of, entries))) == 1
            and not any(map(sender_of, entries))
            and (len(entries) == 1 or not codec.solo)
            and sum(map(size_of, entries)) <= self._bytes_max
        )

    def _ready(self, topic: TopicState, entry: Entry) -> Any:
        """Return an entry under the topic's current schema; None if it was answered instead."""
        sender = entry[6]
        if (
            sender is not None
            and sender.producer is not None
            and not self._admit(topic, entry, sender)
        ):
            return None
        codec = entry[1]
        assert codec is not None
        if codec.version == topic.schema_version:
            return entry
        try:
            codec, data = codec.upgraded(entry[2], many=entry[3] > 0)
        except NOT_ENCODABLE as error:
            self._refuse_encoding(topic, entry, error)
            return None
        return (topic, codec, data, *entry[3:])

    def _encode_run(self, entries: list[Entry]) -> None:
        """Encode entries of one topic and one codec into one frame."""
        if not entries:
            return
        topic, codec = entries[0][:2]
        assert topic is not None
        assert codec is not None
        singles = not any(map(count_of, entries))
        records = list(map(data_of, entries)) if singles else _records_of(entries)
        try:
            payload = codec.encode(records)
        except NOT_ENCODABLE as error:
            self._isolate(topic, codec, entries, error)
            return
        count = entries[0][3] if codec.solo else len(records)
        offset = self._next.get(topic.id, topic.next)
        self._next[topic.id] = offset + count
        self.lsn += 1
        senders = [sender for sender in map(sender_of, entries) if sender is not None]
        runs = self._runs(topic, entries, offset) if senders else b""
        self._put_frame(topic, codec, payload, offset, count, runs)
        if topic.memory is not None:
            kept = records if codec.readable and topic.spec.primary_key else None
            tail = TailEntry(
                offset, count, self.time_us, self.lsn, payload.kind, payload.flags, codec.version,
                payload.size, payload.data, kept,
            )  # fmt: skip
            self.kept.append((topic.memory, tail))
        if topic.followers and topic.spec.kind == "message" and not codec.solo:
            self.live.append((topic, offset, records))
        if codec.tracked:
            self.tracked += entries
        if topic.sync_on_append or any(sender.sync for sender in senders):
            self.sync = True
        self.waiters += map(waiter_of, entries)
        if singles:
            offsets = range(offset, offset + count)
            self.results += map(Ack, offsets, offsets, repeat(self.lsn))
        else:
            self.results += _acks_of(entries, offset, self.lsn)

    def _put_frame(
        self,
        topic: TopicState,
        codec: Codec,
        payload: Payload,
        offset: int,
        count: int,
        runs: bytes,
    ) -> None:
        """Put one data frame after the others."""
        head, data, padding, size = fmt.frame_buffers(
            payload.kind,
            payload.data,
            payload.size,
            payload_crc=payload.crc,
            offset=offset,
            salt=self._segment.salt,
            generation=self._segment.generation,
            lsn=self.lsn,
            synced=self._synced,
            time_us=self.time_us,
            topic=topic.id,
            count=count,
            schema=codec.version,
            flags=payload.flags,
            runs=runs,
        )
        if size <= JOIN_BYTES_MAX:
            self.buffers.append(b"".join((head, data, padding)))
        else:
            self.buffers += (head, data, padding) if padding else (head, data)
        self.data.append((topic, offset, self._position + self.size, size, count))
        self.size += size

    def _isolate(
        self, topic: TopicState, codec: Codec, entries: list[Entry], error: Exception
    ) -> None:
        """Find the entries that cannot be encoded, refuse them alone, and encode the others."""
        if len(entries) == 1:
            self._refuse_encoding(topic, entries[0], error)
            return
        good: list[Entry] = []
        for entry in entries:
            try:
                codec.encode(entry[2] if entry[3] else [entry[2]])
            except NOT_ENCODABLE as own:
                self._refuse_encoding(topic, entry, own)
            else:
                good.append(entry)
        self._encode_run(good)

    def _refuse_encoding(self, topic: TopicState, entry: Entry, error: Exception) -> None:
        sender = entry[6]
        if sender is not None and sender.producer is not None:
            # The window admitted it, but none of its records will be written.
            window = self._producers[topic.id, sender.producer].window
            if window and window[-1].sequence == sender.sequence:
                window.pop()
        self._refuse(entry, _invalid(error))

    def _refuse(self, entry: Entry, answer: FrazilError | Ack) -> None:
        """Answer an entry without writing it."""
        self._unwritten(entry)
        self.waiters.append(entry[5])
        self.results.append(answer)

    def _unwritten(self, entry: Entry) -> None:
        """Report that an entry's records are not written, before other entries depend on them."""
        codec = entry[1]
        if codec is not None and codec.tracked:
            codec.settled(entry[2], many=entry[3] > 0, written=False)

    # -- idempotent producers --------------------------------------------------------------------

    def _admit(self, topic: TopicState, entry: Entry, sender: Sender) -> bool:
        """Tell whether an entry is new; answer a repeat or an invalid batch at once."""
        name, epoch, sequence = cast("str", sender.producer), sender.epoch, sender.sequence
        count = entry[3] or 1
        batches = self._producers.get((topic.id, name))
        if batches is None:
            try:
                producer = topic.producers.get(name) or self._register(topic, name, epoch)
            except NOT_ENCODABLE as error:
                self._refuse(entry, _invalid(error))
                return False
            batches = self._producers[topic.id, name] = _Batches(producer)
        if epoch < batches.epoch:
            fenced = Conflict(
                "producer is fenced by a newer epoch",
                producer=name,
                epoch=epoch,
                epoch_current=batches.epoch,
            )
            self._refuse(entry, fenced)
            return False
        if epoch > batches.epoch:
            batches.epoch = epoch
            batches.window = []
        # A window counts while it is remembered: after a jump of the clock a repeat must not
        # pass as new. Rotation forgets windows by age.
        verdict = judge(batches.window, sequence=sequence, count=count, producer=name)
        if verdict is None:
            batches.window.append(Sent(sequence, count, -1, -1, self.time_us))
            return True
        if not isinstance(verdict, Sent):
            self._refuse(entry, verdict)
        elif verdict.offset < 0:
            # The first try is in this group: the repeat gets the same ack.
            self._unwritten(entry)
            self._repeats.append((batches, entry))
        else:
            self._answer_repeat(topic, entry, verdict)
        return False

    def _answer_repeat(self, topic: TopicState, entry: Entry, sent: Sent) -> None:
        """Answer a repeat like its first try; if that is not durable yet, a sync comes first."""
        ack = Ack(sent.offset, sent.offset + sent.records - 1, sent.lsn)
        sender = entry[6]
        asks = topic.sync_on_append or (sender is not None and sender.sync)
        if asks and ack.offset_last >= topic.durable:
            self.sync = True
        self._refuse(entry, ack)

    def _register(self, topic: TopicState, name: str, epoch: int) -> Producer:
        new = sum(
            batches.producer.id > self._state.producer_id_last
            for batches in self._producers.values()
        )
        producer_id = self._state.producer_id_last + 1 + new
        payload = msgspec.msgpack.encode((STATE_PRODUCER, name, (producer_id, epoch)))
        self._state.check_control(fmt.KIND_STATE, topic=topic.id, payload=payload)
        self._control_frame(Control(fmt.KIND_STATE, topic.id, payload))
        return Producer(producer_id, topic.id, name, epoch)

    def _runs(self, topic: TopicState, entries: list[Entry], offset: int) -> bytes:
        """Encode the producers of a frame's records, and put the batches into their windows."""
        runs: list[fmt.Run] = []
        for entry in entries:
            sender, count = entry[6], entry[3] or 1
            if sender is not None and sender.producer is not None:
                batches = self._producers[topic.id, sender.producer]
                runs.append(fmt.Run(batches.producer.id, sender.epoch, sender.sequence, count))
                sent = Sent(sender.sequence, count, offset, self.lsn, self.time_us)
                self.sent.append((batches.producer, sent, sender.epoch))
                batches.window = [
                    sent if each.sequence == sent.sequence else each for each in batches.window
                ]
            elif runs and not runs[-1].producer:
                runs[-1] = runs[-1]._replace(records=runs[-1].records + count)
            else:
                runs.append(fmt.Run(0, 0, 0, count))
            offset += count
        return fmt.encode_runs(runs)

    def finish(self) -> None:
        """Answer the repeats of entries in this same group."""
        for batches, entry in self._repeats:
            topic, sender = entry[0], entry[6]
            assert topic is not None
            assert sender is not None
            for sent in batches.window:
                if sent.sequence == sender.sequence and sent.offset >= 0:
                    # The first try may have asked for a weaker ack level than its repeat.
                    self._answer_repeat(topic, entry, sent)
                    break
            else:
                error = Conflict("the first try of this batch failed, send it again")
                self._refuse(entry, error)

    # -- control frames --------------------------------------------------------------------------

    def _encode_control(self, entry: Entry) -> None:
        control = entry[2]
        refusal = self._control_refusal(control)
        if refusal is not None:
            # If it were written, neither this process nor a later opening could apply it.
            self._refuse(entry, refusal)
            return
        self._control_frame(control)
        self.sync = True
        self.waiters.append(entry[5])
        self.results.append(Ack(control.offset, control.offset, self.lsn))

    def _control_refusal(self, control: Control) -> FrazilError | None:
        if control.kind == fmt.KIND_CURSOR:
            self._cursors = self._cursors or CursorBounds(self._state)
            return self._cursors.refusal(control.topic, control.payload)
        try:
            self._state.check_control(
                control.kind, topic=control.topic, payload=control.payload, schema=control.schema
            )
        except CorruptionError as error:
            return _invalid(error)
        return None

    def _control_frame(self, control: Control) -> None:
        self.lsn += 1
        head, body, padding, size = fmt.frame_buffers(
            control.kind,
            control.payload,
            len(control.payload),
            offset=control.offset,
            salt=self._segment.salt,
            generation=self._segment.generation,
            lsn=self.lsn,
            synced=self._synced,
            time_us=self.time_us,
            topic=control.topic,
            schema=control.schema,
            flags=control.flags,
        )
        self.buffers.append(b"".join((head, body, padding)))
        self.size += size
        self.controls.append((fmt.read_head(head, 0), control.payload))


def _records_of(entries: list[Entry]) -> Sequence[Any]:
    """Return the records of entries; some entries are batches."""
    if len(entries) == 1:
        return cast("Sequence[Any]", entries[0][2])
    records: list[Any] = []
    for entry in entries:
        records += entry[2] if entry[3] else (entry[2],)
    return records


def _acks_of(entries: list[Entry], offset: int, lsn: int) -> Iterator[Ack]:
    """Yield the ack of each entry; the first record has `offset`."""
    for entry in entries:
        end = offset + (entry[3] or 1)
        yield Ack(offset, end - 1, lsn)
        offset = end


def judge(
    window: Sequence[Sent], *, sequence: int, count: int, producer: str
) -> Sent | Conflict | None:
    """Check a batch against its producer's window: None is new, `Sent` is the batch it repeats."""
    if not window:
        return None
    for sent in window:
        if sent.sequence == sequence:
            if sent.records == count:
                return sent
            return Conflict(
                "sequence was used for another batch",
                producer=producer,
                sequence=sequence,
                count=count,
                count_first=sent.records,
            )
    expected = window[-1].sequence + window[-1].records
    if sequence == expected:
        return None
    message = (
        "gap in the producer's sequence"
        if sequence > expected
        else ("sequence is older than the producer's window, the outcome is not known any more")
    )
    return Conflict(message, producer=producer, sequence=sequence, sequence_expected=expected)


def _invalid(error: Exception) -> FrazilError:
    if isinstance(error, (InvalidRequest, Conflict)):
        return error
    return InvalidRequest("record cannot be encoded; nothing of it was written", error=repr(error))
