"""How much work a check of a payload or a comparison of schemas may be, counted while it is done.

A unit is about a microsecond of a common machine. What is counted grows with the payload and with
the definitions, never with a clock: the same payload has the same verdict everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from frazil.errors import Unavailable
from frazil.registry import limits

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TOO_MUCH_WORK", "TooMuchWork", "Work"]

TOO_MUCH_WORK: Final = "schema needs too much work for this payload"
_POLL_UNITS: Final = 2_000
"""So often the check asks whether anybody still wants it."""


class TooMuchWork(Exception):
    """The check or comparison was given up; choices do not catch it, so that every loop ends."""


def _never() -> bool:
    return False


class Work:
    """The work of one check of a payload, up to `limits.WORK_UNITS_MAX`, or of something else."""

    __slots__ = ("_is_stopped", "_poll_at", "_units_max", "units")

    def __init__(
        self, is_stopped: Callable[[], bool] = _never, *, units_max: int | None = None
    ) -> None:
        self.units = 0
        self._units_max = limits.WORK_UNITS_MAX if units_max is None else units_max
        self._is_stopped = is_stopped
        self._poll_at = 0

    @classmethod
    def of_comparison(cls, is_stopped: Callable[[], bool] = _never) -> Work:
        """Return the bound of one comparison of two definitions."""
        return cls(is_stopped, units_max=limits.COMPARISON_UNITS_MAX)

    @classmethod
    def of_definition(cls) -> Work:
        """Return the bound of what reading one definition takes beside a look at each part."""
        return cls(units_max=limits.DEFINITION_UNITS_MAX)

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
        if self.units > self._units_max:
            raise TooMuchWork
        if self._is_stopped():
            raise Unavailable("the schema registry is closed")
        # Never beyond the limit, so that one comparison is enough for both.
        self._poll_at = min(self.units + _POLL_UNITS, self._units_max + 1)
