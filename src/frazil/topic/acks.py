"""Acks: of a call from the acks of its frames, of calls to several parts, and of tiers.

`ack="committed"` and `ack="uploaded"` wait for a tier. The record is first fsynced like any other.
Then the tier is requested to reach the record soon, and the caller waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final, NoReturn, get_args

from frazil.errors import FrazilError, InvalidRequest, Unavailable
from frazil.log import Pending
from frazil.model import Ack, AckLevel
from frazil.topic.admission import waker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from frazil.topic.runtime import TopicRuntime

LEVELS: Final = get_args(AckLevel)
RANGES_SHOWN_MAX: Final = 10

Answers = list[Ack | FrazilError]
"""The answers for the frames of one part, in order."""
Ends = dict[int, int]
"""Offsets by part; -1 is a topic without parts."""

WAITED_FOR: Final = {"committed": "committed to the lake", "uploaded": "uploaded to the store"}
"""The ack levels of tiers, for messages."""
_TOPIC: Final = {"committed": "a topic with a lake", "uploaded": "a topic with objects"}


def joined_ack(results: Answers) -> Ack:
    """Return the ack of a call from the acks of its frames.

    Raises:
        FrazilError: the error of a frame, if none was written.
        Unavailable: with `outcome="unknown"` and the written ranges, if only some frames were
            written.
    """
    return part_acks([-1], [results])[0]


def check_level(ack: object, tiers: Mapping[str, TierWaits | None]) -> None:
    """Refuse unknown ack levels, and levels of a tier that the topic does not have."""
    allowed = [level for level in LEVELS if level not in tiers or tiers[level] is not None]
    if ack not in allowed:
        why = "unknown ack level"
        if ack in LEVELS:
            why = "this ack level needs a tier that this topic does not have"
        raise InvalidRequest(why, ack=ack, allowed="|".join(allowed))


def answer(pending: Pending) -> Ack | FrazilError:
    """Wait for one frame's answer; return an error instead of raising it: other frames follow."""
    try:
        value: Ack = pending.result()
    except FrazilError as error:
        return error
    return value


def ranges_text(acks: Iterable[tuple[int, Ack]]) -> str:
    """Return the first ranges of records as text, each after the name of its part, if any."""
    texts = [
        f"{ack.offset}-{ack.offset_last}" if part < 0 else f"{part}: {ack.offset}-{ack.offset_last}"
        for part, ack in acks
    ]
    more = ["…"] if len(texts) > RANGES_SHOWN_MAX else []
    return ", ".join(texts[:RANGES_SHOWN_MAX] + more)


def part_acks(parts: Sequence[int], answers: Sequence[Answers]) -> list[Ack]:
    """Return one ack for each part, from its first record to its last.

    Raises:
        FrazilError: the error of a frame, if none was written.
        Unavailable: with `outcome="unknown"` and the written ranges, if only some were written.
    """
    frames = [(part, each) for part, own in zip(parts, answers, strict=True) for each in own]
    written = [(part, each) for part, each in frames if isinstance(each, Ack)]
    errors = [each for _part, each in frames if isinstance(each, FrazilError)]
    if errors:
        _raise_failure(written, errors)
    acks: dict[int, Ack] = {}
    for part, ack in written:
        acks[part] = Ack(acks.get(part, ack).offset, ack.offset_last, ack.lsn, part)
    return list(acks.values())


def _raise_failure(written: Sequence[tuple[int, Ack]], errors: Sequence[FrazilError]) -> NoReturn:
    """Raise the error of a call with failed frames; an unknown outcome takes precedence."""
    error = next((each for each in errors if each.details.get("outcome") == "unknown"), errors[0])
    if not written:
        raise error
    ranges = {"offsets_written" if written[0][0] < 0 else "parts_written": ranges_text(written)}
    raise Unavailable(
        "part of the call was written, look before sending the rest; an idempotent producer may "
        "send it all again",
        outcome="unknown",
        **ranges,
        frames_written=len(written),
        frames=len(written) + len(errors),
        cause=error,
    ) from error


class TierWaits:
    """The calls that wait for a tier to reach an offset. Any thread may call any method.

    `wake` is called when a call begins to wait.
    """

    def __init__(self, wake: Callable[[], None], *, timeout_s: float) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        self.timeout_s = timeout_s
        """The longest time that a publish waits."""
        self.reached: Ends = {}
        """The tier's end by part; it decreases when a table is rolled back."""
        self.asked: Ends = {}
        """The highest end by part that a call has requested."""
        self.refusal: str = ""
        """The reason why no call may wait, if the tier is stopped or paused."""
        self.delay: str = ""
        """The reason for the tier's current delay, if it is known."""

    def ask(self, part: int, end: int) -> None:
        """Request that the tier soon reaches an offset; returns at once."""
        with self._lock:
            if end <= max(self.asked.get(part, 0), self.reached.get(part, 0)):
                return
            self.asked[part] = end
        self._wake()

    def watch(self, part: int, end: int, wake: Callable[[], None]) -> bool:
        """Call `wake` once when the tier has a part below `end`, or when the tier stops.

        Returns False, and never calls it, if one of the two is true already.
        """
        with self._lock:
            if self.refusal or self.reached.get(part, 0) >= end:
                return False
            self._waiting.append((part, end, wake))
        return True

    def forget(self, wake: Callable[[], None]) -> None:
        """Remove a watch."""
        with self._lock:
            self._waiting = [each for each in self._waiting if each[2] is not wake]

    def moved(self, ends: Ends) -> None:
        """Note the tier's ends and wake the calls that wait for them."""
        with self._lock:
            ready = self._moved(dict(ends))
        for wake in ready:
            wake()

    def grew(self, part: int, end: int) -> None:
        """Note that the tier has a part below an offset; a lower offset changes nothing."""
        with self._lock:
            if end <= self.reached.get(part, 0):
                return
            ready = self._moved({**self.reached, part: end})
        for wake in ready:
            wake()

    def _moved(self, ends: Ends) -> list[Callable[[], None]]:
        self.reached = ends
        ready = [each for each in self._waiting if ends.get(each[0], 0) >= each[1]]
        self._waiting = [each for each in self._waiting if ends.get(each[0], 0) < each[1]]
        return [wake for _part, _end, wake in ready]

    def refuse(self, why: str) -> None:
        """Wake all calls because the tier has stopped. An empty reason permits waits again."""
        with self._lock:
            self.refusal = why
            woken, self._waiting = (self._waiting, []) if why else ([], self._waiting)
        for _part, _end, wake in woken:
            wake()

    def is_asked(self) -> bool:
        """Return whether a call waits for more than the tier has."""
        with self._lock:
            return any(end > self.reached.get(part, 0) for part, end in self.asked.items())


def _waits_of(runtime: TopicRuntime, level: str) -> TierWaits:
    """Return the tier's waits for records that are fsynced already; errors must say so."""
    found = runtime.lake if level == "committed" else runtime.objects
    if found is None:
        # The tier was switched off between the check of the level and the log's ack.
        found = TierWaits(lambda: None, timeout_s=0)
        found.refuse(f"the topic is not {_TOPIC[level]} any more")
    return found


def _late(
    level: str, runtime: TopicRuntime, ack: Ack, every: Sequence[tuple[TopicRuntime, Ack]]
) -> Unavailable:
    """Return the error of a call whose records are all fsynced, but one part of it is late."""
    waits = _waits_of(runtime, level)
    late = f"it took longer than {waits.timeout_s:g} s"
    facts: dict[str, Any] = {"offset": ack.offset, "offset_last": ack.offset_last}
    if len(every) > 1:
        parts_late = [str(own.part) for own, each in every if not _is_there(level, own, each)]
        facts = {
            "parts_written": ranges_text((own.part, each) for own, each in every),
            "parts_late": ", ".join(parts_late),
            "acks": tuple(each for _own, each in every),
        }
    return Unavailable(
        f"the call's records are fsynced, but not all {WAITED_FOR[level]} yet; they will be, "
        "do not send them again",
        outcome="fsynced",
        topic=runtime.name.removesuffix(f"-part-{runtime.part}"),
        **facts,
        why=waits.refusal or (f"{late}: {waits.delay}" if waits.delay else late),
    )


def _is_there(level: str, runtime: TopicRuntime, ack: Ack) -> bool:
    return _waits_of(runtime, level).reached.get(runtime.part, 0) > ack.offset_last


def _turns(
    level: str | None, every: Sequence[tuple[TopicRuntime, Ack]]
) -> Iterator[tuple[TierWaits, int, int, float]]:
    """Yield the tier, part and offset to wait for, and the timeout, for each ack; then check it.

    For an ack level without a tier it yields nothing. All parts of a call share one timeout.
    """
    if level not in WAITED_FOR or not every:
        return
    clock = every[0][0].clock
    for runtime, ack in every:
        _waits_of(runtime, level).ask(runtime.part, ack.offset_last + 1)
    began_at = clock.monotonic()
    for runtime, ack in every:
        tier = _waits_of(runtime, level)
        left_s = max(tier.timeout_s - (clock.monotonic() - began_at), 0.0)
        yield tier, runtime.part, ack.offset_last + 1, left_s
        if not _is_there(level, runtime, ack):
            raise _late(level, runtime, ack, every)


def wait_reached(level: str | None, every: Sequence[tuple[TopicRuntime, Ack]]) -> None:
    """Wait until acked records have reached the tier of their level; other levels do not wait.

    Raises:
        Unavailable: if that takes too long, or the tier is stopped; the records are fsynced. For
            a call to several parts `parts_written` and `acks` have the offsets of each part.
    """
    for tier, part, end, left_s in _turns(level, every):
        reached = threading.Event()
        if tier.watch(part, end, reached.set):
            reached.wait(left_s)
            tier.forget(reached.set)


async def wait_reached_async(level: str | None, every: Sequence[tuple[TopicRuntime, Ack]]) -> None:
    """Wait like `wait_reached`, without blocking the event loop."""
    for tier, part, end, left_s in _turns(level, every):
        reached = asyncio.Event()
        wake = waker(asyncio.get_running_loop(), reached.set)
        if tier.watch(part, end, wake):
            try:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reached.wait(), left_s)
            finally:
                tier.forget(wake)


class TierPending(Pending):
    """An answer that is complete when its record has reached a tier."""

    __slots__ = ("_level", "_runtime")

    def __init__(self, runtime: TopicRuntime, level: str) -> None:
        super().__init__()
        self._runtime = runtime
        self._level = level

    def settle(self, value: Any) -> None:
        """Set the journal's answer and request the tier; runs in the journal's thread."""
        super().settle(value)
        runtime = self._runtime
        if isinstance(value, Ack):
            _waits_of(runtime, self._level).ask(runtime.part, value.offset_last + 1)

    def result(self, timeout_s: float | None = None) -> Any:
        """Wait for the fsync, then for the tier."""
        ack: Ack = super().result(timeout_s)
        wait_reached(self._level, [(self._runtime, ack)])
        return ack
