"""Snapshots of topics for SQL: chunks and files of one instant, pinned until they are closed."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from frazil.errors import CorruptionError, InvalidRequest, NotFound, Unavailable
from frazil.fs import RealFileSystem
from frazil.model import full_topic_name
from frazil.query.pool import WAIT_S
from frazil.query.views import ChunkView, TopicInfo
from frazil.schema import part_of_values
from frazil.tiers import STEP_ROWS, open_parquet
from frazil.topic import check_watch, moment, moments_of, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from frazil.query.views import TopicName
    from frazil.tiers import Chunk, DiskFile, KeyLookup, TopicTiers
    from frazil.topic import Instance, TopicRuntime

NO_OFFSETS: Final = np.empty(0, np.int64)


class EngineSnapshot:
    """One topic, or one part of it, at one offset. Its files stay until it is closed.

    Attributes:
        part: the index of the part, None for a topic without parts.
        end: the offset of the snapshot.
        cut: records from here on are in `chunks`, older ones in `files`, which may reach beyond.
        dead: the offsets below `cut` of changes that are superseded at `end`, ascending; without
            deletions, which are recognised by their operation.
    """

    def __init__(self, tiers: TopicTiers, end: int, *, state: bool) -> None:
        self._tiers = tiers
        self.part = tiers.state.spec.part_index if tiers.state.spec.part_of else None
        self.end = end
        self._keyed = tiers.keyed if state else None
        self._settle()
        chunks, self.cut, self.dead = tiers.repairing(self._take)
        self.chunks = [self._view(chunk, state=state) for chunk in chunks if chunk.count]
        disk = tiers.disk
        with disk.catalog.changing:
            # Retired files are deleted under this lock, so a file that is pinned under it stays.
            files = [f for f in disk.files(tiers.id) if f.rows and f.offset_first < self.cut]
            self._pin = disk.pins.pin(files)
        self.files: Sequence[DiskFile] = files

    def _settle(self) -> None:
        """Fold and decode the snapshot's records in steps, until the query is stopped.

        It runs before the lock is taken: other threads need the lock, and a damaged file can be
        written again.
        """
        if self._keyed is not None and self._keyed.folded_to < self.end:
            assert self._tiers.lookup is not None
            self._tiers.lookup.fold_to(self.end)
        memory, before = self._tiers.memory, -1
        memory.note_read()
        while before < memory.settled < self.end:
            check_watch()
            before = memory.settled
            memory.settle(self.end, budget_rows=STEP_ROWS)

    def _take(self) -> tuple[list[Chunk], int, np.ndarray[Any, Any]]:
        """Return the chunks in memory, their first offset, and the superseded rows of files.

        All of them are of one instant. They were folded and decoded before.
        """
        tiers, keyed, end = self._tiers, self._keyed, self.end
        memory = tiers.memory
        with memory.lock:
            if keyed is not None:
                keyed.fold(end)
            chunks = _held(memory.snapshot(end), tiers.disk.start(tiers.id))
            cut = min(memory.start, end)
            dead = NO_OFFSETS if keyed is None else keyed.vectors.below(cut=cut, end=end)
        return chunks, cut, dead

    def _view(self, chunk: Chunk, *, state: bool) -> ChunkView:
        live = chunk.live(self.end) if state and chunk.keyed else None
        bounds = partial(_bounds, chunk)
        return ChunkView(chunk.batch, chunk.offset, chunk.times, live, bounds, self.part)

    def file_path(self, file: DiskFile) -> str | None:
        """Verify a file and return its path for DuckDB.

        None if `read_file` must read it: DuckDB cannot read a simulated file system.
        """
        disk = self._tiers.disk
        if not isinstance(disk.file_system, RealFileSystem):
            return None
        self._check(file)
        return disk.path(file)

    def _check(self, file: DiskFile) -> None:
        check_watch()
        disk = self._tiers.disk
        disk.readers.note_use((file,))
        fault = disk.damage.verify(file)
        if not fault:
            return
        if disk.damage.report(file, fault):
            raise Unavailable(
                "a damaged file was just written again, run the query again",
                topic=self._tiers.name,
                file=file.name,
            )
        raise CorruptionError(
            "a file of the disk tier is damaged, run `frazil doctor`",
            topic=self._tiers.name,
            file=file.name,
            offset_first=file.offset_first,
            offset_next=file.offset_last + 1,
            reason=fault,
        )

    def read_file(self, file: DiskFile, columns: Sequence[str]) -> pa.Table:
        """Read columns of a file through the `FileSystem`, in the types of the file."""
        disk = self._tiers.disk
        self._check(file)
        path = disk.path(file)
        try:
            parquet, source = open_parquet(disk.file_system, path)
            try:
                return parquet.read(columns=list(columns))
            finally:
                parquet.close()
                source.release()
        except OSError as error:
            raise Unavailable("file cannot be read, try again", path=path, error=error) from error

    def file_schema(self, file: DiskFile) -> pa.Schema:
        """Return the topic's columns in the schema version of a file."""
        return self._tiers.schema_of(file.schema)

    def get_many(self, keys: Sequence[tuple[Any, ...]]) -> Sequence[Mapping[str, Any] | None]:
        """Return the row of each key at this snapshot, with `_offset` and `_time`."""
        check_watch()
        lookup = self._tiers.lookup
        assert lookup is not None
        return lookup.get_rows(keys, before=self.end)

    def close(self) -> None:
        """Unpin the files."""
        self._pin.close()


def _held(chunks: Sequence[Chunk], start: int) -> list[Chunk]:
    """Drop the rows below an offset; a chunk may keep released rows together with newer ones."""
    return [
        chunk if chunk.offset >= start else chunk.slice(start - chunk.offset, chunk.count)
        for chunk in chunks
        if chunk.end > start
    ]


def _bounds(chunk: Chunk, name: str) -> tuple[Any, Any] | None:
    """Return a column's least and greatest value, temporal ones as integers; cached."""
    column = chunk.batch.column(name)
    if pt.is_nested(column.type) or pt.is_boolean(column.type):
        return None

    def make() -> tuple[Any, Any]:
        found = pc.min_max(column)
        least, greatest = found["min"], found["max"]
        if pt.is_temporal(column.type):
            storage = pa.int32() if pt.is_date32(column.type) else pa.int64()
            least, greatest = least.cast(storage), greatest.cast(storage)
        return least.as_py(), greatest.as_py()

    return chunk.cached(("storage_bounds", name), make)


class EngineSources:
    """The topics of an engine as SQL sees them."""

    def __init__(self, engine: Instance) -> None:
        self._engine = engine

    @property
    def version(self) -> int:
        """Return a number that changes with the topics and their columns."""
        return self._engine.topics_version

    def topics(self) -> dict[TopicName, TopicInfo]:
        """Return all topics; parts of partitioned topics are included but not listed."""
        engine = self._engine
        found: dict[TopicName, TopicInfo] = {}
        for name in engine.names():
            try:
                runtimes = engine.parts_of(name)
            except NotFound:
                continue
            found[_split(name)] = info = _info(runtimes)
            if info.partitions:
                for runtime in runtimes:
                    found[_split(runtime.name)] = _info([runtime])._replace(listed=False)
        return found

    def wait(self, wanted: Mapping[TopicName, bool], min_offset: Any) -> None:
        """Wait until topics have offsets, for 5 s at most."""
        wait_for([runtime for _topic, runtime in self._asked(wanted)], min_offset, timeout_s=WAIT_S)

    def snapshot(
        self,
        wanted: Mapping[TopicName, bool],
        *,
        as_of_offset: Any = None,
        as_of_time: Any = None,
        min_offset: Any = None,
    ) -> dict[TopicName, list[EngineSnapshot]]:
        """Take snapshots of topics at one instant, one of each part.

        `wanted` has for each topic whether its state is read; its log can always be read.
        `min_offset` waits until the topics have that offset. On an error nothing stays pinned.
        """
        engine = self._engine
        if as_of_offset is not None and as_of_time is not None:
            raise InvalidRequest("give as_of_offset or as_of_time, not both")
        asked = self._asked(wanted)
        runtimes = [runtime for _topic, runtime in asked]
        for runtime in runtimes:
            _tiers_of(runtime).ensure_loaded()
        if min_offset is not None:
            wait_for(runtimes, min_offset, timeout_s=WAIT_S)
        moments = {} if as_of_offset is None else moments_of(runtimes, as_of_offset)
        ends = engine.visible_ends(runtimes)
        taken: dict[TopicName, list[EngineSnapshot]] = {}
        try:
            for (topic, runtime), end in zip(asked, ends, strict=True):
                at = moment(runtime, end, moments.get(runtime.name), as_of_time)
                snapshot = EngineSnapshot(_tiers_of(runtime), at, state=wanted[topic])
                taken.setdefault(topic, []).append(snapshot)
        except BaseException:
            for snapshot in chain.from_iterable(taken.values()):
                snapshot.close()
            raise
        return taken

    def _asked(self, wanted: Iterable[TopicName]) -> list[tuple[TopicName, TopicRuntime]]:
        """Return the parts of topics, each with its topic's name."""
        self._engine.check_open()
        return [
            (topic, runtime)
            for topic in wanted
            for runtime in self._engine.parts_of("/" + "/".join(topic))
        ]

    def lookup(
        self, topic: TopicName, keys: Sequence[tuple[Any, ...]], *, min_offset: Any = None
    ) -> Sequence[Mapping[str, Any] | None]:
        """Return the newest row of each key."""
        runtimes = self._engine.parts_of("/" + "/".join(topic))
        if min_offset is not None:
            wait_for(runtimes, min_offset, timeout_s=WAIT_S)
        if runtimes[0].state.spec.part_of:
            return self._lookup_in_parts(runtimes, keys)
        return _lookup_of(runtimes[0]).get_rows(keys)

    def _lookup_in_parts(
        self, runtimes: Sequence[TopicRuntime], keys: Sequence[tuple[Any, ...]]
    ) -> list[dict[str, Any] | None]:
        """Look each key up in its part, all parts at one instant."""
        codec = runtimes[0].codec.columns.keyed.changes
        wanted: dict[int, list[int]] = {}
        for number, key in enumerate(keys):
            values = codec.parse_key(key)
            wanted.setdefault(part_of_values(values, len(runtimes)), []).append(number)
        parts = [(runtimes[part], numbers) for part, numbers in wanted.items()]
        ends = self._engine.visible_ends([runtime for runtime, _numbers in parts])
        found: list[dict[str, Any] | None] = [None] * len(keys)
        for (runtime, numbers), end in zip(parts, ends, strict=True):
            lookup = _lookup_of(runtime)
            lookup.refresh()
            rows = lookup.get_rows([keys[number] for number in numbers], before=end)
            for number, row in zip(numbers, rows, strict=True):
                if row is not None:
                    found[number] = {"_part": runtime.state.spec.part_index, **row}
        return found


def _split(name: str) -> TopicName:
    _empty, namespace, short = full_topic_name(name).split("/")
    return namespace, short


def _info(runtimes: Sequence[TopicRuntime]) -> TopicInfo:
    runtime = runtimes[0]
    columns = runtime.codec.columns
    names = () if columns.keyed is None else tuple(columns.keyed.changes.shape.names)
    parts = len(runtimes) if runtime.state.spec.part_of else 0
    return TopicInfo(columns.schema, names, parts)


def _tiers_of(runtime: TopicRuntime) -> TopicTiers:
    if runtime.tiers is None:
        raise InvalidRequest("SQL needs the memory tier, set memory.enabled")
    tiers: TopicTiers = runtime.tiers
    return tiers


def _lookup_of(runtime: TopicRuntime) -> KeyLookup:
    lookup = _tiers_of(runtime).lookup
    assert lookup is not None
    return lookup
