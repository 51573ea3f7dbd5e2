"""The disk tier: Parquet files of all topics as history, warm cache and staging area.

Files are written and synced first, then registered in one metadata transaction, then visible.
`docs/internals/disk.md` has the layout, the order of steps and what a crash leaves of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from frazil.errors import Conflict
from frazil.telemetry import event
from frazil.tiers.disk.catalog import DiskCatalog, DiskDirectory
from frazil.tiers.disk.lookup import DiskLookup
from frazil.tiers.disk.maintenance import DamagedFiles, DiskSpace, open_topic
from frazil.tiers.disk.pins import FilePins
from frazil.tiers.disk.reader import DiskHistory, DiskReaders

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.clock import Clock
    from frazil.fs import FileSystem
    from frazil.metadata import MetadataStore
    from frazil.tiers.disk.catalog import Span, TopicFiles, TopicMarks
    from frazil.tiers.disk.format import DiskFile


class DiskLimits(NamedTuple):
    """The shape of the files and the limits of the tier; constants, smaller in tests."""

    row_group_rows: int = 64 << 10
    file_bytes: int = 128 << 20
    """Small files are merged into files of about this size."""
    small_file_bytes: int = 64 << 20
    """A file below this size is small."""
    writer_bytes_max: int = 64 << 20
    """The writer of a set holds at most so many bytes of rows."""
    open_files_max: int = 64
    """So many files are kept open for readers."""
    scrub_interval_s: float = 86_400.0
    """Each file is read and verified this often."""


class DiskTier:
    """The files of all topics. Any thread may call any method.

    Readers take a picture of a topic's files once and use that; changes make a new picture.

    Attributes:
        warnings: what `open` found that needs attention.
        writing: the memory of rows that each writer holds.
        planned: names of files, by topic, that a plan of the lake names: they are not merged.
    """

    def __init__(
        self,
        file_system: FileSystem,
        root: str,
        store: MetadataStore,
        *,
        clock: Clock,
        limits: DiskLimits | None = None,
        quarantine: str | None = None,
    ) -> None:
        self.file_system = file_system
        self.clock = clock
        self.limits = limits = limits or DiskLimits()
        self.warnings: list[str] = []
        self.writing: dict[int, int] = {}
        self.planned: dict[int, dict[str, str]] = {}
        self.catalog = DiskCatalog(store)
        self.directory = DiskDirectory(file_system, root, quarantine or f"{root}/quarantine")
        self.readers = DiskReaders(
            self.catalog, self.directory, open_files_max=limits.open_files_max
        )
        self.damage = DamagedFiles(
            self.catalog,
            self.directory,
            self.readers,
            clock=clock,
            scrub_interval_s=limits.scrub_interval_s,
        )
        self.pins = FilePins(self._remove)
        self.history = DiskHistory(self.catalog, self.readers, self.damage)
        self.lookup = DiskLookup(
            self.directory, self.readers, self.damage, maps_max=4 * limits.open_files_max
        )
        self.space = DiskSpace(
            self.catalog,
            self.readers,
            self.pins,
            small_file_bytes=limits.small_file_bytes,
            pinned=self.history.pinned,
            swap=self.swap,
        )

    def open(self, *, suspect: bool = False) -> dict[int, int]:
        """Bring metadata and directories together; return each topic's flushed offset.

        Whole sets that the metadata lacks are adopted, unfinished ones removed, unreadable files
        put aside; a registered file that is gone is recorded as damaged. May be cut off at any
        point and done again.

        Args:
            suspect: the metadata may have lost changes; then no file is removed that may be the
                only copy of a record.
        """
        self.directory.create()
        self.catalog.load()
        for topic in sorted({*self.catalog.topics, *self.directory.topics()}):
            if self.catalog.picture(topic).marks.dropped:
                self.drop_topic(topic)
            else:
                open_topic(
                    self.catalog,
                    self.directory,
                    self.damage,
                    topic,
                    suspect=suspect,
                    warnings=self.warnings,
                )
        return {topic: self.flushed(topic) for topic in self.catalog.topics}

    def close(self) -> None:
        """Close the files that are open for reading."""
        self.readers.close()
        self.lookup.close()

    # -- the files of a topic ----------------------------------------------------------------------

    def picture(self, topic: int) -> TopicFiles:
        """Return the files of a topic at this moment; none if it is unknown."""
        return self.catalog.picture(topic)

    def files(self, topic: int) -> tuple[DiskFile, ...]:
        """Return a topic's files, sorted by their first offset; some may have no rows."""
        return self.catalog.picture(topic).files

    def flushed(self, topic: int) -> int:
        """Return the offset below which everything was written to files."""
        return self.catalog.picture(topic).marks.flushed

    def start(self, topic: int) -> int:
        """Return the first offset that is still held."""
        return self.catalog.picture(topic).marks.start

    def committed(self, topic: int) -> int:
        """Return the offset below which everything is in the lake."""
        return self.catalog.picture(topic).marks.committed

    def path(self, file: DiskFile) -> str:
        """Return the path of a file."""
        return self.directory.path(file.topic, file.name)

    def set_of(self, file: DiskFile) -> Span | None:
        """Return the set that a file belongs to, None if it is not registered any more."""
        spans = self.picture(file.topic).spans
        names = ((span, {each.name for each in span.files}) for span in spans)
        return next((span for span, own in names if file.name in own), None)

    # -- changes -----------------------------------------------------------------------------------

    def register(
        self, topic: int, files: Sequence[DiskFile], replaces: Sequence[DiskFile] = ()
    ) -> None:
        """Make the files of one set visible, in place of others if there are any.

        The files must be synced under their names. Durable on return.

        Raises:
            Conflict: the range is not the next one, or the files to replace are gone. Nothing
                happened.
            Unavailable, Closed: the metadata store failed; `outcome="unknown"` if it may have
                happened. The files must stay.
        """
        first = min(file.set_first for file in files)
        end = max(file.set_end for file in files)
        with self.catalog.changing:
            picture = self.picture(topic)
            marks = picture.marks
            if replaces:
                _check_replacement(picture, files, replaces)
            elif marks.flushed == 0 and not picture.files:
                marks = msgspec.structs.replace(marks, start=first, flushed=end)
            elif first != marks.flushed:
                raise Conflict(
                    "flushed range is not the next one", first=first, flushed=marks.flushed
                )
            else:
                marks = msgspec.structs.replace(marks, flushed=end)
            self.swap(picture, marks, add=files, remove=replaces)
        for file in files:
            self.damage.note_written(file)
        event("disk_registered", topic=topic, first=first, end=end, files=len(files))

    def swap(
        self,
        picture: TopicFiles,
        marks: TopicMarks,
        *,
        add: Sequence[DiskFile] = (),
        remove: Sequence[DiskFile] = (),
    ) -> None:
        """Change a topic's files in the metadata, then in memory, then remove the old ones."""
        self.catalog.change(picture, marks, add=add, remove=remove)
        self.pins.retire(remove)

    def set_committed(self, topic: int, offset: int) -> None:
        """Record durably that everything below an offset is in the lake; it never goes back."""
        with self.catalog.changing:
            picture = self.picture(topic)
            if offset > picture.marks.committed:
                changed = {"committed": offset, "changed_us": self.clock.now_us()}
                self.swap(picture, msgspec.structs.replace(picture.marks, **changed))

    def drop_topic(self, topic: int) -> None:
        """Remove all files of a topic and forget it; `open` completes it after a crash."""
        picture = self.catalog.drop(topic)
        if picture is not None:
            self.pins.retire(picture.files)
            self.catalog.forget(picture)

    # -- memory ------------------------------------------------------------------------------------

    @property
    def cache_bytes(self) -> int:
        """Return the memory of caches of rows and keys."""
        return self.readers.cache_bytes + self.history.cache_bytes + self.lookup.cache_bytes

    @property
    def writer_bytes(self) -> int:
        """Return the memory of rows that writers hold right now."""
        return sum(list(self.writing.values()))

    def _remove(self, file: DiskFile) -> None:
        """Remove an unregistered file, or put it aside if it is damaged."""
        self.readers.forget(file)
        self.lookup.forget(file)
        reason = self.damage.forget(file)
        if reason is not None:
            self.directory.put_aside(file.topic, file.name, reason)
        else:
            self.directory.remove(file.topic, file.name)


def _check_replacement(
    picture: TopicFiles, files: Sequence[DiskFile], replaces: Sequence[DiskFile]
) -> None:
    """Refuse files that do not hold exactly the rows of those that they replace."""
    if any(file.name not in picture.by_name for file in replaces):
        raise Conflict("a file to replace is no longer registered", topic=picture.topic)
    one, other = _held_by(files), _held_by(replaces)
    if one != other:
        raise Conflict("new files hold another range or other rows", new=one, old=other)


def _held_by(files: Sequence[DiskFile]) -> tuple[int, int, int]:
    return (
        min(file.set_first for file in files),
        max(file.set_end for file in files),
        sum(file.rows for file in files),
    )
