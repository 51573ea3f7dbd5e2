"""The schema registry with the published client, and with plain gRPC where that has no call."""

from __future__ import annotations

import asyncio
import struct
import textwrap
from pathlib import Path

import grpc
import pytest
from danube import CompatibilityMode, SchemaType

from tests.integration.serve.schema_world import TOPIC, failure, in_world, text_of

pytestmark = pytest.mark.integration

USER = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
}
AVRO = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}
PROTO = b'syntax = "proto3"; message M { int32 n = 1; }'


def test_the_first_producer_gives_its_schema_to_the_topic(tmp_path):
    """Records carry its id and version; another subject, or one that is nowhere, is refused."""

    async def scene(w):
        identity = await w.register("user", USER)
        await w.register("user", {**USER, "description": "second"})
        await w.register("other", b"-", SchemaType.STRING)
        latest = await w.producer(subject="user")
        await latest.send(b'{"name": "a"}')
        pinned = await w.producer(name="q", subject="user", version=1)
        await pinned.send(b'{"name": "b"}')
        least = await w.producer(name="r", subject="user", least=2)
        await least.send(b'{"name": "c"}')
        config = await w.registry.get_topic_schema_config(TOPIC)
        assert (config.schema_subject, config.validation_policy) == ("user", "warn")
        assert (config.enable_payload_validation, config.schema_id) == (False, identity)
        refusals = [
            await failure(w.producer(name="s", subject="other")),
            await failure(w.producer(topic="/default/new", subject="nowhere")),
            await failure(w.producer(name="t", subject="user", version=9)),
            await failure(w.producer(name="u", subject="user", least=9)),
        ]
        rows = w.rows()
        assert w.db.topics() == [TOPIC]
        return identity, rows, refusals

    identity, rows, refusals = in_world(tmp_path, scene)
    assert rows == [
        (b'{"name": "a"}', identity, 2),
        (b'{"name": "b"}', identity, 1),
        (b'{"name": "c"}', identity, 2),
    ]
    assert {code for code, _ in refusals} == {"FAILED_PRECONDITION"}
    texts = [text for _, text in refusals]
    assert texts[0] == (
        f"Topic '{TOPIC}' uses schema subject 'user', cannot use 'other'."
        " Only admin can change topic schema."
    )
    assert texts[1] == "Schema subject 'nowhere' not found in registry"
    assert texts[2] == "Version 9 of schema subject 'user' not found in registry"
    assert texts[3].startswith("Version 9 or later of schema subject 'user' not found in registry")


def test_enforcement_refuses_with_the_reason_and_writes_nothing(tmp_path):
    """Records without the id, of another version or another shape are refused; others are there."""

    async def scene(w):
        identity = await w.register("user", USER)
        good = await w.producer(subject="user")
        plain = await w.producer(name="plain")
        await w.enforce(payload=False)
        texts = [await failure(plain.send(b"{}"))]
        await good.send(b"not checked")
        await w.enforce(payload=True)
        texts += [
            await failure(plain.send(b'{"name": "a"}')),
            await failure(good.send(b"not JSON")),
            await failure(good.send(b'{"name": 7}')),
        ]
        await good.send(b'{"name": "a", "age": 3}')
        assert w.schemas.checks.stats()["refused_total"] == 4
        return identity, texts, w.rows()

    identity, texts, rows = in_world(tmp_path, scene)
    assert [payload for payload, _, _ in rows] == [b"not checked", b'{"name": "a", "age": 3}']
    start = f"Unable to publish the message: schema validation failed for topic '{TOPIC}': "
    assert {code for code, _ in texts} == {"PERMISSION_DENIED"}
    assert all(text.startswith(start) for _, text in texts)
    missing = f"the message has no schema id, subject 'user' has {identity}"
    assert texts[0][1] == texts[1][1] == start + missing
    assert "the payload does not fit version 1 of 'user'" in texts[2][1]
    assert 'at $.name: the value is not of type "string"' in texts[3][1]


@pytest.mark.parametrize(
    ("kind", "definition", "right", "wrong"),
    [
        (SchemaType.AVRO, text_of(AVRO), b"\x02", b"\x02\x02"),
        (SchemaType.PROTOBUF, PROTO, b"\x08\x05", b"\x08"),
        (SchemaType.STRING, b"-", "ä".encode(), b"\xff"),
        (SchemaType.NUMBER, b"-", struct.pack(">q", 7), b"seven"),
    ],
)
def test_payloads_of_every_type_are_checked(tmp_path, kind, definition, right, wrong):
    """A payload that its schema does not describe is refused, one that fits is written."""

    async def scene(w):
        await w.register("s", definition, kind)
        producer = await w.producer(subject="s")
        await w.enforce()
        await producer.send(right)
        code, text = await failure(producer.send(wrong))
        assert code == "PERMISSION_DENIED"
        assert "the payload does not fit version 1 of 's'" in text
        return w.rows()

    assert [payload for payload, _, _ in in_world(tmp_path, scene)] == [right]


def test_a_warning_takes_the_record_and_is_counted(tmp_path, caplog):
    """Under warn every record is written and one warning logged; under none no record is checked."""

    async def scene(w):
        await w.register("user", USER)
        await w.producer(subject="user")
        producer = await w.producer(name="plain")
        await w.registry.update_topic_validation_policy(TOPIC, "warn", True)
        for payload in (b"one", b"two"):
            await producer.send(payload)
        warnings = [
            each.facts for each in caplog.records if each.message == "schema_mismatch_taken"
        ]
        await w.registry.update_topic_validation_policy(TOPIC, "none", True)
        await producer.send(b"three")
        stats = w.schemas.checks.stats()
        return w.rows(), stats["warned_total"], warnings

    rows, warned, warnings = in_world(tmp_path, scene)
    assert [payload for payload, _, _ in rows] == [b"one", b"two", b"three"]
    assert warned == 2
    assert warnings == [{"topic": TOPIC}]


def test_checked_records_keep_their_order(tmp_path):
    """Many records in flight are written in the order they were sent, without the refused ones."""

    async def scene(w):
        await w.register("n", b"-", SchemaType.NUMBER)
        producer = await w.producer(subject="n")
        await w.enforce()
        sent = [b"%d" % number if number % 5 else b"no number" for number in range(500)]
        found = await asyncio.gather(*map(producer.send, sent), return_exceptions=True)
        refused = [each for each in found if isinstance(each, grpc.aio.AioRpcError)]
        assert len(refused) == 100
        assert w.schemas.checks.stats()["waiting_records"] == 0
        assert w.schemas.checks.stats()["waiting_bytes"] == 0
        return [payload for payload, _, _ in w.rows()], sent

    rows, sent = in_world(tmp_path, scene)
    assert rows == [payload for payload in sent if payload != b"no number"]


def test_an_administrator_changes_the_schema_of_a_topic(tmp_path):
    """Another subject is set for a topic and for all parts of one; a used subject stays."""

    async def scene(w):
        await w.register("user", USER)
        other = await w.register("other", b"-", SchemaType.NUMBER)
        await w.producer(subject="user")
        done = await w.registry.configure_topic_schema(TOPIC, "other", "ENFORCE", True)
        assert done[0] is True
        changed = await w.producer(name="q", subject="other")
        await changed.send(b"7")
        assert (await failure(changed.send(b"seven")))[0] == "PERMISSION_DENIED"
        refusal = await failure(w.registry.delete_schema_version("other", 1))
        assert refusal[0] == "FAILED_PRECONDITION"
        assert (await w.registry.delete_schema_version("user", 1))[0] is True

        wide = await w.producer(topic="/default/wide", partitions=2)
        await w.registry.configure_topic_schema("/default/wide", "other", "enforce", False)
        for name in ("wide", "wide-part-0", "wide-part-1"):
            config = await w.registry.get_topic_schema_config(f"/default/{name}")
            assert (config.schema_subject, config.schema_id) == ("other", other)
        for _ in range(2):
            assert (await failure(wide.send(b"7")))[0] == "PERMISSION_DENIED"

    in_world(tmp_path, scene)


def test_a_deleted_topic_loses_its_schema_settings(tmp_path):
    """A new topic of its name has no schema, and the subject can be deleted."""

    async def scene(w):
        await w.register("user", USER)
        await w.producer(subject="user")
        await w.enforce()
        w.db.delete_topic(TOPIC)
        await w.schemas.forget_topic(TOPIC)
        assert w.schemas.store.registry.topics == {}
        producer = await w.producer()
        await producer.send(b"anything")
        assert (await w.registry.delete_schema_version("user", 1))[0] is True
        return w.rows()

    assert in_world(tmp_path, scene) == [(b"anything", None, None)]


@pytest.mark.parametrize("lost", [False, True], ids=["kept", "lost"])
def test_schemas_survive_a_restart(tmp_path, lost):
    """Subjects, modes, policies and ids are there again, with the metadata file or without."""

    async def before(w):
        identity = await w.register("user", USER)
        await w.register("gone", b"-", SchemaType.STRING)
        await w.registry.delete_schema_version("gone", 1)
        await w.registry.set_compatibility_mode("user", CompatibilityMode.FULL)
        await w.producer(subject="user")
        await w.producer(topic="/default/old", subject="user")
        await w.enforce()
        w.db.delete_topic("/default/old")
        return identity, await w.ask("GetLatestSchema", subject="user")

    async def after(w):
        assert set(w.schemas.store.registry.topics) == {TOPIC}
        plain = await w.producer(name="plain")
        refusal = await failure(plain.send(b"{}"))
        assert refusal[0] == "PERMISSION_DENIED"
        fresh = await w.register("new", b"-", SchemaType.STRING)
        return fresh, await w.ask("GetLatestSchema", subject="user")

    identity, stored = in_world(tmp_path, before)
    if lost:
        for file in tmp_path.glob("meta.db*"):
            file.unlink()
    fresh, again = in_world(tmp_path, after)
    assert stored == again
    assert again.compatibility_mode == "full"
    assert fresh == identity + 2


def test_the_example_of_the_documentation_works(tmp_path):
    """What docs/schemas.md shows does what its comments say."""
    page = (Path(__file__).parents[3] / "docs" / "schemas.md").read_text()
    lines = page.partition("```python\n")[2].partition("```")[0]

    async def scene(w):
        text = textwrap.indent(lines.replace("http://127.0.0.1:6650", w.url), "    ")
        names = {}
        exec(f"async def example():\n{text}", names)
        refusal = await failure(names["example"]())
        return refusal, w.rows("/default/users")

    refusal, rows = in_world(tmp_path, scene)
    assert refusal[0] == "PERMISSION_DENIED"
    assert refusal[1].endswith('"name" is a required property')
    assert [payload for payload, _, _ in rows] == [b'{"name": "Ada"}']
