"""Schemas of topics in a `frazil serve` process: rows of the protocol's page, and its client."""

from __future__ import annotations

import grpc
import pytest
from danube import SchemaType

from frazil.serve.danube.proto import danube_schema_pb2 as schema
from tests.integration.serve.protocol_cast import play
from tests.integration.serve.protocol_world import INVALID_NAME, OBJECT, Fails, Gives, Row, Scene
from tests.integration.serve.test_protocol_schemas import UNKNOWN_SUBJECT, after, call
from tests.support.rpcs import Port

pytestmark = pytest.mark.integration

CODES = grpc.StatusCode
UNKNOWN_TOPIC = Fails(CODES.NOT_FOUND, "Unable to find the topic: {s.topic}")


def configure(scene, policy="enforce", topic=None):
    return schema.ConfigureTopicSchemaRequest(
        topic_name=topic or scene.topic,
        schema_subject=scene.subject,
        validation_policy=policy,
        enable_payload_validation=True,
    )


def of_policy(scene, policy="enforce", topic=None):
    return schema.UpdateTopicValidationPolicyRequest(
        topic_name=topic or scene.topic, validation_policy=policy, enable_payload_validation=True
    )


def config_of(scene, topic=None):
    return schema.GetTopicSchemaConfigRequest(topic_name=topic or scene.topic)


def config(policy, *, is_checked=False):
    return Gives(
        schema_subject=lambda s, subject: subject == s.subject,
        validation_policy=policy,
        enable_payload_validation=is_checked,
        schema_id=lambda s, value: value == s.schema_id,
    )


BAD_NAME = Fails(CODES.INVALID_ARGUMENT, INVALID_NAME.format(name="orders"))
BAD_POLICY = Fails(CODES.INVALID_ARGUMENT, "Invalid validation policy: 'often'…")

TOPICS = [
    Row(
        "Messages",
        call("ConfigureTopicSchema"),
        "topic and subject",
        lambda s: after(s.made(), s.registered(), configure(s)),
        Gives(success=True, message=lambda s, text: s.topic in text and s.subject in text),
    ),
    Row(
        "1.2",
        call("ConfigureTopicSchema"),
        "another subject than the producer's first",
        lambda s: after(
            s.configured(), setattr(s, "subject", s.subject + "b"), s.registered(), configure(s)
        ),
        Gives(success=True, message=lambda s, text: s.subject in text),
    ),
    Row("1.6", call("ConfigureTopicSchema"), "unknown topic", configure, UNKNOWN_TOPIC),
    Row(
        "1.6",
        call("ConfigureTopicSchema"),
        "unknown subject",
        lambda s: after(s.made(), configure(s)),
        UNKNOWN_SUBJECT,
    ),
    Row(
        "1.6",
        call("ConfigureTopicSchema"),
        "bad policy",
        lambda s: after(s.made(), s.registered(), configure(s, "often")),
        BAD_POLICY,
    ),
    Row(
        "1.4",
        call("ConfigureTopicSchema"),
        "bad name",
        lambda s: configure(s, topic="orders"),
        BAD_NAME,
    ),
    *(
        Row(
            "1.6",
            call("UpdateTopicValidationPolicy"),
            policy,
            lambda s, policy=policy: after(s.configured(), of_policy(s, policy)),
            Gives(success=True, message=f"Validation policy updated to {policy}"),
        )
        for policy in ("none", "warn", "enforce")
    ),
    Row(
        "1.6",
        call("UpdateTopicValidationPolicy"),
        "bad policy",
        lambda s: after(s.configured(), of_policy(s, "often")),
        BAD_POLICY,
    ),
    Row("1.6", call("UpdateTopicValidationPolicy"), "unknown topic", of_policy, UNKNOWN_TOPIC),
    Row(
        "1.6",
        call("UpdateTopicValidationPolicy"),
        "topic without a subject",
        lambda s: after(s.made(), of_policy(s)),
        Fails(CODES.FAILED_PRECONDITION, "No schema configured for topic: {s.topic}"),
    ),
    Row(
        "1.4",
        call("UpdateTopicValidationPolicy"),
        "bad name",
        lambda s: of_policy(s, topic="orders"),
        BAD_NAME,
    ),
    Row(
        "1.6",
        call("GetTopicSchemaConfig"),
        "as configured",
        lambda s: after(s.configured(is_checked=True), config_of(s)),
        config("enforce", is_checked=True),
    ),
    Row(
        "1.2",
        call("GetTopicSchemaConfig"),
        "the first producer gave the subject, policy Warn",
        lambda s: after(
            s.registered(), s.has_producer(schema_ref={"subject": s.subject}), config_of(s)
        ),
        config("warn"),
    ),
    Row(
        "1.6",
        call("GetTopicSchemaConfig"),
        "topic without a subject",
        lambda s: after(s.made(), config_of(s)),
        Gives(
            schema_subject="",
            validation_policy="warn",
            enable_payload_validation=False,
            schema_id=0,
        ),
    ),
    Row("1.6", call("GetTopicSchemaConfig"), "unknown topic", config_of, UNKNOWN_TOPIC),
    Row(
        "1.4",
        call("GetTopicSchemaConfig"),
        "bad name",
        lambda s: config_of(s, "orders"),
        BAD_NAME,
    ),
]

ROWS = TOPICS


@pytest.mark.parametrize("port", Port)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_the_answer_is_the_pages(protocol_broker, row, port):
    """Code and text, or every field of the reply, are what the page says, on either port."""
    Scene(protocol_broker, port).check(row)
    assert protocol_broker.process.process.poll() is None


# -- 1.6: schemas ----------------------------------------------------------------------------------


def test_the_client_registers_and_reads_schemas(protocol_broker):
    """1.6: ids, versions, definitions, and how a definition that does not fit is answered."""

    async def scene(cast):
        subject = cast.scene.subject
        more = OBJECT.replace(b'"integer"}}', b'"integer"},"m":{"type":"string"}}')
        other = OBJECT.replace(b"integer", b"string")
        registry = (await cast.client()).schema()
        kind = SchemaType.JSON_SCHEMA
        builder = registry.register_schema(subject).with_type(kind)
        identity = await builder.with_schema_data(OBJECT).execute()
        assert await builder.with_schema_data(more).execute() == identity
        assert await registry.list_versions(subject) == [1, 2]
        latest = await registry.get_latest_schema(subject)
        assert (latest.schema_id, latest.version, latest.schema_definition) == (identity, 2, more)
        assert (await registry.get_schema_version(identity, 1)).schema_definition == OBJECT
        is_compatible, reasons = await registry.check_compatibility(subject, other, kind)
        assert (is_compatible, bool(reasons)) == (False, True)

    play(protocol_broker, scene)
