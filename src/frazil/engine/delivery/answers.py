"""Calls that wait for the journal: acks and nacks are answered when what they say is durable."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from frazil.errors import FrazilError

if TYPE_CHECKING:
    from frazil.subscribe import Change

__all__ = ["Answer", "Answers"]

Answer = Callable[[FrazilError | None], None]
"""Called once: with None when the call is durable, else with what kept it from that."""


class Answers:
    """The calls of one subscription that were not answered yet."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Change, list[Answer]]] = []
        self._failures: dict[Change, FrazilError] = {}

    def add(self, change: Change | None, dones: list[Answer]) -> None:
        """Answer when a change, and those it repeats, are settled; at once if there is none."""
        if change is None:
            for done in dones:
                done(None)
            return
        self._waiting.append((change, dones))
        if change.is_empty:
            self._look()

    def settle(self, change: Change, error: FrazilError | None) -> None:
        """Take note of what became of a change."""
        if error is not None:
            self._failures[change] = error
        self._look()

    def end(self, error: FrazilError) -> None:
        """Answer all of them with an error."""
        waiting, self._waiting = self._waiting, []
        for _change, dones in waiting:
            for done in dones:
                done(error)

    def _look(self) -> None:
        waiting: list[tuple[Change, list[Answer]]] = []
        for change, dones in self._waiting:
            own_is_open = change.is_open and not change.is_empty
            if own_is_open or any(each.is_open for each in change.after):
                waiting.append((change, dones))
                continue
            error = self._failures.get(change) if self._failures else None
            for each in change.after:
                error = error or self._failures.get(each)
            for done in dones:
                done(error)
        self._waiting = waiting
        if not waiting and self._failures:
            self._failures.clear()
