"""Encode a group of waiting entries into frames: offsets, producers, runs, reservations. No I/O.

Nothing in the state changes here: a group that cannot be written leaves no trace.
"""

from __future__ import annotations

from itertools import groupby, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from frazil.errors import Conflict, CorruptionError, FrazilError, InvalidRequest, Overloaded
from frazil.log import format as fmt
from frazil.log.codec import Control, Payload, TailEntry
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
    from collections.abc import Iterable, Sequence

    from typing_extensions import Buffer

    from frazil.log.codec import Codec, Entry, Tail, Waiter
    from frazil.log.state import JournalState, TopicState

__all__ = []


class _Trial:
    """A cursor as the group leaves it: a known one, and changes that are not folded into it."""

    __slots__ = ("attempts", "changes", "known", "ranges")

    def __init__(self, known: CursorState | None) -> None:
        self.known = known
        self.changes: list[Change] = []
        # So many of each the changes may add at most.
        self.ranges = 0
        self.attempts = 0

    def has_room(self, own: Sequence[Change]) -> bool:
        """Tell by counts alone that more changes will fit; False means that it is not certain."""
        known = self.known
        if known is None or not all(
            isinstance(change, Acked | Attempted | Delayed) for change in own
        ):
            return False
        ranges, attempts = _most(own)
        return (
            known.range_count + self.ranges + ranges <= RANGES_MAX
            and len(known.attempts) + self.attempts + attempts <= ATTEMPTS_MAX
        )

    def after(self, name: str, own: Sequence[Change]) -> CursorState | None:
        """Work out on a copy what the cursor would be; None if there would be none."""
        cursors = {} if self.known is None else {name: self.known.copy()}
        fold(cursors, self.changes)
        fold(cursors, own)
        return cursors.get(name)

    def take(self, own: Sequence[Change]) -> None:
        """Let changes pass that have room."""
        ranges, attempts = _most(own)
        self.changes += own
        self.ranges += ranges
        self.attempts += attempts


class CursorBounds:
    """The cursor frames of one group: nothing of them is in the state yet.

    Most changes are let pass by a count alone. Only where that says that a cursor may outgrow its
    bounds, it is worked out on a copy.
    """

    def __init__(self, state: JournalState) -> None:
        self._state = state
        self._trials: dict[tuple[int, str], _Trial] = {}

    def refusal(self, topic_id: int, payload: bytes) -> FrazilError | None:
        """Return why a frame must not be written, None if it may be."""
        topic = self._state.topics.get(topic_id)
        if topic is None:
            return InvalidRequest("the cursor's topic does not exist", topic_id=topic_id)
        try:
            changes = decode_changes(payload)
        except ValueError as error:
            return InvalidRequest("changes of a cursor cannot be read", error=error)
        by_name: dict[str, list[Change]] = {}
        for change in changes:
            by_name.setdefault(change.name, []).append(change)
        worked_out: dict[str, _Trial] = {}
        for name, own in by_name.items():
            trial = self._trials.setdefault((topic_id, name), _Trial(topic.cursors.get(name)))
            if not trial.has_room(own):
                worked_out[name] = _Trial(trial.after(name, own))
                error_found = _fault(worked_out[name].known, name)
                if error_found is not None:
                    return error_found
        # Not before all of them may pass: a frame is written whole or not at all.
        for name, own in by_name.items():
            if name in worked_out:
                self._trials[topic_id, name] = worked_out[name]
            else:
                self._trials[topic_id, name].take(own)
        return None


def _most(changes: Sequence[Change]) -> tuple[int, int]:
    """Return how many ranges and attempts changes may add at most."""
    ranges = attempts = 0
    for change in changes:
        if isinstance(change, Acked):
            ranges += len(change.ranges) // 2
        elif isinstance(change, Attempted):
            attempts += len(change.attempts) // 2
    return ranges, attempts


def _fault(cursor: CursorState | None, name: str) -> Overloaded | None:
    if cursor is not None and cursor.range_count > RANGES_MAX:
        return Overloaded(
            "too many acked ranges above the first unacked record, ack the older ones first",
            subscription=name,
            ranges_max=RANGES_MAX,
            acked_below=cursor.acked_below,
            retry_after_ms=1000,
        )
    if cursor is not None and len(cursor.attempts) > ATTEMPTS_MAX:
        return Overloaded(
            "too many unacked records were delivered again, ack some of them first",
            subscription=name,
            attempts_max=ATTEMPTS_MAX,
            retry_after_ms=1000,
        )
    return None


JOIN_BYTES_MAX: Final = 16 << 10
"""Frames up to this size are joined before writing; larger ones are written from where they lie."""
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
"""What a record that cannot be encoded may raise: it is refused alone, nothing is written yet."""

_topic_of = itemgetter(0)
_codec_of = itemgetter(1)
_data_of = itemgetter(2)
_count_of = itemgetter(3)
_size_of = itemgetter(4)
_waiter_of = itemgetter(5)
_sender_of = itemgetter(6)


class Group:
    """One group of entries as frames ready to be written at `position`."""

    def __init__(
        self,
        state: JournalState,
        *,
        salt: bytes,
        generation: int,
        lsn: int,
        synced: int,
        time_us: int,
        position: int,
        bytes_max: int,
        reserve: int,
    ) -> None:
        self.buffers: list[Buffer] = []
        self.size = 0
        self.data: list[tuple[TopicState, int, int, int, int]] = []
        """(topic, offset, position, length, count) of each data frame"""
        self.kept: list[tuple[Tail, TailEntry]] = []
        """What the memory tier gets when the group is written."""
        self.live: list[tuple[TopicState, int, Sequence[Any]]] = []
        """Messages of topics with followers: topic, first offset, records."""
        self.tracked: list[Entry] = []
        """Entries whose records are told that they were written, or that they were not."""
        self.controls: list[tuple[fmt.FrameHead, bytes]] = []
        self.sent: list[tuple[Producer, Sent, int]] = []
        self.reserved: list[tuple[TopicState, int]] = []
        self.waiters: list[Waiter] = []
        self.results: list[Any] = []
        self.sync = False
        self.lsn = lsn
        self._state = state
        self._salt = salt
        self._generation = generation
        self._synced = synced
        self.time_us = time_us
        self._position = position
        self._bytes_max = bytes_max
        self._reserve = reserve
        self._next: dict[int, int] = {}
        self._producers: dict[tuple[int, str], Producer] = {}
        self._windows: dict[tuple[int, str], list[Sent]] = {}
        self._epochs: dict[tuple[int, str], int] = {}
        self._repeats: list[tuple[tuple[int, str], int, Entry]] = []
        self._cursors: CursorBounds | None = None

    def encode(self, entries: list[Entry]) -> None:
        """Encode all entries; each waiter gets its ack or its error in `results`."""
        if len(set(map(_topic_of, entries))) == 1:
            self._encode_topic(entries)
            return
        for bucket in _by_topic(entries):
            if len(bucket) == 1:
                self._encode_single(bucket[0])
            else:
                self._encode_topic(bucket)

    def _encode_single(self, entry: Entry) -> None:
        """Encode the only entry of its topic in this group, the plain case without detours."""
        topic, codec, data, count, _size, waiter, sender = entry
        if (
            topic is None
            or codec is None
            or codec.solo
            or count
            or sender is not None
            or not topic.sync_on_append
            or codec.tracked
            or codec.version != topic.schema_version
        ):
            self._encode_topic([entry])
            return
        try:
            payload = codec.encode((data,))
        except NOT_ENCODABLE as error:
            self._refuse(topic, entry, _invalid(error))
            return
        offset = topic.next
        self._frame(topic, payload, codec, (data,), offset=offset, count=1, runs=b"")
        self.waiters.append(waiter)
        self.results.append(Ack(offset, offset, self.lsn))
        self.sync = True

    # -- one topic -------------------------------------------------------------------------------

    def _encode_topic(self, entries: list[Entry]) -> None:
        topic = entries[0][0]
        if len(set(map(_codec_of, entries))) == 1 and not any(map(_sender_of, entries)):
            codec = entries[0][1]
            joins = codec is not None and topic is not None and not codec.solo
            if joins and sum(map(_size_of, entries)) <= self._bytes_max:
                assert codec is not None
                assert topic is not None
                self._encode_same(topic, codec, entries)
                return
        batch: list[Entry] = []
        size = records = 0
        for entry in entries:
            codec = entry[1]
            alone = codec is None or codec.solo
            full = size + entry[4] > self._bytes_max or records + entry[3] > FRAME_RECORDS_MAX
            if batch and (alone or full or codec is not batch[0][1]):
                self._encode_checked(topic, batch)
                batch, size, records = [], 0, 0
            if codec is None:
                self._encode_control(entry)
            elif alone:
                self._encode_checked(topic, [entry])
            else:
                batch.append(entry)
                size += entry[4]
                records += entry[3] or 1
        if batch:
            self._encode_checked(topic, batch)

    def _encode_checked(self, topic: TopicState | None, entries: list[Entry]) -> None:
        """Encode entries of one codec, repeats of idempotent producers taken out before."""
        assert topic is not None
        if any(map(_sender_of, entries)):
            entries = [entry for entry in entries if self._admit(topic, entry)]
            if not entries:
                return
        codec = entries[0][1]
        assert codec is not None
        self._encode_same(topic, codec, entries)

    def _encode_same(self, topic: TopicState, codec: Codec, entries: list[Entry]) -> None:
        """Encode entries of one topic and one codec into one frame."""
        if codec.version != topic.schema_version:
            upgraded = self._upgrade_all(topic, entries)
            # The columns may change between two of them: a frame for each run of one codec.
            for own, run in groupby(upgraded, key=_codec_of):
                assert own is not None
                self._encode_ready(topic, own, list(run))
            return
        self._encode_ready(topic, codec, entries)

    def _encode_ready(self, topic: TopicState, codec: Codec, entries: list[Entry]) -> None:
        """Encode entries whose codec is final into one frame."""
        singles = not any(map(_count_of, entries))
        records: Sequence[Any]
        if singles:
            records = list(map(_data_of, entries))
        elif codec.solo or len(entries) == 1:
            records = entries[0][2]
        else:
            records = []
            for entry in entries:
                if entry[3]:
                    records.extend(entry[2])
                else:
                    records.append(entry[2])
        try:
            payload = codec.encode(records)
        except NOT_ENCODABLE as error:
            self._isolate(topic, codec, entries, _invalid(error))
            return
        count = entries[0][3] if codec.solo else len(records)
        offset = self._next.get(topic.id, topic.next)
        if not topic.sync_on_append:
            self._reserve_block(topic, offset + count)
        lsn = self.lsn + 1
        runs = self._runs(topic, entries, offset, lsn) if any(map(_sender_of, entries)) else b""
        self._frame(topic, payload, codec, records, offset=offset, count=count, runs=runs)
        if codec.tracked:
            self.tracked += entries
        self._next[topic.id] = offset + count
        self.waiters += map(_waiter_of, entries)
        if singles:
            offsets = range(offset, offset + count)
            self.results += map(Ack, offsets, offsets, repeat(lsn))
        else:
            for entry in entries:
                end = offset + (entry[3] or 1)
                self.results.append(Ack(offset, end - 1, lsn))
                offset = end
        self._note_levels(topic, entries)

    def _upgrade_all(self, topic: TopicState, entries: list[Entry]) -> list[Entry]:
        """Bring entries validated under an older schema version to the topic's current one."""
        result: list[Entry] = []
        for entry in entries:
            _topic, old, data, count, size, waiter, sender = entry
            assert old is not None
            try:
                codec, fresh = old.upgraded(data, many=count > 0)
            except NOT_ENCODABLE as error:
                self._refuse(topic, entry, _invalid(error))
                continue
            result.append((topic, codec, fresh, count, size, waiter, sender))
        return result

    def _note_levels(self, topic: TopicState, entries: list[Entry]) -> None:
        """Ask for a sync if one of the entries waits for it."""
        if topic.sync_on_append or any(s is not None and s.sync for s in map(_sender_of, entries)):
            self.sync = True

    def _isolate(
        self, topic: TopicState, codec: Codec, entries: list[Entry], error: FrazilError
    ) -> None:
        """Find the entries that cannot be encoded, refuse them alone, and encode the others."""
        if len(entries) == 1:
            self._refuse(topic, entries[0], error)
            return
        good: list[Entry] = []
        for entry in entries:
            try:
                codec.encode(entry[2] if entry[3] else [entry[2]])
            except NOT_ENCODABLE as own:
                self._refuse(topic, entry, _invalid(own))
            else:
                good.append(entry)
        if good:
            self._encode_ready(topic, codec, good)

    def _refuse(self, topic: TopicState, entry: Entry, error: FrazilError) -> None:
        sender = entry[6]
        if sender is not None and sender.producer is not None:
            # It was admitted to the window, but no record of it will be written.
            window = self._windows.get((topic.id, sender.producer))
            if window and window[-1].sequence == sender.sequence:
                window.pop()
        self._unwritten(entry)
        self.waiters.append(entry[5])
        self.results.append(error)

    def _unwritten(self, entry: Entry) -> None:
        """Tell the records of an entry that they are not written, before others build on them."""
        codec = entry[1]
        if codec is not None and codec.tracked:
            codec.settled(entry[2], many=entry[3] > 0, written=False)

    # -- idempotent producers --------------------------------------------------------------------

    def _admit(self, topic: TopicState, entry: Entry) -> bool:
        """Tell whether an entry is new; answer a repeat or a misfit at once."""
        sender = entry[6]
        if sender is None or sender.producer is None:
            return True
        key = (topic.id, sender.producer)
        producer = self._producers.get(key) or topic.producers.get(sender.producer)
        count = entry[3] or 1
        if producer is None:
            try:
                producer = self._register(topic, sender.producer, sender.epoch)
            except NOT_ENCODABLE as error:
                self._refuse(topic, _without_sender(entry), _invalid(error))
                return False
            self._producers[key] = producer
        epoch = self._epochs.get(key, producer.epoch)
        if sender.epoch < epoch:
            self._refuse(
                topic,
                _without_sender(entry),
                Conflict(
                    "producer is fenced by a newer epoch",
                    producer=sender.producer,
                    epoch=sender.epoch,
                    epoch_current=epoch,
                ),
            )
            return False
        staged = self._windows.setdefault(key, [])
        if sender.epoch > epoch:
            staged.clear()
            self._epochs[key] = sender.epoch
        known = [] if self._epochs.get(key, producer.epoch) > producer.epoch else producer.window
        # A window that is still remembered counts, however old: a clock that jumped must not make
        # a repeat pass for new. It is forgotten by age at rotation.
        window = [*known, *staged]
        verdict = judge(window, sequence=sender.sequence, count=count, producer=sender.producer)
        if verdict is None:
            staged.append(Sent(sender.sequence, count, -1, -1, self.time_us))
            return True
        if isinstance(verdict, Sent):
            if verdict.offset < 0:
                # The first one is in this very group: the repeat gets the ack it will get.
                self._repeats.append((key, verdict.sequence, entry))
                self._unwritten(entry)
                return False
            last = verdict.offset + verdict.records - 1
            self._answer(topic, entry, Ack(verdict.offset, last, verdict.lsn))
            return False
        self._refuse(topic, _without_sender(entry), verdict)
        return False

    def _answer(self, topic: TopicState, entry: Entry, ack: Ack) -> None:
        """Answer a repeat; if its first record is not durable yet, a sync comes first."""
        self._unwritten(entry)
        self.waiters.append(entry[5])
        self.results.append(ack)
        if ack.offset_last >= topic.durable:
            self._note_levels(topic, [entry])

    def _register(self, topic: TopicState, name: str, epoch: int) -> Producer:
        producer_id = self._state.producer_id_last + 1 + len(self._producers)
        payload = msgspec.msgpack.encode((STATE_PRODUCER, name, (producer_id, epoch)))
        self._state.check_control(fmt.KIND_STATE, topic=topic.id, payload=payload)
        self._control_frame(Control(fmt.KIND_STATE, topic.id, payload))
        return Producer(
            producer_id=producer_id,
            topic=topic.id,
            name=name,
            epoch=epoch,
            window=self._state.producer_window,
        )

    def _runs(self, topic: TopicState, entries: list[Entry], offset: int, lsn: int) -> bytes:
        runs: list[fmt.Run] = []
        for entry in entries:
            sender, count = entry[6], entry[3] or 1
            if sender is not None and sender.producer is not None:
                key = (topic.id, sender.producer)
                producer = self._producers.get(key) or topic.producers[sender.producer]
                runs.append(fmt.Run(producer.id, sender.epoch, sender.sequence, count))
                sent = Sent(sender.sequence, count, offset, lsn, self.time_us)
                self.sent.append((producer, sent, sender.epoch))
                self._settle_repeats(key, sent)
            elif runs and not runs[-1].producer:
                runs[-1] = runs[-1]._replace(records=runs[-1].records + count)
            else:
                runs.append(fmt.Run(0, 0, 0, count))
            offset += count
        return fmt.encode_runs(runs)

    def _settle_repeats(self, key: tuple[int, str], sent: Sent) -> None:
        window = self._windows[key]
        for number, staged in enumerate(window):
            if staged.sequence == sent.sequence:
                window[number] = sent

    def finish(self) -> None:
        """Answer the repeats of entries that were in this group themselves."""
        for key, sequence, entry in self._repeats:
            for sent in self._windows[key]:
                if sent.sequence == sequence and sent.offset >= 0:
                    # The first one may have asked for less than its repeat does.
                    sender = entry[6]
                    self.sync = self.sync or (sender is not None and sender.sync)
                    self.waiters.append(entry[5])
                    last = sent.offset + sent.records - 1
                    self.results.append(Ack(sent.offset, last, sent.lsn))
                    break
            else:
                self.waiters.append(entry[5])
                self.results.append(Conflict("the first try of this batch failed, send it again"))

    # -- frames ----------------------------------------------------------------------------------

    def _reserve_block(self, topic: TopicState, end: int) -> None:
        """Reserve offsets that may leave the process before they are synced."""
        reserved = next((e for t, e in reversed(self.reserved) if t is topic), topic.reserved)
        if end > topic.reserved:
            # A block that this very group reserves counts only when it is synced.
            self.sync = True
        if end + self._reserve // 2 > reserved:
            target = end + self._reserve
            self.reserved.append((topic, target))
            payload = msgspec.msgpack.encode([(topic.id, target)])
            self._control_frame(Control(fmt.KIND_MARKER, 0, payload))

    def _encode_control(self, entry: Entry) -> None:
        control = entry[2]
        refusal = self._control_refusal(control)
        if refusal is not None:
            # Written, it could not be applied, now or at any later opening.
            self.waiters.append(entry[5])
            self.results.append(refusal)
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
        payload = Payload(control.kind, control.flags, control.payload, len(control.payload))
        consumes = control.kind not in (fmt.KIND_MARKER, fmt.KIND_CHECKPOINT)
        lsn = self.lsn + 1 if consumes else self.lsn
        head, body, padding, size = fmt.frame_buffers(
            payload.kind,
            payload.data,
            payload.size,
            offset=control.offset,
            salt=self._salt,
            generation=self._generation,
            lsn=lsn,
            synced=self._synced,
            time_us=self.time_us,
            topic=control.topic,
            schema=control.schema,
            flags=control.flags,
        )
        self.buffers.append(b"".join((head, body, padding)))
        self.size += size
        self.lsn = lsn
        self.controls.append((fmt.read_head(head, 0), control.payload))

    def _frame(
        self,
        topic: TopicState,
        payload: Payload,
        codec: Codec,
        records: Sequence[Any],
        *,
        offset: int,
        count: int,
        runs: bytes,
    ) -> None:
        self.lsn += 1
        head, data, padding, size = fmt.frame_buffers(
            payload.kind,
            payload.data,
            payload.size,
            payload_crc=payload.crc,
            offset=offset,
            salt=self._salt,
            generation=self._generation,
            lsn=self.lsn,
            synced=self._synced,
            time_us=self.time_us,
            topic=topic.id,
            count=count,
            schema=codec.version,
            flags=payload.flags,
            runs=runs,
        )
        self.data.append((topic, offset, self._position + self.size, size, count))
        if topic.memory is not None:
            looked_up = codec.readable and topic.spec.primary_key
            self.kept.append(
                (
                    topic.memory,
                    TailEntry(
                        offset,
                        count,
                        self.time_us,
                        self.lsn,
                        payload.kind,
                        payload.flags,
                        codec.version,
                        payload.size,
                        payload.data,
                        records if looked_up else None,
                    ),
                )
            )
        if topic.followers and topic.spec.kind == "message" and not codec.solo:
            self.live.append((topic, offset, records))
        if size <= JOIN_BYTES_MAX:
            self.buffers.append(b"".join((head, data, padding)))
        else:
            self.buffers += (head, data, padding) if padding else (head, data)
        self.size += size


def judge(
    window: Sequence[Sent], *, sequence: int, count: int, producer: str
) -> Sent | Conflict | None:
    """Judge a batch against its producer's window: None is new, `Sent` is the one it repeats."""
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


def _by_topic(entries: Sequence[Entry]) -> Iterable[list[Entry]]:
    """Part entries by topic; the order within each is kept."""
    buckets: dict[Any, list[Entry]] = {}
    for entry in entries:
        topic = entry[0]
        bucket = buckets.get(topic)
        if bucket is None:
            buckets[topic] = [entry]
        else:
            bucket.append(entry)
    return buckets.values()


def _without_sender(entry: Entry) -> Entry:
    return (*entry[:6], None)
