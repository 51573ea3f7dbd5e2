"""The types that a user of the embedded API sees; checked by mypy, never run."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any, assert_type

import pyarrow as pa

import frazil
from frazil import (
    Ack,
    AsyncEngine,
    Batch,
    Delivery,
    Engine,
    FailurePolicy,
    FrazilError,
    Message,
    Settings,
    Topic,
)
from frazil.engine import AsyncDelivery, AsyncPartitionedTopic, AsyncTopic
from frazil.errors import Conflict, Overloaded
from frazil.query import Result


def a_program_opens_and_publishes(path: Path) -> None:
    """The calls of the README have types without Any."""
    with frazil.open(path) as db:
        assert_type(db, Engine)
        topic = db.create_topic("events", sync="commit", retention_age="1h")
        assert_type(topic, Topic)
        assert_type(topic.append(b"hello"), Ack)
        assert_type(topic.append(b"hello", key="k", attributes={"a": "b"}), Ack)
        assert_type(topic.append({"id": 1}, ack="fsynced"), Ack)
        assert_type(topic.append(id=1, name="x"), Ack)
        assert_type(topic.append_many([b"1", b"2"], producer="p", sequence=0), Ack)
        assert_type(topic.append_arrow(pa.table({"a": [1]})), Ack)
        assert_type(topic.name, str)
        topic.hold("reader", 0)
        topic.advance("reader", 1)
        topic.drop("reader")
        assert_type(topic.describe(), dict[str, Any])
        assert_type(db.topics(), list[str])
        assert_type(db.stats(), dict[str, Any])
        assert_type(db.append("other", {"a": 1}), Ack)
        assert_type(db.warnings, list[str])


def a_program_consumes(db: Engine, topic: Topic) -> None:
    """Deliveries have types, and policies may be given by their class or as a mapping."""
    with topic.subscribe("s", type="key_shared", key_filters=["a*"], max_unacked=5) as stream:
        for delivery in stream:
            assert_type(delivery, Delivery)
            assert_type(delivery.offset, int)
            assert_type(delivery.time, dt.datetime)
            delivery.extend(60)
            delivery.nack(delay_s=0.5, reason="busy")
        assert_type(stream.receive(1.0), Delivery | None)
    policy = topic.set_subscription("s", policy={"max_redelivery_count": 3})
    assert_type(policy, FailurePolicy)
    parts = db.create_topic("p", partitions=2)
    assert_type(parts.subscribe("s", policy=policy, start=dt.datetime.now(dt.UTC)).name, str)
    assert_type(topic.subscriptions(), list[dict[str, Any]])
    assert_type(topic.reset_subscription("s", "earliest"), dict[str, int])


async def a_program_consumes_under_asyncio(topic: AsyncTopic) -> None:
    """The same, awaited."""
    async with topic.subscribe("s") as stream:
        async for delivery in stream:
            assert_type(delivery, AsyncDelivery)
            await delivery.ack()
            await delivery.extend(0.5)
            await delivery.nack()


def a_program_changes_rows(db: Engine) -> None:
    """Changes of a keyed topic give acks, look-ups give rows, with and without parts."""
    topic = db.create_topic("orders", {"id": "long", "n": "long"}, primary_key="id")
    assert_type(topic.insert(id=1, n=1), Ack)
    assert_type(topic.insert({"id": 1, "n": 1}, ack="fsynced"), Ack)
    assert_type(topic.upsert({"id": 1, "n": 2}, producer="p", sequence=0), Ack)
    assert_type(topic.update(1, {"n": 3}), Ack)
    assert_type(topic.update("id", 1, {"n": 3}), Ack)
    assert_type(topic.update(id=1, n=4), Ack)
    assert_type(topic.delete(1), Ack)
    assert_type(topic.append_changes(pa.table({"id": [1], "_op": ["delete"]})), Ack)
    assert_type(topic.get(1), dict[str, Any] | None)
    assert_type(topic.get_many([1, 2]), list[dict[str, Any] | None])
    for change in topic.changes(0, limit=10):
        assert_type(change, dict[str, Any])
    parted = db.create_topic("p", {"id": "long"}, primary_key="id", partitions=4)
    assert_type(parted.insert(id=1), Ack)
    assert_type(parted.upsert({"id": 1}), Ack)
    assert_type(parted.update(1, {"id": 2}), Ack)
    assert_type(parted.delete("id", 1), Ack)
    assert_type(parted.append_changes([b"{}"]), list[Ack])
    assert_type(parted.get(1), dict[str, Any] | None)
    assert_type(parted.get_many([1]), list[dict[str, Any] | None])
    assert_type(parted.part_of_key(1), int)


def a_program_queries(db: Engine) -> None:
    """A result gives its rows in the form that is asked for."""
    result = db.query("SELECT * FROM orders WHERE id = ?", [1], min_offset=3, timeout_s=1.0)
    assert_type(result, Result)
    assert_type(result.rows(), list[tuple[Any, ...]])
    assert_type(result.columns, list[str])
    table: pa.Table = result.arrow()
    assert_type(db.query("SELECT $a", {"a": 1}, as_of_offset=4), Result)
    assert_type(db.explain("SELECT * FROM orders"), dict[str, Any])
    assert_type(db.tiers.flush(), dict[str, int])
    assert_type(db.tiers.evict("orders"), dict[str, int])
    assert_type(db.tiers.describe_files("orders"), list[dict[str, Any]])
    del table


def a_program_reads(topic: Topic) -> None:
    """Readers give batches; a start is an offset, a word or a time."""
    for batch in topic.read(0, limit=10, bytes_max=1 << 20):
        assert_type(batch, Batch)
        assert_type(batch.offset, int)
        assert_type(batch.records(), list[dict[str, object]])
    with topic.tail("earliest", timeout_s=1.0) as reader:
        first = next(reader)
        assert_type(first, Batch)
    topic.read(dt.datetime(2024, 1, 1, tzinfo=dt.UTC))


def acks_and_messages_have_fields(ack: Ack) -> None:
    """An ack tells where the records are; a message is plain data."""
    assert_type(ack.offset, int)
    assert_type(ack.offset_last, int)
    assert_type(ack.lsn, int)
    message = Message(b"x", key="k")
    assert_type(message.payload, bytes)
    assert_type(message.key, str | None)


def settings_open_an_engine(settings: Settings) -> None:
    """Whole settings, or a path with overrides."""
    assert_type(frazil.open(settings), Engine)
    overrides: dict[str, Any] = {"log.sync": "periodic"}
    assert_type(frazil.open("data", **overrides), Engine)


def errors_form_one_tree(topic: Topic) -> None:
    """A caller acts on classes and looks at details."""
    try:
        topic.append(b"x")
    except (Conflict, Overloaded) as error:
        assert_type(error.details, dict[str, object])
    except FrazilError as error:
        assert_type(error.message, str)


async def a_program_uses_asyncio(path: str) -> None:
    """The asyncio form has the same calls."""
    async with frazil.open_async(path) as db:
        assert_type(db, AsyncEngine)
        topic = db.topic("events")
        ack: Ack = await topic.append(b"x")
        assert_type(ack.offset, int)
        async for batch in topic.tail("latest"):
            found: Batch = batch
            assert_type(found.count, int)
        assert_type(await db.append("events", b"x"), Ack)
        await changes_and_queries(AsyncTopic(db.engine.create_topic("orders")), db)
    waiting = await frazil.open_async(path)
    await waiting.close()


async def changes_and_queries(topic: AsyncTopic, db: AsyncEngine) -> None:
    """Under asyncio the same calls are awaited."""
    assert_type(await topic.insert(id=1), Ack)
    assert_type(await topic.upsert({"id": 1}, ack="fsynced"), Ack)
    assert_type(await topic.update(1, {"n": 1}), Ack)
    assert_type(await topic.delete("id", 1), Ack)
    assert_type(await topic.append_changes([b"{}"], op_column="op"), Ack)
    assert_type(await topic.get(1), dict[str, Any] | None)
    assert_type(await topic.get_many([1]), list[dict[str, Any] | None])
    assert_type(await db.query("SELECT 1", timeout_s=1.0), Result)
    assert_type(await db.explain("SELECT 1"), dict[str, Any])


async def changes_of_parts(topic: AsyncPartitionedTopic) -> None:
    """A bulk over parts has an ack for each of them, everything else has one."""
    assert_type(await topic.insert(id=1), Ack)
    assert_type(await topic.upsert({"id": 1}), Ack)
    assert_type(await topic.update(1, {"n": 1}), Ack)
    assert_type(await topic.delete(1), Ack)
    assert_type(await topic.append_changes([b"{}"]), list[Ack])
    assert_type(await topic.get(1), dict[str, Any] | None)
    assert_type(await topic.get_many([1]), list[dict[str, Any] | None])
