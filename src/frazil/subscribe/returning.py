"""What goes out before anything new: it came back from a consumer, or could not be sent to one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from frazil.subscribe.actions import Change

__all__ = ["Returning"]


class Returning:
    """Changes on their way to the journal, and offsets that wait for another try. True if any."""

    __slots__ = ("_changes", "_offsets")

    def __init__(self) -> None:
        self._changes = 0
        self._offsets: set[int] = set()

    def __bool__(self) -> bool:
        return self._changes > 0 or bool(self._offsets)

    def __contains__(self, offset: int) -> bool:
        return offset in self._offsets

    def hold(self, change: Change) -> None:
        """Let nothing new go before a change is durable."""
        if not change.is_returning:
            change.is_returning = True
            self._changes += 1

    def release(self, change: Change) -> None:
        """Take note that the journal has answered."""
        self._changes -= change.is_returning

    def wait(self, offset: int) -> None:
        """Let nothing new go before this record is ready to be delivered, or settled."""
        self._offsets.add(offset)

    def forget(self, offset: int) -> None:
        """Take note that a record need not be waited for."""
        self._offsets.discard(offset)
