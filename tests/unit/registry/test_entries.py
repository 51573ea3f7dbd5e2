"""Entries: the registry is what they say, and damage is found."""

from __future__ import annotations

import msgspec
import pytest

from frazil.errors import CorruptionError, InvalidRequest
from frazil.registry import Registry, entries
from frazil.registry.entries import IdsEntry, SubjectEntry, VersionEntry
from tests.unit.registry.registering import register


def filled():
    registry = Registry()
    for name in ("a", "b:1:c"):
        register(registry, name, b"x", now=5, tags=("t",))
        registry.commit(registry.set_mode(name, "none"))
        register(registry, name, b"\xff", "string", now=6)
    register(registry, "gone", now=7)
    registry.commit(registry.delete_version("gone", 1))
    registry.commit(registry.configure_topic("/default/t:x", "a", "enforce", check_payload=True))
    return registry


def test_a_key_is_taken_apart_as_it_was_made():
    """Colons in a name do not confuse it."""
    assert entries.parse_key(entries.version_key("b:1:c", 12)) == ("version", "b:1:c", 12)
    assert entries.parse_key(entries.subject_key("a:b")) == ("subject", "a:b", 0)
    assert entries.parse_key(entries.topic_key("/x/y")) == ("topic", "/x/y", 0)
    assert entries.parse_key("ids") == ("ids", "", 0)


@pytest.mark.parametrize("key", ["", "x", "subject:", "version:a:b", "version:1:", "ids:", "topic"])
def test_a_strange_key_is_corruption(key):
    """A key that the registry never makes is refused."""
    with pytest.raises(CorruptionError, match="not a key of the schema registry"):
        Registry().apply(key, b"")


def version(schema_id=1, packed=None, kind="bytes"):
    packed = entries.pack(b"x") if packed is None else packed
    return entries.encode(VersionEntry(schema_id, kind, packed, "f"))


def test_damaged_values_are_corruption():
    """Bytes that are no entry are refused, and a definition that does not unpack."""
    for key in ("subject:a", "version:1:a", "topic:t", "ids"):
        for value in (b"", b"\xc1", b"\x80", b"\x93\x01\x02\x03"):
            with pytest.raises(CorruptionError, match="is damaged"):
                Registry().apply(key, value)
    bomb = entries.pack(b"\0" * (entries.DEFINITION_BYTES_MAX + 1))
    for packed in (b"", b"junk", entries.pack(b"x")[:-2], bomb):
        with pytest.raises(CorruptionError, match="definition is damaged"):
            Registry().apply("version:1:a", version(packed=packed))


def test_contradicting_entries_are_corruption():
    """One id belongs to one subject, and a subject has one."""
    registry = Registry()
    registry.apply("version:1:a", version(1))
    for key, value in (
        ("version:2:a", version(2)),
        ("version:1:b", version(1)),
        ("subject:a", entries.encode(SubjectEntry(3, "none", 1))),
        ("version:1:c", version(0)),
    ):
        with pytest.raises(CorruptionError, match="contradict"):
            registry.apply(key, value)


def test_a_newer_writers_fields_are_skipped():
    """An entry with a name that this version does not know is read."""
    value = msgspec.msgpack.encode({"schema_id_next": 9, "later": [1]})
    assert entries.decode("ids", value, IdsEntry) == IdsEntry(9)


def test_the_largest_definition_is_kept_and_comes_back():
    """A megabyte of text fits; what does not compress below the limit is refused."""
    registry = Registry()
    large = b" " * entries.DEFINITION_BYTES_MAX
    register(registry, "a", large, "string")
    assert registry.latest_schema("a").definition == large
    noise = bytes((index * 7919 + index // 251) * 31 % 256 for index in range(1 << 10))
    entry = VersionEntry(1, "bytes", noise * 1100, "f")
    with pytest.raises(InvalidRequest, match="even when it is compressed"):
        entries.encode(entry)


def test_deleting_what_is_not_there_changes_nothing():
    """Removals may come twice."""
    registry = filled()
    for key in ("subject:none", "version:9:a", "version:1:none", "topic:none", "ids"):
        registry.apply(key, None)
    assert registry == filled()
