"""The services of a broker on one engine, and which of their handlers answers which call."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from frazil.serve.danube.admin import BrokerFacts, admin_routes
from frazil.serve.danube.admin_calls import Acts, AdminNeeds
from frazil.serve.danube.consumer_ids import ConsumerIds
from frazil.serve.danube.consumers import Consumers
from frazil.serve.danube.discovery import Discovery
from frazil.serve.danube.producers import Producers
from frazil.serve.danube.registry_service import Schemas, registry_routes
from frazil.serve.danube.topics import Topics
from frazil.serve.danube.unreliable import Unreliable
from frazil.serve.grpc.router import Stream, Unary, awaited
from frazil.subscribe import Deliveries, SubscriptionSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from frazil.config import Settings
    from frazil.engine import Engine
    from frazil.serve.grpc.router import Route

__all__ = ["Services", "data_routes"]


class Services:
    """Everything that answers calls. Make it, and use it, in the loop that serves.

    Making it reads what the log has about clients, schemas and subscriptions, and waits for that:
    do it before anything is served.

    Args:
        engine: the open engine; it stays the caller's.
        settings: whose limits count.
        addresses: `advertised_url` is what lookups answer, `admin_url` and `http_url` are told to
            administrators.
    """

    def __init__(self, engine: Engine, settings: Settings, *, addresses: Mapping[str, str]) -> None:
        serve = settings.serve
        url = addresses["advertised_url"]
        self._engine = engine
        self._addresses = addresses
        loop = asyncio.get_running_loop()
        self.acts = Acts()
        self.topics = Topics(engine)
        self.unreliable = Unreliable(loop)
        self.schemas = Schemas(engine, self.topics)
        self.subscription_settings = SubscriptionSettings(engine)
        self.subscription_settings.load()
        self.deliveries = Deliveries(engine, self.subscription_settings, loop=loop, broker=url)
        # The program that this broker runs in, and its HTTP port, consume and configure these.
        engine.subscribing.share(self.deliveries, self.subscription_settings, loop)
        self.consumer_ids = ConsumerIds(engine)
        self.producers = Producers(
            self.topics,
            producers_max=serve.producers_max,
            schemas=self.schemas,
            unreliable=self.unreliable,
        )
        self.consumers = Consumers(
            self.deliveries,
            self.topics,
            self.unreliable,
            self.consumer_ids,
            url=url,
            consumers_max=serve.consumers_max,
            subscriptions_max=serve.subscriptions_max,
        )
        self.discovery = Discovery(
            self.topics,
            self.producers,
            url=url,
            consumers=self.consumers,
            objects=engine.objects.catalog.topic,
        )

    def data_routes(self) -> dict[str, Route]:
        """Return the routes of the data port; what is not among them is not served."""
        producers, consumers, discovery = self.producers, self.consumers, self.discovery
        return {
            "/danube.ProducerService/CreateProducer": Unary(
                awaited(producers.create), is_fresh=True
            ),
            "/danube.ProducerService/SendMessage": Unary(
                producers.send, producers.send_all, is_fresh=True
            ),
            "/danube.ConsumerService/Subscribe": Unary(awaited(consumers.subscribe)),
            "/danube.ConsumerService/ReceiveMessages": Stream(consumers.receive),
            "/danube.ConsumerService/Ack": Unary(consumers.ack, consumers.ack_all),
            "/danube.ConsumerService/Nack": Unary(consumers.nack),
            "/danube.Discovery/TopicLookup": Unary(discovery.look_up),
            "/danube.Discovery/TopicPartitions": Unary(discovery.partitions),
            "/danube.HealthCheck/HealthCheck": Unary(discovery.health),
            "/danube.StorageService/ListSegmentDescriptors": Unary(discovery.segments),
            **registry_routes(self.schemas, self.acts),
        }

    def admin_routes(self) -> dict[str, Route]:
        """Return the routes of the admin port."""
        needs = AdminNeeds(
            engine=self._engine,
            topics=self.topics,
            settings=self.subscription_settings,
            deliveries=self.deliveries,
            unreliable=self.unreliable,
            consumers=self.consumers,
            schemas=self.schemas,
            acts=self.acts,
        )
        # Of the journal, so that it is the same one after a restart.
        identity = int.from_bytes(self._engine.log.journal.journal_id[:8], "big")
        facts = BrokerFacts(
            broker_id=str(identity),
            url=self._addresses["advertised_url"],
            admin_url=self._addresses["admin_url"],
            metrics_url=self._addresses["http_url"],
        )
        return {**admin_routes(needs, facts), **registry_routes(self.schemas, self.acts)}

    # -- what the guard asks ---------------------------------------------------------------------

    @property
    def attributes_max(self) -> int:
        """How many attributes a message may have."""
        return self.producers.attributes_max

    def producer_topic(self, producer_id: int) -> str | None:
        """Return the full name of the producer's topic, None if there is no such producer."""
        return self.producers.producer_topic(producer_id)

    def recognise(self, producer_id: int, *, topic: str, producer: str) -> str | None:
        """Return the topic of a producer that an earlier run of the broker made, if it is one."""
        return self.producers.recognise(producer_id, topic=topic, producer=producer)

    def consumer_topic(self, consumer_id: int) -> str | None:
        """Return the full name of the consumer's topic, None if there is no such consumer."""
        return self.consumers.consumer_topic(consumer_id)

    # -- the end ---------------------------------------------------------------------------------

    def begin_close(self) -> None:
        """Tell clients that ask from now on to go, and end the streams; acks are still taken."""
        self.discovery.is_closing = True
        self.consumers.close()

    async def close(self) -> None:
        """Finish what is under way; call it when no call is open any more."""
        await self.deliveries.close()
        self.unreliable.close()
        await self.schemas.close()

    def facts(self) -> dict[str, Any]:
        """Return what is counted of producers and subscriptions."""
        clients = self.consumers.facts()
        return {
            **self.deliveries.facts(),
            **clients,
            "consumers": clients["streams"],
            "producers": self.producers.stats()["producers"],
        }


def data_routes(engine: Engine, *, url: str, producers_max: int) -> dict[str, Route]:
    """Return the routes of an engine's data port alone.

    `url` is where clients find this broker, with its scheme. Call it in the loop that serves.
    """
    settings = engine.settings
    serve = settings.serve.model_copy(update={"producers_max": producers_max})
    settings = settings.model_copy(update={"serve": serve})
    return Services(engine, settings, addresses={"advertised_url": url}).data_routes()
