"""What topics ask of their records, and what becomes of a record that does not fit."""

from __future__ import annotations

import json

import pytest

from frazil.errors import Conflict, InvalidRequest, NotFound, Overloaded
from frazil.registry import ACCEPTED, Registry, TopicSchema, limits

TOPIC = "/default/people"
PERSON = json.dumps({"type": "object", "required": ["name"]}).encode()
FULLER = json.dumps({"type": "object", "required": ["name"], "minProperties": 0}).encode()


@pytest.fixture
def registry():
    registry = Registry()
    registry.commit(registry.register("person", "json_schema", PERSON, now=1))
    registry.commit(registry.register("other", "string", b"", now=1))
    return registry


def configure(registry, policy, *, check_payload=True, subject="person"):
    return registry.commit(
        registry.configure_topic(TOPIC, subject, policy, check_payload=check_payload)
    )


def test_a_topic_is_configured_and_read_back(registry):
    """Subject, policy and payload check, with the subject's id; the default policy is warn."""
    assert configure(registry, "enforce") == (
        f"Topic {TOPIC} uses schema subject person, validation policy enforce"
    )
    assert registry.topic_schema(TOPIC) == TopicSchema("person", "enforce", True, 1)
    configure(registry, "", check_payload=False, subject="other")
    assert registry.topic_schema(TOPIC) == TopicSchema("other", "warn", False, 2)


def test_a_policy_is_updated(registry):
    """The subject stays, the answer names the policy."""
    configure(registry, "none")
    planned = registry.update_policy(TOPIC, "ENFORCE", check_payload=False)
    assert registry.commit(planned) == "Validation policy updated to enforce"
    assert registry.topic_schema(TOPIC) == TopicSchema("person", "enforce", False, 1)


def test_what_cannot_be_configured_is_told(registry, monkeypatch):
    """Unknown subjects, policies and topics, and too many of them."""
    with pytest.raises(NotFound, match="Subject not found: nobody"):
        registry.configure_topic(TOPIC, "nobody", "warn", check_payload=True)
    with pytest.raises(InvalidRequest, match="Invalid validation policy: 'strict'"):
        registry.configure_topic(TOPIC, "person", "strict", check_payload=True)
    with pytest.raises(InvalidRequest, match="this one is empty"):
        registry.configure_topic("", "person", "warn", check_payload=True)
    with pytest.raises(NotFound, match=f"No schema configured for topic: {TOPIC}"):
        registry.update_policy(TOPIC, "warn", check_payload=True)
    with pytest.raises(NotFound, match=f"No schema configured for topic: {TOPIC}"):
        registry.topic_schema(TOPIC)
    monkeypatch.setattr(limits, "TOPICS_MAX", 0)
    with pytest.raises(Overloaded, match="too many topics"):
        registry.configure_topic(TOPIC, "person", "warn", check_payload=True)


def test_the_first_producer_gives_the_subject(registry):
    """Another subject is refused in the protocol's words, the same one is fine."""
    planned = registry.assign_topic(TOPIC, "person")
    assert registry.commit(planned) == TopicSchema("person", "warn", False, 1)
    assert registry.assign_topic(TOPIC, "person").changes == ()
    with pytest.raises(Conflict) as caught:
        registry.assign_topic(TOPIC, "other")
    assert str(caught.value) == (
        f"Topic '{TOPIC}' uses schema subject 'person', cannot use 'other'."
        " Only admin can change topic schema."
    )
    with pytest.raises(Conflict, match="'nobody' not found in registry"):
        registry.assign_topic("/default/more", "nobody")


def test_references_are_resolved(registry):
    """To the latest version, a pinned one, or at least one."""
    registry.commit(registry.register("person", "json_schema", FULLER, now=2))
    assert registry.resolve("person").version == 2
    assert registry.resolve("person", pinned_version=1).version == 1
    assert registry.resolve("person", min_version=2).version == 2
    with pytest.raises(Conflict, match="Version 3 of schema subject 'person' not found in regis"):
        registry.resolve("person", pinned_version=3)
    with pytest.raises(Conflict, match=r"Version 3 or later of .* not found in registry, the lat"):
        registry.resolve("person", min_version=3)
    with pytest.raises(Conflict, match="'nobody' not found in registry"):
        registry.resolve("nobody")


def test_without_a_subject_or_a_policy_everything_is_accepted(registry):
    """Such a topic costs nothing and asks for nothing."""
    assert registry.check_message(TOPIC, b"\xff") is ACCEPTED
    configure(registry, "none")
    assert registry.check_message(TOPIC, b"\xff") is ACCEPTED


CASES = [
    (b'{"name":1}', 1, None, None),
    (b'{"name":1}', 1, 1, None),
    (b'{"name":1}', None, None, "the message has no schema id, subject 'person' has 1"),
    (b'{"name":1}', 2, None, "the message has schema id 2, subject 'person' has 1"),
    (b'{"name":1}', 1, 5, "subject 'person' has no version 5"),
    (b"{}", 1, None, "does not fit version 1 of 'person': at $: 'name' is a required property"),
]


@pytest.mark.parametrize(("payload", "schema_id", "version", "reason"), CASES)
def test_enforce_refuses_and_warn_tells(registry, payload, schema_id, version, reason):
    """The verdict differs, the reason is the same and names the topic."""
    for policy in ("enforce", "warn"):
        configure(registry, policy)
        verdict = registry.check_message(
            TOPIC, payload, schema_id=schema_id, schema_version=version
        )
        assert verdict.is_accepted == (policy == "warn" or reason is None)
        if reason is None:
            assert verdict.reason is None
        else:
            assert verdict.reason.startswith(f"schema validation failed for topic '{TOPIC}': ")
            assert verdict.reason.endswith(reason)


def test_payloads_are_looked_at_only_when_asked_for(registry):
    """Without the payload check the schema id is enough."""
    configure(registry, "enforce", check_payload=False)
    assert registry.check_message(TOPIC, b"\xff", schema_id=1) is ACCEPTED
    assert not registry.check_message(TOPIC, b"\xff").is_accepted


def test_a_payload_is_checked_by_the_version_it_names(registry):
    """An old version's payload passes under its version, not under the latest."""
    registry.commit(registry.set_mode("person", "none"))
    registry.commit(registry.register("person", "string", b"", now=2))
    configure(registry, "enforce")
    assert registry.check_message(TOPIC, b"hi", schema_id=1).is_accepted
    assert not registry.check_message(TOPIC, b"hi", schema_id=1, schema_version=1).is_accepted


def test_many_definitions_do_not_fill_the_memory(registry, monkeypatch):
    """The parsed ones that are kept are bounded, and the others are parsed again."""
    monkeypatch.setattr(limits, "DEFINITIONS_CACHED_MAX", 2)
    for number in range(5):
        registry.commit(registry.register(f"s{number}", "string", b"", now=1))
        registry.commit(
            registry.configure_topic(f"t{number}", f"s{number}", "enforce", check_payload=True)
        )
    for _ in range(2):
        for number in range(5):
            schema_id = registry.topic_schema(f"t{number}").schema_id
            assert registry.check_message(f"t{number}", b"x", schema_id=schema_id).is_accepted
            assert not registry.check_message(
                f"t{number}", b"\xff", schema_id=schema_id
            ).is_accepted
    assert len(registry._cache._found) == 2
