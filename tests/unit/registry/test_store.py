"""The durable registry: one change at a time, each in the log before it is visible."""

from __future__ import annotations

import asyncio
import json
import random
import threading

import pytest

import frazil
from frazil.errors import Conflict, InvalidRequest, Overloaded, Unavailable
from frazil.registry import IncompatibleSchema, NewSchema, SchemaStore
from frazil.registry import store as store_module
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


def staged(scene):
    """Return the test that runs a scene with the store of an empty directory."""

    def test(tmp_path):
        run(tmp_path, scene)

    test.__doc__ = scene.__doc__
    return test


def new(subject, definition=b"", kind="string"):
    return NewSchema(subject=subject, type=kind, definition=definition, now=1)


def subjects_of(store):
    return {each.subject.name: each.subject.schema_id for each in store.registry.subjects()}


def avro(*names, **more):
    fields = [{"name": name, "type": "int", **more} for name in names]
    return json.dumps({"type": "record", "name": "P", "fields": fields}).encode()


def noise(size):
    """Return a definition of bytes that do not get smaller."""
    return random.Random(7).randbytes(size)


def test_changes_at_once_are_made_one_after_the_other(tmp_path):
    """Forty registrations at the same time get forty ids, and all are in the log."""

    async def scene(store, engine):
        names = [f"s{number}" for number in range(40)]
        made = await asyncio.gather(*(store.register(new(name)) for name in names))
        stored = engine.states.items(StateTag.SCHEMA)
        assert {f"version:1:{name}" for name in names} <= set(stored)
        assert sorted(each.schema_id for each in made) == list(range(1, 41))
        return subjects_of(store)

    found = run(tmp_path, scene)
    assert len(found) == 40

    async def again(store, _engine):
        return subjects_of(store)

    assert run(tmp_path, again) == found


@staged
async def test_nothing_is_visible_before_it_is_durable(store, engine):
    """While the journal does not answer, readers see the registry without the change."""
    go_on = threading.Event()
    entered = threading.Event()

    def hold():
        entered.set()
        go_on.wait(WAIT_S)

    held = asyncio.create_task(asyncio.to_thread(engine.log.queue.call, hold))
    await asyncio.to_thread(entered.wait, WAIT_S)
    changing = asyncio.create_task(store.register(new("s")))
    for _ in range(20):
        assert subjects_of(store) == {}
    assert not changing.done()
    go_on.set()
    await held
    await changing
    assert subjects_of(store) == {"s": 1}


def test_a_change_that_nobody_waits_for_is_finished(tmp_path):
    """After a caller is cancelled registry and log agree, and the next change is possible."""

    async def scene(store, engine):
        for number in range(20):
            task = asyncio.create_task(store.register(new(f"s{number}")))
            for _ in range(number):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await store.register(new("last"))
        found = subjects_of(store)
        stored = engine.states.items(StateTag.SCHEMA)
        assert {f"subject:{name}" for name in found} == {
            key for key in stored if key.startswith("subject:")
        }
        assert "last" in found
        return found

    found = run(tmp_path, scene)

    async def again(store, _engine):
        return subjects_of(store)

    assert run(tmp_path, again) == found


def test_a_change_that_is_written_in_part_leads_nobody_astray(tmp_path, monkeypatch):
    """When the subject's entry is in the log and its version's is not, its id is not given again."""

    async def scene(store, _engine):
        monkeypatch.setattr("frazil.topic.states.BYTES_MAX", 4000)
        with pytest.raises(Overloaded, match="take too much room"):
            await store.register(new("large", noise(5000), "bytes"))
        made = await store.register(new("small"))
        assert made.schema_id == 2
        assert subjects_of(store) == {"small": 2}
        monkeypatch.undo()
        made = await store.register(new("large", noise(5000), "bytes"))
        assert (made.schema_id, made.version) == (1, 1)

    async def again(store, _engine):
        return subjects_of(store)

    run(tmp_path, scene)
    assert run(tmp_path, again) == {"large": 1, "small": 2}


def test_schemas_leave_room_for_others(tmp_path, monkeypatch):
    """Above their limit nothing is registered; what is deleted makes room, also after a restart."""
    monkeypatch.setattr(store_module, "BYTES_MAX", 6000)

    async def scene(store, _engine):
        await store.register(new("a", noise(5000), "bytes"))
        with pytest.raises(Overloaded, match="delete some versions"):
            await store.register(new("b", noise(5000), "bytes"))

    async def again(store, _engine):
        with pytest.raises(Overloaded, match="delete some versions"):
            await store.register(new("b", noise(5000), "bytes"))
        await store.change(lambda registry: registry.delete_version("a", 1))
        await store.register(new("b", noise(5000), "bytes"))
        assert subjects_of(store) == {"b": 2}

    run(tmp_path, scene)
    run(tmp_path, again)


def test_after_a_refusal_the_next_change_is_made(tmp_path):
    """A plan that raises changes nothing."""

    async def scene(store, _engine):
        def refuse(_registry):
            raise Conflict("no")

        for _ in range(3):
            with pytest.raises(Conflict):
                await store.change(refuse)
            with pytest.raises(InvalidRequest, match="not JSON"):
                await store.register(new("s", b"{", "avro"))
        return (await store.register(new("s"))).version

    assert run(tmp_path, scene) == 1


@staged
async def test_a_version_follows_the_latest_one_by_the_mode(store, engine):
    """The default mode is backward; with none even the type may change."""
    first = await store.register(new("a", avro("x"), "avro"))
    assert (await store.register(new("a", b" " + avro("x"), "avro"))) == first.__class__(
        1, 1, False, first.fingerprint
    )
    with pytest.raises(IncompatibleSchema) as caught:
        await store.register(new("a", avro("x", "y", "z"), "avro"))
    assert len(caught.value.reasons) == 2
    with pytest.raises(IncompatibleSchema, match="schema type changed from avro to string"):
        await store.register(new("a"))
    await store.change(lambda registry: registry.set_mode("a", "forward"))
    assert (await store.register(new("a", avro("x", "y"), "avro"))).version == 2
    await store.change(lambda registry: registry.set_mode("a", "full"))
    with pytest.raises(IncompatibleSchema, match="not full compatible with version 2"):
        await store.register(new("a", avro("z"), "avro"))
    await store.change(lambda registry: registry.set_mode("a", "none"))
    assert (await store.register(new("a"))).version == 3
    assert store.registry.schema(1).entry.type == "string"


@staged
async def test_compatibility_is_checked_without_registering(store, engine):
    """In the subject's mode or another, of the subject's type if none is named."""
    check = store.check_compatibility
    assert await check("new", "avro", avro("x")) == ()
    await store.register(new("a", avro("x"), "avro"))
    assert await check("a", "", avro("x", "y")) == (
        "backward: at $.y: the writer has no such field and it has no default",
    )
    assert await check("a", "avro", avro("x", "y"), "forward") == ()
    with pytest.raises(InvalidRequest, match="not JSON"):
        await check("a", "avro", b"{")
    with pytest.raises(InvalidRequest, match="Invalid schema type: ''"):
        await check("new", "", b"")
    with pytest.raises(InvalidRequest, match="too large"):
        await check("a", "avro", b" " * ((1 << 20) + 1))
    assert len(store.registry.versions("a")) == 1


@staged
async def test_a_closed_store_refuses_changes(store, engine):
    """Also one that waits for the sandbox."""
    waiting = asyncio.create_task(store.register(new("a", avro("x"), "avro")))
    await asyncio.sleep(0)
    await store.close()
    for work in (
        waiting,
        store.register(new("s")),
        store.register(new("s", avro("x"), "avro")),
        store.change(lambda registry: registry.set_mode("s", "none")),
    ):
        with pytest.raises(Unavailable, match="the schema registry is closed"):
            await work
