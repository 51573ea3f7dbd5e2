"""The page of metrics of a broker at work: every part that runs there is on it, with its numbers."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from danube import SchemaType

from frazil.serve.danube.proto import danube_admin_pb2 as admin
from frazil.serve.metrics import METRICS
from tests.crash.broker_process import wait_until
from tests.integration.serve.consuming_world import connect, producer_of, reader_of
from tests.integration.serve.test_engine_metrics import parsed
from tests.integration.serve.test_serve_command import forks, page, serving

pytestmark = pytest.mark.integration
assert forks, "a fixture of the processes"

TOPIC, PASSING, DEAD = "/default/orders", "/default/passing", "/default/dead"
LAKE = {metric.name for metric in METRICS if metric.name.startswith("frazil_lake_")}
NOT_HERE = {
    *(LAKE - {"frazil_lake_state"}),
    *("frazil_query_seconds", "frazil_signals_total", "frazil_objects_lag_seconds"),
}
"""The lake is off, SQL is not served, no limit of a topic is reached, nothing waits any more."""
AT_WORK = {
    *("topics", "records", "stored_bytes", "log_syncs_total", "log_written_bytes_total"),
    *("memory_used_bytes", "process_resident_bytes", "process_cpu_seconds_total"),
    *("process_uptime_seconds", "metadata_operations_total", "metadata_seconds_total"),
    *("server_connections_total", "server_calls_total", "server_received_bytes_total"),
    *("server_sent_bytes_total", "auth_clients", "http_requests_total", "http_refusals_total"),
    *("subscription_producers", "subscription_delivered_total", "subscription_acked_total"),
    *("subscription_nacked_total", "subscription_redelivered_total"),
    *("subscription_dead_letters_total", "subscription_decoded_total"),
    *("unreliable_delivered_total", "schema_subjects", "schema_versions", "schema_topics"),
    *("schema_checked_total", "schema_refused_total", "schema_stored_bytes"),
    "objects_uploaded_total",
    *("objects_uploaded_bytes_total", "objects_registered"),
}
"""What such a life counts, at the least."""


async def set_policy(broker):
    """Let the second failure of a record be its last."""
    policy = admin.SubscriptionFailurePolicy(
        max_redelivery_count=1,
        ack_timeout_ms=60_000,
        base_redelivery_delay_ms=0,
        max_redelivery_delay_ms=0,
        poison_policy=0,
        dead_letter_topic=DEAD,
    )
    request = admin.SetSubscriptionFailurePolicyRequest(
        topic=TOPIC, subscription="s", failure_policy=policy
    )
    target = broker.facts["admin_url"].partition("://")[2]
    async with grpc.aio.insecure_channel(target) as channel:
        path = "/danube_admin.TopicAdmin/SetSubscriptionFailurePolicy"
        await channel.unary_unary(path)(request.SerializeToString())


async def work(broker):
    """Publish, deliver, ack, give back twice, pass on, and check payloads."""
    client = await connect(broker.url)
    schemas = client.schema()
    builder = schemas.register_schema("count").with_type(SchemaType.JSON_SCHEMA)
    await builder.with_schema_data(b'{"type": "integer"}').execute()
    producer = await producer_of(client, topic=TOPIC, subject="count")
    await schemas.update_topic_validation_policy(TOPIC, "enforce", True)
    await set_policy(broker)
    reader = await reader_of(client, topic=TOPIC)
    for payload in (b"1", b"2"):
        await producer.send(payload)
    with pytest.raises(Exception, match="does not fit"):
        await producer.send(b"three")
    await reader.take(1)
    for _ in range(2):
        await reader.consumer.nack(await reader.next())
    passing = await producer_of(client, topic=PASSING, reliable=False)
    hearing = await reader_of(client, topic=PASSING)
    await passing.send(b"now")
    assert (await hearing.next()).payload == b"now"
    for each in (reader, hearing, producer, passing):
        await each.close()


def metrics(broker):
    """Return {name: sum of its lines}, as Prometheus reads the page."""
    status, text = page(broker.facts["http_url"] + "/metrics")
    assert status == 200
    assert "orders" not in text
    return {name: sum(value for _, value in lines) for name, lines in parsed(text).items()}


def test_every_part_that_runs_is_on_the_page_of_a_broker_at_work(tmp_path):
    """All declared metrics are there but those of what cannot run, and traffic is in the numbers."""
    settings = {
        "objects__store": "fs",
        "objects__root": tmp_path / "objects",
        "objects__default": "true",
        "objects__interval_s": "1s",
    }
    with serving(tmp_path, **settings) as broker:
        asyncio.run(asyncio.wait_for(work(broker), 60))
        assert page(broker.facts["http_url"] + "/nothing")[0] == 404
        missing = set()

        def is_counted():
            found = metrics(broker)
            missing.clear()
            missing.update(name for name in AT_WORK if not found.get(f"frazil_{name}"))
            return not missing

        try:
            wait_until(is_counted)
        except AssertionError:
            pytest.fail(f"not counted: {sorted(missing)}")
        found = metrics(broker)
    assert {metric.name for metric in METRICS} - set(found) <= NOT_HERE
    assert set(found) <= {metric.name for metric in METRICS}
    assert found["frazil_subscription_dead_letters_total"] == 1
    assert found["frazil_metadata_failures_total"] == found["frazil_metadata_failing"] == 0
