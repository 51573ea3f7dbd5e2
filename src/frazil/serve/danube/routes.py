"""The services of a broker on one engine, and which of their handlers answers which call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from frazil.serve.danube.discovery import Discovery
from frazil.serve.danube.producers import Producers
from frazil.serve.danube.topics import Topics
from frazil.serve.grpc.coroutines import awaited
from frazil.serve.grpc.router import Unary

if TYPE_CHECKING:
    from frazil.config import Settings
    from frazil.engine.core import Engine
    from frazil.serve.grpc.router import Route

__all__ = ["Services", "data_routes"]


class Services:
    """Everything that answers calls. Make it, and use it, in the loop that serves.

    Args:
        engine: the open engine; it stays the caller's.
        settings: whose limits count.
        url: where clients find this broker, with its scheme.
    """

    def __init__(self, engine: Engine, settings: Settings, *, url: str) -> None:
        self.topics = Topics(engine)
        self.producers = Producers(self.topics, producers_max=settings.serve.producers_max)
        self.discovery = Discovery(self.topics, self.producers, url=url)

    def data_routes(self) -> dict[str, Route]:
        """Return the routes of the data port; what is not among them is not served."""
        producers, discovery = self.producers, self.discovery
        return {
            "/danube.ProducerService/CreateProducer": Unary(awaited(producers.create)),
            "/danube.ProducerService/SendMessage": Unary(producers.send),
            "/danube.Discovery/TopicLookup": Unary(discovery.look_up),
            "/danube.Discovery/TopicPartitions": Unary(discovery.partitions),
            "/danube.HealthCheck/HealthCheck": Unary(discovery.health),
            "/danube.StorageService/ListSegmentDescriptors": Unary(discovery.segments),
        }

    def admin_routes(self) -> dict[str, Route]:
        """Return the routes of the admin port."""
        return {}

    def producer_topic(self, producer_id: int) -> str | None:  # noqa: ARG002 - of a protocol
        """Return the full name of the producer's topic, None if there is no such producer."""
        return None

    def consumer_topic(self, consumer_id: int) -> str | None:  # noqa: ARG002 - of a protocol
        """Return the full name of the consumer's topic, None if there is no such consumer."""
        return None

    def begin_close(self) -> None:
        """Tell clients that ask from now on to go."""
        self.discovery.is_closing = True

    async def close(self) -> None:
        """Finish what is under way; call it when no call is open any more."""

    def facts(self) -> dict[str, Any]:
        """Return what is counted of producers and subscriptions."""
        return {}


def data_routes(engine: Engine, *, url: str, producers_max: int) -> dict[str, Route]:
    """Return the routes of an engine's producers.

    `url` is where clients find this broker, with its scheme. Call it in the loop that serves.
    """
    settings = engine.settings
    serve = settings.serve.model_copy(update={"producers_max": producers_max})
    services = Services(engine, settings.model_copy(update={"serve": serve}), url=url)
    return services.data_routes()
