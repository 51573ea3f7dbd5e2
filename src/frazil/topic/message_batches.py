"""Arrow batches of messages: the checks and defaults that single messages get one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.errors import InvalidRequest
from frazil.schema import MESSAGE_SCHEMA

if TYPE_CHECKING:
    from frazil.schema import IngestLimits

_TIME_TYPE = MESSAGE_SCHEMA.field("publish_time").type


def with_publish_time(data: object, now_us: int) -> object:
    """Return Arrow data of messages with a publish time, `now_us` where it has none."""
    if isinstance(data, (pa.RecordBatch, pa.Table)):
        table: pa.Table = data
    elif hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        table = pa.table(data)
    else:
        return data
    if "publish_time" in table.schema.names:
        return table
    times = pa.repeat(pa.scalar(now_us, _TIME_TYPE), table.num_rows)
    return table.append_column(MESSAGE_SCHEMA.field("publish_time"), times)


def check_message_batch(batch: pa.RecordBatch, limits: IngestLimits, now_us: int) -> None:
    """Check the envelope of a batch of messages against the limits.

    Raises:
        InvalidRequest: with the number of the first row that is too large or too far in the future.
    """
    times = batch.column("publish_time")
    latest = pa.scalar(now_us + limits.future_time_max_us, _TIME_TYPE)
    _refuse(pc.greater(times, latest), "publish time is too far in the future")
    _refuse(pc.less(times, pa.scalar(0, _TIME_TYPE)), "publish time is below zero")
    keys = pc.fill_null(pc.binary_length(batch.column("key")), 0)
    _refuse(pc.greater(keys, limits.key_bytes_max), "key is too large")
    names = pc.fill_null(pc.binary_length(batch.column("producer_name")), 0)
    _refuse(pc.greater(names, limits.key_bytes_max), "producer_name is too large")
    sizes = pc.add(pc.binary_length(batch.column("payload")).cast(pa.int64()), pc.add(keys, names))
    attributes = batch.column("attributes")
    if attributes.null_count < len(attributes):
        sizes = pc.add(sizes, _attribute_bytes(attributes, limits))
    _refuse(pc.greater(sizes, limits.message_bytes_max), "message is too large")


def _attribute_bytes(attributes: pa.MapArray, limits: IngestLimits) -> pa.Array:
    """Return the bytes of each row's attributes, after a look at their number and size."""
    offsets = np.asarray(attributes.offsets)
    valid = np.asarray(attributes.is_valid())
    counts = np.where(valid, np.diff(offsets), 0)
    _refuse(pa.array(counts > limits.attributes_max), "message has too many attributes")
    inside = slice(int(offsets[0]), int(offsets[-1]))
    items = attributes.items[inside]
    if items.null_count:
        raise InvalidRequest("attributes must have texts as values, not null")
    lengths = np.asarray(pc.add(pc.binary_length(attributes.keys[inside]), pc.binary_length(items)))
    until = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    places = offsets - offsets[0]
    sizes = np.where(valid, until[places[1:]] - until[places[:-1]], 0)
    _refuse(pa.array(sizes > limits.attributes_bytes_max), "attributes are too large")
    return pa.array(sizes, pa.int64())


def _refuse(mask: pa.Array, what: str) -> None:
    row = pc.index(mask, value=True).as_py()
    if row >= 0:
        raise InvalidRequest(what, row=row)
