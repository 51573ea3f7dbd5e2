"""How far the deliveries of a subscription may go: durable before they do.

Clients outlive a broker and ack what they have. The next life must take those acks, and no others:
so it must know how far the one before it came. A frame for each first delivery would cost more than
its ack; so room for as many as the window lets out is reserved ahead, with the acks that open it.
`docs/internals/dispatch.md` has the rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from frazil.subscribe.policy import SubscriptionType
from frazil.telemetry import warn

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from frazil.errors import FrazilError
    from frazil.subscribe.answers import Answer
    from frazil.subscribe.dispatch import Dispatch
    from frazil.subscribe.journalling import Journalling

__all__ = ["Reserve"]

KEYS_AHEAD: Final = 512
"""KeyShared reads past keys that are busy, further than its window; so far at a time."""
RETRY_S: Final = 1.0


class Reserve:
    """What one subscription may deliver. Belongs to the loop's thread.

    Args:
        name: the subscription's.
        journalling: writes what is reserved.
        loop: the loop.
        below: the end that is durable, None if nobody wrote it down.
        delivered_below: what an earlier life may have delivered is below it.
    """

    def __init__(
        self,
        name: str,
        journalling: Journalling,
        loop: asyncio.AbstractEventLoop,
        *,
        below: int | None,
        delivered_below: int,
    ) -> None:
        self._name = name
        self._journalling = journalling
        self._loop = loop
        self._is_asked = False
        self.error: FrazilError | None = None
        """Why the journal refused what was asked for last, None if it did not."""
        self.below = below or 0
        """Records below it may be delivered: that is durable."""
        self.delivered_below = delivered_below
        """No record at or above it was ever delivered."""

    def wanted(self, dispatch: Dispatch, at: int, *, settled: int = 0) -> int:
        """Return the end that is worth reserving: a full window of what is read from `at` on.

        So many records as `settled` no longer count, for that is to be durable with it.
        """
        room = dispatch.may_deliver(settled) - dispatch.held
        if dispatch.kind is SubscriptionType.KEY_SHARED:
            room = max(room, KEYS_AHEAD)
        return max(at + max(room, 0), self.delivered_below)

    def grant(self, end: int) -> None:
        """Take note that an end is durable."""
        if end > self.below:
            self.below = end
            self.error = None

    def use(self, offsets: Sequence[int]) -> None:
        """Take note of deliveries."""
        end = max(offsets) + 1
        if end > self.delivered_below:
            assert end <= self.below
            self.delivered_below = end

    def ask(self, end: int, answered: Answer, retry: Callable[[], None]) -> bool:
        """Reserve up to `end` with a frame of its own; False if one is on its way already.

        `answered` is called when the journal has taken or refused it, and `retry` when after a
        refusal it is time to ask again.
        """
        if self._is_asked:
            return False
        self._is_asked = True

        def written(error: FrazilError | None) -> None:
            if error is None:
                self._is_asked = False
                self.error = None
                self.grant(end)
            else:
                self.error = error
                self._loop.call_later(RETRY_S, self._ask_again, retry)
            answered(error)

        self._journalling.reserve(self._name, end, written)
        return True

    def _ask_again(self, retry: Callable[[], None]) -> None:
        self._is_asked = False
        retry()

    async def release(self) -> None:
        """Make durable how far deliveries came: none follows. What fails leaves more reserved."""
        if self.delivered_below >= self.below:
            return
        end = self.delivered_below
        released: asyncio.Future[FrazilError | None] = self._loop.create_future()
        self._journalling.reserve(self._name, end, released.set_result, is_exact=True)
        error = await released
        if error is None:
            self.below = end
        else:
            warn("reserve_not_released", subscription=self._name, error=error)
