"""The metadata rows of objects: descriptors, a topic's watermarks and intent, garbage. Pure.

    /objects/<topic 8 hex>/<first 16 hex>    Descriptor
    /objects/<topic 8 hex>/state             ObjectsState, with the Intent of a pending upload
    /objects/garbage/<16 hex>                Garbage

`docs/internals/objects.md` defines which rows change together.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import msgspec

from frazil.errors import CorruptionError
from frazil.log import SpecialRange
from frazil.objects.format import IndexEntry, unpack_index
from frazil.struct_types import learnt

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from frazil.objects.format import Footer

__all__ = [
    "GARBAGE_PREFIX",
    "PREFIX",
    "STATE",
    "Descriptor",
    "Garbage",
    "Intent",
    "ObjectsState",
    "TopicObjects",
    "decode_row",
    "descriptor_key",
    "descriptor_of",
    "encode_row",
    "garbage_key",
    "state_key",
    "topic_prefix",
]

PREFIX: Final = "/objects/"
GARBAGE_PREFIX: Final = f"{PREFIX}garbage/"
STATE: Final = "state"

RowT = TypeVar("RowT", bound=msgspec.Struct)


class Descriptor(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """A registered object: the records `[first, end)` of its topic.

    The first frame may begin below `first`: readers skip the records below.
    """

    key: str
    first: int
    end: int
    size: int
    """The size of the whole object in bytes."""
    length: int
    """The size of its frames in bytes, from `HEADER_BYTES` on."""
    records: int
    time_first_us: int
    time_last_us: int
    epoch: int
    etag: str
    created_us: int
    ranges: tuple[SpecialRange, ...] = ()
    index: bytes = b""

    def entries(self) -> list[IndexEntry]:
        """Return the sparse index."""
        return unpack_index(self.index)


class Intent(msgspec.Struct, array_like=True, frozen=True):
    """An upload that is about to begin; after a crash its object is looked up by its key."""

    key: str
    first: int
    epoch: int


class ObjectsState(msgspec.Struct, array_like=True, frozen=True):
    """A topic's watermarks in the objects tier.

    Attributes:
        start: the first offset in registered objects; older objects have expired.
        uploaded: registered objects have all records from `start` up to this offset.
        changed_us: when `uploaded` last moved; 0 before the first object.
        intent: the upload that was begun and is not registered.
    """

    start: int = 0
    uploaded: int = 0
    changed_us: int = 0
    intent: Intent | None = None


class Garbage(msgspec.Struct, array_like=True, frozen=True):
    """An object without a reference; a later collection deletes it."""

    key: str
    since_us: int
    why: str


_NOTHING: Final = ObjectsState()


@attrs.frozen
class TopicObjects:
    """A topic's registered objects at one moment; immutable, replaced by a newer picture."""

    topic: int
    state: ObjectsState = _NOTHING
    descriptors: tuple[Descriptor, ...] = ()
    """Sorted by `first`; each begins at the end of the one before."""
    ends: tuple[int, ...] = attrs.field(init=False, repr=False, eq=False)

    @ends.default
    def _ends(self) -> tuple[int, ...]:
        return tuple(found.end for found in self.descriptors)

    @property
    def known(self) -> bool:
        """Whether an object of the topic was ever registered."""
        return self.state.changed_us > 0

    @property
    def start(self) -> int:
        """Return the first offset in objects."""
        return self.state.start

    @property
    def uploaded(self) -> int:
        """Return the offset below which registered objects have all records."""
        return self.state.uploaded

    @property
    def bytes(self) -> int:
        """Return the bytes of the topic's frames in objects."""
        return sum(found.length for found in self.descriptors)

    def find(self, offset: int) -> Descriptor | None:
        """Return the object with an offset."""
        number = bisect_right(self.ends, offset)
        if number == len(self.descriptors) or self.descriptors[number].first > offset:
            return None
        return self.descriptors[number]

    def after(self, offset: int) -> Sequence[Descriptor]:
        """Return the objects whose end is above an offset, in order."""
        return self.descriptors[bisect_right(self.ends, offset) :]

    def below(self, offset: int) -> Sequence[Descriptor]:
        """Return the objects that end at or below an offset, in order."""
        return self.descriptors[: bisect_right(self.ends, offset)]

    def changed(
        self, state: ObjectsState, *, add: Iterable[Descriptor] = (), expired: int = 0
    ) -> TopicObjects:
        """Return the picture after a change: with objects added and the oldest ones expired."""
        kept = sorted([*self.descriptors[expired:], *add], key=lambda found: found.first)
        return TopicObjects(self.topic, state, tuple(kept))


def descriptor_of(footer: Footer, *, key: str, size: int, etag: str) -> Descriptor:
    """Return the descriptor of an object with this footer."""
    return Descriptor(
        key=key,
        first=footer.first,
        end=footer.end,
        size=size,
        length=footer.length,
        records=footer.records,
        time_first_us=footer.time_first_us,
        time_last_us=footer.time_last_us,
        epoch=footer.epoch,
        etag=etag,
        created_us=footer.created_us,
        ranges=footer.ranges,
        index=footer.index,
    )


def topic_prefix(topic: int) -> str:
    """Return the prefix of a topic's rows."""
    return f"{PREFIX}{topic:08x}/"


def descriptor_key(topic: int, first: int) -> str:
    """Return the key of a descriptor's row."""
    return f"{PREFIX}{topic:08x}/{first:016x}"


def state_key(topic: int) -> str:
    """Return the key of the row with a topic's watermarks."""
    return f"{PREFIX}{topic:08x}/{STATE}"


def garbage_key(key: str) -> str:
    """Return the key of the row that condemns an object."""
    return GARBAGE_PREFIX + hashlib.sha256(key.encode()).hexdigest()[:16]


def encode_row(row: msgspec.Struct) -> bytes:
    """Encode a row's value."""
    return msgspec.msgpack.encode(row)


def decode_row(kind: type[RowT], key: str, value: bytes) -> RowT:
    """Decode a row's value.

    Raises:
        CorruptionError: if it is damaged.
    """
    try:
        return msgspec.msgpack.decode(value, type=learnt(kind))
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptionError(
            "metadata of the objects tier is damaged", key=key, reason=error
        ) from error
