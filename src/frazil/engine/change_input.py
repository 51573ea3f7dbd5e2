"""Changes in bulk, as users give them: Arrow with an operation column, or Debezium's events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from frazil.engine.changing import STEPS_MAX
from frazil.errors import InvalidRequest
from frazil.ingest.debezium import DebeziumReader
from frazil.log import format as fmt
from frazil.log.group import FRAME_RECORDS_MAX
from frazil.log.present import positions_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from frazil.engine.changing import Step, TopicChanges
    from frazil.engine.runtime import Prepared, TopicRuntime
    from frazil.ingest.frames import KeyedColumns


def steps_of(
    runtime: TopicRuntime, changes: TopicChanges, data: object, op_column: str
) -> Iterator[list[Step] | Prepared]:
    """Yield what to publish, in order: batches as they are, or steps that need a key's state.

    Raises:
        InvalidRequest: with the number of the first change that is wrong.
    """
    if _is_arrow(data):
        yield from _arrow_steps(runtime, changes, data, op_column)
    else:
        yield from _debezium_steps(changes, data)


def _is_arrow(data: object) -> bool:
    return isinstance(data, (pa.RecordBatch, pa.Table)) or any(
        hasattr(data, name) for name in ("__arrow_c_stream__", "__arrow_c_array__")
    )


def _arrow_steps(
    runtime: TopicRuntime, changes: TopicChanges, data: object, op_column: str
) -> Iterator[list[Step] | Prepared]:
    keyed = changes.columns
    strict = runtime.state.spec.unknown_key == "error"
    batches = keyed.input.batches(
        data,
        op_column=op_column,
        bytes_max=runtime.settings.log.write_bytes_max,
        rows_max=FRAME_RECORDS_MAX,
    )
    for batch in batches:
        runtime.check_parts(batch, keyed.changes.schema)
        ops = batch.column("_op")
        plain = not pc.any(pc.equal(ops, fmt.OP_UPDATE)).as_py()
        if plain and not strict:
            yield runtime.bulk(keyed, batch)
            continue
        for start in range(0, batch.num_rows, STEPS_MAX):
            yield _rows(keyed, batch.slice(start, STEPS_MAX))


def _rows(keyed: KeyedColumns, batch: pa.RecordBatch) -> list[Step]:
    """Return the rows of a checked batch of changes as steps."""
    codec = keyed.changes
    names = codec.schema.names
    steps: list[Step] = []
    rows = batch.to_pylist()
    for row in rows:
        op, present = row["_op"], row["_present"]
        key = {name: row[name] for name in codec.shape.names}
        if op == fmt.OP_UPDATE:
            named = {names[at]: row[names[at]] for at in positions_of(present)}
            for name in codec.shape.names:
                named.pop(name, None)
            if not named:
                raise InvalidRequest("an update must name a column besides its key")
            steps.append(codec.prepare_update(key, named))
        elif op == fmt.OP_DELETE:
            steps.append(codec.prepare_delete(key))
        else:
            steps.append(codec.prepare(op, key, {name: row[name] for name in names}))
    return steps


def _debezium_steps(changes: TopicChanges, data: object) -> Iterator[list[Step]]:
    if isinstance(data, (str, bytes, bytearray, memoryview, Mapping)):
        data = [data]
    if not isinstance(data, Iterable):
        raise InvalidRequest(
            "changes must be Arrow data or an iterable of Debezium events",
            got=type(data).__name__,
        )
    codec = changes.columns.changes
    reader = DebeziumReader(codec)
    steps: list[Step] = []
    for number, each in enumerate(data):
        event: Any = each
        try:
            # A pair is an event's key and value, as a Kafka record has them.
            key, value = event if isinstance(event, tuple) and len(event) == 2 else (None, event)
            raws = reader.read(value, key=key)
            steps += [codec.prepare(raw.op, raw.key, raw.row) for raw in raws]
        except InvalidRequest as error:
            raise InvalidRequest(error.message, **{"change": number, **error.details}) from error
        if len(steps) >= STEPS_MAX - 1:
            yield steps
            steps = []
    if steps:
        yield steps
