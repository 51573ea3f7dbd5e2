"""A keyed topic's codec without an engine, and payloads as frames that were read back."""

from __future__ import annotations

import pyarrow as pa

from frazil.log import Frame
from frazil.log import format as fmt
from frazil.schema.columns import LIMITS_DEFAULT, declare_schema, ids_of
from frazil.topic import TableCodec

COLUMNS = {
    "id": "long",
    "name": "string not null",
    "score": "double",
    "at": "timestamptz",
    "price": "decimal(9,2)",
}
ROWS_ARROW_MIN = 4


def topic_codec(columns=COLUMNS, key=("id",), *, keyed=True, **options):
    """Return the codec of a topic with these columns, and its schema."""
    schema = declare_schema(columns, primary_key=list(key))
    ids = tuple(ids_of(schema)[name] for name in key) if keyed else ()
    return codec_of({1: schema}, ids, **options), schema


def codec_of(schemas, primary_key, *, rows_arrow_min=ROWS_ARROW_MIN, limits=LIMITS_DEFAULT):
    """Return the codec of a topic with these versions of its columns."""
    data = {version: schema.serialize().to_pybytes() for version, schema in schemas.items()}
    return TableCodec(
        data,
        limits=limits,
        rows_arrow_min=rows_arrow_min,
        options=pa.ipc.IpcWriteOptions(),
        primary_key=primary_key,
    )


def use(codec, version, schema):
    """Make `schema` the current columns of a topic."""
    codec.use({version: schema.serialize().to_pybytes()})


def frame_of(payload, *, count, version=1):
    """Return a payload as the verified frame that a reader has."""
    head, data, padding, _size = fmt.frame_buffers(
        payload.kind,
        payload.data,
        payload.size,
        offset=0,
        salt=bytes(8),
        generation=1,
        lsn=1,
        synced=0,
        time_us=1,
        count=count,
        schema=version,
        flags=payload.flags,
    )
    buffer = b"".join((head, data, padding))
    frame_head = fmt.read_head(buffer, 0)
    assert not fmt.frame_fault(memoryview(buffer), 0, frame_head)
    return Frame(frame_head, buffer, fmt.FRAME_HEAD_BYTES)


def frame_of_changes(codec, changes, version=1):
    """Return changes as the frame that the journal would write."""
    payload = codec.columns.keyed.changes.encode(changes)
    return frame_of(payload, count=len(changes), version=version)
