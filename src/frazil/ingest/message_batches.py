"""Arrow batches of messages: the checks and defaults that single messages get one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from frazil.errors import InvalidRequest
from frazil.ingest.messages import MESSAGE_SCHEMA

if TYPE_CHECKING:
    from frazil.ingest.columns import IngestLimits

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
    latest = pa.scalar(now_us + limits.future_time_max_us, _TIME_TYPE)
    _refuse(
        pc.greater(batch.column("publish_time"), latest), "publish time is too far in the future"
    )
    lengths = pc.binary_length(batch.column("key"))
    _refuse(pc.greater(lengths, limits.key_bytes_max), "key is too large")
    attributes = batch.column("attributes")
    if attributes.null_count < len(attributes):
        counts = pc.list_value_length(attributes)
        _refuse(pc.greater(counts, limits.attributes_max), "message has too many attributes")


def _refuse(mask: pa.Array, what: str) -> None:
    row = pc.index(mask, value=True).as_py()
    if row >= 0:
        raise InvalidRequest(what, row=row)
