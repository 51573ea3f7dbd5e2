"""Records of topics with a schema: taken, taken with a warning, or refused, before they are written.

Ids and versions are looked at at once. Payloads are looked at off the loop, those of one topic in
the order in which they came, some at a time; how many may wait is bounded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from frazil.errors import FrazilError, Overloaded
from frazil.serve.danube.schema_store import verdict_on
from frazil.serve.danube.statuses import Refused, record_refused
from frazil.telemetry import warn

if TYPE_CHECKING:
    from frazil.registry import Registry, Verdict, Work
    from frazil.schema import Message
    from frazil.serve.danube.schema_store import SchemaStore

__all__ = ["Judged", "SchemaChecks"]

TURN_RECORDS_MAX: Final = 32
TURN_BYTES_MAX: Final = 256 << 10
"""What one turn looks at, so that other topics and the registry have theirs."""
TURN_UNITS_MAX: Final = 100_000
"""Of work, in microseconds: with the last record a turn takes half a second at most."""
TOPIC_RECORDS_MAX: Final = 10_000
TOPIC_BYTES_MAX: Final = 8 << 20
BYTES_MAX: Final = 64 << 20
"""What may wait, of one topic and in all."""
TELL_S: Final = 60.0
"""A topic's warnings are told at most so often."""
TOPICS_TOLD_MAX: Final = 1_000

Judged = Callable[[Exception | None], None]
"""Called once, in the loop: with nothing if the record may be written, else with its refusal."""


class _Waiting(NamedTuple):
    record: Message
    then: Judged


class _Line:
    """The records of one topic that wait for their turn."""

    __slots__ = ("records", "size_bytes", "task")

    def __init__(self) -> None:
        self.records: deque[_Waiting] = deque()
        self.size_bytes = 0
        self.task: asyncio.Task[None] | None = None

    def take(self) -> list[_Waiting]:
        """Return the records of one turn, at least one."""
        taken = [self.records.popleft()]
        size = len(taken[0].record.payload)
        while self.records and len(taken) < TURN_RECORDS_MAX:
            size += len(self.records[0].record.payload)
            if size > TURN_BYTES_MAX:
                break
            taken.append(self.records.popleft())
        return taken


class SchemaChecks:
    """Verdicts on records. All methods belong to the event loop's thread."""

    def __init__(self, store: SchemaStore) -> None:
        self.store = store
        self.checked_total = 0
        self.warned_total = 0
        self.refused_total = 0
        self._lines: dict[str, _Line] = {}
        self._size_bytes = 0
        self._told: dict[str, tuple[float, int]] = {}

    def check(self, topic: str, record: Message, then: Judged) -> None:
        """Have a record of a topic among `store.checks` judged, now or later.

        Raises:
            Overloaded: if too many records wait.
        """
        line = self._lines.get(topic)
        if line is None and not self.store.checks.get(topic):
            self._pass_on(topic, _Waiting(record, then), self.store.judge(topic, record))
            return
        size = len(record.payload)
        if line is None:
            line = _Line()
        full = len(line.records) >= TOPIC_RECORDS_MAX or line.size_bytes + size > TOPIC_BYTES_MAX
        if line.records and (full or self._size_bytes + size > BYTES_MAX):
            raise Overloaded(
                "too many records wait for the check of their payload, slow down",
                retry_after_ms=100,
            )
        line.records.append(_Waiting(record, then))
        line.size_bytes += size
        self._size_bytes += size
        if line.task is None:
            self._lines[topic] = line
            line.task = asyncio.get_running_loop().create_task(self._drain(topic, line))

    def stats(self) -> dict[str, int]:
        """Return what was counted, and what waits now."""
        return {
            "checked_total": self.checked_total,
            "warned_total": self.warned_total,
            "refused_total": self.refused_total,
            "waiting_records": sum(len(line.records) for line in self._lines.values()),
            "waiting_bytes": self._size_bytes,
        }

    # -- inside ----------------------------------------------------------------------------------

    async def _drain(self, topic: str, line: _Line) -> None:
        try:
            while line.records:
                taken = line.take()
                await self._judge(topic, taken)
                size = sum(len(waiting.record.payload) for waiting in taken)
                line.size_bytes -= size
                self._size_bytes -= size
        finally:
            del self._lines[topic]
            self._size_bytes -= line.size_bytes

    async def _judge(self, topic: str, taken: list[_Waiting]) -> None:
        """Have records judged, in more turns than one if they are much work."""
        while taken:
            records = [waiting.record for waiting in taken]
            ask = partial(_judge_some, topic=topic, records=records, new_work=self.store.new_work)
            try:
                verdicts = await self.store.read(ask)
            except FrazilError as error:
                for waiting in taken:
                    waiting.then(error)
                return
            for waiting, verdict in zip(taken, verdicts, strict=False):
                self._pass_on(topic, waiting, verdict)
            taken = taken[len(verdicts) :]

    def _pass_on(self, topic: str, waiting: _Waiting, verdict: Verdict) -> None:
        self.checked_total += 1
        if verdict.reason is None:
            waiting.then(None)
        elif verdict.is_accepted:
            self.warned_total += 1
            self._tell(topic)
            waiting.then(None)
        else:
            self.refused_total += 1
            waiting.then(Refused(record_refused(verdict.reason)))

    def _tell(self, topic: str) -> None:
        """Log that a topic takes records that do not fit; why, is each sender's to know."""
        now = asyncio.get_running_loop().time()
        told_s, count = self._told.get(topic, (now - TELL_S, 0))
        if now - told_s < TELL_S:
            self._told[topic] = (told_s, count + 1)
            return
        if topic not in self._told and len(self._told) >= TOPICS_TOLD_MAX:
            del self._told[next(iter(self._told))]
        self._told[topic] = (now, 0)
        warn("schema_mismatch_taken", topic=topic, records=count + 1)


def _judge_some(
    registry: Registry, *, topic: str, records: Sequence[Message], new_work: Callable[[], Work]
) -> list[Verdict]:
    """Return the verdicts on the first records: at least one, as many as one turn has work for."""
    verdicts: list[Verdict] = []
    units = 0
    for record in records:
        work = new_work()
        verdicts.append(verdict_on(registry, topic, record, work))
        units += work.units
        if units >= TURN_UNITS_MAX:
            break
    return verdicts
