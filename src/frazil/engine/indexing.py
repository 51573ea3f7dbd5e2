"""Keep the metadata store in step with the journals: an index that the log can always rebuild."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from frazil.errors import Closed, Conflict, CorruptionError, FrazilError, Unavailable
from frazil.log.cursor_state import CursorState
from frazil.metadata import MemoryStore, SqliteStore, Transaction, entries, move_aside
from frazil.model import TopicSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from frazil.clock import Clock
    from frazil.config import Settings
    from frazil.engine.directory import DataDirectory
    from frazil.fs import FileSystem
    from frazil.log.journal import Journal
    from frazil.log.state import TopicState
    from frazil.metadata import MetadataStore

TOPICS: Final = "/topics/"
SCHEMAS: Final = "/schemas/"
SEGMENTS: Final = "/segments/"
CURSORS: Final = "/cursors/"
PUTS_MAX: Final = 500
PUTS_BYTES_MAX: Final = 4 << 20
_encode = msgspec.msgpack.encode


class TopicRow(msgspec.Struct, array_like=True, frozen=True):
    """What the index keeps of a topic, besides its schemas."""

    spec: TopicSpec
    durable: int


class CursorRow(msgspec.Struct, array_like=True, frozen=True):
    """What the index keeps of a subscription: a copy that lags behind the log."""

    name: str
    cursor: bytes
    lsn: int
    """The batch sequence of the last change that it has."""


def open_store(
    settings: Settings, paths: DataDirectory, *, file_system: FileSystem, clock: Clock
) -> tuple[MetadataStore, list[str]]:
    """Open the metadata store; a damaged one is moved aside and starts empty.

    Returns the store and warnings. The journals then fill it again.
    """
    if settings.metadata.backend == "memory":
        return MemoryStore(clock=clock), []
    check = settings.metadata.quick_check
    try:
        return _open_sqlite(paths, file_system, clock, check=check), []
    except CorruptionError as error:
        target = f"{paths.quarantine}/meta.db.{clock.now_us()}"
        file_system.make_directory(paths.quarantine)
        file_system.sync_directory(paths.root)
        move_aside(paths.metadata, target, file_system=file_system)
        warning = f"metadata was damaged and is rebuilt from the log; kept as {target}: {error}"
        return _open_sqlite(paths, file_system, clock, check=check), [warning]


def _open_sqlite(
    paths: DataDirectory, file_system: FileSystem, clock: Clock, *, check: bool
) -> MetadataStore:
    return SqliteStore.open(paths.metadata, file_system=file_system, clock=clock, quick_check=check)


def known_topics(
    store: MetadataStore,
) -> tuple[dict[int, tuple[TopicSpec, dict[int, bytes]]], dict[int, int]]:
    """Return the topics with their schemas, and the ends, that the index remembers.

    They help where the log's own copy is damaged or older; a row that cannot be read is left out.
    """
    topics: dict[int, tuple[TopicSpec, dict[int, bytes]]] = {}
    ends: dict[int, int] = {}
    for entry in entries(store, TOPICS):
        try:
            row = msgspec.msgpack.decode(entry.value, type=TopicRow)
        except msgspec.MsgspecError:
            continue
        topics[row.spec.id] = (row.spec, {})
        ends[row.spec.id] = row.durable
    for entry in entries(store, SCHEMAS):
        topic_id, _, version = entry.key.removeprefix(SCHEMAS).partition("/")
        if int(topic_id, 16) in topics:
            topics[int(topic_id, 16)][1][int(version)] = entry.value
    return topics, ends


def known_cursors(store: MetadataStore) -> dict[int, dict[str, CursorState]]:
    """Return the cursors by topic that the index remembers; unreadable rows are left out.

    They stand in for what is lost with a topic's definition and are not looked at otherwise.
    """
    cursors: dict[int, dict[str, CursorState]] = {}
    for entry in entries(store, CURSORS):
        topic_id = int(entry.key.removeprefix(CURSORS).partition("/")[0], 16)
        try:
            row = msgspec.msgpack.decode(entry.value, type=CursorRow)
            cursor = CursorState.decode(row.cursor)
        except (msgspec.MsgspecError, ValueError):
            continue
        cursors.setdefault(topic_id, {})[row.name] = cursor
    return cursors


class Indexer:
    """Writes what the journals hold into the metadata store. Callers hold the engine's lock.

    A store that fails is left alone until the next start: the log is the truth, and publishing
    does not depend on the index.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.failed: FrazilError | None = None

    def rebuild(self, journals: Iterable[Journal], topics: Iterable[TopicState]) -> list[str]:
        """Bring the whole index in line with the journals; return warnings.

        What the index has and the log does not is removed; what it lacks is added.
        """
        if self.failed is not None:
            return []
        journals = list(journals)
        warnings: list[str] = []
        wanted: dict[str, bytes] = {}
        cursors: dict[str, bytes] = {}
        for topic in topics:
            wanted.update(_topic_rows(topic))
            for name, cursor in topic.cursors.items():
                cursors[_cursor_key(topic.id, name)] = _cursor_row(name, cursor)
        for journal in journals:
            wanted.update(_segment_rows(journal))
        try:
            warnings += [warning for journal in journals if (warning := self._ahead(journal))]
            self._bring_in_line(wanted)
            if all(journal.failed is None for journal in journals):
                # What a failed journal says of its cursors may not be durable.
                self._replace((CURSORS,), cursors)
            applied = {journal.journal_id.hex(): journal.synced_lsn for journal in journals}
            generation = max(journal.active.generation for journal in journals)
            self._store.commit(Transaction(applied=self._growing(applied)))
            if generation > (self._store.generation() or 0):
                self._store.commit(Transaction(generation=generation))
        except (Unavailable, Closed, Conflict) as error:
            self.failed = error
            warnings.append(f"metadata cannot be written: {error}")
        return warnings

    def _growing(self, applied: Mapping[str, int]) -> dict[str, int]:
        return {
            journal: lsn
            for journal, lsn in applied.items()
            if lsn > (self._store.applied_lsn(journal) or 0)
        }

    def _ahead(self, journal: Journal) -> str:
        applied = self._store.applied_lsn(journal.journal_id.hex())
        if applied is not None and applied > journal.state.lsn:
            return (
                f"metadata knows batch {applied} but the log ends at {journal.state.lsn}: the log "
                "was restored from an older copy or lost its end; heads were raised accordingly"
            )
        return ""

    def _bring_in_line(self, wanted: dict[str, bytes]) -> None:
        self._replace((TOPICS, SCHEMAS, SEGMENTS), wanted)

    def _replace(self, prefixes: Iterable[str], wanted: Mapping[str, bytes]) -> None:
        have = {
            entry.key: entry.value for prefix in prefixes for entry in entries(self._store, prefix)
        }
        puts = {key: value for key, value in wanted.items() if have.get(key) != value}
        deletes = [key for key in have if key not in wanted]
        for some in _portions(puts):
            self._store.commit(Transaction(puts=some))
        for start in range(0, len(deletes), PUTS_MAX):
            self._store.commit(Transaction(deletes=tuple(deletes[start : start + PUTS_MAX])))

    def topic_changed(self, journal: Journal, topics: Iterable[TopicState]) -> None:
        """Note changed topics, with the batch sequence that changed them, in one transaction."""
        puts: dict[str, bytes] = {}
        for topic in topics:
            puts.update(_topic_rows(topic))
        self._commit(Transaction(puts=puts, applied=self._applied(journal)))

    def cursors_changed(
        self,
        journal: Journal,
        copies: Mapping[tuple[int, str], CursorState],
        gone: Iterable[tuple[int, str]],
    ) -> bool:
        """Note changed cursors and those of subscriptions that are gone; False if that failed."""
        puts = {
            _cursor_key(topic_id, name): _cursor_row(name, cursor)
            for (topic_id, name), cursor in copies.items()
        }
        deletes = [_cursor_key(topic_id, name) for topic_id, name in gone]
        for some in _portions(puts):
            self._commit(Transaction(puts=some, applied=self._applied(journal)))
        for start in range(0, len(deletes), PUTS_MAX):
            self._commit(Transaction(deletes=tuple(deletes[start : start + PUTS_MAX])))
        return self.failed is None

    def segments_changed(self, journal: Journal) -> None:
        """Note the journal's segments after rotation, sealing or freeing."""
        wanted = _segment_rows(journal)
        prefix = _segment_prefix(journal)
        try:
            have = {entry.key: entry.value for entry in entries(self._store, prefix)}
        except (Unavailable, Closed) as error:
            self.failed = error
            return
        puts = {key: value for key, value in wanted.items() if have.get(key) != value}
        deletes = tuple(key for key in have if key not in wanted)
        for start in range(0, max(len(puts), len(deletes), 1), PUTS_MAX):
            some = dict(list(puts.items())[start : start + PUTS_MAX])
            gone = deletes[start : start + PUTS_MAX]
            self._commit(Transaction(puts=some, deletes=gone, applied=self._applied(journal)))
        generation = journal.active.generation
        if self.failed is None and generation > (self._store.generation() or 0):
            self._commit(Transaction(generation=generation))

    def _applied(self, journal: Journal) -> dict[str, int]:
        key = journal.journal_id.hex()
        # Only what is synced may be remembered: an index ahead of the log would be a lie.
        return self._growing({key: journal.synced_lsn}) if self.failed is None else {}

    def _commit(self, transaction: Transaction) -> None:
        if self.failed is not None:
            return
        try:
            self._store.commit(transaction)
        except (Unavailable, Closed) as error:
            self.failed = error

    def close(self) -> None:
        """Close the store."""
        self._store.close()


def _topic_rows(topic: TopicState) -> dict[str, bytes]:
    rows = {f"{TOPICS}{topic.id:08x}": _encode(TopicRow(spec=topic.spec, durable=topic.durable))}
    for version, data in topic.schemas.items():
        rows[f"{SCHEMAS}{topic.id:08x}/{version}"] = data
    return rows


def _cursor_key(topic_id: int, name: str) -> str:
    # A name may be any text, a key may not.
    return f"{CURSORS}{topic_id:08x}/{hashlib.sha256(name.encode()).hexdigest()}"


def _cursor_row(name: str, cursor: CursorState) -> bytes:
    return _encode(CursorRow(name=name, cursor=cursor.encode(), lsn=cursor.lsn))


def _portions(puts: Mapping[str, bytes]) -> Iterator[dict[str, bytes]]:
    """Part puts into what one transaction may take."""
    some: dict[str, bytes] = {}
    size = 0
    for key, value in puts.items():
        if some and (len(some) >= PUTS_MAX or size + len(value) > PUTS_BYTES_MAX):
            yield some
            some, size = {}, 0
        some[key] = value
        size += len(value)
    if some:
        yield some


def _segment_prefix(journal: Journal) -> str:
    return f"{SEGMENTS}{journal.journal_id.hex()}/"


def _segment_rows(journal: Journal) -> dict[str, bytes]:
    rows: dict[str, bytes] = {}
    for segment in journal.segments:
        if segment is journal.active:
            continue
        value: dict[str, Any] = {
            "generation": segment.generation,
            "body_end": segment.body_end,
            "lsn_last": segment.lsn_last,
        }
        rows[f"{_segment_prefix(journal)}{segment.id:016x}"] = _encode(value)
    return rows
