"""The disk tier: Parquet files of all topics, as history, as warm cache and as staging area.

Files are written and synced first, then registered in one metadata transaction, then visible.
`docs/internals/disk.md` has the layout, the order of steps and what a crash leaves of each.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import msgspec

from frazil.errors import Conflict
from frazil.model import OffsetRange
from frazil.telemetry import event
from frazil.tiers.disk.catalog import DiskRows, TopicFiles, TopicMarks
from frazil.tiers.disk.directory import DiskDirectory
from frazil.tiers.disk.history import DiskHistory
from frazil.tiers.disk.lookup import DiskLookup
from frazil.tiers.disk.merge import merge_once
from frazil.tiers.disk.open import open_topic
from frazil.tiers.disk.pins import FilePins
from frazil.tiers.disk.rows import DiskReaders
from frazil.tiers.disk.space import DiskSpace
from frazil.tiers.disk.verify import DiskVerifier

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    import pyarrow as pa

    from frazil.clock import Clock
    from frazil.fs import FileSystem
    from frazil.log import Piece, Pin
    from frazil.metadata import MetadataStore
    from frazil.schema import Key, KeyShape
    from frazil.tiers.disk.catalog import Span
    from frazil.tiers.disk.file import DiskFile
    from frazil.tiers.disk.lookup import FoundRow, Place
    from frazil.tiers.disk.pins import FilesPin
    from frazil.tiers.disk.space import Staged

__all__ = ["DiskTier", "TierSettings"]


class TierSettings(Protocol):
    """The settings of the section `disk` that the tier itself uses."""

    @property
    def bytes_max(self) -> int: ...
    @property
    def row_group_rows(self) -> int: ...
    @property
    def file_bytes(self) -> int: ...
    @property
    def small_file_bytes(self) -> int: ...
    @property
    def zstd_level(self) -> int: ...
    @property
    def writer_bytes_max(self) -> int: ...
    @property
    def open_files_max(self) -> int: ...
    @property
    def scrub_interval_s(self) -> float: ...


class DiskTier:
    """The files of all topics. Any thread may call any method.

    Readers take a picture of a topic's files once and use that; changes make a new picture. The
    tier is a `HistorySource`.

    Attributes:
        convert: brings a batch of the topic's columns from the version it was written under to
            the current one; set by the engine.
        on_damage: is told of a damaged file and returns True when it has registered another one
            in its place; set by the engine.
        warnings: what `open` found that somebody should look at.
    """

    def __init__(
        self,
        file_system: FileSystem,
        root: str,
        store: MetadataStore,
        *,
        clock: Clock,
        settings: TierSettings,
        quarantine: str | None = None,
    ) -> None:
        self.file_system = file_system
        self.clock = clock
        self.settings = settings
        self.directory = DiskDirectory(file_system, root, quarantine or f"{root}/quarantine")
        self.rows = DiskRows(store)
        self.convert: Callable[[int, int, pa.RecordBatch], pa.RecordBatch] | None = None
        self.on_damage: Callable[[int, DiskFile], bool] | None = None
        self.warnings: list[str] = []
        self.writing: dict[int, int] = {}
        """The memory of rows that each writer holds."""
        self.planned: dict[int, dict[str, str]] = {}
        """Names of files, by topic, that a plan of the lake names: they stay as they are."""
        self._pictures: dict[int, TopicFiles] = {}
        # Held while a picture is changed; never while rows are read or written.
        self._changing = threading.RLock()
        self.damage = DiskVerifier(self)
        self.pins = FilePins(self._remove)
        self.readers = DiskReaders(self)
        self.space = DiskSpace(self)
        self.history = DiskHistory(self)
        self.lookup = DiskLookup(self)

    # -- opening and closing ---------------------------------------------------------------------

    def open(self, *, suspect: bool = False) -> dict[int, int]:
        """Bring metadata and directories together; return where each topic is flushed to.

        Whole sets that the metadata does not know are taken in, unfinished ones are removed, what
        cannot be read is put aside, and a registered file that is gone stays known as damaged.
        May be cut off at any point and done again.

        Args:
            suspect: the metadata may have lost changes; then nothing is removed that may be the
                only copy of a record.
        """
        self.directory.create()
        known = self.rows.load()
        for topic in sorted(known.keys() | set(self.directory.topics())):
            picture = open_topic(self, known.get(topic), topic, suspect=suspect)
            if picture is not None:
                self._pictures[topic] = picture
        return {topic: picture.flushed for topic, picture in self._pictures.items()}

    def close(self) -> None:
        """Close the files that are open for reading."""
        self.readers.close()
        self.lookup.close()

    # -- what is there ---------------------------------------------------------------------------

    def picture(self, topic: int) -> TopicFiles:
        """Return the files of a topic at this moment; one without any if it is not known."""
        found = self._pictures.get(topic)
        return found if found is not None else _without_files(topic)

    @property
    def topics(self) -> list[int]:
        """Return the topics that the tier knows."""
        return list(self._pictures)

    def files(self, topic: int) -> tuple[DiskFile, ...]:
        """Return a topic's files, sorted by their first offset; some may have no rows."""
        return self.picture(topic).files

    def flushed(self, topic: int) -> int:
        """Return the offset below which everything was written to files."""
        return self.picture(topic).flushed

    def start(self, topic: int) -> int:
        """Return the first offset that is still held."""
        return self.picture(topic).start

    def committed(self, topic: int) -> int:
        """Return the offset below which everything is safe elsewhere, too."""
        return self.picture(topic).marks.committed

    def path(self, file: DiskFile) -> str:
        """Return the path of a file."""
        return self.directory.path(file.topic, file.name)

    def set_of(self, file: DiskFile) -> Span | None:
        """Return the set that a file belongs to, None if it is not registered any more."""
        for span in self.picture(file.topic).spans:
            if any(each.name == file.name for each in span.files):
                return span
        return None

    # -- changes ---------------------------------------------------------------------------------

    def register(
        self, topic: int, files: Sequence[DiskFile], replaces: Sequence[DiskFile] = ()
    ) -> None:
        """Make the files of one set visible, in the place of others if there are any.

        The files must be synced under their names. Durable on return.

        Raises:
            Conflict: the range is not the next one, or the files to replace are gone. Nothing
                happened.
            Unavailable, Closed: the metadata store failed; `outcome="unknown"` if it may have
                happened. The files must stay.
        """
        first = min(file.set_first for file in files)
        end = max(file.set_end for file in files)
        with self._changing:
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
        """Change a topic's files in the metadata, then in memory, then let the old ones go."""
        with self._changing:
            topic = picture.topic
            self.rows.change(topic, marks, add=add, remove=[file.name for file in remove])
            self._pictures[topic] = picture.changed(add=add, remove=remove, marks=marks)
        self.pins.retire(remove)

    def changing(self) -> threading.RLock:
        """Return the lock under which a picture is read, changed and swapped."""
        return self._changing

    def set_committed(self, topic: int, offset: int) -> None:
        """Note durably that everything below an offset is safe elsewhere; it never goes back."""
        with self._changing:
            picture = self.picture(topic)
            if offset > picture.marks.committed:
                changed = {"committed": offset, "changed_us": self.clock.now_us()}
                self.swap(picture, msgspec.structs.replace(picture.marks, **changed))

    def drop_topic(self, topic: int) -> None:
        """Remove all files of a topic and forget it; done again by `open` if it is cut off."""
        with self._changing:
            picture = self._pictures.get(topic)
            if picture is None:
                return
            gone = msgspec.structs.replace(picture.marks, dropped=True)
            self.rows.change(topic, gone)
            del self._pictures[topic]
        self.finish_drop(picture)

    def finish_drop(self, picture: TopicFiles) -> None:
        """Remove the files of a topic that is marked as dropped, then its rows."""
        self.pins.retire(picture.files)
        self.rows.forget(picture.topic, [file.name for file in picture.files])

    def expire(self, topic: int, below: int) -> int:
        """Remove the sets that lie below an offset, wherever else they are; return the bytes."""
        return self.space.expire(topic, below)

    def merge_once(self, topic: int, *, keep: Collection[str] = ()) -> bool:
        """Join small files of adjacent ranges; tell whether there was anything to join.

        Args:
            topic: whose files.
            keep: names of files that must stay as they are; those of plans do in any case.
        """
        return merge_once(self, topic, keep={*keep, *self.planned.get(topic, ())})

    # -- space -----------------------------------------------------------------------------------

    def evict(self, floors: Mapping[int, int], uploaded: Mapping[int, int] | None = None) -> int:
        """Remove files below the cap's need; see `DiskSpace.evict`."""
        return self.space.evict(floors, uploaded)

    def usage(self) -> int:
        """Return the bytes of all files, those that only a pin keeps included."""
        return self.space.usage()

    def held_bytes(self, topic: int, floor: int) -> int:
        """Return the bytes of a topic's files that have offsets at or above `floor`."""
        return self.space.held_bytes(topic, floor)

    def purposes(self) -> dict[str, int]:
        """Return the bytes by what they are for; together they are all files' bytes."""
        return self.space.purposes()

    def staged(self, topic: int) -> Staged:
        """Return what is in files, but not committed."""
        return self.space.staged(topic)

    def note_use(self, files: Iterable[DiskFile]) -> None:
        """Note that files were read, so that others are evicted before them."""
        self.space.note_use(files)

    def pin_files(self, files: Iterable[DiskFile]) -> FilesPin:
        """Keep files in place until the pin is closed."""
        return self.pins.pin(files)

    @property
    def cache_bytes(self) -> int:
        """Return the memory that caches of rows and keys take."""
        rows = self.readers.cache_bytes + self.history.cache_bytes
        return rows + self.lookup.cache_bytes

    @property
    def writer_bytes(self) -> int:
        """Return the memory of rows that writers hold right now."""
        return sum(list(self.writing.values()))

    # -- history ---------------------------------------------------------------------------------

    def range(self, topic: int) -> OffsetRange:
        """Return the offsets that files can give."""
        picture = self.picture(topic)
        return OffsetRange(picture.start, picture.flushed)

    def read(self, topic: int, *, offset: int, bytes_max: int) -> Piece:
        """Return records from `offset` on; see `HistorySource.read`."""
        return self.history.read(topic, offset=offset, bytes_max=bytes_max)

    def offset_at(self, topic: int, *, time_us: int) -> int | None:
        """Return the first offset appended at or after a time."""
        return self.history.offset_at(topic, time_us=time_us)

    def pin(self, topic: int, *, offset: int) -> Pin:
        """Keep a topic's records from `offset` on from eviction."""
        return self.history.pin(topic, offset=offset)

    # -- keys ------------------------------------------------------------------------------------

    def find(
        self, topic: int, key: Key, shape: KeyShape, before: int | None = None
    ) -> FoundRow | None:
        """Return the newest change of a key below an offset; see `DiskLookup.find`."""
        return self.lookup.find(topic, key, shape, before)

    def find_many(
        self, topic: int, keys: Sequence[Key], shape: KeyShape, before: int | None = None
    ) -> dict[Key, Place]:
        """Return where the newest change of each key lies; see `DiskLookup.find_many`."""
        return self.lookup.find_many(topic, keys, shape, before)

    def row_at(self, topic: int, offset: int) -> pa.RecordBatch | None:
        """Return one row under the current columns, None if no file has it."""
        return self.lookup.row_at(topic, offset)

    # -- damage ----------------------------------------------------------------------------------

    def verify(self, file: DiskFile) -> str:
        """Return what is wrong with a file, empty if nothing; see `DiskVerifier.verify`."""
        return self.damage.verify(file)

    def scrub_once(self) -> int:
        """Verify files that were not verified for long; return how many were found damaged."""
        return self.damage.scrub_once()

    def damaged(self, file: DiskFile, reason: object) -> bool:
        """Note that a file is damaged; tell whether another one has taken its place."""
        return self.damage.report(file, reason)

    def _remove(self, file: DiskFile) -> None:
        """Take an unregistered file out of its directory: away, or aside if it is damaged."""
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
    """Refuse files that do not hold exactly what those hold in whose place they come."""
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


@lru_cache(maxsize=16_384)
def _without_files(topic: int) -> TopicFiles:
    """Return the picture of a topic that has none; pictures never change, so one will do."""
    return TopicFiles(topic, (), TopicMarks())
