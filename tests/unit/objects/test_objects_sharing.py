"""Who waits for an upload is served in turn, and is not forgotten whatever goes wrong."""

from __future__ import annotations

import threading
import types

import pytest

from frazil.errors import CorruptionError, Unavailable
from frazil.objects.shared import SharedOutcome
from frazil.objects.sharing import PROBE_S, Sharing
from frazil.objects.troubles import Troubles
from frazil.topic import TierWaits
from tests.support import SimulatedClock
from tests.unit.objects.objects_world import ObjectsWorld

WAIT_S = 60


class OnePlace:
    """Uploads with room for one topic: the first one that is named."""

    def __init__(self):
        self.served = []
        self.reached = {}
        self.bugs = 0
        self.error = None

    def upload(self, wanted):
        if self.bugs:
            self.bugs -= 1
            raise KeyError("a bug")
        if self.error is not None:
            return SharedOutcome(failures=dict.fromkeys(wanted, self.error))
        topic, end = next(iter(wanted.items()))
        self.served.append(topic)
        self.reached[topic] = end
        return SharedOutcome(uploaded={topic: end}, later=set(wanted) - {topic})


class Known(Troubles):
    """The troubles of topics, as an uploader knows them."""

    @property
    def troubles(self):
        return self.all()

    def retry(self, topic):
        self.clear(topic)


class Waiting:
    """A topic that somebody waits for, again and again."""

    def __init__(self, topic, sharing, store):
        self._topic = topic
        self._store = store
        self.waits = TierWaits(lambda: sharing.ask(topic), timeout_s=WAIT_S)
        self.stopped = ""
        self.end = 0

    def publish(self):
        self.end += 1
        self.waits.ask(-1, self.end)

    def note(self):
        self.waits.grew(-1, self._store.reached.get(self._topic, 0))


@pytest.fixture
def scene():
    clock = SimulatedClock(1)
    topics, store, uploader = {}, OnePlace(), Known(clock)
    own = {"clock": clock, "linger_s": 0.0, "noted": lambda _topic: None, "hurry": lambda: None}
    sharing = Sharing(topics, uploader, store, **own)
    topics.update({number: Waiting(number, sharing, store) for number in (1, 2, 3)})
    return types.SimpleNamespace(
        sharing=sharing, topics=topics, store=store, clock=clock, uploader=uploader
    )


def test_who_got_something_lets_the_others_go_first(scene):
    """A topic that publishes without a pause does not keep those behind it from being served."""
    for topic in scene.topics.values():
        topic.publish()
    for _ in range(6):
        assert scene.sharing.serve()
        scene.topics[scene.store.served[-1]].publish()
    assert scene.store.served == [1, 2, 3, 1, 2, 3]


def test_a_bug_does_not_let_waiters_be_forgotten(scene):
    """The next run serves who waited when the last one failed, though nobody asks again."""
    scene.store.bugs = 1
    scene.topics[2].publish()
    with pytest.raises(KeyError, match="a bug"):
        scene.sharing.run()
    served = threading.Event()
    scene.topics[2].waits.watch(-1, 1, served.set)
    running = threading.Thread(target=scene.sharing.run)
    running.start()
    assert served.wait(WAIT_S)
    scene.sharing.stop()
    running.join(WAIT_S)
    assert not running.is_alive()


@pytest.mark.parametrize("kind", [Unavailable, CorruptionError])
def test_who_waits_for_a_store_that_is_away_is_tried_often(scene, kind):
    """Many failures do not let a publisher wait long for a store that is back; damage is no such."""
    scene.store.error = kind("no")
    for topic in scene.topics.values():
        topic.publish()
    for _ in range(20):
        scene.sharing.serve()
        scene.clock.advance(60)
    scene.sharing.serve()
    assert not any(scene.uploader.due(topic) for topic in scene.topics)
    scene.store.error = None
    assert not scene.sharing.serve(), "not at once: it has just failed"
    scene.clock.advance(PROBE_S)
    served = [scene.sharing.serve() for _ in scene.topics]
    assert served == [kind is Unavailable] * 3


def test_an_upload_that_was_begun_is_no_reason_to_ask_more_often():
    """A store that is away is asked every 2 s too if it has to settle an upload first."""
    world, topics, noted = ObjectsWorld(), {}, []
    own = {"clock": world.clock, "linger_s": 0.0, "noted": noted.append, "hurry": lambda: None}
    sharing = Sharing(topics, world.uploader, world.shared, **own)
    topics[1] = Waiting(1, sharing, OnePlace())
    world.log.create(1, "/default/t1")
    world.log.plain(1, b"x")
    world.store.fail("put", "throttled")
    assert not world.uploader.cycle(1)
    topics[1].publish()
    for number in range(3):
        for nth in range(1, 10):
            world.store.fail("head", "throttled", nth=nth)
        for _ in range(9):
            assert not sharing.serve()
        assert noted == [topics[1]] * (number + 1), "each failure is told, none by itself"
        assert world.store.calls["head"] == number + 1
        assert world.uploader.troubles[1].count == number + 2
        world.clock.advance(PROBE_S)
    world.store.heal()
    assert sharing.serve()
    assert world.catalog.topic(1).uploaded == 1
