"""A partitioned topic: N topics that share one definition, and the rule that picks one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from frazil.engine.part_changes import PartChangeCalls
from frazil.engine.subscribing_calls import SubscribeCalls
from frazil.errors import FrazilError, InvalidRequest
from frazil.log import Pending
from frazil.model import Ack
from frazil.schema import Message, key_names, part_of_row, part_of_text, parts_of_batch
from frazil.topic import PUBLISH_OPTIONS, answer, pass_stop, wait_reached
from frazil.topic.part_acks import part_acks

if TYPE_CHECKING:
    import pyarrow as pa

    from frazil.engine.engine import Engine
    from frazil.engine.topic import Topic
    from frazil.log.codec import Entry
    from frazil.model import TopicSpec
    from frazil.topic import Prepared


class PartitionedTopic(PartChangeCalls, SubscribeCalls):
    """The handle of a partitioned topic.

    Records with a key (the routing key of a message, the primary key of a row) always go to the
    same part; the others go round robin. Offsets are per part: an ack's `part` says which. `parts`
    are ordinary topics to read from.
    """

    def __init__(self, engine: Engine, spec: TopicSpec, parts: list[Topic]) -> None:
        self._engine = engine
        self._spec = spec
        self.parts = parts

    def __repr__(self) -> str:
        return f"PartitionedTopic({self.name!r}, partitions={len(self.parts)})"

    @property
    def name(self) -> str:
        """Return the full name, `/namespace/name`."""
        return self._spec.name

    @property
    def schema(self) -> pa.Schema:
        """Return the current columns."""
        return self.parts[0].schema

    def part_of(self, record: object, fields: Mapping[str, Any]) -> int:
        """Return the number of the part that a record belongs to."""
        if self._spec.kind == "message":
            key = _message_key(record, fields)
            if key is None:
                return self._next()
            if not isinstance(key, str):
                raise InvalidRequest("key must be a text", got=type(key).__name__)
            try:
                return part_of_text(key, len(self.parts))
            except UnicodeEncodeError as error:
                raise InvalidRequest("key has a lone surrogate", key=ascii(key)[:80]) from error
        if not self._spec.primary_key:
            return self._next()
        row: Any = fields if record is None else record
        return part_of_row(row, self._key_names(), len(self.parts))

    def part_for(self, record: object, options: Mapping[str, Any]) -> int:
        """Return the part for the arguments of an `append`."""
        fields = {key: value for key, value in options.items() if key not in PUBLISH_OPTIONS}
        return self.part_of(record, fields)

    def _key_names(self) -> list[str]:
        return key_names(self.schema, self._spec.primary_key)

    def _next(self) -> int:
        # The turn is the topic's, not this handle's: every call by name makes a new handle.
        return next(self.parts[0].runtime.turns) % len(self.parts)

    # -- publish ---------------------------------------------------------------------------------

    def append(self, record: Any = None, /, **options: Any) -> Ack:
        """Publish one record to its part; see `Topic.append`."""
        part = self.part_for(record, options)
        ack = self.parts[part].append(record, **options)
        return Ack(ack.offset, ack.offset_last, ack.lsn, part)

    def append_many(self, records: Iterable[Any], *, ack: str | None = None) -> list[Ack]:
        """Publish records to their parts; one ack for each part that got some.

        All records are checked before any is written, and those of one part keep their order.

        Raises:
            InvalidRequest: with the number of the first bad record; nothing is published then.
            Unavailable: storage failed, or only some parts were written; the details name them.
        """
        return self._publish(self._prepare(records), ack)

    def check_many(self, records: Iterable[Any]) -> None:
        """Check records, each on its own part, as `append_many` would, without publishing them."""
        self._prepare(records)

    def append_arrow(self, data: object, *, ack: str | None = None) -> list[Ack]:
        """Publish Arrow data, split by key over the parts (round robin a batch without a key)."""
        sends = [
            (part, self.parts[part].runtime.prepare_arrow(rows))
            for batch in self.parts[0].to_batches(data)
            for part, rows in self._split(batch)
        ]
        return self._publish(sends, ack)

    def _prepare(self, records: Iterable[Any]) -> list[tuple[int, list[Prepared]]]:
        """Check all records and return what each part gets."""
        if isinstance(records, (str, bytes, bytearray, memoryview, Mapping)) or not isinstance(
            records, Iterable
        ):
            # One record, or none: a topic refuses it with the reason.
            self.parts[0].runtime.prepare_many(records)
        by_part: dict[int, tuple[list[int], list[Any]]] = {}
        faults: list[tuple[int, InvalidRequest]] = []
        for number, record in enumerate(records):
            try:
                numbers, some = by_part.setdefault(self.part_of(record, {}), ([], []))
            except InvalidRequest as error:
                faults.append((number, error))
                break
            numbers.append(number)
            some.append(record)
        if not by_part and not faults:
            raise InvalidRequest("there are no records to publish", topic=self.name)
        sends: list[tuple[int, list[Prepared]]] = []
        for part, (numbers, some) in sorted(by_part.items()):
            try:
                sends.append((part, self.parts[part].runtime.prepare_many(some)))
            except InvalidRequest as error:
                within = error.details.get("record")
                faults.append((numbers[within] if isinstance(within, int) else numbers[0], error))
        if faults:
            # A part counts its own records; the caller knows them by their place in the call.
            number, fault = min(faults, key=lambda each: each[0])
            raise InvalidRequest(fault.message, **{**fault.details, "record": number}) from fault
        return sends

    def _publish(self, sends: list[tuple[int, list[Prepared]]], ack: str | None) -> list[Ack]:
        """Give everything to the journals at once, then wait: parts share their syncs."""
        entries: dict[Any, list[Entry]] = {}
        waiting: list[list[Pending]] = []
        for part, prepared in sends:
            runtime = self.parts[part].runtime
            if runtime.refusal is not None:
                pass_stop(runtime)
            if runtime.pressure.level:
                runtime.pressure.admit()
            pendings = [Pending() for _each in prepared]
            sender = runtime.sender(ack, None, None, 0)
            entries.setdefault(runtime.queue, []).extend(
                runtime.entries(prepared, pendings, sender)
            )
            waiting.append(pendings)
        for queue, some in entries.items():
            try:
                queue.submit_waiting(*some)
            except FrazilError as error:
                for entry in some:
                    entry[5].settle(error)
        answers = [[answer(each) for each in pendings] for pendings in waiting]
        acks = part_acks([part for part, _prepared in sends], answers)
        wait_reached(ack, [(self.parts[each.part].runtime, each) for each in acks])
        return acks

    def _split(self, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        if self._spec.kind == "message":
            keys = batch.column("key").to_pylist()
            count = len(self.parts)
            parts = [self._next() if k is None else part_of_text(k, count) for k in keys]
        elif self._spec.primary_key:
            parts = parts_of_batch(batch, self._key_names(), len(self.parts))
        else:
            return [(self._next(), batch)]
        rows: dict[int, list[int]] = {}
        for row, part in enumerate(parts):
            rows.setdefault(part, []).append(row)
        return [(part, batch.take(numbers)) for part, numbers in sorted(rows.items())]

    # -- facts -----------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Return everything that is known about the topic, ready for JSON."""
        return self._engine.describe(self.name)

    def stats(self) -> dict[str, Any]:
        """Return counts over all parts."""
        parts = [part.stats() for part in self.parts]
        return {
            "message_count": sum(part["message_count"] for part in parts),
            "bytes_stored": sum(part["bytes_stored"] for part in parts),
            "parts": parts,
        }


def _message_key(record: object, fields: Mapping[str, Any]) -> object:
    """Return the routing key of the message that these arguments make."""
    if isinstance(record, Message):
        return record.key
    if isinstance(record, dict):
        return record.get("key")
    return fields.get("key")
