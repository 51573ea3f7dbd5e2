"""Who waits for an upload is served in turn, and is not forgotten whatever goes wrong."""

from __future__ import annotations

import threading
import types

import pytest

from frazil.engine.objects_sharing import Sharing
from frazil.engine.tier_acks import TierWaits
from frazil.tiers.objects.shared import SharedOutcome

WAIT_S = 60


class OnePlace:
    """Uploads with room for one topic: the first one that is named."""

    def __init__(self):
        self.served = []
        self.bugs = 0

    def upload(self, wanted):
        if self.bugs:
            self.bugs -= 1
            raise KeyError("a bug")
        topic, end = next(iter(wanted.items()))
        self.served.append(topic)
        return SharedOutcome(uploaded={topic: end}, later=set(wanted) - {topic})


class Waiting:
    """A topic that somebody waits for, again and again."""

    def __init__(self, topic, sharing):
        self.waits = TierWaits(lambda: sharing.ask(topic), timeout_s=WAIT_S)
        self.stopped = ""
        self.end = 0

    def publish(self):
        self.end += 1
        self.waits.ask(-1, self.end)

    def note(self):
        self.waits.grew(-1, self.end)


@pytest.fixture
def scene():
    uploader = types.SimpleNamespace(due=lambda _topic: True, retry=lambda _topic: None)
    topics, store = {}, OnePlace()
    sharing = Sharing(
        topics, uploader, store, linger_s=0.0, noted=lambda _topic: None, hurry=lambda: None
    )
    topics.update({number: Waiting(number, sharing) for number in (1, 2, 3)})
    return types.SimpleNamespace(sharing=sharing, topics=topics, store=store)


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
