"""The room that the disk tier takes: by topic and purpose, and what is given up for its cap."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from frazil.telemetry import event

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from frazil.tiers.disk.catalog import Span, TopicFiles
    from frazil.tiers.disk.file import DiskFile
    from frazil.tiers.disk.tier import DiskTier

__all__ = ["DiskSpace", "Staged"]


class Staged(NamedTuple):
    """What a topic has in files that is not committed; times in microseconds."""

    files: int = 0
    bytes: int = 0
    partition_bytes_max: int = 0
    small_files: int = 0
    deletes: int = 0
    offset_first: int = 0
    offset_end: int = 0
    since_us: int = 0
    """When the last commit was, or, before the first one, when the oldest file was written."""


class DiskSpace:
    """Counts bytes and gives up what is safe elsewhere, least recently used topics first.

    A topic's files go from its oldest set on, whole sets only: what is held of a topic is always
    one range without a hole, so that the newest change of a key is never missing while an older
    one is found.
    """

    def __init__(self, tier: DiskTier) -> None:
        self._tier = tier
        self._clock = itertools.count(1)
        self._used: dict[tuple[int, str], int] = {}

    def note_use(self, files: Iterable[DiskFile]) -> None:
        """Note that files were read just now."""
        now = next(self._clock)
        for file in files:
            self._used[file.topic, file.name] = now

    def usage(self) -> int:
        """Return the bytes of all files, those that only a pin keeps included."""
        tier = self._tier
        tier.pins.drain()
        pictures = [tier.picture(topic) for topic in tier.topics]
        if len(self._used) > sum(len(picture.files) for picture in pictures):
            self._forget_gone(pictures)
        return sum(picture.size for picture in pictures) + tier.pins.retired_bytes

    def _forget_gone(self, pictures: Iterable[TopicFiles]) -> None:
        """Forget the use of files that were merged, rebuilt or dropped with their topic."""
        names = {(file.topic, file.name) for picture in pictures for file in picture.files}
        # A use that is noted meanwhile may be lost: it only says who goes first.
        self._used = {key: at for key, at in list(self._used.items()) if key in names}

    def held_bytes(self, topic: int, floor: int) -> int:
        """Return the bytes of a topic's files with offsets at or above `floor`."""
        spans = self._tier.picture(topic).spans
        return sum(file.size for span in spans if span.end > floor for file in span.files)

    def staged(self, topic: int) -> Staged:
        """Return what is in files, but not committed."""
        picture = self._tier.picture(topic)
        marks = picture.marks
        files = [
            file
            for span in reversed(picture.spans)
            if span.end > marks.committed
            for file in span.files
            if file.rows
        ]
        if not files:
            return Staged()
        partitions: dict[str, int] = {}
        for file in files:
            partitions[file.partition] = partitions.get(file.partition, 0) + file.bytes
        small = self._tier.settings.small_file_bytes
        return Staged(
            files=len(files),
            bytes=sum(file.bytes for file in files),
            partition_bytes_max=max(partitions.values()),
            small_files=sum(1 for file in files if file.bytes < small),
            deletes=sum(file.deletes for file in files),
            offset_first=max(marks.committed, picture.start),
            offset_end=picture.flushed,
            since_us=marks.changed_us or min(file.created_us for file in files),
        )

    def purposes(self) -> dict[str, int]:
        """Return the bytes by purpose: query_cache, staging, deltas, compaction.

        Committed files are cache. Of the others, changes whose base row was written before count
        as deltas; the rest is staging, or waits for merging where the file is small.
        """
        totals = {"query_cache": 0, "staging": 0, "deltas": 0, "compaction": 0}
        for topic in self._tier.topics:
            picture = self._tier.picture(topic)
            for span in picture.spans:
                committed = span.end <= picture.marks.committed
                for file in span.files:
                    for purpose, size in self.purposes_of(file, committed=committed).items():
                        totals[purpose] += size
        return totals

    def purposes_of(self, file: DiskFile, *, committed: bool) -> dict[str, int]:
        """Return the bytes of one file by purpose, by the rule of `purposes`."""
        size = file.size
        if committed:
            return {"query_cache": size}
        deltas = size * file.deltas // file.rows if file.rows else 0
        small = file.bytes < self._tier.settings.small_file_bytes
        rest = {"compaction" if small else "staging": size - deltas}
        return {**rest, "deltas": deltas} if deltas else rest

    def evict(self, floors: Mapping[int, int], uploaded: Mapping[int, int] | None = None) -> int:
        """Give up sets until the tier is below its cap, or nothing more may go.

        A set may go when it is committed or in the object store (below the topic's offset in
        `uploaded`), below the topic's floor in `floors` (what its holds need; without one nothing
        of it goes), and neither pinned nor needed by a reader.

        Returns:
            The bytes given up.
        """
        limits = {
            topic: min(floor, max(self._tier.committed(topic), (uploaded or {}).get(topic, 0)))
            for topic, floor in floors.items()
        }
        freed = 0
        over = self.usage() - self._tier.settings.bytes_max
        while freed < over:
            oldest = [
                (self._last_use(span), picture.topic, span)
                for picture in map(self._tier.picture, self._tier.topics)
                if (span := self._evictable(picture, limits)) is not None
            ]
            if not oldest:
                break
            _, topic, _ = min(oldest, key=lambda each: each[:2])
            freed += self._give_up(topic, limits)
        return freed

    def expire(self, topic: int, below: int) -> int:
        """Give up the sets that lie below an offset, held elsewhere or not; return the bytes."""
        tier, freed = self._tier, 0
        with tier.changing():
            while True:
                picture = tier.picture(topic)
                if not picture.spans or picture.spans[0].end > below:
                    return freed
                freed += self._remove(picture, picture.spans[0], "expired")

    def _give_up(self, topic: int, limits: Mapping[int, int]) -> int:
        with self._tier.changing():
            picture = self._tier.picture(topic)
            span = self._evictable(picture, limits)
            return 0 if span is None else self._remove(picture, span, "evicted")

    def _remove(self, picture: TopicFiles, span: Span, reason: str) -> int:
        marks = picture.marks
        kept = msgspec.structs.replace(marks, start=max(marks.start, span.end))
        self._tier.swap(picture, kept, remove=span.files)
        for file in span.files:
            self._used.pop((file.topic, file.name), None)
        size = sum(file.size for file in span.files)
        event("disk_removed", topic=picture.topic, end=span.end, bytes=size, reason=reason)
        return size

    def _evictable(self, picture: TopicFiles, limits: Mapping[int, int]) -> Span | None:
        if not picture.spans or picture.topic not in limits:
            return None
        span = picture.spans[0]
        limit = limits[picture.topic]
        needed = self._tier.history.pinned(picture.topic)
        if needed is not None:
            limit = min(limit, needed)
        if span.end > limit or any(map(self._tier.pins.pinned, span.files)):
            return None
        return span

    def _last_use(self, span: Span) -> int:
        return max(self._used.get((file.topic, file.name), 0) for file in span.files)
