"""Messages: limits, the compact form and Arrow."""

from __future__ import annotations

import datetime as dt
import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.errors import CorruptionError, InvalidRequest
from frazil.schema.columns import IngestLimits, ids_of, last_id
from frazil.schema.messages import (
    MESSAGE_SCHEMA,
    Message,
    check_message,
    message_batch,
    payload_batch,
    unpack_messages,
)

LIMITS = IngestLimits()
NOW = 1_700_000_000_000_000
FULL = Message(b"p", "key", {"a": "b"}, NOW, "producer", 2**64 - 1, 5, 2**32 - 1)


def _time(us):
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=us)


def test_the_schema_is_the_one_on_disk():
    """The columns, their order and their ids are fixed: frames on disk depend on them."""
    assert list(ids_of(MESSAGE_SCHEMA).items()) == [
        ("payload", 1),
        ("key", 2),
        ("attributes", 3),
        ("publish_time", 4),
        ("producer_name", 5),
        ("producer_id", 6),
        ("schema_id", 7),
        ("schema_version", 8),
    ]
    assert last_id(MESSAGE_SCHEMA) == 10
    assert [field.name for field in MESSAGE_SCHEMA if not field.nullable] == [
        "payload",
        "publish_time",
    ]


def test_a_message_within_its_limits_passes_with_its_size():
    """The size counts payload and text in UTF-8 bytes."""
    assert check_message(Message(b"abc"), LIMITS, NOW) == 3
    assert check_message(FULL, LIMITS, NOW) == 1 + 3 + 2 + 8
    assert check_message(Message(b"", key="é"), LIMITS, NOW) == 2
    assert check_message(Message(b"", publish_time=NOW + 3_600_000_000), LIMITS, NOW) == 0
    assert check_message(Message(b"x" * (1 << 20)), LIMITS, NOW) == 1 << 20
    check_message(Message(b"", key="k" * 1024), LIMITS, NOW)
    check_message(Message(b"", attributes={str(i): "" for i in range(64)}), LIMITS, NOW)


@pytest.mark.parametrize(
    "message",
    [
        Message("text"),
        Message(bytearray(b"x")),
        Message(None),
        Message(b"x" * ((1 << 20) + 1)),
        Message(b"x" * (1 << 20), key="k"),
        Message(b"", key="k" * 1025),
        Message(b"", key="é" * 513),
        Message(b"", key=b"k"),
        Message(b"", key="\ud800"),
        Message(b"", attributes=[("a", "b")]),
        Message(b"", attributes={"a": 1}),
        Message(b"", attributes={1: "a"}),
        Message(b"", attributes={"a": None}),
        Message(b"", attributes={"a": "\ud800"}),
        Message(b"", attributes={str(i): "" for i in range(65)}),
        Message(b"", attributes={"a": "x" * 32 * 1024}),
        Message(b"", attributes={"a": "x" * 20_000, "b": "x" * 20_000}),
        Message(b"", publish_time=-1),
        Message(b"", publish_time=NOW + 3_600_000_001),
        pytest.param(Message(b"", publish_time=10**5000), id="huge"),
        Message(b"", publish_time=1.5),
        Message(b"", publish_time=True),
        Message(b"", producer_name=5),
        Message(b"", producer_id=-1),
        Message(b"", producer_id=2**64),
        Message(b"", schema_id="x"),
        Message(b"", schema_version=2**32),
    ],
)
def test_a_message_beyond_a_limit_is_refused(message):
    """Each wrong type, size, text and time is refused with a printable error."""
    with pytest.raises(InvalidRequest) as caught:
        check_message(message, LIMITS, NOW)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x91\x90", b"\x91\x91\x01", b"\x91\x92\xc4\x00\x05"]
)
def test_damaged_packed_messages_are_reported(data):
    """Bytes that are no messages are corruption, not a crash."""
    with pytest.raises(CorruptionError):
        unpack_messages(data)


def _one_by_one(messages, time_us):
    """Return the columns as Arrow builds them from values."""
    times = [time_us if one.publish_time is None else one.publish_time for one in messages]
    attributes = [one.attributes and list(one.attributes.items()) for one in messages]
    columns = [[getattr(one, name) for one in messages] for name in MESSAGE_SCHEMA.names]
    columns[2], columns[3] = attributes, times
    pairs = zip(columns, MESSAGE_SCHEMA.types, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, kind) for column, kind in pairs], schema=MESSAGE_SCHEMA
    )


_SOME = st.builds(
    Message,
    st.sampled_from([b"", b"x", b"payload"]),
    st.sampled_from([None, "", "key", "schl\u00fcssel"]),
    st.sampled_from([None, {"a": "b"}]),
    st.sampled_from([None, 0, NOW]),
    st.sampled_from([None, "", "producer"]),
    st.sampled_from([None, 0, 2**64 - 1]),
    st.sampled_from([None, 0, 5]),
    st.sampled_from([None, 0, 2**32 - 1]),
)


@given(st.lists(_SOME, min_size=1, max_size=5), st.integers(1, 3))
def test_a_batch_is_what_arrow_makes_of_the_values(messages, times):
    """Also columns with one value in all rows, which are put together without looking at each."""
    messages = messages * times
    batch = message_batch(messages, 7)
    batch.validate(full=True)
    assert batch.equals(_one_by_one(messages, 7))


@pytest.mark.parametrize("field", ["publish_time", "producer_id", "schema_id", "schema_version"])
@pytest.mark.parametrize("value", [-1 << 63, 1 << 64])
def test_a_number_that_no_column_takes_is_arrows_to_refuse(field, value):
    """Damaged frames may have such; their readers handle Arrow's errors."""
    message = Message(b"x", **{field: value})
    if field == "publish_time" and value < 0:
        assert message_batch([message] * 2, 7).equals(_one_by_one([message] * 2, 7))
        return
    with pytest.raises((pa.ArrowInvalid, OverflowError)):
        message_batch([message] * 2, 7)


@pytest.mark.parametrize("rows", [0, 1, 3, 4096, 5000])
def test_payloads_become_a_batch_without_a_copy(rows):
    """A payload batch equals the batch of the same messages and shares the given bytes."""
    data = bytes(range(256)) * 40
    offsets = struct.pack(f"<{rows + 1}i", *range(rows + 1))
    batch = payload_batch(offsets, data, rows, NOW)
    batch.validate(full=True)
    messages = [Message(data[index : index + 1]) for index in range(rows)]
    assert batch.equals(message_batch(messages, NOW))
    assert batch.schema.equals(MESSAGE_SCHEMA, check_metadata=True)
    again = payload_batch(offsets, data, rows, NOW)
    assert batch.column(0).buffers()[2].address == again.column(0).buffers()[2].address


def test_a_payload_batch_serialises_to_its_own_size():
    """The shared null columns do not inflate a small batch."""
    assert payload_batch(struct.pack("<2i", 0, 1), b"x", 1, NOW).serialize().size < 1500


@pytest.mark.parametrize("offsets", [(0, 5), (0, 2, 1), (0, 1), (-1, 0, 1), (0, 0, 100)])
def test_offsets_that_lead_astray_are_refused(offsets):
    """Offsets that are too few, decrease or leave the data are refused."""
    with pytest.raises(InvalidRequest):
        payload_batch(struct.pack(f"<{len(offsets)}i", *offsets), b"abc", 2, NOW)
