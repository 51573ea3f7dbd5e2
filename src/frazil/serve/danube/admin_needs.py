"""The parts of a broker that its administration acts on, and what it looks up in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from frazil.engine import Engine
from frazil.model import topic_uid
from frazil.serve.danube.admin_acts import Acts
from frazil.serve.danube.consumers import Consumers
from frazil.serve.danube.names import checked_topic
from frazil.serve.danube.registry_service import Schemas
from frazil.serve.danube.statuses import Refused, topic_missing
from frazil.serve.danube.topics import Topics
from frazil.serve.danube.unreliable import Unreliable
from frazil.subscribe import Deliveries, SubscriptionSettings

if TYPE_CHECKING:
    from frazil.engine import Topic

__all__ = ["AdminNeeds", "uid_of"]


def uid_of(topic: Topic) -> str:
    """Return the identity of a topic, which the parts of one share."""
    return topic_uid(topic.runtime.state.spec)


@attrs.frozen(kw_only=True)
class AdminNeeds:
    """What the admin services are given. All methods belong to the event loop's thread.

    `settings` are loaded, and those of `deliveries`.
    """

    engine: Engine
    topics: Topics
    settings: SubscriptionSettings
    deliveries: Deliveries
    unreliable: Unreliable
    consumers: Consumers
    schemas: Schemas
    acts: Acts

    def named(self, name: str) -> list[Topic]:
        """Return the topic of a name, or all parts of a partitioned one.

        Raises:
            Refused: if the name is none, or there is no such topic.
        """
        found = [self.topics.find(part) for part in self.topics.parts(checked_topic(name))]
        there = [topic for topic in found if topic is not None]
        if not there:
            raise Refused(topic_missing(name))
        return there

    def subscriptions(self, topics: list[Topic]) -> list[str]:
        """Return the subscriptions of a topic, or of all of its parts, sorted."""
        found: set[str] = set()
        for topic in topics:
            found.update(self.engine.cursors.names(topic.name))
            found.update(self.unreliable.names(topic.name))
        return sorted(found)

    async def unsubscribe(self, topic: str, name: str) -> None:
        """End one topic's subscription, the streams and the ids of its consumers; durable."""
        if name in self.engine.cursors.names(topic):
            await self.deliveries.drop(topic, name)
        self.unreliable.drop(topic, name)
        self.consumers.forget_subscription(topic, name)

    def forget(self, topic: str) -> None:
        """End whatever publishes to and consumes a topic that was deleted."""
        self.topics.release(topic)
        self.deliveries.forget_topic(topic)
        self.consumers.forget_topic(topic)
