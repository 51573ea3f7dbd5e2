"""Topics of a broker: made once, reliable or not, known so after a restart and after a crash."""

from __future__ import annotations

import asyncio
import threading

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


def test_reliability_is_told_without_a_question_to_the_journal(tmp_path):
    """While the writer's thread is busy the answer comes all the same."""

    async def scene(topics, engine):
        topic = await topics.for_producer("/default/t", is_reliable=False)
        begun, told = threading.Event(), threading.Event()

        def keep_busy():
            begun.set()
            return told.wait(60)

        busy = asyncio.create_task(asyncio.to_thread(engine.log.queue.call, keep_busy))
        await asyncio.to_thread(begun.wait, 60)
        is_reliable = topics.is_reliable(topic)
        told.set()
        return is_reliable, await busy

    assert run(tmp_path, scene) == (False, True)


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
        return {id(topic) for topic in found}, engine.topics(), topics.is_reliable(found[0])

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


def test_parts_that_clients_make_exclude_the_whole_topic(tmp_path):
    """Parts come one by one, in any order; a topic of the whole's name cannot be there as well."""

    async def scene(topics, _engine):
        for index in (2, 0, 1):
            await topics.for_producer(f"/default/t-part-{index}", is_reliable=index != 1)
        await topics.make("/default/other", is_reliable=True)
        for name, partitions in (("t", 0), ("t", 2), ("other", 2), ("other-part-0", 0)):
            with pytest.raises((Refused, Conflict)):
                await topics.make(f"/default/{name}", is_reliable=True, partitions=partitions)
        kinds = [topics.is_reliable(topics.find(name)) for name in topics.parts("/default/t")]
        return topics.parts("/default/t"), kinds

    names, kinds = run(tmp_path, scene)
    assert names == [f"/default/t-part-{index}" for index in range(3)]
    assert kinds == [True, False, True]
    assert run(tmp_path, look_at_parts) == names


@pytest.mark.parametrize("index", [0, 1, 7])
def test_any_part_excludes_the_whole_topic_and_is_listed(tmp_path, index):
    """One part alone, whichever it is, is seen, also after a restart, until it is gone."""
    part = f"/default/t-part-{index}"

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


def test_parts_that_were_deleted_elsewhere_are_no_more(tmp_path):
    """The program around the broker deletes without telling; what is left is listed."""

    async def scene(topics, engine):
        for index in (1, 3, 4):
            await topics.for_producer(f"/default/t-part-{index}", is_reliable=True)
        engine.delete_topic("/default/t-part-3")
        assert topics.parts("/default/t") == ["/default/t-part-1", "/default/t-part-4"]
        for index in (1, 4):
            engine.delete_topic(f"/default/t-part-{index}")
        assert topics.parts("/default/t") == []
        await topics.make("/default/t", is_reliable=True)

    run(tmp_path, scene)


async def look_at_parts(topics, _engine):
    return topics.parts("/default/t")


@pytest.mark.parametrize("partitions", [0, 200])
def test_a_look_up_costs_the_same_for_any_number_of_parts(tmp_path, partitions):
    """One part that is there answers it; the list of all is made once, until topics change."""

    async def scene(topics, engine):
        if partitions:
            await topics.make("/default/t", is_reliable=True, partitions=partitions)
        for index in range(0 if partitions else 200):
            await topics.for_producer(f"/default/t-part-{index}", is_reliable=True)
        names = [f"/default/t-part-{index}" for index in range(200)]
        assert topics.parts("/default/t") == names
        looks, topic = [], engine.topic

        def counting(name):
            looks.append(name)
            return topic(name)

        engine.topic = counting
        for _ in range(10):
            assert topics.has("/default/t")
            assert topics.parts("/default/t") == names
        counted = len(looks)
        await topics.make("/default/u", is_reliable=True)
        del looks[:]
        assert topics.has("/default/t")
        counted += len(looks)
        assert topics.parts("/default/t") == names
        return counted

    assert run(tmp_path, scene) <= 11


def test_lists_of_parts_follow_what_is_made_and_deleted(tmp_path):
    """Whoever does it, the broker or the program around it: no list is older than the topics."""

    async def scene(topics, engine):
        found = []
        for index in (0, 1, 2):
            await topics.for_producer(f"/default/t-part-{index}", is_reliable=True)
            found.append((topics.has("/default/t"), len(topics.parts("/default/t"))))
        engine.create_topic("/default/t-part-3", loose_part=True)
        found.append((topics.has("/default/t"), len(topics.parts("/default/t"))))
        for index in range(4):
            engine.delete_topic(f"/default/t-part-{index}")
            topics.release(f"/default/t-part-{index}")
            found.append((topics.has("/default/t"), len(topics.parts("/default/t"))))
        return found

    counts = [1, 2, 3, 4, 3, 2, 1, 0]
    assert run(tmp_path, scene) == [(count > 0, count) for count in counts]


def test_nothing_is_kept_of_parts_that_could_not_be_made(tmp_path):
    """Names that were asked for in vain take no room."""

    async def scene(topics, _engine):
        for number in range(20):
            with pytest.raises(Refused):
                await topics.for_producer(f"/nope/t{number}-part-5", is_reliable=True)
        return topics._loose

    assert run(tmp_path, scene) == {}


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


def test_a_producer_makes_no_topic_where_it_may_not(tmp_path):
    """Without `topics.auto_create` an absent topic is not found, and one that is there is used."""

    async def scene(topics, engine):
        with pytest.raises(Refused) as caught:
            await topics.for_producer("/default/t", is_reliable=True)
        assert engine.topics() == []
        await topics.make("/default/t", is_reliable=True)
        found = await topics.for_producer("/default/t", is_reliable=True)
        return caught.value.status, found.name

    status, name = run(tmp_path, scene, **{"topics.auto_create": False})
    assert status == (Code.NOT_FOUND, "Unable to find the topic: /default/t")
    assert name == "/default/t"
