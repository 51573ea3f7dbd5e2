"""Lives of `frazil serve`: killed, stopped and started again, without room, with other settings.

What the protocol's page says of restarts (1.3), of refusals that clients retry (1.2), and of the
calls of each port, is seen from outside; what cannot be is listed in `ELSEWHERE`.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from pathlib import Path

import grpc
import pytest
from danube import DanubeClientBuilder, DispatchStrategy, SubType
from danube.consumer import ConsumerOptions
from danube.producer import ProducerOptions

from frazil.serve.danube.proto import danube_admin_pb2 as admin
from frazil.serve.danube.proto import danube_pb2 as wire
from frazil.serve.danube.proto import danube_schema_pb2 as schema
from tests.integration.serve import (
    test_protocol_admin,
    test_protocol_consuming,
    test_protocol_data,
    test_protocol_policies,
    test_protocol_schemas,
    test_protocol_topic_schemas,
)
from tests.integration.serve.protocol_world import (
    CALLS,
    LIMITS,
    SECONDS_MAX,
    Fails,
    Gives,
    Refusal,
    Row,
    Scene,
    ServeProcess,
    Wire,
    serving,
)
from tests.support.rpcs import RPCS, Port

pytestmark = pytest.mark.integration

CODES = grpc.StatusCode
TESTS = Path(__file__).resolve().parents[2]
TABLES = (
    *(test_protocol_data, test_protocol_consuming, test_protocol_schemas),
    *(test_protocol_topic_schemas, test_protocol_admin, test_protocol_policies),
)
ROWS = [row for table in TABLES for row in table.ROWS]
UNIMPLEMENTED = (CODES.UNIMPLEMENTED, "unknown method")
NEVER_REFUSED = {
    "SchemaRegistry.ListSubjects",
    "BrokerAdmin.ListBrokers",
    "BrokerAdmin.GetLeaderBroker",
    "BrokerAdmin.ListNamespaces",
    "Discovery.TopicPartitions",
}
"""Calls for whose requests the page names no refusal."""

ELSEWHERE = {
    "1.2 TopicLookup, served elsewhere: Redirect": (
        "there is one broker, which has every topic of its directory",
        "integration/serve/test_etcd_broker.py::test_second_broker_is_kept_out",
    ),
    "1.2 CreateProducer, owned elsewhere: UNAVAILABLE": (
        "as above",
        "integration/serve/test_etcd_broker.py::test_second_broker_is_kept_out",
    ),
    "1.2 SendMessage, the log has failed: UNAVAILABLE": (
        "needs a disk that fails",
        "integration/engine/test_failures.py::test_a_failed_sync_is_unknown_then_closed_then_recovered",
    ),
    "1.2 SendMessage, a write meets a full disk": (
        "needs a full disk",
        "integration/engine/test_failures.py::test_a_full_disk_refuses_and_goes_on_by_itself",
    ),
    "1.2 SendMessage, no memory left: RESOURCE_EXHAUSTED": (
        "needs load for a minute",
        "integration/engine/test_tiers_overload.py::test_overload_is_survived_within_the_budget",
    ),
    "1.2 HealthCheck, never an error while the disk does not answer": (
        "needs a disk that hangs",
        "integration/serve/test_slow_disk.py::test_health_checks_are_answered_while_the_disk_does_not_answer",
    ),
    "1.3 the exact order of a stop: CLOSE, streams, what is asked again": (
        "needs the moment between two steps",
        "integration/serve/test_stopping.py::test_clients_are_answered_until_they_have_asked_again",
    ),
    "1.5 an idle subscription of a topic without storage goes after 60 s": (
        "needs a minute",
        "unit/serve/danube/test_unreliable.py::test_an_idle_subscription_goes_and_a_used_one_stays",
    ),
    "1.8.6 SendMessage is answered before its record is delivered": (
        "two connections have no common order",
        "integration/delivery/test_deliveries.py::test_the_answer_to_a_publish_comes_before_its_delivery",
    ),
    "Messages, fields and numbers": (
        "no call shows them all",
        "unit/serve/danube/test_proto.py::test_messages_are_those_of_the_published_client",
    ),
}
"""What the page names and nobody outside can bring about: why, and the test that shows it."""


def after(*steps):
    return steps[-1]


# -- the tables ------------------------------------------------------------------------------------


def test_every_call_has_rows():
    """Each call of the protocol has a good request in the tables, and a refusal if it has one."""
    assert {row.rpc for row in ROWS} == set(CALLS)
    assert {row.rpc for row in ROWS if isinstance(row.answer, Gives)} == set(CALLS)
    refused = {row.rpc for row in ROWS if isinstance(row.answer, Fails)}
    assert refused == set(CALLS) - NEVER_REFUSED
    assert len({row.id for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("situation", ELSEWHERE)
def test_what_nobody_outside_can_see_has_its_test(situation):
    """Each of them is named with a test that exists."""
    _, named = ELSEWHERE[situation]
    file, _, name = named.partition("::")
    assert f"def {name or 'test_'}" in (TESTS / file).read_text("utf-8")


# -- other settings --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    """A broker that makes no topic for a producer."""
    settings = {"topics.auto_create": "false"}
    with serving(tmp_path_factory.mktemp("strict"), **settings) as process:
        connection = Wire(process)
        yield connection
        connection.close()


CREATE = "ProducerService.CreateProducer"
WITHOUT_MAKING = [
    Row(
        "1.2",
        CREATE,
        "topic absent, auto-create off",
        lambda s: s.producer(),
        Fails(CODES.NOT_FOUND, "Unable to find the topic: {s.topic}"),
    ),
    Row(
        "1.2",
        CREATE,
        "part absent, auto-create off",
        lambda s: s.producer(topic=s.topic + "-part-0"),
        Fails(CODES.NOT_FOUND, "Unable to find the topic: {s.topic}-part-0"),
    ),
    Row(
        "1.2",
        CREATE,
        "topic made by administration, auto-create off",
        lambda s: after(s.made(), s.producer()),
        test_protocol_data.MADE,
    ),
    Row(
        "1.2",
        CREATE,
        "part made by administration, auto-create off",
        lambda s: after(s.made(partitions=2), s.producer(topic=s.topic + "-part-1")),
        test_protocol_data.MADE,
    ),
]


@pytest.mark.parametrize("row", WITHOUT_MAKING, ids=lambda row: row.id)
def test_a_producer_makes_no_topic_where_it_may_not(strict, row):
    """The page's status, and topics of administrators are there for producers."""
    scene = Scene(strict)
    scene.check(row)
    found = strict.ask("Discovery.TopicPartitions", wire.TopicLookupRequest(topic=scene.topic))
    assert bool(found.partitions) is isinstance(row.answer, Gives)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    """A broker whose disk has never room enough, and that takes few calls a second."""
    settings = {"log.free_bytes_min": 1 << 50, "serve.requests_s_max": 50}
    with serving(tmp_path_factory.mktemp("narrow"), **settings) as process:
        connection = Wire(process)
        yield connection
        connection.close()


def test_overload_has_a_status_that_clients_retry(narrow):
    """No room for records and too many calls a second are RESOURCE_EXHAUSTED, with a reason."""
    scene = Scene(narrow)
    scene.made()
    scene.has_producer()
    with pytest.raises(Refusal) as caught:
        scene.sent(b"x")
    assert caught.value.code is CODES.RESOURCE_EXHAUSTED
    assert caught.value.text.startswith("the disk is nearly full, publishing is stopped")
    with pytest.raises(Refusal) as caught:
        for _ in range(10_000):
            scene.ask("Discovery.TopicLookup", wire.TopicLookupRequest(topic=scene.topic))
    assert (caught.value.code, caught.value.text) == (
        CODES.RESOURCE_EXHAUSTED,
        "Too many requests, retry later",
    )


# -- ports -----------------------------------------------------------------------------------------


def elsewhere():
    """Return every path with a port that does not serve it."""
    wrong = [(rpc.path, port) for rpc in RPCS.values() for port in Port if port not in rpc.ports]
    services = ("danube_admin.ClusterAdmin", "danube_admin.SecurityAdmin", "danube.Nothing")
    listed = {f"/{rpc.service}/Unlisted" for rpc in RPCS.values()}
    unknown = {*(f"/{service}/Anything" for service in services), *listed}
    return [*wrong, *((path, port) for path in sorted(unknown) for port in Port)]


def test_what_a_port_does_not_serve_is_unimplemented(strict):
    """Calls of the other port, ClusterAdmin, SecurityAdmin, and calls that the page does not list."""
    paths = elsewhere()
    found = {(path, port): strict.status(path, port=port) for path, port in paths}
    assert len(found) > len(RPCS)
    assert found == dict.fromkeys(paths, UNIMPLEMENTED)


# -- lives -----------------------------------------------------------------------------------------


class Clients:
    """A producer and a consumer of the published client, which know nothing of restarts."""

    def __init__(self):
        self.received = {}
        self.settled = set()

    async def start(self, url):
        client = await DanubeClientBuilder().service_url(url).build()
        self.producer = (
            client.new_producer()
            .with_topic("/default/real")
            .with_name("p")
            .with_dispatch_strategy(DispatchStrategy.RELIABLE)
            .with_options(ProducerOptions(max_retries=100, base_backoff_ms=50, max_backoff_ms=200))
            .build()
        )
        await self.producer.create()
        self.consumer = (
            client.new_consumer()
            .with_topic("/default/real")
            .with_consumer_name("c")
            .with_subscription("s")
            .with_subscription_type(SubType.EXCLUSIVE)
            .with_options(ConsumerOptions(max_retries=100, base_backoff_ms=50, max_backoff_ms=200))
            .build()
        )
        await self.consumer.subscribe()
        self.queue = await self.consumer.receive()

    async def take(self):
        """Take and ack the next record; what was acked in an earlier life does not come again."""
        while True:
            message = await asyncio.wait_for(self.queue.get(), SECONDS_MAX)
            offset = message.msg_id.topic_offset
            assert offset not in self.settled
            if offset not in self.received:
                self.received[offset] = bytes(message.payload)
                await self._ack(message)
                return
            # The client had it when the broker died; it came again before it could be acked.

    async def _ack(self, message):
        """Ack; the published client leaves it to its user to do so again."""
        while True:
            try:
                await self.consumer.ack(message)
            except grpc.aio.AioRpcError as error:
                assert error.code() is CODES.UNAVAILABLE
                await asyncio.sleep(0.05)
            else:
                return

    def outlive(self):
        """The broker ends now: what it answered counts in its next life."""
        self.settled |= set(self.received)

    async def close(self):
        await self.consumer.close()
        await self.producer.close()


def prepare(scene):
    """Have ids, a record that was acked and one that was not, and settings of each kind."""
    first, second = scene.delivered(b"acked", b"kept")
    assert (first.msg_id.topic_offset, second.msg_id.topic_offset) == (0, 1)
    scene.ask("ConsumerService.Ack", scene.ack(0))
    scene.configured("enforce")
    scene.ask("TopicAdmin.SetSubscriptionFailurePolicy", test_protocol_policies.policy(scene))
    scene.ask("TopicAdmin.SetSubscriptionDispatchConfig", test_protocol_policies.window(scene, 3))
    scene.ask("NamespaceAdmin.CreateNamespace", admin.NamespaceRequest(name=scene.name))


def check_again(scene, connection, offset):
    """Everything is as it was: the ids go on, what was acked does not come, what was not does."""
    scene.wire = connection
    send = scene.record(b"next", schema_id=scene.schema_id, schema_version=1)
    scene.ask("ProducerService.SendMessage", send)
    assert not scene.is_closed(test_protocol_data.PRODUCER, scene.producer_id)
    assert not scene.is_closed(test_protocol_data.CONSUMER, scene.consumer_id)
    stream = scene.stream()
    found = [next(stream).msg_id.topic_offset for _ in range(2)]
    assert found == [offset, offset + 1]
    scene.ask("ConsumerService.Ack", scene.ack(offset))
    producer, consumer = scene.producer_id, scene.consumer_id
    assert (scene.has_producer(), scene.has_consumer()) == (producer, consumer)
    with pytest.raises(Refusal, match="Unable to publish the message: "):
        scene.sent(b"without schema_id")
    policy = scene.ask(test_protocol_policies.GET_POLICY, test_protocol_policies.get_policy(scene))
    assert policy.failure_policy.ack_timeout_ms == test_protocol_policies.POLICY["ack_timeout_ms"]
    window = scene.ask(test_protocol_policies.GET_WINDOW, test_protocol_policies.get_window(scene))
    assert window.dispatch_config.max_unacked_messages == 3
    config = schema.GetTopicSchemaConfigRequest(topic_name=scene.topic)
    assert scene.ask("SchemaRegistry.GetTopicSchemaConfig", config).validation_policy == "enforce"
    assert scene.name in scene.ask("BrokerAdmin.ListNamespaces", admin.Empty()).namespaces


def test_ids_records_and_clients_outlive_the_process(tmp_path, caplog):
    """After SIGKILL, SIGTERM and SIGINT, on the same directory: known ids go on, nothing is doubled."""
    # The client says each time, many times a second, that the broker is away.
    caplog.set_level("CRITICAL", "danube")

    async def scene(lives):
        clients, raw = Clients(), None
        for life, number in enumerate((signal.SIGKILL, signal.SIGTERM, signal.SIGINT)):
            ports = lives[-1].ports if lives else (0, 0, 0)
            lives.append(await asyncio.to_thread(ServeProcess, tmp_path, ports=ports))
            connection = Wire(lives[-1])
            if raw is None:
                raw = Scene(connection)
                await asyncio.to_thread(prepare, raw)
                await clients.start(lives[-1].url)
            else:
                await asyncio.to_thread(check_again, raw, connection, life)
                await clients.take()
            await clients.producer.send(b"%d" % (2 * life))
            await clients.take()
            await clients.producer.send(b"%d" % (2 * life + 1))
            if life == 2:
                await clients.take()
                await clients.close()
            clients.outlive()
            code = await asyncio.to_thread(lives[-1].end, number)
            assert code == (-signal.SIGKILL if number is signal.SIGKILL else 0)
            connection.close()
        return clients.received

    lives = []
    try:
        received = asyncio.run(scene(lives))
    finally:
        for process in lives:
            process.close()
    assert received == {number: b"%d" % number for number in range(6)}


def test_a_stop_says_close_and_ends_streams_with_unavailable(tmp_path):
    """Clients that ask hear CLOSE before they hear nothing; streams and sends are UNAVAILABLE."""
    heard, sent = [], []

    def ask(scene):
        try:
            while True:
                heard.append(scene.is_closed(test_protocol_data.CONSUMER, scene.consumer_id))
        except Refusal as error:
            heard.append(error.code)

    def send(scene):
        try:
            while True:
                scene.sent(b"x")
        except Refusal as error:
            sent.append(error.code)

    with serving(tmp_path, **LIMITS) as process:
        connection = Wire(process)
        scene = Scene(connection)
        scene.has_consumer()
        scene.has_producer()
        stream = scene.stream()
        threads = [threading.Thread(target=each, args=(scene,)) for each in (ask, send)]
        for thread in threads:
            thread.start()
        next(stream)
        assert process.end() == 0
        for thread in threads:
            thread.join()
        with pytest.raises(grpc.RpcError):
            while True:
                next(stream)
        connection.close()
    assert stream.code() is CODES.UNAVAILABLE
    assert sent == [CODES.UNAVAILABLE]
    changes = [one for one, before in zip(heard, [None, *heard], strict=False) if one != before]
    assert changes == [False, True, CODES.UNAVAILABLE]
