"""Input of changes in bulk: Arrow data with an operation column, or Debezium events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from types import NoneType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from frazil.errors import Conflict, FrazilError, InvalidRequest, NotFound
from frazil.log import FRAME_RECORDS_MAX
from frazil.model import OP_DELETE, OP_UPDATE, Ack
from frazil.schema import DebeziumReader, positions_of
from frazil.schema.python_rows import coarse_type
from frazil.topic.acks import ranges_text
from frazil.topic.changing import STEPS_MAX, check_exists, flat
from frazil.topic.payloads import is_arrow

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from frazil.log import Sender
    from frazil.schema import Key, RawChange
    from frazil.topic.changes import ChangeCodec, Step
    from frazil.topic.frames import KeyedColumns
    from frazil.topic.runtime import Prepared, TopicRuntime


def steps_of(
    runtime: TopicRuntime, data: object, op_column: str
) -> Iterator[list[Step] | Prepared]:
    """Yield the pieces to publish, in order: whole batches, or steps that need a key's state.

    Raises:
        InvalidRequest: with the number of the first change that is wrong.
    """
    if is_arrow(data):
        yield from _arrow_steps(runtime, data, op_column)
    else:
        yield from _debezium_steps(runtime, data)


def check_bulk(
    runtime: TopicRuntime, pieces: Sequence[list[Step] | Prepared], sender: Sender | None
) -> None:
    """Refuse a bulk before its first write if a later write would be refused.

    If an idempotent producer has sent the bulk before, each piece is checked by itself.

    Raises:
        InvalidRequest: if the bulk is too large for a producer to send again.
        Conflict, NotFound: as for `check_keys`.
    """
    if sender is not None and sender.producer is not None:
        runtime.check_frames(len(pieces), sum(map(_records, pieces)), sender)
    try:
        if runtime.changes.is_new(sender):
            check_keys(runtime, pieces)
    except (Conflict, NotFound):
        # The same call may have written the change that causes the refusal.
        if runtime.changes.is_new(sender):
            raise


def _records(piece: list[Step] | Prepared) -> int:
    return len(flat(piece)) if isinstance(piece, list) else piece[2]


def numbered(
    pieces: Sequence[list[Step] | Prepared], sender: Sender | None
) -> Iterator[tuple[list[Step] | Prepared, Sender | None]]:
    """Yield each piece with its sender; an idempotent producer's sequence continues over them."""
    for piece in pieces:
        yield piece, sender
        if sender is not None and sender.producer is not None:
            sender = sender._replace(sequence=sender.sequence + _records(piece))


def check_refused(results: Sequence[Ack | FrazilError]) -> None:
    """Raise the refusal with the ranges that were written, if all errors are refusals."""
    written = [(-1, result) for result in results if isinstance(result, Ack)]
    errors = [result for result in results if isinstance(result, (Conflict, NotFound))]
    if written and errors and len(written) + len(errors) == len(results):
        error = errors[0]
        ranges = {"offsets_written": ranges_text(written), "frames_written": len(written)}
        details = {**error.details, **ranges}
        message = f"{error.message}; other changes of the call were written"
        raise type(error)(message, **details) from error


def check_keys(runtime: TopicRuntime, pieces: Sequence[Any]) -> None:
    """Refuse a bulk of several writes before the first one if a later one would be refused.

    A single write is checked when it is made. A concurrent change of a key can still end a bulk
    half way.

    Raises:
        Conflict: if it inserts a key that exists and the topic's policy is `error`.
        NotFound: if it changes a key that does not exist.
    """
    lookup = None if runtime.tiers is None else runtime.tiers.lookup
    if lookup is None or len(pieces) < 2 or runtime.state.spec.unknown_key != "error":
        return
    lookup.refresh()
    there: dict[Key, bool] = {}
    # Each piece is a list of steps: a topic with this policy never gets whole batches.
    for number, step in enumerate(chain.from_iterable(pieces)):
        for change in flat([step]):
            if change.key not in there:
                there[change.key] = lookup.has(change.key)
            check_exists(change, exists=there[change.key], topic=runtime.name, change=number)
            there[change.key] = change.op != OP_DELETE


def no_changes(topic: str) -> InvalidRequest:
    """Return the error for a call without any change or event."""
    return InvalidRequest("there are no changes to publish", topic=topic)


def nothing_written(runtime: TopicRuntime) -> Ack:
    """Return the ack of a call whose events were all skipped: of no record, at the head."""
    check_there(runtime)
    head = runtime.state.durable
    return Ack(head, head - 1, runtime.log.journal.state.lsn)


def check_there(runtime: TopicRuntime) -> None:
    """Raise if the engine is closed or the topic was deleted."""
    journal = runtime.log.journal
    if journal.closed:
        raise journal.closed_error()
    refused = None if runtime.refusal is None else runtime.refusal()
    if isinstance(refused, NotFound):
        raise refused


def _arrow_steps(
    runtime: TopicRuntime, data: object, op_column: str
) -> Iterator[list[Step] | Prepared]:
    keyed = runtime.changes.columns
    is_empty = True
    for batch in change_batches(runtime, keyed, data, op_column):
        is_empty = False
        runtime.check_parts(batch, keyed.changes.schema)
        yield from batch_steps(runtime, keyed, batch)
    if is_empty:
        raise no_changes(runtime.name)


def change_batches(
    runtime: TopicRuntime, keyed: KeyedColumns, data: object, op_column: str
) -> Iterator[pa.RecordBatch]:
    """Yield Arrow changes with a topic's columns, in pieces of at most one write."""
    return keyed.input.batches(
        data,
        op_column=op_column,
        bytes_max=runtime.settings.log.write_bytes_max,
        rows_max=FRAME_RECORDS_MAX,
    )


def batch_steps(
    runtime: TopicRuntime, keyed: KeyedColumns, batch: pa.RecordBatch
) -> Iterator[list[Step] | Prepared]:
    """Yield the pieces to publish of one checked batch of changes."""
    strict = runtime.state.spec.unknown_key == "error"
    plain = not pc.any(pc.equal(batch.column("_op"), OP_UPDATE)).as_py()
    if plain and not strict:
        yield runtime.bulk(keyed.arrow, batch)
        return
    for start in range(0, batch.num_rows, STEPS_MAX):
        yield _rows(keyed, batch.slice(start, STEPS_MAX))


def _rows(keyed: KeyedColumns, batch: pa.RecordBatch) -> list[Step]:
    """Return the rows of a checked batch of changes as steps."""
    names = keyed.changes.schema.names
    return [_step(keyed.changes, names, row) for row in _python_rows(batch)]


def _step(codec: ChangeCodec, names: Sequence[str], row: Mapping[str, Any]) -> Step:
    key = {name: row[name] for name in codec.shape.names}
    if row["_op"] != OP_UPDATE:
        return codec.prepare(row["_op"], key, {name: row[name] for name in names})
    named = [names[position] for position in positions_of(row["_present"])]
    return codec.prepare_update(key, {name: row[name] for name in named if name not in key})


def _python_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows as dicts of exact values, with and without pandas."""
    coarse = pa.schema([field.with_type(coarse_type(field.type)) for field in batch.schema])
    try:
        rows: list[dict[str, Any]] = batch.cast(coarse).to_pylist()
    except ValueError as error:
        raise InvalidRequest(
            "changes that need the state of their key cannot have values finer than a microsecond, "
            "publish whole rows as upserts",
            cause=error,
        ) from error
    return rows


def _debezium_steps(runtime: TopicRuntime, data: object) -> Iterator[list[Step]]:
    codec = runtime.changes.columns.changes
    steps: list[Step] = []
    for number, raw in debezium_changes(runtime.name, codec, data):
        try:
            step = codec.prepare(raw.op, raw.key, raw.row)
            runtime.changes.check_part(step)
        except InvalidRequest as error:
            raise InvalidRequest(error.message, **{"change": number, **error.details}) from error
        if len(steps) >= STEPS_MAX:
            yield steps
            steps = []
        steps.append(step)
    if steps:
        yield steps


def debezium_changes(
    topic: str, codec: ChangeCodec, data: object
) -> Iterator[tuple[int, RawChange]]:
    """Yield the operations of Debezium's events, each with the number of its event.

    Raises:
        InvalidRequest: with the number of the first event that is wrong, or if there is no event.
    """
    if isinstance(data, (str, bytes, bytearray, memoryview, Mapping, NoneType)):
        data = [data]
    if not isinstance(data, Iterable):
        raise InvalidRequest(
            "changes must be Arrow data or an iterable of Debezium events",
            got=type(data).__name__,
        )
    reader = DebeziumReader(codec.schema, codec.shape.names)
    number = -1
    for number, event in enumerate(data):
        try:
            key, value = _key_and_value(event)
            raws = reader.read(value, key=key)
        except InvalidRequest as error:
            raise InvalidRequest(error.message, **{"change": number, **error.details}) from error
        for raw in raws:
            yield number, raw
    if number < 0:
        raise no_changes(topic)


def _key_and_value(event: Any) -> tuple[Any, Any]:
    """Return the key and the value of an event, as in a Kafka record; the key may be None.

    The event is a pair, a dict with `key` and `value`, or the value alone. An event without a value
    is a tombstone.
    """
    if isinstance(event, tuple) and len(event) == 2:
        return event
    if isinstance(event, Mapping) and "value" in event and not {"op", "payload"} & set(event):
        return event.get("key"), event["value"]
    return None, event
