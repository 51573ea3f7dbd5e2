"""Calls that are wrong, large, changed underway or cancelled never harm what is stored."""

from __future__ import annotations

import asyncio
import threading

import pyarrow as pa
import pytest

from frazil.engine import AsyncEngine
from frazil.errors import InvalidRequest, Overloaded, Unavailable
from frazil.schema import Message
from tests.integration.engine.opening import open_small, payloads_of, rows_of


@pytest.mark.parametrize(
    "options",
    [
        {"producer": "\ud800", "sequence": 0},
        {"producer": ["a"], "sequence": 0},
        {"producer": b"abc", "sequence": 0},
        {"producer": ("x",), "sequence": 0},
        {"producer": "", "sequence": 0},
        {"producer": "x" * 201, "sequence": 0},
        {"producer": 7, "sequence": 0},
        {"producer": "p", "sequence": "0"},
        {"producer": "p", "sequence": 0.0},
        {"producer": "p", "sequence": True},
        {"producer": "p", "sequence": -1},
        {"producer": "p", "sequence": 2**63},
        {"producer": "p"},
        {"sequence": 1},
        {"producer": "p", "sequence": 0, "producer_epoch": "1"},
        {"producer": "p", "sequence": 0, "producer_epoch": 2**32},
        {"producer": "p", "sequence": 0, "producer_epoch": None},
        {"ack": ["fsynced"]},
        {"ack": b"fsynced"},
        {"ack": 1},
    ],
)
def test_wrong_options_are_refused_before_anything_is_queued(tmp_path, options):
    """Whatever an option is, the call is refused alone: the journal goes on and opens again."""
    with open_small(tmp_path) as db:
        topic = db.create_topic("t")
        topic.append(b"precious")
        for call in (
            lambda: topic.append(b"x", **options),
            lambda: topic.append_many([b"x"], **options),
            lambda: topic.append_arrow(pa.table({"payload": [b"x"]}), **options),
        ):
            with pytest.raises(InvalidRequest):
                call()
        topic.append(b"after")
    with open_small(tmp_path) as db:
        assert payloads_of(db.topic("t")) == [b"precious", b"after"]


@pytest.mark.parametrize("records", ["text", b"bytes", bytearray(b"x"), {"payload": b"x"}, 7, None])
@pytest.mark.parametrize("partitions", [0, 2])
def test_many_records_must_be_a_list_of_them(engine, records, partitions):
    """One record given to append_many is refused with a word about what it takes."""
    topic = engine.create_topic("t", partitions=partitions)
    with pytest.raises(InvalidRequest, match="iterable of records"):
        topic.append_many(records)
    assert topic.stats()["message_count"] == 0


@pytest.mark.parametrize("change", [{"add": {"c": pa.string()}}, {"drop": ["a"]}])
def test_arrow_data_keeps_its_columns_while_the_topic_is_altered(engine, change):
    """All batches of a call are stored under the columns they were converted to."""
    topic = engine.create_topic("t", {"a": pa.string(), "b": pa.string()})
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])

    def batches():
        yield pa.record_batch([["a1"], ["b1"]], schema=schema)
        engine.alter_topic("t", **change)
        yield pa.record_batch([["a2"], ["b2"]], schema=schema)

    topic.append_arrow(pa.RecordBatchReader.from_batches(schema, batches()))
    assert [row["b"] for row in rows_of(topic)] == ["b1", "b2"]
    if "add" in change:
        assert [(row["a"], row["c"]) for row in rows_of(topic)] == [("a1", None), ("a2", None)]


def queue_held(db):
    """Keep the journal's thread busy until the returned event is set."""
    release, busy = threading.Event(), threading.Event()

    def wait():
        busy.set()
        release.wait(10)

    threading.Thread(target=lambda: db.log.queue.call(wait), daemon=True).start()
    assert busy.wait(10)
    return release


def test_what_was_sent_cannot_be_changed_afterwards(engine):
    """The caller's dicts and lists are its own again when `send` returns."""
    messages = engine.create_topic("m")
    table = engine.create_topic("t", {"l": pa.list_(pa.int64()), "m": pa.map_("string", "int64")})
    release = queue_held(engine)
    attributes, listed, mapped = {"k": "v"}, [1, 2], {"x": 1}
    message = Message(payload=b"z", attributes=attributes)
    sent = [
        messages.send(b"x", attributes=attributes),
        messages.send({"payload": b"y", "attributes": attributes}),
        messages.send(message),
        table.send({"l": listed, "m": mapped}),
    ]
    attributes["bad"] = 7
    listed.append("no number")
    mapped["y"] = "no number"
    release.set()
    for pending in sent:
        pending.result()
    assert [dict(row["attributes"]) for row in rows_of(messages)] == [{"k": "v"}] * 3
    assert rows_of(table)[0]["l"] == [1, 2]
    assert rows_of(table)[0]["m"] == [("x", 1)]


def test_a_cancelled_read_loses_no_batch(tmp_path):
    """What the worker fetched for a call that was cancelled is what the next call returns."""

    async def run():
        db = AsyncEngine(open_small(tmp_path))
        topic = await db.create_topic("t")
        for number in range(5):
            await topic.append(b"%d" % number)
        source = db.engine.log.source
        read, slow, running, most = source.read, threading.Event(), [], []

        def read_slowly(*arguments, **options):
            running.append(1)
            most.append(len(running))
            slow.wait(10)
            try:
                return read(*arguments, **options)
            finally:
                running.pop()

        source.read = read_slowly
        reader = topic.tail("earliest", bytes_max=1)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(reader), 0.05)
        slow.set()
        await asyncio.sleep(0.1)
        seen = [(await asyncio.wait_for(anext(reader), 10)).offset for _ in range(5)]
        reader.close()
        await db.close()
        assert seen == [0, 1, 2, 3, 4]
        assert max(most) == 1

    asyncio.run(run())


def test_two_calls_at_once_share_one_fetch(tmp_path):
    """Concurrent reads of one reader each get a batch of their own, in order."""

    async def run():
        db = AsyncEngine(open_small(tmp_path))
        topic = await db.create_topic("t")
        for number in range(2):
            await topic.append(b"%d" % number)
        async with topic.read("earliest", bytes_max=1) as reader:
            found = await asyncio.wait_for(asyncio.gather(anext(reader), anext(reader)), 10)
        await db.close()
        assert sorted(batch.offset for batch in found) == [0, 1]

    asyncio.run(run())


def full_at(db, number):
    """Let the frame with this number of the next call be refused as on a full disk."""
    commit = db.log.journal.commit

    def commit_some(entries, deliver):
        if len(entries) <= number:
            commit(entries, deliver)
            return
        commit(entries[:number], deliver)
        full = Overloaded("the disk is full, nothing was written; free space, then retry")
        waiters = [entry[5] for entry in entries[number:]]
        deliver(waiters, [full] * len(waiters))

    db.log.journal.commit = commit_some


def test_a_call_that_was_written_in_part_says_so(engine, topic):
    """If some frames of a call are written, the error never says that nothing was."""
    records = [b"x" * 30_000] * 6
    full_at(engine, 1)
    with pytest.raises(Unavailable, match="part of the call") as caught:
        topic.append_many(records)
    assert caught.value.details["outcome"] == "unknown"
    assert caught.value.details["offsets_written"] == "0-1"
    assert caught.value.details["frames"] == 3
    assert isinstance(caught.value.__cause__, Overloaded)
    assert topic.stats()["message_count"] == 2


def test_a_producer_s_call_is_never_larger_than_what_is_remembered(topic):
    """A call that could not be sent again is refused at once; the largest that fits repeats."""
    records = [b"x" * 30_000] * 12
    with pytest.raises(InvalidRequest, match="sequence"):
        topic.append_many([b"x", b"y"], producer="p", sequence=2**63 - 1)
    with pytest.raises(InvalidRequest, match="split it") as caught:
        topic.append_many(records, producer="p", sequence=0)
    assert caught.value.details["frames"] == 6
    assert caught.value.details["frames_max"] == 5
    assert topic.stats()["message_count"] == 0
    first = topic.append_many(records[:10], producer="p", sequence=0)
    again = topic.append_many(records[:10], producer="p", sequence=0)
    assert (again.offset, again.offset_last) == (first.offset, first.offset_last) == (0, 9)
    assert topic.append_many(records[10:], producer="p", sequence=10).offset == 10
    topic.append_many(records)
    assert topic.stats()["message_count"] == 24
