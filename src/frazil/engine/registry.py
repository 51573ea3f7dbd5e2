"""The journal and the topics: how an engine is opened, kept together and closed."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from frazil.engine.stats import remove_stats_file, write_stats_file
from frazil.engine.upkeep import Upkeep
from frazil.errors import (
    Closed,
    FrazilError,
    InvalidRequest,
    Overloaded,
    Unavailable,
)
from frazil.lake import Lake
from frazil.log import (
    ChainedHistory,
    Control,
    Journal,
    Log,
    SpaceGuard,
    prepare,
    take_lock,
)
from frazil.log import format as fmt
from frazil.metadata import LEASE, Ownership, holder_of
from frazil.objects import Objects
from frazil.schema import IngestLimits
from frazil.subscribe import Cursors, Subscribing, Subscriptions
from frazil.telemetry import event, warn
from frazil.tiers import Tiers
from frazil.topic import (
    Indexer,
    Instance,
    Sequencer,
    States,
    StateTag,
    Stores,
    TopicRuntime,
    known_cursors,
    known_topics,
    open_stores,
    topic_control,
    unfinished,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from frazil.clock import Clock
    from frazil.config import Settings
    from frazil.fs import FileSystem
    from frazil.log import HistorySource, TopicState
    from frazil.model import Ack, TopicSpec


class Registry(Instance):
    """An open data directory: its lock, its journal, its metadata, and the topics by name."""

    cursors: Cursors
    subscribing: Subscribing
    objects: Objects
    upkeep: Upkeep
    lake: Lake

    def __init__(
        self,
        settings: Settings,
        *,
        file_system: FileSystem,
        clock: Clock,
        threads: bool = True,
        on_owned: Callable[[], None] = lambda: None,
    ) -> None:
        """Open a directory.

        `on_owned` is called once, as soon as it is certain that nobody else serves these data: most
        often before the log is recovered. What it raises ends the opening.
        """
        if not __debug__:
            raise InvalidRequest("run Python without -O: Frazil checks its own work by assertions")
        if sys.byteorder != "little":
            raise InvalidRequest("this machine is big-endian, which the format does not support")
        super().__init__(settings, file_system=file_system, clock=clock, threads=threads)
        self._on_owned = on_owned
        self._limits = _limits(settings)
        compression = settings.log.compression
        self._options = pa.ipc.IpcWriteOptions(
            compression=None if compression == "none" else compression
        )
        self.on_fenced: Callable[[Closed], None] | None = None
        """Called when another process has taken over the data: this one should end."""
        self._tiers: Tiers | None = None
        self.subscribing = Subscribing(self)
        self._deleting: dict[int, TopicSpec] = {}
        """Topics that nobody can see any more and that the journal does not know as deleted yet."""
        self.query_seconds: deque[float] = deque(maxlen=2048)
        """How long the last queries took until their first rows."""
        self._sources: list[HistorySource] = []
        prepare(file_system, self.paths, allow_network_fs=settings.log.allow_network_fs)
        self._lock = take_lock(file_system, self.paths)
        try:
            self._open()
        except BaseException:
            self._lock.release()
            raise

    @property
    def has_tiers(self) -> bool:
        """Tell whether there are memory and disk; without them the log serves alone."""
        return self._tiers is not None

    @property
    def tiers(self) -> Tiers:
        """Return memory and disk.

        Raises:
            InvalidRequest: if `memory.enabled` is off.
        """
        if self._tiers is None:
            raise InvalidRequest("this needs the memory tier, set memory.enabled")
        return self._tiers

    def _make_room(self) -> None:
        """Give the ballast up before opening if the disk is full: recovery writes a little, too."""
        try:
            if self.file_system.space(self.paths.root).free_bytes < self.settings.log.ballast_bytes:
                SpaceGuard(self.file_system, self.paths.root, self.settings.log).give_up_ballast()
        except OSError as error:
            warn("ballast_trouble", path=self.paths.root, error=error)

    def _open(self) -> None:
        self._make_room()
        stores = self._open_stores()
        self.cursors = Cursors(self, self._indexer)
        self.subscriptions = Subscriptions(self, self.cursors, self.subscribing)
        try:
            if not self.ownership.expires:
                # The lock of the directory decides about the owner; otherwise the lease does.
                self._on_owned()
            known, ends = known_topics(stores.shared)
            self._known_cursors = known_cursors(stores.shared)
            if self.settings.memory.enabled:
                self._tiers = Tiers(self, stores.local, threads=self._threads)
                self.tiers.write_stats = partial(write_stats_file, self)
                self._sources.append(self.tiers.disk.history)
                for topic_id, end in self.tiers.open(
                    suspect=bool(stores.warnings) or not stores.local.revision()
                ).items():
                    ends[topic_id] = max(end, ends.get(topic_id, 0))
            self.objects = Objects(self)
            for topic_id, picture in self.objects.catalog.topics().items():
                ends[topic_id] = max(picture.uploaded, ends.get(topic_id, 0))
            self.log = self._open_log(known, ends)
            self._take_lease()
            if self.ownership.expires:
                self._on_owned()
            self._complete()
            self.warnings += self.log.journal.report.warnings
            self.upkeep = Upkeep(self, threads=self._threads)
            self._bind_all()
            self._settle_holds()
            self._commit_inline(self.objects.load())
            self._known_cursors = {}
            self.states = States(self)
            self.lake = Lake(self, stores.local, self._tiers)
            self.lake.load()
            self.warnings += self._rebuild_index()
        except BaseException:
            self.ownership.stop()
            stores.close()
            raise
        self._start_log()
        self.upkeep.start()
        if self.has_tiers:
            self.warnings += self.tiers.disk.warnings
            self.tiers.start()
            self.lake.begin()
        self.objects.begin()
        event("engine_opened", data_dir=self.paths.root, topics=len(self._topics))
        for warning in self.warnings:
            event("engine_warning", warning=warning)

    def _open_stores(self) -> Stores:
        """Open the metadata and prepare what is written under the owner's lease."""
        self.stores = stores = open_stores(
            self.settings, self.paths, file_system=self.file_system, clock=self.clock
        )
        self.warnings += stores.warnings
        self.ownership = Ownership(
            stores.shared,
            self.clock,
            holder=holder_of(self.file_system, self.paths.lock, self.clock),
            ttl_s=stores.lease_ttl_s,
        )
        self._indexer = Indexer(stores.shared, requires=self.ownership.requires)
        return stores

    def _take_lease(self) -> None:
        """Become the owner, where others could be: with a shared store or objects to name."""
        if not self.ownership.expires and self.settings.objects.store == "none":
            return
        known = self.log.journal.state.values.get((StateTag.EPOCH, LEASE), b"0")
        self.ownership.on_epoch = lambda epoch: self.states.put(
            StateTag.EPOCH, LEASE, b"%d" % epoch
        )
        self.ownership.on_fenced = self._fenced
        above = max(int(known), self.objects.catalog.epoch_last)
        epoch = self.ownership.take(epoch_above=above)
        payload = msgspec.msgpack.encode((int(StateTag.EPOCH), LEASE, b"%d" % epoch))
        self._commit_inline([Control(fmt.KIND_STATE, 0, payload)])

    def _fenced(self, error: Closed) -> None:
        """Write nothing any more: another owns the data (F19)."""
        self.log.journal.fail(error)
        if self.on_fenced is not None:
            self.on_fenced(error)

    def _open_log(self, known: Mapping[int, Any], ends: Mapping[int, int]) -> Log:
        journal = Journal.open(
            self.file_system,
            self.paths.journal,
            clock=self.clock,
            settings=self.settings.log,
            producers=self.settings.producers,
            watermarks=ends,
            known_topics=known,
            known_cursors={t: c for t, c in self._known_cursors.items() if t in ends},
        )
        journal.delete_grace_us = int(self.settings.topics.delete_grace_s * 1_000_000)
        log = Log(journal, self.settings.log, threads=self._threads)
        log.respect_pins = not self.has_tiers
        if self.ownership.expires:
            journal.fence = self.ownership.may_write
        return log

    def _complete(self) -> None:
        """Remove or complete what a crash left half done in the definitions of topics."""
        controls, warnings = unfinished(self.log.journal.state.topics, now_us=self.clock.now_us())
        self.warnings += warnings
        self._commit_inline(controls)

    def _bind_all(self) -> None:
        topics = self.log.journal.state.topics.values()
        for topic in sorted(topics, key=lambda topic: topic.spec.partitions):
            if topic.spec.deleted_us:
                continue
            try:
                self._bind(topic.spec)
            except Exception as error:  # noqa: BLE001 - one topic must not keep the others shut
                self._pass_over(topic.spec, error)

    def _settle_holds(self) -> None:
        """Give every subscription its hold, and drop holds of those that are gone."""
        try:
            self._commit_inline(self.cursors.unsettled())
        except Overloaded as error:
            # Nothing is freed without room for a frame; the next opening tries again.
            self.warnings.append(f"holds of subscriptions could not be set: {error}")

    def _pass_over(self, spec: TopicSpec, error: Exception) -> None:
        """Open without a topic that cannot be used; nothing of it is touched."""
        self._topics.pop(spec.name, None)
        self._parents.pop(spec.name, None)
        self.unusable[spec.name] = f"{type(error).__name__}: {error}"
        self.warnings.append(f"topic {spec.name} could not be opened and is left as it is: {error}")

    def _commit_inline(self, controls: Sequence[Control]) -> None:
        """Commit control frames while the journal's thread does not run yet."""
        if not controls:
            return
        entries: list[Any] = [(None, None, control, 0, 0, None, None) for control in controls]
        answers: list[Ack | BaseException] = []
        journal = self.log.journal
        journal.commit(entries, lambda _waiters, results: answers.extend(results))
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        if journal.failed is not None:
            raise journal.closed_error()

    def mend_metadata(self) -> None:
        """Bring the metadata in line with the log again once a store that failed answers (F16)."""
        if not self._indexer.answers():
            return
        with self._control:
            if not self.closed:
                self._indexer.mend(self.log.journal, self._indexed_states())
        if self._indexer.failed is None:
            event("metadata_mended")

    def _rebuild_index(self) -> list[str]:
        """Bring the metadata in line with the log: all topics, parents of parts included."""
        return self._indexer.rebuild(self.log.journal, self._indexed_states())

    def _indexed_states(self) -> list[TopicState]:
        known = self.log.journal.state.topics
        states = [runtime.state for runtime in self._topics.values()]
        states += [known[parent.id] for parent in self._parents.values()]
        states += [state for state in known.values() if state.spec.name in self.unusable]
        return states

    def _bind(self, spec: TopicSpec) -> None:
        # The version changes with the topics: caches of an older version are stale.
        if spec.partitions:
            self._parents[spec.name] = spec
            self._topics_version += 1
            for part in self._runtimes(spec.name) if spec.primary_key else ():
                # How many parts there are is known from here on: they are made before their parent.
                part.routing = (part.state.spec.part_index, spec.partitions)
            return
        runtime = TopicRuntime(
            self.log.journal.state.topics[spec.id],
            self.log,
            settings=self.settings,
            limits=self._limits,
            clock=self.clock,
            options=self._options,
        )
        self._chain(runtime)
        if self.has_tiers:
            runtime.tiers = self.tiers.bind(runtime)
            runtime.pressure = self.tiers.pressure
            if runtime.tiers.lookup is not None:
                runtime.queue = Sequencer(self.log.queue, runtime.tiers.lookup.image)
        self._topics[spec.name] = runtime
        self._topics_version += 1
        self.objects.bind(runtime)

    def _chain(self, runtime: TopicRuntime) -> None:
        sources = [*self._sources, runtime.log.source]
        runtime.history = ChainedHistory(sources, behind=self.objects.source)

    def _start_log(self) -> None:
        journal = self.log.journal
        journal.on_disk_full = self.upkeep.disk_full
        if self.has_tiers:
            journal.on_kept = self.tiers.pressure.grew
        self.log.queue.start()

    @property
    def has_failed(self) -> bool:
        """Whether the journal failed and accepts nothing any more."""
        return self.log.journal.failed is not None

    def _check_metadata(self) -> None:
        """Refuse what other machines must know of while nobody could tell them (F16)."""
        failed = self.metadata_failed
        if self.ownership.expires and failed:
            raise Unavailable(
                "the metadata store does not answer, topics cannot be made now; retry",
                cause=failed,
                retry_after_ms=1000,
            )

    @property
    def metadata_failed(self) -> str:
        """Return why the metadata store stopped or does not answer, empty if it works."""
        owner = self.ownership
        failed = self._indexer.failed or owner.fenced or owner.trouble
        return "" if failed is None else str(failed)

    def _finish_deleting(self) -> None:
        """Mark topics as deleted that nobody can see any more; before their names are used again.

        Raises:
            FrazilError: if there is no room for the frames; what is left is tried again later.
        """
        for topic_id, spec in list(self._deleting.items()):
            if topic_id in self.log.journal.state.topics:
                self._mark_deleted(spec)
            del self._deleting[topic_id]

    def _mark_deleted(self, spec: TopicSpec) -> None:
        known = self.log.journal.state.topics[spec.id].spec
        now_us = self.clock.now_us()
        fresh = msgspec.structs.replace(known, version=known.version + 1, deleted_us=now_us)
        self.log.control(topic_control(fresh))

    def note_segments(self) -> None:
        """Note the journal's segments in the metadata."""
        with self._control:
            if not self.closed:
                self._indexer.segments_changed(self.log.journal)

    def close(self) -> None:
        """Commit what waits, sync, close everything; closing twice is fine.

        Raises:
            Unavailable: if the last sync failed; what was acked as `received` only may be lost.
        """
        if os.getpid() != self._process:
            # A forked child: files, metadata and lock belong to the parent, which still uses them.
            self.closed = True
            return
        # While the journals still take acks.
        self.subscribing.stop()
        with self._control:
            if self.closed:
                return
            with contextlib.suppress(FrazilError):
                self._finish_deleting()
            self.closed = True
        self.lake.stop()
        self.objects.stop()
        if self.has_tiers:
            self.tiers.stop()
        self.upkeep.stop()
        before = self.log.journal.failed
        self.log.stop()
        failed = self.log.journal.failed if before is None else None
        self._rebuild_index()
        self.ownership.stop()
        self.stores.close()
        remove_stats_file(self)
        self._lock.release()
        event("engine_closed", data_dir=self.paths.root)
        if failed is not None:
            raise Unavailable(
                "the last sync failed at closing; records acked as received only may be lost",
                data_dir=self.paths.root,
                cause=failed,
            ) from failed


def _limits(settings: Settings) -> IngestLimits:
    topics = settings.topics
    return IngestLimits(message_bytes_max=topics.message_bytes_max)
