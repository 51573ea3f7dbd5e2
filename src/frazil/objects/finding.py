"""Find a broker's objects in its store again, with an old backup to help, or none.

What the backup names was registered then. What it does not name counts if its footer can be read
and no owner before the backup's wrote it: that one's objects are all named.
"""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import attrs

from frazil.errors import CorruptionError, NotFound
from frazil.log import format as log_fmt
from frazil.objects import format as fmt
from frazil.objects.backup import listed
from frazil.objects.descriptor import Descriptor, descriptor_of
from frazil.objects.format import TopicSlice
from frazil.objects.frame_run import verify_frame
from frazil.objects.looking import read_tail

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from frazil.objects.backup import Backup
    from frazil.objects.format import KeyParts
    from frazil.objects.store import ObjectMeta, ObjectStore

__all__ = ["FoundObjects", "find_objects", "frames_of"]

READ_BYTES: Final = 8 << 20
LOOKS_AT_ONCE: Final = 16
"""So many footers are read at once."""


@attrs.define
class FoundObjects:
    """What a store has of a broker."""

    candidates: dict[int, list[Descriptor]] = attrs.Factory(lambda: defaultdict(list))
    """What may be objects of each topic."""
    slices: dict[int, list[tuple[int, TopicSlice]]] = attrs.Factory(lambda: defaultdict(list))
    """What footers say of topics, with the epoch; of objects alone that the backup does not name."""
    unnamed: set[str] = attrs.Factory(set)
    """The keys of these objects."""
    stale: list[str] = attrs.Factory(list)
    """Objects of owners before the backup's that it does not name."""
    damaged: dict[str, str] = attrs.Factory(dict)
    """Objects that cannot be read, and why."""
    missing: list[str] = attrs.Factory(list)
    """Objects that the backup names and that are not there."""
    epoch_last: int = 0
    lsn_last: int = 0


def find_objects(
    store: ObjectStore, broker: bytes, backup: Backup | None, *, known: Container[str] | None = None
) -> FoundObjects:
    """Return what may be the objects of a broker's topics.

    Args:
        store: where they are.
        broker: whose they are.
        backup: what was registered.
        known: the objects that the backup's checkpoints know of; all that it names without it.
            The footers of others are read, though they are named.

    Raises:
        Unavailable: the store does not answer.
        InvalidRequest: an object was written by a newer Frazil.
    """
    found = FoundObjects(epoch_last=backup.epoch if backup is not None else 0)
    named: dict[str, list[tuple[int, Descriptor]]] = defaultdict(list)
    for copy in backup.topics if backup is not None else ():
        for descriptor in copy.descriptors:
            named[descriptor.key].append((copy.topic, descriptor))
    unknown: list[tuple[ObjectMeta, KeyParts]] = []
    registered: set[str] = set()
    for meta, parts in _objects(store, broker):
        found.epoch_last = max(found.epoch_last, parts.epoch)
        slices = named.pop(meta.key, None)
        if slices is not None and slices[0][1].size == meta.size:
            for topic, descriptor in slices:
                found.candidates[topic].append(descriptor)
            if known is not None and meta.key not in known:
                registered.add(meta.key)
                unknown.append((meta, parts))
        elif slices is not None:
            found.damaged[meta.key] = "it has another size than it was registered with"
        elif backup is not None and parts.epoch < backup.epoch:
            found.stale.append(meta.key)
        else:
            unknown.append((meta, parts))
    with ThreadPoolExecutor(LOOKS_AT_ONCE, thread_name_prefix="frazil-restore") as pool:
        looks = pool.map(lambda item: _look(store, *item), unknown)
        for (meta, parts), seen in zip(unknown, looks, strict=True):
            _take(meta, parts, seen, found, is_candidate=meta.key not in registered)
    for key, slices in named.items():
        # A listing may lag behind; what it lacks is asked for by name.
        meta_now = store.head(key)
        if meta_now is None or meta_now.size != slices[0][1].size:
            found.missing.append(key)
            continue
        for topic, descriptor in slices:
            found.candidates[topic].append(descriptor)
    return found


def _objects(store: ObjectStore, broker: bytes) -> Iterator[tuple[ObjectMeta, KeyParts]]:
    for place in ("topics", "shared"):
        for meta in listed(store, f"{broker.hex()}/{place}/"):
            parts = fmt.parse_key(meta.key)
            if parts is not None and parts.broker == broker:
                yield meta, parts


def _look(
    store: ObjectStore, meta: ObjectMeta, parts: KeyParts
) -> tuple[fmt.Header, fmt.Footer, str] | str:
    """Return what an object says of itself, or why it is not what its name says."""
    try:
        header = fmt.decode_header(store.get(meta.key, start=0, length=fmt.HEADER_BYTES))
        footer, sha = read_tail(store, meta)
    except (CorruptionError, NotFound) as error:
        return str(error)
    if header.broker != parts.broker or header.epoch != parts.epoch or sha[:16] != parts.sha:
        return "its content is not what its name says"
    return header, footer, sha


def _take(
    meta: ObjectMeta,
    parts: KeyParts,
    seen: tuple[fmt.Header, fmt.Footer, str] | str,
    found: FoundObjects,
    *,
    is_candidate: bool,
) -> None:
    if isinstance(seen, str):
        found.damaged[meta.key] = seen
        return
    header, footer, sha = seen
    found.unnamed.add(meta.key)
    found.lsn_last = max(found.lsn_last, footer.lsn_last)
    for each in footer.topics:
        descriptor = descriptor_of(
            each,
            key=meta.key,
            size=meta.size,
            epoch=parts.epoch,
            sha=sha,
            etag=meta.etag,
            created_us=header.created_us,
            shared=parts.kind == "shared",
        )
        if is_candidate:
            found.candidates[each.topic].append(descriptor)
        found.slices[each.topic].append((parts.epoch, each))


def frames_of(
    store: ObjectStore, descriptor: Descriptor, topic: int
) -> Iterator[tuple[log_fmt.FrameHead, memoryview, bytes]]:
    """Yield the frames of a topic in an object: head, payload and encoded runs.

    Raises:
        CorruptionError: a frame is damaged, after a second look as well.
        NotFound: the object is gone.
    """
    position, stop = descriptor.position, descriptor.position + descriptor.length
    length, again = READ_BYTES, False
    while position < stop:
        data = store.get(descriptor.key, start=position, length=min(length, stop - position))
        view, at, fault = memoryview(data), 0, ""
        while at < len(view):
            head, fault = verify_frame(view, at, topic=topic)
            if head is None:
                break
            runs_end = at + log_fmt.FRAME_HEAD_BYTES + head.runs * log_fmt.RUN.size
            runs = bytes(view[at + log_fmt.FRAME_HEAD_BYTES : runs_end])
            yield head, log_fmt.payload_of(view, at, head), runs
            at += log_fmt.FRAME_PREFIX_BYTES + head.length
        position += at
        needed = _needed(view[at:]) if fault and position + len(view) - at < stop else 0
        if at or not fault:
            # What is cut off at the end comes first in the next piece.
            length, again = max(READ_BYTES, needed), False
        elif needed > len(view):
            length = needed
        elif again:
            raise CorruptionError(
                "an object is damaged", key=descriptor.key, position=position, reason=fault
            )
        else:
            again = True


def _needed(rest: memoryview) -> int:
    """Return how many bytes the frame has that begins here; 0 if its head does not say."""
    front = bytes(rest[: log_fmt.FRAME_HEAD_BYTES])
    if len(front) < log_fmt.FRAME_HEAD_BYTES or log_fmt.head_fault(front):
        return 0
    length = log_fmt.read_head(front, 0).length
    return log_fmt.FRAME_PREFIX_BYTES + length if length <= log_fmt.BODY_BYTES_MAX else 0
