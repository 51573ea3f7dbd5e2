"""All subscriptions of an engine that are at work, and what is done to them as a whole."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from frazil.errors import Closed, FrazilError, InvalidRequest, NotFound
from frazil.model import topic_uid
from frazil.subscribe.cursors import CursorWriter
from frazil.subscribe.dead_letters import DeadLetterPublisher
from frazil.subscribe.dispatch import Dispatch
from frazil.subscribe.feed import FeedCache, TopicFeed
from frazil.subscribe.lag import Lags
from frazil.subscribe.policy import Limits, SubscriptionType
from frazil.subscribe.subscription import Counts, Subscription
from frazil.topic import start_offset

if TYPE_CHECKING:
    from collections.abc import Callable

    from frazil.log import CursorState
    from frazil.subscribe.settings import Stored, SubscriptionSettings
    from frazil.topic import Instance, Start, TopicRuntime

__all__ = ["Deliveries"]

CACHE_BYTES: Final = 64 << 20
"""Decoded records of all topics that are kept for the next subscription, at most."""
CACHE_SHARE: Final = 32
"""And at most the memory budget divided by this."""
THREADS: Final = 4
"""Worker threads that read what is not in the machine's memory."""


class Deliveries:
    """The subscriptions of an engine. All methods belong to the thread of the loop it was made for.

    `settings` must be loaded. `broker` is how dead letters name where they come from.
    """

    def __init__(
        self,
        engine: Instance,
        settings: SubscriptionSettings,
        *,
        loop: asyncio.AbstractEventLoop,
        broker: str = "",
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._loop = loop
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="frazil-feed")
        budget = engine.settings.memory.budget_bytes
        self._cache = FeedCache(min(CACHE_BYTES, budget // CACHE_SHARE))
        engine.read_ahead_bytes = lambda: self._cache.size_bytes
        self._dead_letters = DeadLetterPublisher(engine, broker=broker, loop=loop)
        self._cursor_writer = CursorWriter(engine.cursors, engine.clock, loop)
        self._feeds: dict[int, TopicFeed] = {}
        self._open: dict[tuple[str, str], Subscription] = {}
        self._locks = WeakValueDictionary[tuple[str, str], asyncio.Lock]()
        self._is_closed = False
        self._past = Counts()
        """What those did that are gone."""

    @property
    def subscriptions(self) -> list[Subscription]:
        """Return those that are open."""
        return [each for each in self._open.values() if each.end_error is None]

    def facts(self) -> dict[str, Any]:
        """Return what is counted of all open subscriptions, for metrics; on the loop's thread."""
        some = self.subscriptions
        statuses = [each.status() for each in some]
        of_all = Lags(self._engine)
        lags = [
            of_all.records(each.feed.runtime, status.cursor)[0]
            for each, status in zip(some, statuses, strict=True)
        ]
        kinds = Counter(each.kind.name.lower() for each in some)
        return {
            **self._totals(),
            "types": {kind.name.lower(): kinds[kind.name.lower()] for kind in SubscriptionType},
            "consumers": sum(status.consumers for status in statuses),
            "unacked": sum(status.unacked for status in statuses),
            "unacked_bytes": sum(status.unacked_bytes for status in statuses),
            "lag_records": sum(lags),
            "paused": sum(status.paused is not None for status in statuses),
            "damaged": sum(each.damage is not None for each in some),
            "decoded": self._cache.decoded,
            "cache_bytes": self._cache.size_bytes,
        }

    def _totals(self) -> dict[str, int]:
        """Return the counters of all subscriptions, also of those that are gone."""
        counts = [*(each.counts for each in self.subscriptions), self._past]
        return {
            name: sum(getattr(each, name) for each in counts) for name in Counts.__struct_fields__
        }

    def find(self, topic: str, name: str) -> Subscription | None:
        """Return a subscription that is open already."""
        found = self._open.get((topic, name))
        if found is not None and found.end_error is not None:
            self._forget(topic, name)
            return None
        return found

    async def open(
        self, topic: str, name: str, *, kind: SubscriptionType | None, start: Start = "latest"
    ) -> Subscription:
        """Return a subscription; if it does not exist it is created, durably, at `start`.

        The type of one that exists stays; without a `kind` none is created.

        Raises:
            NotFound: if there is no such topic, or no such subscription and no `kind`.
            InvalidRequest: if the name is not allowed, the start is not among the records, or it
                would go by the keys of rows that have none.
        """
        async with self._changing(topic, name):
            found = self.find(topic, name)
            if found is not None:
                return found
            runtime = self._runtime(topic)
            stored = self._settings.get(topic_uid(runtime.state.spec), name)
            if kind is not None and name not in runtime.state.cursors:
                stored = await asyncio.to_thread(self._create, runtime, name, kind, start)
            return await self._opened(runtime, name, stored)

    async def existing(self, topic: str, name: str) -> Subscription | None:
        """Return a subscription that exists, None if there is none.

        Raises:
            NotFound: if there is no such topic.
        """
        found = self.find(topic, name)
        if found is None and name in self._runtime(topic).state.cursors:
            return await self.open(topic, name, kind=None)
        return found

    async def reset(self, topic: str, name: str, to: Start) -> int:
        """Put a subscription somewhere else, back or ahead; return the offset. Durable.

        Raises:
            NotFound: if there is no such topic or subscription.
            InvalidRequest: if the place is not among the topic's records.
        """
        async with self._changing(topic, name):
            runtime = self._runtime(topic)
            found = self.find(topic, name)
            if found is None:
                return await asyncio.to_thread(self._place, runtime, name, to)
            await self._rest(found)
            dispatch = None
            try:
                offset = await asyncio.to_thread(self._place, runtime, name, to)
                cursor = await asyncio.to_thread(self._load, runtime, name)
                stored = self._settings.get(topic_uid(runtime.state.spec), name)
                dispatch = self._dispatch(stored, cursor)
            finally:
                self._go_on(found, dispatch)
            return offset

    async def drop(self, topic: str, name: str) -> None:
        """End a subscription, its consumers and what is stored of it; durable on return.

        Raises:
            NotFound: if there is no such topic or subscription.
        """
        async with self._changing(topic, name):
            runtime = self._runtime(topic)
            found = self.find(topic, name)
            if found is not None:
                await self._rest(found)
            try:
                await asyncio.to_thread(self._engine.cursors.drop, runtime.name, name)
            except BaseException:
                if found is not None:
                    self._go_on(found)
                raise
            if found is not None:
                found.end(NotFound("subscription was removed", topic=topic, subscription=name))
                self._forget(topic, name)
            uid = topic_uid(runtime.state.spec)
            # Parts have one setting for all of them: it goes with the last.
            if not self.is_used(uid, name):
                await asyncio.to_thread(self._settings.delete, uid, name)

    def is_used(self, uid: str, name: str) -> bool:
        """Return whether a topic, or a part of one, has a subscription of this name."""
        return any(
            name in runtime.state.cursors and topic_uid(runtime.state.spec) == uid
            for runtime in self._engine.runtimes
        )

    def configure(self, topic: str, name: str) -> None:
        """Let an open subscription take its settings as they are now."""
        found = self.find(topic, name)
        if found is not None:
            stored = self._settings.get(topic_uid(found.feed.runtime.state.spec), name)
            limits = Limits(max_unacked_messages=stored.max_unacked_messages)
            found.configure(stored.policy, limits)

    def forget_topic(self, topic: str) -> None:
        """End the subscriptions of a topic that was deleted."""
        gone = NotFound("topic was deleted", topic=topic)
        for key, found in list(self._open.items()):
            if key[0] == topic:
                found.end(gone)
                self._forget(*key)

    async def close(self) -> None:
        """Stop delivering, wait for acks under way, and end every stream."""
        self._is_closed = True
        some = self.subscriptions
        await asyncio.gather(*(each.rest() for each in some))
        for found in some:
            found.end(Closed("the broker is shutting down"))
        self._open.clear()
        for feed in list(self._feeds.values()):
            self._forget_feed(feed)
        self._executor.shutdown(wait=False)

    # -- inside ----------------------------------------------------------------------------------

    def _changing(self, topic: str, name: str) -> asyncio.Lock:
        """Return the lock under which a subscription is opened, moved or removed."""
        return self._locks.setdefault((topic, name), asyncio.Lock())

    async def _rest(self, found: Subscription) -> None:
        """Stop a subscription for a change.

        Raises:
            Closed: if all of them are being ended meanwhile.
        """
        await found.rest()
        if self._is_closed:
            raise Closed("the broker is shutting down")

    def _go_on(self, found: Subscription, dispatch: Dispatch | None = None) -> None:
        """Let a subscription deliver again; not while all of them are being ended."""
        if not self._is_closed:
            found.go_on(dispatch)

    def _runtime(self, topic: str) -> TopicRuntime:
        if self._is_closed:
            raise Closed("the broker is shutting down")
        return self._engine.topic_runtime(topic)

    def _create(
        self, runtime: TopicRuntime, name: str, kind: SubscriptionType, start: Start
    ) -> Stored:
        _check_keys(runtime, kind)
        cursors = self._engine.cursors
        offset = start_offset(runtime, start)
        cursors.check_new(runtime, name)
        uid = topic_uid(runtime.state.spec)
        before = self._settings.find(uid, name)
        stored = self._settings.get(uid, name)
        if stored.kind is None or not self.is_used(uid, name):
            # The settings first: a subscription without its type would come back as another one.
            stored = self._settings.change(uid, name, kind=kind)
        try:
            _put(runtime, start, offset, partial(cursors.create, runtime.name, name))
        except FrazilError as error:
            # With an unknown outcome the cursor may be durable, and must find its type again.
            if before is None and error.details.get("outcome") != "unknown":
                self._settings.delete(uid, name)
            raise
        return stored

    def _place(self, runtime: TopicRuntime, name: str, to: Start) -> int:
        reset = partial(self._engine.cursors.reset, runtime.name, name)
        return _put(runtime, to, start_offset(runtime, to), reset)

    def _load(self, runtime: TopicRuntime, name: str) -> CursorState:
        found: CursorState | None = self._engine.cursors.load(runtime.name).get(name)
        if found is None:
            raise NotFound("no such subscription", topic=runtime.name, subscription=name)
        return found

    async def _opened(self, runtime: TopicRuntime, name: str, stored: Stored) -> Subscription:
        cursor = await asyncio.to_thread(self._load, runtime, name)
        if self._is_closed:
            raise Closed("the broker is shutting down")
        found = Subscription(
            name,
            self._feed(runtime),
            self._cursor_writer,
            self._dead_letters,
            dispatch=self._dispatch(stored, cursor),
            policy=stored.policy,
            loop=self._loop,
        )
        found.feed.readers += 1
        self._open[runtime.name, name] = found
        return found

    def _dispatch(self, stored: Stored, cursor: CursorState) -> Dispatch:
        kind = SubscriptionType.EXCLUSIVE if stored.kind is None else stored.kind
        now_ms = int(self._loop.time() * 1000)
        wall_ms = self._engine.clock.now_us() // 1000 - now_ms
        # A clock that was set back must not hold a record for longer than its policy can have said.
        latest_ms = now_ms + stored.policy.max_redelivery_delay_ms
        dues_ms = {offset: min(due - wall_ms, latest_ms) for offset, due in cursor.dues.items()}
        return Dispatch(
            kind,
            policy=stored.policy,
            limits=Limits(max_unacked_messages=stored.max_unacked_messages),
            cursor=cursor,
            attempts=cursor.attempts,
            dues_ms=dues_ms,
            now_ms=now_ms,
        )

    def _feed(self, runtime: TopicRuntime) -> TopicFeed:
        found = self._feeds.get(runtime.state.id)
        if found is None or found.runtime is not runtime:
            found = TopicFeed(runtime, self._cache, loop=self._loop, executor=self._executor)
            self._feeds[runtime.state.id] = found
        return found

    def _forget_feed(self, feed: TopicFeed) -> None:
        feed.close()
        self._feeds.pop(feed.runtime.state.id, None)

    def _forget(self, topic: str, name: str) -> None:
        found = self._open.pop((topic, name), None)
        if found is None:
            # All of them were ended meanwhile.
            return
        found.feed.readers -= 1
        if not found.feed.readers:
            self._forget_feed(found.feed)
        for each in Counts.__struct_fields__:
            setattr(self._past, each, getattr(self._past, each) + getattr(found.counts, each))


def _put(runtime: TopicRuntime, start: Start, offset: int, put: Callable[[int], None]) -> int:
    """Put a subscription at the offset that a start means, or meant a moment ago; return where.

    A start by time is looked up in files and objects, so nothing is locked meanwhile, and the
    oldest records may go. Then the first record that is left is meant, unless the start is an
    offset.

    Raises:
        InvalidRequest: if the place is not among the topic's records.
    """
    while True:
        try:
            put(offset)
        except InvalidRequest:
            first = runtime.history.range(runtime.state.id).first
            if isinstance(start, int) or first <= offset:
                raise
            # It grows each time, so this ends.
            offset = first
        else:
            return offset


def _check_keys(runtime: TopicRuntime, kind: SubscriptionType) -> None:
    """Refuse to go by key where records have none.

    Raises:
        InvalidRequest: if the topic has rows without a primary key.
    """
    is_keyed = runtime.is_message or bool(runtime.state.spec.primary_key)
    if kind is SubscriptionType.KEY_SHARED and not is_keyed:
        raise InvalidRequest(
            "key_shared goes by key and the rows of this topic have no primary key; use shared",
            topic=runtime.name,
        )
