"""Versions registered without the sandbox: a definition is not read."""

from __future__ import annotations

import hashlib

from frazil.registry import NewSchema, Planned, entries
from frazil.registry.entries import IdsEntry


def plan(registry, subject, definition=b"", kind="bytes", *, now=1, reasons=(), **notes):
    """Plan a version as the store does with the answer of the sandbox."""
    new = NewSchema(subject=subject, type=kind, definition=definition, now=now, **notes)
    fingerprint = hashlib.sha256(definition).hexdigest()
    known = registry.known_version(new, fingerprint)
    if known is not None:
        return known
    return registry.plan_version(
        new, fingerprint=fingerprint, packed=entries.pack(definition), reasons=reasons
    )


def register(registry, subject, definition=b"", kind="bytes", **more):
    """Register a version; a definition that is known changes nothing."""
    planned = plan(registry, subject, definition, kind, **more)
    return registry.commit(planned) if isinstance(planned, Planned) else planned


def states_of(registry):
    """Yield the entries that make an equal registry."""
    yield entries.IDS_KEY, entries.encode(IdsEntry(registry._schema_id_next))
    for name, subject in sorted(registry._subjects.items()):
        yield entries.subject_key(name), entries.encode(subject.entry)
        for version, found in sorted(subject.versions.items()):
            yield entries.version_key(name, version), entries.encode(found)
    for name, topic in sorted(registry.topics.items()):
        yield entries.topic_key(name), entries.encode(topic)
