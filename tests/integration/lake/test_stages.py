"""Values reach the table exactly, or the record is rejected whole, with everything it had."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from frazil.lake import decode_original
from frazil.schema import Message, declare_schema, message_batch
from tests.integration.lake.spark_world import MARKS

pytestmark = MARKS

READERS = ("by_spark", "by_pyiceberg", "by_duckdb")
BEYOND_MS = 1 << 60
"""Milliseconds that have no microseconds in 64 bits."""


def test_messages_become_envelope_columns(world):
    """A message topic's table has the payload and the envelope, unsigned numbers whole."""
    topic = world.topic()
    messages = [
        Message(
            b"\x00\xff", "key", {"a": "1", "b": ""}, 5, "producer", 2**64 - 1, 2**63, 2**32 - 1
        ),
        Message(b""),
    ]
    batch = pa.Table.from_batches([message_batch(messages, 7)])
    assert topic.commit(topic.plan(topic.stage(batch))).rows_out == 2
    for reader in READERS:
        first, second = getattr(topic, reader)().to_pylist()
        assert (first["payload"], first["key"]) == (b"\x00\xff", "key")
        assert dict(first["attributes"]) == {"a": "1", "b": ""}
        assert (first["producer_id"], first["schema_id"]) == (2**64 - 1, 2**63)
        assert first["schema_version"] == 2**32 - 1
        assert (second["payload"], second["key"], second["producer_id"]) == (b"", None, None)


def misfits():
    """Rows of which the second, the third and the last do not fit."""
    schema = declare_schema(
        {
            "id": "long",
            "at": "timestamp[ms, UTC]",
            "price": "decimal(5,2)",
            "nest": "struct<l:list<timestamp[ms]>,m:map<int,decimal(4,1)>>",
            "data": "bytes",
            "f": "double",
            "day": "date",
            "us": "timestamp",
        }
    )
    table = pa.table(
        {
            "id": pa.array(range(5), pa.int64()),
            "at": pa.array([0, BEYOND_MS, 5, 6, None], pa.int64()).view(pa.timestamp("ms", "UTC")),
            "price": _decimals(5, 2, [99999, 1, 8_000_000, 3, 4]),
            "nest": _nested([[1, None], [2], [3], [4], [5, -BEYOND_MS]]),
            "data": [b"\x00\xff", b"\x01", None, b"", b"\x02"],
            "f": [float("nan"), float("inf"), 0.1, -0.0, 2.5],
            "day": pa.array([0, 1, 2, 3, 4], pa.int32()).cast(pa.date32()),
            "us": pa.array([0, 1, 2, 3, -1], pa.int64()).view(pa.timestamp("us")),
        }
    )
    return schema, table


def _decimals(precision, scale, unscaled):
    data = b"".join(value.to_bytes(16, "little", signed=True) for value in unscaled)
    kind = pa.decimal128(precision, scale)
    return pa.Array.from_buffers(kind, len(unscaled), [None, pa.py_buffer(data)])


def _nested(lists):
    times = pa.array(lists, pa.list_(pa.int64())).cast(pa.list_(pa.timestamp("ms")))
    maps = pa.array(
        [[(i, Decimal("1.5"))] for i in range(len(lists))], pa.map_(pa.int32(), pa.decimal128(4, 1))
    )
    return pa.StructArray.from_arrays([times, maps], ["l", "m"])


def test_records_that_do_not_fit_are_rejected_whole(world):
    """The others get in; a reject has its reason, its column and all of its values."""
    schema, staged = misfits()
    topic = world.topic(schema)
    plan = topic.plan(topic.stage(staged))
    result = topic.commit(plan)
    assert (result.state, result.rows_in) == ("committed", 5)
    assert (result.rows_out, result.rows_rejected) == (2, 3)
    assert (topic.offsets(), topic.by_spark().to_pylist()[1]["price"]) == ([0, 3], Decimal("0.03"))
    rejects = topic.rejects()
    assert [(each["_offset"], each["field"]) for each in rejects] == [
        (1, "at"),
        (2, "price"),
        (4, "nest"),
    ]
    assert "microseconds" in rejects[0]["reason"]
    assert "digits" in rejects[1]["reason"]
    assert {each["stage"] for each in rejects} == {"validate"}
    first = decode_original(rejects[0]["original"], schema)
    assert (first["id"], first["at"], first["data"]) == (1, BEYOND_MS, b"\x01")
    assert first["f"] == float("inf")
    assert decode_original(rejects[1]["original"], schema)["price"] == Decimal("80000.00")
    last = decode_original(rejects[2]["original"], schema)
    assert last["nest"] == {"l": [5, -BEYOND_MS], "m": [(4, Decimal("1.5"))]}
    assert (last["at"], last["us"], last["day"]) == (None, -1, 4)
    again = topic.commit(plan, remembered={})
    assert again.state == "already"
    assert len(topic.rejects()) == 3


def test_many_rejects_stop_a_plan(world):
    """Of 5,000 records 150 do not fit: nothing is committed."""
    topic = world.topic(declare_schema({"at": "timestamp[ms, UTC]"}))
    times = [BEYOND_MS if n < 300 and n % 2 else n for n in range(5_000)]
    column = pa.array(times, pa.int64()).view(pa.timestamp("ms", "UTC"))
    result = topic.commit(topic.plan(topic.stage(pa.table({"at": column}))))
    assert (result.reason, topic.snapshots()) == ("too_many_rejects", [])
    assert "rejects=150 records=5000" in result.message


def test_a_crash_between_rejects_and_rows_doubles_neither(world):
    """The side table is ahead of main after a crash; the next run adds the rows alone."""
    schema, staged = misfits()
    topic = world.topic(schema)
    plan = topic.plan(topic.stage(staged))

    class Crash(Exception):
        """The worker dies."""

    def die(step):
        if step == "committing":
            raise Crash

    with pytest.raises(Crash):
        topic.commit(plan, progress=die)
    assert (len(topic.rejects()), topic.snapshots()) == (3, [])
    assert topic.commit(plan).rows_rejected == 3
    assert (len(topic.rejects()), topic.offsets()) == (3, [0, 3])


def test_paths_are_taken_as_they_are(world):
    """A data directory with signs that Spark takes for patterns is read all the same."""
    topic = world.topic({"id": "long"})
    odd = topic.directory / "a [b] {c,d} *? %20 ü"
    odd.mkdir()
    topic.directory = odd
    assert topic.commit(topic.plan(topic.stage([{"id": 1}]))).rows_out == 1
    assert topic.by_spark("id").to_pylist() == [{"id": 1}]
