"""The services of a broker on one engine, and which of their handlers answers which call."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from frazil.serve.danube.admin import Acts, Admin
from frazil.serve.danube.consumer_ids import ConsumerIds
from frazil.serve.danube.consumers import Consumers
from frazil.serve.danube.discovery import Discovery
from frazil.serve.danube.producers import Producers
from frazil.serve.danube.registry_service import Schemas
from frazil.serve.danube.topics import Topics
from frazil.serve.danube.unreliable import Unreliable
from frazil.serve.grpc.router import Stream, Unary, awaited
from frazil.subscribe import Deliveries, SubscriptionSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from frazil.engine import Engine
    from frazil.serve.grpc.router import Route

__all__ = ["Services"]


class Services:
    """The services of the protocol and their routes. Create and use it in the serving loop.

    The constructor reads clients, schemas and subscriptions from the log and blocks: call it before
    the broker serves.

    Args:
        engine: the open engine; the caller closes it.
        addresses: lookups return `advertised_url`; the admin calls also list `admin_url` and
            `http_url`.
    """

    def __init__(self, engine: Engine, *, addresses: Mapping[str, str]) -> None:
        url = addresses["advertised_url"]
        self._engine = engine
        self.addresses = addresses
        # Of the journal, so that it is the same one after a restart.
        self.broker_id = str(int.from_bytes(engine.log.journal.journal_id[:8], "big"))
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
            schemas=self.schemas,
            unreliable=self.unreliable,
        )
        self.consumers = Consumers(
            self.deliveries,
            self.topics,
            self.unreliable,
            self.consumer_ids,
            url=url,
        )
        self.discovery = Discovery(
            self.topics,
            self.producers,
            url=url,
            consumers=self.consumers,
            objects=engine.objects.catalog.topic,
        )

    def data_routes(self) -> dict[str, Route]:
        """Return the routes of the data port; no other call is served."""
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
            **self.schemas.routes(self.acts),
        }

    def admin_routes(self) -> dict[str, Route]:
        """Return the routes of the admin port."""
        return {**Admin(self, self._engine).routes(), **self.schemas.routes(self.acts)}

    # -- the end ---------------------------------------------------------------------------------

    def begin_close(self) -> None:
        """Answer health checks with CLOSE and end the streams; acks are still accepted."""
        self.discovery.is_closing = True
        self.consumers.close()

    async def close(self) -> None:
        """Finish the running work; call it when no call is open any more."""
        await self.deliveries.close()
        self.unreliable.close()
        await self.schemas.close()

    def facts(self) -> dict[str, Any]:
        """Return the counters of producers and subscriptions."""
        clients = self.consumers.facts()
        return {
            **self.deliveries.facts(),
            **clients,
            "consumers": clients["streams"],
            "producers": self.producers.stats()["producers"],
        }
