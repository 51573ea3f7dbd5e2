"""Reasons of a comparison, each once and not too many, with the place they are about."""

from __future__ import annotations

from typing import Final

from frazil.registry import limits
from frazil.registry.kinds import quoted

__all__ = ["TOO_MUCH", "Reasons"]

_REASON_CHARACTERS_MAX: Final = 400
TOO_MUCH: Final = (
    "there are too many parts, or choices in choices, to compare: split the schema into smaller"
    " ones, or set the subject's mode to 'none' if you know that it is compatible"
)


class Reasons:
    """Collect the reasons why one schema cannot read what another one wrote."""

    def __init__(self) -> None:
        self._found: dict[str, None] = {}
        self._more = 0
        self._is_given_up = False

    def add(self, path: str, text: str) -> None:
        """Add a reason at a place of the schema."""
        line = f"at {quoted(path)}: {text}"
        if len(line) > _REASON_CHARACTERS_MAX:
            line = line[:_REASON_CHARACTERS_MAX] + "…"
        if line in self._found:
            return
        if len(self._found) < limits.REASONS_MAX:
            self._found[line] = None
        else:
            self._more += 1

    def give_up(self) -> None:
        """Tell, behind all others, that there was too much to compare."""
        self._is_given_up = True

    @property
    def count(self) -> int:
        """How many there are, told or not."""
        return len(self._found) + self._more

    def lines(self) -> tuple[str, ...]:
        """Return them in the order they were found."""
        rest = (f"and {self._more} more",) if self._more else ()
        last = (f"at $: {TOO_MUCH}",) if self._is_given_up else ()
        return (*self._found, *rest, *last)
