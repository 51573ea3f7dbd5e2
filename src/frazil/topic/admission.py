"""Publishing while it is stopped: a stop that may soon be over is waited for."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Final

from frazil.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from frazil.topic.runtime import TopicRuntime

LOOK_S: Final = 0.02
"""How often who waits looks whether the stop is over."""


class NotStored:
    """The refusal of whatever would be durable in a topic that only passes messages on.

    It stays as long as the topic: no other stop takes its place.
    """

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def __call__(self) -> InvalidRequest:
        """Return the error."""
        return InvalidRequest(
            "the topic is not reliable: it stores nothing, and only producers and consumers of a "
            "running broker pass messages through it; use a reliable topic",
            topic=self._topic,
        )


def pass_stop(runtime: TopicRuntime) -> None:
    """Return when publishing to a topic goes on.

    Raises:
        FrazilError: the reason of a stop that lasts, at once or after as long as it asks to wait.
    """
    never = threading.Event()
    for pause_s in _pauses(runtime):
        never.wait(pause_s)


async def pass_stop_async(runtime: TopicRuntime) -> None:
    """Do the same without holding up the loop."""
    for pause_s in _pauses(runtime):
        await asyncio.sleep(pause_s)


def _pauses(runtime: TopicRuntime) -> Iterator[float]:
    """Yield pauses while a stop is waited for; raise its reason when that takes too long."""
    refusal = runtime.refusal
    begun = runtime.clock.monotonic()
    while refusal is not None:
        wait_s: float = getattr(refusal, "wait_s", 0.0)
        if runtime.clock.monotonic() - begun >= wait_s:
            raise refusal()
        yield LOOK_S
        refusal = runtime.refusal
