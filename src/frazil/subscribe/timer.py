"""The one timer of a subscription: set anew with each turn, mostly to the time that it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["Timer"]


class Timer:
    """Calls a function at a time, which may be changed. Belongs to the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        self._loop = loop
        self._call = call
        self._handle: asyncio.TimerHandle | None = None

    def set(self, due_ms: int | None) -> None:
        """Call at this time of the loop instead of the one before; None is never."""
        if self._handle is not None:
            if due_ms is not None and abs(self._handle.when() * 1000 - due_ms) < 1:
                return
            self._handle.cancel()
            self._handle = None
        if due_ms is not None:
            self._handle = self._loop.call_at(due_ms / 1000, self._rang)

    def _rang(self) -> None:
        self._handle = None
        self._call()
