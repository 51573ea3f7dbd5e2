"""The asyncio face: the same calls and promises, cancelled tasks, a full queue, closed loops."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import frazil
from frazil.errors import InvalidRequest, NotFound, Overloaded
from tests.integration.engine.opening import open_small, small_settings


def run(main, path, **options):
    """Run a coroutine function with an open engine."""

    async def body():
        async with frazil.open_async(small_settings(path, **options)) as db:
            return await asyncio.wait_for(main(db), 60)

    return asyncio.run(body())


def test_the_async_calls_do_what_the_others_do(tmp_path):
    """Create, publish in all forms, read, hold, alter, describe and delete work under asyncio."""

    async def main(db):
        topic = await db.create_topic("t")
        assert (await topic.append(b"0")).offset == 0
        assert (await topic.append(b"1", key="k")).offset == 1
        assert (await topic.append_many([b"2", b"3"])).offset_last == 3
        table = await db.create_topic("u", {"n": "long"})
        import pyarrow as pa

        await table.append({"n": 0})
        await table.append(n=1)
        await table.append_arrow(pa.table({"n": [2, 3]}))
        await db.alter_topic("u", add={"x": "int"})
        await table.append(n=4, x=5)
        rows = [row["n"] async for batch in table.read() for row in batch.records()]
        assert rows == [0, 1, 2, 3, 4]
        await topic.hold("h", 1)
        await topic.advance("h", 2)
        assert topic.describe()["holds"] == {"h": 2}
        await topic.drop("h")
        parts = await db.create_topic("p", partitions=2)
        assert {(await parts.append(b"x")).part for _ in range(4)} == {0, 1}
        assert len(await parts.append_many([b"a", b"b"])) == 2
        assert (await db.append("auto", {"a": 1})).offset == 0
        assert (await db.append("words", a=1)).offset == 0
        assert db.describe("words")["kind"] == "table"
        assert "/default/auto" in db.topics()
        await db.delete_topic("auto")
        with pytest.raises(NotFound):
            db.topic("auto")
        with pytest.raises(InvalidRequest):
            await table.append({"n": "x"})
        with pytest.raises(InvalidRequest, match="ack"):
            await topic.append(b"x", ack="uploaded")
        first = await topic.append(b"p", producer="p", sequence=0)
        assert await topic.append(b"p", producer="p", sequence=0) == first
        return db.stats()["message_count"]

    assert run(main, tmp_path) == 4 + 5 + 6 + 1 + 1


def test_a_cancelled_task_does_not_disturb_others(tmp_path):
    """Cancelled publishes may or may not be stored; all others get their acks."""

    async def main(db):
        topic = await db.create_topic("t")
        tasks = [asyncio.create_task(topic.append(b"%d" % n)) for n in range(200)]
        await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        good = [each for each in results if isinstance(each, frazil.Ack)]
        assert len(good) >= 200 - len(tasks[::3])
        assert all(isinstance(each, frazil.Ack | asyncio.CancelledError) for each in results)
        tail = topic.tail()
        waiting = asyncio.create_task(anext(tail))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert topic._state.waiters == []
        assert (await topic.append(b"after")).offset >= len(good)

    run(main, tmp_path)


def test_a_tail_waits_for_what_comes(tmp_path):
    """An asyncio tail gets each record as it comes, ends after silence, and by `limit`."""

    async def main(db):
        topic = await db.create_topic("t")

        async def publish():
            for number in range(20):
                await topic.append(b"%d" % number)
                await asyncio.sleep(0.002)

        task = asyncio.create_task(publish())
        seen = [
            row["payload"]
            async for batch in topic.tail("earliest", timeout_s=0.5)
            for row in batch.records()
        ]
        await task
        assert seen == [b"%d" % number for number in range(20)]
        some = [batch.count async for batch in topic.tail(0, limit=3)]
        assert sum(some) == 3
        reader = topic.read(18)
        await topic.append(b"later")
        await topic.append_many([b"later", b"still"])
        assert sum([batch.count async for batch in reader]) == 2

    run(main, tmp_path)


def test_a_full_queue_makes_tasks_wait_then_refuses(tmp_path):
    """While the writer is stuck, a publish waits for room, then gets `Overloaded`."""

    async def main(db):
        topic = await db.create_topic("t")
        loop = asyncio.get_running_loop()
        stuck = loop.run_in_executor(None, db.engine.log.queue.call, lambda: time.sleep(0.6))
        await asyncio.sleep(0.05)
        tasks = [asyncio.create_task(topic.append(b"x")) for _ in range(20)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await stuck
        stored = [each for each in results if isinstance(each, frazil.Ack)]
        refused = [each for each in results if isinstance(each, Overloaded)]
        assert len(stored) == 4
        assert len(refused) == 16
        assert (await topic.append(b"y")).offset == 4

    run(main, tmp_path, queue_records_max=4, queue_wait_s=0.2)


def test_waiting_tasks_go_on_when_there_is_room(tmp_path):
    """A publish that waits for room is stored as soon as there is some."""

    async def main(db):
        topic = await db.create_topic("t")
        acks = await asyncio.gather(*(topic.append(b"x") for _ in range(300)))
        assert sorted(ack.offset for ack in acks) == list(range(300))

    run(main, tmp_path, queue_records_max=2, queue_wait_s=30.0)


def test_a_reader_of_an_ended_loop_does_not_stop_the_engine(engine):
    """A waiter left behind by a closed event loop does not fail the journal."""
    engine.create_topic("t")

    async def leave_behind():
        reader = frazil.AsyncEngine(engine).topic("t").tail()
        # News that come between two looks leave the reader's waiter in the list.
        reader._has_news = lambda: True
        assert await reader._wait_async(asyncio.get_running_loop())

    asyncio.run(leave_behind())
    assert [engine.topic("t").append(b"x").offset for _ in range(3)] == [0, 1, 2]
    assert engine.stats()["health"] == "ok"


def test_a_publisher_of_an_ended_loop_does_not_stop_the_engine(tmp_path):
    """A task that waited for room in vain and ended with its loop does not fail the journal."""
    with open_small(tmp_path, queue_records_max=1, queue_wait_s=0.05) as engine:
        topic = engine.create_topic("t")
        stuck = threading.Thread(target=engine.log.queue.call, args=(lambda: time.sleep(0.4),))
        stuck.start()
        time.sleep(0.05)

        async def leave_behind():
            calls = [frazil.AsyncEngine(engine).topic("t").append(b"x") for _ in range(3)]
            done, waiting = await asyncio.wait(
                [asyncio.ensure_future(call) for call in calls], timeout=0.15
            )
            assert any(isinstance(each.exception(), Overloaded) for each in done)
            assert waiting

        asyncio.run(leave_behind())
        stuck.join()
        assert topic.append(b"y").offset >= 1
        assert engine.stats()["health"] == "ok"
