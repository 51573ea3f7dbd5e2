"""Calls that wait for the journal: acks and nacks are answered when what they say is durable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from frazil.errors import FrazilError

if TYPE_CHECKING:
    import asyncio

    from frazil.subscribe.actions import Change

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

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._acks: list[int] = []
        self._acking: dict[AnswerAll, list[Any]] = {}
        """Who waits for the acks of this turn."""
        self._waiting: list[tuple[Change, Waiting]] = []
        self._failures: dict[Change, FrazilError] = {}
        self._quiet: list[asyncio.Future[None]] = []
        """Those who wait until nothing is under way."""
        self.under_way = 0
        """How many frames the journal has not answered yet."""

    def gather(self, offsets: Sequence[int], call: object, answer: AnswerAll) -> bool:
        """Keep acks for the end of this turn; return whether they are the first for `answer`."""
        self._acks += offsets
        calls = self._acking.get(answer)
        if calls is None:
            self._acking[answer] = [call]
            return True
        calls.append(call)
        return False

    def take(self) -> tuple[list[int], Waiting]:
        """Return the offsets that were acked in this turn, and the calls that wait for them."""
        offsets, self._acks = self._acks, []
        acking, self._acking = self._acking, {}
        return offsets, list(acking.items())

    @property
    def has_acks(self) -> bool:
        """Whether `take` would return any."""
        return bool(self._acks)

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

    def written(self) -> None:
        """Take note that the journal has answered something that was `under_way`."""
        self.under_way -= 1
        if not self.under_way:
            quiet, self._quiet = self._quiet, []
            for each in quiet:
                if not each.done():
                    each.set_result(None)

    async def quiet(self) -> None:
        """Wait until nothing is under way."""
        if self.under_way:
            # Each has its own: who gives up must not take it from the others.
            own: asyncio.Future[None] = self._loop.create_future()
            self._quiet.append(own)
            await own

    def end(self, error: FrazilError) -> None:
        """Answer all of them with an error."""
        _answer(self.take()[1], error)
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
        if self._failures:
            self._forget_failures()

    def _forget_failures(self) -> None:
        """Keep only what somebody who waits will be answered with."""
        named = {each for change, _calls in self._waiting for each in (change, *change.after)}
        self._failures = {each: self._failures[each] for each in named & self._failures.keys()}


def _answer(calls: Waiting, error: FrazilError | None) -> None:
    for answer, own in calls:
        answer(own, error)
