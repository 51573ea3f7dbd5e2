"""The schema registry of an engine: planned off the loop, written to the log, then visible.

The registry knows nothing of threads, so all work on it takes turns: one thread plans, compares and
checks payloads; the loop makes changes visible while that thread rests. Changes are planned one at
a time, each when the one before is durable and visible.
"""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from frazil.errors import FrazilError, NotFound, Overloaded, Unavailable
from frazil.registry import Change, Planned, Registry, Verdict, Work, parse_key
from frazil.serve.danube.completing import outcome
from frazil.serve.danube.schema_thread import SchemaThread
from frazil.topic import StateTag

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from frazil.schema import Message
    from frazil.topic import States

__all__ = ["SchemaStore"]

BYTES_MAX: Final = 32 << 20
"""All entries together: half of what the engine keeps of values that are no records."""

PLANNING_S: Final = 5.0
"""So long a change that is planned when the store is closed may still become one."""
ENDING_S: Final = 1.0
"""So long the close waits for the thread, which asks often whether it is still wanted."""

_Answer = TypeVar("_Answer")


class SchemaStore:
    """A durable registry. All methods belong to the event loop's thread.

    What the log has is read at once, so make it before anything is served.
    """

    def __init__(self, states: States) -> None:
        self._states = states
        self._registry = Registry()
        self._sizes: dict[str, int] = {}
        self._size_bytes = 0
        self._is_stale = False
        self._turn = asyncio.Lock()
        self._planning = asyncio.Lock()
        self._stopping = threading.Event()
        self._thread = SchemaThread()
        self._asked: asyncio.Future[Any] | None = None
        self._changing: set[asyncio.Task[Any]] = set()
        self.checks: dict[str, bool] = {}
        """Topics whose records are looked at, and whether their payloads are, too.

        Replaced by a new one now and then: read it from here each time.
        """
        self._reload()

    @property
    def registry(self) -> Registry:
        """What is durable, to be read at once; payloads are not checked here but by `read`."""
        return self._registry

    def stats(self) -> dict[str, int]:
        """Return how much there is, and the room that its entries take."""
        return {**self._registry.counts(), "stored_bytes": self._size_bytes}

    async def read(self, ask: Callable[[Registry], _Answer]) -> _Answer:
        """Return what a function finds in the registry; it runs off the loop and changes nothing.

        Raises:
            Unavailable: if the store is closed; and whatever `ask` raises.
        """
        if self._stopping.is_set():
            raise _closed()
        await self._turn.acquire()
        if self._stopping.is_set():
            self._turn.release()
            raise _closed()
        self._asked = asked = self._thread.ask(partial(self._run, ask))
        # Who gives up waiting does not end the turn: the thread is still at it.
        asked.add_done_callback(lambda _: self._turn.release())
        return await outcome(asked)

    async def change(self, plan: Callable[[Registry], Planned[_Answer]]) -> _Answer:
        """Return a plan's reply when its changes are durable and visible.

        A change that has begun goes on if nobody waits for it any more.

        Raises:
            Overloaded: if the entries take too much room; and whatever `plan` raises.
        """
        await self._planning.acquire()
        task = asyncio.get_running_loop().create_task(self._change(plan))
        self._changing.add(task)
        task.add_done_callback(self._changed)
        return await outcome(task)

    def judge(self, topic: str, record: Message) -> Verdict:
        """Return the verdict on a record of a topic whose payloads are not looked at."""
        return verdict_on(self._registry, topic, record, self.new_work())

    def new_work(self) -> Work:
        """Return the bound of one check, which ends when the store is closed."""
        return Work(self._stopping.is_set)

    async def close(self) -> None:
        """Stop all checks, finish the changes that have begun and let the thread end.

        A change whose plan takes too long is none yet: it is refused, and so is a question.
        """
        self._stopping.set()
        if self._changing:
            await asyncio.wait(self._changing, timeout=PLANNING_S)
        asked = self._asked
        if self._thread.is_running and asked is not None and not asked.done():
            await asyncio.wait([asked], timeout=ENDING_S)
            if not asked.done():
                asked.set_exception(_closed())
        if self._changing:
            await asyncio.wait(self._changing)
        self._thread.close()

    # -- inside ----------------------------------------------------------------------------------

    def _run(self, ask: Callable[[Registry], _Answer]) -> _Answer:
        """Run in the thread, on what the log has."""
        if self._is_stale:
            self._reload()
        return ask(self._registry)

    def _reload(self) -> None:
        registry = Registry()
        entries = self._states.items(StateTag.SCHEMA)
        for key, value in entries.items():
            registry.apply(key, value)
        checks: dict[str, bool] = {}
        for key in entries:
            _note(registry, checks, key)
        self._registry, self.checks = registry, checks
        self._sizes = {key: len(key) + len(value) for key, value in entries.items()}
        self._size_bytes = sum(self._sizes.values())
        self._is_stale = False

    async def _change(self, plan: Callable[[Registry], Planned[_Answer]]) -> _Answer:
        planned = await self.read(plan)
        if not planned.changes:
            return planned.reply
        self._check_room(planned.changes)
        await self._write(planned.changes)
        async with self._turn:
            reply = self._registry.commit(planned)
            for change in planned.changes:
                _note(self._registry, self.checks, change.key)
                self._count(change)
        return reply

    def _changed(self, task: asyncio.Task[Any]) -> None:
        self._changing.discard(task)
        self._planning.release()

    def _count(self, change: Change) -> None:
        self._size_bytes -= self._sizes.pop(change.key, 0)
        if change.value is not None:
            self._sizes[change.key] = size = len(change.key) + len(change.value)
            self._size_bytes += size

    def _check_room(self, changes: Sequence[Change]) -> None:
        added = sum(len(key) + len(value) for key, value in changes if value is not None)
        freed = sum(self._sizes.get(key, 0) for key, _ in changes)
        total = self._size_bytes + added - freed
        if added > freed and total > BYTES_MAX:
            raise Overloaded(
                "the schemas take too much room, delete some versions",
                bytes_max=BYTES_MAX,
            )

    async def _write(self, changes: Sequence[Change]) -> None:
        """Return when all changes are durable.

        Raises:
            FrazilError: if one is not. Others may be, and what the log has is the truth: it is
                read again before anything else is planned.
        """
        loop = asyncio.get_running_loop()
        waiting: list[asyncio.Future[Any]] = []
        refusal: BaseException | None = None
        try:
            for key, value in changes:
                future = loop.create_future()
                self._states.submit(StateTag.SCHEMA, key, value, future)
                waiting.append(future)
        except FrazilError as error:
            refusal = error
        results = await asyncio.gather(*waiting, return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        refusal = errors[0] if errors else refusal
        if refusal is not None:
            self._is_stale = True
            raise refusal


def _closed() -> Unavailable:
    return Unavailable("the schema registry is closed")


def verdict_on(registry: Registry, topic: str, record: Message, work: Work) -> Verdict:
    """Return whether a record may be published to a topic, with the reason."""
    return registry.check_message(
        topic,
        record.payload,
        schema_id=record.schema_id,
        schema_version=record.schema_version,
        work=work,
    )


def _note(registry: Registry, checks: dict[str, bool], key: str) -> None:
    """Keep in `checks` what an entry's topic asks for, if the entry is a topic's."""
    parsed = parse_key(key)
    if parsed.kind != "topic":
        return
    try:
        found = registry.topic_schema(parsed.name)
    except NotFound:
        checks.pop(parsed.name, None)
        return
    checks.pop(parsed.name, None)
    if found.policy != "none":
        checks[parsed.name] = found.check_payload
