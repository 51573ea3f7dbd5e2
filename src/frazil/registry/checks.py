"""Checks records of topics with a schema before the write: accept, warn, or refuse.

Ids, versions and sizes are checked at once. Payloads of types with a definition are checked in the
sandbox, in order of arrival for each topic; the number of queued records is bounded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

from frazil.errors import FrazilError, Overloaded
from frazil.registry.kinds import plain_refusal, quoted
from frazil.registry.registry import NO_CHECK
from frazil.telemetry import warn

if TYPE_CHECKING:
    from frazil.registry.registry import IdCheck
    from frazil.registry.store import SchemaStore
    from frazil.schema import Message

__all__ = ["Judged", "SchemaChecks"]

BATCH_RECORDS_MAX: Final = 32
BATCH_BYTES_MAX: Final = 256 << 10
"""The limit of one request to the sandbox, so that other topics get their turn."""
TOPIC_RECORDS_MAX: Final = 10_000
TOPIC_BYTES_MAX: Final = 8 << 20
BYTES_MAX: Final = 64 << 20
"""The limits of queued records, of one topic and in all."""
WARNING_S: Final = 60.0
"""The minimum interval between a topic's logged warnings."""
TOPICS_WARNED_MAX: Final = 1_000

Judged = Callable[[Exception | None], None]
"""Called once, in the loop: with None if the record may be written, else with the error."""


class _Waiting(NamedTuple):
    record: Message
    then: Judged


@attrs.define
class _Queue:
    """The records of one topic queued for the check of their payload."""

    records: deque[_Waiting] = attrs.field(factory=deque)
    size_bytes: int = 0
    task: asyncio.Task[None] | None = None


class SchemaChecks:
    """Checks of records. All methods belong to the event loop's thread.

    `refused` creates the error of a refused record from its reason.
    """

    def __init__(self, store: SchemaStore, refused: Callable[[str], Exception]) -> None:
        self._store = store
        self._refused = refused
        self.checked_total = 0
        self.warned_total = 0
        self.refused_total = 0
        self._queues: dict[str, _Queue] = {}
        self._size_bytes = 0
        self._warned: dict[str, float] = {}
        """When each topic's last warning was logged."""

    def check(self, topic: str, record: Message, then: Judged) -> None:
        """Check a record of a topic with a subject; `then` is called with the result, now or later.

        Raises:
            Overloaded: if too many records are queued.
        """
        queue = self._queues.get(topic)
        if queue is None:
            found = self._check_ids(topic, record)
            if found.is_quick:
                self._answer(topic, then, found, _quick_refusal(found, record.payload))
                return
            queue = _Queue()
        size = len(record.payload)
        full = len(queue.records) >= TOPIC_RECORDS_MAX or queue.size_bytes + size > TOPIC_BYTES_MAX
        if queue.records and (full or self._size_bytes + size > BYTES_MAX):
            raise Overloaded(
                "too many records are queued for the check of their payload, slow down",
                retry_after_ms=100,
            )
        queue.records.append(_Waiting(record, then))
        queue.size_bytes += size
        self._size_bytes += size
        if queue.task is None:
            self._queues[topic] = queue
            queue.task = asyncio.get_running_loop().create_task(self._drain(topic, queue))

    def stats(self) -> dict[str, int]:
        """Return the counts of checks, and the number of queued records."""
        return {
            "checked_total": self.checked_total,
            "warned_total": self.warned_total,
            "refused_total": self.refused_total,
            "waiting_records": sum(len(queue.records) for queue in self._queues.values()),
            "waiting_bytes": self._size_bytes,
        }

    # -- inside ----------------------------------------------------------------------------------

    def _check_ids(self, topic: str, record: Message) -> IdCheck:
        return self._store.registry.check_ids(
            topic, schema_id=record.schema_id, schema_version=record.schema_version
        )

    async def _drain(self, topic: str, queue: _Queue) -> None:
        try:
            while queue.records:
                found, taken = self._taken(topic, queue)
                payloads = [waiting.record.payload for waiting in taken]
                try:
                    refusals = await self._refusals(found, payloads)
                except FrazilError as error:
                    for waiting in taken:
                        waiting.then(error)
                else:
                    for waiting, refusal in zip(taken, refusals, strict=True):
                        self._answer(topic, waiting.then, found, refusal)
                size = sum(map(len, payloads))
                queue.size_bytes -= size
                self._size_bytes -= size
        finally:
            del self._queues[topic]
            self._size_bytes -= queue.size_bytes

    def _taken(self, topic: str, queue: _Queue) -> tuple[IdCheck, list[_Waiting]]:
        """Take the records of one request from the queue, at least one, all of the same version."""
        found = self._check_ids(topic, queue.records[0].record)
        taken = [queue.records.popleft()]
        size = len(taken[0].record.payload)
        while queue.records and len(taken) < BATCH_RECORDS_MAX:
            record = queue.records[0].record
            size += len(record.payload)
            if size > BATCH_BYTES_MAX or self._check_ids(topic, record) != found:
                break
            taken.append(queue.records.popleft())
        return found, taken

    async def _refusals(self, found: IdCheck, payloads: Sequence[bytes]) -> list[str | None]:
        if found.is_quick:
            return [_quick_refusal(found, payload) for payload in payloads]
        assert found.subject is not None
        schema = found.subject.schema(found.payload_version)
        refusals = await self._store.sandbox.refusals(
            schema.entry.type, schema.definition, payloads
        )
        return [_payload_refusal(found, refusal) for refusal in refusals]

    def _answer(self, topic: str, then: Judged, found: IdCheck, refusal: str | None) -> None:
        self.checked_total += found is not NO_CHECK
        if refusal is None:
            then(None)
        elif found.is_enforced:
            self.refused_total += 1
            then(self._refused(f"schema validation failed for topic '{quoted(topic)}': {refusal}"))
        else:
            self.warned_total += 1
            self._warn(topic)
            then(None)

    def _warn(self, topic: str) -> None:
        """Log that a topic accepts invalid records; the reasons are not logged."""
        now = asyncio.get_running_loop().time()
        if now - self._warned.get(topic, now - WARNING_S) < WARNING_S:
            return
        if len(self._warned) >= TOPICS_WARNED_MAX:
            self._warned.clear()
        self._warned[topic] = now
        warn("schema_mismatch_taken", topic=topic)


def _quick_refusal(found: IdCheck, payload: bytes) -> str | None:
    """Return why a record is invalid, if no library is needed to find out."""
    if found.subject is None or not found.payload_version:
        return found.refusal
    kind = found.subject.versions[found.payload_version].type
    return _payload_refusal(found, plain_refusal(kind, payload))


def _payload_refusal(found: IdCheck, refusal: str | None) -> str | None:
    if refusal is None:
        return None
    assert found.subject is not None
    name = found.subject.name
    return f"the payload does not fit version {found.payload_version} of '{name}': {refusal}"
