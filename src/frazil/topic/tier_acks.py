"""Publishes that wait for a tier behind the log: `ack="committed"` and `ack="uploaded"`.

The record is fsynced first, like any other. Then the tier is asked to hurry, and the caller waits.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Final

from frazil.errors import Unavailable
from frazil.log import Pending
from frazil.model import Ack
from frazil.topic.part_acks import written_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from frazil.topic.runtime import TopicRuntime

__all__ = ["WAITED_FOR", "TierPending", "TierWaits", "wait_reached", "wait_reached_async"]

Ends = dict[int, int]
"""Offsets by part; -1 is a topic without parts."""

WAITED_FOR: Final = {"committed": "committed to the lake", "uploaded": "uploaded to the store"}
"""The levels that are reached behind the log, in words."""
_TOPIC: Final = {"committed": "a topic with a lake", "uploaded": "a topic with objects"}


class TierWaits:
    """Who waits for a tier, and for how much. Any thread may call any method.

    `wake` is called when somebody begins to wait.
    """

    def __init__(self, wake: Callable[[], None], *, timeout_s: float) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        self.timeout_s = timeout_s
        """So long a publish waits."""
        self.reached: Ends = {}
        """Where the tier stands, by part; a table may go back when somebody rolls it back."""
        self.asked: Ends = {}
        """How far somebody wants the tier to be, by part."""
        self.refusal: str = ""
        """Why nobody needs to wait: the tier is stopped or paused."""
        self.delay: str = ""
        """What the tier waits for at the moment, if it is known."""

    def ask(self, part: int, end: int) -> None:
        """Have everything below an offset there soon; returns at once."""
        with self._lock:
            if end <= max(self.asked.get(part, 0), self.reached.get(part, 0)):
                return
            self.asked[part] = end
        self._wake()

    def watch(self, part: int, end: int, tell: Callable[[], None]) -> bool:
        """Have `tell` called when a part is there below `end`, or when it will not be.

        Returns False, without a call to come, if one of the two is so already.
        """
        with self._lock:
            if self.refusal or self.reached.get(part, 0) >= end:
                return False
            self._waiting.append((part, end, tell))
        return True

    def forget(self, tell: Callable[[], None]) -> None:
        """Take back a watch."""
        with self._lock:
            self._waiting = [each for each in self._waiting if each[2] is not tell]

    def moved(self, ends: Ends) -> None:
        """Note where the tier stands and wake those who waited for it."""
        with self._lock:
            ready = self._moved(dict(ends))
        for tell in ready:
            tell()

    def grew(self, part: int, end: int) -> None:
        """Note that the tier has a part below an offset; whoever comes late with less is too late."""
        with self._lock:
            if end <= self.reached.get(part, 0):
                return
            ready = self._moved({**self.reached, part: end})
        for tell in ready:
            tell()

    def _moved(self, ends: Ends) -> list[Callable[[], None]]:
        self.reached = ends
        ready = [each for each in self._waiting if ends.get(each[0], 0) >= each[1]]
        self._waiting = [each for each in self._waiting if ends.get(each[0], 0) < each[1]]
        return [tell for _part, _end, tell in ready]

    def refuse(self, why: str) -> None:
        """Wake everybody: the tier does not move on. Empty lets waits begin again."""
        with self._lock:
            self.refusal = why
            told = self._waiting if why else []
            if why:
                self._waiting = []
        for _part, _end, tell in told:
            tell()

    def is_asked(self) -> bool:
        """Tell whether somebody wants more than the tier has."""
        with self._lock:
            return any(end > self.reached.get(part, 0) for part, end in self.asked.items())


def _waits_of(runtime: TopicRuntime, level: str) -> TierWaits:
    """Return the tier of a topic whose records are fsynced already: whatever fails has to say so."""
    found = runtime.lake if level == "committed" else runtime.objects
    if found is None:
        # It was switched off between the check of the level and the ack of the log.
        found = TierWaits(lambda: None, timeout_s=0)
        found.refuse(f"the topic is not {_TOPIC[level]} any more")
    return found


def _late(
    level: str, runtime: TopicRuntime, ack: Ack, every: Sequence[tuple[TopicRuntime, Ack]]
) -> Unavailable:
    """Return the error of a call whose records are all fsynced, but of which one part is late."""
    waits = _waits_of(runtime, level)
    late = f"it took longer than {waits.timeout_s:g} s"
    why = waits.refusal or (f"{late}: {waits.delay}" if waits.delay else late)
    if len(every) == 1:
        return Unavailable(
            f"the record is fsynced, but not {WAITED_FOR[level]} yet; it will be, "
            "do not send it again",
            outcome="fsynced",
            topic=runtime.name,
            offset=ack.offset,
            offset_last=ack.offset_last,
            why=why,
        )
    parts_late = [own.part for own, each in every if not _is_there(level, own, each)]
    return Unavailable(
        f"the records are fsynced, but not all {WAITED_FOR[level]} yet; they will be, "
        "do not send them again",
        outcome="fsynced",
        topic=runtime.name.removesuffix(f"-part-{runtime.part}"),
        parts_written=written_text((own.part, each) for own, each in every),
        parts_late=", ".join(map(str, parts_late)),
        acks=tuple(each for _own, each in every),
        why=why,
    )


def _is_there(level: str, runtime: TopicRuntime, ack: Ack) -> bool:
    return _waits_of(runtime, level).reached.get(runtime.part, 0) > ack.offset_last


def _now(waits: Sequence[tuple[TopicRuntime, Ack]]) -> float:
    """Return the monotonic time: all parts of a call share one time-out."""
    return waits[0][0].clock.monotonic() if waits else 0.0


def wait_reached(level: str | None, waits: Sequence[tuple[TopicRuntime, Ack]]) -> None:
    """Wait until records that were acked have reached a tier; at once for other levels.

    Raises:
        Unavailable: if that takes too long, or the tier is stopped; the records are fsynced. Of
            a call to several parts `parts_written` and `acks` tell where each of them is.
    """
    if level not in WAITED_FOR:
        return
    for runtime, ack in waits:
        _waits_of(runtime, level).ask(runtime.part, ack.offset_last + 1)
    began_at = _now(waits)
    for runtime, ack in waits:
        told = threading.Event()
        tier, end = _waits_of(runtime, level), ack.offset_last + 1
        if tier.watch(runtime.part, end, told.set):
            told.wait(max(tier.timeout_s - (_now(waits) - began_at), 0.0))
            tier.forget(told.set)
        if not _is_there(level, runtime, ack):
            raise _late(level, runtime, ack, waits)


async def wait_reached_async(level: str | None, waits: Sequence[tuple[TopicRuntime, Ack]]) -> None:
    """Do the same without holding up the loop."""
    if level not in WAITED_FOR:
        return
    loop = asyncio.get_running_loop()
    for runtime, ack in waits:
        _waits_of(runtime, level).ask(runtime.part, ack.offset_last + 1)
    began_at = _now(waits)
    for runtime, ack in waits:
        told = asyncio.Event()
        tier, end = _waits_of(runtime, level), ack.offset_last + 1

        def tell(told: asyncio.Event = told) -> None:
            # The loop may have ended before the tier got there.
            if not loop.is_closed():
                loop.call_soon_threadsafe(told.set)

        if tier.watch(runtime.part, end, tell):
            try:
                left_s = max(tier.timeout_s - (_now(waits) - began_at), 0.0)
                await asyncio.wait_for(told.wait(), left_s)
            except TimeoutError:
                pass
            finally:
                tier.forget(tell)
        if not _is_there(level, runtime, ack):
            raise _late(level, runtime, ack, waits)


class TierPending(Pending):
    """An answer that counts when its record has reached a tier."""

    __slots__ = ("_level", "_runtime")

    def __init__(self, runtime: TopicRuntime, level: str) -> None:
        super().__init__()
        self._runtime = runtime
        self._level = level

    def settle(self, value: Any) -> None:
        """Give the journal's answer, and have the tier hurry: in the journal's thread."""
        super().settle(value)
        runtime = self._runtime
        tier = runtime.lake if self._level == "committed" else runtime.objects
        if isinstance(value, Ack) and tier is not None:
            tier.ask(runtime.part, value.offset_last + 1)

    def result(self, timeout_s: float | None = None) -> Any:
        """Wait for the fsync, then for the tier."""
        ack: Ack = super().result(timeout_s)
        wait_reached(self._level, [(self._runtime, ack)])
        return ack
