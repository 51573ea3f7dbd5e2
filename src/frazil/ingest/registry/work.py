"""How much work the check of one payload may be, counted while it is done.

A unit is about a microsecond of a common machine. What is counted grows with the payload and with
the definition, never with a clock: the same payload has the same verdict everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from frazil.errors import Unavailable
from frazil.ingest.registry import limits

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TOO_MUCH_WORK", "TooMuchWork", "Work"]

TOO_MUCH_WORK: Final = "schema needs too much work for this payload"
_POLL_UNITS: Final = 2_000
"""So often the check asks whether anybody still wants it."""


class TooMuchWork(Exception):
    """The check was given up; choices do not catch it."""


def _never() -> bool:
    return False


class Work:
    """The work of one check, up to `limits.WORK_UNITS_MAX`."""

    __slots__ = ("_is_stopped", "_poll_at", "units")

    def __init__(self, is_stopped: Callable[[], bool] = _never) -> None:
        self.units = 0
        self._is_stopped = is_stopped
        self._poll_at = 0

    def charge(self, units: int) -> None:
        """Count work before it is done.

        Raises:
            TooMuchWork: if it would be more than allowed.
            Unavailable: if all checks are to stop.
        """
        self.units += units
        if self.units >= self._poll_at:
            self._look_up()

    def _look_up(self) -> None:
        if self.units > limits.WORK_UNITS_MAX:
            raise TooMuchWork
        if self._is_stopped():
            raise Unavailable("the schema registry is closed")
        # Never beyond the limit, so that one comparison is enough for both.
        self._poll_at = min(self.units + _POLL_UNITS, limits.WORK_UNITS_MAX + 1)
