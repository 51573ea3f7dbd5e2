"""Why topics do not go on, and when each may be tried again: longer each time, never all at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from frazil.errors import FrazilError

if TYPE_CHECKING:
    from frazil.clock import Clock

__all__ = ["Trouble", "Troubles"]

DELAY_S: Final = 0.5
DELAY_MAX_S: Final = 60.0


@attrs.frozen
class Trouble:
    """Why a topic does not go on."""

    error: FrazilError
    since_us: int
    count: int
    retry_at: float
    """By the monotonic clock."""
    stopped: bool = False
    """It is not tried again until somebody says so."""


class Troubles:
    """The troubles of all topics with one kind of work. Any thread may call."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[int, Trouble] = {}

    def all(self) -> dict[int, Trouble]:
        """Return the troubles by topic."""
        return self._known.copy()

    def of(self, topic_id: int) -> Trouble | None:
        """Return a topic's trouble."""
        return self._known.get(topic_id)

    def count(self, topic_id: int) -> int:
        """Return how often a topic has failed in a row."""
        trouble = self.of(topic_id)
        return 0 if trouble is None else trouble.count

    def clear(self, topic_id: int) -> None:
        """Let a topic be tried at once, also if it has stopped."""
        self._known.pop(topic_id, None)

    def due(self, topic_id: int) -> bool:
        """Tell whether a topic may be tried now."""
        trouble = self._known.get(topic_id)
        if trouble is None:
            return True
        return not trouble.stopped and self._clock.monotonic() >= trouble.retry_at

    def note(self, topic_id: int, error: FrazilError) -> Trouble:
        """Remember a failure; the topic waits longer each time."""
        before = self._known.get(topic_id)
        count = before.count + 1 if before is not None else 1
        delay_s = min(DELAY_MAX_S, DELAY_S * 2 ** min(count, 10))
        chance = int.from_bytes(self._clock.random_bytes(2), "little") / 0x10000
        wait_s = delay_s * (1 + chance) / 2
        asked_ms = error.details.get("retry_after_ms")
        if isinstance(asked_ms, int | float):
            wait_s = max(wait_s, asked_ms / 1000)
        trouble = Trouble(
            error,
            before.since_us if before is not None else self._clock.now_us(),
            count,
            self._clock.monotonic() + wait_s,
            stopped=bool(error.details.get("foreign")),
        )
        self._known[topic_id] = trouble
        return trouble
