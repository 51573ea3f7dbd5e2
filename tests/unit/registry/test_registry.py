"""The registry: subjects, versions, ids, modes and errors."""

from __future__ import annotations

import subprocess
import sys

import pytest

from frazil.errors import InvalidRequest, Overloaded, codes_of
from frazil.registry import IncompatibleSchema, NewSchema, Registered, Registry
from tests.unit.registry.registering import plan
from tests.unit.registry.registering import register as register_any

OLD, NEW = b'"int"', b'"long"'


@pytest.fixture
def registry():
    return Registry()


def register(registry, subject, definition=OLD, kind="avro", **more):
    return register_any(registry, subject, definition, kind, now=7, **more)


def test_the_same_definition_is_the_version_it_was(registry):
    """Registering it again writes nothing; the same text of another type is another version."""
    first = register(registry, "a", OLD)
    register(registry, "a", NEW)
    assert register(registry, "a", OLD) == Registered(1, 1, False, first.fingerprint)
    assert register(registry, "a", OLD, "json").is_new_version
    registry.commit(registry.delete_version("a", 3))
    assert registry.latest_schema("a").version == 2


def test_an_incompatible_version_is_refused_with_its_reasons(registry):
    """The message has the mode, the latest version and the first ten reasons."""
    register(registry, "a")
    reasons = tuple(f"backward: at $.f{number}: no" for number in range(12))
    with pytest.raises(IncompatibleSchema) as caught:
        plan(registry, "a", NEW, "avro", reasons=reasons)
    assert str(caught.value) == (
        "Failed to register schema: not backward compatible with version 1 of 'a': "
        + "; ".join(reasons[:10])
    )
    assert caught.value.reasons == reasons
    assert codes_of(caught.value).grpc == "FAILED_PRECONDITION"


WRONG = [
    ({"subject": ""}, "this one is empty"),
    ({"subject": "a b"}, "Invalid subject"),
    ({"type": "xml"}, "Invalid schema type"),
    ({"definition": b"x" * ((1 << 20) + 1)}, "too large"),
    ({"description": "x" * 4097}, "description is too long"),
    ({"created_by": "x" * 256}, "author is too long"),
    ({"tags": ["x"] * 33}, "too many tags"),
    ({"tags": ["x" * 129]}, "tag is too long"),
    ({"created_by": "\ud800"}, "not valid Unicode"),
]


@pytest.mark.parametrize(("change", "reason"), WRONG, ids=[row[1] for row in WRONG])
def test_a_wrong_field_is_refused(change, reason):
    """Each field has its limit."""
    with pytest.raises(InvalidRequest, match=reason):
        NewSchema(**{"subject": "a", "type": "avro", "definition": OLD, "now": 1, **change})


def test_subjects_and_versions_have_their_limits(registry, monkeypatch):
    """The one beyond is Overloaded, an existing one is still found."""
    monkeypatch.setattr("frazil.registry.registry.SUBJECTS_MAX", 2)
    monkeypatch.setattr("frazil.registry.registry.VERSIONS_MAX", 2)
    register(registry, "a", b"", "bytes")
    register(registry, "b", b"", "bytes")
    with pytest.raises(Overloaded, match="too many subjects"):
        register(registry, "c", b"", "bytes")
    register(registry, "a", b"", "string")
    with pytest.raises(Overloaded, match="'a' has too many versions"):
        register(registry, "a", b"", "number")
    assert register(registry, "a", b"", "bytes").version == 1


def test_the_broker_does_not_import_the_libraries_of_schemas():
    """All that the broker uses of the registry is there, and the worker alone has the libraries."""
    code = (
        "import sys, frazil.registry as r, frazil.serve.danube.registry_service;"
        "[getattr(r, name) for name in r.__all__];"
        "heavy = {'jsonschema_rs', 'fastavro', 'grpc_tools', 'frazil.registry.definitions'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert found.stdout.strip() == "[]"
