"""What waits for its records on the way to a consumer, and what is taken out of it meanwhile."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from frazil.errors import Unavailable
from frazil.subscribe.feed import Record
from frazil.subscribe.outbox import Outbox


class Scene:
    """An outbox of a subscription that wants all of it; records are read when a test says so."""

    def __init__(self, *, keeps_order=True):
        self.keeps_order = keeps_order
        self.got = []
        self.log = []
        self.asked = []
        self.at_hand = {}
        consumer = SimpleNamespace(deliver=self.deliver)
        self.outbox = Outbox(consumer, self, self, loop=None)

    # The consumer.

    def deliver(self, records, attempts):
        """Keep what comes."""
        numbers = attempts or [1] * len(records)
        self.got += zip([each.offset for each in records], numbers, strict=True)

    # The feed.

    def get(self, offset):
        """Return what was read."""
        return self if offset in self.at_hand else None

    def record(self, offset):
        """Return a record of it."""
        return self.at_hand[offset]

    def request(self, offset, done):
        """Keep who asks."""
        self.asked.append((offset, done))

    def read(self, *offsets):
        """Have read some of what was asked for."""
        self.at_hand.update({offset: Record(offset, None, 0) for offset in offsets})
        _offset, done = self.asked.pop(0)
        self.offset, self.offset_next = min(offsets), max(offsets) + 1
        done(self)

    # The subscription.

    def is_with(self, _consumer, _offset):
        """Say that it is: an ack that was refused gave it to the same consumer again."""
        return True

    def sent(self, _consumer, offsets):
        """Keep what goes."""
        self.log.append(("sent", offsets))

    def left_out(self, _consumer):
        """Keep that room is back."""
        self.log.append("left out")

    def put_off(self, _consumer, offsets, _error):
        """Keep what waits."""
        self.log.append(("put off", offsets))


def test_what_is_withdrawn_does_not_go():
    """It goes once, with its own number, when it is added anew; the others go as they would."""
    scene = Scene()
    scene.outbox.add([1, 2, 3], [None, None, None], [1, 2, 3])
    scene.outbox.withdraw([2])
    scene.outbox.add([2], [None], [7])
    scene.read(1, 2, 3)
    assert scene.got == [(1, 1), (3, 3), (2, 7)]
    assert scene.log == [("sent", [1, 3]), "left out", ("sent", [2])]
    assert not scene.outbox.waiting


def test_the_room_of_what_was_withdrawn_is_given_back():
    """Also if nothing else was on its way."""
    scene = Scene()
    scene.outbox.add([1], [None], None)
    scene.outbox.withdraw([1])
    scene.read(1)
    assert scene.got == []
    assert scene.log == ["left out"]


@pytest.mark.parametrize("keeps_order", [True, False])
def test_what_was_withdrawn_while_it_was_read_is_not_put_off(keeps_order):
    """That it cannot be read is nobody's concern any more; what is behind it is read."""
    scene = Scene(keeps_order=keeps_order)
    scene.outbox.add([1, 2], [None, None], None)
    scene.outbox.withdraw([1])
    _offset, done = scene.asked.pop(0)
    done(Unavailable("out of reach"))
    assert scene.log == []
    scene.read(2)
    assert scene.got == [(2, 1)]
