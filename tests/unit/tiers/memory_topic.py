"""A topic with a memory tier and no journal: records go in as the journal would hand them over."""

from __future__ import annotations

import pyarrow as pa

from frazil.clock import SystemClock
from frazil.log import TailEntry, TopicState
from frazil.log import format as fmt
from frazil.model import TopicSpec
from frazil.schema import LIMITS_DEFAULT, declare_schema, ids_of
from frazil.tiers.memory import TopicMemory
from frazil.topic import TableCodec, arrow_payload

COLUMNS = {"id": "string", "a": "long", "b": "string"}


class Topic:
    """State, codec and memory tier of one topic; `write` is what the journal does."""

    def __init__(self, state, codec, *, merge_rows, start):
        self.state = state
        self.state.codec = self.codec = codec
        state.next = state.durable = start
        self.lsn = 0
        self.time_us = 1_000_000
        self.memory = TopicMemory(state, clock=SystemClock(), merge_rows=merge_rows)

    def write(self, payload, count, *, version=0, records=None, visible=True):
        """Append one frame; return its first offset."""
        state = self.state
        offset = state.next
        self.lsn += 1
        entry = TailEntry(
            offset,
            count,
            self.time_us,
            self.lsn,
            payload.kind,
            payload.flags,
            version,
            payload.size,
            payload.data,
            records,
        )
        self.memory.append(entry)
        state.next += count
        if visible:
            state.durable = state.next
        return offset

    def skip(self, count):
        """Leave a gap."""
        self.state.next += count
        self.state.durable = self.state.next


class TableTopic(Topic):
    """A table topic, keyed if `key` is given."""

    def __init__(self, columns=COLUMNS, *, key=("id",), merge_rows=65536, start=0, arrow_min=64):
        schema = declare_schema(columns, primary_key=list(key))
        ids = tuple(ids_of(schema)[name] for name in key)
        spec = TopicSpec(id=1, name="/t/t", kind="table", created_us=0, primary_key=ids)
        state = TopicState(spec)
        state.schemas[1] = schema.serialize().to_pybytes()
        state.schema_version = 1
        codec = TableCodec(
            state.schemas,
            limits=LIMITS_DEFAULT,
            rows_arrow_min=arrow_min,
            options=pa.ipc.IpcWriteOptions(),
            primary_key=ids,
        )
        super().__init__(state, codec, merge_rows=merge_rows, start=start)

    def use(self, schema):
        """Make another schema the current one."""
        version = self.state.schema_version + 1
        self.state.schemas[version] = schema.serialize().to_pybytes()
        self.state.schema_version = version
        self.codec.use(self.state.schemas)

    def rows(self, rows, **options):
        """Write dict rows as one frame."""
        codec = self.codec.rows
        records = [codec.encoder.encode(row) for row in rows]
        payload = codec.encode(records)
        kept = records if payload.kind == fmt.KIND_ROWS and self.codec.keyed else None
        return self.write(payload, len(rows), version=codec.version, records=kept, **options)

    def changes(self, make, **options):
        """Write changes as one frame; `make` gets the change codec and returns them."""
        codec = self.codec.columns.keyed.changes
        records = make(codec)
        payload = codec.encode(records)
        kept = records if payload.kind == fmt.KIND_ROWS else None
        return self.write(payload, len(records), version=codec.version, records=kept, **options)

    def arrow(self, batch, **options):
        """Write an Arrow batch, of the topic's columns or of changes, as one frame."""
        keyed = self.codec.columns.keyed
        if keyed is not None:
            payload, version = keyed.arrow.payload(batch), keyed.arrow.version
        else:
            payload, version = arrow_payload(batch, self.codec.options), self.codec.version
        return self.write(payload, batch.num_rows, version=version, **options)
