"""Registered objects: immutable pictures for readers, and the transactions that change them.

Every transaction compares the topic's state row with the catalog's picture, writes the row again
and requires the owner's lease. So a second registration, or one by a former owner, is refused.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from frazil.errors import Conflict, CorruptionError, FrazilError, Unavailable
from frazil.metadata import Compare, Entry, LeaseEpoch, Revision, Transaction, entries
from frazil.objects import descriptor as rows
from frazil.objects.descriptor import Descriptor, Garbage, Intent, ObjectsState, TopicObjects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from frazil.clock import Clock
    from frazil.metadata import MetadataStore

__all__ = ["LEASE_NAME", "ObjectCatalog"]

LEASE_NAME: Final = "broker"
SPARE_OPERATIONS: Final = 8
"""Operations of a transaction other than descriptors and garbage: compares, state, lease."""
MISPLACED: Final = "object does not begin at the end of the registered objects"


class _Known(NamedTuple):
    """A topic in the metadata, with the state row that transactions compare."""

    picture: TopicObjects
    row: Entry | None = None


class ObjectCatalog:
    """The registered objects of all topics. Any thread may read pictures without a lock.

    Changes are in the metadata when a call returns. All of them raise `Conflict` if another owner
    was faster or the lease is lost, and `Unavailable` or `Closed` if the metadata cannot be
    reached. After a change of unknown outcome the topic's rows are read again before its next use.
    """

    def __init__(
        self, store: MetadataStore, *, clock: Clock, epoch: Callable[[], int] = lambda: 0
    ) -> None:
        self._store = store
        self._clock = clock
        self._epoch = epoch
        self._lock = threading.RLock()
        self._known: dict[int, _Known] = {}
        self._stale: set[int] = set()
        """Topics whose rows must be read again: the outcome of a change is unknown."""

    # -- pictures ----------------------------------------------------------------------------------

    def load(self) -> None:
        """Load all topics from the metadata.

        Raises:
            CorruptionError: if a row is damaged.
        """
        found: dict[int, list[Entry]] = {}
        for entry in entries(self._store, rows.PREFIX):
            if entry.key.startswith(rows.GARBAGE_PREFIX):
                continue
            try:
                topic = int(entry.key.removeprefix(rows.PREFIX).partition("/")[0], 16)
            except ValueError as error:
                raise CorruptionError("metadata key is not an object's", key=entry.key) from error
            found.setdefault(topic, []).append(entry)
        with self._lock:
            self._known = {topic: _decode(topic, page) for topic, page in found.items()}
            self._stale = set()

    def topic(self, topic_id: int) -> TopicObjects:
        """Return a topic's current objects; empty if the topic never had any."""
        known = self._known.get(topic_id)
        return known.picture if known is not None else TopicObjects(topic_id)

    def __contains__(self, topic_id: int) -> bool:
        """Return whether a topic has rows."""
        return topic_id in self._known

    def topics(self) -> dict[int, TopicObjects]:
        """Return all topics that have, or had, objects."""
        return {topic: known.picture for topic, known in self._known.copy().items()}

    def fresh(self, topic_id: int) -> TopicObjects:
        """Return a topic's objects for a writer: read again if the last outcome was unknown."""
        with self._lock:
            if topic_id in self._stale:
                self._refresh(topic_id)
            return self.topic(topic_id)

    def keys_in_use(self) -> set[str]:
        """Return the keys of all objects that a descriptor or an intent refers to."""
        with self._lock:
            return {each.key for each in self._in_use()}

    def _in_use(self) -> list[Descriptor | Intent]:
        pictures = self.topics().values()
        descriptors = [each for picture in pictures for each in picture.descriptors]
        intents = [each.state.intent for each in pictures if each.state.intent is not None]
        return [*descriptors, *intents]

    @property
    def suspect(self) -> bool:
        """Whether the outcome of a change is unknown: then no garbage may be collected."""
        return bool(self._stale)

    @property
    def epoch(self) -> int:
        """Return the owner's current epoch."""
        return self._epoch()

    @property
    def epoch_last(self) -> int:
        """Return the highest epoch of any descriptor or intent."""
        return max((each.epoch for each in self._in_use()), default=0)

    # -- registration ------------------------------------------------------------------------------

    def begin(self, topic_id: int, intent: Intent) -> None:
        """Record an upload before its first byte is written; an older intent's key is garbage."""
        with self._lock:
            picture = self.fresh(topic_id)
            if picture.known and intent.first != picture.uploaded:
                raise Conflict(
                    MISPLACED,
                    topic_id=topic_id,
                    offset_first=intent.first,
                    uploaded=picture.uploaded,
                )
            self._change_intent(picture, intent, why="its upload was begun anew")

    def abandon(self, topic_id: int, *, why: str) -> None:
        """Abandon an upload that was begun; its object, if there is one, is garbage."""
        with self._lock:
            picture = self.fresh(topic_id)
            if picture.state.intent is not None:
                self._change_intent(picture, None, why=why)

    def _change_intent(self, picture: TopicObjects, intent: Intent | None, *, why: str) -> None:
        old = picture.state.intent
        gone = () if old is None else self._garbage([old.key], why)
        state = msgspec.structs.replace(picture.state, intent=intent)
        self._commit(picture.topic, state, garbage=gone)

    def register(self, topic_id: int, descriptor: Descriptor) -> None:
        """Make an object part of its topic: descriptor, `uploaded` and the end of the intent.

        Raises:
            Conflict: the object does not begin at the end of the registered objects.
        """
        with self._lock:
            picture = self.fresh(topic_id)
            start = picture.start if picture.known else descriptor.first
            uploaded = picture.uploaded if picture.known else descriptor.first
            if descriptor.first != uploaded or descriptor.end <= descriptor.first:
                raise Conflict(
                    MISPLACED,
                    topic_id=topic_id,
                    offset_first=descriptor.first,
                    offset_end=descriptor.end,
                    uploaded=uploaded,
                )
            state = ObjectsState(start, descriptor.end, self._clock.now_us())
            self._commit(topic_id, state, add=(descriptor,))

    # -- expiry and garbage ------------------------------------------------------------------------

    def expire(self, topic_id: int, below: int, *, why: str = "expired") -> list[Descriptor]:
        """Remove the objects that end at or below an offset and move `start` with them.

        Returns:
            The removed descriptors; their objects are garbage.
        """
        gone: list[Descriptor] = []
        page = max(1, (self._store.operations_max - SPARE_OPERATIONS) // 2)
        while True:
            with self._lock:
                picture = self.fresh(topic_id)
                part = tuple(picture.below(min(below, picture.uploaded))[:page])
                if not part:
                    return gone
                state = msgspec.structs.replace(picture.state, start=part[-1].end)
                garbage = self._garbage([found.key for found in part], why)
                self._commit(topic_id, state, expired=part, garbage=garbage)
            gone.extend(part)

    def drop(self, topic_id: int) -> None:
        """Remove all objects and rows of a deleted topic."""
        self.expire(topic_id, self.topic(topic_id).uploaded, why="its topic was deleted")
        with self._lock:
            if topic_id not in self._known:
                return
            self.abandon(topic_id, why="its topic was deleted")
            # If the outcome is unknown, the topic's next change reads the rows again.
            self._stale.add(topic_id)
            key = rows.state_key(topic_id)
            compare = _unchanged(key, self._known[topic_id].row)
            self._store.commit(
                Transaction(compares=(compare,), deletes=(key,), requires=self._lease())
            )
            self._stale.discard(topic_id)
            del self._known[topic_id]

    def garbage(self) -> Iterator[Garbage]:
        """Yield the metadata's condemned objects without a reference."""
        used = self.keys_in_use()
        for entry in entries(self._store, rows.GARBAGE_PREFIX):
            row = rows.decode_row(Garbage, entry.key, entry.value)
            if row.key not in used:
                yield row

    def condemn(self, keys: Sequence[str], why: str) -> None:
        """Record objects as garbage."""
        for page in self._pages(keys):
            puts = _garbage_rows(self._garbage(page, why))
            self._store.commit(Transaction(puts=puts, requires=self._lease()))

    def forget_garbage(self, keys: Sequence[str]) -> None:
        """Remove the rows of garbage that was deleted from the store."""
        for page in self._pages(keys):
            deletes = tuple(rows.garbage_key(key) for key in dict.fromkeys(page))
            self._store.commit(Transaction(deletes=deletes, requires=self._lease()))

    def _pages(self, keys: Sequence[str]) -> Iterator[Sequence[str]]:
        count = max(1, self._store.operations_max - SPARE_OPERATIONS)
        for start in range(0, len(keys), count):
            yield keys[start : start + count]

    def _garbage(self, keys: Iterable[str], why: str) -> tuple[Garbage, ...]:
        now_us = self._clock.now_us()
        return tuple(Garbage(key, now_us, why) for key in keys)

    # -- transactions ------------------------------------------------------------------------------

    def _lease(self) -> LeaseEpoch:
        return LeaseEpoch(LEASE_NAME, self._epoch())

    def _refresh(self, topic_id: int) -> None:
        page = list(entries(self._store, rows.topic_prefix(topic_id)))
        self._known[topic_id] = _decode(topic_id, page)
        self._stale.discard(topic_id)

    def _commit(
        self,
        topic: int,
        state: ObjectsState,
        *,
        add: Sequence[Descriptor] = (),
        expired: Sequence[Descriptor] = (),
        garbage: Sequence[Garbage] = (),
    ) -> None:
        """Change one topic in one transaction; the expired objects are its oldest."""
        key = rows.state_key(topic)
        known = self._known.get(topic, _Known(TopicObjects(topic)))
        added = {rows.descriptor_key(topic, each.first): rows.encode_row(each) for each in add}
        transaction = Transaction(
            compares=(_unchanged(key, known.row), *map(Compare.absent, added)),
            puts={key: rows.encode_row(state), **added, **_garbage_rows(garbage)},
            deletes=tuple(rows.descriptor_key(topic, found.first) for found in expired),
            requires=self._lease(),
        )
        try:
            revision = self._send(transaction)
        except (Unavailable, Conflict) as error:
            self._stale.add(topic)
            unknown = isinstance(error, Unavailable) and error.details.get("outcome") == "unknown"
            try:
                self._refresh(topic)
                landed = unknown and self._landed(transaction)
            except FrazilError:
                # The topic stays stale: no change uses its picture until its rows are read again.
                raise error from None
            if not landed:
                raise
        else:
            version = known.row.version + 1 if known.row is not None else 1
            row = Entry(key, transaction.puts[key], version, Revision(revision))
            picture = known.picture.changed(state, add=add, expired=len(expired))
            self._known[topic] = _Known(picture, row)

    def _send(self, transaction: Transaction) -> int:
        return self._store.commit(transaction)

    def _landed(self, transaction: Transaction) -> bool:
        """Return whether a transaction of unknown outcome was applied."""
        for key, value in transaction.puts.items():
            found = self._store.get(key)
            if found is None or found.value != value:
                return False
        return all(self._store.get(key) is None for key in transaction.deletes)


def _unchanged(key: str, row: Entry | None) -> Compare:
    return Compare.absent(key) if row is None else Compare.unchanged(row)


def _garbage_rows(garbage: Iterable[Garbage]) -> dict[str, bytes]:
    return {rows.garbage_key(found.key): rows.encode_row(found) for found in garbage}


def _decode(topic: int, page: Sequence[Entry]) -> _Known:
    """Return a topic from its rows."""
    state, row = ObjectsState(), None
    descriptors: list[Descriptor] = []
    for entry in page:
        if entry.key.endswith(f"/{rows.STATE}"):
            state, row = rows.decode_row(ObjectsState, entry.key, entry.value), entry
        else:
            descriptors.append(rows.decode_row(Descriptor, entry.key, entry.value))
    return _Known(TopicObjects(topic).changed(state, add=descriptors), row)
