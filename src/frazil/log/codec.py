"""Codecs as the log sees them: a topic's records become a frame's payload.

The codecs of tables and messages live in `frazil.topic`; the log knows payload bytes only.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from frazil.log import format as fmt

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

    from frazil.log.state import TopicState
    from frazil.model import Ack

topic_of = itemgetter(0)
codec_of = itemgetter(1)
data_of = itemgetter(2)
count_of = itemgetter(3)
size_of = itemgetter(4)
waiter_of = itemgetter(5)
sender_of = itemgetter(6)
"""The parts of an `Entry`."""


class Payload(NamedTuple):
    """A frame's payload and the fields needed to decode it."""

    kind: int
    flags: int
    data: Buffer
    size: int
    crc: int | None = None
    """The CRC of `data`, if the producer has computed it already."""


class Codec(Protocol):
    """Turns validated records of one schema version into a payload. Stateless and pure."""

    solo: bool
    """An entry of this codec is always a separate frame."""
    version: int
    """The schema version its records were validated against."""
    tracked: bool
    """Whether `settled` must report to the records that they were written."""
    readable: bool
    """Whether key look-ups give the same result on in-memory records and the decoded frame."""

    def encode(self, records: Sequence[Any]) -> Payload:
        """Encode records into one payload.

        Raises:
            InvalidRequest: if a record cannot be encoded; the writer then finds that record.
        """

    def upgraded(self, data: Any, *, many: bool) -> tuple[Codec, Any]:
        """Return codec and data under the topic's current schema, after it changed."""

    def settled(self, data: Any, *, many: bool, written: bool) -> None:
        """Report to an entry's records whether they were written; for tracked codecs only."""


class Untracked:
    """A codec without records that wait to be written."""

    tracked = False
    readable = False

    def settled(self, data: Any, *, many: bool, written: bool) -> None:
        """Do nothing."""


class PlainCodec(Untracked):
    """Records that consist of payload bytes only."""

    solo = False
    version = 0

    def encode(self, records: Sequence[bytes]) -> Payload:
        data = fmt.plain_payload(records)
        return Payload(fmt.KIND_ROWS, fmt.FLAG_PLAIN, data, len(data))

    def upgraded(self, data: Any, *, many: bool) -> tuple[Codec, Any]:
        del many
        return self, data


PLAIN: Final = PlainCodec()


class Control(NamedTuple):
    """A frame that changes state instead of carrying records.

    `topic` is the id the frame names; the topic itself may not exist yet.
    """

    kind: int
    topic: int
    payload: bytes
    offset: int = 0
    schema: int = 0
    flags: int = 0


class TailEntry(msgspec.Struct, gc=False):
    """One frame's records for the memory tier: the payload itself, nothing copied.

    `records` are the validated records of a keyed topic's row frame, whose keys need no decoding.
    The garbage collector does not track entries: there are hundreds of thousands of them.
    """

    offset: int
    count: int
    time_us: int
    lsn: int
    kind: int
    flags: int
    version: int
    size: int
    data: Any
    records: Sequence[Any] | None


class Tail(Protocol):
    """The memory tier's side of a topic. Called by the journal's thread alone."""

    def append(self, entry: TailEntry) -> None:
        """Take written records; readers see them when the topic's `durable` passes them."""


class Sender(NamedTuple):
    """The producer of an entry and its ack level, where they differ from the topic's default."""

    producer: str | None = None
    epoch: int = 0
    sequence: int = 0
    sync: bool = False


if TYPE_CHECKING:
    Waiter = Any
    """An asyncio future or a `Pending`; only `deliver` looks at it."""
    Entry = tuple[TopicState | None, Codec | None, Any, int, int, Waiter, Sender | None]
    """(topic, codec, data, count, bytes, waiter, sender).

    `count` 0 means that `data` is one record; else it is a sequence of `count` records (or the
    encoded batch of a solo codec). No codec means that `data` is a `Control`.
    """
    Deliver = Callable[[list[Waiter], Sequence[Ack | BaseException]], None]


def settle_tracked(entries: Sequence[Entry], *, written: bool) -> None:
    """Report to the records of tracked entries whether they were written."""
    for codec, run in groupby(entries, key=codec_of):
        if codec is None or not codec.tracked:
            continue
        singles: list[Any] = []
        for entry in run:
            if entry[3]:
                codec.settled(entry[2], many=True, written=written)
            else:
                singles.append(entry[2])
        if singles:
            codec.settled(singles, many=True, written=written)
