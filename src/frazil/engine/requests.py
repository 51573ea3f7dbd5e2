"""Calls as values: what a command asks of an engine, here or in a broker.

They are about subscriptions, but for those about backups and objects.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final

import msgspec

from frazil.engine.topic import Topic
from frazil.errors import InvalidRequest
from frazil.subscribe import policy_facts

if TYPE_CHECKING:
    from frazil.engine.engine import Engine
    from frazil.objects import Descriptor
    from frazil.topic import Start

__all__ = [
    "Call",
    "CollectObjects",
    "Create",
    "Drop",
    "List",
    "ListObjects",
    "MakeBackup",
    "Policy",
    "Reset",
    "decode_call",
    "encode_call",
]


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


class List(msgspec.Struct, tag_field="call", tag="list", forbid_unknown_fields=True):
    """Tell about the subscriptions of a topic, or of all topics."""

    topic: str | None = None

    def perform(self, engine: Engine) -> Any:
        """Return them, ready for JSON."""
        topics = engine.topics() if self.topic is None else [self.topic]
        return [each for topic in topics for each in engine.subscriptions.describe(topic)]


class Create(msgspec.Struct, tag_field="call", tag="create", forbid_unknown_fields=True):
    """Make a subscription."""

    topic: str
    name: str
    type: str = "shared"
    start: int | str = "latest"

    def perform(self, engine: Engine) -> Any:
        """Make it and return it, ready for JSON."""
        place = _place(self.start)
        engine.subscriptions.create(self.topic, self.name, type=self.type, start=place)
        (found,) = [
            each for each in engine.subscriptions.describe(self.topic) if each["name"] == self.name
        ]
        return found


class Reset(msgspec.Struct, tag_field="call", tag="reset", forbid_unknown_fields=True):
    """Put a subscription somewhere else."""

    topic: str
    name: str
    to: int | str

    def perform(self, engine: Engine) -> Any:
        """Put it there and return the offset of each part, ready for JSON."""
        return engine.subscriptions.reset(self.topic, self.name, _place(self.to))


class Drop(msgspec.Struct, tag_field="call", tag="drop", forbid_unknown_fields=True):
    """Remove a subscription."""

    topic: str
    name: str

    def perform(self, engine: Engine) -> Any:
        """Remove it."""
        engine.subscriptions.drop(self.topic, self.name)
        return {"dropped": self.name}


class Policy(msgspec.Struct, tag_field="call", tag="policy", forbid_unknown_fields=True):
    """Tell a subscription's failure policy and window, changed first where something is given."""

    topic: str
    name: str
    policy: dict[str, int | str | None] = {}
    max_unacked: int | None = None

    def perform(self, engine: Engine) -> Any:
        """Change them, if so, and return both, ready for JSON."""
        policy = engine.subscriptions.alter(
            self.topic, self.name, policy=self.policy or None, max_unacked=self.max_unacked
        )
        window = engine.subscriptions.window(self.topic, self.name)
        return {**policy_facts(policy), "max_unacked": window}


class MakeBackup(msgspec.Struct, tag_field="call", tag="backup", forbid_unknown_fields=True):
    """Upload what is durable, then back the metadata up to the object store."""

    flush: bool = True
    timeout_s: float = 45.0
    """How long to wait for the uploads."""
    topic: str | None = None
    """None: it is about all topics."""

    def perform(self, engine: Engine) -> Any:
        """Do so and return what the backup has, ready for JSON."""
        uploaded = engine.objects.flush(timeout_s=self.timeout_s) if self.flush else {}
        return {**engine.objects.backup(), "uploaded": uploaded}


Call = List | Create | Reset | Drop | Policy | MakeBackup | ListObjects | CollectObjects

_CALLS: Final = msgspec.json.Decoder(Call)


def encode_call(call: Call) -> bytes:
    """Return a call as JSON."""
    return msgspec.json.encode(call)


def decode_call(data: bytes) -> Call:
    """Read a call.

    Raises:
        InvalidRequest: if it is none.
    """
    try:
        found: Call = _CALLS.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(
            "this is no call about subscriptions, backups or objects", cause=error
        ) from error
    return found


def _place(given: int | str) -> Start:
    if isinstance(given, int) or given in ("earliest", "latest"):
        return given
    try:
        return dt.datetime.fromisoformat(given)
    except ValueError as error:
        raise InvalidRequest(
            "a place is earliest, latest, an offset or an ISO 8601 time", got=given
        ) from error
