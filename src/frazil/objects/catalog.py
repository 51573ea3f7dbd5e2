"""Registered objects: immutable pictures for readers, and the transactions that change them.

Every transaction compares the topic's state row with the catalog's picture, puts it anew and
requires the owner's lease: a second registration, or one by a former owner, is refused.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final

import attrs
import msgspec

from frazil.errors import Conflict, CorruptionError, FrazilError, Unavailable
from frazil.metadata import Compare, Entry, LeaseEpoch, Revision, Transaction, entries
from frazil.objects import descriptor as rows
from frazil.objects.descriptor import Descriptor, Garbage, Intent, ObjectsState, TopicObjects
from frazil.objects.format import parse_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from frazil.clock import Clock
    from frazil.metadata import MetadataStore

__all__ = ["LEASE_NAME", "ObjectCatalog"]

LEASE_NAME: Final = "broker"
SPARE_OPERATIONS: Final = 8
"""Operations of a transaction besides descriptors and garbage: compares, state, lease, intent."""


@attrs.frozen
class _Known:
    """A topic as the metadata has it, with the rows that changes are compared with."""

    picture: TopicObjects
    state_row: Entry | None = None
    intent: Intent | None = None
    intent_row: Entry | None = None


@attrs.frozen(kw_only=True)
class _Change:
    """One transaction on one topic; None leaves the state or the intent as it is."""

    topic: int
    state: ObjectsState | None = None
    add: Descriptor | None = None
    expired: tuple[Descriptor, ...] = ()
    """The oldest objects, to be removed."""
    intent: Intent | None = None
    intent_done: bool = False
    garbage: tuple[Garbage, ...] = ()


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
        self._claims: dict[int, threading.Lock] = {}

    # -- pictures ----------------------------------------------------------------------------------

    def load(self) -> None:
        """Take everything from the metadata.

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
                raise CorruptionError("metadata key of no object", key=entry.key) from error
            found.setdefault(topic, []).append(entry)
        with self._lock:
            self._known = {topic: _decode(topic, page) for topic, page in found.items()}
            self._stale = set()

    def topic(self, topic_id: int) -> TopicObjects:
        """Return a topic's objects as they are now; empty for a topic that never had any."""
        known = self._known.get(topic_id)
        return known.picture if known is not None else TopicObjects(topic_id)

    def __contains__(self, topic_id: int) -> bool:
        """Tell whether a topic has rows."""
        return topic_id in self._known

    def topics(self) -> dict[int, TopicObjects]:
        """Return all topics that have, or had, objects."""
        return {topic: known.picture for topic, known in self._known.copy().items()}

    def fresh(self, topic_id: int) -> TopicObjects:
        """Return a topic's objects for a writer: read again if the last outcome was unknown."""
        with self._lock:
            return self._fresh(topic_id).picture

    def intent(self, topic_id: int) -> Intent | None:
        """Return the upload that was begun and is not registered."""
        known = self._known.get(topic_id)
        return known.intent if known is not None else None

    def in_use(self, key: str) -> bool:
        """Tell whether a descriptor or an intent refers to an object."""
        parts = parse_key(key)
        if parts is None:
            return False
        with self._lock:
            # A restore may cut off the beginning of an object's range, never its end.
            found = self.topic(parts.topic).find(parts.end - 1)
            intent = self.intent(parts.topic)
        used = (each.key for each in (found, intent) if each is not None)
        return key in used

    @property
    def suspect(self) -> bool:
        """Whether the outcome of a change is unknown: nothing may be collected now."""
        return bool(self._stale)

    @property
    def epoch(self) -> int:
        """Return the owner's current epoch."""
        return self._epoch()

    @property
    def epoch_last(self) -> int:
        """Return the highest epoch of any descriptor or intent."""
        known = self._known.copy().values()
        epochs = [found.epoch for topic in known for found in topic.picture.descriptors]
        epochs += [topic.intent.epoch for topic in known if topic.intent is not None]
        return max(epochs, default=0)

    @contextlib.contextmanager
    def claim(self, topic_id: int) -> Iterator[bool]:
        """Claim a topic's uploads for one thread; False if another thread has them. Never waits."""
        claim = self._claims.setdefault(topic_id, threading.Lock())
        taken = claim.acquire(blocking=False)
        try:
            yield taken
        finally:
            if taken:
                claim.release()

    # -- registration ------------------------------------------------------------------------------

    def begin(self, topic_id: int, intent: Intent) -> None:
        """Record an upload before its first byte is written; an older intent's key is garbage."""
        with self._lock:
            known = self._fresh(topic_id)
            if known.picture.known and intent.first != known.picture.uploaded:
                raise Conflict(
                    "upload does not begin at the end of the registered objects",
                    topic_id=topic_id,
                    offset_first=intent.first,
                    uploaded=known.picture.uploaded,
                )
            old = known.intent
            gone = () if old is None else self._garbage([old.key], "its upload was begun anew")
            self._commit(_Change(topic=topic_id, intent=intent, garbage=gone))

    def abandon(self, topic_id: int, *, why: str) -> None:
        """Give up an upload that was begun; its object, if there is one, is garbage."""
        with self._lock:
            known = self._fresh(topic_id)
            if known.intent is None:
                return
            gone = self._garbage([known.intent.key], why)
            self._commit(_Change(topic=topic_id, intent_done=True, garbage=gone))

    def register(self, topic_id: int, descriptor: Descriptor) -> None:
        """Make an object part of its topic: descriptor, `uploaded` and the end of the intent.

        Raises:
            Conflict: it does not begin at the end of the registered objects.
        """
        with self._lock:
            known = self._fresh(topic_id)
            state = known.picture.state
            if not known.picture.known:
                state = ObjectsState(start=descriptor.first, uploaded=descriptor.first)
            if descriptor.first != state.uploaded or descriptor.end <= descriptor.first:
                raise Conflict(
                    "object does not begin at the end of the registered objects",
                    topic_id=topic_id,
                    offset_first=descriptor.first,
                    offset_end=descriptor.end,
                    uploaded=state.uploaded,
                )
            state = msgspec.structs.replace(
                state, uploaded=descriptor.end, changed_us=self._clock.now_us()
            )
            done = known.intent is not None
            self._commit(_Change(topic=topic_id, state=state, add=descriptor, intent_done=done))

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
                picture = self._fresh(topic_id).picture
                part = tuple(picture.below(min(below, picture.uploaded))[:page])
                if not part:
                    return gone
                state = msgspec.structs.replace(picture.state, start=part[-1].end)
                garbage = self._garbage([found.key for found in part], why)
                self._commit(_Change(topic=topic_id, state=state, expired=part, garbage=garbage))
            gone.extend(part)

    def drop(self, topic_id: int) -> None:
        """Remove all objects and rows of a deleted topic."""
        self.expire(topic_id, self.topic(topic_id).uploaded, why="its topic was deleted")
        with self._lock:
            if topic_id not in self._known:
                return
            self.abandon(topic_id, why="its topic was deleted")
            known = self._fresh(topic_id)
            # If the outcome stays unknown, the topic's next change reads the rows again.
            self._stale.add(topic_id)
            key = rows.state_key(topic_id)
            compare = _unchanged(key, known.state_row)
            self._store.commit(
                Transaction(compares=(compare,), deletes=(key,), requires=self._lease())
            )
            self._stale.discard(topic_id)
            del self._known[topic_id]

    def garbage(self) -> Iterator[Garbage]:
        """Yield the condemned objects without a reference, as the metadata has them."""
        for entry in entries(self._store, rows.GARBAGE_PREFIX):
            row = rows.decode_row(Garbage, entry.key, entry.value)
            if not self.in_use(row.key):
                yield row

    def condemn(self, keys: Sequence[str], why: str) -> None:
        """Record objects as garbage."""
        for page in self._pages(keys):
            puts = {rows.garbage_key(g.key): rows.encode_row(g) for g in self._garbage(page, why)}
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

    def _garbage(self, keys: Sequence[str], why: str) -> tuple[Garbage, ...]:
        now_us = self._clock.now_us()
        return tuple(Garbage(key, now_us, why) for key in keys)

    # -- transactions ------------------------------------------------------------------------------

    def _lease(self) -> LeaseEpoch:
        return LeaseEpoch(LEASE_NAME, self._epoch())

    def _fresh(self, topic_id: int) -> _Known:
        """Return a topic's rows, read again if a change's outcome was unknown."""
        if topic_id in self._stale:
            self._refresh(topic_id)
        return self._known.get(topic_id, _Known(TopicObjects(topic_id)))

    def _refresh(self, topic_id: int) -> None:
        page = list(entries(self._store, rows.topic_prefix(topic_id)))
        self._known[topic_id] = _decode(topic_id, page)
        self._stale.discard(topic_id)

    def _commit(self, change: _Change) -> None:
        transaction = self._transaction(change)
        try:
            revision = self._store.commit(transaction)
        except (Unavailable, Conflict) as error:
            self._stale.add(change.topic)
            unknown = isinstance(error, Unavailable) and error.details.get("outcome") == "unknown"
            try:
                self._refresh(change.topic)
                landed = unknown and self._landed(transaction)
            except FrazilError:
                # The topic stays stale: nothing builds on it until its rows could be read.
                raise error from None
            if not landed:
                raise
        else:
            self._known[change.topic] = self._changed(change, transaction, revision)

    def _landed(self, transaction: Transaction) -> bool:
        """Tell whether a transaction of unknown outcome was applied."""
        for key, value in transaction.puts.items():
            found = self._store.get(key)
            if found is None or found.value != value:
                return False
        return all(self._store.get(key) is None for key in transaction.deletes)

    def _transaction(self, change: _Change) -> Transaction:
        known, topic = self._fresh(change.topic), change.topic
        compares = [_unchanged(rows.state_key(topic), known.state_row)]
        puts = {rows.garbage_key(found.key): rows.encode_row(found) for found in change.garbage}
        deletes = [rows.descriptor_key(topic, found.first) for found in change.expired]
        if change.state is not None:
            puts[rows.state_key(topic)] = rows.encode_row(change.state)
        if change.intent is not None or change.intent_done:
            compares.append(_unchanged(rows.intent_key(topic), known.intent_row))
        if change.intent is not None:
            puts[rows.intent_key(topic)] = rows.encode_row(change.intent)
        elif change.intent_done:
            deletes.append(rows.intent_key(topic))
        if change.add is not None:
            key = rows.descriptor_key(topic, change.add.first)
            puts[key] = rows.encode_row(change.add)
            compares.append(Compare.absent(key))
        return Transaction(
            compares=tuple(compares), puts=puts, deletes=tuple(deletes), requires=self._lease()
        )

    def _changed(self, change: _Change, transaction: Transaction, revision: int) -> _Known:
        known, topic = self._fresh(change.topic), change.topic

        def row(key: str, before: Entry | None) -> Entry:
            version = before.version + 1 if before is not None else 1
            return Entry(key, transaction.puts[key], version, Revision(revision))

        if change.state is not None:
            add = () if change.add is None else (change.add,)
            picture = known.picture.changed(change.state, add=add, expired=len(change.expired))
            state_row = row(rows.state_key(topic), known.state_row)
            known = attrs.evolve(known, picture=picture, state_row=state_row)
        if change.intent is not None:
            intent_row = row(rows.intent_key(topic), known.intent_row)
            return attrs.evolve(known, intent=change.intent, intent_row=intent_row)
        if change.intent_done:
            return attrs.evolve(known, intent=None, intent_row=None)
        return known


def _unchanged(key: str, row: Entry | None) -> Compare:
    return Compare.absent(key) if row is None else Compare.unchanged(row)


def _decode(topic: int, page: Sequence[Entry]) -> _Known:
    """Return a topic as its rows have it."""
    state, state_row = ObjectsState(), None
    intent, intent_row = None, None
    descriptors: list[Descriptor] = []
    for entry in page:
        name = entry.key.rpartition("/")[2]
        if name == rows.STATE:
            state, state_row = rows.decode_row(ObjectsState, entry.key, entry.value), entry
        elif name == rows.INTENT:
            intent, intent_row = rows.decode_row(Intent, entry.key, entry.value), entry
        else:
            descriptors.append(rows.decode_row(Descriptor, entry.key, entry.value))
    picture = TopicObjects(topic).changed(state, add=descriptors)
    return _Known(picture, state_row, intent, intent_row)
