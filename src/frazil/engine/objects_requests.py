"""Calls about objects as values: what `frazil objects` asks of an engine, here or in a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from frazil.engine.topic import Topic
from frazil.errors import InvalidRequest

if TYPE_CHECKING:
    from frazil.engine.engine import Engine
    from frazil.objects import Descriptor

__all__ = ["CollectObjects", "ListObjects"]


class ListObjects(msgspec.Struct, tag_field="call", tag="list_objects", forbid_unknown_fields=True):
    """Tell what each topic has in the object store, or every object of one topic."""

    topic: str | None = None

    def perform(self, engine: Engine) -> Any:
        """Return it, ready for JSON."""
        _check_store(engine)
        if self.topic is None:
            found = engine.objects.status()["topics"]
            return [{"topic": name, **each} for name, each in sorted(found.items())]
        handle = engine.topic(self.topic)
        parts = [handle] if isinstance(handle, Topic) else handle.parts
        return [
            _described(part.name, descriptor)
            for part in parts
            for descriptor in engine.objects.catalog.topic(part.runtime.state.id).descriptors
        ]


class CollectObjects(
    msgspec.Struct, tag_field="call", tag="collect_objects", forbid_unknown_fields=True
):
    """Condemn objects that nothing needs, and delete those that were condemned before."""

    dry_run: bool = True
    topic: str | None = None
    """None: it is about all topics."""

    def perform(self, engine: Engine) -> Any:
        """Do so, or describe what would be done; ready for JSON."""
        _check_store(engine)
        found = engine.objects.retention.collector.cycle(dry_run=self.dry_run)
        return {
            "dry_run": self.dry_run,
            "deleted": [{"key": row.key, "why": row.why} for row in found.deleted],
            "condemned": [{"key": meta.key, "bytes": meta.size} for meta in found.condemned],
            "spared": found.spared,
            "suspended": found.suspended,
        }


def _described(name: str, found: Descriptor) -> dict[str, Any]:
    return {
        "topic": name,
        "key": found.key,
        "offset_first": found.first,
        "offset_last": found.end - 1,
        "records": found.records,
        "bytes": found.length,
        "object_bytes": found.size,
        "time_first_us": found.time_first_us,
        "time_last_us": found.time_last_us,
        "created_us": found.created_us,
        "epoch": found.epoch,
        "etag": found.etag,
        "gaps": [[each.first, each.end, each.kind, each.reason] for each in found.ranges],
    }


def _check_store(engine: Engine) -> None:
    if engine.objects.store is None:
        raise InvalidRequest("no object store is set, see objects.store and objects.root")
