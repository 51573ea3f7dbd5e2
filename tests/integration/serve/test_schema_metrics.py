"""The metrics of the schema registry, on the page of a real broker."""

from __future__ import annotations

import asyncio

import pytest
from danube import DispatchStrategy, SchemaType

from tests.integration.serve.test_engine_metrics import parsed
from tests.integration.serve.test_serve_command import TOPIC, build, forks, page, serving

pytestmark = pytest.mark.integration
assert forks, "a fixture of the processes"


def metrics(broker):
    """Return the registry's metrics without their common beginning."""
    status, text = page(broker.facts["http_url"] + "/metrics")
    assert status == 200
    start = "frazil_schema_"
    found = {name: lines for name, lines in parsed(text).items() if name.startswith(start)}
    assert all(labels == {} for lines in found.values() for labels, _ in lines)
    return {name.removeprefix(start): lines[0][1] for name, lines in found.items()}


async def publish(broker):
    """Register two versions, then send what fits and what does not under each policy."""
    client = await build(broker.url)
    schemas = client.schema()
    for definition in (b'{"type": "integer"}', b'{"type": "number"}'):
        builder = schemas.register_schema("count").with_type(SchemaType.JSON_SCHEMA)
        await builder.with_schema_data(definition).execute()
    builder = client.new_producer().with_topic(TOPIC).with_name("p")
    builder = builder.with_dispatch_strategy(DispatchStrategy.RELIABLE)
    producer = builder.with_schema_subject("count").build()
    await producer.create()
    await schemas.update_topic_validation_policy(TOPIC, "warn", True)
    for payload in (b"1", b"one", b"two"):
        await producer.send(payload)
    await schemas.update_topic_validation_policy(TOPIC, "enforce", True)
    await producer.send(b"2")
    with pytest.raises(Exception, match="does not fit version 2"):
        await producer.send(b"three")
    await producer.close()


def test_what_was_taken_and_refused_is_counted_on_the_page(tmp_path):
    """Subjects, versions, topics, checks, warnings and refusals are there; names are not."""
    with serving(tmp_path) as broker:
        before = metrics(broker)
        assert set(before.values()) == {0}
        asyncio.run(publish(broker))
        after = metrics(broker)
    stored = after.pop("stored_bytes")
    assert stored > 0
    assert after == {
        "subjects": 1,
        "versions": 2,
        "topics": 1,
        "checked_total": 5,
        "warned_total": 2,
        "refused_total": 1,
        "waiting_records": 0,
        "waiting_bytes": 0,
    }
    assert set(before) == {*after, "stored_bytes"}
