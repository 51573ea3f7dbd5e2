"""Which handler answers which call of the data port."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frazil.serve.danube.discovery import Discovery
from frazil.serve.danube.producers import Producers
from frazil.serve.danube.topics import Topics
from frazil.serve.grpc.coroutines import awaited
from frazil.serve.grpc.router import Unary

if TYPE_CHECKING:
    from frazil.engine.core import Engine
    from frazil.serve.grpc.router import Route

__all__ = ["data_routes"]


def data_routes(engine: Engine, *, url: str, producers_max: int) -> dict[str, Route]:
    """Return the routes of an engine; what is not among them is not served yet.

    `url` is where clients find this broker, with its scheme. Call it in the loop that serves.
    """
    topics = Topics(engine)
    producers = Producers(topics, producers_max=producers_max)
    discovery = Discovery(topics, producers, url=url)
    return {
        "/danube.ProducerService/CreateProducer": Unary(awaited(producers.create)),
        "/danube.ProducerService/SendMessage": Unary(producers.send),
        "/danube.Discovery/TopicLookup": Unary(discovery.look_up),
        "/danube.Discovery/TopicPartitions": Unary(discovery.partitions),
        "/danube.HealthCheck/HealthCheck": Unary(discovery.health),
        "/danube.StorageService/ListSegmentDescriptors": Unary(discovery.segments),
    }
