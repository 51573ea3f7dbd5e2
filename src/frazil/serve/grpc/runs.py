"""Calls of one method that came together on one connection, handled and answered as a whole.

A run saves what a call costs by itself: its object, its way through the guard, its way back. What
is not plain about one of them is done apart, as if it had come alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from frazil.serve.grpc.codec import Code, status_text

if TYPE_CHECKING:
    from frazil.serve.grpc.calls import Call, Calls
    from frazil.serve.h2.stream import Stream

__all__ = ["RUN_CALLS_MIN", "CallRun", "RunHandler"]

RUN_CALLS_MIN: Final = 2
"""Fewer calls are no run."""


class CallRun:
    """Calls of one method, in the order they came. All methods belong to the loop's thread.

    `messages` and `places` go together: a place stands for its call until that is answered. Each
    is answered once, by `ok_all`, by `fail_all`, or `apart` by the handler of single calls; what
    comes after that, or after the client went away, is dropped.
    """

    __slots__ = ("_calls", "messages", "places")

    def __init__(self, calls: Calls, places: list[Stream], messages: list[bytes]) -> None:
        self._calls = calls
        self.places = places
        self.messages = messages

    def apart(self, at: int) -> None:
        """Let the handler of single calls have one of them."""
        self._calls.handle(self.call(self.places[at], self.messages[at]))

    def call(self, place: Stream, message: bytes = b"") -> Call:
        """Return one of them as a call of its own."""
        return self._calls.call_of(place, message)

    def ok_all(self, places: list[Stream], replies: list[bytes]) -> None:
        """Answer some of them, each with one message and the status OK."""
        calls = self._calls
        calls.counters.statuses[0] += calls.sender.reply_all(places, replies)

    def fail_all(self, places: list[Stream], code: Code, text: str) -> None:
        """End some of them with a status."""
        calls, encoded = self._calls, status_text(text)
        for place in places:
            if not place.closed and place.code is None:
                calls.counters.statuses[code] += 1
                calls.sender.finish(place, code, encoded)


RunHandler = Callable[[CallRun], None]
"""Answers the calls of a run now or later; it raises nothing but bugs."""
