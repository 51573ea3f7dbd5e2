"""The index in the metadata store: it follows the journals, and the log can rebuild it."""

from __future__ import annotations

import contextlib
import hashlib
import re
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import msgspec

from frazil.errors import (
    Closed,
    Conflict,
    CorruptionError,
    FrazilError,
    InvalidRequest,
    Unavailable,
)
from frazil.log import CursorState
from frazil.metadata import (
    CountedStore,
    MemoryStore,
    MetadataStore,
    SqliteStore,
    Transaction,
    entries,
    move_aside,
)
from frazil.model import TopicSpec
from frazil.struct_types import learnt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from frazil.clock import Clock
    from frazil.config import Settings
    from frazil.fs import FileSystem
    from frazil.log import DataDirectory, Journal, TopicState
    from frazil.metadata import LeaseEpoch

SUBSCRIPTIONS: Final = "/persistent_storage/iceberg/subscriptions/"
PART_BYTES_MAX: Final = 250
# A digest has a character after the percent sign that no escaped character has there.
_DIGEST: Final = "%sha256-"
_ESCAPED: Final = re.compile(r"[/%\x00-\x1f\x7f]")


def cursor_path(subscription: str, topic: str) -> str:
    """Return the key for a subscription of a topic given as `/namespace/topic`."""
    parts = [subscription, *topic.removeprefix("/").split("/", 1)]
    return SUBSCRIPTIONS + "/".join(map(_part, parts))


def _part(text: str) -> str:
    escaped = _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
    if len(escaped.encode()) <= PART_BYTES_MAX:
        return escaped
    return _DIGEST + hashlib.sha256(text.encode()).hexdigest()


TOPICS: Final = "/topics/"
SCHEMAS: Final = "/schemas/"
SHARED_ID: Final = "/shared-metadata"
"""The key in the local store for the id of its shared store."""
PUTS_MAX: Final = 500
PUTS_BYTES_MAX: Final = 4 << 20
OPERATIONS_BESIDES: Final = 4
"""Operations of a transaction other than puts: the applied batch sequence, the lease, a reserve."""
_encode = msgspec.msgpack.encode
R = TypeVar("R")


class TopicRow(msgspec.Struct, array_like=True, frozen=True):
    """The row of a topic in the index; its schemas have separate rows."""

    spec: TopicSpec
    durable: int


class CursorRow(msgspec.Struct, array_like=True, frozen=True):
    """The index's copy of a subscription; the log may be newer."""

    name: str
    cursor: bytes
    lsn: int
    """The batch sequence of the last change that it has."""
    topic: int
    """The topic's id: a new topic may have the same name."""


@attrs.frozen
class Stores:
    """The metadata of an engine.

    `local` has the data of this machine (files, plans), `shared` the data that other machines may
    read (topics, schemas, cursors, objects, leases). Both are one store unless etcd has the shared
    one.
    """

    local: CountedStore
    shared: CountedStore
    warnings: list[str]
    lease_ttl_s: float | None = None
    """The duration of an owner's lease; None if no other machine can take over."""

    def facts(self) -> dict[str, dict[str, float]]:
        """Return the counts of each store, by its role."""
        both = {"local": self.local, "shared": self.shared}
        if self.shared is self.local:
            del both["shared"]
        names = ("operations", "failures", "seconds")
        return {name: {each: getattr(both[each], name) for each in both} for name in names}

    def close(self) -> None:
        """Close both stores."""
        self.shared.close()
        self.local.close()


def open_stores(
    settings: Settings, paths: DataDirectory, *, file_system: FileSystem, clock: Clock
) -> Stores:
    """Open the metadata; a damaged file is moved aside and starts empty.

    The journals then fill it again.
    """
    if settings.metadata.backend == "memory":
        memory = CountedStore(MemoryStore(clock=clock))
        return Stores(memory, memory, [])
    store, warnings = _open_file(paths, file_system, clock)
    local = CountedStore(store)
    if settings.metadata.backend == "sqlite":
        return Stores(local, local, warnings)
    try:
        return _open_shared(settings, local, warnings, clock)
    except BaseException:
        store.close()
        raise


def _open_shared(
    settings: Settings, local: CountedStore, warnings: list[str], clock: Clock
) -> Stores:
    try:
        from frazil.metadata.etcd import EtcdStore
    except ImportError as error:
        raise InvalidRequest(
            "metadata.backend etcd needs the extra: pip install 'frazil[etcd]'", missing=error.name
        ) from error
    etcd = settings.metadata.etcd
    shared = EtcdStore.open(etcd, clock=clock)
    try:
        warnings = [*warnings, *_recognise(local, shared, shared.id)]
    except BaseException:
        shared.close()
        raise
    return Stores(local, CountedStore(shared), warnings, lease_ttl_s=etcd.lease_ttl_s)


def _recognise(local: MetadataStore, shared: MetadataStore, store_id: str) -> list[str]:
    """Refuse metadata of another broker, bind an unbound store; return warnings.

    An empty store is filled from the log, and an empty directory takes over the store's contents.
    Only a directory and a store that both have data must belong together.
    """
    known = local.get(SHARED_ID)
    if known is not None and known.value.decode() == store_id:
        return []
    is_new = known is None and not local.revision()
    if not is_new and shared.list("/", limit=1):
        raise InvalidRequest(
            "the metadata in etcd are not of this data directory, set metadata.etcd.prefix",
            setting="metadata.etcd.prefix",
        )
    local.commit(Transaction(puts={SHARED_ID: store_id.encode()}))
    return [] if known is None else ["metadata in etcd was lost; the log fills it again"]


def _open_file(
    paths: DataDirectory, file_system: FileSystem, clock: Clock
) -> tuple[MetadataStore, list[str]]:
    try:
        return _open_sqlite(paths, file_system, clock), []
    except CorruptionError as error:
        target = f"{paths.quarantine}/meta.db.{clock.now_us()}"
        file_system.make_directory(paths.quarantine)
        file_system.sync_directory(paths.root)
        move_aside(paths.metadata, target, file_system=file_system)
        warning = f"metadata was damaged and is rebuilt from the log; kept as {target}: {error}"
        return _open_sqlite(paths, file_system, clock), [warning]


def _open_sqlite(paths: DataDirectory, file_system: FileSystem, clock: Clock) -> MetadataStore:
    return SqliteStore.open(paths.metadata, file_system=file_system, clock=clock)


def known_topics(
    store: MetadataStore,
) -> tuple[dict[int, tuple[TopicSpec, dict[int, bytes]]], dict[int, int]]:
    """Return the topics with their schemas, and the ends, from the index.

    They are used if the log's copy is damaged or older; unreadable rows are left out.
    """
    rows = {row.spec.id: row for row in _rows(store, TOPICS, TopicRow)}
    topics: dict[int, tuple[TopicSpec, dict[int, bytes]]]
    topics = {topic_id: (row.spec, {}) for topic_id, row in rows.items()}
    for entry in entries(store, SCHEMAS):
        topic_id, _, version = entry.key.removeprefix(SCHEMAS).partition("/")
        if int(topic_id, 16) in topics:
            topics[int(topic_id, 16)][1][int(version)] = entry.value
    return topics, {topic_id: row.durable for topic_id, row in rows.items()}


def _rows(store: MetadataStore, prefix: str, kind: type[R]) -> Iterator[R]:
    """Yield the rows of one kind, without those that cannot be read."""
    for entry in entries(store, prefix):
        with contextlib.suppress(msgspec.MsgspecError):
            yield msgspec.msgpack.decode(entry.value, type=learnt(kind))


def known_cursors(store: MetadataStore) -> dict[int, dict[str, CursorState]]:
    """Return the cursors by topic from the index; unreadable rows are left out.

    They replace cursors that were lost with a topic's definition and are not used otherwise.
    """
    cursors: dict[int, dict[str, CursorState]] = {}
    for row in _rows(store, SUBSCRIPTIONS, CursorRow):
        with contextlib.suppress(ValueError):
            cursors.setdefault(row.topic, {})[row.name] = CursorState.decode(row.cursor)
    return cursors


class Indexer:
    """Writes the journals' state to the metadata store. Callers hold the engine's lock.

    A store that fails is not used again: a local one until the next start, one over the network
    until it `answers`. Then the index is rebuilt. The log is the truth, and publishing does not
    depend on the index.
    """

    def __init__(
        self, store: MetadataStore, *, requires: Callable[[], LeaseEpoch | None] = lambda: None
    ) -> None:
        self._store = store
        self._requires = requires
        self._puts_max = min(PUTS_MAX, store.operations_max - OPERATIONS_BESIDES)
        self._puts_bytes_max = min(PUTS_BYTES_MAX, store.bytes_max)
        self._copies: dict[tuple[int, str], str] = {}
        """The keys of cursors that were copied, by topic id and name."""
        self._copied: dict[str, int] = {}
        """The id of the topic whose cursor each of these keys has now."""
        self.failed: FrazilError | None = None

    def answers(self) -> bool:
        """Return whether a store that failed works again, so that a rebuild makes sense.

        It needs no lock, so other threads need not wait for a store that is down.
        """
        if self.failed is None or isinstance(self.failed, Closed):
            return False
        try:
            self._store.revision()
        except (Unavailable, Closed) as error:
            self.failed = error
            return False
        return True

    def mend(self, journal: Journal, topics: Iterable[TopicState]) -> None:
        """Update the index after the store failed, while the journal is running.

        Cursors are left out: they may be ahead of the durable state. Copies that failed were not
        marked as copied, and are copied again.
        """
        self.failed = None
        self.rebuild(journal, topics, cursors=False)

    def rebuild(
        self, journal: Journal, topics: Iterable[TopicState], *, cursors: bool = True
    ) -> list[str]:
        """Make the whole index equal to the journal; return warnings.

        Rows that the log does not have are removed; missing rows are added.
        """
        if self.failed is not None:
            return []
        warnings: list[str] = []
        states = list(topics)
        wanted = _rows_of(states)
        copies = {
            self._cursor_key(topic, name): _cursor_row(topic.id, name, cursor)
            for topic in (states if cursors else ())
            for name, cursor in topic.cursors.items()
        }

        def write() -> None:
            if ahead := self._ahead(journal):
                warnings.append(ahead)
            self._replace((TOPICS, SCHEMAS), wanted)
            if cursors and journal.failed is None:
                # The cursors of a failed journal may not be durable.
                self._replace((SUBSCRIPTIONS,), copies)
            self._note_applied(journal)

        if not self._attempt(write):
            warnings.append(f"metadata cannot be written: {self.failed}")
        return warnings

    def _attempt(self, work: Callable[[], None]) -> bool:
        """Write unless the store failed before; return success. `failed` keeps the error."""
        if self.failed is None:
            try:
                work()
            except (Unavailable, Closed, Conflict) as error:
                self.failed = error
        return self.failed is None

    def _ahead(self, journal: Journal) -> str:
        applied = self._store.applied_lsn(journal.journal_id.hex())
        if applied is not None and applied > journal.state.lsn:
            return (
                f"metadata knows batch {applied} but the log ends at {journal.state.lsn}: the log "
                "was restored from an older copy or lost its end; heads were raised accordingly"
            )
        return ""

    def _note_applied(self, journal: Journal) -> None:
        # Only synced state may be stored: the index must never be ahead of the log.
        name, lsn = journal.journal_id.hex(), journal.synced_lsn
        if lsn > (self._store.applied_lsn(name) or 0):
            self._change(applied={name: lsn})

    def _replace(self, prefixes: Iterable[str], wanted: Mapping[str, bytes]) -> None:
        have = {
            entry.key: entry.value for prefix in prefixes for entry in entries(self._store, prefix)
        }
        self._put(dict(sorted(wanted.items() - have.items())))
        self._delete(sorted(have.keys() - wanted.keys()))

    def _put(self, puts: Mapping[str, bytes]) -> None:
        for some in self._portions(puts):
            self._change(puts=some)

    def _delete(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), self._puts_max):
            self._change(deletes=tuple(keys[start : start + self._puts_max]))

    def topic_changed(self, journal: Journal, topics: Iterable[TopicState] = ()) -> None:
        """Write changed topics, then the synced end of the log."""
        puts = _rows_of(topics)

        def write() -> None:
            self._put(puts)
            self._note_applied(journal)

        self._attempt(write)

    def cursors_changed(
        self,
        journal: Journal,
        copies: Mapping[tuple[int, str], CursorState],
        gone: Iterable[tuple[int, str]],
    ) -> bool:
        """Write changed cursors, remove those of dropped subscriptions; return False on failure."""
        topics = journal.state.topics
        puts: dict[str, bytes] = {}
        for (topic_id, name), cursor in copies.items():
            if topic_id in topics:
                key = self._cursor_key(topics[topic_id], name)
                puts[key] = _cursor_row(topic_id, name, cursor)
        keys = {self._copies.get(each): each for each in gone}
        # A newer topic of the same name may have a subscription of the same name.
        deletes = [key for key, each in keys.items() if key and self._copied.get(key) == each[0]]

        def write() -> None:
            self._put(puts)
            self._note_applied(journal)
            self._delete(deletes)
            for key in deletes:
                del self._copied[key]
            for each in keys.values():
                self._copies.pop(each, None)

        return self._attempt(write)

    def _change(
        self,
        *,
        puts: Mapping[str, bytes] | None = None,
        deletes: tuple[str, ...] = (),
        applied: Mapping[str, int] | None = None,
    ) -> None:
        """Commit under the lease, if one is needed."""
        requires = self._requires()
        self._store.commit(
            Transaction(puts=puts or {}, deletes=deletes, applied=applied or {}, requires=requires)
        )

    def _cursor_key(self, topic: TopicState, name: str) -> str:
        key = self._copies[topic.id, name] = cursor_path(name, topic.spec.name)
        self._copied[key] = topic.id
        return key

    def _portions(self, puts: Mapping[str, bytes]) -> Iterator[dict[str, bytes]]:
        """Split puts into groups of at most one transaction."""
        some: dict[str, bytes] = {}
        size = 0
        for key, value in puts.items():
            added = len(key.encode()) + len(value)
            if some and (len(some) >= self._puts_max or size + added > self._puts_bytes_max):
                yield some
                some, size = {}, 0
            some[key] = value
            size += added
        if some:
            yield some


def _rows_of(topics: Iterable[TopicState]) -> dict[str, bytes]:
    """Return the rows of topics and of their columns, by key."""
    rows: dict[str, bytes] = {}
    for topic in topics:
        rows[f"{TOPICS}{topic.id:08x}"] = _encode(TopicRow(spec=topic.spec, durable=topic.durable))
        for version, data in topic.schemas.items():
            rows[f"{SCHEMAS}{topic.id:08x}/{version}"] = data
    return rows


def _cursor_row(topic_id: int, name: str, cursor: CursorState) -> bytes:
    return _encode(CursorRow(name=name, cursor=cursor.encode(), lsn=cursor.lsn, topic=topic_id))
