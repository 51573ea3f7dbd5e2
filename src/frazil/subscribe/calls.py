"""Calls that came to a subscription: acks gathered for a turn, and what has to wait for its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from frazil.subscribe.answers import Answer, AnswerAll, Answers, answer_each

if TYPE_CHECKING:
    import asyncio

    from frazil.errors import FrazilError

__all__ = ["Calls"]


class Calls:
    """What clients and programs said to a subscription. Belongs to the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._answers = Answers(loop)
        self._is_resting = False
        """While the cursor is put somewhere else nothing is delivered."""
        self._late: list[Callable[[], None]] = []
        """Calls that came meanwhile."""
        self.end_error: FrazilError | None = None

    def _schedule(self) -> None:
        """Have what follows done in this turn of the loop."""
        raise NotImplementedError

    def ack(self, offset: int, done: Answer) -> None:
        """Settle a record; `done` is called when that is durable, or refused."""
        self.ack_with((offset,), done, answer_each)

    def ack_with(self, offsets: Sequence[int], call: object, answer: AnswerAll) -> None:
        """Settle records; `answer` gets all calls of this turn that gave it, once."""
        if self.end_error is not None:
            answer([call], self.end_error)
            return
        if self._answers.gather(offsets, call, answer):
            self._schedule()

    def is_put_off(self, call: Callable[[], None]) -> bool:
        """Have something called later if the place is being set now; tell whether."""
        if self._is_resting and self.end_error is None:
            self._late.append(call)
            return True
        return False

    def _call_late(self) -> None:
        """Do what had to wait."""
        late, self._late = self._late, []
        for call in late:
            call()

    def _answer_acks(self, error: FrazilError | None) -> None:
        """Answer acks that will not be settled."""
        for answer, calls in self._answers.take()[1]:
            answer(calls, error)
