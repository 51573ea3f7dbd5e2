"""The durable registry: definitions are parsed in the sandbox, then made durable, then visible.

Changes are made one at a time, each after the previous one is durable and visible.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from frazil.errors import Overloaded
from frazil.registry import entries
from frazil.registry.kinds import PLAIN, check_subject, compatibility_mode, schema_type
from frazil.registry.registry import (
    MODE_DEFAULT,
    NewSchema,
    Planned,
    Registered,
    Registry,
    Subject,
)
from frazil.registry.sandbox import Sandbox, closed
from frazil.topic import StateTag

if TYPE_CHECKING:
    from frazil.registry.entries import Change
    from frazil.registry.kinds import CompatibilityMode, SchemaType
    from frazil.topic import States

__all__ = ["SchemaStore"]

BYTES_MAX: Final = 32 << 20
"""The limit of all entries together: half of the room for values other than records."""

_Answer = TypeVar("_Answer")


class SchemaStore:
    """A durable registry. All methods belong to the event loop's thread.

    Create it before the broker serves: it reads the entries of the log, and waits for that.
    """

    def __init__(self, states: States) -> None:
        self._states = states
        self._changing: set[asyncio.Task[Any]] = set()
        self._turn = asyncio.Lock()
        self._is_closed = False
        self._is_stale = False
        self.sandbox = Sandbox()
        self.registry = Registry()
        """The durable state, read-only for callers. Replaced after a change was written in part."""
        self._sizes: dict[str, int] = {}
        self._load(states.items(StateTag.SCHEMA))

    def stats(self) -> dict[str, int]:
        """Return the counts of the registry, and the size of its entries."""
        return {**self.registry.counts(), "stored_bytes": sum(self._sizes.values())}

    async def register(self, new: NewSchema) -> Registered:
        """Register a version of a subject; a known definition returns its existing version.

        Raises:
            InvalidRequest: if the definition is invalid or too expensive to parse.
            IncompatibleSchema: if it breaks the subject's compatibility mode.
            Overloaded: if there are too many subjects or versions, or they are too large.
        """
        return await self._changed(self._register(new))

    async def change(self, plan: Callable[[Registry], Planned[_Answer]]) -> _Answer:
        """Return a plan's reply once its changes are durable and visible.

        A change that has begun continues if its caller is cancelled.

        Raises:
            Overloaded: if the entries are too large; and any error of `plan`.
        """
        return await self._changed(self._change(plan))

    async def check_compatibility(
        self, subject: str, type_name: str, definition: bytes, mode: str | None = None
    ) -> tuple[str, ...]:
        """Return why a definition may not follow the latest one, by the subject's mode or `mode`.

        Without a type it has the subject's; a new subject accepts everything.
        """
        check_subject(subject)
        entries.check_definition_size(definition)
        found = self.registry.find(subject)
        wanted = compatibility_mode(mode) if mode else (found.mode if found else MODE_DEFAULT)
        if not type_name and found is not None:
            kind = found.versions[found.latest].type
        else:
            kind = schema_type(type_name)
        fingerprint = await self._fingerprint(kind, definition)
        return await self._incompatibilities(found, kind, definition, fingerprint, wanted)

    async def close(self) -> None:
        """Refuse all requests that wait for the sandbox and finish the changes being written."""
        self._is_closed = True
        await self.sandbox.close()
        if self._changing:
            await asyncio.wait(self._changing)

    # -- inside ----------------------------------------------------------------------------------

    async def _changed(self, work: Coroutine[Any, Any, _Answer]) -> _Answer:
        """Run a change to its end in its turn."""
        try:
            await self._turn.acquire()
        except asyncio.CancelledError:
            work.close()
            raise
        task = asyncio.get_running_loop().create_task(work)
        self._changing.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._changing.discard(task)
        self._turn.release()
        if not task.cancelled():
            task.exception()  # Its caller may have gone.

    async def _register(self, new: NewSchema) -> Registered:
        fingerprint = await self._fingerprint(new.type, new.definition)
        known = self.registry.known_version(new, fingerprint)
        if known is not None:
            return known
        found = self.registry.find(new.subject)
        mode = found.mode if found else MODE_DEFAULT
        reasons = await self._incompatibilities(found, new.type, new.definition, fingerprint, mode)
        packed = await asyncio.to_thread(entries.pack, new.definition)
        return await self._change(
            lambda registry: registry.plan_version(
                new, fingerprint=fingerprint, packed=packed, reasons=reasons
            )
        )

    async def _fingerprint(self, kind: SchemaType, definition: bytes) -> str:
        if self._is_closed:
            raise closed()
        return kind if kind in PLAIN else await self.sandbox.fingerprint(kind, definition)

    async def _incompatibilities(
        self,
        subject: Subject | None,
        kind: SchemaType,
        definition: bytes,
        fingerprint: str,
        mode: CompatibilityMode,
    ) -> tuple[str, ...]:
        # Its last version may have been deleted meanwhile.
        if subject is None or not subject.versions or mode == "none":
            return ()
        latest = subject.versions[subject.latest]
        if latest.type != kind:
            return (f"schema type changed from {latest.type} to {kind}",)
        if latest.fingerprint == fingerprint:
            return ()
        before = subject.schema().definition
        return await self.sandbox.incompatibilities(kind, latest=before, new=definition, mode=mode)

    async def _change(self, plan: Callable[[Registry], Planned[_Answer]]) -> _Answer:
        if self._is_closed:
            raise closed()
        if self._is_stale:
            await self._reload()
        planned = plan(self.registry)
        if planned.changes:
            self._check_room(planned.changes)
            await self._write(planned.changes)
        reply = self.registry.commit(planned)
        for change in planned.changes:
            self._sizes.pop(change.key, None)
            if change.value is not None:
                self._sizes[change.key] = len(change.key) + len(change.value)
        return reply

    def _load(self, stored: dict[str, bytes]) -> None:
        registry = Registry()
        for key, value in stored.items():
            registry.apply(key, value)
        self.registry = registry
        self._sizes = {key: len(key) + len(value) for key, value in stored.items()}
        self._is_stale = False

    async def _reload(self) -> None:
        self._load(await asyncio.to_thread(self._states.items, StateTag.SCHEMA))

    def _check_room(self, changes: Sequence[Change]) -> None:
        added = sum(len(key) + len(value) for key, value in changes if value is not None)
        freed = sum(self._sizes.get(key, 0) for key, _ in changes)
        if added > freed and sum(self._sizes.values()) + added - freed > BYTES_MAX:
            raise Overloaded(
                "the schemas take too much room, delete some versions",
                bytes_max=BYTES_MAX,
            )

    async def _write(self, changes: Sequence[Change]) -> None:
        """Return when all changes are durable, in order.

        Raises:
            FrazilError: if one is not. It may be durable later, so the log's entries are reread.
        """
        try:
            for key, value in changes:
                future = asyncio.get_running_loop().create_future()
                self._states.submit(StateTag.SCHEMA, key, value, future)
                await future
        except BaseException:
            self._is_stale = True
            raise
