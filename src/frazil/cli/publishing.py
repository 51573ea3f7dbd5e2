"""Publish many records from files: batches, rejected rows, and repeats of an earlier run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import attrs
import pyarrow as pa

from frazil.cli.output import plain_rows
from frazil.engine import Engine, PartitionedTopic, Topic
from frazil.errors import InvalidRequest, NotFound
from frazil.model import Ack
from frazil.schema import IngestLimits, declare_schema

if TYPE_CHECKING:
    from frazil.cli.text_input import Line, TextFormat

__all__ = ["OnError", "PublishOptions", "Publisher", "Reject", "Stopped"]

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
    """A bad record in mode `stop`; `discarded` good records of its batch were not published."""

    def __init__(self, reject: Reject, discarded: int) -> None:
        super().__init__(reject.reason)
        self.reject = reject
        self.discarded = discarded


@attrs.frozen
class PublishOptions:
    """How a run treats batches and bad records."""

    on_error: OnError = "stop"
    batch: int = 1000
    ack: str | None = None
    producer: str | None = None


@attrs.define
class Publisher:
    """Publishes records to one topic, in order; counts what happened.

    With `producer` the sequence of a record is the number of good records before it in the whole
    run, so that a run of the same files goes on where the last one got to.
    """

    engine: Engine
    name: str
    options: PublishOptions
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
        runtime = self._any_part().runtime
        return "message" if runtime.is_message else "table"

    def _use(self, topic: Topic | PartitionedTopic) -> None:
        self.topic = topic
        producer = self.options.producer
        if producer is None:
            return
        if isinstance(topic, PartitionedTopic):
            raise InvalidRequest(
                "an idempotent producer publishes to one part, name it", topic=self.name
            )
        known = topic.runtime.state.producers.get(producer)
        if known is not None and known.window:
            self._resume = known.window[-1].sequence + known.window[-1].records

    def _any_part(self) -> Topic:
        assert self.topic is not None
        return self.topic.parts[0] if isinstance(self.topic, PartitionedTopic) else self.topic

    def _create(self, columns: pa.Schema | None) -> None:
        self._use(self.engine.create_topic(self.name, columns, exist_ok=True))
        self.created = True

    # -- text ------------------------------------------------------------------------------------

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
            if len(pending) >= self.options.batch or size >= BATCH_BYTES_MAX:
                self._flush(file, pending, text_format)
                pending, size = [], 0
        self._flush(file, pending, text_format)

    def _flush(self, file: str, lines: list[Line], text_format: TextFormat) -> None:
        faults = [Reject(file, line.number, line.error, line.raw) for line in lines if line.error]
        whole = [line for line in lines if not line.error]
        if self.topic is None and whole and not (faults and self.options.on_error == "stop"):
            self._create(_schema_of(whole, text_format, IngestLimits()))
        if self.topic is None or not whole:
            self._reject_all(faults, len(whole))
            return
        topic = self.topic
        schema = topic.schema
        good: list[tuple[Line, Any]] = []
        for line in whole:
            try:
                good.append((line, text_format.convert(line.decoded, schema)))
            except InvalidRequest as error:
                faults.append(Reject(file, line.number, str(error), line.raw))
        cause: InvalidRequest | None = None
        if not faults:
            try:
                self._append([record for _, record in good], topic.check_many, self._append_many)
            except InvalidRequest as error:
                cause = error
            else:
                return
        good, more = _checked(file, good, topic)
        if cause is not None and not more:
            raise cause
        self._reject_all([*faults, *more], len(good))
        self._append([record for _, record in good], topic.check_many, self._append_many)

    def _reject_all(self, faults: list[Reject], good: int) -> None:
        """Reject the bad records of one batch in the order of the file."""
        for reject in sorted(faults, key=lambda each: each.number):
            self._reject(reject, good)

    def _append_many(self, records: Any, options: dict[str, Any]) -> Ack | list[Ack]:
        assert self.topic is not None
        return self.topic.append_many(records, **options)

    # -- Arrow -----------------------------------------------------------------------------------

    def batches(self, file: str, batches: Iterable[pa.RecordBatch]) -> None:
        """Publish Arrow batches; row numbers count from 1 through the whole file.

        Raises:
            InvalidRequest: if the columns do not fit the topic.
            Stopped: as `rows`.
        """
        row = 1
        for batch in batches:
            if self.topic is None:
                self._create(declare_schema(batch.schema, limits=IngestLimits()))
            try:
                self._append(batch, self._any_part().to_batches, self._append_arrow)
            except InvalidRequest:
                fine = self._good_batch(file, batch, row)
                self._append(fine, self._any_part().to_batches, self._append_arrow)
            row += batch.num_rows

    def _good_batch(self, file: str, batch: pa.RecordBatch, row: int) -> pa.RecordBatch:
        """Reject the bad rows of a batch one by one; return the others."""
        kept = list(range(batch.num_rows))
        rest = batch
        while kept:
            try:
                self._any_part().to_batches(rest)
            except InvalidRequest as error:
                bad = error.details.get("row")
                if not isinstance(bad, int) or bad >= len(kept):
                    raise InvalidRequest(error.message, file=file, **error.details) from error
                number = kept.pop(bad)
                details = {k: v for k, v in error.details.items() if k != "row"}
                reason = str(InvalidRequest(error.message, **details))
                original = plain_rows(batch.slice(number, 1))[0]
                self._reject(Reject(file, row + number, reason, original), number)
                rest = batch.take(pa.array(kept, pa.int64()))
            else:
                break
        return rest

    def _append_arrow(self, batch: Any, options: dict[str, Any]) -> Ack | list[Ack]:
        assert self.topic is not None
        return self.topic.append_arrow(batch, **options)

    # -- both ------------------------------------------------------------------------------------

    def _append(
        self,
        records: Any,
        check: Callable[[Any], object],
        append: Callable[[Any, dict[str, Any]], Ack | list[Ack]],
    ) -> None:
        """Publish good records, but for those that an earlier run of this producer published."""
        count = len(records)
        skip = max(0, min(count, self._resume - self._sequence))
        if skip:
            # All must be good, or the numbers would not be those of the earlier run.
            check(records)
        rest = records[skip:]
        options: dict[str, Any] = {"ack": self.options.ack}
        if self.options.producer is not None:
            options |= {"producer": self.options.producer, "sequence": self._sequence + skip}
        if len(rest):
            self._note(append(rest, options))
        self._sequence += count
        self.already += skip
        self.accepted += count - skip

    def _note(self, acks: Ack | list[Ack]) -> None:
        if isinstance(acks, Ack):
            if self.offset_first is None:
                self.offset_first = acks.offset
            self.offset_last = acks.offset_last

    def _reject(self, reject: Reject, discarded: int) -> None:
        self.rejected += 1
        if len(self.rejects) < REJECTS_SHOWN_MAX:
            self.rejects.append(reject)
        if self.options.on_error == "stop":
            raise Stopped(reject, discarded)
        self.on_reject(reject)


def _checked(
    file: str, rows: list[tuple[Line, Any]], topic: Topic | PartitionedTopic
) -> tuple[list[tuple[Line, Any]], list[Reject]]:
    """Check records one by one; return the good ones and the rejects."""
    good: list[tuple[Line, Any]] = []
    bad: list[Reject] = []
    for line, record in rows:
        try:
            # A partitioned topic asks the part that the record belongs to.
            topic.check_many([record])
        except InvalidRequest as error:
            details = {k: v for k, v in error.details.items() if k != "record"}
            reason = str(InvalidRequest(error.message, **details))
            bad.append(Reject(file, line.number, reason, line.raw))
        else:
            good.append((line, record))
    return good, bad


def _schema_of(
    lines: list[Line], text_format: TextFormat, limits: IngestLimits
) -> pa.Schema | None:
    """Return the columns that all records fit; if there are none, the error names the line."""
    decoded = [line.decoded for line in lines]
    try:
        return text_format.schema(decoded, limits)
    except InvalidRequest as error:
        fault = error

    def agrees(count: int) -> bool:
        try:
            text_format.schema(decoded[:count], limits)
        except InvalidRequest as error:
            return error.message != fault.message
        return True

    # Records that disagree go on to do so whatever follows: the first of them can be searched for.
    low, high = 1, len(lines)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if agrees(middle) else (low, middle)
    raise InvalidRequest(fault.message, line=lines[low - 1].number, **fault.details)
