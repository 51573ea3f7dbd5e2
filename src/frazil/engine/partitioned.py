"""A partitioned topic: N topics that share one definition, and the rule that picks one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from frazil.engine.catalog import PUBLISH_OPTIONS
from frazil.errors import InvalidRequest
from frazil.ingest.routing import key_names, part_of_row, part_of_text, parts_of_batch
from frazil.model import Ack

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa

    from frazil.engine.core import Engine
    from frazil.engine.topic import Topic
    from frazil.model import TopicSpec


class PartitionedTopic:
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
            key = fields.get("key")
            if key is None and isinstance(record, dict):
                key = record.get("key")
            if key is None:
                return self._next()
            if not isinstance(key, str):
                raise InvalidRequest("key must be a text", got=type(key).__name__)
            return part_of_text(key, len(self.parts))
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

        The records of one part keep their order and are all checked before any is written.
        """
        by_part: dict[int, list[Any]] = {}
        for record in records:
            by_part.setdefault(self.part_of(record, {}), []).append(record)
        if not by_part:
            raise InvalidRequest("there are no records to publish", topic=self.name)
        for part, some in by_part.items():
            self.parts[part].check_many(some)
        acks: list[Ack] = []
        for part, some in sorted(by_part.items()):
            given = self.parts[part].append_many(some, ack=ack)
            acks.append(Ack(given.offset, given.offset_last, given.lsn, part))
        return acks

    def append_arrow(self, data: object, *, ack: str | None = None) -> list[Ack]:
        """Publish Arrow data, split by key over the parts (round robin a batch without a key)."""
        acks: list[Ack] = []
        for batch in self.parts[0].to_batches(data):
            for part, rows in self._split(batch):
                given = self.parts[part].append_arrow(rows, ack=ack)
                acks.append(Ack(given.offset, given.offset_last, given.lsn, part))
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
