"""Topics of a broker: made once, reliable or not, known so after a restart and after a crash."""

from __future__ import annotations

import asyncio

import pytest

import frazil
from frazil.errors import Conflict
from frazil.model import topic_uid
from frazil.serve.danube.statuses import Refused
from frazil.serve.danube.topics import Topics
from frazil.serve.grpc.codec import Code
from frazil.topic import StateTag

SETTINGS = {"log.ballast_bytes": 0, "log.free_bytes_min": 0, "log.free_ratio_min": 0}


def run(path, scene, **settings):
    """Run a scene with the topics of a directory."""

    async def play(engine):
        return await scene(Topics(engine), engine)

    with frazil.open(path, **SETTINGS, **settings) as engine:
        return asyncio.run(play(engine))


def test_a_restart_knows_which_topics_are_not_reliable(tmp_path):
    """What a topic was made as, whole or in parts, is what it is in the next process."""

    async def make(topics, _engine):
        await topics.for_producer("/default/stored", is_reliable=True)
        await topics.for_producer("/default/passing", is_reliable=False)
        await topics.make("/default/wide", is_reliable=False, partitions=2)
        return kinds(topics)

    def kinds(topics):
        names = ("stored", "passing", "wide-part-0", "wide-part-1")
        return [topics.is_reliable(topics.find(f"/default/{name}")) for name in names]

    async def look(topics, _engine):
        return kinds(topics)

    assert run(tmp_path, make) == [True, False, False, False]
    assert run(tmp_path, look) == [True, False, False, False]


@pytest.mark.parametrize("was_created", [True, False])
def test_a_crash_in_the_middle_of_making_is_completed(tmp_path, was_created):
    """The intent that a crash left makes the topic unreliable if it is there, and is gone."""

    async def crash(_topics, engine):
        engine.states.put(StateTag.POLICY, "unreliable-making//default/t", b"1")
        if was_created:
            engine.create_topic("/default/t")

    async def look(topics, engine):
        left = sorted(engine.states.items(StateTag.POLICY))
        if not was_created:
            await topics.for_producer("/default/t", is_reliable=True)
        topic = topics.find("/default/t")
        uid = topic_uid(topic.runtime.state.spec)
        return topics.is_reliable(topic), [key.replace(uid, "uid") for key in left]

    run(tmp_path, crash)
    expected = (False, ["unreliable/uid"]) if was_created else (True, [])
    assert run(tmp_path, look) == expected
    assert run(tmp_path, look) == expected


def test_a_name_is_made_once(tmp_path):
    """Producers that come together get one topic; who only makes topics hears of the conflict."""

    async def scene(topics, engine):
        found = await asyncio.gather(
            *(topics.for_producer("/default/t", is_reliable=False) for _ in range(5))
        )
        with pytest.raises(Conflict):
            await topics.make("/default/t", is_reliable=True)
        with pytest.raises(Refused, match="does not match"):
            await topics.for_producer("/default/t", is_reliable=True)
        with pytest.raises(Refused, match="already exists"):
            await topics.make("/default/t", is_reliable=True, partitions=2)
        with pytest.raises(Refused, match="Unable to find the namespace none"):
            await topics.make("/none/t", is_reliable=True)
        return {id(topic.runtime) for topic in found}, engine.topics(), topics.is_reliable(found[0])

    identities, names, is_reliable = run(tmp_path, scene)
    assert len(identities) == 1
    assert names == ["/default/t"]
    assert not is_reliable


def test_a_deleted_topic_leaves_nothing(tmp_path):
    """After `forget` a topic of the same name is what its maker says."""

    async def scene(topics, engine):
        topic = await topics.for_producer("/default/t", is_reliable=False)
        engine.delete_topic("/default/t")
        assert not topics.is_current(topic)
        await topics.forget(topic_uid(topic.runtime.state.spec))
        again = await topics.for_producer("/default/t", is_reliable=True)
        return topics.is_reliable(again), engine.states.items(StateTag.POLICY)

    assert run(tmp_path, scene) == (True, {})


def test_a_part_excludes_the_whole_topic_and_is_listed(tmp_path):
    """The first part alone is seen, also after a restart, until it is gone."""
    part = "/default/t-part-0"

    async def make(topics, engine):
        await topics.for_producer(part, is_reliable=True)
        await look(topics, engine)

    async def look(topics, _engine):
        assert topics.parts("/default/t") == [part]
        for partitions in (0, 1, 9):
            with pytest.raises(Refused, match=f"{part} already exists") as caught:
                await topics.make("/default/t", is_reliable=True, partitions=partitions)
            assert caught.value.code is Code.ALREADY_EXISTS
        with pytest.raises(Refused, match="already exists"):
            await topics.for_producer("/default/t", is_reliable=True)
        assert topics.parts("/default/t") == [part]

    async def remove(topics, engine):
        engine.delete_topic(part)
        topics.release(part)
        assert topics.parts("/default/t") == []
        await topics.for_producer("/default/t", is_reliable=True)
        with pytest.raises(Refused, match="/default/t already exists"):
            await topics.for_producer(part, is_reliable=True)

    run(tmp_path, make)
    run(tmp_path, look)
    run(tmp_path, remove)


def test_parts_behind_a_gap_are_topics_of_their_own(tmp_path):
    """Parts count from the first one up to the first gap."""

    async def scene(topics, engine):
        for index in (0, 1, 2, 4):
            await topics.for_producer(f"/default/t-part-{index}", is_reliable=True)
        found = [len(topics.parts("/default/t"))]
        for index in (1, 0):
            engine.delete_topic(f"/default/t-part-{index}")
            found.append(len(topics.parts("/default/t")))
        await topics.make("/default/t", is_reliable=True)
        return found, topics.parts("/default/t-part-4")

    assert run(tmp_path, scene) == ([3, 1, 0], ["/default/t-part-4"])


def test_parts_come_by_number_and_without_neighbours(tmp_path):
    """Parts that clients made are listed by index; names that merely begin alike are not."""

    async def scene(topics, engine):
        for number in range(11):
            await topics.for_producer(f"/default/foo-part-{number}", is_reliable=True)
        for name in ("foobar", "foo_np", "foo-part-x", "foobar2-part-0"):
            engine.create_topic(name, loose_part=True)
        assert topics.parts("/default/foo") == [f"/default/foo-part-{n}" for n in range(11)]
        assert topics.parts("/default/foobar") == ["/default/foobar"]
        assert topics.parts("/default/foobar2") == ["/default/foobar2-part-0"]
        assert topics.parts("/default/foo-part-2") == ["/default/foo-part-2"]
        assert topics.parts("/default/none") == []

    run(tmp_path, scene)
