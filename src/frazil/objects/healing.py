"""Find objects again that the metadata has lost: the store and its backups know them.

A hold that stands above what is registered tells of it: the records below it may be nowhere else.
Nothing is uploaded before; what is found is registered as it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from frazil.metadata import Compare, LeaseEpoch, Transaction
from frazil.model import topic_uid
from frazil.objects import descriptor as rows
from frazil.objects.backup import newest_backup
from frazil.objects.catalog import LEASE_NAME
from frazil.objects.chain import chained
from frazil.objects.descriptor import ObjectsState
from frazil.objects.finding import find_objects
from frazil.objects.format import parse_key
from frazil.telemetry import event, warn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from frazil.metadata import MetadataStore
    from frazil.objects.chain import Chain
    from frazil.objects.descriptor import Descriptor
    from frazil.objects.store import ObjectStore
    from frazil.objects.topics import ObjectsTopic
    from frazil.topic import Instance

__all__ = ["heal"]


def heal(engine: Instance, store: ObjectStore, topics: Iterable[ObjectsTopic]) -> int:
    """Register the objects of topics that lack theirs; return of how many they were found.

    The catalog has to be loaded again afterwards. Topics whose objects do not reach up to their
    holds stay as they are.

    Raises:
        Unavailable: the store or the metadata does not answer.
    """
    broker = engine.log.journal.journal_id
    newest = newest_backup(store, broker)
    backup = None if newest is None else newest.backup
    found = find_objects(store, broker, backup)
    starts = {each.topic: each.state.start for each in (backup.topics if backup else ())}
    healed = 0
    for topic in topics:
        own = [each for each in found.candidates.get(topic.id, ()) if _is_of(each, topic)]
        chain = chained(own, start=starts.get(topic.id, 0))
        if not chain.descriptors or not topic.fits(chain.end):
            warn("objects_not_found", topic=topic.name, found_end=chain.end)
            continue
        lease = LeaseEpoch(LEASE_NAME, engine.ownership.epoch)
        _register(engine.stores.shared, topic.id, chain, lease, engine.clock.now_us())
        event("objects_found", topic=topic.name, objects=len(chain.descriptors), end=chain.end)
        healed += 1
    return healed


def _is_of(found: Descriptor, topic: ObjectsTopic) -> bool:
    """Tell whether an object is of this topic, and not of one that had its id before."""
    parts = parse_key(found.key)
    return parts is not None and (
        parts.kind == "shared" or parts.uid == topic_uid(topic.runtime.state.spec)
    )


def _register(
    store: MetadataStore, topic_id: int, chain: Chain, lease: LeaseEpoch, now_us: int
) -> None:
    """Put the rows of a topic's objects, the one that makes them count last."""
    some: dict[str, bytes] = {}
    size = 0
    for each in chain.descriptors:
        value = rows.encode_row(each)
        if len(some) + 8 > store.operations_max or size + len(value) > store.bytes_max // 2:
            store.commit(Transaction(puts=some, requires=lease))
            some, size = {}, 0
        some[rows.descriptor_key(topic_id, each.first)] = value
        size += len(value)
    key = rows.state_key(topic_id)
    state = ObjectsState(start=chain.start, uploaded=chain.end, changed_us=now_us)
    some[key] = rows.encode_row(state)
    store.commit(Transaction(puts=some, compares=(Compare.absent(key),), requires=lease))
