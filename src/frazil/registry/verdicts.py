"""Whether a record may be published to its topic: the checks beside every publish."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from frazil.errors import FrazilError
from frazil.registry import limits
from frazil.registry.definitions import Definition, parse_definition
from frazil.registry.kinds import quoted

if TYPE_CHECKING:
    from frazil.registry.catalog import Catalog, Subject
    from frazil.registry.entries import TopicEntry
    from frazil.registry.work import Work

__all__ = ["ACCEPTED", "DefinitionCache", "Verdict", "judge"]


@attrs.frozen
class Verdict:
    """Whether a record is taken, and what is wrong with it (also when it is taken: a warning)."""

    is_accepted: bool
    reason: str | None = None


ACCEPTED: Final = Verdict(is_accepted=True)


class DefinitionCache:
    """Parsed definitions of versions; the one that was made first goes first.

    What is parsed takes up to a hundred times the room of its text, so texts are counted, too.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], tuple[Definition, int]] = {}
        self._bytes = 0

    def get(self, subject: Subject, version: int) -> Definition:
        """Return a version's definition, parsed."""
        key = (subject.schema_id, version)
        found = self._found.get(key)
        if found is None:
            schema = subject.schema(version)
            size = len(schema.definition)
            self._make_room(size)
            found = self._found[key] = parse_definition(schema.type, schema.definition), size
            self._bytes += size
        return found[0]

    def _make_room(self, size: int) -> None:
        """Forget definitions until one more of a size fits; the largest one does when alone."""
        while self._found and (
            len(self._found) >= limits.DEFINITIONS_CACHED_MAX
            or self._bytes + size > limits.DEFINITIONS_CACHED_BYTES_MAX
        ):
            _, forgotten = self._found.pop(next(iter(self._found)))
            self._bytes -= forgotten


def judge(
    catalog: Catalog,
    cache: DefinitionCache,
    topic: str,
    *,
    schema_id: int | None,
    schema_version: int | None,
    payload: bytes,
    work: Work,
) -> Verdict:
    """Return the verdict on a record of a topic.

    Raises:
        Unavailable: if all checks are to stop.
    """
    config = catalog.topics.get(topic)
    if config is None or config.policy == "none":
        return ACCEPTED
    reason = _reason(catalog, cache, config, schema_id, schema_version, payload, work)
    if reason is None:
        return ACCEPTED
    return Verdict(
        is_accepted=config.policy != "enforce",
        reason=f"schema validation failed for topic '{quoted(topic)}': {reason}",
    )


def _reason(
    catalog: Catalog,
    cache: DefinitionCache,
    config: TopicEntry,
    schema_id: int | None,
    schema_version: int | None,
    payload: bytes,
    work: Work,
) -> str | None:
    subject = catalog.find(config.subject)
    if subject is None:
        return f"its schema subject '{config.subject}' not found in registry"
    if schema_id is None:
        return f"the message has no schema id, subject '{subject.name}' has {subject.schema_id}"
    if schema_id != subject.schema_id:
        return (
            f"the message has schema id {schema_id},"
            f" subject '{subject.name}' has {subject.schema_id}"
        )
    version = subject.latest if schema_version is None else schema_version
    if version not in subject.versions:
        return f"subject '{subject.name}' has no version {version}"
    if not config.check_payload:
        return None
    try:
        definition = cache.get(subject, version)
    except FrazilError:
        # Why, is the server's business: no record changes it.
        return f"version {version} of '{subject.name}' cannot be read"
    found = definition.refusal(payload, work)
    if found is None:
        return None
    return f"the payload does not fit version {version} of '{subject.name}': {found}"
