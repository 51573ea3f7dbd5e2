"""Publishes that wait until their records are in the table: `ack="committed"`.

The record is fsynced first, like any other. Then the lake is asked to hurry, and the caller waits.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from frazil.engine.part_acks import written_text
from frazil.errors import InvalidRequest, Unavailable
from frazil.log.committer import Pending
from frazil.model import Ack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from frazil.engine.runtime import TopicRuntime
    from frazil.lake.table import Ends

__all__ = ["CommitWaits", "CommittedPending", "wait_committed", "wait_committed_async"]


class CommitWaits:
    """Who waits for a table, and for how much. Any thread may call any method.

    `wake` is called when somebody begins to wait.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        self.committed: Ends = {}
        """Where the table stands, by part; it may go back when somebody rolls the table back."""
        self.asked: Ends = {}
        """How far somebody wants the table to be, by part."""
        self.refusal: str = ""
        """Why nobody needs to wait: the table is stopped or paused."""
        self.delay: str = ""
        """What the table waits for at the moment, if it is known."""

    def ask(self, part: int, end: int) -> None:
        """Have everything below an offset committed soon; returns at once."""
        with self._lock:
            if end <= max(self.asked.get(part, 0), self.committed.get(part, 0)):
                return
            self.asked[part] = end
        self._wake()

    def watch(self, part: int, end: int, tell: Callable[[], None]) -> bool:
        """Have `tell` called when a part is committed below `end`, or when it will not be.

        Returns False, without a call to come, if one of the two is so already.
        """
        with self._lock:
            if self.refusal or self.committed.get(part, 0) >= end:
                return False
            self._waiting.append((part, end, tell))
        return True

    def forget(self, tell: Callable[[], None]) -> None:
        """Take back a watch."""
        with self._lock:
            self._waiting = [each for each in self._waiting if each[2] is not tell]

    def moved(self, ends: Ends) -> None:
        """Note where the table stands and wake those who waited for it."""
        with self._lock:
            self.committed = dict(ends)
            ready = [each for each in self._waiting if ends.get(each[0], 0) >= each[1]]
            self._waiting = [each for each in self._waiting if ends.get(each[0], 0) < each[1]]
        for _part, _end, tell in ready:
            tell()

    def refuse(self, why: str) -> None:
        """Wake everybody: the table does not move on. Empty lets waits begin again."""
        with self._lock:
            self.refusal = why
            told = self._waiting if why else []
            if why:
                self._waiting = []
        for _part, _end, tell in told:
            tell()

    def is_asked(self) -> bool:
        """Tell whether somebody wants more than the table has."""
        with self._lock:
            return any(end > self.committed.get(part, 0) for part, end in self.asked.items())


def _waits_of(runtime: TopicRuntime) -> CommitWaits:
    if runtime.lake is None:
        raise InvalidRequest(
            "this ack level needs a topic with a lake", ack="committed", topic=runtime.name
        )
    return runtime.lake


def _late(
    runtime: TopicRuntime, ack: Ack, every: Sequence[tuple[TopicRuntime, Ack]]
) -> Unavailable:
    """Return the error of a call whose records are all fsynced, but of which one part is late."""
    waits = _waits_of(runtime)
    late = f"it took longer than {runtime.settings.lake.ack_timeout_s:g} s"
    why = waits.refusal or (f"{late}: {waits.delay}" if waits.delay else late)
    if len(every) == 1:
        return Unavailable(
            "the record is fsynced, but not committed to the lake yet; it will be, "
            "do not send it again",
            outcome="fsynced",
            topic=runtime.name,
            offset=ack.offset,
            offset_last=ack.offset_last,
            why=why,
        )
    parts_late = [own.part for own, each in every if not _is_committed(own, each)]
    return Unavailable(
        "the records are fsynced, but not all committed to the lake yet; they will be, "
        "do not send them again",
        outcome="fsynced",
        topic=runtime.name.removesuffix(f"-part-{runtime.part}"),
        parts_written=written_text((own.part, each) for own, each in every),
        parts_late=", ".join(map(str, parts_late)),
        acks=tuple(each for _own, each in every),
        why=why,
    )


def _is_committed(runtime: TopicRuntime, ack: Ack) -> bool:
    return _waits_of(runtime).committed.get(runtime.part, 0) > ack.offset_last


def wait_committed(waits: Sequence[tuple[TopicRuntime, Ack]]) -> None:
    """Wait until records that were acked are in their table.

    Raises:
        Unavailable: if that takes too long, or the table is stopped; the records are fsynced. Of
            a call to several parts `parts_written` and `acks` tell where each of them is.
    """
    for runtime, ack in waits:
        _waits_of(runtime).ask(runtime.part, ack.offset_last + 1)
    for runtime, ack in waits:
        told = threading.Event()
        lake, end = _waits_of(runtime), ack.offset_last + 1
        if lake.watch(runtime.part, end, told.set):
            told.wait(runtime.settings.lake.ack_timeout_s)
            lake.forget(told.set)
        if not _is_committed(runtime, ack):
            raise _late(runtime, ack, waits)


async def wait_committed_async(waits: Sequence[tuple[TopicRuntime, Ack]]) -> None:
    """Do the same without holding up the loop."""
    loop = asyncio.get_running_loop()
    for runtime, ack in waits:
        _waits_of(runtime).ask(runtime.part, ack.offset_last + 1)
    for runtime, ack in waits:
        told = asyncio.Event()
        lake, end = _waits_of(runtime), ack.offset_last + 1

        def tell(told: asyncio.Event = told) -> None:
            # The loop may have ended before the lake got there.
            if not loop.is_closed():
                loop.call_soon_threadsafe(told.set)

        if lake.watch(runtime.part, end, tell):
            try:
                await asyncio.wait_for(told.wait(), runtime.settings.lake.ack_timeout_s)
            except TimeoutError:
                pass
            finally:
                lake.forget(tell)
        if not _is_committed(runtime, ack):
            raise _late(runtime, ack, waits)


class CommittedPending(Pending):
    """An answer that counts when its record is in the table."""

    __slots__ = ("_runtime",)

    def __init__(self, runtime: TopicRuntime) -> None:
        super().__init__()
        self._runtime = runtime

    def settle(self, value: Any) -> None:
        """Give the journal's answer, and have the lake hurry: in the journal's thread."""
        super().settle(value)
        if isinstance(value, Ack) and self._runtime.lake is not None:
            self._runtime.lake.ask(self._runtime.part, value.offset_last + 1)

    def result(self, timeout_s: float | None = None) -> Any:
        """Wait for the fsync, then for the table."""
        ack: Ack = super().result(timeout_s)
        wait_committed([(self._runtime, ack)])
        return ack
