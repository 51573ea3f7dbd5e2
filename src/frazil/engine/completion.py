"""What a crash left half done in the definitions of topics, and the frames that finish it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from frazil.engine.catalog import TOPIC_ENCODER
from frazil.log import format as fmt
from frazil.log.codec import Control

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from frazil.log.state import TopicState
    from frazil.model import TopicSpec

SHARED_OPTIONS: Final = ("sync", "retention_us", "retention_bytes", "on_full")
"""What `alter` may change of a partitioned topic and all its parts."""


def topic_control(spec: TopicSpec) -> Control:
    """Return the frame that defines a topic."""
    return Control(fmt.KIND_TOPIC, spec.id, TOPIC_ENCODER.encode(spec))


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
            controls += _missing_schemas(topic, topics.values())
    return controls, warnings


def _like_parent(part: TopicSpec, parent: TopicSpec) -> list[Control]:
    if part.version >= parent.version:
        return []
    options = {name: getattr(parent, name) for name in SHARED_OPTIONS}
    return [topic_control(msgspec.structs.replace(part, version=parent.version, **options))]


def _missing_schemas(part: TopicState, topics: Iterable[TopicState]) -> list[Control]:
    """Return the schemas that a part lacks and its siblings have: an `alter` was cut short."""
    siblings = [topic for topic in topics if topic.spec.part_of == part.spec.part_of]
    newest = max(siblings, key=lambda topic: topic.schema_version)
    return [
        Control(fmt.KIND_SCHEMA, part.id, data, schema=version)
        for version, data in sorted(newest.schemas.items())
        if version not in part.schemas
    ]
