"""`frazil read`: records of a topic on stdout, from an offset or a time."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from typing import TYPE_CHECKING, Annotated, Final, Literal

import pyarrow as pa
import typer

from frazil.cli.batches import BatchWriter
from frazil.cli.output import note, write_out
from frazil.cli.session import session_of
from frazil.clock import SystemClock
from frazil.engine import PartitionedTopic
from frazil.errors import CorruptionError, InvalidRequest
from frazil.log import OFFSET_FIELD, TIME_FIELD, Batch
from frazil.model import OP_NAMES
from frazil.units import parse_duration_s

if TYPE_CHECKING:
    from collections.abc import Iterator

    from frazil.engine import Topic
    from frazil.topic import Reader, Start

__all__ = ["parse_start", "read"]

Format = Literal["ndjson", "table", "csv", "arrow", "raw"]
PART_FIELD: Final = pa.field("_part", pa.int32(), nullable=False)
OP_FIELD: Final = pa.field("_op", pa.string(), nullable=False)

OFFSETS_MAX: Final = 1 << 63
_OFFSET: Final = re.compile(r"\d{1,19}\Z", re.ASCII)


def parse_start(text: str, *, now_us: int, option: str = "--from") -> Start:
    """Parse `--from` and similar options: a word, an offset, a time, or an age (`-5m`).

    Raises:
        InvalidRequest: if it is none of these.
    """
    if text in ("earliest", "latest"):
        return text
    if _OFFSET.match(text):
        return int(text)
    try:
        # Without a unit it could mean an offset from the end, which is not supported.
        if text.startswith("-") and text[-1].isalpha():
            moment = dt.datetime.fromtimestamp(now_us / 1e6, dt.UTC)
            return moment - dt.timedelta(seconds=parse_duration_s(text[1:]))
        return dt.datetime.fromisoformat(text)
    except (ValueError, OverflowError, InvalidRequest) as error:
        raise InvalidRequest(
            f"{option} takes earliest, latest, an offset, an ISO 8601 time, "
            "or a span with its unit such as -5m",
            got=text,
        ) from error


def read(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="The topic.")],
    start: Annotated[
        str,
        typer.Option("--from", help="earliest, latest, an offset, an ISO 8601 time, or -5m."),
    ] = "earliest",
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=0, help="At most so many records.")
    ] = None,
    file_format: Annotated[Format, typer.Option("--format", "-f", help="How to write.")] = "ndjson",
    skip_lost: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--skip-lost", help="Continue after records that are lost.")
    ] = False,
) -> None:
    """Read records. Gaps and lost ranges are reported on stderr; a lost range ends it with code 8."""
    session = session_of(context)
    first = parse_start(start, now_us=SystemClock().now_us())
    with session.engine() as engine:
        handle = engine.topic(topic)
        is_parted = isinstance(handle, PartitionedTopic)
        parts = handle.parts if isinstance(handle, PartitionedTopic) else [handle]
        cursors = [
            _Cursor(part, index if is_parted else None, first, skip_lost=skip_lost)
            for index, part in enumerate(parts)
        ]
        with contextlib.closing(_Writer(file_format, parts[0], is_parted=is_parted)) as writer:
            for part, batch in _limited(cursors, OFFSETS_MAX if limit is None else limit):
                writer.write(batch, part)


def _limited(cursors: list[_Cursor], limit: int) -> Iterator[tuple[int | None, Batch]]:
    """Yield the batches of all parts with the number of the part, up to so many records."""
    for cursor in cursors:
        for batch in cursor.batches():
            yield cursor.part, batch if batch.count <= limit else batch.slice(0, limit)
            limit -= batch.count
            if limit <= 0:
                return


class _Writer:
    """Writes records of a topic; a record of a keyed topic is a change with its operation's name."""

    def __init__(self, file_format: Format, topic: Topic, *, is_parted: bool) -> None:
        self._batches: BatchWriter | None = None
        self._fields = [PART_FIELD] if is_parted else []
        self._fields += [OFFSET_FIELD, TIME_FIELD]
        if topic.runtime.state.spec.primary_key:
            self._fields.append(OP_FIELD)
        self._schema = pa.schema([*self._fields, *topic.schema])
        if file_format != "raw":
            self._batches = BatchWriter(file_format, self._schema)
        elif not topic.runtime.is_message:
            raise InvalidRequest("only message topics have raw payloads, choose another --format")

    def close(self) -> None:
        """Write the end of the format."""
        if self._batches is not None:
            self._batches.close()

    def write(self, batch: Batch, part: int | None) -> None:
        if self._batches is None:
            payloads = batch.data.column("payload").to_pylist()
            write_out(b"".join([payload + b"\n" for payload in payloads]))
            return
        data = batch.to_arrow()
        columns = list(data.columns)
        if "_op" in batch.data.schema.names:
            columns = list(data.drop_columns(["_op", "_present"]).columns)
            names = [OP_NAMES.get(number, str(number)) for number in data.column("_op").to_pylist()]
            columns.insert(2, pa.array(names, pa.string()))
        if part is not None:
            columns.insert(0, pa.array([part] * batch.count, PART_FIELD.type))
        self._batches.write(pa.RecordBatch.from_arrays(columns, schema=self._schema))


class _Cursor:
    """Reads one topic or part; it reports gaps, and can skip lost ranges."""

    def __init__(self, topic: Topic, part: int | None, start: Start, *, skip_lost: bool) -> None:
        self.topic = topic
        self.part = part
        self._skip_lost = skip_lost
        self._reader: Reader = topic.tail(start)
        self._gaps_shown = 0
        self._end = topic.runtime.state.durable

    def batches(self) -> Iterator[Batch]:
        """Yield the records up to the head of now."""
        while self._reader.offset < self._end:
            try:
                batch = self._reader.poll()
            except CorruptionError as error:
                self._skip_lost_range(error)
                continue
            self._report_gaps()
            if batch is None:
                return
            yield batch

    def _skip_lost_range(self, error: CorruptionError) -> None:
        target = error.details.get("offset_next")
        if not self._skip_lost or not isinstance(target, int) or target <= self._reader.offset:
            raise error
        note(f"lost: {error}")
        self._reader.close()
        self._reader = self.topic.tail(target)
        self._gaps_shown = 0

    def _report_gaps(self) -> None:
        for gap in self._reader.gaps[self._gaps_shown :]:
            where = "" if self.part is None else f" part={self.part}"
            note(f"gap: offsets {gap.first}..{gap.end - 1} hold no records{where}: {gap.reason}")
        self._gaps_shown = len(self._reader.gaps)
