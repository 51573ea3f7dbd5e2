"""The registry's state: subjects with their versions, and what topics ask for.

It changes by entries alone, so that the same entries make the same catalog, in any order of keys.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from frazil.errors import CorruptionError, NotFound
from frazil.registry import entries
from frazil.registry.entries import (
    Change,
    IdsEntry,
    SubjectEntry,
    TopicEntry,
    VersionEntry,
)
from frazil.registry.kinds import CompatibilityMode, SchemaType, quoted

__all__ = ["Catalog", "Schema", "Subject"]

MODE_DEFAULT: CompatibilityMode = "backward"


@attrs.frozen
class Schema:
    """One version of a subject, as callers see it."""

    schema_id: int
    version: int
    subject: str
    type: SchemaType
    definition: bytes
    fingerprint: str
    compatibility_mode: CompatibilityMode
    created_at: int
    created_by: str
    description: str
    tags: tuple[str, ...]


@attrs.define
class Subject:
    """A subject; without versions it is only a reserved id, and nobody sees it."""

    name: str
    schema_id: int
    mode: CompatibilityMode = MODE_DEFAULT
    version_next: int = 1
    versions: dict[int, VersionEntry] = attrs.field(factory=dict)

    @property
    def latest(self) -> int:
        """The newest version's number, 0 if there is none."""
        return max(self.versions, default=0)

    def entry(self, version_next: int) -> SubjectEntry:
        return SubjectEntry(self.schema_id, self.mode, version_next)

    def schema(self, version: int) -> Schema:
        """Return one version; it must exist."""
        found = self.versions[version]
        key = entries.version_key(self.name, version)
        return Schema(
            schema_id=self.schema_id,
            version=version,
            subject=self.name,
            type=found.type,
            definition=entries.unpack(found.packed, key=key),
            fingerprint=found.fingerprint,
            compatibility_mode=self.mode,
            created_at=found.created_at,
            created_by=found.created_by,
            description=found.description,
            tags=found.tags,
        )


@attrs.define
class Catalog:
    """Subjects and topics by name. Equal when they hold the same."""

    _subjects: dict[str, Subject] = attrs.field(factory=dict)
    _names: dict[int, str] = attrs.field(factory=dict)
    _topics: dict[str, TopicEntry] = attrs.field(factory=dict)
    _schema_id_next: int = 1
    _revision: int = attrs.field(default=0, eq=False)

    @property
    def revision(self) -> int:
        """How many entries were applied."""
        return self._revision

    @property
    def schema_id_next(self) -> int:
        """The id of the next new subject."""
        return self._schema_id_next

    @property
    def subjects_count(self) -> int:
        return len(self._subjects)

    @property
    def versions_count(self) -> int:
        """How many versions all subjects have."""
        return sum(len(each.versions) for each in self._subjects.values())

    @property
    def topics(self) -> dict[str, TopicEntry]:
        """Topics that ask for a schema; read only."""
        return self._topics

    def reserved(self, name: str) -> Subject | None:
        """Return a subject even if it has no version."""
        return self._subjects.get(name)

    def find(self, name: str) -> Subject | None:
        """Return a subject that has a version."""
        found = self._subjects.get(name)
        return found if found and found.versions else None

    def subject(self, name: str) -> Subject:
        """Return a subject that must exist."""
        found = self.find(name)
        if found is None:
            raise NotFound(f"Subject not found: {quoted(name)}")
        return found

    def by_id(self, schema_id: int) -> Subject | None:
        """Return the subject with an id."""
        name = self._names.get(schema_id)
        return None if name is None else self.find(name)

    def all_subjects(self) -> list[Subject]:
        """Return the subjects that have versions, by name."""
        return [each for _, each in sorted(self._subjects.items()) if each.versions]

    def to_states(self) -> Iterator[tuple[str, bytes]]:
        """Yield entries that make an equal catalog."""
        if self._schema_id_next > 1:
            yield entries.IDS_KEY, entries.encode(IdsEntry(self._schema_id_next))
        for name, subject in sorted(self._subjects.items()):
            entry = subject.entry(subject.version_next)
            yield entries.subject_key(name), entries.encode(entry)
            for version, found in sorted(subject.versions.items()):
                yield entries.version_key(name, version), entries.encode(found)
        for name, topic in sorted(self._topics.items()):
            yield entries.topic_key(name), entries.encode(topic)

    def apply(self, key: str, value: bytes | None) -> None:
        """Take over one entry; the same entry again changes nothing.

        Raises:
            CorruptionError: if it is no entry of the registry, or contradicts another one.
        """
        parsed = entries.parse_key(key)
        if parsed.kind == "topic":
            self._apply_topic(Change(key, value), parsed.name)
        elif parsed.kind == "subject":
            self._apply_subject(Change(key, value), parsed.name)
        elif parsed.kind == "version":
            self._apply_version(Change(key, value), parsed.name, parsed.version)
        elif value is not None:
            ids = entries.decode(key, value, IdsEntry)
            self._schema_id_next = max(self._schema_id_next, ids.schema_id_next)
        self._revision += 1

    def _apply_topic(self, change: Change, name: str) -> None:
        if change.value is None:
            self._topics.pop(name, None)
        else:
            self._topics[name] = entries.decode(change.key, change.value, TopicEntry)

    def _apply_subject(self, change: Change, name: str) -> None:
        if change.value is None:
            found = self._subjects.get(name)
            if found is not None:
                # A version whose removal is behind this one in the order is removed with it.
                del self._subjects[name]
                self._names.pop(found.schema_id, None)
            return
        entry = entries.decode(change.key, change.value, SubjectEntry)
        subject = self._with_id(change.key, name, entry.schema_id)
        subject.mode = entry.mode
        subject.version_next = max(subject.version_next, entry.version_next)

    def _apply_version(self, change: Change, name: str, version: int) -> None:
        if change.value is None:
            found = self._subjects.get(name)
            if found is not None:
                found.versions.pop(version, None)
            return
        entry = entries.decode(change.key, change.value, VersionEntry)
        entries.unpack(entry.packed, key=change.key)
        subject = self._with_id(change.key, name, entry.schema_id)
        subject.versions[version] = entry
        subject.version_next = max(subject.version_next, version + 1)

    def _with_id(self, key: str, name: str, schema_id: int) -> Subject:
        """Return the subject of a name, made now if it is not there; the id must be its own."""
        subject = self._subjects.get(name)
        owner = self._names.get(schema_id, name)
        if schema_id < 1 or owner != name or (subject and subject.schema_id != schema_id):
            raise CorruptionError(
                "two entries of the schema registry contradict each other",
                key=key,
                schema_id=schema_id,
            )
        if subject is None:
            subject = self._subjects[name] = Subject(name, schema_id)
            self._names[schema_id] = name
            self._schema_id_next = max(self._schema_id_next, schema_id + 1)
        return subject
