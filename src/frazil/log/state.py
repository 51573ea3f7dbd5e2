"""The state of a journal's topics: heads, schemas, holds, producers, gaps. No I/O.

The newest checkpoint plus the frames after it is the whole state; `checkpoint.py` encodes it.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import attrs
import msgspec

from frazil.errors import CorruptionError
from frazil.log import format as fmt
from frazil.log.cursor_state import CursorState, decode_changes, fold
from frazil.model import TopicSpec
from frazil.struct_types import learnt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from frazil.log.codec import Tail

STATE_HOLD: Final = 1
STATE_PRODUCER: Final = 2
STATE_FREED: Final = 3
STATE_FIRST_FREE: Final = 16
"""Tags of `state` frames; those from `STATE_FIRST_FREE` on are kept as key → value."""

RANGE_GAP: Final = "gap"
RANGE_LOST: Final = "lost"

PRODUCER_WINDOW_DEFAULT: Final = 5
"""The number of batches of an idempotent producer within which repeats are recognised."""
PRODUCERS_MAX: Final = 100_000
"""The limit of remembered producers; the most recently active ones are kept."""


class SpecialRange(NamedTuple):
    """Offsets `[first, end)` without records: a declared gap, or acked data that is lost."""

    first: int
    end: int
    kind: str
    reason: str


class Sent(NamedTuple):
    """One batch of an idempotent producer, remembered so that a repeat gets the same ack."""

    sequence: int
    records: int
    offset: int
    lsn: int
    time_us: int


@attrs.define(eq=False)
class Producer:
    """An idempotent producer of one topic and the window of its last batches."""

    id: int
    topic: int
    name: str
    epoch: int
    window: deque[Sent] = attrs.Factory(lambda: deque(maxlen=PRODUCER_WINDOW_DEFAULT))

    @property
    def time_us(self) -> int:
        """Return the time of its last publish; 0 without one."""
        return self.window[-1].time_us if self.window else 0

    def record(self, sent: Sent, *, epoch: int) -> None:
        """Remember a batch; a higher epoch resets the window."""
        if epoch < self.epoch:
            # Recovery replays frames after a checkpoint that has the newer epoch already.
            return
        if epoch > self.epoch:
            self.window.clear()
            self.epoch = epoch
        # Recovery may replay a frame twice: in the checkpoint's window and after the checkpoint.
        if not self.window or sent.lsn > self.window[-1].lsn or sent not in self.window:
            self.window.append(sent)


class Follower(Protocol):
    """A reader of live records. Called on the journal's thread."""

    def written(self, offset: int, time_us: int, records: Sequence[Any]) -> None:
        """Take the messages of a written frame: a `Message` each, or the payload alone.

        They may be used once the topic's `durable` is past them.
        """

    def woken(self) -> None:
        """Note that `durable` grew, after the publishers were answered, or that the topic ended."""


class TopicState:
    """One topic in one journal. Owned by the writer; readers read single fields only.

    `start` is the oldest offset held here; `next` is the head; everything below `durable` is
    fsynced and visible to readers, and nothing above it is.
    """

    __slots__ = (
        "bytes_local",
        "codec",
        "cursors",
        "durable",
        "followers",
        "holds",
        "id",
        "index",
        "memory",
        "next",
        "producers",
        "ranges",
        "schema_version",
        "schemas",
        "spec",
        "start",
        "sync_on_append",
        "waiters",
    )

    def __init__(self, spec: TopicSpec) -> None:
        self.id = spec.id
        self.spec = spec
        self.sync_on_append = spec.sync == "commit"
        self.schemas: dict[int, bytes] = {}
        self.schema_version = 0
        self.start = 0
        self.next = 0
        self.durable = 0
        self.holds: dict[str, int] = {}
        self.cursors: dict[str, CursorState] = {}
        """Progress of the subscriptions, by name. Only the journal's thread changes them."""
        self.ranges: list[SpecialRange] = []
        self.producers: dict[str, Producer] = {}
        self.bytes_local = 0
        self.index: Any = None
        self.codec: Any = None
        self.memory: Tail | None = None
        """The memory tier's copy of written records, if that tier is on."""
        self.waiters: list[Callable[[], None]] = []
        """Called once at the next change of the topic."""
        self.followers: tuple[Follower, ...] = ()
        """Subscribers to live records; the tuple is replaced, never changed."""

    def define(self, spec: TopicSpec) -> None:
        """Replace the definition by a newer one."""
        assert spec.id == self.id
        self.spec = spec
        self.sync_on_append = spec.sync == "commit"

    def add_range(self, special: SpecialRange) -> None:
        """Remember a gap or a lost range; offsets below its end are never reused."""
        if special not in self.ranges:
            self.ranges = sorted([*self.ranges, special])
        self.next = max(self.next, special.end)

    @property
    def floor(self) -> int:
        """Return the lowest hold, `durable` if there is none."""
        return min(self.holds.values(), default=self.durable)


def wake(topics: Iterable[TopicState]) -> None:
    """Wake readers of these topics. Call after acks, so that publishers are answered first."""
    for topic in topics:
        for follower in topic.followers:
            follower.woken()
        # Pop one by one: a waiter that another thread adds now stays for the next wake.
        for _ in range(len(topic.waiters)):
            with contextlib.suppress(IndexError):
                topic.waiters.pop(0)()


class JournalState:
    """All topics of one journal and all other content of its checkpoints."""

    def __init__(self) -> None:
        self.topics: dict[int, TopicState] = {}
        self.producers: OrderedDict[int, Producer] = OrderedDict()
        self.producer_id_last = 0
        self.values: dict[tuple[int, str], bytes] = {}
        self.unknown_sections: list[tuple[int, bytes]] = []
        self.topic_id_last = 0
        self.segment_first = 0
        """The oldest segment that is still part of the journal."""
        self.lsn = 0
        self.time_us = 0

    # -- changes that frames carry -------------------------------------------------------------

    def apply(self, head: fmt.FrameHead, payload: bytes, runs: Iterable[fmt.Run] = ()) -> None:
        """Fold one verified frame into the state.

        Raises:
            CorruptionError: if a control frame cannot be decoded or its topic does not exist.
        """
        kind = head.kind
        try:
            if kind in (fmt.KIND_ARROW, fmt.KIND_ROWS):
                topic = self.topics[head.topic]
                topic.next = max(topic.next, head.offset + head.records)
                self.apply_runs(head, runs)
            elif kind == fmt.KIND_TOPIC:
                self.define_topic(msgspec.msgpack.decode(payload, type=learnt(TopicSpec)))
            elif kind == fmt.KIND_SCHEMA:
                self.topics[head.topic].schemas[head.schema] = payload
                self.topics[head.topic].schema_version = head.schema
            elif kind == fmt.KIND_GAP:
                self._apply_gap(head, payload)
            elif kind == fmt.KIND_STATE:
                self._apply_state(head, payload)
            elif kind == fmt.KIND_CURSOR:
                fold(self.topics[head.topic].cursors, decode_changes(payload), lsn=head.lsn)
        except (msgspec.MsgspecError, ValueError, TypeError, KeyError) as error:
            raise CorruptionError(
                "control frame cannot be decoded", kind=fmt.KIND_NAMES[kind], lsn=head.lsn
            ) from error
        self.lsn = max(self.lsn, head.lsn)
        self.time_us = max(self.time_us, head.time)

    def check_control(self, kind: int, *, topic: int, payload: bytes, schema: int = 0) -> None:
        """Check that a control frame could be applied, without applying it.

        Raises:
            CorruptionError: if its payload cannot be decoded, or its topic does not exist.
        """
        trial = JournalState()
        found = self.topics.get(topic)
        if found is not None:
            trial.topics[topic] = TopicState(found.spec)
        head = fmt.FrameHead(
            offset=0, length=0, crc=0, kind=kind, salt=b"", flags=0, runs=0, topic=topic,
            records=0, schema=schema, lsn=0, synced=0, generation=0, size=len(payload), time=0,
            head_crc=0, zero=0,
        )  # fmt: skip
        trial.apply(head, payload)

    def apply_runs(self, head: fmt.FrameHead, runs: Iterable[fmt.Run]) -> None:
        """Put the batches of a data frame into their producers' windows."""
        offset = head.offset
        for run in runs:
            if run.producer:
                sent = Sent(run.sequence, run.records, offset, head.lsn, head.time)
                self.record_sent(run.producer, sent, epoch=run.epoch)
            offset += run.records

    def _apply_gap(self, head: fmt.FrameHead, payload: bytes) -> None:
        end, kind, reason = msgspec.msgpack.decode(payload, type=tuple[int, str, str])
        self.topics[head.topic].add_range(SpecialRange(head.offset, end, kind, reason))

    def _apply_state(self, head: fmt.FrameHead, payload: bytes) -> None:
        tag, key, value = msgspec.msgpack.decode(payload, type=tuple[int, str, Any])
        if tag == STATE_HOLD:
            set_or_drop(self.topics[head.topic].holds, key, value)
        elif tag == STATE_PRODUCER:
            producer_id, epoch = value
            self.add_producer(producer_id, topic=head.topic, name=key, epoch=epoch)
        elif tag == STATE_FREED:
            self.segment_first = max(self.segment_first, int(value))
        else:
            set_or_drop(self.values, (tag, key), value)

    # -- changes ---------------------------------------------------------------------------------

    def define_topic(self, spec: TopicSpec) -> TopicState:
        """Add a topic or replace its definition by a newer one."""
        topic = self.topics.get(spec.id)
        if topic is None:
            topic = self.topics[spec.id] = TopicState(spec)
            self.topic_id_last = max(self.topic_id_last, spec.id)
        else:
            topic.define(spec)
        return topic

    def forget_topics(self, *, deleted_before_us: int) -> None:
        """Drop topics that were deleted long ago and hold no data any more."""
        for topic in list(self.topics.values()):
            if 0 < topic.spec.deleted_us < deleted_before_us and not topic.bytes_local:
                del self.topics[topic.id]
                for producer in topic.producers.values():
                    self.producers.pop(producer.id, None)

    def add_producer(self, producer_id: int, *, topic: int, name: str, epoch: int) -> Producer:
        """Register an idempotent producer of a topic."""
        producer = Producer(producer_id, topic, name, epoch)
        self.producers[producer_id] = self.topics[topic].producers[name] = producer
        self.producer_id_last = max(self.producer_id_last, producer_id)
        return producer

    def record_sent(self, producer_id: int, sent: Sent, *, epoch: int) -> None:
        """Put a batch into its producer's window; a forgotten producer is ignored."""
        producer = self.producers.get(producer_id)
        if producer is not None:
            producer.record(sent, epoch=epoch)
            self.producers.move_to_end(producer_id)

    def forget_old(
        self,
        *,
        now_us: int,
        producers_max: int,
        producer_age_us: int,
        delete_grace_us: int,
        trusted: bool,
    ) -> None:
        """Forget silent producers and topics long deleted.

        After a clock jump (not `trusted`) no producer counts as silent: then only the number of
        producers is bounded.
        """
        oldest_us = now_us - producer_age_us if trusted else 0
        self.forget_producers(count_max=producers_max, older_than_us=oldest_us)
        if trusted:
            self.forget_topics(deleted_before_us=now_us - delete_grace_us)

    def forget_producers(self, *, count_max: int, older_than_us: int) -> int:
        """Drop producers that were silent too long, and the longest silent beyond `count_max`."""
        dropped = 0
        while self.producers:
            producer = next(iter(self.producers.values()))
            if len(self.producers) <= count_max and producer.time_us >= older_than_us:
                break
            del self.producers[producer.id]
            self.topics[producer.topic].producers.pop(producer.name, None)
            dropped += 1
        return dropped


def set_or_drop(mapping: dict[Any, Any], key: Any, value: Any) -> None:
    """Set a key; None removes it."""
    if value is None:
        mapping.pop(key, None)
    else:
        mapping[key] = value
