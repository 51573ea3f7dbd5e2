"""One topic in memory and on disk: loading, flushing, evicting, repairing."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from frazil.errors import (
    Closed,
    Conflict,
    CorruptionError,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from frazil.log import RANGE_GAP, RANGE_LOST, SpecialRange, logged_runs
from frazil.schema import plan_read
from frazil.telemetry import event
from frazil.tiers.chunk import batch_with_system, chunk_of, chunk_of_history
from frazil.tiers.disk.format import SentRun, kept_runs
from frazil.tiers.flush import cut_set, flush_set
from frazil.tiers.keys.deletion_vectors import KeyRows
from frazil.tiers.keys.fold import KeyedState
from frazil.tiers.keys.lookup import KeyLookup
from frazil.tiers.memory import TopicMemory
from frazil.tiers.partitions import Partitioner
from frazil.topic import MemoryFacts, change_schema, check_watch, plan_change_read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from frazil.config import Settings
    from frazil.model import TopicSpec
    from frazil.tiers.chunk import Chunk
    from frazil.tiers.disk.format import DiskFile
    from frazil.tiers.runtime import Tiers
    from frazil.topic import TopicRuntime

T = TypeVar("T")

LOAD_BYTES: Final = 8 << 20
LOAD_SHARE: Final = 8
"""While the log is loaded, memory uses about this part of the budget; the rest is flushed."""
REBUILDS_MAX: Final = 3
"""The number of times that a rewrite is repeated if the topic's columns change during it."""
WATCH_S: Final = 0.02
SLICE_ROWS: Final = 2048
SLICE_PAUSE_S: Final = 0.0002


class TopicTiers:
    """One topic in the tiers above the log, and its moves between them."""

    def __init__(self, tiers: Tiers, runtime: TopicRuntime) -> None:
        self._tiers = tiers
        self.runtime = runtime
        self.state = runtime.state
        self.id = runtime.state.id
        self.keyed_topic = bool(runtime.state.spec.primary_key)
        self.disk = tiers.disk
        self.memory = TopicMemory(self.state, clock=tiers.clock)
        flushed = self.flushed
        self.memory.start = max(flushed, self.state.start) if flushed else self.state.start
        self._load_end = self.state.durable
        """Unflushed records below it are loaded from the log after a start."""
        self._load_at = self.memory.start
        self._holes: list[SpecialRange] = []
        """Undeclared ranges that neither the log nor a file has."""
        if flushed and self.memory.start > flushed:
            self._holes.append(self._hole(flushed, self.memory.start))
        self.loaded = self.memory.start >= self._load_end and not self.keyed_topic
        self._moving = threading.RLock()
        """Held while records are loaded, flushed or rewritten; taken before memory's lock."""
        # A condition knows whether the calling thread owns its lock.
        self._owned = (threading.Condition(self._moving), threading.Condition(self.memory.lock))
        self._between_slices = threading.Event()
        self._has_vectors = False
        self.fired: Counter[str] = Counter()
        self.fired_last: str = ""
        self.flushes = 0
        self.flushed_bytes = 0
        self.keyed: KeyedState | None = None
        self.lookup: KeyLookup | None = None
        if self.keyed_topic:
            self.keyed = KeyedState(
                self.memory,
                lambda keys, shape, before: self.disk.lookup.find_many(
                    self.id, keys, shape, before
                ),
                index_bytes_max=tiers.index_bytes_max,
            )
            self.keyed.on_flushed(flushed)
            self.lookup = KeyLookup(self, self.keyed)
        self._schemas: dict[int, pa.Schema] = {}
        self._partitioners: dict[int, Partitioner] = {}
        # From here on the journal appends its records to memory.
        self.state.memory = self.memory

    # -- facts -----------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Return the topic's full name."""
        return self.runtime.name

    @property
    def flushed(self) -> int:
        """Return the offset below which all records are in files."""
        return self.disk.flushed(self.id)

    def facts(self, usage_ratio: float, now_us: int) -> MemoryFacts:
        """Return the values that the signals are evaluated on."""
        flushed = self.flushed
        unflushed = self.memory.unflushed(flushed)
        partition_bytes = unflushed.bytes
        limit = self._tiers.limits(self).flush_partition_bytes
        if self.state.spec.partition_by and unflushed.bytes >= limit:
            partition_bytes = self._largest_partition(flushed)
        age_s = (now_us - unflushed.time_us) / 1e6 if unflushed.time_us else 0.0
        return MemoryFacts(
            usage_ratio=usage_ratio,
            partition_bytes_max=partition_bytes,
            age_s=max(age_s, 0.0),
            offsets_unflushed=max(self.state.durable - max(flushed, self.memory.start), 0),
            changes_unflushed=unflushed.changes,
        )

    def _largest_partition(self, flushed: int) -> int:
        sizes: Counter[str] = Counter()
        columns = self.runtime.codec.columns
        partitioner = self.partitioner(columns.version, columns.schema)
        for chunk in self.memory.chunks:
            if chunk.end > flushed and chunk.version == columns.version:
                for text, rows in _partitions(chunk, partitioner).items():
                    sizes[text] += chunk.nbytes * rows // max(chunk.count, 1)
        return max(sizes.values(), default=0)

    def schema_of(self, version: int) -> pa.Schema:
        """Return the topic's columns of one version."""
        if self.runtime.is_message:
            schema: pa.Schema = self.runtime.codec.schema
            return schema
        if version not in self._schemas:
            data = self.state.schemas.get(version)
            if data is None:
                raise CorruptionError(
                    "the schema of stored records is lost", topic=self.name, schema=version
                )
            self._schemas[version] = pa.ipc.read_schema(pa.py_buffer(data))
        return self._schemas[version]

    def partitioner(self, version: int, schema: pa.Schema) -> Partitioner:
        """Return the partitioner of one version of the columns."""
        if version not in self._partitioners:
            self._partitioners[version] = Partitioner(schema, self.state.spec.partition_by)
        return self._partitioners[version]

    def _hole(self, first: int, end: int) -> SpecialRange:
        """Return the range of offsets that the log has freed and no file has.

        It is a gap only if there is no trace of files with these offsets.
        """
        names = self.disk.damage.left_over(self.id)
        if self._tiers.suspect or any(name.first < end and name.end > first for name in names):
            return SpecialRange(first, end, RANGE_LOST, "their files are lost or cannot be read")
        reason = "freed by the log's own retention while the tiers were off"
        return SpecialRange(first, end, RANGE_GAP, reason)

    # -- loading after a start -------------------------------------------------------------------

    def ensure_loaded(self) -> None:
        """Load all records that no file has into memory; once after each start."""
        if not self.loaded:
            self.repairing(self._load)

    def _load(self) -> None:
        while not self._moving.acquire(timeout=WATCH_S):
            # Another thread loads the records; a cancelled query does not wait for it.
            check_watch()
        try:
            if self.keyed is not None and not self._has_vectors:
                # Before any change is folded onto the rows in files.
                self._rebuild_vectors(self.keyed)
            while not self.loaded:
                check_watch()
                self._load_some()
                self._make_room()
        finally:
            self._moving.release()

    def _rebuild_vectors(self, keyed: KeyedState) -> None:
        if self.flushed:
            rows = sum(file.rows for file in self.disk.files(self.id))
            keyed.rebuild_disk_dead(self._key_rows, count=rows)
            event("deletion_vectors_computed", topic=self.name, rows=rows)
        self._has_vectors = True

    def _key_rows(self) -> Iterator[KeyRows]:
        """Yield offset, key and operation of every row in files.

        Raises:
            Unavailable: a damaged file was written again; call again.
            CorruptionError: a damaged file cannot be written again.
            FrazilError: the query that needs the rows was cancelled; partial results are harmless.
        """
        disk = self.disk
        with disk.catalog.changing:
            # Under this lock no file is removed before it is pinned.
            files = [file for file in disk.files(self.id) if file.rows]
            pin = disk.pins.pin(files)
        with pin:
            for file in files:
                try:
                    yield from self._key_rows_of(file)
                except CorruptionError as error:
                    if not disk.damage.report(file, error.details.get("reason", error)):
                        raise
                    raise Unavailable(
                        "a damaged file was just written again, try again",
                        topic=self.name,
                        file=file.name,
                    ) from error

    def _key_rows_of(self, file: DiskFile) -> Iterator[KeyRows]:
        readers = self.disk.readers
        assert self.keyed is not None
        names = self.keyed.shape_of(file.schema).names
        for number in range(readers.reader(file).groups):
            check_watch()
            batch = readers.read(file, number, ("_offset", "_op", "_present", *names))
            if batch.column("_present").null_count < len(batch):
                # Updates of keys without a row change nothing.
                batch = batch.filter(batch.column("_present").is_null())
            yield KeyRows(
                batch.column("_offset").to_numpy(zero_copy_only=False),
                batch.select(list(names)),
                batch.column("_op").to_numpy(zero_copy_only=False),
            )

    def _make_room(self) -> None:
        """Flush and evict the records loaded so far, if they exceed their share of memory."""
        budget = self._tiers.settings.memory.budget_bytes
        if self.memory.bytes <= budget // LOAD_SHARE:
            return
        try:
            while self.flushed < self._load_at and self._flush_set(self._load_at):
                pass
        except (Closed, Unavailable):
            if self.broken() or self.memory.bytes > budget:
                raise
            # Memory has room for the rest, and loaded records can be read without a file.
            return
        self.memory.evict(self.flushed)

    def _load_some(self) -> None:
        """Load the next piece of the log."""
        if self._load_at >= self._load_end:
            self.loaded = True
            return
        version = self.state.codec.version
        try:
            piece = self.runtime.log.source.read(
                self.id, offset=self._load_at, bytes_max=LOAD_BYTES
            )
        except CorruptionError as error:
            self._pass_damage(error)
            return
        except NotFound:
            # The log frees a leading gap as soon as no record precedes it.
            start = self.runtime.log.source.range(self.id).first
            if start <= self._load_at:
                raise
            self._load_at = start
            return
        # The journal has already appended all records since the start, perhaps in one batch with
        # older records.
        end = self._load_end
        batches = [b.slice(0, end - b.offset) for b in piece.batches if b.offset < end]
        if version != self.state.codec.version:
            # These batches may be of either version: read them again.
            return
        self.memory.load(batches, start=self.memory.start, version=version)
        # If there was no progress, only declared gaps remain.
        is_done = piece.offset_next <= self._load_at
        self._load_at = self._load_end if is_done else piece.offset_next

    def _pass_damage(self, error: CorruptionError) -> None:
        """Continue after records that the log has lost; files record the lost range, too."""
        following = error.details.get("offset_next")
        if not isinstance(following, int) or following <= self._load_at:
            raise error
        end = min(following, self._load_end)
        if not any(each.first <= self._load_at < each.end for each in self.state.ranges):
            self._holes.append(SpecialRange(self._load_at, end, RANGE_LOST, str(error)))
        self._load_at = end

    # -- memory → disk ---------------------------------------------------------------------------

    def flush(self, end: int | None = None, *, reason: str = "asked") -> int:
        """Move all durable records below `end` to the disk tier; return the new flushed offset.

        On return the records are in registered, synced files. On an error nothing has changed.
        """
        return self.repairing(partial(self._flush, end, reason))

    def _flush(self, end: int | None, reason: str) -> int:
        with self._moving:
            self.ensure_loaded()
            target = self.state.durable if end is None else min(end, self.state.durable)
            while self.flushed < target:
                if not self._flush_set(target):
                    break
                event("topic_flushed", topic=self.name, reason=reason, flushed=self.flushed)
            return self.flushed

    def _flush_set(self, target: int) -> bool:
        # The first flush of a topic begins at the start of its log.
        first = self.flushed or self.memory.start
        if first >= target:
            # All records expired before they were flushed.
            return False
        folded = self._settle_ahead(target)
        with self.memory.lock:
            if self.keyed is not None and folded:
                self.keyed.fold(target)
            chunks = [chunk for chunk in self.memory.snapshot(target) if chunk.end > first]
            end, chosen = cut_set(chunks, first, target)
        # Read after the chunks, so no chunk has a newer version than these columns.
        columns = self.runtime.codec.columns
        files = self._write_set(
            first,
            end,
            columns,
            self._rows(chosen, first, end, columns),
            gaps=self._gaps(first, end) + self._gap_freed(first, end, chosen),
        )
        self.flushes += 1
        self.flushed_bytes += sum(file.bytes for file in files)
        if self.keyed is not None:
            self.keyed.on_flushed(end)
        self._tiers.note_flushed(self, end)
        return True

    def _write_set(
        self, first: int, end: int, columns: Any, rows: Iterator[pa.RecordBatch], **options: Any
    ) -> tuple[DiskFile, ...]:
        return flush_set(
            self.disk,
            topic=self.id,
            schema=self._file_schema(columns),
            version=columns.version,
            shape=None if self.keyed is None else self.keyed.shape_of(columns.version),
            partitioner=self.partitioner(columns.version, columns.schema),
            first=first,
            end=end,
            batches=rows,
            runs=self._sent_runs(first, end),
            **options,
        )

    def _sent_runs(self, first: int, end: int) -> list[SentRun]:
        """Return the producers' runs of `[first, end)` in the log, for topics that are uploaded."""
        journal = self.runtime.log.journal
        spec = self.state.spec
        if not has_objects(spec, self.runtime.settings) or not journal.state.producer_id_last:
            return []
        found = logged_runs(journal.segments, self.id, first=first, end=end)
        try:
            return kept_runs(
                [
                    SentRun(offset, run.records, run.producer, run.epoch, run.sequence)
                    for offset, run in found
                ]
            )
        except OSError as error:
            raise Unavailable(
                "the log cannot be read, try again", topic=self.name, error=error
            ) from error

    def _settle_ahead(self, target: int) -> bool:
        """Fold and decode a slice at a time, releasing the topic's lock in between.

        Returns:
            False if a damaged file prevents the fold. The changes are flushed nevertheless.
        """
        folded, before, now = True, (-1, -1), self._settled_to()
        while now != before:
            before = now
            folded = folded and self._fold_slice(target)
            self.memory.settle(target, budget_rows=SLICE_ROWS)
            now = self._settled_to()
            if now != before and min(now) < target:
                # Without a pause this thread would take the lock again before another one wakes.
                self._between_slices.wait(SLICE_PAUSE_S)
        return folded

    def _settled_to(self) -> tuple[int, int]:
        """Return the offsets below which records are decoded, and folded if they have keys."""
        settled = self.memory.settled
        return settled, settled if self.keyed is None else self.keyed.folded_to

    def _fold_slice(self, target: int) -> bool:
        try:
            if self.keyed is not None:
                self.keyed.fold(target, budget_rows=SLICE_ROWS)
        except CorruptionError:
            if not self.broken():
                raise
            return False
        return True

    def _rows(
        self, chunks: Sequence[Chunk], first: int, end: int, columns: Any
    ) -> Iterator[pa.RecordBatch]:
        """Yield chunks as rows of a file: with the current columns, cut to `[first, end)`."""
        for chunk in chunks:
            start = max(first - chunk.offset, 0)
            count = min(end, chunk.end) - chunk.offset - start
            if count > 0:
                yield self.file_rows(chunk.slice(start, count), columns)

    def file_rows(self, chunk: Chunk, columns: Any) -> pa.RecordBatch:
        """Return a chunk's records in the layout of files, with the current columns."""
        if chunk.version != columns.version:
            batch = self.convert(chunk.version, chunk.batch, columns)
            chunk = chunk_of(
                batch, offset=chunk.offset, version=columns.version, times=chunk.times, nbytes=0
            )
        return batch_with_system(chunk)

    def _file_schema(self, columns: Any) -> pa.Schema:
        """Return the topic's columns of a file; changes may lack all but the key."""
        fields = list(columns.keyed.schema)[:-2] if self.keyed_topic else list(columns.schema)
        return pa.schema(fields, metadata=columns.schema.metadata)

    def convert(self, version: int, batch: pa.RecordBatch, columns: Any) -> pa.RecordBatch:
        """Convert a batch from the version of its columns to the current one.

        A keyed topic's batch may end with `_op` and `_present`.
        """
        if version == columns.version or self.runtime.is_message:
            return batch
        written = self.schema_of(version)
        if not self.keyed_topic:
            return plan_read(written, columns.schema)(batch)
        key = self.state.spec.primary_key
        if len(batch.schema) > len(written):
            return plan_change_read(written, columns.schema, key)(batch)
        read = plan_read(written, columns.schema)(batch)
        fields = list(change_schema(columns.schema, key))[:-2]
        return pa.RecordBatch.from_arrays(read.columns, schema=pa.schema(fields))

    def row_batch(self, offset: int) -> pa.RecordBatch:
        """Return the record at an offset in the layout of files, with the current columns.

        Raises:
            NotFound: if no tier has it any more.
        """
        columns = self.runtime.codec.columns
        with self.memory.lock:
            self.memory.settle(offset + 1)
            chunk = self.memory.chunk_at(offset)
        if chunk is not None:
            return self.file_rows(chunk.slice(offset - chunk.offset, 1), columns)
        found = self.disk.lookup.row_at(self.id, offset)
        if found is None:
            raise NotFound("offset is no longer held", topic=self.name, offset=offset)
        return found

    # -- damaged files ---------------------------------------------------------------------------

    def busy(self) -> bool:
        """Return whether this thread holds a lock of the topic; then it must not rebuild files."""
        return any(_is_owned(condition) for condition in self._owned)

    def broken(self) -> dict[str, str]:
        """Return the names of the topic's damaged files, with the reasons."""
        found = self.disk.damage.damaged()
        return {name: reason for (topic, name), reason in found.items() if topic == self.id}

    def repair(self) -> None:
        """Rewrite damaged sets as far as the log has their records; the caller holds no lock."""
        for name, reason in self.broken().items():
            file = self.disk.picture(self.id).by_name.get(name)
            if file is not None:
                self.disk.damage.report(file, reason)

    def repairing(self, call: Callable[[], T]) -> T:
        """Call a function; if a file is damaged, rewrite it without locks and call again."""
        try:
            return call()
        except Unavailable:
            if self.busy() or not self.broken():
                raise
            self.repair()
            return call()

    def releasable(self, end: int) -> int:
        """Return the offset below which the log may free records; it keeps damaged sets."""
        broken = self.broken()
        if not broken:
            return end
        held = self.runtime.log.source.range(self.id).first
        firsts = [
            span.first
            for span in self.disk.picture(self.id).spans
            if span.first >= held and any(file.name in broken for file in span.files)
        ]
        return min([end, *firsts])

    def rebuild(self, file: DiskFile) -> bool:
        """Rewrite the set of a damaged file from the log; False if the log lacks its range."""
        span = self.disk.set_of(file)
        held = self.runtime.log.source.range(self.id)
        if span is None or span.first < held.first or span.end > held.end:
            return False
        with self._moving:
            for _ in range(REBUILDS_MAX):
                columns = self.runtime.codec.columns
                rows = self._logged_rows(span.first, span.end, columns)
                gaps = self._gaps(span.first, span.end)
                try:
                    self._write_set(
                        span.first, span.end, columns, rows, gaps=gaps, replaces=span.files
                    )
                except Conflict:
                    if columns.version == self.state.codec.version:
                        raise
                else:
                    return True
        return False

    def _logged_rows(self, first: int, end: int, columns: Any) -> Iterator[pa.RecordBatch]:
        offset = first
        while offset < end:
            piece = self.runtime.log.source.read(self.id, offset=offset, bytes_max=LOAD_BYTES)
            batches = [b.slice(0, end - b.offset) for b in piece.batches if b.offset < end]
            if self.state.codec.version != columns.version:
                raise Conflict("columns changed while a file was written again", topic=self.name)
            for batch in batches:
                if batch.count:
                    yield self.file_rows(chunk_of_history(batch, version=columns.version), columns)
            if piece.offset_next <= offset:
                return
            offset = piece.offset_next

    def _gaps(self, first: int, end: int) -> list[SpecialRange]:
        return [
            SpecialRange(max(each.first, first), min(each.end, end), each.kind, each.reason)
            for each in [*self.state.ranges, *self._holes]
            if each.end > first and each.first < end
        ]

    def gap_behind(self) -> int | None:
        """Return the end of the declared gap at the flushed offset, None without one."""
        flushed = self.flushed
        ends = [each.end for each in self.state.ranges if each.first <= flushed < each.end]
        return ends[0] if flushed and ends else None

    def _gap_freed(self, first: int, end: int, chunks: Sequence[Chunk]) -> list[SpecialRange]:
        """Return the declared gap that the log freed together with the records before it."""
        end = min(end, self.state.start, chunks[0].offset if chunks else end)
        if first >= end or self._gaps(first, end):
            return []
        return [SpecialRange(first, end, RANGE_GAP, "declared gap, freed by the log")]

    def settle(self, rows_max: int) -> None:
        """Decode, join and fold some new records, in the background thread."""
        memory, keyed = self.memory, self.keyed
        end = self.state.durable
        try:
            if keyed is not None:
                keyed.fold(end, budget_rows=rows_max)
                # Look-ups search the tail for unfolded keys, and decoding would empty the tail.
                end = keyed.folded_to
        finally:
            # Decode also if a damaged file prevents the fold.
            if memory.tail:
                memory.settle(end, budget_rows=rows_max)
                memory.merge_small()

    # -- eviction --------------------------------------------------------------------------------

    def evict(self, *, before_us: int | None) -> int:
        """Drop all flushed records, or those older than a time, from memory; return their bytes."""
        flushed = self.flushed
        if before_us is None:
            return self.memory.evict(flushed)
        below = self.memory.start
        for chunk in self.memory.chunks:
            if chunk.end > flushed or chunk.time_bounds[1] >= before_us:
                break
            below = chunk.end
        return self.memory.evict(below) if below > self.memory.start else 0

    def stats(self) -> dict[str, Any]:
        """Return counts of this topic in memory."""
        found: dict[str, Any] = {
            "memory_bytes": self.memory.bytes,
            "memory_start": self.memory.start,
            "chunks": len(self.memory.chunks),
            "flushed": self.flushed,
            "flushes": self.flushes,
            "flushed_bytes": self.flushed_bytes,
            "signals_fired": dict(self.fired),
            "signal_last": self.fired_last,
            "loaded": self.loaded,
        }
        if self.keyed is not None:
            found["index"] = {
                "keys": len(self.keyed.index),
                "bytes": self.keyed.index.bytes,
                "complete": self.keyed.complete,
                "evictions": self.keyed.index.evictions,
            }
            found["routes"] = dict(self.keyed.routes)
        return found


def has_objects(spec: TopicSpec, settings: Settings) -> bool:
    """Return whether a topic's records are uploaded to the object store."""
    if settings.objects.store == "none" or spec.partitions or spec.deleted_us:
        return False
    return settings.objects.default if spec.objects is None else spec.objects


def check_objects_option(name: str, options: Mapping[str, object], settings: Settings) -> None:
    """Refuse the option `objects` without an object store.

    Raises:
        InvalidRequest: set `objects.store`.
    """
    if options.get("objects") and settings.objects.store == "none":
        raise InvalidRequest(
            "a topic with objects needs an object store, set objects.store", topic=name
        )


def _is_owned(condition: threading.Condition) -> bool:
    """Return whether this thread owns a condition's lock."""
    try:
        condition.notify(0)
    except RuntimeError:
        return False
    return True


def _partitions(chunk: Chunk, partitioner: Partitioner) -> dict[str, int]:
    """Return the number of a chunk's records in each partition; cached."""
    return chunk.cached("partitions", lambda: partitioner.counts(chunk.batch))
