"""Small durable values other than records: namespaces, schemas, policies, roles, ids.

Each value has a tag and a key. It is stored in `state` frames of the journal and in its
checkpoints.
"""

from __future__ import annotations

import threading
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import msgspec

from frazil.errors import InvalidRequest, Overloaded
from frazil.log import STATE_FIRST_FREE, Control, Pending
from frazil.log import format as fmt
from frazil.model import NAMESPACES_AT_BOOT, full_topic_name

if TYPE_CHECKING:
    from frazil.log.codec import Waiter
    from frazil.topic.instance import Instance

KEY_BYTES_MAX: Final = 1024
VALUE_BYTES_MAX: Final = 1 << 20
BYTES_MAX: Final = 64 << 20
"""The limit of all keys and values together: every checkpoint has them, and it is one frame."""
TAG_MAX: Final = (1 << 31) - 1
Key = tuple[int, str]


class StateTag(IntEnum):
    """The kind of a value. A number is never used for another kind."""

    NAMESPACE = STATE_FIRST_FREE
    SUBSCRIPTION = STATE_FIRST_FREE + 1
    SCHEMA = STATE_FIRST_FREE + 2
    POLICY = STATE_FIRST_FREE + 3
    ROLE = STATE_FIRST_FREE + 4
    CLIENT = STATE_FIRST_FREE + 5
    EPOCH = STATE_FIRST_FREE + 6


class States:
    """The values of an engine by tag and key. Safe for threads."""

    def __init__(self, engine: Instance) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._bytes = self._count()
        """An upper bound of all values' size; removed values count until the bound is reached."""

    def _count(self) -> int:
        values = self._engine.log.journal.state.values
        return sum(_size(key, value) for (_tag, key), value in list(values.items()))

    def put(self, tag: int, key: str, value: bytes) -> None:
        """Set a value; durable on return.

        Raises:
            InvalidRequest: if key or value cannot be stored.
            Overloaded: if all values together would be too large, or the disk is full.
        """
        self.submit(tag, key, value).result()

    def delete(self, tag: int, key: str) -> None:
        """Remove a value if there is one; durable on return."""
        self.submit(tag, key, None).result()

    def submit(self, tag: int, key: str, value: bytes | None, waiter: Waiter | None = None) -> Any:
        """Set or remove (None) a value and return at once, with the waiter.

        The waiter is a `Pending`, or the given asyncio future; it is settled when the change is
        durable.
        Changes take effect in the order in which they were submitted.
        """
        _check(tag, key, value)
        payload = msgspec.msgpack.encode((int(tag), key, value))
        control = Control(fmt.KIND_STATE, 0, payload)
        size = len(payload) + fmt.FRAME_HEAD_BYTES
        queue, what = self._engine.log.queue, (int(tag), key)
        with self._lock:
            self._check_room(what, value)
            waiter = waiter or Pending()
            if not queue.submit((None, None, control, 0, size, waiter, None)):
                raise queue.overloaded()
            if value is not None:
                self._bytes += _size(key, value)
        return waiter

    def _check_room(self, what: Key, value: bytes | None) -> None:
        if value is None or self._bytes + _size(what[1], value) <= BYTES_MAX:
            return
        self._bytes = self._count()
        known = self._engine.log.journal.state.values.get(what)
        replaced = 0 if known is None else _size(what[1], known)
        total = self._bytes - replaced + _size(what[1], value)
        if total > BYTES_MAX:
            raise Overloaded(
                "namespaces, policies, roles and ids take too much room, remove some",
                bytes=total,
                bytes_max=BYTES_MAX,
            )

    def items(self, tag: int) -> dict[str, bytes]:
        """Return all durable values of a tag by key.

        Waits for the current group commit; the result has every change that was answered before.
        """
        values = self._engine.log.journal.state.values

        def of_tag() -> dict[str, bytes]:
            return {key: value for (own, key), value in values.items() if own == tag}

        found: dict[str, bytes] = self._engine.log.queue.call(of_tag)
        return found


def _size(key: str, value: object) -> int:
    return len(key.encode()) + (len(value) if isinstance(value, bytes) else 64)


def _check(tag: int, key: object, value: object) -> None:
    if not STATE_FIRST_FREE <= tag <= TAG_MAX:
        raise InvalidRequest("tag is not one of those that are free", tag=tag)
    try:
        key_bytes = len(key.encode()) if isinstance(key, str) else 0
    except UnicodeEncodeError:
        key_bytes = 0
    if not 0 < key_bytes <= KEY_BYTES_MAX:
        raise InvalidRequest("key must be text of 1 to 1,024 bytes", bytes_max=KEY_BYTES_MAX)
    given = b"" if value is None else value
    if not isinstance(given, bytes) or len(given) > VALUE_BYTES_MAX:
        raise InvalidRequest("value must be bytes, not too many", bytes_max=VALUE_BYTES_MAX)


def has_namespace_for(engine: Instance, topic: str) -> bool:
    """Return whether the namespace of a topic's name exists. For any thread; it never waits.

    A bare name is in the default namespace: older versions stored policies with such names.

    Raises:
        InvalidRequest: if no topic can have this name.
    """
    namespace = full_topic_name(topic).split("/", 2)[1]
    values = engine.log.journal.state.values
    if namespace in NAMESPACES_AT_BOOT or (int(StateTag.NAMESPACE), namespace) in values:
        return True
    names = [*(runtime.name for runtime in engine.runtimes), *list(engine.unusable)]
    return any(name.startswith(f"/{namespace}/") for name in names)
