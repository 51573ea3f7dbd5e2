"""The registry: subjects, versions, ids, modes and what its callers are told."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from frazil.errors import Conflict, InvalidRequest, NotFound, Overloaded, codes_of
from frazil.registry import IncompatibleSchema, Registered, Registry, limits


def avro(*names, kind="int", **more):
    fields = [{"name": name, "type": kind, **more} for name in names]
    return json.dumps({"type": "record", "name": "P", "fields": fields}).encode()


def with_default(*names):
    return avro(*names, default=0)


@pytest.fixture
def registry():
    return Registry()


def register(registry, subject, definition=b"", kind="avro", **more):
    return registry.commit(registry.register(subject, kind, definition, now=7, **more))


def test_ids_are_per_subject_and_versions_count_from_one(registry):
    """All versions of a subject have one id above 0, another subject has the next."""
    first = register(registry, "a", with_default("x"))
    second = register(registry, "a", with_default("x", "y"))
    other = register(registry, "b", with_default("x"))
    assert (first.schema_id, first.version, first.is_new_version) == (1, 1, True)
    assert (second.schema_id, second.version, second.is_new_version) == (1, 2, True)
    assert (other.schema_id, other.version) == (2, 1)
    assert first.fingerprint == other.fingerprint != second.fingerprint


def test_the_same_definition_is_the_version_it_was(registry):
    """Registering it again, with other spaces, changes nothing and writes nothing."""
    first = register(registry, "a", with_default("x"))
    register(registry, "a", with_default("x", "y"))
    planned = registry.register("a", "avro", b" " + with_default("x"), now=9)
    assert planned.changes == ()
    assert planned.reply == Registered(1, 1, False, first.fingerprint)
    assert registry.latest_schema("a").version == 2


def test_a_plan_changes_nothing_until_it_is_committed(registry):
    """What is not durable is not visible."""
    planned = registry.register("a", "avro", with_default("x"), now=1)
    assert registry.subjects() == []
    with pytest.raises(NotFound):
        registry.latest_schema("a")
    registry.commit(planned)
    assert [each.subject for each in registry.subjects()] == ["a"]


def test_a_plan_that_was_overtaken_is_a_conflict(registry):
    """Two plans made side by side cannot both take the next id."""
    one = registry.register("a", "avro", with_default("x"), now=1)
    two = registry.register("b", "avro", with_default("x"), now=1)
    registry.commit(one)
    with pytest.raises(Conflict, match="plan it again"):
        registry.commit(two)
    assert register(registry, "b", with_default("x")).schema_id == 2


def test_an_incompatible_version_is_refused_with_its_reasons(registry):
    """The default mode is backward, and it is the latest version that counts."""
    register(registry, "a", with_default("x"))
    with pytest.raises(IncompatibleSchema) as caught:
        registry.register("a", "avro", avro("x", "y", "z"), now=1)
    assert str(caught.value).startswith(
        "Failed to register schema: not backward compatible with version 1 of 'a': backward: at $.y"
    )
    assert len(caught.value.reasons) == 2
    assert codes_of(caught.value).grpc == "FAILED_PRECONDITION"


def test_a_mode_decides_what_may_follow(registry):
    """With none everything may follow, even another type; with full almost nothing."""
    register(registry, "a", avro("x"))
    reply = registry.commit(registry.set_mode("a", "Forward"))
    assert reply == "Compatibility mode set to forward for subject a"
    register(registry, "a", avro("x", "y"))
    registry.commit(registry.set_mode("a", "full"))
    with pytest.raises(IncompatibleSchema, match="not full compatible with version 2"):
        registry.register("a", "avro", avro("z"), now=1)
    registry.commit(registry.set_mode("a", "none"))
    assert register(registry, "a", b"", "string").version == 3
    assert registry.schema(1).type == "string"
    with pytest.raises(InvalidRequest, match="Invalid compatibility mode: 'odd'"):
        registry.set_mode("a", "odd")
    with pytest.raises(NotFound, match="Subject not found: b"):
        registry.set_mode("b", "none")


def test_compatibility_is_checked_without_registering(registry):
    """In the subject's mode or another, of the subject's type if none is named."""
    assert registry.check_compatibility("new", "avro", avro("x")).is_compatible
    register(registry, "a", avro("x"))
    wrong = registry.check_compatibility("a", "", avro("x", "y"))
    assert not wrong.is_compatible
    assert wrong.errors == ("backward: at $.y: the writer has no such field and it has no default",)
    assert registry.check_compatibility("a", "avro", avro("x", "y"), "forward").errors == ()
    with pytest.raises(InvalidRequest, match="not JSON"):
        registry.check_compatibility("a", "avro", b"{")
    with pytest.raises(InvalidRequest, match="Invalid schema type: ''"):
        registry.check_compatibility("new", "", b"")
    assert len(registry.versions("a")) == 1


def test_a_schema_is_read_back_as_it_was_registered(registry):
    """The raw definition, the notes and the mode come back."""
    definition = b"  " + with_default("x")
    register(registry, "a", definition, description="d", created_by="me", tags=["t", "u"])
    found = registry.schema(1)
    assert found == registry.latest_schema("a") == registry.schema(1, 1)
    assert found.definition == definition
    assert (found.schema_id, found.version, found.subject, found.type) == (1, 1, "a", "avro")
    assert (found.description, found.created_by, found.tags) == ("d", "me", ("t", "u"))
    assert (found.created_at, found.compatibility_mode) == (7, "backward")


def test_what_is_not_there_is_told_in_the_protocols_words(registry):
    """Unknown ids, subjects and versions have the texts that clients know."""
    register(registry, "a", with_default("x"))
    with pytest.raises(NotFound) as caught:
        registry.schema(9)
    assert str(caught.value) == "Schema not found for ID: 9"
    with pytest.raises(NotFound, match="Schema not found for ID: 1 version: 2"):
        registry.schema(1, 2)
    with pytest.raises(NotFound) as caught:
        registry.latest_schema("b")
    assert str(caught.value) == "Schema not found for subject: b"
    with pytest.raises(NotFound) as caught:
        registry.versions("b\n")
    assert str(caught.value) == "Subject not found: b\\n"


def test_versions_and_subjects_are_listed(registry):
    """Oldest version first, subjects by name with their latest version."""
    register(registry, "b", b"", "int64")
    register(registry, "a", with_default("x"), tags=["old"])
    register(registry, "a", with_default("x", "y"), tags=["new"], description="more")
    assert [(each.version, each.description) for each in registry.versions("a")] == [
        (1, ""),
        (2, "more"),
    ]
    one, two = registry.subjects()
    assert (one.subject, one.latest_version, one.schema_id, one.tags) == ("a", 2, 2, ("new",))
    assert (two.subject, two.type, two.compatibility_mode) == ("b", "number", "backward")


def test_a_deleted_version_is_gone_and_its_number_with_it(registry):
    """The next version has the next number, also when the latest was deleted."""
    register(registry, "a", with_default("x"))
    register(registry, "a", with_default("x", "y"))
    assert registry.commit(registry.delete_version("a", 2)) == "Deleted version 2 for subject a"
    assert registry.latest_schema("a").version == 1
    assert register(registry, "a", with_default("x", "y")).version == 3
    with pytest.raises(NotFound, match="Version 2 not found for subject: a"):
        registry.delete_version("a", 2)


def test_the_last_version_takes_the_subject_but_not_its_id(registry):
    """The subject is gone; one of the same name is another, with an id that none had."""
    register(registry, "a", with_default("x"))
    registry.commit(registry.delete_version("a", 1))
    assert registry.subjects() == []
    with pytest.raises(NotFound):
        registry.schema(1)
    again = register(registry, "a", avro("q"))
    assert (again.schema_id, again.version) == (2, 1)


def test_a_subject_in_use_keeps_its_last_version(registry):
    """A topic's subject cannot be taken away under it."""
    register(registry, "a", with_default("x"))
    registry.commit(registry.configure_topic("/default/t", "a", "", check_payload=False))
    with pytest.raises(Conflict, match="topic /default/t uses it"):
        registry.delete_version("a", 1)
    registry.commit(registry.forget_topic("/default/t"))
    registry.commit(registry.delete_version("a", 1))
    assert registry.subjects() == []
    assert registry.forget_topic("/default/t").changes == ()


WRONG = [
    ({"subject": ""}, "this one is empty"),
    ({"subject": "a b"}, "Invalid subject"),
    ({"type_name": "xml"}, "Invalid schema type"),
    ({"definition": b"{"}, "not JSON"),
    ({"definition": b"x" * ((1 << 20) + 1)}, "too large"),
    ({"description": "x" * 4097}, "description is too long"),
    ({"created_by": "x" * 256}, "author is too long"),
    ({"tags": ["x"] * 33}, "too many tags"),
    ({"tags": ["x" * 129]}, "tag is too long"),
    ({"created_by": "\ud800"}, "not valid Unicode"),
]


@pytest.mark.parametrize(("change", "reason"), WRONG, ids=[row[1] for row in WRONG])
def test_a_wrong_request_is_told(registry, change, reason):
    """Each field has its limit."""
    call = {"subject": "a", "type_name": "avro", "definition": b'"int"', "now": 1, **change}
    with pytest.raises(InvalidRequest, match=reason):
        registry.register(**call)


def test_subjects_and_versions_have_their_limits(registry, monkeypatch):
    """The one beyond is Overloaded, an existing one is still found."""
    monkeypatch.setattr(limits, "SUBJECTS_MAX", 2)
    monkeypatch.setattr(limits, "VERSIONS_MAX", 2)
    register(registry, "a", b"", "bytes")
    register(registry, "b", b"", "bytes")
    with pytest.raises(Overloaded, match="too many subjects"):
        register(registry, "c", b"", "bytes")
    registry.commit(registry.set_mode("a", "none"))
    register(registry, "a", b"", "string")
    with pytest.raises(Overloaded, match="'a' has too many versions"):
        register(registry, "a", b"", "number")
    assert register(registry, "a", b"", "bytes").version == 1


def test_heavy_libraries_are_not_imported_with_the_registry():
    """They come with the first definition that needs them."""
    code = (
        "import sys, frazil.registry;"
        "heavy = {'google.protobuf', 'jsonschema', 'fastavro', 'referencing'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert found.stdout.strip() == "[]"
