"""The schema registry of a `frazil serve` process, on both of its ports, by the protocol's page."""

from __future__ import annotations

import hashlib
import time

import grpc
import pytest

from frazil.serve.danube.proto import danube_schema_pb2 as schema
from tests.integration.serve.protocol_world import (
    OBJECT,
    Fails,
    Gives,
    Row,
    Scene,
)
from tests.support.rpcs import Port

pytestmark = pytest.mark.integration

CODES = grpc.StatusCode
MORE = OBJECT.replace(b'"integer"}}', b'"integer"},"m":{"type":"string"}}')
"""A version that reads what the first one wrote."""
NEEDS_MORE = MORE.replace(b'["n"]', b'["n","m"]')
OTHER_TYPE = OBJECT.replace(b"integer", b"string")
AVRO = b'{"type":"record","name":"R","fields":[{"name":"n","type":"int"}]}'
PROTO = b'syntax = "proto3"; message M { int32 n = 1; }'
PROTO_OTHER = PROTO.replace(b"int32", b"string")
UNKNOWN_ID = 1 << 40
UNKNOWN_TOPIC = Fails(CODES.NOT_FOUND, "Unable to find the topic: {s.topic}")
UNKNOWN_SUBJECT = Fails(CODES.NOT_FOUND, "Subject not found: {s.subject}")
INCOMPATIBLE = Fails(CODES.INTERNAL, "Failed to register schema: …")
TYPES = {
    "bytes": ("bytes", b"-", "bytes"),
    "string": ("string", b"-", "string"),
    "number": ("number", b"-", "number"),
    "int64": ("number", b"-", "number"),
    "int": ("number", b"-", "number"),
    "float": ("number", b"-", "number"),
    "double": ("number", b"-", "number"),
    "avro": ("avro", AVRO, "sha256:"),
    "json_schema": ("json_schema", OBJECT, "sha256:"),
    "json": ("json_schema", OBJECT, "sha256:"),
    "protobuf": ("protobuf", PROTO, "sha256:"),
    "proto": ("protobuf", PROTO, "sha256:"),
}
"""By the name or alias that is asked for: the type in replies, a definition, its fingerprint."""


def call(name):
    return f"SchemaRegistry.{name}"


def after(*steps):
    return steps[-1]


def is_own_id(scene, value):
    """The id is the subject's own, whichever version it is, and above 0."""
    return value > 0 and scene.schema_id in {0, value}


def is_print(_scene, text):
    return len(text) == len("sha256:") + 64 and text.startswith("sha256:")


def is_recent(scene, seconds):
    return scene.before_s <= seconds <= time.time() + 1


def registered(version, *, is_new=True, fingerprint=is_print):
    return Gives(
        schema_id=is_own_id, version=version, is_new_version=is_new, fingerprint=fingerprint
    )


def described(version=1, *, kind="json_schema", data=OBJECT, mode="backward", mark=is_print):
    return Gives(
        schema_id=is_own_id,
        version=version,
        subject=lambda s, subject: subject == s.subject,
        schema_type=kind,
        schema_definition=data,
        description="what",
        created_at=is_recent,
        created_by="who",
        tags=["a", "b"],
        fingerprint=mark,
        compatibility_mode=mode,
    )


NOTES = {"description": "what", "created_by": "who", "tags": ["a", "b"]}


def latest(scene):
    return schema.GetLatestSchemaRequest(subject=scene.subject)


def of_mode(scene, mode):
    return schema.SetCompatibilityModeRequest(subject=scene.subject, compatibility_mode=mode)


def has_mode(scene, mode):
    scene.ask(call("SetCompatibilityMode"), of_mode(scene, mode))


REGISTERING = [
    Row(
        "1.6",
        call("RegisterSchema"),
        "new subject",
        lambda s: s.definition(b'{ "type" : "object" }'),
        registered(1, fingerprint="sha256:" + hashlib.sha256(b'{"type":"object"}').hexdigest()),
    ),
    *(
        Row(
            "1.6",
            call("RegisterSchema"),
            f"type {name}",
            lambda s, name=name, data=data: s.definition(data, kind=name),
            registered(1, fingerprint=is_print if mark == "sha256:" else mark),
        )
        for name, (_, data, mark) in TYPES.items()
    ),
    Row(
        "1.6",
        call("RegisterSchema"),
        "same fingerprint",
        lambda s: after(s.registered(), s.definition(OBJECT.replace(b":", b" : "))),
        registered(1, is_new=False),
    ),
    Row(
        "1.6",
        call("RegisterSchema"),
        "compatible",
        lambda s: after(s.registered(), s.definition(MORE)),
        registered(2),
    ),
    *(
        Row(
            "1.6",
            call("RegisterSchema"),
            f"not backward compatible, {what}",
            lambda s, kind=kind, first=first, second=second: after(
                s.registered(first, kind=kind), s.definition(second, kind=kind)
            ),
            INCOMPATIBLE,
        )
        for what, kind, first, second in (
            ("removed required field", "json", NEEDS_MORE, OBJECT),
            ("type change", "json", OBJECT, OTHER_TYPE),
            ("optional becomes required", "json", MORE, NEEDS_MORE),
            ("avro type change", "avro", AVRO, AVRO.replace(b'"int"', b'"string"')),
            ("protobuf type change", "protobuf", PROTO, PROTO_OTHER),
        )
    ),
    *(
        Row(
            "1.6",
            call("RegisterSchema"),
            f"not forward compatible, {what}",
            lambda s, data=data: after(s.registered(), has_mode(s, "forward"), s.definition(data)),
            INCOMPATIBLE,
        )
        for what, data in (("new required field", NEEDS_MORE), ("type change", OTHER_TYPE))
    ),
    Row(
        "1.6",
        call("RegisterSchema"),
        "mode none takes anything",
        lambda s: after(s.registered(), has_mode(s, "none"), s.definition(OTHER_TYPE)),
        registered(2),
    ),
    Row(
        "1.6",
        call("RegisterSchema"),
        "compared with the latest version only",
        lambda s: after(
            s.registered(),
            has_mode(s, "none"),
            s.registered(OTHER_TYPE),
            has_mode(s, "backward"),
            s.definition(OBJECT.replace(b"integer", b"number")),
        ),
        INCOMPATIBLE,
    ),
    Row(
        "1.6",
        call("RegisterSchema"),
        "unknown type",
        lambda s: s.definition(kind="yaml"),
        Fails(CODES.INVALID_ARGUMENT, "Invalid schema type: 'yaml'…"),
    ),
    Row(
        "1.6",
        call("RegisterSchema"),
        "definition that cannot be read",
        lambda s: s.definition(b"{", kind="avro"),
        Fails(CODES.INVALID_ARGUMENT, "…"),
    ),
    Row(
        "1.6",
        call("RegisterSchema"),
        "no subject",
        lambda s: schema.RegisterSchemaRequest(schema_type="bytes"),
        Fails(CODES.INVALID_ARGUMENT, "a subject…"),
    ),
]

READING = [
    Row(
        "1.6",
        call("GetSchema"),
        "latest of an id",
        lambda s: after(
            s.registered(OBJECT, MORE, **NOTES), schema.GetSchemaRequest(schema_id=s.schema_id)
        ),
        described(2, data=MORE),
    ),
    Row(
        "1.6",
        call("GetSchema"),
        "a version",
        lambda s: after(
            s.registered(OBJECT, MORE, **NOTES),
            schema.GetSchemaRequest(schema_id=s.schema_id, version=1),
        ),
        described(),
    ),
    Row(
        "1.6",
        call("GetSchema"),
        "unknown id",
        lambda s: schema.GetSchemaRequest(schema_id=UNKNOWN_ID),
        Fails(CODES.NOT_FOUND, f"Schema not found for ID: {UNKNOWN_ID}"),
    ),
    Row(
        "1.6",
        call("GetSchema"),
        "unknown version",
        lambda s: schema.GetSchemaRequest(schema_id=s.registered(), version=9),
        Fails(CODES.NOT_FOUND, "Schema not found for ID: {s.schema_id}…"),
    ),
    *(
        Row(
            "Behaviour",
            call("GetLatestSchema"),
            f"the raw schema of type {name}",
            lambda s, name=name, data=data: after(
                s.registered(data, kind=name, **NOTES), latest(s)
            ),
            described(kind=kind, data=data, mark=is_print if mark == "sha256:" else mark),
        )
        for name, (kind, data, mark) in TYPES.items()
    ),
    *(
        Row(
            "1.6",
            call("GetLatestSchema"),
            f"mode {mode} in lower case",
            lambda s, mode=mode: after(s.registered(**NOTES), has_mode(s, mode.upper()), latest(s)),
            described(mode=mode),
        )
        for mode in ("none", "backward", "forward", "full")
    ),
    Row(
        "1.6",
        call("GetLatestSchema"),
        "unknown subject",
        latest,
        Fails(CODES.NOT_FOUND, "Schema not found for subject: {s.subject}"),
    ),
    Row(
        "1.6",
        call("ListVersions"),
        "versions share an id and count from 1",
        lambda s: after(
            s.registered(OBJECT, MORE, **NOTES), schema.ListVersionsRequest(subject=s.subject)
        ),
        Gives(
            versions=lambda s, found: (
                [each.version for each in found] == [1, 2]
                and all(
                    (each.schema_id, each.created_by, each.description)
                    == (s.schema_id, "who", "what")
                    and is_recent(s, each.created_at)
                    and is_print(s, each.fingerprint)
                    for each in found
                )
            )
        ),
    ),
    Row(
        "1.6",
        call("ListVersions"),
        "unknown subject",
        lambda s: schema.ListVersionsRequest(subject=s.subject),
        UNKNOWN_SUBJECT,
    ),
    Row(
        "Messages",
        call("ListSubjects"),
        "a line for a subject",
        lambda s: after(s.registered(OBJECT, MORE, **NOTES), schema.ListSubjectsRequest()),
        Gives(
            subjects=lambda s, found: (
                [
                    (
                        each.schema_type,
                        each.latest_version,
                        each.compatibility_mode,
                        each.schema_id,
                        list(each.tags),
                    )
                    for each in found
                    if each.subject == s.subject
                ]
                == [("json_schema", 2, "backward", s.schema_id, ["a", "b"])]
            )
        ),
    ),
]


def compared(scene, data, **more):
    scene.registered()
    return schema.CheckCompatibilityRequest(
        subject=scene.subject, new_schema_definition=data, schema_type="json_schema", **more
    )


def without(scene, version):
    return schema.DeleteSchemaVersionRequest(subject=scene.subject, version=version)


BAD_MODE = Fails(CODES.INVALID_ARGUMENT, "Invalid compatibility mode: 'sideways'…")

RULING = [
    Row(
        "Messages",
        call("CheckCompatibility"),
        "compatible",
        lambda s: compared(s, MORE),
        Gives(is_compatible=True, errors=[]),
    ),
    Row(
        "Messages",
        call("CheckCompatibility"),
        "not compatible",
        lambda s: compared(s, OTHER_TYPE),
        Gives(is_compatible=False, errors=lambda s, errors: len(errors) == 1 and "n" in errors[0]),
    ),
    Row(
        "Messages",
        call("CheckCompatibility"),
        "with another mode",
        lambda s: compared(s, OTHER_TYPE, compatibility_mode="none"),
        Gives(is_compatible=True, errors=[]),
    ),
    Row(
        "1.6",
        call("CheckCompatibility"),
        "bad mode",
        lambda s: compared(s, MORE, compatibility_mode="sideways"),
        BAD_MODE,
    ),
    Row(
        "1.6",
        call("DeleteSchemaVersion"),
        "one of two",
        lambda s: after(s.registered(OBJECT, MORE), without(s, 1)),
        Gives(
            success=True,
            message=lambda s, text: text == f"Deleted version 1 for subject {s.subject}",
        ),
    ),
    Row(
        "Messages",
        call("DeleteSchemaVersion"),
        "unknown subject",
        lambda s: without(s, 1),
        UNKNOWN_SUBJECT,
    ),
    Row(
        "Messages",
        call("DeleteSchemaVersion"),
        "unknown version",
        lambda s: after(s.registered(), without(s, 9)),
        Fails(CODES.NOT_FOUND, "Version 9 not found for subject: {s.subject}"),
    ),
    Row(
        "Messages",
        call("DeleteSchemaVersion"),
        "last one of a subject in use",
        lambda s: after(s.configured(), without(s, 1)),
        Fails(
            CODES.FAILED_PRECONDITION,
            "Cannot delete the last version of subject {s.subject}: topic {s.topic} uses it",
        ),
    ),
    Row(
        "Messages",
        call("SetCompatibilityMode"),
        "known subject",
        lambda s: after(s.registered(), of_mode(s, "full")),
        Gives(
            success=True,
            message=lambda s, text: (
                text == f"Compatibility mode set to full for subject {s.subject}"
            ),
        ),
    ),
    Row(
        "1.6",
        call("SetCompatibilityMode"),
        "bad mode",
        lambda s: after(s.registered(), of_mode(s, "sideways")),
        BAD_MODE,
    ),
    Row(
        "Messages",
        call("SetCompatibilityMode"),
        "unknown subject",
        lambda s: of_mode(s, "full"),
        UNKNOWN_SUBJECT,
    ),
]


ROWS = [*REGISTERING, *READING, *RULING]


@pytest.mark.parametrize("port", Port)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_the_answer_is_the_pages(protocol_broker, row, port):
    """Code and text, or every field of the reply, are what the page says, on either port."""
    Scene(protocol_broker, port).check(row)
    assert protocol_broker.process.process.poll() is None
