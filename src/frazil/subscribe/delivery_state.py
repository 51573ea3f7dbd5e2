"""The state of one delivery, and the actions that dispatch returns to its caller.

Actions carry lists of offsets, not one object per record: one action is one write to a stream or
one frame in the journal.
"""

from __future__ import annotations

import enum
import heapq
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple

import msgspec

from frazil.errors import FrazilError

__all__ = [
    "Action",
    "Alarms",
    "Cause",
    "Change",
    "DeadLetter",
    "Deliver",
    "DeliveryRecord",
    "Member",
    "Notice",
    "NoticeKind",
    "Read",
    "Span",
    "State",
]


class State(enum.Enum):
    """The state of an unsettled record. A running ack does not change it: see `settling`."""

    UNREAD = "unread"
    """Acked before this process read it from the topic."""
    HELD = "held"
    """Read and not yet delivered; not part of the window."""
    IN_FLIGHT = "in flight"
    """With a consumer."""
    COUNTING = "counting"
    """Its failed delivery is being journalled."""
    UNCOUNTED = "uncounted"
    """The journal refused its failed delivery; retried after `retry_ms`."""
    WAITING = "waiting"
    """Its next attempt is durable and its delay runs."""
    READY = "ready"
    """The next consumer with room gets it."""
    READING = "reading"
    """Its value is read again for another delivery."""
    DEAD = "dead"
    """To be published to the dead-letter topic."""
    BLOCKED = "blocked"
    """Failed too often under the policy block."""
    OWED = "owed"
    """To be settled without an ack; a refused change is retried after `retry_ms`."""
    SETTLED = "settled"
    """Durably settled."""
    PASSED = "passed"
    """Durably settled while it was held: it leaves its queue in its turn."""


class Cause(enum.Enum):
    """The cause of a durable change."""

    ACK = "ack"
    DEAD_LETTER = "dead_letter"
    DROP = "drop"
    SKIP = "skip"
    GONE = "gone"
    NACK = "nack"
    TIMEOUT = "timeout"
    LOST = "lost"


class Member(msgspec.Struct, eq=False):
    """A consumer in dispatch: its name, its key filter, and the room of its stream.

    `ready` and `new` are heaps of offsets whose key this consumer owns, for KeyShared.
    """

    consumer_id: int
    name: str
    accepts: Callable[[str], bool]
    is_attached: bool = True
    messages: int = 0
    size_bytes: int = 0
    ready: list[int] = []
    new: list[int] = []

    @property
    def has_room(self) -> bool:
        """Whether the stream takes another record."""
        return self.messages > 0 and self.size_bytes > 0

    def take(self, record: DeliveryRecord) -> None:
        """Use up room for a delivered record."""
        record.state = State.IN_FLIGHT
        self.messages -= 1
        self.size_bytes -= record.size


class Change(msgspec.Struct, eq=False):
    """A change of the durable state: the caller journals it, then calls `confirmed` or `failed`.

    `ranges` are half-open ranges of offsets to settle; `attempts` are the numbers of the next
    delivery of `offsets`, which then ascend. A change has one or the other. `after` are earlier
    changes that must be durable before the call is answered, because the call repeats them; an
    empty change is not journalled. `error` is the reason why it was not journalled.
    """

    cause: Cause
    records: list[DeliveryRecord] = []
    spans: list[Span] = []
    offsets: list[int] = []
    ranges: list[tuple[int, int]] = []
    attempts: list[int] = []
    dues_ms: list[int] = []
    after: list[Change] = []
    gaps: list[tuple[int, int]] = []
    is_open: bool = True
    error: FrazilError | None = None

    def __repr__(self) -> str:
        what = list(zip(self.offsets, self.attempts, strict=True)) if self.attempts else self.ranges
        return f"Change({self.cause.value}, {what})"

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to journal."""
        return not self.ranges and not self.attempts


class DeliveryRecord(msgspec.Struct, eq=False):
    """The delivery state of one unsettled record.

    `value` is kept until the first delivery; a later delivery reads it again. `sent_ms` is the time
    of the delivery; `until_ms`, if not -1, is the time at which its ack is due and overrides the
    policy's time-out. `attempt` is the number of the current or next delivery, `attempt_next` the
    number that a change under way makes durable. `settling` and `counting` are changes under way.
    """

    offset: int
    size: int = 0
    key: str = ""
    value: Any = None
    state: State = State.HELD
    attempt: int = 1
    attempt_next: int = 0
    due_ms: int = 0
    sent_ms: int = -1
    until_ms: int = -1
    member: Member | None = None
    settling: Change | None = None
    counting: Change | None = None
    cause: Cause = Cause.ACK
    reason: str = ""

    @property
    def is_lost(self) -> bool:
        """Whether its consumer has left."""
        return self.member is None or not self.member.is_attached

    def is_special(self, now_ms: int, attempts_max: int) -> bool:
        """Whether it cannot simply be delivered: it is delayed, or its attempts are used up."""
        return self.due_ms > now_ms or self.attempt > attempts_max


class Span(msgspec.Struct, eq=False):
    """The delivery state of `[first, end)`: HELD, or IN_FLIGHT as the first attempt.

    `sizes` and `values` begin at the offset `base`: spans that were cut from one share them. `size`
    is the size of all records. `singles` is set when each record has got a state of its own.
    """

    attempt: ClassVar[int] = 1
    first: int
    end: int
    base: int
    size: int
    sizes: Sequence[int]
    values: list[Any]
    state: State = State.HELD
    member: Member | None = None
    sent_ms: int = -1
    settling: Change | None = None
    singles: list[DeliveryRecord] | None = None

    def sizes_to(self, end: int) -> Sequence[int]:
        """Return the sizes of the records below `end`."""
        return self.sizes[self.first - self.base : end - self.base]

    def end_within(self, messages: int, size_bytes: int) -> int:
        """Return the end of the first records within bounds; the last one may cross `size_bytes`."""
        end = min(self.end, self.first + messages)
        if self.size > size_bytes:
            sums = list(accumulate(self.sizes_to(end)))
            end = min(end, self.first + bisect_left(sums, size_bytes) + 1)
        return end

    def pass_values(self) -> list[Any]:
        """Return the values and forget them, also for the spans that share the list."""
        at, end = self.first - self.base, self.end - self.base
        values = self.values[at:end]
        self.values[at:end] = [None] * len(values)
        self.values = []
        return values


class Deliver(NamedTuple):
    """Write these records to the consumer's stream, in this order.

    `attempts` are the numbers of these deliveries, None if all are the first.
    """

    consumer_id: int
    offsets: list[int]
    attempts: list[int] | None
    values: list[Any]


class Read(NamedTuple):
    """Read the values of `Dispatch.reading`, in that order, and call `loaded` for each."""


class DeadLetter(NamedTuple):
    """Publish the record to the dead-letter topic, then call `dead_lettered`."""

    offset: int
    attempt: int
    reason: str


class NoticeKind(enum.Enum):
    """Kinds of notices."""

    BLOCKED = "blocked"
    UNBLOCKED = "unblocked"
    DROPPED = "dropped"
    SKIPPED = "skipped"
    PROMOTED = "promoted"


class Notice(NamedTuple):
    """Something worth a log line."""

    kind: NoticeKind
    offset: int | None = None
    reason: str | None = None
    records: int | None = None


Action = Deliver | Read | DeadLetter | Notice | Change


class Alarms:
    """At most one alarm per offset, in the order of their times."""

    __slots__ = ("_heap", "dues_ms")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self.dues_ms: dict[int, int] = {}
        """The alarm of each offset. Only for reading."""

    def set(self, offset: int, due_ms: int) -> None:
        """Set or move the alarm of an offset."""
        self.dues_ms[offset] = due_ms
        heapq.heappush(self._heap, (due_ms, offset))
        # Entries of cleared or moved alarms stay in the heap until their time: they must not
        # accumulate.
        if len(self._heap) > 64 + 2 * len(self.dues_ms):
            self._heap = [(due_ms, offset) for offset, due_ms in self.dues_ms.items()]
            heapq.heapify(self._heap)

    def clear(self, offset: int) -> None:
        """Remove the alarm of an offset, if it has one."""
        self.dues_ms.pop(offset, None)

    def first_ms(self) -> int | None:
        """Return the time of the next alarm."""
        heap = self._heap
        while heap and self.dues_ms.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def ring(self, now_ms: int) -> list[int]:
        """Return the due offsets, ascending, and remove their alarms."""
        rung = set()
        while (first_ms := self.first_ms()) is not None and first_ms <= now_ms:
            offset = heapq.heappop(self._heap)[1]
            del self.dues_ms[offset]
            rung.add(offset)
        return sorted(rung)
