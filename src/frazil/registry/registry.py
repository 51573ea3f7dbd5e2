"""The schema registry's state and rules: no I/O, no clock, no library of schemas.

A call that changes state returns a `Planned`: the reply, and the entries to write. The state has
not changed yet. `SchemaStore` makes the entries durable, in order, and then commits the plan, one
plan at a time; so no caller sees a schema that a crash could revert. Only entries change the state:
the same entries make the same registry, in any order of keys.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

import attrs

from frazil.errors import Conflict, CorruptionError, InvalidRequest, NotFound, Overloaded
from frazil.registry import entries
from frazil.registry.entries import Change, IdsEntry, SubjectEntry, TopicEntry, VersionEntry
from frazil.registry.kinds import (
    PLAIN,
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

__all__ = [
    "NO_CHECK",
    "IdCheck",
    "IncompatibleSchema",
    "NewSchema",
    "Planned",
    "Registered",
    "Registry",
    "Schema",
    "Subject",
]

SUBJECTS_MAX: Final = 10_000
VERSIONS_MAX: Final = 1_000
"""The limit of concurrent versions of one subject."""
VERSION_NUMBER_MAX: Final = (1 << 32) - 1
SCHEMA_ID_MAX: Final = (1 << 53) - 1
"""Every client represents such an id exactly, including clients with floating-point numbers."""
TOPICS_MAX: Final = 100_000
DESCRIPTION_CHARACTERS_MAX: Final = 4_096
AUTHOR_CHARACTERS_MAX: Final = 255
TAGS_MAX: Final = 32
TAG_CHARACTERS_MAX: Final = 128
_REASONS_SHOWN_MAX: Final = 10

MODE_DEFAULT: Final[CompatibilityMode] = "backward"
POLICY_DEFAULT: Final[ValidationPolicy] = "warn"
_Reply = TypeVar("_Reply")


class IncompatibleSchema(Conflict):
    """A new version breaks the subject's compatibility mode; `reasons` has all reasons."""

    reasons: tuple[str, ...] = ()


@attrs.frozen
class Planned(Generic[_Reply]):
    """A reply that is valid once `changes` are durable and the plan is committed."""

    reply: _Reply
    changes: tuple[Change, ...]


@attrs.frozen(kw_only=True)
class NewSchema:
    """A version to register; everything but the definition's text is checked.

    Raises:
        InvalidRequest: if a name, the type or a size is invalid.
    """

    subject: str
    type: SchemaType = attrs.field(converter=schema_type)
    definition: bytes
    now: int
    description: str = ""
    created_by: str = ""
    tags: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        check_subject(self.subject)
        entries.check_definition_size(self.definition)
        check_text("description", self.description, DESCRIPTION_CHARACTERS_MAX)
        check_text("author", self.created_by, AUTHOR_CHARACTERS_MAX)
        if len(self.tags) > TAGS_MAX:
            raise InvalidRequest("too many tags", tags=len(self.tags), tags_max=TAGS_MAX)
        for tag in self.tags:
            check_text("tag", tag, TAG_CHARACTERS_MAX)


@attrs.frozen
class Registered:
    """The answer to a registration."""

    schema_id: int
    version: int
    is_new_version: bool
    fingerprint: str


@attrs.define
class Subject:
    """A subject; without versions it is only a reserved id, hidden from callers."""

    name: str
    schema_id: int
    mode: CompatibilityMode = MODE_DEFAULT
    version_next: int = 1
    versions: dict[int, VersionEntry] = attrs.field(factory=dict)

    @property
    def latest(self) -> int:
        """The newest version's number, 0 if there is none."""
        return max(self.versions, default=0)

    @property
    def entry(self) -> SubjectEntry:
        """The stored form of the subject without its versions."""
        return SubjectEntry(self.schema_id, self.mode, self.version_next)

    def schema(self, version: int = 0) -> Schema:
        """Return a version, which must exist, or the latest one."""
        number = version or self.latest
        return Schema(self, number, self.versions[number])


@attrs.frozen
class Schema:
    """One version of a subject."""

    subject: Subject
    version: int
    entry: VersionEntry

    @property
    def definition(self) -> bytes:
        """The definition as registered."""
        key = entries.version_key(self.subject.name, self.version)
        return entries.unpack(self.entry.packed, key=key)


@attrs.frozen
class IdCheck:
    """The check of a record's schema id and version against its topic's subject."""

    refusal: str | None
    """Why the id or version does not fit."""
    is_enforced: bool
    """Whether an invalid record is refused; otherwise it is accepted with a warning."""
    payload_version: int = 0
    """The version for the check of the payload; 0 if it is not checked."""
    subject: Subject | None = None

    @property
    def is_quick(self) -> bool:
        """Whether the check of the payload, if any, needs no library."""
        subject, version = self.subject, self.payload_version
        return not version or subject is None or subject.versions[version].type in PLAIN


NO_CHECK: Final = IdCheck(None, is_enforced=False)
"""The result for a topic without a subject, or with the policy `none`."""


@attrs.define
class Registry:
    """Subjects, versions, modes and topics' schemas. Equal if their content is equal."""

    _subjects: dict[str, Subject] = attrs.field(factory=dict, init=False)
    _names: dict[int, str] = attrs.field(factory=dict, init=False)
    """Subjects by schema id."""
    topics: dict[str, TopicEntry] = attrs.field(factory=dict, init=False)
    """Schema settings of the topics with a subject; read-only for callers."""
    _schema_id_next: int = attrs.field(default=1, init=False)

    # -- state -----------------------------------------------------------------------------------

    def apply(self, key: str, value: bytes | None) -> None:
        """Apply one durable entry (None: deleted); a repeat changes nothing.

        Raises:
            CorruptionError: if it is no entry of the registry, or contradicts another one.
        """
        kind, name, version = entries.parse_key(key)
        if value is None:
            self._remove(kind, name, version)
        elif kind == "topic":
            self.topics[name] = entries.decode(key, value, TopicEntry)
        elif kind == "ids":
            ids = entries.decode(key, value, IdsEntry)
            self._schema_id_next = max(self._schema_id_next, ids.schema_id_next)
        elif kind == "subject":
            entry = entries.decode(key, value, SubjectEntry)
            subject = self._with_id(key, name, entry.schema_id)
            subject.mode = entry.mode
            subject.version_next = max(subject.version_next, entry.version_next)
        else:
            self._add_version(key, name, version, entries.decode(key, value, VersionEntry))

    def _remove(self, kind: str, name: str, version: int) -> None:
        found = self._subjects.get(name)
        if kind == "topic":
            self.topics.pop(name, None)
        elif found is not None and kind == "version":
            found.versions.pop(version, None)
        elif found is not None:
            # The removal of its last version may come later in the order: remove the version here.
            del self._subjects[name]
            self._names.pop(found.schema_id, None)

    def _add_version(self, key: str, name: str, version: int, entry: VersionEntry) -> None:
        entries.unpack(entry.packed, key=key)
        subject = self._with_id(key, name, entry.schema_id)
        subject.versions[version] = entry
        subject.version_next = max(subject.version_next, version + 1)

    def _with_id(self, key: str, name: str, schema_id: int) -> Subject:
        """Return the subject of a name, created if absent; the id must belong to it."""
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

    def commit(self, planned: Planned[_Reply]) -> _Reply:
        """Make a plan's durable changes visible and return its reply."""
        for change in planned.changes:
            self.apply(*change)
        return planned.reply

    def find(self, name: str) -> Subject | None:
        """Return a subject with at least one version."""
        found = self._subjects.get(name)
        return found if found and found.versions else None

    def _subject(self, name: str) -> Subject:
        found = self.find(name)
        if found is None:
            raise NotFound(f"Subject not found: {quoted(name)}")
        return found

    # -- schemas ---------------------------------------------------------------------------------

    def known_version(self, new: NewSchema, fingerprint: str) -> Registered | None:
        """Return the newest version with this definition, None if there is none."""
        found = self._subjects.get(new.subject)
        if found is None:
            return None
        same = [
            version
            for version, entry in found.versions.items()
            if entry.fingerprint == fingerprint and entry.type == new.type
        ]
        return Registered(found.schema_id, max(same), False, fingerprint) if same else None

    def plan_version(
        self, new: NewSchema, *, fingerprint: str, packed: bytes, reasons: tuple[str, ...]
    ) -> Planned[Registered]:
        """Plan a version of a subject without this definition.

        Raises:
            IncompatibleSchema: if there are reasons why it may not follow the latest version.
            Overloaded: if there are too many subjects or versions.
        """
        name = new.subject
        found = self._subjects.get(name) or Subject(name, self._schema_id_next)
        if reasons:
            refusal = IncompatibleSchema(
                f"Failed to register schema: not {found.mode} compatible with version"
                f" {found.latest} of '{name}': {'; '.join(reasons[:_REASONS_SHOWN_MAX])}"
            )
            refusal.reasons = reasons
            raise refusal
        if len(found.versions) >= VERSIONS_MAX or found.version_next > VERSION_NUMBER_MAX:
            raise Overloaded(
                f"the subject '{name}' has too many versions, delete some",
                versions=len(found.versions),
                versions_max=VERSIONS_MAX,
            )
        changes = []
        if name not in self._subjects:
            if len(self._subjects) >= SUBJECTS_MAX or found.schema_id > SCHEMA_ID_MAX:
                raise Overloaded(
                    "the schema registry has too many subjects, delete some",
                    subjects_max=SUBJECTS_MAX,
                )
            # The subject first: a crash between the two leaves a reserved id, not a lone version.
            changes.append(Change(entries.subject_key(name), entries.encode(found.entry)))
        entry = VersionEntry(
            schema_id=found.schema_id,
            type=new.type,
            packed=packed,
            fingerprint=fingerprint,
            created_at=new.now,
            created_by=new.created_by,
            description=new.description,
            tags=new.tags,
        )
        version = found.version_next
        changes.append(Change(entries.version_key(name, version), entries.encode(entry)))
        return _planned(Registered(found.schema_id, version, True, fingerprint), *changes)

    def schema(self, schema_id: int, version: int | None = None) -> Schema:
        """Return a version of the subject with an id, the latest by default."""
        found = self.find(self._names.get(schema_id, ""))
        if found is None:
            raise NotFound(f"Schema not found for ID: {schema_id}")
        if version is not None and version not in found.versions:
            raise NotFound(f"Schema not found for ID: {schema_id} version: {version}")
        return found.schema(version or 0)

    def latest_schema(self, subject: str) -> Schema:
        """Return the latest version of a subject."""
        found = self.find(subject)
        if found is None:
            raise NotFound(f"Schema not found for subject: {quoted(subject)}")
        return found.schema()

    def versions(self, subject: str) -> list[Schema]:
        """Return all versions of a subject, oldest first."""
        found = self._subject(subject)
        return [found.schema(version) for version in sorted(found.versions)]

    def subjects(self) -> list[Schema]:
        """Return the latest version of each subject, by name."""
        return [each.schema() for _, each in sorted(self._subjects.items()) if each.versions]

    def counts(self) -> dict[str, int]:
        """Return the counts of subjects, versions and topics."""
        return {
            "subjects": len(self._subjects),
            "versions": sum(len(each.versions) for each in self._subjects.values()),
            "topics": len(self.topics),
        }

    def set_mode(self, subject: str, mode: str) -> Planned[str]:
        """Plan a change of a subject's compatibility mode."""
        wanted = compatibility_mode(mode)
        found = self._subject(subject)
        entry = SubjectEntry(found.schema_id, wanted, found.version_next)
        return _planned(
            f"Compatibility mode set to {wanted} for subject {subject}",
            Change(entries.subject_key(subject), entries.encode(entry)),
        )

    def delete_version(self, subject: str, version: int) -> Planned[str]:
        """Plan to remove a version; its number is not reused. The last one removes the subject.

        Raises:
            Conflict: if it is the last version of a subject that a topic uses.
        """
        found = self._subject(subject)
        if version not in found.versions:
            raise NotFound(f"Version {version} not found for subject: {quoted(subject)}")
        removal = Change(entries.version_key(subject, version), None)
        reply = f"Deleted version {version} for subject {subject}"
        if len(found.versions) > 1:
            # The subject keeps the number, or the next version would reuse it.
            kept = entries.encode(found.entry)
            return _planned(reply, Change(entries.subject_key(subject), kept), removal)
        user = next((name for name, each in self.topics.items() if each.subject == subject), None)
        if user is not None:
            raise Conflict(
                f"Cannot delete the last version of subject {subject}: topic {quoted(user)} uses it"
            )
        return _planned(
            reply,
            Change(entries.IDS_KEY, entries.encode(IdsEntry(self._schema_id_next))),
            removal,
            Change(entries.subject_key(subject), None),
        )

    # -- topics ----------------------------------------------------------------------------------

    def configure_topic(
        self, topic: str, subject: str, policy: str, *, check_payload: bool
    ) -> Planned[str]:
        """Plan the schema settings of a topic; an empty policy is the default."""
        found = self._subject(subject)
        wanted = validation_policy(policy) if policy else POLICY_DEFAULT
        return _planned(
            f"Topic {quoted(topic)} uses schema subject {found.name}, validation policy {wanted}",
            self._topic_change(topic, TopicEntry(found.name, wanted, check_payload)),
        )

    def update_policy(self, topic: str, policy: str, *, check_payload: bool) -> Planned[str]:
        """Plan a change of the policy of a topic with a subject."""
        wanted = validation_policy(policy)
        found = self.topics.get(topic)
        if found is None:
            raise NotFound(f"No schema configured for topic: {quoted(topic)}")
        return _planned(
            f"Validation policy updated to {wanted}",
            self._topic_change(topic, TopicEntry(found.subject, wanted, check_payload)),
        )

    def assign_topic(self, topic: str, subject: str) -> Planned[None]:
        """Plan the subject named by a producer: the first producer assigns it to the topic.

        Raises:
            Conflict: if the topic has another subject, or the registry does not have this one.
        """
        found = self.topics.get(topic)
        if found is not None and found.subject != subject:
            raise Conflict(
                f"Topic '{quoted(topic)}' uses schema subject '{found.subject}', cannot use"
                f" '{quoted(subject)}'. Only admin can change topic schema."
            )
        self.resolve(subject)
        if found is not None:
            return _planned(None)
        entry = TopicEntry(subject, POLICY_DEFAULT, check_payload=False)
        return _planned(None, self._topic_change(topic, entry))

    def forget_topic(self, topic: str) -> Planned[None]:
        """Plan the removal of a deleted topic's schema settings."""
        if topic not in self.topics:
            return _planned(None)
        return _planned(None, Change(entries.topic_key(topic), None))

    def resolve(
        self, subject: str, *, pinned_version: int | None = None, min_version: int | None = None
    ) -> Schema:
        """Return the schema of a producer's reference; the latest unless it is pinned."""
        found = self.find(subject)
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

    def check_ids(
        self, topic: str, *, schema_id: int | None, schema_version: int | None
    ) -> IdCheck:
        """Check the schema id and version of a record to be published to a topic."""
        config = self.topics.get(topic)
        if config is None or config.policy == "none":
            return NO_CHECK
        is_enforced, subject = config.policy == "enforce", self.find(config.subject)
        if subject is None:
            refusal = f"its schema subject '{config.subject}' not found in registry"
            return IdCheck(refusal, is_enforced)
        if schema_id != subject.schema_id:
            own = "no schema id" if schema_id is None else f"schema id {schema_id}"
            wanted = f"subject '{subject.name}' has {subject.schema_id}"
            return IdCheck(f"the message has {own}, {wanted}", is_enforced)
        version = subject.latest if schema_version is None else schema_version
        if version not in subject.versions:
            refusal = f"subject '{subject.name}' has no version {version}"
            return IdCheck(refusal, is_enforced)
        return IdCheck(None, is_enforced, version if config.check_payload else 0, subject)

    def _topic_change(self, topic: str, entry: TopicEntry) -> Change:
        check_topic(topic)
        if topic not in self.topics and len(self.topics) >= TOPICS_MAX:
            raise Overloaded("too many topics with a schema", topics_max=TOPICS_MAX)
        return Change(entries.topic_key(topic), entries.encode(entry))


def _planned(reply: _Reply, *changes: Change) -> Planned[_Reply]:
    return Planned(reply, changes)
