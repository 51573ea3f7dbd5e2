"""Calls that wait for the journal: acks and nacks are answered when what they say is durable."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from frazil.errors import FrazilError

if TYPE_CHECKING:
    from frazil.subscribe import Change

__all__ = ["Answer", "AnswerAll", "Answers", "Waiting", "answer_each"]

Answer = Callable[[FrazilError | None], None]
"""Called once: with None when the call is durable, else with what kept it from that."""
AnswerAll = Callable[[list[Any], FrazilError | None], None]
"""Called once for calls that were made together: those calls, then as `Answer`."""
Waiting = list[tuple[AnswerAll, list[Any]]]


def answer_each(dones: list[Answer], error: FrazilError | None) -> None:
    """Answer calls that have nothing in common."""
    for done in dones:
        done(error)


class Answers:
    """The calls of one subscription that were not answered yet."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Change, Waiting]] = []
        self._failures: dict[Change, FrazilError] = {}

    def add(self, change: Change | None, calls: Waiting) -> None:
        """Answer when a change, and those it repeats, are settled; at once if there is none."""
        if change is None:
            _answer(calls, None)
            return
        self._waiting.append((change, calls))
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
        for _change, calls in waiting:
            _answer(calls, error)

    def _look(self) -> None:
        waiting: list[tuple[Change, Waiting]] = []
        for change, calls in self._waiting:
            own_is_open = change.is_open and not change.is_empty
            if own_is_open or any(each.is_open for each in change.after):
                waiting.append((change, calls))
                continue
            error = self._failures.get(change) if self._failures else None
            for each in change.after:
                error = error or self._failures.get(each)
            _answer(calls, error)
        self._waiting = waiting
        if not waiting and self._failures:
            self._failures.clear()


def _answer(calls: Waiting, error: FrazilError | None) -> None:
    for answer, own in calls:
        answer(own, error)
