"""Compare the metadata with the log, in a copy: neither file is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from frazil.clock import SystemClock
from frazil.engine.inspection import JournalFacts, LostRange
from frazil.engine.memory_copy import MemoryCopy
from frazil.errors import CorruptionError, FrazilError, InvalidRequest
from frazil.metadata import SqliteStore
from frazil.topic import SHARED_ID, known_topics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from frazil.fs import FileSystem
    from frazil.log import DataDirectory
    from frazil.metadata import MetadataStore
    from frazil.model import TopicSpec

__all__ = ["MetadataFacts", "MetadataState", "inspect_metadata"]

MetadataState = Literal["current", "older", "newer", "missing", "damaged", "foreign", "unreadable"]


@attrs.frozen
class MetadataFacts:
    """What the metadata looks like beside the log."""

    state: MetadataState
    detail: str
    topics: int = 0
    ends: dict[int, int] = attrs.Factory(dict)
    """The durable end of each topic that it remembers."""
    lost: tuple[LostRange, ...] = ()


def inspect_metadata(
    file_system: FileSystem, paths: DataDirectory, journals: list[JournalFacts]
) -> MetadataFacts:
    """Open a copy of the metadata and compare it with the journals."""
    try:
        if file_system.stat(paths.metadata) is None:
            return MetadataFacts("missing", "there is none")
        store = SqliteStore.open(
            paths.metadata, file_system=MemoryCopy(file_system), clock=SystemClock()
        )
    except CorruptionError as error:
        return MetadataFacts("damaged", str(error))
    except InvalidRequest as error:
        return MetadataFacts("foreign", str(error))
    except (FrazilError, OSError) as error:
        return MetadataFacts("unreadable", str(error))
    try:
        return _compare(store, journals)
    except FrazilError as error:
        return MetadataFacts("damaged", str(error))
    finally:
        store.close()


def _compare(store: MetadataStore, journals: list[JournalFacts]) -> MetadataFacts:
    if store.get(SHARED_ID) is not None:
        return MetadataFacts("current", "what other machines may read is in etcd, not looked at")
    known, ends = known_topics(store)
    count = len(known)
    lost = _lost(known, ends, journals)
    newer: list[str] = []
    older: list[str] = []
    for journal in journals:
        applied = store.applied_lsn(journal.journal_id) if journal.journal_id else None
        if applied is not None and applied > journal.lsn:
            newer.append(f"{journal.name}: it knows lsn {applied}, the log ends at {journal.lsn}")
        elif journal.lsn > (applied or 0):
            older.append(f"{journal.name}: it knows lsn {applied or 0}, the log {journal.lsn}")
    if newer or lost:
        text = "; ".join(newer) or "it knows records that the log does not have"
        return MetadataFacts("newer", f"newer than the log: {text}", count, ends, tuple(lost))
    if older:
        return MetadataFacts("older", f"older than the log: {'; '.join(older)}", count, ends)
    return MetadataFacts("current", f"in line with the log, {count} topics", count, ends)


def _lost(
    known: Mapping[int, tuple[TopicSpec, object]],
    ends: dict[int, int],
    journals: list[JournalFacts],
) -> list[LostRange]:
    """Return what the metadata knows to be durable and no journal has."""
    heads: dict[int, int] = {}
    for journal in journals:
        for topic_id, topic in journal.topics.items():
            heads[topic_id] = max(heads.get(topic_id, 0), int(topic["next"]))
    unread = any(journal.error for journal in journals)
    lost = []
    for topic_id, end in ends.items():
        head = heads.get(topic_id, 0)
        if end > head and not unread:
            name = known[topic_id][0].name
            lost.append(LostRange(topic_id, name, head, end, "the log ends before it"))
    return lost
