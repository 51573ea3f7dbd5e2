"""Ids of consumers: the same ones at all times, and gone with what they belong to."""

from __future__ import annotations

import asyncio
import itertools

import pytest

import frazil
from frazil.errors import Conflict, InvalidRequest
from frazil.model import topic_uid
from frazil.serve.danube import consumer_ids
from frazil.serve.danube.consumer_ids import ConsumerFacts, ConsumerIds, consumer_id
from frazil.topic import StateTag

SETTINGS = {"log.ballast_bytes": 0, "log.free_bytes_min": 0, "log.free_ratio_min": 0}


def run(path, scene):
    """Run a scene with the ids of a directory, which has a topic `t` and its id."""

    async def play(engine, uid):
        return await scene(ConsumerIds(engine), engine, uid)

    with frazil.open(path, **SETTINGS) as engine:
        topic = engine.create_topic("/default/t", exist_ok=True)
        return asyncio.run(play(engine, topic_uid(topic.runtime.state.spec)))


def facts(uid, name="c", *, topic="/default/t", subscription="s", kind=1, filters=()):
    return ConsumerFacts(uid, topic, subscription, name, kind, filters)


def test_no_two_consumers_share_the_text_of_an_id():
    """Each of topic, subscription and name counts, and where one ends and the next begins."""
    parts = ("", "a", "aa", "a1:a", ":", "é")
    made = [ConsumerFacts(*each) for each in itertools.product(parts, repeat=4)]
    identities = {consumer_id(each) for each in made}
    assert len(identities) == len(made)
    assert all(0 < identity < 1 << 53 for identity in identities)


def test_an_id_is_known_after_a_restart_with_all_that_it_stands_for(tmp_path):
    """Kind and patterns of keys come back with it; the newest ones count."""

    async def give(ids, _engine, uid):
        first = await ids.put(facts(uid, kind=0))
        assert await ids.put(facts(uid, kind=3, filters=("eu-*", "us"))) == first
        other = await ids.put(facts(uid, "d"))
        assert other != first
        return first, other

    async def look(ids, _engine, uid):
        return [ids.get(each) for each in given], ids.members("/default/t", "s"), uid

    given = run(tmp_path, give)
    found, members, uid = run(tmp_path, look)
    assert found == [facts(uid, kind=3, filters=("eu-*", "us")), facts(uid, "d")]
    assert sorted(members) == sorted(given)


def test_what_is_forgotten_stays_forgotten(tmp_path):
    """Ids that were removed are gone in the next life, too."""

    async def forget(ids, engine, uid):
        one = await ids.put(facts(uid, "one"))
        kept = await ids.put(facts(uid, "kept"))
        ended = await ids.put(facts(uid, "a", subscription="ended"))
        for each in (one, ended, 12345):
            ids.forget(each)
        return kept, len(ids), ids.subscriptions()

    async def look(ids, engine, _uid):
        return len(ids), ids.get(kept), sorted(engine.states.items(StateTag.CLIENT))

    kept, count, subscriptions = run(tmp_path, forget)
    assert (count, subscriptions) == (1, [("/default/t", "s")])
    count, found, keys = run(tmp_path, look)
    assert count == 1
    assert found.name == "kept"
    assert keys == [f"consumer/{kept:014x}"]


def test_a_topic_of_the_same_name_has_other_consumers(tmp_path):
    """What was stored for a topic that is gone is found stale at the start and removed."""

    async def give(ids, _engine, uid):
        return await ids.put(facts(uid))

    async def replace(_ids, engine, _uid):
        engine.delete_topic("/default/t")

    async def look(ids, engine, uid):
        return ids.get(given), ids.find(facts(uid)), engine.states.items(StateTag.CLIENT)

    given = run(tmp_path, give)
    run(tmp_path, replace)
    found, identity, stored = run(tmp_path, look)
    assert (found, stored) == (None, {})
    assert identity != given


def test_an_id_that_another_consumer_has_is_not_given(tmp_path, monkeypatch):
    """Of two consumers with one hash the second one is refused."""
    monkeypatch.setattr(consumer_ids, "consumer_id", lambda _facts: 7)

    async def scene(ids, _engine, uid):
        found = [await ids.put(facts(uid, "a")) for _ in range(2)]
        with pytest.raises(Conflict, match="choose another name"):
            await ids.put(facts(uid, "b"))
        return found

    assert run(tmp_path, scene) == [7, 7]


def test_what_cannot_be_stored_is_not_given(tmp_path):
    """A consumer that is too large has no id afterwards; one that was known is as it was."""

    async def scene(ids, _engine, uid):
        with pytest.raises(InvalidRequest):
            await ids.put(facts(uid, "x" * (1 << 20)))
        count = len(ids), ids.subscriptions()
        identity = await ids.put(facts(uid))
        with pytest.raises(InvalidRequest):
            await ids.put(facts(uid, filters=("y" * (1 << 20),)))
        return count, ids.get(identity) == facts(uid)

    assert run(tmp_path, scene) == ((0, []), True)
