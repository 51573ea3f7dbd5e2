"""Which objects are registered: immutable pictures for readers, and transactions that change them.

Every transaction compares the topic's state row with what this catalog knows, puts it anew and
requires the owner's lease: whatever is registered twice, or by an owner of the past, is refused.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from typing import TYPE_CHECKING, Final

import attrs
import msgspec

from frazil.errors import Conflict, CorruptionError, FrazilError, Unavailable
from frazil.metadata import Compare, Entry, LeaseEpoch, Revision, Transaction, entries
from frazil.objects import descriptor as rows
from frazil.objects.descriptor import (
    Descriptor,
    Garbage,
    Hint,
    Intent,
    ObjectsState,
    TopicObjects,
)
from frazil.objects.format import parse_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from frazil.clock import Clock
    from frazil.metadata import MetadataStore

__all__ = ["LEASE_NAME", "ObjectCatalog"]

LEASE_NAME: Final = "broker"
_SPARE_OPERATIONS: Final = 8
"""Of a transaction: compares, state row, lease, intent."""


@attrs.frozen
class _Known:
    """A topic as the metadata has it, with the rows that changes are compared with."""

    picture: TopicObjects
    state_row: Entry | None = None
    intent: Intent | None = None
    intent_row: Entry | None = None


@attrs.frozen(kw_only=True)
class _Change:
    """What a transaction does to one topic; None leaves the state or the intent as it is."""

    topic: int
    state: ObjectsState | None = None
    add: tuple[Descriptor, ...] = ()
    remove: tuple[Descriptor, ...] = ()
    intent: Intent | None = None
    intent_done: bool = False


class ObjectCatalog:
    """The registered objects of all topics. Pictures may be read from any thread without a lock.

    A call that changes something has changed the metadata on return. All of them raise `Conflict`
    if another owner was faster or the lease is lost, and `Unavailable` or `Closed` if the metadata
    cannot be reached. A change whose outcome is unknown is looked for before anything else is done.
    """

    def __init__(
        self, store: MetadataStore, *, clock: Clock, epoch: Callable[[], int] = lambda: 0
    ) -> None:
        self._store = store
        self._clock = clock
        self._epoch = epoch
        self._lock = threading.RLock()
        self._known: dict[int, _Known] = {}
        self._garbage: dict[str, Garbage] = {}
        self._names: Counter[str] = Counter()
        """How many descriptors name an object."""
        self._registering: set[str] = set()
        self._stale: set[int] = set()
        """Topics whose rows must be read again: the outcome of a change is unknown."""
        self._claims: dict[int, threading.Lock] = {}

    # -- pictures ----------------------------------------------------------------------------------

    def load(self) -> None:
        """Take everything from the metadata; call it once, before anything else.

        Raises:
            CorruptionError: if a row is damaged.
        """
        found: dict[int, list[Entry]] = {}
        garbage: dict[str, Garbage] = {}
        for entry in entries(self._store, rows.PREFIX):
            name = entry.key.removeprefix(rows.PREFIX).partition("/")[0]
            if entry.key.startswith(rows.GARBAGE_PREFIX):
                row = rows.decode_row(Garbage, entry.key, entry.value)
                garbage[row.key] = row
                continue
            try:
                topic = int(name, 16)
            except ValueError as error:
                raise CorruptionError("metadata key of no object", key=entry.key) from error
            found.setdefault(topic, []).append(entry)
        with self._lock:
            self._known = {topic: _decode(topic, page) for topic, page in found.items()}
            self._garbage = garbage
            self._stale = set()
            self._names = Counter(
                descriptor.key
                for known in self._known.values()
                for descriptor in known.picture.descriptors
            )

    def topic(self, topic_id: int) -> TopicObjects:
        """Return a topic's objects as they are now; empty for a topic that never had any."""
        known = self._known.get(topic_id)
        return known.picture if known is not None else TopicObjects(topic_id)

    def __contains__(self, topic_id: int) -> bool:
        """Tell whether there are rows of a topic."""
        return topic_id in self._known

    def topics(self) -> dict[int, TopicObjects]:
        """Return all topics that have objects, or had some."""
        return {topic: known.picture for topic, known in self._known.copy().items()}

    def fresh(self, topic_id: int) -> TopicObjects:
        """Return a topic's objects as the metadata has them.

        That is the picture, unless the outcome of a change was unknown: then the rows are read
        again, which raises if it cannot be done. Whoever writes must build on this.
        """
        with self._lock:
            return self._fresh(topic_id).picture

    def intent(self, topic_id: int) -> Intent | None:
        """Return the upload that was begun and not registered."""
        known = self._known.get(topic_id)
        return known.intent if known is not None else None

    def intents(self) -> dict[int, Intent]:
        """Return all uploads that were begun and not registered, by topic."""
        known = self._known.copy()
        return {topic: found.intent for topic, found in known.items() if found.intent is not None}

    def in_use(self, key: str) -> bool:
        """Tell whether a descriptor or an intent names an object, or one is about to."""
        with self._lock:
            return key in self._names or key in self._registering or self._is_begun(key)

    def _is_begun(self, key: str) -> bool:
        """Tell whether an intent names an object; a topic's key says whose that would be."""
        parts = parse_key(key)
        if parts is None:
            return any(intent.key == key for intent in self.intents().values())
        intent = self.intent(parts.topic)
        return intent is not None and intent.key == key

    @property
    def suspect(self) -> bool:
        """Whether the outcome of a change is unknown: nothing may be collected now."""
        return bool(self._stale)

    @property
    def epoch(self) -> int:
        """Return the epoch that the owner acts under now."""
        return self._epoch()

    @property
    def epoch_last(self) -> int:
        """Return the highest epoch that a descriptor or an intent has."""
        known = self._known.copy().values()
        epochs = [found.epoch for topic in known for found in topic.picture.descriptors]
        epochs += [topic.intent.epoch for topic in known if topic.intent is not None]
        return max(epochs, default=0)

    @contextlib.contextmanager
    def claim(self, topic_id: int) -> Iterator[bool]:
        """Have a topic's uploads to oneself; False if another thread has them. Never waits."""
        claim = self._claims.setdefault(topic_id, threading.Lock())
        taken = claim.acquire(blocking=False)
        try:
            yield taken
        finally:
            if taken:
                claim.release()

    # -- registration ------------------------------------------------------------------------------

    def begin(self, topic_id: int, intent: Intent) -> None:
        """Note an upload before its first byte is written. What an older intent named is garbage."""
        with self._lock:
            known = self._fresh(topic_id)
            if known.picture.known and intent.first != known.picture.uploaded:
                raise Conflict(
                    "upload does not begin where the registered objects end",
                    topic_id=topic_id,
                    offset_first=intent.first,
                    uploaded=known.picture.uploaded,
                )
            gone: list[str] = []
            old = known.intent
            if old is not None and old.key != intent.key:
                gone = [old.key]
            change = _Change(topic=topic_id, intent=intent)
            self._commit([change], gone, why="its upload was begun anew")

    def abandon(self, topic_id: int, *, why: str) -> None:
        """Give an upload up that was begun; what it may have written is garbage."""
        with self._lock:
            known = self._fresh(topic_id)
            if known.intent is None:
                return
            gone = [known.intent.key]
            self._commit([_Change(topic=topic_id, intent_done=True)], gone, why=why)

    def register(self, topic_id: int, descriptor: Descriptor, hint: Hint) -> None:
        """Make an object part of its topic: descriptor, `uploaded` and the end of the intent.

        Raises:
            Conflict: it does not begin where the registered objects end.
        """
        with self._lock:
            known = self._fresh(topic_id)
            change = self._registration(topic_id, descriptor, hint)
            if known.intent is not None:
                change = attrs.evolve(change, intent_done=True)
            self._commit([change])

    def register_shared(
        self, descriptors: Mapping[int, Descriptor], hints: Mapping[int, Hint]
    ) -> dict[int, FrazilError]:
        """Make one object part of many topics, in as few transactions as the store allows.

        Returns:
            Why topics could not be registered; the others are.
        """
        failures: dict[int, FrazilError] = {}
        keys = {descriptor.key for descriptor in descriptors.values()}
        with self._lock:
            self._registering |= keys
        try:
            for topics in self._chunks(descriptors):
                failures.update(self._register_some(topics, descriptors, hints))
        finally:
            with self._lock:
                self._registering -= keys
        return failures

    def _register_some(
        self,
        topics: Sequence[int],
        descriptors: Mapping[int, Descriptor],
        hints: Mapping[int, Hint],
    ) -> dict[int, FrazilError]:
        try:
            with self._lock:
                for topic in topics:
                    self._fresh(topic)
                changes = [
                    self._registration(topic, descriptors[topic], hints.get(topic, Hint()))
                    for topic in topics
                ]
                self._commit(changes)
        except Conflict as error:
            if len(topics) == 1:
                return {topics[0]: error}
            # One of them must not keep the others from being registered.
            failures: dict[int, FrazilError] = {}
            for topic in topics:
                failures.update(self._register_some([topic], descriptors, hints))
            return failures
        except FrazilError as error:
            return dict.fromkeys(topics, error)
        return {}

    def _registration(self, topic_id: int, descriptor: Descriptor, hint: Hint) -> _Change:
        picture = self.topic(topic_id)
        state = picture.state
        if not picture.known:
            state = ObjectsState(start=descriptor.first, uploaded=descriptor.first)
        if descriptor.first != state.uploaded or descriptor.end <= descriptor.first:
            raise Conflict(
                "object does not begin where the registered ones end",
                topic_id=topic_id,
                offset_first=descriptor.first,
                offset_end=descriptor.end,
                uploaded=state.uploaded,
            )
        state = msgspec.structs.replace(
            state, uploaded=descriptor.end, hint=hint, changed_us=self._clock.now_us()
        )
        return _Change(topic=topic_id, state=state, add=(descriptor,))

    def _chunks(self, descriptors: Mapping[int, Descriptor]) -> Iterator[list[int]]:
        """Split topics so that the registration of each part fits into one transaction."""
        count_max = max(1, (self._store.operations_max - _SPARE_OPERATIONS) // 4)
        bytes_max = self._store.bytes_max // 2
        part: list[int] = []
        size = 0
        for topic in sorted(descriptors):
            row_bytes = len(rows.encode_row(descriptors[topic])) + 256
            if part and (len(part) >= count_max or size + row_bytes > bytes_max):
                yield part
                part, size = [], 0
            part.append(topic)
            size += row_bytes
        if part:
            yield part

    # -- replacing and letting go ------------------------------------------------------------------

    @property
    def replace_max(self) -> int:
        """Return how many objects one call may replace."""
        return max(1, (self._store.operations_max - _SPARE_OPERATIONS) // 2)

    def replace(self, topic_id: int, old: Sequence[Descriptor], new: Descriptor) -> None:
        """Put one object in the place of neighbours, in one transaction.

        An object that no descriptor of any topic names any more becomes garbage.

        Raises:
            Conflict: the old ones are no longer what the topic has there.
        """
        with self._lock:
            picture = self._fresh(topic_id).picture
            found = tuple(picture.find(each.first) for each in old)
            if (
                not old
                or found != tuple(old)
                or (new.first, new.end) != (old[0].first, old[-1].end)
            ):
                raise Conflict(
                    "objects to replace have changed",
                    topic_id=topic_id,
                    offset_first=new.first,
                    offset_end=new.end,
                )
            # The state row is put as it is: whoever compares with it sees that there was a change.
            change = _Change(topic=topic_id, state=picture.state, add=(new,), remove=tuple(old))
            self._commit([change], self._unnamed(old, new=[new]), why="replaced by a topic's own")

    def expire(self, topic_id: int, below: int, *, why: str = "expired") -> list[Descriptor]:
        """Let the objects go that end at or below an offset; `start` moves with them.

        Returns:
            The descriptors that are gone.
        """
        gone: list[Descriptor] = []
        while True:
            with self._lock:
                picture = self._fresh(topic_id).picture
                part = picture.below(min(below, picture.uploaded))[: self.replace_max]
                if not part:
                    return gone
                state = msgspec.structs.replace(picture.state, start=part[-1].end)
                change = _Change(topic=topic_id, state=state, remove=tuple(part))
                self._commit([change], self._unnamed(part), why=why)
            gone.extend(part)

    def drop(self, topic_id: int) -> None:
        """Let all objects of a topic go that was deleted; its rows go, too."""
        self.expire(topic_id, self.topic(topic_id).uploaded, why="its topic was deleted")
        with self._lock:
            if topic_id not in self._known:
                return
            self.abandon(topic_id, why="its topic was deleted")
            known = self._fresh(topic_id)
            # Should it be unknown whether the row is gone: the topic's next change finds out.
            self._stale.add(topic_id)
            key = rows.state_key(topic_id)
            compare = _as_it_was(key, known.state_row)
            self._store.commit(
                Transaction(compares=(compare,), deletes=(key,), requires=self._lease())
            )
            self._stale.discard(topic_id)
            del self._known[topic_id]

    def _unnamed(self, old: Iterable[Descriptor], new: Iterable[Descriptor] = ()) -> list[str]:
        """Return the keys that nothing names once `old` are gone and `new` are there."""
        going = Counter(found.key for found in old)
        kept = {found.key for found in new} | self._registering
        return [key for key, n in going.items() if self._names[key] == n and key not in kept]

    # -- garbage -----------------------------------------------------------------------------------

    def garbage(self) -> list[Garbage]:
        """Return the objects that may be deleted: noted as garbage, and nothing names them."""
        with self._lock:
            begun = {intent.key for intent in self.intents().values()} | self._registering
            return [
                found
                for key, found in self._garbage.items()
                if key not in self._names and key not in begun
            ]

    def forget_garbage(self, keys: Sequence[str]) -> None:
        """Forget garbage that is gone from the store."""
        count = max(1, self._store.operations_max - _SPARE_OPERATIONS)
        for start in range(0, len(keys), count):
            part = keys[start : start + count]
            deletes = tuple(rows.garbage_key(key) for key in dict.fromkeys(part))
            with self._lock:
                self._store.commit(Transaction(deletes=deletes, requires=self._lease()))
                for key in part:
                    self._garbage.pop(key, None)

    # -- transactions ------------------------------------------------------------------------------

    def _lease(self) -> LeaseEpoch:
        return LeaseEpoch(LEASE_NAME, self._epoch())

    def _fresh(self, topic_id: int) -> _Known:
        """Return what is known of a topic, read again if a change's outcome was unknown."""
        if topic_id in self._stale:
            self._refresh(topic_id)
        return self._known.get(topic_id, _Known(TopicObjects(topic_id)))

    def _refresh(self, topic_id: int) -> None:
        page = list(entries(self._store, rows.topic_prefix(topic_id)))
        known = _decode(topic_id, page)
        self._swap(topic_id, known)
        self._stale.discard(topic_id)

    def _swap(self, topic_id: int, known: _Known) -> None:
        self._count(remove=self.topic(topic_id).descriptors, add=known.picture.descriptors)
        self._known[topic_id] = known

    def _count(self, *, remove: Iterable[Descriptor], add: Iterable[Descriptor]) -> None:
        for found in add:
            self._names[found.key] += 1
        for found in remove:
            self._names[found.key] -= 1
            if not self._names[found.key]:
                del self._names[found.key]

    def _commit(self, changes: Sequence[_Change], gone: Sequence[str] = (), why: str = "") -> None:
        now_us = self._clock.now_us()
        garbage = [Garbage(key, now_us, why) for key in gone]
        transaction = self._transaction(changes, garbage)
        topics = [change.topic for change in changes]
        try:
            revision = self._store.commit(transaction)
        except (Unavailable, Conflict) as error:
            self._stale.update(topics)
            unknown = isinstance(error, Unavailable) and error.details.get("outcome") == "unknown"
            try:
                for topic in topics:
                    self._refresh(topic)
                landed = unknown and self._landed(transaction)
            except FrazilError:
                # It stays stale: nothing builds on it until it could be read.
                raise error from None
            if not landed:
                raise
        else:
            for change in changes:
                self._known[change.topic] = self._changed(change, transaction, revision)
                self._count(remove=change.remove, add=change.add)
        self._garbage.update((found.key, found) for found in garbage)

    def _landed(self, transaction: Transaction) -> bool:
        """Tell whether a transaction of unknown outcome was applied."""
        for key, value in transaction.puts.items():
            found = self._store.get(key)
            if found is None or found.value != value:
                return False
        return all(self._store.get(key) is None for key in transaction.deletes)

    def _transaction(self, changes: Sequence[_Change], garbage: Sequence[Garbage]) -> Transaction:
        compares: list[Compare] = []
        puts = {rows.garbage_key(found.key): rows.encode_row(found) for found in garbage}
        deletes: list[str] = []
        for change in changes:
            known = self._fresh(change.topic)
            topic = change.topic
            compares.append(_as_it_was(rows.state_key(topic), known.state_row))
            if change.state is not None:
                puts[rows.state_key(topic)] = rows.encode_row(change.state)
            if change.intent is not None or change.intent_done:
                compares.append(_as_it_was(rows.intent_key(topic), known.intent_row))
            if change.intent is not None:
                puts[rows.intent_key(topic)] = rows.encode_row(change.intent)
            elif change.intent_done:
                deletes.append(rows.intent_key(topic))
            removed = {found.first for found in change.remove}
            for found in change.add:
                key = rows.descriptor_key(topic, found.first)
                puts[key] = rows.encode_row(found)
                if found.first not in removed:
                    compares.append(Compare.absent(key))
            added = {found.first for found in change.add}
            deletes += [rows.descriptor_key(topic, first) for first in sorted(removed - added)]
        return Transaction(
            compares=tuple(compares), puts=puts, deletes=tuple(deletes), requires=self._lease()
        )

    def _changed(self, change: _Change, transaction: Transaction, revision: int) -> _Known:
        known = self._fresh(change.topic)
        topic = change.topic
        if change.state is not None:
            picture = known.picture.changed(change.state, add=change.add, remove=change.remove)
            row = _row_after(rows.state_key(topic), known.state_row, transaction, revision)
            known = attrs.evolve(known, picture=picture, state_row=row)
        if change.intent is not None:
            row = _row_after(rows.intent_key(topic), known.intent_row, transaction, revision)
            return attrs.evolve(known, intent=change.intent, intent_row=row)
        if change.intent_done:
            return attrs.evolve(known, intent=None, intent_row=None)
        return known


def _as_it_was(key: str, row: Entry | None) -> Compare:
    return Compare.absent(key) if row is None else Compare.unchanged(row)


def _row_after(key: str, before: Entry | None, transaction: Transaction, revision: int) -> Entry:
    version = before.version + 1 if before is not None else 1
    return Entry(key, transaction.puts[key], version, Revision(revision))


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
