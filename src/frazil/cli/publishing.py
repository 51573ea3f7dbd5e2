"""Publish many records from files: batches, rejected rows, and repeats of an earlier run."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import attrs

from frazil.cli.output import plain_rows
from frazil.engine import Engine, PartitionedTopic, Topic
from frazil.errors import InvalidRequest, NotFound
from frazil.model import Ack
from frazil.schema import IngestLimits, declare_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from frazil.cli.text_input import Line, TextFormat

__all__ = ["OnError", "Publisher", "Reject", "Stopped"]

OnError = Literal["stop", "skip", "reject-file"]
BATCH_BYTES_MAX: Final = 8 << 20
REJECTS_SHOWN_MAX: Final = 20


class Reject(NamedTuple):
    """A record that was not published; `number` is its line, or its row in a binary file."""

    file: str
    number: int
    reason: str
    original: object


class Stopped(Exception):
    """A bad record in mode `stop`; the good records of its batch were not published."""

    def __init__(self, reject: Reject) -> None:
        super().__init__(reject.reason)
        self.reject = reject


@attrs.define
class Publisher:
    """Publishes records to one topic, in order; counts what happened.

    With `producer` the sequence of a record is the number of good records before it in the whole
    run, so another run with the same files continues where the last one ended.
    """

    engine: Engine
    name: str
    on_error: OnError = "stop"
    batch: int = 1000
    ack: str | None = None
    producer: str | None = None
    on_reject: Callable[[Reject], None] = attrs.field(default=lambda _reject: None)
    topic: Topic | PartitionedTopic | None = None
    created: bool = False
    accepted: int = 0
    already: int = 0
    rejected: int = 0
    offset_first: int | None = None
    offset_last: int | None = None
    rejects: list[Reject] = attrs.Factory(list)
    _sequence: int = 0
    _resume: int = 0

    def __attrs_post_init__(self) -> None:
        try:
            self._use(self.engine.topic(self.name))
        except NotFound:
            if not self.engine.settings.topics.auto_create:
                raise

    @property
    def kind(self) -> str:
        """Return `message`, `table`, or nothing while there is no topic."""
        if self.topic is None:
            return ""
        return "message" if self._any_part().runtime.is_message else "table"

    def _use(self, topic: Topic | PartitionedTopic) -> None:
        self.topic = topic
        if self.producer is None:
            return
        if isinstance(topic, PartitionedTopic):
            raise InvalidRequest(
                "an idempotent producer publishes to one part, name it", topic=self.name
            )
        known = topic.runtime.state.producers.get(self.producer)
        if known is not None and known.window:
            self._resume = known.window[-1].sequence + known.window[-1].records

    def _any_part(self) -> Topic:
        assert self.topic is not None
        return self.topic.parts[0] if isinstance(self.topic, PartitionedTopic) else self.topic

    def _create(self, columns: pa.Schema | None) -> Topic | PartitionedTopic:
        topic = self.engine.create_topic(self.name, columns, exist_ok=True)
        self._use(topic)
        self.created = True
        return topic

    def rows(self, file: str, lines: Iterator[Line], text_format: TextFormat) -> None:
        """Publish the records of a text file.

        Raises:
            Stopped: at the first bad record, in mode `stop`; nothing of its batch is published.
        """
        pending: list[Line] = []
        size = 0
        for line in text_format.lines(lines):
            pending.append(line)
            size += len(line.raw)
            if len(pending) >= self.batch or size >= BATCH_BYTES_MAX:
                self._flush(file, pending, text_format)
                pending, size = [], 0
        self._flush(file, pending, text_format)

    def _flush(self, file: str, lines: list[Line], text_format: TextFormat) -> None:
        faults = [Reject(file, line.number, line.error, line.raw) for line in lines if line.error]
        whole = [line for line in lines if not line.error]
        topic = self._topic_of(whole, faults, text_format)
        if topic is None:
            return
        rows: list[Reject] = []
        records = []
        for line in whole:
            try:
                records.append(text_format.convert(line.decoded, topic.schema))
                rows.append(Reject(file, line.number, "", line.raw))
            except InvalidRequest as error:
                faults.append(Reject(file, line.number, str(error), line.raw))
        self._publish(
            rows,
            faults,
            pick=lambda numbers: [records[number] for number in numbers],
            # On a partitioned topic the record's part has the answer.
            check=topic.check_many,
            append=topic.append_many,
        )

    def _topic_of(
        self, whole: list[Line], faults: list[Reject], text_format: TextFormat
    ) -> Topic | PartitionedTopic | None:
        """Return the topic; create it from whole records, in mode `stop` from all records only."""
        if self.topic is not None:
            return self.topic
        if not whole or self.on_error == "stop":
            self._reject_all(faults)
        return self._create(_schema_of(whole, text_format, IngestLimits())) if whole else None

    def batches(self, file: str, batches: Iterable[pa.RecordBatch]) -> None:
        """Publish Arrow batches; row numbers count from 1 through the whole file.

        Raises:
            InvalidRequest: if the columns do not fit the topic.
            Stopped: as `rows`.
        """
        row = 1
        for batch in batches:
            topic = self.topic or self._create(declare_schema(batch.schema, limits=IngestLimits()))
            self._publish(
                [Reject(file, row + number, "", None) for number in range(batch.num_rows)],
                [],
                pick=batch.take,
                check=self._any_part().to_batches,
                append=topic.append_arrow,
                batch=batch,
            )
            row += batch.num_rows

    def _publish(
        self,
        rows: Sequence[Reject],
        faults: list[Reject],
        *,
        pick: Callable[[list[int]], Any],
        check: Callable[[Any], object],
        append: Callable[..., Ack | list[Ack]],
        batch: pa.RecordBatch | None = None,
    ) -> None:
        """Publish a batch; if it is refused as a whole, check its records one by one."""
        everything = list(range(len(rows)))
        cause: InvalidRequest | None = None
        if not faults:
            try:
                self._append(pick(everything), check, append)
            except InvalidRequest as error:
                cause = error
            else:
                return
        bad = {}
        for number in everything:
            try:
                check(pick([number]))
            except InvalidRequest as error:
                bad[number] = _reject_of(rows[number], error, batch, number)
        faults += bad.values()
        if cause is not None and not faults:
            raise cause
        self._reject_all(faults)
        self._append(pick([number for number in everything if number not in bad]), check, append)

    def _append(
        self,
        records: Any,
        check: Callable[[Any], object],
        append: Callable[..., Ack | list[Ack]],
    ) -> None:
        """Publish good records, but for those that an earlier run of this producer published."""
        count = len(records)
        skip = max(0, min(count, self._resume - self._sequence))
        if skip:
            # All must be good, or the numbers would not be those of the earlier run.
            check(records)
        rest = records[skip:]
        options: dict[str, Any] = {"ack": self.ack}
        if self.producer is not None:
            options |= {"producer": self.producer, "sequence": self._sequence + skip}
        acks = append(rest, **options) if len(rest) else None
        if isinstance(acks, Ack):
            if self.offset_first is None:
                self.offset_first = acks.offset
            self.offset_last = acks.offset_last
        self._sequence += count
        self.already += skip
        self.accepted += count - skip

    def _reject_all(self, faults: list[Reject]) -> None:
        """Reject the bad records of one batch in the order of the file."""
        for reject in sorted(faults, key=lambda each: each.number):
            self.rejected += 1
            if len(self.rejects) < REJECTS_SHOWN_MAX:
                self.rejects.append(reject)
            if self.on_error == "stop":
                raise Stopped(reject)
            self.on_reject(reject)


def _reject_of(
    row: Reject, error: InvalidRequest, batch: pa.RecordBatch | None, number: int
) -> Reject:
    """Return a refused record with the reason; `number` is its row in an Arrow batch."""
    original = row.original
    if batch is not None:
        if "row" not in error.details:
            # It is about the columns, and so about all rows.
            raise error
        original = plain_rows(batch.slice(number, 1))[0]
    details = {key: value for key, value in error.details.items() if key not in ("record", "row")}
    return row._replace(reason=str(InvalidRequest(error.message, **details)), original=original)


def _schema_of(
    lines: list[Line], text_format: TextFormat, limits: IngestLimits
) -> pa.Schema | None:
    """Return the columns that all records fit; if there are none, the error names the line."""
    decoded = [line.decoded for line in lines]
    try:
        return text_format.schema(decoded, limits)
    except InvalidRequest as error:
        fault = error

    def disagrees(count: int) -> bool:
        try:
            text_format.schema(decoded[:count], limits)
        except InvalidRequest as error:
            return error.message == fault.message
        return False

    # A longer list of records that disagree disagrees too, so the first one is found by bisection.
    index = bisect.bisect_left(range(1, len(lines)), True, key=disagrees)
    raise InvalidRequest(fault.message, line=lines[index].number, **fault.details)
