"""Calls as values: requests of commands to an engine, here or in a broker.

They are about subscriptions, backups and objects.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from frazil.engine.topic import Topic
from frazil.errors import InvalidRequest
from frazil.subscribe import policy_facts

if TYPE_CHECKING:
    from frazil.engine.engine import Engine
    from frazil.objects import Descriptor
    from frazil.topic import Start

__all__ = ["Call", "decode_call", "encode_call"]

Name = Literal[
    "list", "create", "reset", "drop", "policy", "backup", "list_objects", "collect_objects"
]
NAMED: Final = ("create", "reset", "drop", "policy")
"""Calls about one subscription: they need its topic and name."""


class Call(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A call with its arguments; `_CALLS` has the function of each call."""

    call: Name
    topic: str | None = None
    """None means all topics, for lists and backups."""
    name: str = ""
    type: str = "shared"
    start: int | str = "latest"
    to: int | str | None = None
    policy: dict[str, int | str | None] = {}
    max_unacked: int | None = None
    flush: bool = True
    timeout_s: float = 45.0
    """The time that a backup waits for uploads."""
    dry_run: bool = True

    def __post_init__(self) -> None:
        if self.call in NAMED and not (self.topic and self.name):
            raise ValueError("topic and name are needed")
        if self.call == "reset" and self.to is None:
            raise ValueError("to is needed")

    @property
    def is_read(self) -> bool:
        """Whether the call changes nothing."""
        if self.call == "policy":
            return not self.policy and self.max_unacked is None
        return self.call in ("list", "list_objects") or (
            self.call == "collect_objects" and self.dry_run
        )

    def perform(self, engine: Engine) -> Any:
        """Perform the call and return its result, ready for JSON."""
        return _CALLS[self.call](engine, self)


def _list(engine: Engine, call: Call) -> Any:
    """Describe the subscriptions of a topic, or of all topics."""
    topics = engine.topics() if call.topic is None else [call.topic]
    return [each for topic in topics for each in engine.subscriptions.describe(topic)]


def _create(engine: Engine, call: Call) -> Any:
    topic = call.topic or ""
    engine.subscriptions.create(topic, call.name, type=call.type, start=_start(call.start))
    return next(each for each in engine.subscriptions.describe(topic) if each["name"] == call.name)


def _reset(engine: Engine, call: Call) -> Any:
    """Move a subscription; return the offset of each part."""
    return engine.subscriptions.reset(call.topic or "", call.name, _start(call.to or 0))


def _drop(engine: Engine, call: Call) -> Any:
    engine.subscriptions.drop(call.topic or "", call.name)
    return {"dropped": call.name}


def _policy(engine: Engine, call: Call) -> Any:
    """Change the given values of a subscription's failure policy and window; return all."""
    topic = call.topic or ""
    policy = engine.subscriptions.alter(
        topic, call.name, policy=call.policy or None, max_unacked=call.max_unacked
    )
    return {**policy_facts(policy), "max_unacked": engine.subscriptions.window(topic, call.name)}


def _backup(engine: Engine, call: Call) -> Any:
    """Upload durable records, then back the metadata up to the object store."""
    uploaded = engine.objects.flush(timeout_s=call.timeout_s) if call.flush else {}
    return {**engine.objects.backup(), "uploaded": uploaded}


def _list_objects(engine: Engine, call: Call) -> Any:
    """Describe the objects of each topic in total, or every object of one topic."""
    _check_store(engine)
    if call.topic is None:
        found = engine.objects.status()["topics"]
        return [{"topic": name, **each} for name, each in sorted(found.items())]
    handle = engine.topic(call.topic)
    parts = [handle] if isinstance(handle, Topic) else handle.parts
    return [
        _described(part.name, descriptor)
        for part in parts
        for descriptor in engine.objects.catalog.topic(part.runtime.state.id).descriptors
    ]


def _collect_objects(engine: Engine, call: Call) -> Any:
    """Condemn objects that are not needed, and delete objects that were condemned before."""
    _check_store(engine)
    found = engine.objects.retention.collector.cycle(dry_run=call.dry_run)
    return {
        "dry_run": call.dry_run,
        "deleted": [{"key": row.key, "why": row.why} for row in found.deleted],
        "condemned": [{"key": meta.key, "bytes": meta.size} for meta in found.condemned],
        "spared": found.spared,
        "suspended": found.suspended,
    }


_CALLS: Final[dict[str, Callable[[Engine, Call], Any]]] = {
    "list": _list,
    "create": _create,
    "reset": _reset,
    "drop": _drop,
    "policy": _policy,
    "backup": _backup,
    "list_objects": _list_objects,
    "collect_objects": _collect_objects,
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


_DECODER: Final = msgspec.json.Decoder(Call)


def encode_call(call: Call) -> bytes:
    """Return a call as JSON."""
    return msgspec.json.encode(call)


def decode_call(data: bytes) -> Call:
    """Read a call.

    Raises:
        InvalidRequest: if the bytes are not a call.
    """
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(
            "not a call about subscriptions, backups or objects", cause=error
        ) from error


def _start(given: int | str) -> Start:
    if isinstance(given, int) or given in ("earliest", "latest"):
        return given
    try:
        return dt.datetime.fromisoformat(given)
    except ValueError as error:
        raise InvalidRequest(
            "a start is earliest, latest, an offset or an ISO 8601 time", got=given
        ) from error
