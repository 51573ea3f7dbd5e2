"""The schema settings of topics, and the check of a record's schema id and version."""

from __future__ import annotations

import pytest

from frazil.errors import InvalidRequest, Overloaded
from frazil.registry import Registry
from tests.unit.registry.registering import register

TOPIC = "/default/people"


@pytest.fixture
def registry():
    registry = Registry()
    register(registry, "person", b"{}", "json_schema")
    register(registry, "other", kind="string")
    return registry


def configure(registry, policy, *, check_payload=True, subject="person"):
    return registry.commit(
        registry.configure_topic(TOPIC, subject, policy, check_payload=check_payload)
    )


def test_topics_have_a_limit_and_a_name(registry, monkeypatch):
    """A topic beyond the limit is an overload, one without a name is refused."""
    with pytest.raises(InvalidRequest, match="this one is empty"):
        registry.configure_topic("", "person", "warn", check_payload=True)
    monkeypatch.setattr("frazil.registry.registry.TOPICS_MAX", 0)
    with pytest.raises(Overloaded, match="too many topics"):
        registry.configure_topic(TOPIC, "person", "warn", check_payload=True)


def check(registry, schema_id=None, version=None):
    return registry.check_ids(TOPIC, schema_id=schema_id, schema_version=version)


def test_without_a_subject_or_a_policy_every_record_is_accepted(registry):
    """Such a topic's records are not checked."""
    assert check(registry).refusal is None
    configure(registry, "none")
    assert check(registry, 9).refusal is None
    assert check(registry).is_quick


CASES = [
    (1, None, None),
    (1, 1, None),
    (None, None, "the message has no schema id, subject 'person' has 1"),
    (2, None, "the message has schema id 2, subject 'person' has 1"),
    (1, 5, "subject 'person' has no version 5"),
]


@pytest.mark.parametrize(("schema_id", "version", "refusal"), CASES)
def test_ids_and_versions_are_checked(registry, schema_id, version, refusal):
    """The reason is the same under each policy; only `enforce` refuses."""
    for policy in ("enforce", "warn"):
        configure(registry, policy)
        found = check(registry, schema_id, version)
        assert found.refusal == refusal
        assert found.is_enforced == (policy == "enforce")
        assert found.payload_version == (0 if refusal else 1)


def test_a_subject_that_is_gone_is_a_refusal():
    """Entries that name one are read, and no record fits."""
    registry = Registry()
    register(registry, "person")
    configure(registry, "enforce")
    registry.apply("subject:person", None)
    assert check(registry, 1).refusal == "its schema subject 'person' not found in registry"


def test_payloads_are_checked_when_asked_for_by_the_version_they_name(registry):
    """Types without a definition need no library."""
    configure(registry, "enforce", check_payload=False)
    assert check(registry, 1).payload_version == 0
    assert check(registry, 1).is_quick
    configure(registry, "enforce")
    register(registry, "person", kind="string")
    latest, first = check(registry, 1), check(registry, 1, 1)
    assert (latest.payload_version, latest.is_quick) == (2, True)
    assert (first.payload_version, first.is_quick) == (1, False)
    assert first == check(registry, 1, 1)
    assert first != latest
