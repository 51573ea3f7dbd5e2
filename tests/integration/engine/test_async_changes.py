"""Changes, look-ups and SQL under asyncio: the same rows and errors, and nothing holds the loop."""

from __future__ import annotations

import asyncio
import time

import pyarrow as pa
import pytest

from frazil.errors import Closed, Conflict, InvalidRequest, NotFound, Overloaded, Unavailable
from tests.integration.engine.test_async import run

COLUMNS = {"id": "long", "n": "long", "s": "string"}
SLOW = "SELECT sum(a.i * b.i) FROM range(300000) a(i), range(300000) b(i)"
"""A query of minutes."""
WAIT_S = 20.0


async def create(db, name="t", **options):
    return await db.create_topic(name, COLUMNS, primary_key="id", **options)


async def until(condition):
    """Wait for something that another thread does."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("partitions", [0, 4])
def test_changes_and_look_ups_make_the_same_rows(tmp_path, partitions):
    """Every form of every change works, with and without parts; look-ups and SQL see its effect."""

    async def main(db):
        topic = await create(db, partitions=partitions)
        await topic.insert(id=1, n=1, s="a")
        await topic.insert({"id": 2, "n": 1}, ack="fsynced")
        await topic.upsert({"id": 1, "n": 2, "s": "b"})
        await topic.upsert(id=3, n=3)
        await topic.update(1, {"n": 5})
        await topic.update("id", 2, {"s": "x"})
        await topic.update(id=2, n=6)
        await topic.delete(3)
        await topic.upsert(id=4, n=4)
        await topic.delete("id", 4)
        await topic.append_changes(
            pa.table({"id": [5, 5, 6], "n": [1, 2, 3], "_op": ["insert", "update", "upsert"]})
        )
        await topic.append_changes(iter([{"op": "d", "before": {"id": 6}, "after": None}]))
        expected = [
            {"id": 1, "n": 5, "s": "b"},
            {"id": 2, "n": 6, "s": "x"},
            *(None, None),
            {"id": 5, "n": 2, "s": None},
            None,
        ]
        assert [await topic.get(key) for key in range(1, 7)] == expected
        assert await topic.get_many(iter(range(1, 7))) == expected
        result = await db.query("SELECT id, n, s FROM t ORDER BY id")
        assert result.rows() == [tuple(row.values()) for row in expected if row]
        assert (await db.tiers.flush("t")).keys() == (await db.tiers.evict("t")).keys()
        assert await topic.get(2) == expected[1]
        plan = await db.explain("SELECT * FROM t WHERE n > 1")
        assert plan["path"] == "scan"

    run(main, tmp_path)


def test_errors_come_as_from_a_topic(tmp_path):
    """Wrong requests, unknown and existing keys are refused, and a closed engine says so."""

    async def main(db):
        topic = await create(db, unknown_key="error")
        await topic.insert(id=1, n=1)
        plain = await db.create_topic("plain")
        for call, error in (
            (lambda: topic.insert(id=1, n=2), Conflict),
            (lambda: topic.update(2, {"n": 1}), NotFound),
            (lambda: topic.delete(2), NotFound),
            (lambda: topic.upsert(id="x"), InvalidRequest),
            (lambda: topic.update(1), InvalidRequest),
            (topic.delete, InvalidRequest),
            (lambda: topic.upsert(id=1, ack="soon"), InvalidRequest),
            (lambda: topic.append_changes([]), InvalidRequest),
            (lambda: topic.append_changes(5), InvalidRequest),
            (lambda: topic.append_changes([{"op": "x"}]), InvalidRequest),
            (lambda: topic.get("x"), InvalidRequest),
            (lambda: plain.insert(id=1), InvalidRequest),
            (lambda: plain.get(1), InvalidRequest),
            (lambda: db.query("SELECT"), InvalidRequest),
            (lambda: db.query("SELECT * FROM nowhere"), NotFound),
            (lambda: db.tiers.flush("nowhere"), NotFound),
        ):
            with pytest.raises(error):
                await call()
        assert await topic.get_many([1, 2]) == [{"id": 1, "n": 1, "s": None}, None]
        await db.close()
        for call in (
            lambda: plain.append(b"x"),
            lambda: plain.append_many([b"x"]),
            lambda: anext(plain.tail()),
            lambda: topic.get(1),
            lambda: topic.upsert(id=1, n=1),
            lambda: topic.update(1, {"n": 1}),
            lambda: db.query("SELECT 1"),
        ):
            with pytest.raises(Closed):
                await call()

    run(main, tmp_path)


def test_a_change_that_waits_for_memory_holds_no_thread(tmp_path):
    """In the red zone look-ups and queries are answered while hundreds of changes wait."""

    async def main(db):
        topic = await create(db)
        parted = await create(db, "p", partitions=2)
        await topic.insert(id=1, n=1)
        pressure = db.engine.tiers.pressure
        assert pressure.level == 0
        pressure.add_source("test", lambda: 10 << 30)
        pressure.refresh()
        await until(lambda: pressure.level == 2)
        waiting = [asyncio.ensure_future(topic.update(1, {"n": n})) for n in range(100)]
        waiting += [asyncio.ensure_future(parted.append_changes([])) for _ in range(100)]
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in waiting)
        assert (await asyncio.wait_for(topic.get(1), 5))["n"] == 1
        refused = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(error, Overloaded) for error in refused)
        assert (await topic.get(1))["n"] == 1

    run(main, tmp_path, memory={"wait_s": 1.0})


def test_waiting_changes_go_on_when_there_is_room(tmp_path):
    """Changes that wait for room are stored as soon as there is some, on both ways."""

    async def main(db):
        topic = await create(db)
        await topic.insert(id=0, n=0)
        calls = [topic.upsert(id=key, n=1) for key in range(1, 100)]
        calls += [topic.update(0, {"n": n}) for n in range(20)]
        acks = await asyncio.gather(*calls)
        assert sorted(ack.offset for ack in acks) == list(range(1, 120))

    run(main, tmp_path, queue_records_max=2, queue_wait_s=30.0)


def test_a_query_leaves_the_loop_free(tmp_path):
    """While a long query runs, the loop publishes and answers other queries."""

    async def main(db):
        topic = await create(db)
        long = asyncio.ensure_future(db.query(SLOW))
        queries = db.engine.queries()
        await until(lambda: len(queries.running()) == 1)
        for key in range(20):
            await topic.upsert(id=key, n=key)
        assert (await db.query("SELECT count(*) FROM t")).rows() == [(20,)]
        assert not long.done()
        long.cancel()
        await until(lambda: not queries.running())

    run(main, tmp_path)


def test_a_cancelled_query_is_stopped_and_no_other(tmp_path):
    """Cancelling a task ends its query in the engine; an equal one of another task goes on."""

    async def main(db):
        await create(db)
        first = asyncio.ensure_future(db.query(SLOW))
        queries = db.engine.queries()
        await until(lambda: len(queries.running()) == 1)
        [kept] = queries.running()
        second = asyncio.ensure_future(db.query(SLOW))
        await until(lambda: len(queries.running()) == 2)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        await until(lambda: len(queries.running()) == 1)
        assert queries.running()[0].id == kept.id
        assert not first.done()
        db.engine.cancel_queries()
        with pytest.raises(Unavailable, match="cancelled"):
            await first

    run(main, tmp_path)


def test_a_query_cancelled_before_its_turn_never_runs(tmp_path):
    """A task that is cancelled while it waits for a slot leaves none taken."""

    async def main(db):
        await create(db)
        queries = db.engine.queries()
        long = [asyncio.ensure_future(db.query(SLOW)) for _ in range(4)]
        await until(lambda: len(queries.running()) == 4)
        waiting = asyncio.ensure_future(db.query(SLOW))
        await asyncio.sleep(0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        for task in long:
            task.cancel()
        await until(lambda: not queries.running())
        await asyncio.sleep(0.2)
        assert not queries.running()
        assert (await db.query("SELECT 1")).rows() == [(1,)]

    run(main, tmp_path)
