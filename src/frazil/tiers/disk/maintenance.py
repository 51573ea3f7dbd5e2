"""Maintenance of the disk tier: opening a topic's files, damage and scrubbing, space."""

from __future__ import annotations

import threading
from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec

from frazil.errors import CorruptionError, NotFound, Unavailable
from frazil.telemetry import event, warn
from frazil.tiers.disk.catalog import ROWS_MAX
from frazil.tiers.disk.format import FileLabel, file_of, parse_name
from frazil.tiers.disk.parquet import file_crc, read_facts
from frazil.tiers.disk.plan import plan_topic
from frazil.tiers.disk.reader import FileGone

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from frazil.clock import Clock
    from frazil.tiers.disk.catalog import (
        DiskCatalog,
        DiskDirectory,
        Scanned,
        Span,
        TopicFiles,
    )
    from frazil.tiers.disk.format import DiskFile, SetName
    from frazil.tiers.disk.pins import FilePins
    from frazil.tiers.disk.plan import FoundSet, OpenPlan
    from frazil.tiers.disk.reader import DiskReaders

T = TypeVar("T")

SCRUB_BYTES: Final = 256 << 20
REBUILD_WAIT_S: Final = 5.0
RETRY_S: Final = 60.0
"""The engine is asked at most this often to rebuild the same file."""
ATTEMPTS_MAX: Final = 10


# -- opening ---------------------------------------------------------------------------------------


def open_topic(
    catalog: DiskCatalog,
    directory: DiskDirectory,
    damage: DamagedFiles,
    topic: int,
    *,
    suspect: bool,
    warnings: list[str],
) -> None:
    """Bring a topic's directory and its metadata together.

    Metadata changes before names do: after a crash in between, the next start meets the names
    without metadata again. What needs attention is appended to `warnings`.
    """
    scanned = directory.scan(topic)
    picture = catalog.picture(topic)
    if topic in catalog.topics or scanned.files:
        unknown, unreadable = _described(directory, topic, scanned, picture)
        plan = plan_topic(picture, scanned.files, unknown, suspect=suspect, unreadable=unreadable)
        for found, gone in sorted(plan.adopt, key=lambda each: each[0].first):
            _adopt(catalog, catalog.picture(topic), found, gone)
        for first in range(0, len(plan.forget), ROWS_MAX):
            picture = catalog.picture(topic)
            catalog.change(picture, picture.marks, remove=plan.forget[first : first + ROWS_MAX])
        warnings += _clean(directory, damage, topic, plan)
    for name in scanned.leftovers:
        directory.remove_one(topic, name)
    holes = catalog.picture(topic).holes
    if holes:
        warnings.append(_warning("offsets are in no file", topic=topic, first=holes[0][0]))


def _described(
    directory: DiskDirectory, topic: int, scanned: Scanned, picture: TopicFiles
) -> tuple[list[DiskFile], dict[str, str]]:
    """Return the files that the metadata lacks, as their footers describe them.

    Unreadable ones are returned by name with the reason.
    """
    found: list[DiskFile] = []
    unreadable: dict[str, str] = {}
    for name in scanned.files:
        if name in picture.by_name:
            continue
        try:
            facts, metadata = read_facts(directory.file_system, directory.path(topic, name))
            label = FileLabel.from_metadata(metadata)
        except CorruptionError as error:
            unreadable[name] = str(error)
            continue
        if (label.topic, label.name) != (topic, name):
            unreadable[name] = f"file has another name in its label: {label.topic} {label.name}"
            continue
        found.append(file_of(label, facts, key_bytes=scanned.keys.get(name, 0)))
    return found, unreadable


def _adopt(
    catalog: DiskCatalog, picture: TopicFiles, found: FoundSet, gone: Sequence[DiskFile]
) -> None:
    """Register a set that was found whole."""
    count = len(found.files)
    files = [msgspec.structs.replace(file, set_files=count) for file in found.files]
    fresh = picture.marks.flushed == 0 and not picture.files
    marks = msgspec.structs.replace(
        picture.marks,
        start=found.first if fresh else picture.marks.start,
        flushed=max(picture.marks.flushed, found.end),
    )
    catalog.change(picture, marks, add=files, remove=gone)
    event("disk_adopted", topic=picture.topic, first=found.first, end=found.end, files=count)


def _clean(directory: DiskDirectory, damage: DamagedFiles, topic: int, plan: OpenPlan) -> list[str]:
    """Remove, put aside and report files as planned; return the warnings."""
    found: list[str] = []
    for name in dict.fromkeys(plan.unlink):
        directory.remove(topic, name)
    for name, reason in plan.quarantine.items():
        directory.put_aside(topic, name, reason)
        found.append(_warning("file was put aside", topic=topic, file=name, reason=reason))
    for name in plan.waiting:
        what = "unknown file cannot be read, the next start puts it aside"
        found.append(_warning(what, file=name))
    for name, reason in plan.damaged.items():
        damage.note_damage(topic, name, reason)
        found.append(_warning("registered file is damaged", topic=topic, file=name, reason=reason))
    return found


def _warning(what: str, **facts: object) -> str:
    warn("disk_opened_with_fault", what=what, **facts)
    details = " ".join(f"{key}={value}" for key, value in facts.items())
    return f"disk tier: {what} ({details})"


# -- damage ----------------------------------------------------------------------------------------


class DamagedFiles:
    """Tracks which files were verified and which are damaged. Any thread may use it.

    Attributes:
        on_damage: rebuilds a damaged file; True when another one is registered instead. Set
            by the engine.
        must_wait: tells whether the calling thread holds a lock of a topic, under which none of
            its files may be rebuilt, and has another thread do it. Set by the engine.
    """

    def __init__(
        self,
        catalog: DiskCatalog,
        directory: DiskDirectory,
        readers: DiskReaders,
        *,
        clock: Clock,
        scrub_interval_s: float,
    ) -> None:
        self.on_damage: Callable[[int, DiskFile], bool] | None = None
        self.must_wait: Callable[[int], bool] | None = None
        self._catalog = catalog
        self._directory = directory
        self._readers = readers
        self._clock = clock
        self._scrub_interval_us = int(scrub_interval_s * 1_000_000)
        self._lock = threading.Lock()
        self._rebuilding = threading.Lock()
        self._seen: dict[tuple[int, str], tuple[int, int]] = {}
        """Time of change and size of the files whose bytes were verified."""
        self._checked_us: dict[tuple[int, str], int] = {}
        self._damaged: dict[tuple[int, str], str] = {}
        self._asked: dict[tuple[int, str], float] = {}

    def retried(self, topic: int, call: Callable[[TopicFiles], T]) -> T:
        """Call with the newest picture, again when files moved or were rebuilt meanwhile."""
        for _ in range(ATTEMPTS_MAX):
            picture = self._catalog.picture(topic)
            try:
                return call(picture)
            except FileGone:
                continue
            except CorruptionError as error:
                file = picture.by_name.get(str(error.details.get("file")))
                if file is None or not self.report(file, error.details["reason"]):
                    raise
        raise NotFound("files are being moved, try again", topic=topic)

    def note_written(self, file: DiskFile) -> None:
        """Record a file that was just written as verified."""
        try:
            info = self._directory.file_system.stat(self._directory.path(file.topic, file.name))
        except OSError:
            return
        if info is not None and info.size == file.bytes:
            with self._lock:
                self._seen[file.topic, file.name] = (info.modified_ns, info.size)

    def note_damage(self, topic: int, name: str, reason: str) -> None:
        """Record that a file is damaged."""
        with self._lock:
            self._damaged[topic, name] = reason
            self._seen.pop((topic, name), None)

    def damaged(self) -> dict[tuple[int, str], str]:
        """Return the damaged files with the reasons."""
        with self._lock:
            return dict(self._damaged)

    def left_over(self, topic: int) -> list[SetName]:
        """Return the names of a topic's unregistered files: put aside, or unreadable."""
        known = self._catalog.picture(topic).by_name
        names = [name for name in self._directory.scan(topic).files if name not in known]
        names += self._directory.quarantined(topic)
        return [found for name in names if (found := parse_name(name)) is not None]

    def report(self, file: DiskFile, reason: object) -> bool:
        """Record damage and ask the engine to rebuild the file; tell whether it was replaced.

        The file stays in place until its replacement is registered, and is put aside then.

        Raises:
            Unavailable: it may be rebuilt, but not while this thread holds a lock of the topic.
        """
        key = (file.topic, file.name)
        with self._lock:
            new = key not in self._damaged
        if new:
            self.note_damage(file.topic, file.name, str(reason))
            warn("disk_file_damaged", topic=file.topic, file=file.name, reason=reason)
        if self.must_wait is not None and self.must_wait(file.topic):
            if self._is_replaced(file):
                return True
            if self.on_damage is None or self._failed_lately(key):
                return False
            raise Unavailable(
                "a damaged file is being written again, try again", topic=file.topic, file=file.name
            )
        # Bounded: the rebuilding thread may wait for something that this thread holds.
        if not self._rebuilding.acquire(timeout=REBUILD_WAIT_S):
            return False
        try:
            return self._is_replaced(file) or self._rebuild(file)
        finally:
            self._rebuilding.release()

    def _rebuild(self, file: DiskFile) -> bool:
        key = (file.topic, file.name)
        if self.on_damage is None or self._failed_lately(key):
            return False
        rebuilt = False
        try:
            rebuilt = self.on_damage(file.topic, file) and self._is_replaced(file)
        finally:
            if not rebuilt:
                self._asked[key] = self._clock.monotonic()
        return rebuilt

    def _failed_lately(self, key: tuple[int, str]) -> bool:
        asked = self._asked.get(key)
        return asked is not None and self._clock.monotonic() < asked + RETRY_S

    def _is_replaced(self, file: DiskFile) -> bool:
        return file.name not in self._catalog.picture(file.topic).by_name

    def forget(self, file: DiskFile) -> str | None:
        """Forget a file; return the reason if it was damaged."""
        key = (file.topic, file.name)
        with self._lock:
            self._seen.pop(key, None)
            self._checked_us.pop(key, None)
            self._asked.pop(key, None)
            return self._damaged.pop(key, None)

    def verify(self, file: DiskFile, *, again: bool = False) -> str:
        """Return what is wrong with a file, empty if nothing.

        All its bytes are read if it is new or has changed, or with `again`; otherwise this is one
        `stat`.
        """
        key = (file.topic, file.name)
        file_system, path = self._directory.file_system, self._directory.path(*key)
        try:
            info = file_system.stat(path)
            if info is None:
                return "file is missing"
            seen = (info.modified_ns, info.size)
            if info.size != file.bytes:
                return f"file has {info.size} bytes instead of {file.bytes}"
            if not again and self._seen.get(key) == seen:
                return ""
            crc = file_crc(file_system, path)
        except FileNotFoundError:
            return "file is missing"
        except OSError as error:
            return f"file cannot be read: {error}"
        if crc != file.crc:
            return "checksum of the file is wrong"
        with self._lock:
            self._seen[key] = seen
        return ""

    def scrub_once(self) -> int:
        """Verify the files that are due, the longest due first, up to a number of bytes.

        Returns:
            The number of damaged ones.
        """
        now_us = self._clock.now_us()
        found = spent = 0
        for file in self._due(now_us):
            if spent > SCRUB_BYTES:
                break
            if self._is_replaced(file):
                # With another file of its set, perhaps in this round.
                continue
            spent += file.bytes
            fault = self.verify(file, again=True)
            self._checked_us[file.topic, file.name] = now_us
            if fault:
                found += 1
                self.report(file, fault)
            elif (file.topic, file.name) in self._damaged:
                # An operator has restored its bytes.
                with self._lock:
                    self._damaged.pop((file.topic, file.name), None)
                self._readers.forget(file)
        return found

    def _due(self, now_us: int) -> list[DiskFile]:
        """Return the files that were not verified for long, the longest first."""
        pictures = [self._catalog.picture(topic) for topic in self._catalog.topics]
        files = [file for picture in pictures for file in picture.files]
        checked = [
            (self._checked_us.get((file.topic, file.name), file.created_us), file.name, file)
            for file in files
        ]
        limit_us = now_us - self._scrub_interval_us
        due = sorted(checked, key=itemgetter(0, 1))
        return [file for checked_us, _, file in due if checked_us <= limit_us]


# -- space -----------------------------------------------------------------------------------------


class Staged(NamedTuple):
    """A topic's files that are not committed; times in microseconds.

    In the queue of topics to commit it has the topic's name, why, and since when it is due.
    """

    topic: str = ""
    reasons: tuple[str, ...] = ()
    files: int = 0
    bytes: int = 0
    partition_bytes_max: int = 0
    small_files: int = 0
    deletes: int = 0
    offset_first: int = 0
    offset_end: int = 0
    since_us: int = 0
    """The time of the last commit; before the first one, that of the oldest file."""


class DiskSpace:
    """Counts bytes and removes sets that are safe elsewhere, least recently used topics first.

    A topic loses its oldest set first, whole sets only: its files always hold one range without a
    hole, so that a look-up by key never misses the newest change and finds an older one.

    Args:
        pinned: returns the lowest offset that a reader of a topic needs.
        swap: changes a topic's marks and removes files.
    """

    def __init__(
        self,
        catalog: DiskCatalog,
        readers: DiskReaders,
        pins: FilePins,
        *,
        small_file_bytes: int,
        pinned: Callable[[int], int],
        swap: Callable[..., None],
    ) -> None:
        self._catalog = catalog
        self._readers = readers
        self._pins = pins
        self._small_file_bytes = small_file_bytes
        self._pinned = pinned
        self._swap = swap

    def usage(self) -> int:
        """Return the bytes of all files, including those that only a pin keeps."""
        pictures = [self._catalog.picture(topic) for topic in self._catalog.topics]
        return sum(picture.size for picture in pictures) + self._pins.retired_bytes

    def held_bytes(self, topic: int, floor: int) -> int:
        """Return the bytes of a topic's files with offsets at or above `floor`."""
        spans = self._catalog.picture(topic).spans
        return sum(file.size for span in spans if span.end > floor for file in span.files)

    def staged(self, topic: int) -> Staged:
        """Return what is in files, but not committed."""
        picture = self._catalog.picture(topic)
        marks = picture.marks
        files = [file for file in picture.files if file.set_end > marks.committed and file.rows]
        if not files:
            return Staged()
        partitions: Counter[str] = Counter()
        for file in files:
            partitions[file.partition] += file.bytes
        return Staged(
            files=len(files),
            bytes=partitions.total(),
            partition_bytes_max=max(partitions.values()),
            small_files=sum(file.bytes < self._small_file_bytes for file in files),
            deletes=sum(file.deletes for file in files),
            offset_first=max(marks.committed, picture.start),
            offset_end=picture.flushed,
            since_us=marks.changed_us or min(file.created_us for file in files),
        )

    def purposes(self) -> dict[str, int]:
        """Return the bytes by purpose.

        Committed files are the query cache; the others are staging, or compaction where they are
        small and wait for a merge.
        """
        totals = {"query_cache": 0, "staging": 0, "compaction": 0}
        for topic in self._catalog.topics:
            picture = self._catalog.picture(topic)
            for file in picture.files:
                committed = file.set_end <= picture.marks.committed
                totals[self.purpose_of(file, committed=committed)] += file.size
        return totals

    def purpose_of(self, file: DiskFile, *, committed: bool) -> str:
        """Return what a file is for, by the rule of `purposes`."""
        if committed:
            return "query_cache"
        return "compaction" if file.bytes < self._small_file_bytes else "staging"

    def evict(
        self, bytes_max: int, floors: Mapping[int, int], uploaded: Mapping[int, int] | None = None
    ) -> int:
        """Remove sets until the tier is below `bytes_max`, or no more may go.

        A set may go when it is committed or in the object store (below the topic's offset in
        `uploaded`), below the topic's floor in `floors` (the lowest offset that its holds need;
        without a floor nothing goes), and neither pinned nor needed by a reader.

        Returns:
            The bytes removed.
        """
        limits = {
            topic: min(
                floor,
                max(self._catalog.picture(topic).marks.committed, (uploaded or {}).get(topic, 0)),
            )
            for topic, floor in floors.items()
        }
        freed = 0
        over = self.usage() - bytes_max
        while freed < over:
            oldest = [
                (self._readers.last_use(span.files), topic)
                for topic in self._catalog.topics
                if (span := self._evictable(self._catalog.picture(topic), limits)) is not None
            ]
            if not oldest:
                break
            topic = min(oldest)[1]
            with self._catalog.changing:
                picture = self._catalog.picture(topic)
                chosen = self._evictable(picture, limits)
                if chosen is not None:
                    freed += self._remove(picture, chosen, "evicted")
        return freed

    def expire(self, topic: int, below: int) -> int:
        """Remove the sets below an offset, held elsewhere or not; return the bytes."""
        freed = 0
        with self._catalog.changing:
            while True:
                picture = self._catalog.picture(topic)
                if not picture.spans or picture.spans[0].end > below:
                    return freed
                freed += self._remove(picture, picture.spans[0], "expired")

    def _remove(self, picture: TopicFiles, span: Span, reason: str) -> int:
        marks = picture.marks
        kept = msgspec.structs.replace(marks, start=max(marks.start, span.end))
        self._swap(picture, kept, remove=span.files)
        size = sum(file.size for file in span.files)
        event("disk_removed", topic=picture.topic, end=span.end, bytes=size, reason=reason)
        return size

    def _evictable(self, picture: TopicFiles, limits: Mapping[int, int]) -> Span | None:
        if not picture.spans or picture.topic not in limits:
            return None
        span = picture.spans[0]
        limit = min(limits[picture.topic], self._pinned(picture.topic))
        return None if span.end > limit or any(map(self._pins.pinned, span.files)) else span
