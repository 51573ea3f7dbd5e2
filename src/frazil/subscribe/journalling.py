"""Acks and attempts on their way to the journal: those of one turn of the loop in one frame."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from frazil.errors import FrazilError, InvalidRequest, NotFound, Overloaded
from frazil.log import Acked, Attempted, delayed
from frazil.subscribe.answers import Answer

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from frazil.clock import Clock
    from frazil.log import cursor_state
    from frazil.model import Ack
    from frazil.subscribe.actions import Change
    from frazil.subscribe.cursors import Cursors

__all__ = ["Journalling"]

RETRY_S: Final = 0.01
PATIENCE_S: Final = 5.0
"""How long a change waits for room in the journal's queue before it is refused."""

Waiting = tuple[list["cursor_state.Change"], Answer]
"""What a change is in the journal, and who is told about it."""


class Journalling:
    """Writes the changes of one topic's subscriptions. All methods belong to the loop's thread."""

    def __init__(
        self, topic: str, cursors: Cursors, clock: Clock, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._topic = topic
        self._cursors = cursors
        self._clock = clock
        self._loop = loop
        self._waiting: list[Waiting] = []
        self._is_scheduled = False

    def add(self, name: str, change: Change, answer: Answer, *, reserved: int = 0) -> None:
        """Write a change of the subscription `name` with the others of this turn.

        `answer` is called when it is durable, or with what kept it from being written. One that
        settles records may say besides how far deliveries may go.
        """
        self._add(self._written(name, change, reserved), answer)

    def reserve(self, name: str, end: int, answer: Answer, *, is_exact: bool = False) -> None:
        """Write how far the deliveries of a subscription may go, or exactly how far they went."""
        self._add([Acked(name, [], end, is_exact)], answer)

    def _add(self, changes: list[cursor_state.Change], answer: Answer) -> None:
        self._waiting.append((changes, answer))
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._flush)

    def _written(self, name: str, change: Change, reserved: int) -> list[cursor_state.Change]:
        """Return what is written of a change; times are told by the clock on the wall."""
        if not change.attempts:
            return [Acked(name, list(chain.from_iterable(sorted(change.ranges))), reserved)]
        pairs = zip(change.offsets, change.attempts, strict=True)
        written: list[cursor_state.Change] = [Attempted(name, list(chain.from_iterable(pairs)))]
        now_ms = int(self._loop.time() * 1000)
        wall_ms = self._clock.now_us() // 1000 - now_ms
        dues = [
            (offset, number, wall_ms + due_ms)
            for offset, number, due_ms in zip(
                change.offsets, change.attempts, change.dues_ms, strict=True
            )
            if due_ms > now_ms
        ]
        return [*written, delayed(name, *dues)] if dues else written

    def _flush(self) -> None:
        self._is_scheduled = False
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._submit(waiting, self._loop.time() + PATIENCE_S)

    def _submit(self, some: list[Waiting], deadline: float) -> None:
        waiter = _Waiter(self._loop, some, self._submit_each)
        try:
            changes = [change for own, _answer in some for change in own]
            self._cursors.apply(self._topic, changes, waiter)
        except Overloaded as error:
            if self._loop.time() >= deadline:
                # Not through the waiter: one by one they would wait as long again.
                for _own, answer in some:
                    answer(error)
                return
            self._loop.call_later(RETRY_S, self._submit, some, deadline)
        except (NotFound, InvalidRequest) as error:
            if len(some) == 1:
                waiter.set_exception(error)
                return
            # One of them is of a subscription that was dropped; the others are none the worse.
            self._submit_each(some)
        except FrazilError as error:
            waiter.set_exception(error)

    def _submit_each(self, some: list[Waiting]) -> None:
        for each in some:
            self._submit([each], self._loop.time() + PATIENCE_S)


class _Waiter:
    """Stands for all changes of one frame where the journal knows a future."""

    __slots__ = ("_changes", "_loop", "_one_by_one")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        changes: list[Waiting],
        one_by_one: Callable[[list[Waiting]], None],
    ) -> None:
        self._loop = loop
        self._changes = changes
        self._one_by_one = one_by_one

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def done(self) -> bool:
        return False

    def set_result(self, _ack: Ack) -> None:
        for _change, answer in self._changes:
            answer(None)

    def set_exception(self, error: Any) -> None:
        if isinstance(error, Overloaded) and len(self._changes) > 1:
            # A subscription is at one of its bounds; the frame was refused with the others' changes.
            self._one_by_one(self._changes)
            return
        for _change, answer in self._changes:
            answer(error)
