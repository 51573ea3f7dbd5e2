"""Dead letters of one subscription: each is durable in its topic before its record is settled."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from frazil.errors import FrazilError, NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.subscribe.actions import DeadLetter
    from frazil.subscribe.dead_letters import DeadLetters
    from frazil.subscribe.dispatch import Dispatch
    from frazil.subscribe.record import Record
    from frazil.subscribe.subscription import Subscription

__all__ = ["Burials", "not_held"]


class Burials:
    """What is on its way to the dead-letter topic. All methods belong to the loop's thread."""

    def __init__(
        self,
        subscription: Subscription,
        dead_letters: DeadLetters,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._subscription = subscription
        self._dead_letters = dead_letters
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()
        self.error: FrazilError | None = None
        """What keeps one from being written, None if nothing does."""
        self._offset = -1
        """Of which record that one is."""

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def begin(self, letter: DeadLetter, dispatch: Dispatch) -> None:
        """Publish a dead letter, then settle its record."""
        task = self._loop.create_task(self._bury(letter, dispatch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        """Wait until those that have begun came to something."""
        await asyncio.wait(self._tasks)

    def cancel(self) -> None:
        """Leave those that have begun to the next life."""
        for task in self._tasks:
            task.cancel()

    def forget(self, offsets: Sequence[int]) -> None:
        """Take note that records are settled, whatever became of their letters."""
        if self.error is not None and self._offset in offsets:
            self.error = None

    async def _bury(self, letter: DeadLetter, dispatch: Dispatch) -> None:
        subscription = self._subscription
        try:
            record = await self._record(letter.offset)
            if record is not None:
                await self._dead_letters.publish(subscription, record, letter)
        except FrazilError as error:
            self._failed(letter, dispatch, error)
        except Exception as error:  # noqa: BLE001 - the task's top: the record must not be forgotten
            bug = Unavailable("a bug kept a dead letter from being written", cause=repr(error))
            self._failed(letter, dispatch, bug)
        else:
            self.error = None
            subscription.counts.dead_letters += record is not None
            subscription.letter_ended(dispatch.dead_lettered(letter.offset))

    def _failed(self, letter: DeadLetter, dispatch: Dispatch, error: FrazilError) -> None:
        subscription = self._subscription
        if letter.offset in dispatch.cursor:
            # Acked meanwhile: nobody needs the letter.
            return
        subscription.warn_seldom("dead_letter_failed", offset=letter.offset, error=error)
        self.error, self._offset = error, letter.offset
        dispatch.dead_letter_failed(letter.offset, now_ms=int(self._loop.time() * 1000))
        subscription.letter_ended(None)

    async def _record(self, offset: int) -> Record | None:
        """Return a record that is to be a dead letter, None if a full quota took it away.

        Raises:
            FrazilError: what keeps it from being read; then it stays as it is.
        """
        subscription = self._subscription
        record = subscription.held_record(offset)
        if record is None:
            try:
                record = await subscription.feed.fetch(offset)
            except NotFound as error:
                if subscription.feed.end_error() is not None:
                    raise
                if not subscription.is_given_up(offset):
                    raise not_held(subscription.topic, offset=offset) from error
        if record is None:
            subscription.note_missed(1)
        return record


def not_held(topic: str, *, offset: int, **facts: int) -> Unavailable:
    """Return what to say of records that nobody gave up and that nothing has."""
    return Unavailable(
        "records that are kept for the subscription are not found: check the settings of files and "
        "objects, and that the store is in reach; a reset of the subscription passes them over",
        topic=topic,
        offset=offset,
        **facts,
    )
