"""Every call that changes a broker leaves one event: who, from where, what, and what came of it."""

from __future__ import annotations

import asyncio
import logging

import grpc
import pytest

from frazil.clock import SystemClock
from frazil.serve.danube.proto import danube_admin_pb2 as admin
from frazil.serve.danube.proto import danube_schema_pb2 as schema
from tests.integration.serve.test_admin_subscriptions import USUAL
from tests.integration.serve.test_subscription_http import SECONDS_MAX, World
from tests.support.rpcs import RPCS
from tests.unit.serve.auth.world import ACCESS, token

pytestmark = pytest.mark.integration
TOPIC_ADMIN, NAMESPACE_ADMIN = "/danube_admin.TopicAdmin/", "/danube_admin.NamespaceAdmin/"
REGISTRY = "/danube_schema.SchemaRegistry/"
TOPIC, PARTS, SUBJECT = "/default/orders", "/default/parts", "orders"
OF_TOPIC = {"topic": TOPIC}
OF_SUBSCRIPTION = {"topic": TOPIC, "subscription": "s"}
ACTS = (
    (f"{NAMESPACE_ADMIN}CreateNamespace", admin.NamespaceRequest(name="n"), {"namespace": "n"}),
    (f"{NAMESPACE_ADMIN}DeleteNamespace", admin.NamespaceRequest(name="n"), {"namespace": "n"}),
    (
        f"{REGISTRY}RegisterSchema",
        schema.RegisterSchemaRequest(subject=SUBJECT, schema_type="string"),
        {"subject": SUBJECT},
    ),
    (
        f"{REGISTRY}SetCompatibilityMode",
        schema.SetCompatibilityModeRequest(subject=SUBJECT, compatibility_mode="none"),
        {"subject": SUBJECT},
    ),
    (f"{TOPIC_ADMIN}CreateTopic", admin.NewTopicRequest(name=TOPIC, dispatch_strategy=1), OF_TOPIC),
    (
        f"{TOPIC_ADMIN}CreatePartitionedTopic",
        admin.PartitionedTopicRequest(base_name=PARTS, partitions=2, dispatch_strategy=1),
        {"topic": PARTS},
    ),
    (
        f"{REGISTRY}ConfigureTopicSchema",
        schema.ConfigureTopicSchemaRequest(
            topic_name=TOPIC, schema_subject=SUBJECT, validation_policy="warn"
        ),
        OF_TOPIC,
    ),
    (
        f"{REGISTRY}UpdateTopicValidationPolicy",
        schema.UpdateTopicValidationPolicyRequest(topic_name=TOPIC, validation_policy="none"),
        OF_TOPIC,
    ),
    (
        f"{REGISTRY}DeleteSchemaVersion",
        schema.DeleteSchemaVersionRequest(subject=SUBJECT, version=1),
        {"subject": SUBJECT},
    ),
    (
        f"{TOPIC_ADMIN}SetSubscriptionFailurePolicy",
        admin.SetSubscriptionFailurePolicyRequest(**OF_SUBSCRIPTION, failure_policy=USUAL),
        OF_SUBSCRIPTION,
    ),
    (
        f"{TOPIC_ADMIN}SetSubscriptionDispatchConfig",
        admin.SetSubscriptionDispatchConfigRequest(
            **OF_SUBSCRIPTION,
            dispatch_config=admin.SubscriptionDispatchConfig(max_unacked_messages=5),
        ),
        OF_SUBSCRIPTION,
    ),
    (f"{TOPIC_ADMIN}Unsubscribe", admin.SubscriptionRequest(**OF_SUBSCRIPTION), OF_SUBSCRIPTION),
    (f"{TOPIC_ADMIN}UnloadTopic", admin.TopicRequest(name=TOPIC), OF_TOPIC),
    (f"{TOPIC_ADMIN}DeleteTopic", admin.TopicRequest(name=TOPIC), OF_TOPIC),
)
"""The calls that change something, in an order in which each can, and what they name."""
READS = ("Get", "List", "Describe", "Check")


class Port:
    """Calls of a broker's admin port, as one principal or nobody."""

    def __init__(self, channel, subject=None):
        self._channel = channel
        self.header = None if subject is None else token(subject, SystemClock())

    async def ask(self, path, request):
        """Return the name of the status of a call."""
        metadata = None if self.header is None else [("authorization", self.header)]
        call = self._channel.unary_unary(path)
        try:
            data = request.SerializeToString()
            await call(data, metadata=metadata, timeout=SECONDS_MAX)
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return "OK"


def acts(caplog):
    """Return the facts of the acts so far; the address is that of this machine, whatever port."""
    found = [each.facts for each in caplog.records if each.message == "admin_act"]
    assert all(each["peer"].startswith("127.0.0.1") for each in found)
    return [{name: str(fact) for name, fact in each.items() if name != "peer"} for each in found]


def play(path, caplog, scene, **options):
    async def main():
        async with World(path, **options) as world:
            await asyncio.to_thread(world.broker.engine.delete_topic, "orders")
            port = world.broker.addresses.admin.port
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                await scene(world, channel)

    with caplog.at_level(logging.INFO, logger="frazil"):
        asyncio.run(main())


def test_every_act_is_one_event_with_its_principal(tmp_path, caplog):
    """Each call that changes something has its event; no secret is in any event of the broker."""
    access = ACCESS.replace("admin: [{actions: [admin]", "admin: [{actions: [admin, produce]")
    assert access != ACCESS

    async def scene(_world, channel):
        port = Port(channel, "admin")
        statuses = [await port.ask(path, request) for path, request, _ in ACTS]
        # The one that a topic needs cannot be deleted.
        assert [status for status in statuses if status != "OK"] == ["FAILED_PRECONDITION"]
        assert acts(caplog) == [
            {"path": path, "principal": "user:admin", **names, "status": status}
            for (path, _, names), status in zip(ACTS, statuses, strict=True)
        ]
        credential = port.header.removeprefix("Bearer ")
        assert not any(credential in str(vars(each)) for each in caplog.records)

    play(tmp_path, caplog, scene, access=access)


def test_no_call_that_changes_something_is_left_out():
    """What is not among the acts only reads, by its name."""
    rest = {path for path in RPCS if path.startswith(("/danube_admin.", "/danube_schema."))}
    rest -= {path for path, _, _ in ACTS}
    assert len(rest) == 17
    assert all(path.rpartition("/")[2].startswith(READS) for path in rest)


def test_reads_and_calls_that_are_denied_are_no_acts(tmp_path, caplog):
    """A read leaves no event; the guard's event of a denied call has the principal."""

    async def scene(_world, channel):
        await asyncio.to_thread(_world.broker.engine.create_topic, "orders")
        caplog.clear()
        port = Port(channel, "admin")
        for path in RPCS:
            if path.startswith("/danube_admin.") and path.rpartition("/")[2].startswith(READS):
                await port.ask(path, admin.TopicRequest(name=TOPIC))
        assert caplog.records == []
        reader = Port(channel, "reader")
        path, request = f"{TOPIC_ADMIN}DeleteTopic", admin.TopicRequest(name=TOPIC)
        assert await reader.ask(path, request) == "PERMISSION_DENIED"
        [record] = caplog.records
        assert record.message == "call_denied"
        assert (record.facts["path"], str(record.facts["principal"])) == (path, "user:reader")

    play(tmp_path, caplog, scene, access=ACCESS)


def test_commands_beside_a_broker_are_acts(tmp_path, caplog):
    """Those about subscriptions and objects come over the HTTP port, and their events name it."""

    async def scene(world, _channel):
        await asyncio.to_thread(world.broker.engine.create_topic, "orders")
        named = {"topic": "orders", "name": "s"}
        for call in (
            {"call": "create", **named},
            {"call": "list"},
            {"call": "policy", **named},
            {"call": "policy", **named, "max_unacked": 7},
            {"call": "reset", **named, "to": "earliest"},
            {"call": "collect_objects", "dry_run": True},
            {"call": "collect_objects", "dry_run": False},
            {"call": "drop", **named},
            {"call": "drop", **named},
        ):
            await world.post(call, subject="admin")
        who = {"path": "/admin/subscriptions", "principal": "user:admin"}
        subscription = {"topic": "orders", "subscription": "s"}
        assert acts(caplog) == [
            {**who, "call": "create", **subscription, "status": "OK"},
            {**who, "call": "policy", **subscription, "status": "OK"},
            {**who, "call": "reset", **subscription, "status": "OK"},
            {**who, "call": "collect_objects", "status": "INVALID_ARGUMENT"},
            {**who, "call": "drop", **subscription, "status": "OK"},
            {**who, "call": "drop", **subscription, "status": "NOT_FOUND"},
        ]

    play(tmp_path, caplog, scene, access=ACCESS)
