"""Consumer ids: derived from topic, subscription and name, and stored for a restart.

After a restart of the broker clients call receive with their id and nothing else. So the consumer
of an id is stored (`StateTag.CLIENT`) before the client gets the id, and read once at the start. An
id is removed with its subscription, with its topic, or when newer ids need its space.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from typing import TYPE_CHECKING, Final

import msgspec

from frazil.errors import Conflict, FrazilError, NotFound
from frazil.model import topic_uid
from frazil.struct_types import learnt
from frazil.topic import StateTag

if TYPE_CHECKING:
    from frazil.engine import Engine

__all__ = ["ConsumerFacts", "ConsumerIds", "consumer_id"]

_ID_BITS: Final = 53
"""Ids are positive in every client's language, and exact in those that have only doubles."""
_KEY: Final = "consumer/"
_OVERHEAD_BYTES: Final = 64


class ConsumerFacts(msgspec.Struct, frozen=True, array_like=True):
    """The identity of a consumer. The stored form has the fields in this order; new ones come last.

    `uid` distinguishes the topic from another one of the same name. `kind` is the type that the
    consumer requested; the type of an existing reliable subscription takes precedence.
    """

    uid: str
    topic: str
    subscription: str
    name: str
    kind: int = 0
    filters: tuple[str, ...] = ()

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """Return the input of the id's hash."""
        return (self.uid, self.topic, self.subscription, self.name)

    @property
    def size_bytes(self) -> int:
        """Return about how much it takes, in memory and in each checkpoint."""
        return _OVERHEAD_BYTES + sum(map(len, self.identity)) + sum(map(len, self.filters))


def consumer_id(facts: ConsumerFacts) -> int:
    """Return the id of a consumer: the same one at all times, never 0."""
    # Lengths go in front, so that no two identities give the same bytes.
    parts = [part.encode("utf-8", "surrogatepass") for part in facts.identity]
    data = b"".join(b"%d:%b" % (len(part), part) for part in parts)
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big") % ((1 << _ID_BITS) - 1) + 1


class ConsumerIds:
    """The assigned ids. All methods belong to the event loop's thread.

    The constructor reads the stored ids and blocks: call it before the broker serves.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.size_bytes = 0
        """About how much all of them take."""
        self._facts: dict[int, ConsumerFacts] = {}
        self._members: dict[tuple[str, str], dict[int, None]] = {}
        """The ids of a topic's subscription, by topic and subscription, oldest first."""
        for key, value in engine.states.items(StateTag.CLIENT).items():
            if key.startswith(_KEY):
                facts = msgspec.msgpack.decode(value, type=learnt(ConsumerFacts))
                self._remember(int(key.removeprefix(_KEY), 16), facts)
        for identity in [each for each, facts in self._facts.items() if self._is_stale(facts)]:
            self.forget(identity)

    def __len__(self) -> int:
        return len(self._facts)

    def get(self, identity: int) -> ConsumerFacts | None:
        """Return the consumer of an id, None if there is none."""
        return self._facts.get(identity)

    def members(self, topic: str, subscription: str) -> list[int]:
        """Return the ids of a subscription's consumers, oldest first."""
        return list(self._members.get((topic, subscription), ()))

    def oldest(self) -> list[int]:
        """Return all ids, those first that were given first."""
        return list(self._facts)

    def subscriptions(self) -> list[tuple[str, str]]:
        """Return each topic and subscription that has a consumer."""
        return list(self._members)

    def find(self, facts: ConsumerFacts) -> int:
        """Return the id that a consumer has or would get.

        Raises:
            Conflict: another consumer has this id.
        """
        identity = consumer_id(facts)
        known = self._facts.get(identity)
        if known is not None and known.identity != facts.identity:
            raise Conflict("another consumer has its id, choose another name")
        return identity

    async def put(self, facts: ConsumerFacts) -> int:
        """Assign a consumer its id; durable on return. An earlier identity of the id is replaced.

        Raises:
            FrazilError: if it cannot be stored; then nothing has changed.
        """
        identity = self.find(facts)
        before = self._facts.get(identity)
        if before == facts:
            return identity
        # Added before the write: other calls that count, or look for a free id, must see it.
        self._remember(identity, facts)
        stored = asyncio.get_running_loop().create_future()
        try:
            value = msgspec.msgpack.encode(facts)
            self._engine.states.submit(StateTag.CLIENT, _key(identity), value, stored)
            await stored
        except FrazilError:
            if before is not None:
                self._remember(identity, before)
            else:
                self._drop(identity)
            raise
        return identity

    def forget(self, identity: int) -> None:
        """Remove an id; durable soon."""
        if identity not in self._facts:
            return
        self._drop(identity)
        # A crash before this write brings the id back; the restart then finds that it is stale.
        with contextlib.suppress(FrazilError):
            self._engine.states.submit(StateTag.CLIENT, _key(identity), None)

    def _is_stale(self, facts: ConsumerFacts) -> bool:
        """Return whether a consumer's topic was deleted, or another topic has its name."""
        try:
            spec = self._engine.topic_runtime(facts.topic).state.spec
        except NotFound:
            return True
        except FrazilError:
            return False
        return topic_uid(spec) != facts.uid

    def _remember(self, identity: int, facts: ConsumerFacts) -> None:
        known = self._facts.get(identity)
        self.size_bytes += facts.size_bytes - (0 if known is None else known.size_bytes)
        self._facts[identity] = facts
        self._members.setdefault((facts.topic, facts.subscription), {})[identity] = None

    def _drop(self, identity: int) -> None:
        facts = self._facts.pop(identity, None)
        if facts is None:
            return
        self.size_bytes -= facts.size_bytes
        key = (facts.topic, facts.subscription)
        members = self._members[key]
        members.pop(identity, None)
        if not members:
            del self._members[key]


def _key(identity: int) -> str:
    return f"{_KEY}{identity:014x}"
