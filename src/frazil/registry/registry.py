"""The schema registry: what it is asked for, decided on its state. No I/O, no clock.

A call that changes something returns a `Planned`: the reply, and the entries to write. Nothing has
changed yet. The caller makes the entries durable, in their order, and then `commit`s the plan; so
nobody sees a schema that a crash could take back. Plans are made one at a time: one that was made
before another was committed is a `Conflict`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import attrs

from frazil.errors import Conflict, InvalidRequest, NotFound, Overloaded
from frazil.registry import entries, limits, verdicts
from frazil.registry.catalog import MODE_DEFAULT, Catalog, Schema, Subject
from frazil.registry.definitions import (
    Definition,
    incompatibilities,
    parse_definition,
)
from frazil.registry.entries import Change, IdsEntry, SubjectEntry, TopicEntry, VersionEntry
from frazil.registry.kinds import (
    CompatibilityMode,
    SchemaType,
    ValidationPolicy,
    check_subject,
    check_text,
    check_topic,
    compatibility_mode,
    quoted,
    schema_type,
    validation_policy,
)
from frazil.registry.work import Work

__all__ = [
    "Compatibility",
    "IncompatibleSchema",
    "Planned",
    "Registered",
    "Registry",
    "SubjectSummary",
    "TopicSchema",
    "VersionSummary",
]

POLICY_DEFAULT: ValidationPolicy = "warn"
_Reply = TypeVar("_Reply")


class IncompatibleSchema(Conflict):
    """A new version breaks the subject's compatibility mode; `reasons` say where."""

    def __init__(self, message: str, /, **details: object) -> None:
        super().__init__(message, **details)
        self.reasons: tuple[str, ...] = ()


@attrs.frozen
class Planned(Generic[_Reply]):
    """A reply that is true once `changes` are durable and the plan is committed."""

    reply: _Reply
    changes: tuple[Change, ...]
    revision: int


@attrs.frozen
class Registered:
    """What registering a schema came to."""

    schema_id: int
    version: int
    is_new_version: bool
    fingerprint: str


@attrs.frozen
class Compatibility:
    """Whether a schema may follow the latest version, and why not."""

    is_compatible: bool
    errors: tuple[str, ...]


@attrs.frozen
class SubjectSummary:
    """A line of the list of subjects."""

    subject: str
    type: SchemaType
    latest_version: int
    compatibility_mode: CompatibilityMode
    schema_id: int
    tags: tuple[str, ...]


@attrs.frozen
class VersionSummary:
    """A line of the list of versions."""

    version: int
    schema_id: int
    created_at: int
    created_by: str
    description: str
    fingerprint: str


@attrs.frozen
class TopicSchema:
    """What a topic asks of its records; `schema_id` is 0 when the subject is gone."""

    subject: str
    policy: ValidationPolicy
    check_payload: bool
    schema_id: int


class Registry:
    """Subjects, versions, modes and the schemas of topics, in memory."""

    def __init__(self) -> None:
        self._catalog = Catalog()
        self._cache = verdicts.DefinitionCache()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Registry) and self._catalog == other._catalog

    __hash__ = None  # type: ignore[assignment]

    # ---------------------------------------------------------------------------- state

    def apply(self, key: str, value: bytes | None) -> None:
        """Take over one durable entry (None: it was deleted), in any order of keys."""
        self._catalog.apply(key, value)

    def to_states(self) -> Iterator[tuple[str, bytes]]:
        """Yield the entries that make an equal registry."""
        return self._catalog.to_states()

    def commit(self, planned: Planned[_Reply]) -> _Reply:
        """Make a plan's durable changes visible and return its reply."""
        if planned.changes and planned.revision != self._catalog.revision:
            raise Conflict("the schema registry changed since this was planned, plan it again")
        for change in planned.changes:
            self._catalog.apply(*change)
        return planned.reply

    def _plan(self, reply: _Reply, *changes: Change) -> Planned[_Reply]:
        return Planned(reply, changes, self._catalog.revision)

    # -------------------------------------------------------------------------- schemas

    def register(
        self,
        subject: str,
        type_name: str,
        definition: bytes,
        *,
        now: int,
        description: str = "",
        created_by: str = "",
        tags: Sequence[str] = (),
    ) -> Planned[Registered]:
        """Plan a version of a subject; a definition it has already is that version.

        Raises:
            InvalidRequest: if a name, the type or the definition is wrong.
            IncompatibleSchema: if it breaks the subject's mode.
            Overloaded: if there are too many subjects or versions.
        """
        check_subject(subject)
        kind = schema_type(type_name)
        _check_notes(description, created_by, tags)
        parsed = parse_definition(kind, definition)
        found = self._catalog.reserved(subject)
        if found is not None:
            same = _same_version(found, parsed)
            if same:
                return self._plan(Registered(found.schema_id, same, False, parsed.fingerprint))
            self._check_compatible(found, parsed)
        entry = VersionEntry(
            schema_id=found.schema_id if found else self._catalog.schema_id_next,
            type=kind,
            packed=entries.pack(definition),
            fingerprint=parsed.fingerprint,
            created_at=now,
            created_by=created_by,
            description=description,
            tags=tuple(tags),
        )
        return self._plan_version(subject, found, entry)

    def _plan_version(
        self, name: str, found: Subject | None, entry: VersionEntry
    ) -> Planned[Registered]:
        changes = []
        version = found.version_next if found else 1
        if found is None:
            self._check_room_for_subject(entry.schema_id)
            # The subject first: a crash between the two leaves a reserved id, not a lone version.
            first = SubjectEntry(entry.schema_id, MODE_DEFAULT, 1)
            changes.append(Change(entries.subject_key(name), entries.encode(first)))
        elif len(found.versions) >= limits.VERSIONS_MAX or version > limits.VERSION_NUMBER_MAX:
            raise Overloaded(
                f"the subject '{name}' has too many versions, delete some",
                versions=len(found.versions),
                versions_max=limits.VERSIONS_MAX,
            )
        changes.append(Change(entries.version_key(name, version), entries.encode(entry)))
        reply = Registered(entry.schema_id, version, True, entry.fingerprint)
        return self._plan(reply, *changes)

    def _check_room_for_subject(self, schema_id: int) -> None:
        full = self._catalog.subjects_count >= limits.SUBJECTS_MAX
        if full or schema_id > limits.SCHEMA_ID_MAX:
            raise Overloaded(
                "the schema registry has too many subjects, delete some",
                subjects_max=limits.SUBJECTS_MAX,
            )

    def _check_compatible(self, subject: Subject, new: Definition) -> None:
        found = self._incompatibilities(subject, new, subject.mode)
        if found:
            refusal = IncompatibleSchema(
                f"Failed to register schema: not {subject.mode} compatible with version"
                f" {subject.latest} of '{subject.name}': {'; '.join(found[:10])}"
            )
            refusal.reasons = found
            raise refusal

    def _incompatibilities(
        self, subject: Subject, new: Definition, mode: CompatibilityMode
    ) -> tuple[str, ...]:
        if not subject.versions or mode == "none":
            return ()
        latest = self._cache.get(subject, subject.latest)
        return incompatibilities(old=latest, new=new, mode=mode)

    def check_compatibility(
        self, subject: str, type_name: str, definition: bytes, mode: str | None = None
    ) -> Compatibility:
        """Compare a definition with the latest version, in the subject's mode or another one.

        Without a type it is of the subject's; a new subject takes everything.
        """
        check_subject(subject)
        found = self._catalog.find(subject)
        wanted = compatibility_mode(mode) if mode else (found.mode if found else MODE_DEFAULT)
        if not type_name and found is not None:
            kind = found.versions[found.latest].type
        else:
            kind = schema_type(type_name)
        parsed = parse_definition(kind, definition)
        errors = self._incompatibilities(found, parsed, wanted) if found else ()
        return Compatibility(is_compatible=not errors, errors=errors)

    def schema(self, schema_id: int, version: int | None = None) -> Schema:
        """Return a version of the subject with an id, the latest if none is named."""
        found = self._catalog.by_id(schema_id)
        if found is None:
            raise NotFound(f"Schema not found for ID: {schema_id}")
        wanted = found.latest if version is None else version
        if wanted not in found.versions:
            raise NotFound(f"Schema not found for ID: {schema_id} version: {wanted}")
        return found.schema(wanted)

    def latest_schema(self, subject: str) -> Schema:
        """Return the latest version of a subject."""
        found = self._catalog.find(subject)
        if found is None:
            raise NotFound(f"Schema not found for subject: {quoted(subject)}")
        return found.schema(found.latest)

    def versions(self, subject: str) -> list[VersionSummary]:
        """Return a line for each version of a subject, oldest first."""
        found = self._catalog.subject(subject)
        return [
            VersionSummary(
                version=version,
                schema_id=found.schema_id,
                created_at=entry.created_at,
                created_by=entry.created_by,
                description=entry.description,
                fingerprint=entry.fingerprint,
            )
            for version, entry in sorted(found.versions.items())
        ]

    def subjects(self) -> list[SubjectSummary]:
        """Return a line for each subject, by name."""
        return [
            SubjectSummary(
                subject=each.name,
                type=each.versions[each.latest].type,
                latest_version=each.latest,
                compatibility_mode=each.mode,
                schema_id=each.schema_id,
                tags=each.versions[each.latest].tags,
            )
            for each in self._catalog.all_subjects()
        ]

    def counts(self) -> dict[str, int]:
        """Return how much there is."""
        return {
            "subjects": self._catalog.subjects_count,
            "versions": self._catalog.versions_count,
            "topics": len(self._catalog.topics),
        }

    def set_mode(self, subject: str, mode: str) -> Planned[str]:
        """Plan another compatibility mode of a subject."""
        wanted = compatibility_mode(mode)
        found = self._catalog.subject(subject)
        entry = SubjectEntry(found.schema_id, wanted, found.version_next)
        return self._plan(
            f"Compatibility mode set to {wanted} for subject {subject}",
            Change(entries.subject_key(subject), entries.encode(entry)),
        )

    def delete_version(self, subject: str, version: int) -> Planned[str]:
        """Plan to remove a version; its number is not given again. The last takes the subject.

        Raises:
            Conflict: if it is the last version of a subject that a topic uses.
        """
        found = self._catalog.subject(subject)
        if version not in found.versions:
            raise NotFound(f"Version {version} not found for subject: {quoted(subject)}")
        removal = Change(entries.version_key(subject, version), None)
        reply = f"Deleted version {version} for subject {subject}"
        if len(found.versions) > 1:
            # The subject keeps the number, or the next version would get it again.
            kept = entries.encode(found.entry(found.version_next))
            return self._plan(reply, Change(entries.subject_key(subject), kept), removal)
        topics = self._catalog.topics.items()
        user = next((name for name, each in topics if each.subject == subject), None)
        if user is not None:
            raise Conflict(
                f"Cannot delete the last version of subject {subject}: topic {quoted(user)} uses it"
            )
        ids = entries.encode(IdsEntry(self._catalog.schema_id_next))
        return self._plan(
            reply,
            Change(entries.IDS_KEY, ids),
            removal,
            Change(entries.subject_key(subject), None),
        )

    # --------------------------------------------------------------------------- topics

    def configure_topic(
        self, topic: str, subject: str, policy: str, *, check_payload: bool
    ) -> Planned[str]:
        """Plan what a topic asks of its records; an empty policy is the default one."""
        found = self._catalog.subject(subject)
        wanted = validation_policy(policy) if policy else POLICY_DEFAULT
        return self._plan(
            f"Topic {quoted(topic)} uses schema subject {found.name}, validation policy {wanted}",
            self._topic_change(topic, TopicEntry(found.name, wanted, check_payload)),
        )

    def update_policy(self, topic: str, policy: str, *, check_payload: bool) -> Planned[str]:
        """Plan another policy of a topic that has a subject."""
        wanted = validation_policy(policy)
        found = self._topic(topic)
        return self._plan(
            f"Validation policy updated to {wanted}",
            self._topic_change(topic, TopicEntry(found.subject, wanted, check_payload)),
        )

    def assign_topic(self, topic: str, subject: str) -> Planned[TopicSchema]:
        """Plan the subject that a producer names: the first one gives it to the topic.

        Raises:
            Conflict: if the topic has another subject, or the registry does not have this one.
        """
        found = self._catalog.topics.get(topic)
        if found is not None and found.subject != subject:
            raise Conflict(
                f"Topic '{quoted(topic)}' uses schema subject '{found.subject}', cannot use"
                f" '{quoted(subject)}'. Only admin can change topic schema."
            )
        self.resolve(subject)
        if found is not None:
            return self._plan(self.topic_schema(topic))
        entry = TopicEntry(subject, POLICY_DEFAULT, check_payload=False)
        schema_id = self._catalog.subject(subject).schema_id
        reply = TopicSchema(subject, POLICY_DEFAULT, check_payload=False, schema_id=schema_id)
        return self._plan(reply, self._topic_change(topic, entry))

    def forget_topic(self, topic: str) -> Planned[None]:
        """Plan to drop what a deleted topic asked for."""
        if topic not in self._catalog.topics:
            return self._plan(None)
        return self._plan(None, Change(entries.topic_key(topic), None))

    def topic_schema(self, topic: str) -> TopicSchema:
        """Return what a topic asks of its records."""
        found = self._topic(topic)
        subject = self._catalog.find(found.subject)
        return TopicSchema(
            subject=found.subject,
            policy=found.policy,
            check_payload=found.check_payload,
            schema_id=subject.schema_id if subject else 0,
        )

    def resolve(
        self, subject: str, *, pinned_version: int | None = None, min_version: int | None = None
    ) -> Schema:
        """Return the schema that a producer's reference means; the latest unless it is pinned."""
        found = self._catalog.find(subject)
        if found is None:
            raise Conflict(f"Schema subject '{quoted(subject)}' not found in registry")
        wanted = found.latest if pinned_version is None else pinned_version
        if wanted not in found.versions:
            raise Conflict(f"Version {wanted} of schema subject '{subject}' not found in registry")
        if min_version is not None and found.latest < min_version:
            raise Conflict(
                f"Version {min_version} or later of schema subject '{subject}' not found in"
                f" registry, the latest is {found.latest}"
            )
        return found.schema(wanted)

    def check_message(
        self,
        topic: str,
        payload: bytes,
        *,
        schema_id: int | None = None,
        schema_version: int | None = None,
        work: Work | None = None,
    ) -> verdicts.Verdict:
        """Return whether a record may be published to a topic, with the reason.

        `work` counts what that took, and ends it when asked to.

        Raises:
            Unavailable: if `work` says that all checks are to stop.
        """
        return verdicts.judge(
            self._catalog,
            self._cache,
            topic,
            schema_id=schema_id,
            schema_version=schema_version,
            payload=payload,
            work=work or Work(),
        )

    def _topic(self, topic: str) -> TopicEntry:
        found = self._catalog.topics.get(topic)
        if found is None:
            raise NotFound(f"No schema configured for topic: {quoted(topic)}")
        return found

    def _topic_change(self, topic: str, entry: TopicEntry) -> Change:
        check_topic(topic)
        count = len(self._catalog.topics)
        if topic not in self._catalog.topics and count >= limits.TOPICS_MAX:
            raise Overloaded("too many topics with a schema", topics_max=limits.TOPICS_MAX)
        return Change(entries.topic_key(topic), entries.encode(entry))


def _same_version(subject: Subject, parsed: Definition) -> int:
    """Return the newest version with this definition, 0 if there is none."""
    return max(
        (
            version
            for version, entry in subject.versions.items()
            if entry.fingerprint == parsed.fingerprint and entry.type == parsed.type
        ),
        default=0,
    )


def _check_notes(description: str, created_by: str, tags: Sequence[str]) -> None:
    check_text("description", description, limits.DESCRIPTION_CHARACTERS_MAX)
    check_text("author", created_by, limits.AUTHOR_CHARACTERS_MAX)
    if len(tags) > limits.TAGS_MAX:
        raise InvalidRequest("too many tags", tags=len(tags), tags_max=limits.TAGS_MAX)
    for tag in tags:
        check_text("tag", tag, limits.TAG_CHARACTERS_MAX)
