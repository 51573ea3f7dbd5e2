"""What dispatch asks its caller to do: deliver, journal, dead-letter, tell.

Actions carry lists of offsets, not an object a record: one action is one write to a stream or one
frame in the journal.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from frazil.subscribe.places import Place

__all__ = ["Action", "Cause", "Change", "DeadLetter", "Deliver", "Notice", "NoticeKind"]


class Cause(enum.Enum):
    """Why a durable change is made."""

    ACK = "ack"
    DEAD_LETTER = "dead_letter"
    DROP = "drop"
    SKIP = "skip"
    GONE = "gone"
    NACK = "nack"
    TIMEOUT = "timeout"
    LOST = "lost"


class Change:
    """A change of the durable state: the caller journals it, then says `confirmed` or `failed`.

    `ranges` are half-open ranges of offsets that are settled from now on; `attempts` are the
    numbers of the next delivery of `offsets`, which ascend then. A change has the one or the other.
    `after` are earlier changes that must be durable before the same call is answered, because the
    call repeats what they say; a change that is empty is not journalled. One that `is_returning`
    counts what a consumer that left had: nothing new goes before it. What was `unsent` when it was
    settled, by the ids of the consumers, must not go out.
    """

    __slots__ = (
        *("after", "attempts", "cause", "dues_ms", "gaps"),
        *("is_open", "is_returning", "offsets", "priors", "ranges", "unsent"),
    )

    def __init__(self, cause: Cause) -> None:
        self.cause = cause
        self.offsets: list[int] = []
        self.ranges: list[tuple[int, int]] = []
        self.attempts: list[int] = []
        self.after: list[Change] = []
        self.priors: list[Place | None] = []
        self.dues_ms: list[int] = []
        self.gaps: list[tuple[int, int]] = []
        self.unsent: dict[int, list[int]] = {}
        self.is_open = True
        self.is_returning = False

    def __repr__(self) -> str:
        what = list(zip(self.offsets, self.attempts, strict=True)) if self.attempts else self.ranges
        return f"Change({self.cause.value}, {what})"

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to journal."""
        return not self.ranges and not self.attempts

    @property
    def is_settling(self) -> bool:
        """Whether the change settles records (or would, were it not empty)."""
        return not self.attempts


class Deliver(NamedTuple):
    """Write these records to the consumer's stream, in this order.

    `attempts` are the numbers of these deliveries; None means that all are the first.
    """

    consumer_id: int
    offsets: list[int]
    attempts: list[int] | None


class DeadLetter(NamedTuple):
    """Publish the record to the dead-letter topic, then say `dead_lettered`."""

    offset: int
    attempt: int
    reason: str


class NoticeKind(enum.Enum):
    """What there is to tell."""

    BLOCKED = "blocked"
    UNBLOCKED = "unblocked"
    DROPPED = "dropped"
    SKIPPED = "skipped"
    DISPLACED = "displaced"
    PROMOTED = "promoted"
    PAUSED = "paused"
    RESUMED = "resumed"


class Notice(NamedTuple):
    """Something worth a log line, a metric, or the end of a displaced stream."""

    kind: NoticeKind
    consumer_id: int = 0
    offset: int = -1
    attempt: int = 0
    reason: str = ""
    records: int = 1


Action = Deliver | DeadLetter | Notice | Change
