"""The durable registry: one change at a time, each in the log before anybody sees it."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import tempfile
import threading

import pytest

import frazil
from frazil.errors import Conflict, Overloaded, Unavailable
from frazil.serve.danube import schema_store
from frazil.serve.danube.schema_store import SchemaStore
from frazil.topic import StateTag

SETTINGS = {"log.ballast_bytes": 0, "log.free_bytes_min": 0, "log.free_ratio_min": 0}
WAIT_S = 60


def run(path, scene):
    """Run a scene with the store of a directory."""

    async def play(engine):
        store = SchemaStore(engine.states)
        try:
            return await asyncio.wait_for(scene(store, engine), WAIT_S)
        finally:
            await store.close()

    with frazil.open(path, **SETTINGS) as engine:
        return asyncio.run(play(engine))


def registering(subject, definition=b"", kind="string"):
    return lambda registry: registry.register(subject, kind, definition, now=1)


def subjects_of(registry):
    return {line.subject: line.schema_id for line in registry.subjects()}


def noise(size):
    """Return a definition of bytes that do not get smaller."""
    return random.Random(7).randbytes(size)


def test_changes_at_once_are_made_one_after_the_other(tmp_path):
    """Forty registrations at the same time get forty ids, and all are in the log."""

    async def scene(store, engine):
        names = [f"s{number}" for number in range(40)]
        made = await asyncio.gather(*(store.change(registering(name)) for name in names))
        stored = engine.states.items(StateTag.SCHEMA)
        assert {f"version:1:{name}" for name in names} <= set(stored)
        assert sorted(each.schema_id for each in made) == list(range(1, 41))
        return await store.read(subjects_of)

    found = run(tmp_path, scene)
    assert len(found) == 40

    async def again(store, _engine):
        return await store.read(subjects_of)

    assert run(tmp_path, again) == found


def test_nothing_is_visible_before_it_is_durable(tmp_path):
    """While the journal does not answer, readers see the registry without the change."""

    async def scene(store, engine):
        go_on = threading.Event()
        entered = threading.Event()

        def hold():
            entered.set()
            go_on.wait(WAIT_S)

        held = asyncio.create_task(asyncio.to_thread(engine.log.queue.call, hold))
        await asyncio.to_thread(entered.wait, WAIT_S)
        changing = asyncio.create_task(store.change(registering("s")))
        for _ in range(20):
            assert await store.read(subjects_of) == {}
        assert not changing.done()
        go_on.set()
        await held
        await changing
        assert await store.read(subjects_of) == {"s": 1}

    run(tmp_path, scene)


def test_a_change_that_nobody_waits_for_is_finished(tmp_path):
    """A caller who goes away leaves registry and log alike, and the next change is possible."""

    async def scene(store, engine):
        for number in range(20):
            task = asyncio.create_task(store.change(registering(f"s{number}")))
            for _ in range(number):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await store.change(registering("last"))
        found = await store.read(subjects_of)
        stored = engine.states.items(StateTag.SCHEMA)
        assert {f"subject:{name}" for name in found} == {
            key for key in stored if key.startswith("subject:")
        }
        assert "last" in found
        return found

    found = run(tmp_path, scene)

    async def again(store, _engine):
        return await store.read(subjects_of)

    assert run(tmp_path, again) == found


def test_a_change_that_is_written_in_part_leads_nobody_astray(tmp_path, monkeypatch):
    """When the subject's entry is in the log and its version's is not, its id is not given again."""

    async def scene(store, _engine):
        monkeypatch.setattr("frazil.topic.states.BYTES_MAX", 4000)
        with pytest.raises(Overloaded, match="take too much room"):
            await store.change(registering("large", noise(5000), "bytes"))
        made = await store.change(registering("small"))
        assert made.schema_id == 2
        assert await store.read(subjects_of) == {"small": 2}
        monkeypatch.undo()
        made = await store.change(registering("large", noise(5000), "bytes"))
        assert (made.schema_id, made.version) == (1, 1)

    async def again(store, _engine):
        return await store.read(subjects_of)

    run(tmp_path, scene)
    assert run(tmp_path, again) == {"large": 1, "small": 2}


def test_schemas_leave_room_for_others(tmp_path, monkeypatch):
    """Above their limit nothing is registered; what is deleted makes room, also after a restart."""
    monkeypatch.setattr(schema_store, "BYTES_MAX", 6000)

    async def scene(store, _engine):
        await store.change(registering("a", noise(5000), "bytes"))
        with pytest.raises(Overloaded, match="delete some versions"):
            await store.change(registering("b", noise(5000), "bytes"))

    async def again(store, _engine):
        with pytest.raises(Overloaded, match="delete some versions"):
            await store.change(registering("b", noise(5000), "bytes"))
        await store.change(lambda registry: registry.delete_version("a", 1))
        await store.change(registering("b", noise(5000), "bytes"))
        assert await store.read(subjects_of) == {"b": 2}

    run(tmp_path, scene)
    run(tmp_path, again)


def test_a_refusal_leaves_the_way_free(tmp_path):
    """After plans and questions that raise, others are answered."""

    async def scene(store, _engine):
        def refuse(_registry):
            raise Conflict("no")

        for _ in range(3):
            with pytest.raises(Conflict):
                await store.read(refuse)
            with pytest.raises(Conflict):
                await store.change(refuse)
        return (await store.change(registering("s"))).version

    assert run(tmp_path, scene) == 1


def test_who_gives_up_waiting_does_not_end_the_turn(tmp_path):
    """Nothing becomes visible under a question that is still being answered, wanted or not."""

    async def scene(store, engine):
        go_on, entered, finish, reading = (threading.Event() for _ in range(4))

        def hold():
            entered.set()
            go_on.wait(WAIT_S)

        def look(registry):
            before = subjects_of(registry)
            reading.set()
            finish.wait(WAIT_S)
            seen.append((before, subjects_of(registry)))

        seen = []
        held = asyncio.create_task(asyncio.to_thread(engine.log.queue.call, hold))
        await asyncio.to_thread(entered.wait, WAIT_S)
        change = asyncio.create_task(store.change(registering("s")))
        await store.read(subjects_of)
        looking = asyncio.create_task(store.read(look))
        await asyncio.to_thread(reading.wait, WAIT_S)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        go_on.set()
        await held
        # By now the entries are durable, and the change waits for its turn alone.
        await asyncio.to_thread(engine.states.items, StateTag.SCHEMA)
        await asyncio.sleep(0.05)
        assert not change.done()
        finish.set()
        await change
        assert seen == [({}, {})]
        assert await store.read(subjects_of) == {"s": 1}

    run(tmp_path, scene)


def test_a_closed_store_says_so(tmp_path):
    """After the close questions and changes are refused, not left waiting."""

    async def scene(store, _engine):
        await store.close()
        with pytest.raises(Unavailable):
            await store.read(subjects_of)
        with pytest.raises(Unavailable):
            await store.change(registering("s"))

    run(tmp_path, scene)


def test_topics_whose_records_are_looked_at_are_known_by_heart(tmp_path):
    """The list follows every change of a policy, and is there after a restart."""

    async def scene(store, _engine):
        await store.change(registering("s"))
        await store.change(lambda r: r.assign_topic("/n/a", "s"))
        assert store.checks == {"/n/a": False}
        await store.change(lambda r: r.update_policy("/n/a", "enforce", check_payload=True))
        await store.change(lambda r: r.configure_topic("/n/b", "s", "none", check_payload=True))
        await store.change(lambda r: r.configure_topic("/n/c", "s", "", check_payload=False))
        assert store.checks == {"/n/a": True, "/n/c": False}
        await store.change(lambda r: r.forget_topic("/n/c"))

    async def again(store, _engine):
        return store.checks

    run(tmp_path, scene)
    assert run(tmp_path, again) == {"/n/a": True}


def test_nothing_keeps_the_process_alive():
    """A process ends although the thread of its store is at something that never does."""
    script = """
import asyncio, sys, threading
import frazil
from frazil.serve.danube import schema_store

schema_store.ENDING_S = schema_store.PLANNING_S = 0.05
reading = threading.Event()

def look(registry):
    reading.set()
    threading.Event().wait()

async def play(engine):
    store = schema_store.SchemaStore(engine.states)
    asked = [asyncio.create_task(each) for each in (store.read(look), store.change(look))]
    await asyncio.to_thread(reading.wait)
    await store.close()
    told = await asyncio.gather(*asked, return_exceptions=True)
    print([type(each).__name__ for each in told])

settings = {"log.ballast_bytes": 0, "log.free_bytes_min": 0, "log.free_ratio_min": 0}
with frazil.open(sys.argv[1], **settings) as engine:
    asyncio.run(play(engine))
print("the end")
"""
    with tempfile.TemporaryDirectory() as directory:
        ended = subprocess.run(
            [sys.executable, "-c", script, directory],
            check=False,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
    assert ended.stdout == "['Unavailable', 'Unavailable']\nthe end\n", ended.stderr
    assert ended.returncode == 0


def test_a_check_stops_when_the_store_is_closed(tmp_path):
    """A check that is under way gives no verdict: it is told to stop."""

    async def scene(store, _engine):
        work = store.new_work()
        going = threading.Event()

        def check(_registry):
            while True:
                going.set()
                work.charge(0)

        asked = asyncio.create_task(store.read(check))
        await asyncio.to_thread(going.wait, WAIT_S)
        await store.close()
        with pytest.raises(Unavailable):
            await asked

    with pytest.MonkeyPatch.context() as patch:
        # The close waits for the thread; were it not told, this would take longer than allowed.
        patch.setattr(schema_store, "ENDING_S", 2 * WAIT_S)
        patch.setattr("frazil.registry.work._POLL_UNITS", 0)
        run(tmp_path, scene)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_in_a_question_does_not_end_the_answers(tmp_path):
    """Who asked gets the error, and the next question is answered."""

    async def scene(store, _engine):
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await store.read(lambda _registry: 1 // 0)
            assert await store.read(subjects_of) == {}

    run(tmp_path, scene)
