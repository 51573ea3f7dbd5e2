"""Consumers of a subscription whose programs take records by themselves."""

from __future__ import annotations

import pytest
from frazil.subscribe.attached import Attached, AttachedConsumers

from frazil.subscribe import Cause, Change, Deliver, Dispatch, FailurePolicy, SubscriptionType

TIMEOUT_MS = 1_000


class Silent:
    """An outbox in which nothing is."""

    def clear(self):
        """Do nothing."""

    close = clear


class Program:
    """A consumer that keeps records until they are taken, and takes them when told."""

    def __init__(self, number):
        self.consumer_id = number
        self.name = f"c{number}"
        self.waiting = []
        self.taken_ms = {}
        self.now_ms = 0

    def deliver(self, offsets):
        """Keep records."""
        self.waiting += offsets

    def take(self, offset):
        """Have the program take a record."""
        self.waiting.remove(offset)
        self.taken_ms[offset] = self.now_ms

    def give_up(self, offsets):
        """Let go of what waits."""
        found = [each for each in self.waiting if offsets is None or each in offsets]
        self.waiting = [each for each in self.waiting if each not in found]
        return found

    def revoked(self, offsets):
        """Let go of all of these."""
        self.give_up(offsets)
        for offset in offsets:
            self.taken_ms.pop(offset, None)

    def held_ms(self, offset):
        """Say for how long the program has had a record."""
        taken_ms = self.taken_ms.get(offset)
        return None if taken_ms is None else self.now_ms - taken_ms


class Scene:
    """A dispatch with programs, in virtual time."""

    def __init__(self, kind, *numbers):
        policy = FailurePolicy(ack_timeout_ms=TIMEOUT_MS, base_redelivery_delay_ms=0)
        self.dispatch = Dispatch(kind, policy=policy)
        self.attached = AttachedConsumers()
        self.programs = {number: Program(number) for number in numbers}
        for number, program in self.programs.items():
            self.dispatch.attach(number, name=program.name, now_ms=0)
            self.dispatch.want(number, messages=100, size_bytes=1 << 20)
            self.attached.add(Attached(program, (), Silent()))

    def feed(self, count):
        keys = [f"k{number}" for number in range(count)]
        self.dispatch.feed(range(count), [1] * count, offset_end=count, keys=keys)
        return self.turn(0)

    def turn(self, now_ms):
        """Do what a subscription does in a turn; return what timed out."""
        for program in self.programs.values():
            program.now_ms = now_ms
        self.attached.spare(self.dispatch, timeout_ms=TIMEOUT_MS, now_ms=now_ms)
        late = []
        for action in self.dispatch.poll(now_ms):
            if isinstance(action, Deliver):
                self.programs[action.consumer_id].deliver(action.offsets)
            elif isinstance(action, Change):
                assert action.cause is Cause.TIMEOUT
                late += action.offsets
                self.attached.revoke(action)
        return late

    def waiting(self):
        return [program.waiting for program in self.programs.values()]


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_the_time_for_an_ack_runs_from_the_taking(kind):
    """A record that waited long has all of its time when the program takes it."""
    scene = Scene(kind, 1)
    scene.feed(3)
    program = scene.programs[1]
    assert scene.turn(999) == []
    program.take(1)
    # Those that wait are never late; the one that was taken is, a time-out after that.
    assert [scene.turn(now_ms) for now_ms in (1_000, 1_500, 1_998)] == [[], [], []]
    assert scene.waiting() == [[0, 2]]
    assert scene.turn(1_999) == [1]
    assert program.taken_ms == {}
    assert [scene.turn(now_ms) for now_ms in (3_000, 9_000)] == [[], []]
    assert scene.waiting() == [[0, 2]]
    assert scene.dispatch.are_with(1, [0, 2], [1, 1])


def test_what_a_program_does_not_take_goes_to_another():
    """A Shared consumer that takes nothing in time loses what waits to those that are there."""
    scene = Scene(SubscriptionType.SHARED, 1, 2)
    scene.feed(4)
    assert scene.waiting() == [[0, 2], [1, 3]]
    scene.programs[2].take(1)
    scene.dispatch.want(1, messages=0, size_bytes=0)
    assert scene.turn(1_000) == [1]
    assert scene.waiting() == [[], [0, 2, 3]]
    assert scene.dispatch.are_with(2, [0, 2, 3], [1, 1, 1])


@pytest.mark.parametrize("kind", [SubscriptionType.FAILOVER, SubscriptionType.KEY_SHARED])
def test_what_nobody_else_may_have_stays(kind):
    """Records of the active consumer and of a key's owner wait there, in their order."""
    scene = Scene(kind, 1, 2)
    scene.feed(4)
    before = scene.waiting()
    assert scene.turn(1_000) == []
    assert scene.turn(10_000) == []
    assert scene.waiting() == before


def test_what_a_program_does_not_take_leaves_its_place_to_other_keys():
    """A KeyShared window is not full of what a program never looks at."""
    scene = Scene(SubscriptionType.KEY_SHARED, 1, 2)
    scene.feed(20)
    stuck, busy = scene.programs.values()
    assert [len(each) for each in scene.waiting()] == [5, 5]
    scene.turn(500)
    for offset in list(busy.waiting):
        busy.take(offset)
    before = list(stuck.waiting)
    scene.dispatch.want(1, messages=0, size_bytes=0)
    assert scene.turn(1_000) == []
    assert stuck.waiting == []
    assert len(busy.waiting) == 5
    scene.dispatch.want(1, messages=100, size_bytes=1 << 20)
    scene.turn(1_001)
    assert set(before).isdisjoint(busy.waiting)


def test_what_is_taken_while_it_is_given_up_has_its_time():
    """A program that takes a record at the last moment keeps it, and all of the time for it."""
    scene = Scene(SubscriptionType.SHARED, 1, 2)
    scene.feed(2)
    program = scene.programs[1]
    give_up = program.give_up

    def at_the_last_moment(offsets):
        program.take(0)
        return give_up(offsets)

    program.give_up = at_the_last_moment
    assert scene.turn(1_000) == []
    program.give_up = give_up
    assert program.taken_ms == {0: 1_000}
    assert scene.turn(1_999) == []
    assert scene.turn(2_000) == [0]
