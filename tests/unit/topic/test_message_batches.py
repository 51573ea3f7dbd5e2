"""Messages in Arrow batches get the checks of single ones."""

from __future__ import annotations

import pyarrow as pa
import pytest

from frazil.errors import InvalidRequest
from frazil.schema import IngestLimits, Message, check_message, message_batch
from frazil.topic.runtime import check_message_batch

NOW = 1_700_000_000_000_000
LIMITS = IngestLimits(
    message_bytes_max=100, key_bytes_max=10, attributes_max=2, attributes_bytes_max=40
)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"attributes": {"a": "1", "b": "2"}}, ""),
        ({"attributes": {}}, ""),
        ({"attributes": {"a": "1", "b": "2", "c": "3"}}, "too many attributes"),
        ({"attributes": {"a": "x" * 40}}, "attributes are too large"),
        ({"attributes": {"ä": "x" * 38}}, ""),
        ({"key": "k" * 11}, "key is too large"),
        ({"producer_name": "p" * 11}, "producer_name is too large"),
        ({"payload": b"x" * 101}, "message is too large"),
        ({"payload": b"x" * 95, "key": "123456"}, "message is too large"),
        ({"payload": b"x" * 80, "attributes": {"a": "x" * 20}}, "message is too large"),
        ({"publish_time": -1}, "below zero"),
        ({"publish_time": NOW + 2 * 3_600_000_000}, "future"),
    ],
)
@pytest.mark.parametrize("sliced", [False, True])
def test_a_batch_is_refused_where_the_message_alone_is(fields, words, sliced):
    """The same limits hold, the row is named, and slices of larger batches count right."""
    message = Message(**{"payload": b"p", "publish_time": NOW, **fields})
    plain = Message(b"q", attributes={"a": "b"}, publish_time=NOW)
    bare = Message(b"r", publish_time=NOW)
    around = Message(b"s", attributes={str(n): "x" * 90 for n in range(9)}, publish_time=NOW)
    batch = message_batch([around, plain, bare, message, plain, around], NOW).slice(1, 4)
    if not sliced:
        batch = pa.RecordBatch.from_pylist(batch.to_pylist(), schema=batch.schema)
    if not words:
        assert check_message(message, LIMITS, NOW) > 0
        check_message_batch(batch, LIMITS, NOW)
        return
    with pytest.raises(InvalidRequest):
        check_message(message, LIMITS, NOW)
    with pytest.raises(InvalidRequest, match=words) as refused:
        check_message_batch(batch, LIMITS, NOW)
    assert refused.value.details["row"] == 2


def test_attributes_without_a_value_are_refused():
    """Single messages cannot have them either."""
    batch = message_batch([Message(b"p", attributes={"a": "b"}, publish_time=NOW)], NOW)
    empty = pa.array([[("a", None)]], batch.schema.field("attributes").type)
    place = batch.schema.get_field_index("attributes")
    with pytest.raises(InvalidRequest, match="must be a string"):
        check_message_batch(batch.set_column(place, "attributes", empty), LIMITS, NOW)
