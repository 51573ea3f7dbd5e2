"""Messages of a message topic: opaque payloads with an envelope, as structs, rows and Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from struct import pack as pack_struct
from typing import Any, Final

import msgspec
import pyarrow as pa
from msgspec.structs import astuple

from frazil.errors import CorruptionError, InvalidRequest
from frazil.schema.columns import IngestLimits, numbered_schema

__all__ = [
    "MESSAGE_SCHEMA",
    "Message",
    "check_attributes",
    "check_message",
    "message_batch",
    "pack_messages",
    "payload_batch",
    "unpack_messages",
]


class Message(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One message; `publish_time` is in microseconds since 1970, None means the time of arrival.

    The order of the fields is the compact form's and never changes; new fields go to the end.
    """

    payload: bytes
    key: str | None = None
    attributes: dict[str, str] | None = None
    publish_time: int | None = None
    producer_name: str | None = None
    producer_id: int | None = None
    schema_id: int | None = None
    schema_version: int | None = None


_TIME_TYPE: Final = pa.timestamp("us", "UTC")


MESSAGE_SCHEMA: Final[pa.Schema] = numbered_schema(
    [
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("attributes", pa.map_(pa.string(), pa.string())),
        pa.field("publish_time", _TIME_TYPE, nullable=False),
        pa.field("producer_name", pa.string()),
        pa.field("producer_id", pa.uint64()),
        pa.field("schema_id", pa.uint64()),
        pa.field("schema_version", pa.uint32()),
    ]
)
_TYPES: Final[tuple[pa.DataType, ...]] = tuple(MESSAGE_SCHEMA.types)
UINT64_MAX: Final = 2**64 - 1
UINT32_MAX: Final = 2**32 - 1
INT64_MAX: Final = 2**63 - 1
INT32_MAX: Final = 2**31 - 1
"""The limit of bytes in one column of texts or payloads."""
# One set of null columns of this length serves every smaller batch as slices.
NULLS_ROWS: Final = 4096

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Message]).decode


def check_message(message: Message, limits: IngestLimits, now_us: int) -> int:
    """Return the message's size in bytes if it may be published at `now_us`.

    Raises:
        InvalidRequest: for a wrong type, a size above its limit, text that is not UTF-8, or a
            publish time below zero or too far in the future.
    """
    payload = message.payload
    if type(payload) is not bytes:
        raise InvalidRequest("payload must be bytes", got=type(payload).__name__)
    size = len(payload)
    if message.key is not None:
        size += _check_text("key", message.key, bytes_max=limits.key_bytes_max)
    if message.attributes is not None:
        size += check_attributes(message.attributes, limits)
    if message.publish_time is not None:
        _check_time(message.publish_time, limits, now_us)
    if message.producer_name is not None:
        size += _check_text("producer_name", message.producer_name, bytes_max=limits.key_bytes_max)
    if message.producer_id is not None:
        _check_unsigned("producer_id", message.producer_id, UINT64_MAX)
    if message.schema_id is not None:
        _check_unsigned("schema_id", message.schema_id, UINT64_MAX)
    if message.schema_version is not None:
        _check_unsigned("schema_version", message.schema_version, UINT32_MAX)
    if size > limits.message_bytes_max:
        raise InvalidRequest("message is too large", bytes=size, bytes_max=limits.message_bytes_max)
    return size


def message_batch(messages: Sequence[Message], time_us: int) -> pa.RecordBatch:
    """Return checked messages as an Arrow batch; `time_us` is the default publish time."""
    if not messages:
        empty = [pa.array([], data_type) for data_type in _TYPES]
        return pa.RecordBatch.from_arrays(empty, schema=MESSAGE_SCHEMA)
    payloads, keys, attributes, times, names, *numbers = zip(*map(astuple, messages), strict=True)
    if attributes.count(None) != len(attributes):
        attributes = tuple(None if one is None else list(one.items()) for one in attributes)
    columns = [
        _payloads(payloads),
        _optional(keys, 1),
        _optional(attributes, 2),
        _times(times, time_us),
        _optional(names, 4),
        *(_optional(column, index) for index, column in enumerate(numbers, start=5)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA)


def pack_messages(messages: Sequence[Message]) -> bytes:
    """Encode messages in the compact form: a msgpack array of one array each."""
    return _encode(messages)


def unpack_messages(data: bytes | bytearray | memoryview) -> list[Message]:
    """Decode the output of `pack_messages`.

    Raises:
        CorruptionError: if the bytes are not such messages.
    """
    try:
        return _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(
            "packed messages do not decode", bytes=len(data), cause=error
        ) from error


def payload_batch(
    offsets: bytes | bytearray | memoryview | pa.Buffer,
    data: bytes | bytearray | memoryview | pa.Buffer,
    rows: int,
    time_us: int,
) -> pa.RecordBatch:
    """Return `rows` messages with only a payload, without copying their bytes.

    `offsets` holds rows + 1 little-endian int32 positions in `data`. The batch keeps both alive;
    they must not change any more.

    Raises:
        InvalidRequest: if the offsets are too few, decrease or lead out of `data`.
    """
    offsets_buffer = pa.py_buffer(offsets)
    data_buffer = pa.py_buffer(data)
    if rows < 0 or offsets_buffer.size < 4 * (rows + 1):
        raise InvalidRequest("payload offsets are too few", rows=rows, bytes=offsets_buffer.size)
    try:
        payloads = pa.Array.from_buffers(
            _TYPES[0], rows, [None, offsets_buffer, data_buffer], null_count=0
        )
        payloads.validate(full=True)
    except pa.ArrowException as error:
        raise InvalidRequest("payload offsets are invalid", rows=rows, cause=error) from error
    before = [_nulls(index, rows) for index in (1, 2)]
    after = [_nulls(index, rows) for index in (4, 5, 6, 7)]
    columns = [payloads, *before, _same_time(rows, time_us), *after]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA)


_nulls_known: Final[dict[int, pa.Array]] = {}


def _nulls(index: int, rows: int) -> pa.Array:
    # Built from a list: `pa.nulls` gives a map as many unused items as it has rows. Built on first
    # use: the first list that Arrow converts makes it import pandas, if that is installed.
    if rows > NULLS_ROWS:
        return pa.array([None] * rows, _TYPES[index])
    found = _nulls_known.get(index)
    if found is None:
        found = _nulls_known[index] = pa.array([None] * NULLS_ROWS, _TYPES[index])
    return found.slice(0, rows)


def _same_time(rows: int, time_us: int) -> pa.Array:
    stamps = pa.py_buffer(pack_struct("<q", time_us) * rows)
    return pa.Array.from_buffers(_TIME_TYPE, rows, [None, stamps], null_count=0)


def _payloads(payloads: tuple[bytes, ...]) -> pa.Array:
    rows, data = len(payloads), b"".join(payloads)
    if len(data) > INT32_MAX:
        return pa.array(payloads, _TYPES[0])
    offsets = pack_struct(f"<{rows + 1}i", *accumulate(map(len, payloads), initial=0))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(_TYPES[0], rows, buffers, null_count=0)


def _times(times: tuple[int | None, ...], time_us: int) -> pa.Array:
    first = times[0]
    if times.count(first) == len(times) and (first is None or 0 <= first <= INT64_MAX):
        return _same_time(len(times), time_us if first is None else first)
    return pa.array([time_us if time is None else time for time in times], _TIME_TYPE)


def _optional(values: tuple[Any, ...], index: int) -> pa.Array:
    """Return a nullable column; the common case of equal values in all rows is not iterated."""
    rows, first = len(values), values[0]
    if values.count(first) != rows:
        return pa.array(values, _TYPES[index])
    if first is None:
        return _nulls(index, rows)
    if type(first) is str:
        return _same_text(first, rows)
    return pa.array(values, _TYPES[index])


def _same_text(text: str, rows: int) -> pa.Array:
    data = text.encode()
    size = len(data)
    if not 0 < size * rows <= INT32_MAX:
        return pa.array([text] * rows, pa.string())
    offsets = pack_struct(f"<{rows + 1}i", *range(0, size * rows + 1, size))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data * rows)]
    return pa.Array.from_buffers(pa.string(), rows, buffers, null_count=0)


def _check_text(what: str, text: object, *, bytes_max: int) -> int:
    if not isinstance(text, str):
        raise InvalidRequest(f"{what} must be a string", got=type(text).__name__)
    if text.isascii():
        size = len(text)
    else:
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"{what} is not valid UTF-8", got=ascii(text[:80])) from error
    if size > bytes_max:
        raise InvalidRequest(f"{what} is too large", bytes=size, bytes_max=bytes_max)
    return size


def check_attributes(attributes: object, limits: IngestLimits) -> int:
    """Return the bytes of a message's attributes if they are within the limits."""
    if not isinstance(attributes, dict):
        raise InvalidRequest("attributes must be a dict", got=type(attributes).__name__)
    if len(attributes) > limits.attributes_max:
        raise InvalidRequest(
            "message has too many attributes",
            attributes=len(attributes),
            attributes_max=limits.attributes_max,
        )
    bytes_max = limits.attributes_bytes_max
    size = 0
    for name, value in attributes.items():
        size += _check_text("attribute name", name, bytes_max=bytes_max)
        size += _check_text("attribute value", value, bytes_max=bytes_max)
    if size > bytes_max:
        raise InvalidRequest("attributes are too large", bytes=size, bytes_max=bytes_max)
    return size


def _check_time(time_us: object, limits: IngestLimits, now_us: int) -> None:
    if type(time_us) is not int:
        raise InvalidRequest(
            "publish_time must be microseconds as an int", got=type(time_us).__name__
        )
    if time_us < 0:
        raise InvalidRequest("publish_time is before 1970", publish_time=time_us)
    if time_us > now_us + limits.future_time_max_us:
        raise InvalidRequest(
            "publish_time is too far in the future",
            publish_time=time_us,
            ahead_us_max=limits.future_time_max_us,
        )


def _check_unsigned(what: str, value: object, greatest: int) -> None:
    if type(value) is not int:
        raise InvalidRequest(f"{what} must be an int", got=type(value).__name__)
    if not 0 <= value <= greatest:
        raise InvalidRequest(f"{what} is out of range", greatest=greatest)
