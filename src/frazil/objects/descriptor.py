"""What the metadata has of objects: descriptors, a topic's state, intents, garbage. Pure.

    /objects/<topic 8 hex>/<first 16 hex>    Descriptor
    /objects/<topic 8 hex>/state             ObjectsState
    /objects/<topic 8 hex>/intent            Intent
    /objects/garbage/<16 hex>                Garbage

`docs/internals/objects.md` says which of them change together.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import msgspec

from frazil.errors import CorruptionError
from frazil.objects.format import IndexEntry, Range, TopicSlice, unpack_index
from frazil.struct_types import learnt

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "GARBAGE_PREFIX",
    "PREFIX",
    "Descriptor",
    "Garbage",
    "Hint",
    "Intent",
    "ObjectsState",
    "TopicObjects",
    "decode_row",
    "descriptor_key",
    "descriptor_of",
    "encode_row",
    "garbage_key",
    "intent_key",
    "state_key",
    "topic_prefix",
]

PREFIX: Final = "/objects/"
GARBAGE_PREFIX: Final = f"{PREFIX}garbage/"
STATE: Final = "state"
INTENT: Final = "intent"

RowT = TypeVar("RowT", bound=msgspec.Struct)


class Hint(msgspec.Struct, array_like=True, frozen=True):
    """Where in the journal uploading goes on, if that is still there; the offset is the truth."""

    segment: int = 0
    position: int = 0


class Descriptor(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """A registered object, or what a shared one holds of one topic: the records `[first, end)`.

    The frames lie at `[position, position + length)` of the object under `key`. The first of them
    may begin below `first`: readers leave out what lies there.
    """

    key: str
    first: int
    end: int
    size: int
    """Bytes of the whole object."""
    position: int
    length: int
    records: int
    frames: int
    time_first_us: int
    time_last_us: int
    epoch: int
    sha: str
    """The content's hash in full, as hex; that of the footer."""
    etag: str
    created_us: int
    schemas: tuple[int, ...] = ()
    """Versions of the schemas that the frames have."""
    ranges: tuple[Range, ...] = ()
    index: bytes = b""
    shared: bool = False

    def entries(self) -> list[IndexEntry]:
        """Return the sparse index; positions are those in the object."""
        return unpack_index(self.index)


class ObjectsState(msgspec.Struct, array_like=True, frozen=True):
    """A topic's watermarks in the objects tier.

    Attributes:
        start: below it no object is kept any more.
        uploaded: registered objects hold everything from `start` up to here.
        hint: where the journal's frames of `uploaded` were.
        changed_us: when `uploaded` last moved.
    """

    start: int = 0
    uploaded: int = 0
    hint: Hint = Hint()
    changed_us: int = 0


class Intent(msgspec.Struct, array_like=True, frozen=True):
    """An upload that is about to begin: after a crash, what it wrote is looked for."""

    key: str
    first: int
    end: int
    epoch: int
    sha: str
    size: int
    hint: Hint = Hint()
    created_us: int = 0


class Garbage(msgspec.Struct, array_like=True, frozen=True):
    """An object that nothing names any more; it is deleted in a later cycle."""

    key: str
    since_us: int
    why: str


_NOTHING: Final = ObjectsState()


@attrs.frozen
class TopicObjects:
    """A topic's registered objects at one moment: never changed, only replaced by a newer one."""

    topic: int
    state: ObjectsState = _NOTHING
    descriptors: tuple[Descriptor, ...] = ()
    """Sorted by `first`; each begins where the one before it ends."""
    ends: tuple[int, ...] = attrs.field(init=False, repr=False, eq=False)

    @ends.default
    def _ends(self) -> tuple[int, ...]:
        return tuple(found.end for found in self.descriptors)

    @property
    def known(self) -> bool:
        """Whether anything of the topic was ever registered."""
        return self.state != _NOTHING

    @property
    def start(self) -> int:
        """Return the first offset that objects hold."""
        return self.state.start

    @property
    def uploaded(self) -> int:
        """Return the offset below which registered objects hold everything."""
        return self.state.uploaded

    @property
    def bytes(self) -> int:
        """Return the bytes of the topic's frames in objects."""
        return sum(found.length for found in self.descriptors)

    def find(self, offset: int) -> Descriptor | None:
        """Return the object that holds an offset."""
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
        self,
        state: ObjectsState,
        *,
        add: Iterable[Descriptor] = (),
        remove: Iterable[Descriptor] = (),
    ) -> TopicObjects:
        """Return the picture after a change."""
        gone = {found.first for found in remove}
        kept = [found for found in self.descriptors if found.first not in gone]
        kept.extend(add)
        return TopicObjects(self.topic, state, tuple(sorted(kept, key=_first)))


def _first(descriptor: Descriptor) -> int:
    return descriptor.first


def descriptor_of(
    found: TopicSlice,
    *,
    key: str,
    size: int,
    epoch: int,
    sha: str,
    etag: str,
    created_us: int,
    shared: bool,
) -> Descriptor:
    """Return the descriptor of what an object's footer says of one topic."""
    return Descriptor(
        key=key,
        first=found.first,
        end=found.end,
        size=size,
        position=found.position,
        length=found.length,
        records=found.records,
        frames=found.frames,
        time_first_us=found.time_first_us,
        time_last_us=found.time_last_us,
        epoch=epoch,
        sha=sha,
        etag=etag,
        created_us=created_us,
        schemas=tuple(sorted(found.schemas)),
        ranges=found.ranges,
        index=found.index,
        shared=shared,
    )


def topic_prefix(topic: int) -> str:
    """Return where the rows of a topic are."""
    return f"{PREFIX}{topic:08x}/"


def descriptor_key(topic: int, first: int) -> str:
    """Return the key of a descriptor's row."""
    return f"{PREFIX}{topic:08x}/{first:016x}"


def state_key(topic: int) -> str:
    """Return the key of the row with a topic's watermarks."""
    return f"{PREFIX}{topic:08x}/{STATE}"


def intent_key(topic: int) -> str:
    """Return the key of the row with a topic's upload under way."""
    return f"{PREFIX}{topic:08x}/{INTENT}"


def garbage_key(key: str) -> str:
    """Return the key of the row of an object that is to be deleted."""
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
