"""What a crash left half done in the definitions of topics, and the frames that finish it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from frazil.errors import CorruptionError
from frazil.log import Control
from frazil.log import format as fmt
from frazil.topic.spec import TOPIC_ENCODER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from frazil.log import TopicState
    from frazil.model import TopicSpec

SHARED_OPTIONS: Final = (
    "sync",
    "retention_us",
    "retention_bytes",
    "on_full",
    "unknown_key",
    "signals",
    "lake",
    "objects",
    "objects_retention_us",
    "objects_retention_bytes",
)
"""What `alter` may change of a partitioned topic and all its parts."""


def topic_control(spec: TopicSpec) -> Control:
    """Return the frame that defines a topic."""
    return Control(fmt.KIND_TOPIC, spec.id, TOPIC_ENCODER.encode(spec))


def schema_control(topic_id: int, version: int, data: bytes) -> Control:
    """Return the frame that gives a topic one version of its columns."""
    return Control(fmt.KIND_SCHEMA, topic_id, data, schema=version)


def unfinished(topics: Mapping[int, TopicState], *, now_us: int) -> tuple[list[Control], list[str]]:
    """Return the frames that remove half-made topics and complete half-altered ones, and warnings.

    A table topic without columns, or parts without their parent, were never acknowledged.
    """
    parents = {
        topic.id: topic
        for topic in topics.values()
        if topic.spec.partitions and not topic.spec.deleted_us
    }
    controls: list[Control] = []
    warnings: list[str] = []
    families: dict[int, list[TopicState]] = {}
    for topic in topics.values():
        spec = topic.spec
        if spec.deleted_us:
            continue
        columns_missing = spec.kind == "table" and not spec.partitions and not topic.schemas
        if columns_missing or (spec.part_of and spec.part_of not in parents):
            warnings.append(f"topic {spec.name} was half made or half deleted and is removed")
            controls.append(topic_control(msgspec.structs.replace(spec, deleted_us=now_us)))
        elif spec.part_of:
            controls += _like_parent(spec, parents[spec.part_of].spec)
            families.setdefault(spec.part_of, []).append(topic)
    for parent, parts in families.items():
        try:
            schemas = shared_schemas([part.schemas for part in parts])
        except CorruptionError as error:
            warnings.append(
                f"parts of topic {parents[parent].spec.name} are left as they are: {error}"
            )
            continue
        for part in parts:
            controls += missing_schemas(part.id, part.schemas, schemas)
    return controls, warnings


def parts_options(parent: TopicSpec) -> dict[str, Any]:
    """Return the options that a partitioned topic gives to its parts."""
    return {name: getattr(parent, name) for name in SHARED_OPTIONS}


def _like_parent(part: TopicSpec, parent: TopicSpec) -> list[Control]:
    if part.version >= parent.version:
        return []
    fresh = msgspec.structs.replace(part, version=parent.version, **parts_options(parent))
    return [topic_control(fresh)]


def shared_schemas(copies: Iterable[Mapping[int, bytes]]) -> dict[int, bytes]:
    """Return all versions of the columns that are known in several places as one history.

    Raises:
        CorruptionError: if one version is not the same everywhere; taking it for the same would
            show the values of one column under the name of another.
    """
    whole: dict[int, bytes] = {}
    for copy in copies:
        for version, data in copy.items():
            if whole.setdefault(version, data) != data:
                raise CorruptionError(
                    "one version of the columns differs between the parts of a topic",
                    version=version,
                )
    return dict(sorted(whole.items()))


def missing_schemas(
    topic_id: int, have: Mapping[int, bytes], whole: Mapping[int, bytes]
) -> list[Control]:
    """Return the versions that one place lacks: an `alter` was cut short before it.

    The last frame says which version is current, so that none older than it may follow.
    """
    current = max(have, default=0)
    return [
        schema_control(topic_id, version, data)
        for version, data in sorted(whole.items())
        if version > current
    ]
