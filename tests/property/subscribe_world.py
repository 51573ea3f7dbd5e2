"""Random lives of a subscription in virtual time, with a journal that fails and is cut off.

`python -m tests.property.subscribe_world --seed N` repeats one life and tells what happened.
"""

from __future__ import annotations

import argparse
import random
import traceback

import attrs

from frazil.log import ranges_of
from frazil.subscribe import (
    Cause,
    Change,
    Cursor,
    DeadLetter,
    Deliver,
    Dispatch,
    FailurePolicy,
    Limits,
    Notice,
    Poison,
    Read,
    State,
    SubscriptionType,
)
from tests.property.subscribe_model import Member, Specification

STEPS = 120
KEYS = ("eu-1", "eu-2", "us-1", "us-2", "x")
KEYS_MANY = (*(f"{place}-{number}" for place in ("eu", "us") for number in range(8)), "x")
WINDOWS = (1, 2, 3, 10, 11, 100)
FILTERS = ((), (), (), ("eu-*",), ("us-?", "x"), ("*-1",))
MUCH = 1 << 40


def command(seed):
    """The command line that repeats a life."""
    return f"PYTHONPATH=src .venv/bin/python -m tests.property.subscribe_world --seed {seed}"


class World:
    """One subscription, its consumers, its topic and its journal."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        choose = self.random.choice
        self.kind = choose(list(SubscriptionType))
        self.limits = Limits(
            max_unacked_messages=choose((1, 3, 10, 100)),
            max_unacked_bytes=choose((60, 300, MUCH)),
            held_max=choose((5, 20, 1000)),
            keys_max=choose((2, 100)),
            skip_grace_ms=200,
            retry_ms=50,
        )
        self.is_ample = choose((True, False))
        # What must be read again is read at once, or later, or cannot be.
        self.is_quick = choose((True, False))
        # Every third life has more consumers than some windows have places, more keys, and windows
        # that change.
        self.is_wide = seed % 3 == 2
        self.names = choose((2, 4, 13)) if self.is_wide else 4
        self.keys = KEYS_MANY if self.is_wide else KEYS
        self.now = 0
        self.end = self.ids = 0
        self.journal, self.graves, self.history = [], [], []
        self.answers = []
        self.spec = Specification(self.kind, self.policy(), self.limits)
        self.begin()

    def policy(self):
        choose = self.random.choice
        return FailurePolicy(
            max_redelivery_count=choose((0, 1, 2, 5)),
            ack_timeout_ms=choose((0, 200, 1000)),
            base_redelivery_delay_ms=choose((0, 50, 100)),
            max_redelivery_delay_ms=choose((100, 300)),
            poison=choose(list(Poison)),
            dead_letter_topic="/default/dead",
        )

    def begin(self):
        """Start a life from what the journal has."""
        spec = self.spec
        cursor = Cursor(0, ranges_of(sorted(spec.settled)))
        self.dispatch = Dispatch(
            self.kind,
            policy=spec.policy,
            limits=self.limits,
            cursor=cursor,
            attempts=spec.counted,
            dues_ms=spec.dues,
            now_ms=self.now,
        )
        spec.restart(self.now)

    def tell(self, *words):
        self.history.append(f"{self.now:6} " + " ".join(str(word) for word in words))

    # -- steps -----------------------------------------------------------------------------------

    def publish(self):
        for _ in range(self.random.choice((1, 2, 5, 20))):
            if self.random.random() < 0.05:
                self.spec.gaps.add(self.end)
            else:
                size = self.random.choice((1, 10, 50, 100))
                self.spec.records[self.end] = (size, self.random.choice(self.keys))
            self.end += 1
        self.tell("publish to", self.end)

    def feed(self):
        dispatch, records = self.dispatch, self.spec.records
        first, room = dispatch.offset_next, dispatch.room
        end = min(self.end, first + room, first + self.random.choice((1, 5, 50)))
        if end <= first:
            return
        offsets = [offset for offset in range(first, end) if offset in records]
        keys = [records[o][1] for o in offsets] if self.kind is SubscriptionType.KEY_SHARED else ()
        self.tell("feed", first, end)
        dispatch.feed(offsets, [records[o][0] for o in offsets], offset_end=end, keys=keys)
        assert dispatch.status().held <= self.limits.held_max

    def attach(self):
        name = f"c{self.random.randrange(self.names)}"
        others = {each.name for each in self.spec.members} - {name}
        if self.kind is SubscriptionType.EXCLUSIVE and others:
            return
        self.ids += 1
        filters = self.random.choice(FILTERS) if self.kind is SubscriptionType.KEY_SHARED else ()
        member = Member(self.ids, name, filters)
        self.tell("attach", self.ids, name, filters)
        self.dispatch.attach(self.ids, name=name, now_ms=self.now, filters=filters)
        self.spec.attach(member, self.now)
        if self.is_ample:
            self.want(member, MUCH, MUCH)
        else:
            self.want(member, self.random.choice((0, 5)), MUCH)

    def detach(self):
        if not self.spec.members:
            return
        member = self.random.choice(self.spec.members)
        self.tell("detach", member.id)
        self.dispatch.detach(member.id, now_ms=self.now)
        self.spec.detach(member.id, self.now)

    def want(self, member, messages, size_bytes):
        self.tell("want", member.id, messages, size_bytes)
        self.dispatch.want(member.id, messages=messages, size_bytes=size_bytes)
        member.messages, member.size_bytes = messages, size_bytes

    def want_some(self):
        if self.spec.members and not self.is_ample:
            choose = self.random.choice
            self.want(choose(self.spec.members), choose((0, 1, 3, 100)), choose((0, 60, MUCH)))

    def ack(self):
        """Ack some of what is with consumers, late ones, repeated ones, and nonsense."""
        pool = list(self.spec.hands) * 3 + list(self.spec.delivered) + list(self.spec.known)
        pool += [*self.spec.records, self.end + 3]
        offsets = [self.random.choice(pool) for _ in range(self.random.choice((1, 1, 3, 10)))]
        if self.random.random() < 0.3:
            # Consecutive deliveries, as a client that acks in order.
            first = self.random.choice(pool)
            offsets += sorted(each for each in self.spec.hands if each >= first)[:20]
        change = self.dispatch.ack(offsets, head=self.end)
        self.tell("ack", offsets, change)
        self.spec.ack(offsets, change)
        self.write(change, offsets)

    def nack(self):
        pool = list(self.spec.hands) * 5 + list(self.spec.delivered) + [self.end + 3]
        pool += self.spec.records
        offset = self.random.choice(pool)
        delay = self.random.choice((0, 0, 80, 5000))
        change = self.dispatch.nack(offset, now_ms=self.now, delay_ms=delay, reason="no")
        self.tell("nack", offset, delay, change)
        self.spec.nack(offset, delay, change, self.now)
        self.write(change)

    def read(self):
        """Some of what must be read again is read, or cannot be."""
        if self.kind is SubscriptionType.KEY_SHARED and self.random.random() < 0.2:
            self.dispatch.trim(self.random.choice((0, 100)))
        for offset in list(self.dispatch.reading)[: self.random.choice((1, 3, 100))]:
            chance = self.random.random()
            if chance < 0.7:
                self.tell("loaded", offset)
                self.dispatch.loaded(offset, offset)
            elif chance < 0.8:
                self.tell("gone", offset)
                self.dispatch.gone(offset)
                self.spec.gone(offset)
            else:
                self.tell("put off", offset)
                self.dispatch.put_off(offset, now_ms=self.now)
                self.spec.put_off(offset, self.now)

    def prolong(self):
        """Give a consumer more time for a record, or for one that it does not have."""
        pool = list(self.spec.hands) * 5 + list(self.spec.delivered) + [self.end + 3]
        offset = self.random.choice(pool)
        until = self.now + self.random.choice((0, 100, 700, 3000))
        self.tell("prolong", offset, until)
        self.dispatch.prolong(offset, until_ms=until)
        self.spec.prolong(offset, until)

    def take_back(self):
        """Take some of what a consumer has back, unseen, and something that it does not have."""
        if not self.spec.members:
            return
        member = self.random.choice(self.spec.members)
        mine = [o for o, (whose, _) in self.spec.hands.items() if whose is member]
        offsets = [each for each in mine if self.random.random() < 0.5]
        offsets += self.random.sample(sorted(self.spec.hands), min(1, len(self.spec.hands)))
        offsets = sorted({*offsets, self.end + 3})
        self.tell("take back", member.id, offsets)
        self.dispatch.take_back(member.id, offsets)
        self.spec.take_back(member, offsets)

    def advance(self):
        due = self.dispatch.due_ms()
        if due is not None and self.random.random() < 0.5:
            self.now = max(self.now, due)
        else:
            self.now += self.random.choice((1, 20, 100, 500))

    def configure(self):
        self.poll()
        policy = self.policy()
        if self.is_wide:
            window = self.random.choice(WINDOWS)
            self.limits = self.spec.limits = attrs.evolve(self.limits, max_unacked_messages=window)
        self.tell("configure", policy, self.limits.max_unacked_messages)
        # What waits to be read again got its place in the window of before.
        again = (State.READY, State.READING)
        records = self.dispatch._records.items()
        self.spec.admitted |= {offset for offset, each in records if each.state in again}
        self.dispatch.configure(policy, self.limits, now_ms=self.now)
        self.spec.configure(policy, self.now)

    def dig(self):
        """Publish a dead letter, or fail to."""
        if not self.graves:
            return
        offset = self.graves.pop(0)
        if self.random.random() < 0.3:
            self.tell("dead letter failed", offset)
            self.dispatch.dead_letter_failed(offset, now_ms=self.now)
            return
        self.spec.dead_lettered.add(offset)
        change = self.dispatch.dead_lettered(offset)
        self.tell("dead letter", offset, change)
        if change is not None and not change.is_empty:
            self.spec.change(change, self.now)
        self.write(change)

    # -- the journal -----------------------------------------------------------------------------

    def write(self, change, answers=()):
        """Give a change to the journal; acks are answered when all they wait for is durable."""
        if change is None:
            return
        if not change.is_empty:
            self.journal.append(change)
        if answers:
            mine = [*change.after, *([] if change.is_empty else [change])]
            covered = {offset for each in mine for offset in each.offsets}
            self.answers.append((mine, covered & set(answers)))

    def sync(self):
        """The journal makes the oldest changes durable, and says so."""
        count = self.random.randint(1, 4)
        taken, self.journal = self.journal[:count], self.journal[count:]
        for change in taken:
            self.tell("durable", change)
            self.spec.durable(change)
            self.dispatch.confirmed(change, now_ms=self.now)
            self.spec.confirmed(change)
        self.answer()

    def answer(self):
        """What is answered is durable."""
        for waits, offsets in list(self.answers):
            if not any(change.is_open for change in waits):
                self.answers.remove((waits, offsets))
                if not any(change in self.refused for change in waits):
                    assert offsets <= self.spec.settled, "an ack was answered before it was durable"

    refused = ()

    def refuse(self):
        """The journal refuses all it has not yet written."""
        taken, self.journal = self.journal, []
        self.refused = (*self.refused, *taken)
        self.random.shuffle(taken)
        for change in taken:
            self.tell("refused", change)
            self.dispatch.failed(change, now_ms=self.now)
            self.spec.failed(change, self.now)
        self.answer()

    def crash(self):
        """The process dies: some of what was on its way is durable, nobody heard of it."""
        count = self.random.randint(0, len(self.journal))
        for change in self.journal[:count]:
            self.spec.durable(change)
        self.tell("crash with durable", self.journal[:count])
        self.journal, self.graves, self.answers = [], [], []
        if self.random.random() < 0.3:
            self.spec.policy = self.policy()
        self.begin()

    # -- outputs ---------------------------------------------------------------------------------

    def poll(self):
        for _ in range(5):
            self.act(self.dispatch.poll(self.now))
            if self.is_quick and self.dispatch.reading:
                for offset in list(self.dispatch.reading):
                    self.dispatch.loaded(offset, offset)
                continue
            due = self.dispatch.due_ms()
            if due is None or due > self.now:
                break
        else:
            raise AssertionError("polling goes round in circles")
        self.spec.polled(self.now)
        self.spec.progress(self.dispatch.cursor)
        is_returning = any(change.cause is Cause.LOST for change in self.journal)
        self.spec.reading = set(self.dispatch.reading)
        self.spec.idle(self.dispatch.status(), self.dispatch.offset_next, is_returning=is_returning)
        if self.is_ample:
            self.spec.even()

    def act(self, actions):
        """Do what dispatch asks for, and have it judged."""
        hands = [each.offsets for each in actions if isinstance(each, Deliver)]
        self.spec.coming = set().union(*hands)
        self.spec.reading = set(self.dispatch.reading)
        for action in actions:
            self.tell("  ", action)
            if isinstance(action, Deliver):
                self.spec.deliver(action, self.now)
            elif isinstance(action, Read):
                assert self.dispatch.reading
            elif isinstance(action, DeadLetter):
                self.spec.dead_letter(action)
                self.graves.append(action.offset)
            elif isinstance(action, Notice):
                self.spec.notice(action)
            else:
                assert isinstance(action, Change)
                self.spec.change(action, self.now)
                self.write(action)

    def live(self, steps=STEPS):
        verbs = {
            self.publish: 8,
            self.feed: 20,
            self.attach: 5,
            self.detach: 3,
            self.want_some: 8,
            self.ack: 16,
            self.nack: 6,
            self.prolong: 4,
            self.take_back: 2,
            self.advance: 12,
            self.configure: 1,
            self.dig: 6,
            self.read: 16,
            self.sync: 20,
            self.refuse: 2,
            self.crash: 2,
        }
        for _ in range(steps):
            self.random.choices(list(verbs), list(verbs.values()))[0]()
            if self.random.random() < 0.8:
                self.poll()
        self.drain()

    def drain(self):
        """Faults stop: everything is settled, and nothing for no reason."""
        spec = self.spec
        if not spec.members or self.kind is SubscriptionType.KEY_SHARED:
            # Somebody must be there who accepts everything.
            self.ids += 1
            self.dispatch.attach(self.ids, name="last", now_ms=self.now)
            spec.attach(Member(self.ids, "last", ()), self.now)
        self.tell("drain")
        for _ in range(50 + 4 * self.end):
            if set(spec.records) <= spec.settled and self.dispatch.offset_next == self.end:
                break
            for member in spec.members:
                self.want(member, MUCH, MUCH)
            self.feed()
            self.poll()
            for offset in list(self.dispatch.reading):
                self.dispatch.loaded(offset, offset)
            for offsets in (list(spec.hands), sorted(spec.blocked)):
                change = self.dispatch.ack(offsets, head=self.end)
                spec.ack(offsets, change)
                self.write(change)
            self.dig()
            while self.journal:
                self.sync()
            self.now = max(self.now, self.dispatch.due_ms() or 0)
        # Records that were acked while they were held go when it is their turn.
        for member in spec.members:
            self.want(member, MUCH, MUCH)
        self.poll()
        left = set(spec.records) - spec.settled
        assert not left, f"never settled: {sorted(left)}"
        assert self.dispatch.cursor.acked_below == self.end
        status = self.dispatch.status()
        assert (status.unacked, status.unacked_bytes, status.held) == (0, 0, 0)


def failure(seed):
    """Run one life; return the world and the error, None if no promise was broken."""
    world = World(seed)
    try:
        world.live()
    except Exception as error:  # noqa: BLE001 - a crash of the product is a broken promise, too
        return world, error
    return world, None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    world, error = failure(parser.parse_args().seed)
    print(world.kind.name, world.limits, *world.history, sep="\n")
    if error is None:
        print("no promise was broken")
    else:
        traceback.print_exception(error)


if __name__ == "__main__":
    main()
