"""What can be told about topics in the object store, as plain values ready for JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from frazil.objects.runtime import Objects
    from frazil.objects.topics import ObjectsTopic
    from frazil.objects.uploader import Trouble

__all__ = ["status", "unreadable"]

UNREADABLE_MAX: Final = 100
"""So many places are named; the totals count all of them."""


def status(objects: Objects) -> dict[str, Any]:
    """Describe the objects tier: the store, all topics together, and each of them."""
    if objects.store is None:
        return {"state": "off", "topics": {}}
    now_us = objects.clock.now_us()
    troubles = objects.uploader.troubles
    topics = {each.name: _topic(each, troubles.get(each.id), now_us) for each in objects.all_topics}
    return {
        "state": "running" if topics else "idle",
        "store": objects.settings.store,
        "root": objects.settings.root,
        "epoch": objects.catalog.epoch,
        "errors": dict(objects.errors),
        "unreadable": unreadable(objects)[:UNREADABLE_MAX],
        "totals": _totals(objects, topics),
        "topics": topics,
    }


def unreadable(objects: Objects) -> list[dict[str, Any]]:
    """Return what readers found missing or damaged in the store, until it is back."""
    return [] if objects.source is None else objects.source.unreadable()


def _topic(topic: ObjectsTopic, trouble: Trouble | None, now_us: int) -> dict[str, Any]:
    picture = topic.picture
    state = "stopped" if topic.stopped else "failing" if trouble is not None else "running"
    return {
        "state": state,
        "why": topic.stopped or (str(trouble.error) if trouble is not None else None),
        "start": picture.start,
        "uploaded": picture.uploaded,
        "durable": topic.runtime.state.durable,
        **topic.lag(now_us),
        "objects": len(picture.descriptors),
        "shared_objects": sum(1 for each in picture.descriptors if each.shared),
        "bytes": picture.bytes,
        "failures": topic.failures,
        "last_upload_us": picture.state.changed_us or None,
    }


def _totals(objects: Objects, topics: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return all topics together; counters begin with the engine."""
    waits = [each["lag_seconds"] for each in topics.values() if each["lag_seconds"] is not None]
    summed = ("lag_records", "lag_bytes", "objects", "bytes")
    states = [each["state"] for each in topics.values()]
    uploader, shared, rewriter = objects.uploader, objects.shared, objects.rewriter
    return {
        **{name: sum(each[name] for each in topics.values()) for name in summed},
        "lag_seconds": max(waits, default=None),
        "states": {state: states.count(state) for state in sorted(set(states))},
        "failures": objects.failures,
        "unreadable": len(unreadable(objects)),
        "objects_uploaded": uploader.objects_uploaded,
        "objects_adopted": uploader.objects_adopted,
        "objects_shared": shared.objects_uploaded,
        "objects_rewritten": rewriter.objects_rewritten,
        "bytes_uploaded": uploader.bytes_uploaded + shared.bytes_uploaded,
        "bytes_rewritten": rewriter.bytes_rewritten,
    }
