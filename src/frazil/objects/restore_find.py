"""Find a broker's objects in its store and choose the objects of its topics.

Restores and the repair of lost metadata both list the store, read the footers of unregistered
objects, and chain each topic's objects.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

import attrs
import msgspec

from frazil.errors import CorruptionError
from frazil.log import RANGE_LOST, SpecialRange
from frazil.metadata import LeaseEpoch, Transaction, entries
from frazil.objects import descriptor as rows
from frazil.objects import format as fmt
from frazil.objects.backup import listed
from frazil.objects.descriptor import Descriptor, ObjectsState, descriptor_of
from frazil.objects.format import Footer
from frazil.objects.reader import ObjectIndex, scan_frames
from frazil.objects.writer import read_tail

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from frazil.log import Frame
    from frazil.metadata import MetadataStore
    from frazil.objects.backup import TopicCopy
    from frazil.objects.format import KeyParts
    from frazil.objects.store import ObjectMeta, ObjectStore

__all__ = ["Chain", "FoundObjects", "chained", "find_objects", "frames_of", "register_chain"]

READS_AT_ONCE: Final = 16
"""The number of footers that are read concurrently."""
SPARE_OPERATIONS: Final = 8
LOST: Final = "its object is missing or damaged"


@attrs.define
class FoundObjects:
    """A broker's objects in the store."""

    candidates: dict[int, list[Descriptor]] = attrs.Factory(lambda: defaultdict(list))
    """The candidate objects of each topic."""
    footers: dict[int, list[Footer]] = attrs.Factory(lambda: defaultdict(list))
    """The footers of objects that the backup does not name, by topic."""
    unnamed: set[str] = attrs.Factory(set)
    """The keys of these objects."""
    stale: list[str] = attrs.Factory(list)
    """Objects of former owners that the backup does not name: they were never registered."""
    damaged: dict[str, str] = attrs.Factory(dict)
    """Objects that cannot be read, with the reasons."""
    missing: list[str] = attrs.Factory(list)
    """Registered objects that the store does not have."""
    epoch_last: int = 0
    lsn_last: int = 0


def find_objects(
    store: ObjectStore,
    broker: bytes,
    topics: Iterable[TopicCopy],
    *,
    epoch: int,
    named: Container[str] | None = None,
) -> FoundObjects:
    """Return the candidate objects of a broker's topics.

    Args:
        store: the store of the objects.
        broker: the broker's id.
        topics: the registered objects, from the backup or from metadata that was not lost.
        epoch: the epoch of `topics`: an unregistered object of a lower epoch was never registered.
        named: the objects that the backup's checkpoint covers; without it all of `topics`. The
            footers of all other objects are read, even of registered ones.

    Raises:
        Unavailable: the store does not answer.
        InvalidRequest: an object was written by a newer Frazil.
    """
    found = FoundObjects(epoch_last=epoch)
    registered = {each.key: (copy.topic, each) for copy in topics for each in copy.descriptors}
    covered = registered.keys() if named is None else named
    sizes: dict[str, int] = {}
    unread: list[tuple[ObjectMeta, KeyParts]] = []
    for meta in listed(store, fmt.topic_prefix(broker)):
        parts = fmt.parse_key(meta.key)
        if parts is None:
            continue
        found.epoch_last = max(found.epoch_last, parts.epoch)
        sizes[meta.key] = meta.size
        if meta.key not in registered and parts.epoch < epoch:
            found.stale.append(meta.key)
        elif meta.key not in covered:
            unread.append((meta, parts))
    for meta, footer in _footers(store, unread):
        _add_footer(found, meta, footer, is_registered=meta.key in registered)
    for topic, descriptor in registered.values():
        _add_registered(found, store, topic, descriptor, sizes)
    return found


def _add_footer(
    found: FoundObjects, meta: ObjectMeta, footer: fmt.Footer | str, *, is_registered: bool
) -> None:
    """Add an object by its footer, or by the reason why that cannot be read."""
    if isinstance(footer, str):
        found.damaged[meta.key] = footer
        return
    found.unnamed.add(meta.key)
    found.lsn_last = max(found.lsn_last, footer.lsn_last)
    found.footers[footer.topic].append(footer)
    if not is_registered:
        descriptor = descriptor_of(footer, key=meta.key, size=meta.size, etag=meta.etag)
        found.candidates[footer.topic].append(descriptor)


def _add_registered(
    found: FoundObjects,
    store: ObjectStore,
    topic: int,
    descriptor: Descriptor,
    sizes: Mapping[str, int],
) -> None:
    """Add a registered object, if the store has it in its size."""
    key = descriptor.key
    # A listing may lack recent objects, so registered ones are looked up by key.
    meta_now = None if key in sizes else store.head(key)
    size = sizes.get(key) if meta_now is None else meta_now.size
    if size == descriptor.size:
        found.candidates[topic].append(descriptor)
    elif key in sizes:
        found.damaged[key] = "it has another size than it was registered with"
    else:
        found.missing.append(key)


def _footers(
    store: ObjectStore, unread: Sequence[tuple[ObjectMeta, KeyParts]]
) -> list[tuple[ObjectMeta, Footer | str]]:
    """Return the footers of objects, or the reasons why they cannot be read."""
    with ThreadPoolExecutor(READS_AT_ONCE, thread_name_prefix="frazil-restore") as pool:
        footers = pool.map(lambda each: _footer(store, *each), unread)
        return [(meta, footer) for (meta, _parts), footer in zip(unread, footers, strict=True)]


def _footer(store: ObjectStore, meta: ObjectMeta, parts: KeyParts) -> Footer | str:
    """Return the footer of an object, or the reason why it is not the object of its key."""
    try:
        footer = read_tail(store, meta)
    except CorruptionError as error:
        return str(error)
    named = (parts.broker, parts.epoch, parts.topic, parts.uid, parts.first)
    own = (footer.broker, footer.epoch, footer.topic, footer.uid, footer.first)
    return footer if named == own else "its footer does not fit its key"


def frames_of(store: ObjectStore, descriptor: Descriptor, topic: int) -> Iterator[Frame]:
    """Yield the verified frames of an object.

    Raises:
        CorruptionError: a frame is damaged, in a second answer too.
        NotFound: the object does not exist any more.
    """
    for block in ObjectIndex(descriptor).blocks_from(fmt.HEADER_BYTES):
        at, tried_at = 0, -1
        while at < block.length:
            data = store.get(block.key, start=block.start + at, length=block.length - at)
            taken, scan = 0, None
            while taken < len(data) and (scan is None or scan.frames):
                # The scan stops at gaps and continues from the offset of the next frame.
                offset = int.from_bytes(data[taken : taken + 8], "little")
                scan = scan_frames(data, taken, topic=topic, offset=offset)
                yield from scan.frames
                taken = scan.position
            if not taken and tried_at == at:
                raise CorruptionError(
                    "an object is damaged",
                    key=descriptor.key,
                    position=block.start + at,
                    reason=scan and scan.damage and scan.damage.reason,
                )
            at = tried_at = at + taken


class Chain(NamedTuple):
    """A topic's objects in order, each beginning at the end of the one before."""

    descriptors: tuple[Descriptor, ...]
    lost: tuple[tuple[int, int], ...]
    """Offsets between objects that no object has; the next descriptor declares them lost."""

    @property
    def start(self) -> int:
        """Return the first offset, 0 if there is none."""
        return self.descriptors[0].first if self.descriptors else 0

    @property
    def end(self) -> int:
        """Return the offset after the last one, 0 if there is none."""
        return self.descriptors[-1].end if self.descriptors else 0


def chained(candidates: Iterable[Descriptor], *, start: int = 0) -> Chain:
    """Choose the objects of a topic's records from `start` on.

    Registered objects are adjacent and never overlap. The store may also have objects of former
    owners and of uploads that were not registered. If two objects overlap, the one with the higher
    epoch counts, then the one that ends later.

    Args:
        candidates: objects of the topic; duplicates are allowed.
        start: records below it have expired.
    """
    usable = _uncrossed([found for found in candidates if found.end > start])
    waiting = sorted(usable, key=lambda found: found.first, reverse=True)
    open_: list[tuple[tuple[int, int, int], Descriptor]] = []
    chosen: list[Descriptor] = []
    lost: list[tuple[int, int]] = []
    at = start
    while waiting or open_:
        while waiting and waiting[-1].first <= at:
            found = waiting.pop()
            # The last number makes ranks unique.
            heapq.heappush(open_, ((-found.epoch, -found.end, len(waiting)), found))
        while open_ and open_[0][1].end <= at:
            heapq.heappop(open_)
        if open_:
            best = open_[0][1]
            chosen.append(_from(best, at))
            at = best.end
        elif waiting:
            if chosen:
                lost.append((at, waiting[-1].first))
            at = waiting[-1].first
    return Chain(_joined(chosen), tuple(lost))


def _uncrossed(candidates: Sequence[Descriptor]) -> list[Descriptor]:
    """Drop objects that contain the beginning or end of an object of a higher epoch.

    An owner begins at the end of the registered objects, so an object across this offset was never
    registered.
    """
    firsts: list[int] = []
    ends: list[int] = []
    kept: list[Descriptor] = []
    for _epoch, group in itertools.groupby(sorted(candidates, key=_rank), key=_rank):
        own = [
            found
            for found in group
            if not _between(firsts, found.first, found.end)
            and not _between(ends, found.first + 1, found.end)
        ]
        kept += own
        firsts = sorted([*firsts, *(found.first for found in own)])
        ends = sorted([*ends, *(found.end for found in own)])
    return kept


def _rank(found: Descriptor) -> int:
    """Return a number that is lower for a higher epoch."""
    return -found.epoch


def _between(offsets: Sequence[int], low: int, high: int) -> bool:
    """Return whether one of the sorted offsets is in `[low, high)`."""
    number = bisect_left(offsets, low)
    return number < len(offsets) and offsets[number] < high


def _from(found: Descriptor, first: int) -> Descriptor:
    """Return the part of an object from an offset on; its first frame may begin below."""
    ranges = tuple(
        each._replace(first=max(each.first, first)) for each in found.ranges if each.end > first
    )
    return msgspec.structs.replace(found, first=first, ranges=ranges)


def _joined(chosen: Sequence[Descriptor]) -> tuple[Descriptor, ...]:
    """Make each object begin at the end of the one before; holes are declared as lost ranges."""
    found = list(chosen[:1])
    for each in chosen[1:]:
        hole = SpecialRange(found[-1].end, each.first, RANGE_LOST, LOST)
        ranges = (hole, *each.ranges) if hole.first < hole.end else each.ranges
        found.append(msgspec.structs.replace(each, first=hole.first, ranges=ranges))
    return tuple(found)


def register_chain(
    store: MetadataStore,
    topic: int,
    chain: Chain,
    *,
    now_us: int,
    lease: LeaseEpoch | None = None,
) -> None:
    """Replace the rows of a topic's objects in the metadata, the state row last."""
    state = ObjectsState(start=chain.start, uploaded=chain.end, changed_us=now_us)
    wanted = {rows.descriptor_key(topic, d.first): rows.encode_row(d) for d in chain.descriptors}
    changes = {entry.key: b"" for entry in entries(store, rows.topic_prefix(topic))} | wanted
    changes.pop(rows.state_key(topic), None)
    changes[rows.state_key(topic)] = rows.encode_row(state)
    keys = list(changes)
    largest = max(map(len, changes.values()))
    rows_max = min(store.operations_max - SPARE_OPERATIONS, store.bytes_max // (2 * largest))
    step = max(rows_max, 1)
    for start in range(0, len(keys), step):
        page = keys[start : start + step]
        puts = {key: changes[key] for key in page if changes[key]}
        deletes = tuple(key for key in page if not changes[key])
        store.commit(Transaction(puts=puts, deletes=deletes, requires=lease))
