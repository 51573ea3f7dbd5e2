"""Admission of publishes: stopped topics, memory shortage, full queues."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from frazil.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from frazil.topic.runtime import TopicRuntime

T = TypeVar("T")

POLL_S: Final = 0.02
"""The interval at which a publish checks whether the stop of its topic has ended."""


@attrs.frozen
class NotStored:
    """The refusal of every durable operation on a non-reliable topic.

    It lasts as long as the topic; no other stop replaces it.
    """

    topic: str

    def __call__(self) -> InvalidRequest:
        """Return the error."""
        return InvalidRequest(
            "the topic is not reliable: it stores nothing, and only producers and consumers of a "
            "running broker pass messages through it; use a reliable topic",
            topic=self.topic,
        )


def wait_admitted(runtime: TopicRuntime) -> None:
    """Return when a publish to a topic may proceed.

    Raises:
        FrazilError: the reason of a stop that lasts, at once or after the stop's waiting time.
        Overloaded: if memory stays short.
    """
    if runtime.refusal is not None:
        never = threading.Event()
        for pause_s in _pauses(runtime):
            never.wait(pause_s)
    if runtime.pressure.level:
        runtime.pressure.admit()


async def wait_admitted_async(runtime: TopicRuntime) -> None:
    """Wait like `wait_admitted`, without blocking the event loop."""
    if runtime.refusal is not None:
        for pause_s in _pauses(runtime):
            await asyncio.sleep(pause_s)
    if runtime.pressure.level:
        await runtime.pressure.admit_async()


def _pauses(runtime: TopicRuntime) -> Iterator[float]:
    """Yield pauses while the topic is stopped; raise the reason if the stop lasts too long."""
    refusal = runtime.refusal
    begun = runtime.clock.monotonic()
    while refusal is not None:
        wait_s: float = getattr(refusal, "wait_s", 0.0)
        if runtime.clock.monotonic() - begun >= wait_s:
            raise refusal()
        yield POLL_S
        refusal = runtime.refusal


def when_room(queue: Any, submit: Callable[[], T | None]) -> T:
    """Submit, waiting for space in the queue as long as the settings allow.

    No lock is held during the wait. `submit` returns None if the queue is full.

    Raises:
        Overloaded: if the queue stays full.
    """
    found = submit()
    if found is None:
        clock = queue.journal.clock
        deadline = clock.monotonic() + queue.wait_s
    while found is None:
        room = threading.Event()
        queue.on_space(room.set)
        found = submit()
        if found is None and not room.wait(max(deadline - clock.monotonic(), 0)):
            raise queue.overloaded()
    return found


async def when_room_async(queue: Any, submit: Callable[[], T | None]) -> T:
    """Submit like `when_room`, without blocking the event loop."""
    found = submit()
    if found is None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + queue.wait_s
    while found is None:
        room = asyncio.Event()
        queue.on_space(waker(loop, room.set))
        found = submit()
        if found is None and not await _set_before(room, deadline):
            raise queue.overloaded()
    return found


async def _set_before(event: asyncio.Event, deadline: float) -> bool:
    """Wait for an event; return False if it is not set before a deadline of the event loop."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(deadline):
            await event.wait()
    return event.is_set()


def waker(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> Callable[[], None]:
    """Return a function for other threads that runs `callback` on a loop.

    The loop may be closed by then. The journal's thread calls the function, and an error would
    end that thread.
    """

    def wake() -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(callback)

    return wake
