"""A broker's health after a failed journal, and its streams after a change of the roles."""

from __future__ import annotations

import asyncio
import errno
import http.client

import pytest

from frazil.clock import SystemClock
from frazil.errors import FrazilError
from frazil.serve.danube.proto import danube_pb2 as wire
from tests.integration.serve.rpc_world import ACCESS, serving, with_access
from tests.support.rpcs import Port
from tests.unit.serve.auth.world import token

pytestmark = pytest.mark.integration

TOPIC = "/default/t"
CREATE = "/danube.ProducerService/CreateProducer"
SUBSCRIBE = "/danube.ConsumerService/Subscribe"
RECEIVE = "/danube.ConsumerService/ReceiveMessages"


def page(broker, path):
    connection = http.client.HTTPConnection("127.0.0.1", broker.addresses.http.port, timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_a_failed_journal_fails_health(tmp_path):
    """A journal that lost a sync accepts nothing more, and health says so."""

    async def scene():
        async with serving(tmp_path) as world:
            broker = world.broker

            def use():
                topic = broker.engine.create_topic("alone")
                topic.append(b"kept")
                before = [page(broker, path) for path in ("/healthz", "/readyz")]
                topic.runtime.log.journal.fail(OSError(errno.EIO, "lost a sync"))
                with pytest.raises(FrazilError):
                    topic.append(b"refused")
                return before, [page(broker, path) for path in ("/healthz", "/readyz")]

            return await asyncio.to_thread(use)

    before, after = asyncio.run(scene())
    assert before == [(200, "ok\n")] * 2
    assert [status for status, _ in after] == [503, 503]
    assert all("log has failed" in text for _, text in after)


def test_streams_that_nobody_may_have_any_more_are_over_when_roles_are_read(tmp_path):
    """Not with the next look at them some seconds later: reading the roles ends them."""

    async def scene():
        access = tmp_path / "access.yaml"
        async with serving(tmp_path / "data", **with_access(tmp_path)) as world:
            channel = world.channels[Port.DATA]
            header = (("authorization", token("all", SystemClock())),)

            async def ask(path, request, reply):
                data = await channel.unary_unary(path)(request.SerializeToString(), metadata=header)
                return reply.FromString(data)

            producer = wire.ProducerRequest(
                topic_name=TOPIC, producer_name="p", dispatch_strategy=1
            )
            await ask(CREATE, producer, wire.ProducerResponse)
            consumer = wire.ConsumerRequest(
                topic_name=TOPIC, consumer_name="c", subscription="s", subscription_type=0
            )
            made = await ask(SUBSCRIBE, consumer, wire.ConsumerResponse)
            opening = wire.ReceiveRequest(consumer_id=made.consumer_id).SerializeToString()
            stream = channel.unary_stream(RECEIVE)(opening, metadata=header)
            await stream.initial_metadata()
            facts = world.broker.services.consumers.facts
            counts = [facts()["streams"]]
            access.write_text(ACCESS.replace("[produce, consume, admin]", "[produce]"))
            await world.broker.reload()
            counts.append(facts()["streams"])
            return counts, await stream.code()

    counts, code = asyncio.run(scene())
    assert counts == [1, 0]
    assert code.name in {"PERMISSION_DENIED", "UNAUTHENTICATED"}
