"""Small values that must survive and are no records: namespaces, schemas, policies, roles, ids.

Each is a key with a tag, in `state` frames of the shared journal and in its checkpoints.
"""

from __future__ import annotations

import threading
from collections import deque
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from frazil.errors import InvalidRequest, Overloaded
from frazil.log import STATE_FIRST_FREE, Control, Pending
from frazil.log import format as fmt

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from frazil.log.codec import Waiter
    from frazil.topic.instance import Instance

KEY_BYTES_MAX: Final = 1024
VALUE_BYTES_MAX: Final = 1 << 20
BYTES_MAX: Final = 64 << 20
"""All keys and values together: they are part of every checkpoint, which is one frame."""
TAG_MAX: Final = (1 << 31) - 1
Key = tuple[int, str]
_NOTHING: Final = (0, 0)


class StateTag(IntEnum):
    """What a value is about. A number is never used for something else."""

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
        values = engine.log.journal.state.values
        self._sizes = {key: (_size(key[1], value), 0) for key, value in values.items()}
        """How much each takes, and the number of the change that made it so."""
        self._bytes = sum(size for size, _number in self._sizes.values())
        self._changes = 0
        self._answered: deque[tuple[Key, int, bool]] = deque()
        """Changes, and whether they were refused, as whichever thread heard of it."""

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

        It is a `Pending`, or the asyncio future that was given, settled when the change is durable.
        Changes take effect in the order in which they were submitted.
        """
        _check(tag, key, value)
        payload = msgspec.msgpack.encode((int(tag), key, value))
        control = Control(fmt.KIND_STATE, 0, payload)
        size = len(payload) + fmt.FRAME_HEAD_BYTES
        queue, what = self._engine.log.queue, (int(tag), key)
        with self._lock:
            self._take_back()
            self._check_room(what, value)
            self._changes += 1
            answered = partial(self._was_answered, what, self._changes)
            if waiter is None:
                waiter = _Counted(answered)
            else:
                waiter.add_done_callback(partial(_tell, answered))
            if not queue.submit((None, None, control, 0, size, waiter, None)):
                raise queue.overloaded()
            self._count(what, value)
        return waiter

    def _was_answered(self, key: Key, number: int, is_refused: bool) -> None:  # noqa: FBT001
        # Not under the lock: who answers may hold others.
        self._answered.append((key, number, is_refused))

    def _check_room(self, key: Key, value: bytes | None) -> None:
        if value is None:
            return
        total = self._bytes - self._sizes.get(key, _NOTHING)[0] + _size(key[1], value)
        if total > BYTES_MAX:
            raise Overloaded(
                "the values that are no records take too much room, remove some",
                bytes=total,
                bytes_max=BYTES_MAX,
            )

    def _count(self, key: Key, value: object) -> None:
        size = 0 if value is None else _size(key[1], value)
        self._bytes += size - self._sizes.get(key, _NOTHING)[0]
        self._sizes[key] = (size, self._changes)

    def _take_back(self) -> None:
        """Count what is there instead of changes that the journal refused."""
        values = self._engine.log.journal.state.values
        while self._answered:
            key, number, is_refused = self._answered.popleft()
            if self._sizes.get(key, _NOTHING)[1] != number:
                # Another change of it came behind, which counts, or it never came so far.
                continue
            if is_refused:
                self._count(key, values.get(key))
            if not self._sizes[key][0]:
                del self._sizes[key]

    def get(self, tag: int, key: str) -> bytes | None:
        """Return a durable value, None if there is none."""
        values = self._engine.log.journal.state.values
        found: bytes | None = self._engine.log.queue.call(lambda: values.get((int(tag), key)))
        return found

    def items(self, tag: int) -> dict[str, bytes]:
        """Return all durable values of a tag by key.

        Waits for the group that is being written; every change answered before is in it.
        """
        values = self._engine.log.journal.state.values

        def of_tag() -> dict[str, bytes]:
            return {key: value for (own, key), value in values.items() if own == tag}

        found: dict[str, bytes] = self._engine.log.queue.call(of_tag)
        return found


class _Counted(Pending):
    """An answer on its way, of a change that is counted already."""

    __slots__ = ("_answered",)

    def __init__(self, answered: Callable[[bool], None]) -> None:
        super().__init__()
        self._answered = answered

    def settle(self, value: Any) -> None:
        self._answered(isinstance(value, BaseException))
        super().settle(value)


def _tell(answered: Callable[[bool], None], waiter: asyncio.Future[Any]) -> None:
    answered(not waiter.cancelled() and waiter.exception() is not None)


def _size(key: str, value: Any) -> int:
    return len(key.encode()) + (len(value) if isinstance(value, bytes) else 64)


def _check(tag: int, key: object, value: object) -> None:
    if not STATE_FIRST_FREE <= tag <= TAG_MAX:
        raise InvalidRequest("tag is not one of those that are free", tag=tag)
    try:
        fits = isinstance(key, str) and 0 < len(key.encode()) <= KEY_BYTES_MAX
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise InvalidRequest("key must be text of 1 to 1,024 bytes", bytes_max=KEY_BYTES_MAX)
    if value is not None and not isinstance(value, bytes):
        raise InvalidRequest("value must be bytes", got=type(value).__name__)
    if value is not None and len(value) > VALUE_BYTES_MAX:
        raise InvalidRequest("value is too large", bytes=len(value), bytes_max=VALUE_BYTES_MAX)
