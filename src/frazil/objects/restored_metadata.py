"""Metadata at a restore: what servers have kept of it, and what is registered anew.

Where servers keep the metadata they may have outlived the broker's machine. What they have is newer
than any backup: which objects are registered, and how far subscriptions have come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from frazil.errors import Conflict
from frazil.log import CursorState
from frazil.metadata import LEASE, Transaction, entries
from frazil.objects import descriptor as rows
from frazil.objects.backup import Backup, TopicCopy
from frazil.objects.catalog import ObjectCatalog
from frazil.objects.descriptor import ObjectsState
from frazil.struct_types import learnt
from frazil.topic import SUBSCRIPTIONS, CursorRow, open_stores

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from frazil.clock import Clock
    from frazil.config import Settings
    from frazil.fs import FileSystem
    from frazil.log import DataDirectory
    from frazil.metadata import MetadataStore
    from frazil.objects.chain import Chain
    from frazil.objects.restored_state import RestorePlan, TopicPlan

__all__ = [
    "Kept",
    "kept_by_servers",
    "newer_cursors",
    "objects_state",
    "register_objects",
    "with_kept",
]

SPARE_OPERATIONS = 8


class Kept(NamedTuple):
    """What servers have of a broker whose machine is gone."""

    topics: tuple[TopicCopy, ...]
    cursors: tuple[CursorRow, ...]


def kept_by_servers(settings: Settings, clock: Clock) -> Kept | None:
    """Return what the servers of the settings have; None if there are none, or nothing is there.

    Raises:
        Conflict: a broker still owns the data.
    """
    if settings.metadata.backend != "etcd":
        return None
    from frazil.metadata.etcd import EtcdStore

    store = EtcdStore.open(settings.metadata.etcd, clock=clock)
    try:
        held = store.held(LEASE)
        if held is not None:
            raise Conflict(
                "a broker owns these data, stop it first; one that died is forgotten by itself "
                "after metadata.etcd.lease_ttl_s",
                holder=held.holder,
            )
        catalog = ObjectCatalog(store, clock=clock)
        catalog.load()
        topics = tuple(
            TopicCopy(topic, picture.state, picture.descriptors)
            for topic, picture in sorted(catalog.topics().items())
        )
        found = [_cursor(entry.value) for entry in entries(store, SUBSCRIPTIONS)]
        cursors = tuple(row for row in found if row is not None)
    finally:
        store.close()
    return Kept(topics, cursors) if topics or cursors else None


def _cursor(value: bytes) -> CursorRow | None:
    try:
        return msgspec.msgpack.decode(value, type=learnt(CursorRow))
    except msgspec.MsgspecError:
        return None


def with_kept(broker: bytes, backup: Backup | None, kept: Kept | None) -> Backup | None:
    """Return a backup whose registered objects are those that servers know."""
    if kept is None or not kept.topics:
        return backup
    epochs = [each.epoch for copy in kept.topics for each in copy.descriptors]
    if backup is None:
        return Backup(
            broker=broker,
            epoch=max(epochs, default=0),
            seq=0,
            created_us=0,
            lanes=(),
            topics=kept.topics,
        )
    return msgspec.structs.replace(backup, topics=kept.topics)


def newer_cursors(plan: RestorePlan, kept: Kept) -> None:
    """Give subscriptions the places that servers have, where those are newer than the backup's."""
    for row in kept.cursors:
        state = plan.journal_of(row.topic).state
        topic = state.topics.get(row.topic)
        if topic is None or topic.spec.deleted_us:
            continue
        known = topic.cursors.get(row.name)
        if known is not None and row.lsn <= known.lsn:
            continue
        try:
            cursor = CursorState.decode(row.cursor)
        except (msgspec.MsgspecError, ValueError):
            continue
        cursor.lsn = row.lsn
        state.lsn = max(state.lsn, row.lsn)
        topic.cursors[row.name] = cursor


def register_objects(
    settings: Settings,
    work: DataDirectory,
    topics: Sequence[TopicPlan],
    *,
    file_system: FileSystem,
    clock: Clock,
) -> None:
    """Register the objects of topics; all other metadata is made from the journals at the opening."""
    stores = open_stores(settings, work, file_system=file_system, clock=clock)
    try:
        for topic in topics:
            if not topic.chain.descriptors:
                # Whatever servers know of its objects stays: reading says what is missing.
                continue
            wanted = _rows(topic, clock.now_us())
            prefix = rows.topic_prefix(topic.spec.id)
            have = {entry.key: entry.value for entry in entries(stores.shared, prefix)}
            puts = {key: value for key, value in wanted.items() if have.get(key) != value}
            _commit(stores.shared, puts, [key for key in have if key not in wanted])
    finally:
        stores.close()


def objects_state(chain: Chain, now_us: int) -> ObjectsState:
    """Return the watermarks of a topic whose objects these are."""
    return ObjectsState(start=chain.start, uploaded=chain.end, changed_us=now_us)


def _rows(topic: TopicPlan, now_us: int) -> dict[str, bytes]:
    topic_id, chain = topic.spec.id, topic.chain
    state = objects_state(chain, now_us)
    found = {
        rows.descriptor_key(topic_id, each.first): rows.encode_row(each)
        for each in chain.descriptors
    }
    return {**found, rows.state_key(topic_id): rows.encode_row(state)}


def _commit(store: MetadataStore, puts: Mapping[str, bytes], deletes: Sequence[str]) -> None:
    some: dict[str, bytes] = {}
    gone: list[str] = []
    size = 0

    def commit() -> None:
        if some or gone:
            store.commit(Transaction(puts=dict(some), deletes=tuple(gone)))

    for key, value in [*((key, None) for key in deletes), *puts.items()]:
        added = len(key) + len(value or b"")
        full = len(some) + len(gone) + SPARE_OPERATIONS > store.operations_max
        if full or size + added > store.bytes_max // 2:
            commit()
            some, gone, size = {}, [], 0
        if value is None:
            gone.append(key)
        else:
            some[key] = value
        size += added
    commit()
