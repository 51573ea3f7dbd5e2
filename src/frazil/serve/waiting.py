"""How the event loop waits for clients: it looks a moment longer before it sleeps, where that pays.

A process that sleeps until a client's next call is woken by it, and on virtual machines that takes
longer than most calls do themselves. A client with one call in flight waits for it every time. So
the loop first asks the kernel again and again, for `POLL_S` at most, as long as that mostly
finds something. It does not while answers come from threads of this process, such as the journal's: they
need the interpreter, which asking would keep from them.
"""

from __future__ import annotations

import asyncio
import importlib
import selectors
from typing import TYPE_CHECKING, Final, TypeVarTuple, cast

from frazil.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

    from frazil.clock import Clock

__all__ = ["Patience", "PollingLoop", "PollingSelector", "fastest_loop"]

POLL_S: Final = 100e-6
"""About as long as a client takes from an answer to its next call."""
CREDIT_MAX: Final = 16
MISS_COST: Final = 4
"""A wait that was long outweighs so many that were short, and so many of them must come first."""


_Given = TypeVarTuple("_Given")


class Patience:
    """Whether to ask again before sleeping, judged by how long the last waits took. Pure."""

    def __init__(self, poll_s: float) -> None:
        self.poll_s = poll_s
        self._credit = 0

    @property
    def is_worth_it(self) -> bool:
        """Return whether the next wait will probably be short, and end with a client's call."""
        return self._credit >= MISS_COST

    def note(self, waited_s: float, *, from_client: bool) -> None:
        """Take note of a wait, whether asleep or not."""
        if from_client and waited_s < self.poll_s:
            self._credit = min(self._credit + 1, CREDIT_MAX)
        else:
            self._credit = max(self._credit - MISS_COST, 0)

    def crowd(self) -> None:
        """Take note that several calls came at once: who has many under way waits for none alone."""
        self._credit = 0


class PollingSelector(selectors.DefaultSelector):
    """Waits as its base does, with patience."""

    def __init__(self, patience: Patience, clock: Clock) -> None:
        super().__init__()
        self.patience = patience
        self._now = clock.monotonic
        self.is_told = False
        """Set by whoever ends a wait from another thread."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            self.is_told = False
            return super().select(timeout)
        patience = self.patience
        begun = now = self._now()
        found: list[tuple[selectors.SelectorKey, int]] = []
        if patience.is_worth_it:
            end = begun + min(patience.poll_s, patience.poll_s if timeout is None else timeout)
            while not found and now < end:
                found = super().select(0)
                now = self._now()
        if not found:
            left = None if timeout is None else max(begun + timeout - now, 0)
            found = super().select(left)
            now = self._now()
        patience.note(now - begun, from_client=bool(found) and not self.is_told)
        self.is_told = False
        return found


class PollingLoop(asyncio.SelectorEventLoop):
    """The standard event loop, whose waits are patient."""

    def __init__(self, poll_s: float, clock: Clock | None = None) -> None:
        self._polling = PollingSelector(Patience(poll_s), clock or SystemClock())
        super().__init__(self._polling)
        self.crowd = self._polling.patience.crowd

    def call_soon_threadsafe(
        self,
        callback: Callable[[*_Given], object],
        *args: *_Given,
        context: Context | None = None,
    ) -> asyncio.Handle:
        self._polling.is_told = True
        return super().call_soon_threadsafe(callback, *args, context=context)


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes an event loop: uvloop's where it is installed, else the standard one.

    The standard one asks for up to `POLL_S` before it sleeps.
    """
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return lambda: PollingLoop(POLL_S)
    return cast("Callable[[], asyncio.AbstractEventLoop]", uvloop.new_event_loop)
