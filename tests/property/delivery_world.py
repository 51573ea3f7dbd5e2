"""Random lives of the layer above dispatch, in virtual time: reads, dead letters, resets.

The subscription, its feed, cache, dead letters and dispatch are the product's; the tiers, the
journal and the dead-letter topic are stand-ins that fail, refuse and dawdle.
`python -m tests.property.delivery_world --seed N` repeats one life and tells what happened.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import selectors
import traceback
from collections import Counter
from functools import partial
from types import SimpleNamespace

from frazil.errors import CorruptionError, NotFound, Overloaded, Unavailable
from frazil.log import Batch, Piece, ranges_of
from frazil.model import OffsetRange
from frazil.schema import Message, message_batch
from frazil.subscribe import (
    HOLD_PREFIX,
    Cause,
    Cursor,
    Dispatch,
    FailurePolicy,
    FeedCache,
    Limits,
    Poison,
    State,
    Subscription,
    SubscriptionType,
    TopicFeed,
)
from frazil.subscribe import feed as feeds
from frazil.subscribe import subscription as subscriptions

STEPS = 60
SINGLE = (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)
KEYS = ("a", "b", "c", "d")
MUCH = 1 << 40
HELD_BYTES = (0, 12, subscriptions.HELD_BYTES_MAX)
"""So much is kept of what KeyShared reads ahead: nothing, a few records, all."""
PORTION_BYTES = 20 * 5
"""Of the most records that are read at once."""
NAME = "s"


def command(seed):
    """The command line that repeats a life."""
    return f"PYTHONPATH=src .venv/bin/python -m tests.property.delivery_world --seed {seed}"


class VirtualSelector(selectors.DefaultSelector):
    """Lets time pass in place of waiting."""

    loop = None

    def select(self, timeout=None):
        found = super().select(0)
        if not found:
            assert timeout is not None, "nothing will ever happen again"
            self.loop.now += max(timeout, 0)
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose clock stands still while anything is to be done; reads take their time in it."""

    def __init__(self):
        self.now = 1000.0
        self.delay = lambda: 0.0
        selector = VirtualSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self):
        return self.now

    def run_in_executor(self, executor, work, *given):
        del executor
        future = self.create_future()

        def finish():
            if future.cancelled():
                return
            try:
                future.set_result(work(*given))
            except Exception as error:  # noqa: BLE001 - as a thread's work would end
                future.set_exception(error)

        self.call_later(self.delay(), finish)
        return future


class Tiers:
    """Where the records of the topic are, as far as somebody finds them."""

    def __init__(self, world):
        self.world = world
        self.records = {}
        self.expired = []
        self.start = self.end = 0
        self.trouble = 0.0

    def read(self, topic, *, offset, bytes_max):
        """Read as a history does, or meet what one can meet."""
        del topic, bytes_max
        chosen = self.world.random
        if chosen.random() < self.trouble:
            kind = chosen.randrange(4)
            if kind == 0:
                raise Unavailable("the store does not answer")
            if kind == 1:
                raise CorruptionError("damaged", offset_first=offset, offset_next=offset + 1)
            if kind == 2:
                # Other settings than the data was written with: a part of it has no home.
                raise NotFound("no longer held", offset_first=offset + chosen.randint(1, 50))
            return Piece([], offset)
        if offset < self.start:
            raise NotFound("no longer held", offset_first=self.start)
        first, gaps = offset, []
        for gap in self.expired:
            if gap.first <= first < gap.end:
                gaps.append(OffsetRange(first, gap.end, gap.reason))
                first = gap.end
        count = chosen.choice((1, 3, 20))
        messages = [self.records[each] for each in range(first, min(first + count, self.end))]
        if not messages:
            return Piece([], first, tuple(gaps))
        data = message_batch(messages, 0)
        batch = Batch(data, offset=first, times=((len(messages), 7),), gaps=tuple(gaps))
        return Piece([batch], first + len(messages))


class Journal:
    """Makes changes durable, refuses them, or takes its time."""

    def __init__(self, world):
        self.world = world
        self.is_cut_off = False

    def settle_soon(self, settle):
        self.world.loop.call_soon(settle)

    def add(self, runtime, name, change, answer):
        del runtime, name
        if change.cause is Cause.TIMEOUT:
            # They wait for their back-off, also if their consumer leaves meanwhile.
            self.world.timed_out |= set(change.offsets)
            self.world.owed -= set(change.offsets)
        self.world.loop.call_later(self.world.delay(), self._write, change, answer)

    def _write(self, change, answer):
        if self.is_cut_off:
            return
        world = self.world
        if world.random.random() < world.refusals:
            answer(Overloaded("the journal is full"))
            return
        world.durable(change)
        answer(None)


class Letters:
    """The dead-letter topic."""

    def __init__(self, world):
        self.world = world

    async def publish(self, subscription, record, letter):
        del subscription
        world = self.world
        await asyncio.sleep(world.delay())
        if world.random.random() < world.tiers.trouble:
            if world.random.random() < 0.2:
                raise AttributeError("a bug")
            raise Unavailable("the dead-letter topic cannot be written")
        assert record.offset == letter.offset
        world.check_payload(record)
        world.dead_lettered[letter.offset] += 1


class Client:
    """A consumer: takes what comes, acks some of it, nacks some of it."""

    def __init__(self, world, number, name):
        self.world, self.consumer_id, self.name = world, number, name
        self.hands, self.got = [], []
        self.is_gone = False

    def deliver(self, records, attempts):
        assert not self.is_gone, "a delivery to a stream that has ended"
        for record, attempt in zip(records, attempts or [1] * len(records), strict=True):
            self.world.delivered(self, record, attempt)
            self.hands.append(record.offset)
            self.got.append(record.offset)

    def displaced(self):
        self.is_gone = True

    def ended(self, error):
        raise AssertionError(f"the subscription ended: {error!r}")


class World:
    """One subscription and everything around it."""

    def __init__(self, seed, held_bytes_max=None):
        self.random = random.Random(seed)
        if held_bytes_max is None:
            held_bytes_max = random.Random(f"held {seed}").choice(HELD_BYTES)
        self.held_bytes_max = held_bytes_max
        choose = self.random.choice
        self.kind = choose(list(SubscriptionType))
        self.poison = choose(list(Poison))
        self.policy = FailurePolicy(
            max_redelivery_count=choose((0, 1, 3)),
            ack_timeout_ms=choose((0, 0, 300)),
            base_redelivery_delay_ms=choose((0, 50)),
            max_redelivery_delay_ms=100,
            poison=self.poison,
            dead_letter_topic="/default/dead",
        )
        self.limits = Limits(max_unacked_messages=choose((1, 5, 30)))
        self.cache_bytes = choose((1, 3_000, 1 << 20))
        self.loop = VirtualLoop()
        self.loop.delay = self.delay
        self.tiers = Tiers(self)
        self.refusals = 0.0
        self.history = []
        self.numbers = 0
        self.settled, self.attempts = set(), {}
        self.ack_sent, self.dropped_seen = set(), Counter()
        self.dead_lettered, self.seen = Counter(), Counter()
        self.clients = []
        self.timed_out = set()
        self.tasks = set()

    def delay(self):
        return self.random.choice((0.0, 0.0, 0.001, 0.05, 0.6))

    def tell(self, *words):
        self.history.append(f"{self.loop.now:9.3f} " + " ".join(map(str, words)))

    # -- lives -----------------------------------------------------------------------------------

    def begin(self):
        """Start a life from what is durable."""
        spec = SimpleNamespace(deleted_us=0, primary_key=())
        self.state = SimpleNamespace(
            id=1, durable=self.tiers.end, followers=(), holds=self.holds(), spec=spec
        )
        journal = SimpleNamespace(closed=False, failed=None, record_count=0)
        log = SimpleNamespace(journal=journal, source=self.tiers)
        runtime = SimpleNamespace(
            state=self.state, log=log, history=self.tiers, is_message=True, name="/default/t"
        )
        cache = FeedCache(self.cache_bytes)
        self.feed = TopicFeed(runtime, cache, loop=self.loop, executor=None)
        self.journal = Journal(self)
        self.subscription = Subscription(
            NAME,
            self.feed,
            self.journal,
            Letters(self),
            dispatch=self.dispatch(),
            policy=self.policy,
            loop=self.loop,
        )

    def dispatch(self):
        return Dispatch(
            self.kind,
            policy=self.policy,
            limits=self.limits,
            cursor=Cursor(0, ranges_of(sorted(self.settled))),
            attempts=self.attempts,
            now_ms=int(self.loop.now * 1000),
        )

    def holds(self):
        place = 0
        while place in self.settled:
            place += 1
        return {HOLD_PREFIX + NAME: max(place, self.tiers.start)}

    def durable(self, change):
        """A change is on disk."""
        for first, end in change.ranges:
            for offset in range(first, end):
                self.check_reason(offset)
                self.settled.add(offset)
                self.attempts.pop(offset, None)
        for offset, attempt in zip(change.offsets, change.attempts, strict=False):
            if offset not in self.settled:
                self.attempts[offset] = attempt
        self.state.holds.update(self.holds())

    # -- promises --------------------------------------------------------------------------------

    def check_payload(self, record):
        assert record.value.payload == b"%d" % record.offset, "the record of another offset"

    def check_reason(self, offset):
        """A record is settled because it was acked, dead_lettered, dropped, or expired."""
        is_dropped = (
            self.poison is Poison.DROP and self.seen[offset] > self.policy.max_redelivery_count
        )
        assert (
            offset in self.ack_sent
            or self.dead_lettered[offset]
            or is_dropped
            or self.is_expired(offset)
        ), f"{offset} was settled for no reason, seen {self.seen[offset]} times"

    def is_expired(self, offset):
        return any(gap.first <= offset < gap.end for gap in self.tiers.expired)

    def delivered(self, client, record, attempt):
        offset = record.offset
        self.tell("   to", client.consumer_id, offset, attempt)
        self.check_payload(record)
        assert offset not in self.settled, f"{offset} was delivered after its durable ack"
        assert offset < self.state.durable, f"{offset} went out before it was durable"
        assert attempt <= self.attempts.get(offset, 1), f"{offset}: attempt is not durable"
        assert attempt <= 1 + self.policy.max_redelivery_count, f"{offset} came too often"
        if self.kind in SINGLE and not self.seen[offset]:
            # What an earlier consumer had comes before anything new.
            gone = self.settled | self.ack_sent
            owed = [each for each in self.owed if each not in gone and not self.is_expired(each)]
            assert not owed or min(owed) > offset, f"{offset} came before {sorted(owed)}"
        if self.kind is SubscriptionType.KEY_SHARED:
            self.check_key(offset)
        self.owed.discard(offset)
        self.timed_out.discard(offset)
        self.seen[offset] += 1

    def check_key(self, offset):
        """All before a record of its key are durably settled, or expired."""
        records = self.tiers.records
        for each in range(offset):
            if records[each].key == records[offset].key and each not in self.settled:
                assert self.is_expired(each), f"{offset} came before {each} of its key"

    owed: set = frozenset()

    # -- steps -----------------------------------------------------------------------------------

    def publish(self):
        for _ in range(self.random.choice((1, 5, 40))):
            offset = self.tiers.end
            self.tiers.records[offset] = Message(b"%d" % offset, self.random.choice(KEYS))
            self.tiers.end += 1
            if self.random.random() < 0.7:
                # The journal hands it over when it is written: live delivery needs no reading.
                for follower in self.state.followers:
                    follower.written(offset, 7, [self.tiers.records[offset]])
        self.state.durable = self.feed.runtime.log.journal.record_count = self.tiers.end
        self.tell("publish to", self.tiers.end)
        for follower in self.state.followers:
            follower.woken()

    def attach(self):
        name = f"c{self.random.randrange(3)}"
        others = [each for each in self.clients if each.name != name]
        if self.kind is SubscriptionType.EXCLUSIVE and others:
            return
        self.numbers += 1
        self.leave([each for each in self.clients if each.name == name])
        client = Client(self, self.numbers, name)
        self.tell("attach", client.consumer_id, name)
        self.clients.append(client)
        self.subscription.attach(client)
        self.want(client)

    def want(self, client, messages=None):
        messages = self.random.choice((1, 10, 1000)) if messages is None else messages
        self.subscription.ready(client, messages=messages, size_bytes=MUCH)

    def want_some(self):
        for client in self.clients:
            self.want(client)

    def leave(self, clients):
        for client in clients:
            if self.kind in SINGLE and client is self.clients[0]:
                last = 1 + self.policy.max_redelivery_count
                hands = set(client.hands) - self.timed_out
                self.owed |= {o for o in hands if self.attempts.get(o, 1) < last}
            self.clients.remove(client)

    def detach(self):
        if self.clients:
            client = self.random.choice(self.clients)
            self.tell("detach", client.consumer_id)
            self.leave([client])
            self.subscription.detach(client)
            client.is_gone = True

    def ack(self, share=0.7):
        for client in self.clients:
            for offset in list(client.hands):
                if self.random.random() < share:
                    client.hands.remove(offset)
                    self.send_ack(offset)

    def send_ack(self, offset):
        self.tell("ack", offset)
        self.ack_sent.add(offset)

        def answered(error):
            if error is None:
                is_known = offset in self.settled or self.is_expired(offset)
                assert is_known, f"the ack of {offset} was answered too early"
            else:
                self.refused.append(offset)

        self.subscription.ack(offset, answered)

    refused: list = ()

    def nack(self):
        for client in self.clients:
            if client.hands:
                offset = client.hands.pop(self.random.randrange(len(client.hands)))
                self.tell("nack", offset)
                self.owed.discard(offset)
                answered = partial(self.nacked, client, offset)
                self.subscription.nack(offset, answered, delay_ms=0, reason="no")

    def nacked(self, client, offset, error):
        if error is not None:
            # It is still the client's to ack.
            client.hands.append(offset)

    def disturb(self):
        self.tiers.trouble = self.random.choice((0.0, 0.3, 0.9, 1.0))
        self.refusals = self.random.choice((0.0, 0.0, 0.5))
        self.tell("trouble", self.tiers.trouble, self.refusals)

    def expire(self):
        """A full quota takes the oldest records: the hold moves first."""
        low = self.holds()[HOLD_PREFIX + NAME]
        target = min(low + self.random.choice((1, 5)), self.tiers.end)
        if target <= low:
            return
        self.tell("expire to", target)
        self.tiers.expired.append(OffsetRange(low, target, "expired at the topic's quota"))
        self.state.holds[HOLD_PREFIX + NAME] = target
        if self.random.random() < 0.5:
            self.tiers.start = target

    async def reset(self):
        """Begin anew at a place: as the deliveries do it."""
        place = self.random.randint(self.tiers.start, self.tiers.end)
        resting = asyncio.ensure_future(self.subscription.rest())
        await asyncio.wait({resting}, timeout=30)
        if not resting.done():
            # The journal refuses all the time, or a letter cannot be written.
            resting.cancel()
            self.subscription.go_on(None)
            return
        self.tell("reset to", place)
        self.settled = set(range(place))
        self.attempts, self.ack_sent = {}, set()
        self.seen, self.dead_lettered = Counter(), Counter()
        self.owed, self.timed_out = set(), set()
        self.refused.clear()
        self.state.holds[HOLD_PREFIX + NAME] = max(place, self.tiers.start)
        for client in self.clients:
            client.hands = []
        self.subscription.go_on(self.dispatch())

    def crash(self):
        """The process dies; only what is durable is known to the next."""
        self.tell("crash")
        self.journal.is_cut_off = True
        self.subscription._dead_letters.cancel()
        for client in self.clients:
            client.is_gone = True
        self.subscription.end_error = Unavailable("dead")
        self.clients, self.owed, self.timed_out = [], set(), set()
        self.begin()

    async def live(self, steps=STEPS):
        self.refused = []
        self.begin()
        verbs = {
            self.publish: 8,
            self.attach: 6,
            self.detach: 3,
            self.want_some: 6,
            self.ack: 10,
            self.nack: 5,
            self.disturb: 4,
            self.expire: 1,
            self.crash: 1,
        }
        for _ in range(steps):
            if self.random.random() < 0.02:
                await self.reset()
            self.random.choices(list(verbs), list(verbs.values()))[0]()
            await asyncio.sleep(self.random.choice((0, 0, 0.001, 0.1, 2)))
            dispatch, status = self.subscription._dispatch, self.subscription.status()
            kept = [each for each in dispatch._records.values() if each.value is not None]
            again = [each for each in kept if each.state is State.READY]
            held = [each for each in dispatch._spans if each.values]
            count = sum(each.end - each.first for each in held) + len(kept) - len(again)
            assert count <= status.held, "records are kept that were met already"
            assert sum(each.size for each in kept + held) == dispatch.held_bytes
            size_max = self.held_bytes_max + PORTION_BYTES + sum(each.size for each in again)
            assert dispatch.held_bytes <= size_max, "more is kept than may be"
        await self.drain()

    async def drain(self):
        """Faults stop: every record is settled, for a reason, and nothing is left behind."""
        self.tell("drain")
        self.tiers.trouble = self.refusals = 0.0
        if not self.clients:
            self.attach()
        for _ in range(100 + 4 * self.tiers.end):
            for client in self.clients:
                self.want(client, 1000)
            self.ack(1.0)
            for offset in self.refused:
                self.send_ack(offset)
            self.refused.clear()
            for offset in sorted(self.blocked()):
                self.send_ack(offset)
            if not self.left() and self.is_idle():
                break
            await asyncio.sleep(0.3)
        assert not self.left(), f"never settled: {self.left()[:10]}"
        await asyncio.sleep(3)
        status = self.subscription.status()
        assert (status.unacked, status.held, status.paused) == (0, 0, None), status
        assert self.subscription._dispatch.held_bytes == 0, "records are kept that nobody needs"
        assert not self.subscription._dispatch._records
        assert not self.subscription._dispatch._spans

    def is_idle(self):
        """Whether all was read, and nothing is with anybody."""
        status = self.subscription.status()
        is_read = self.subscription._dispatch.offset_next == self.tiers.end
        return is_read and not status.unacked and not status.held

    def left(self):
        """Return what is not settled; what expired is found to be gone by each life anew."""
        unsettled = set(range(self.tiers.end)) - self.settled
        return sorted(offset for offset in unsettled if not self.is_expired(offset))

    def blocked(self):
        return set(self.subscription._dispatch._blocked)


def failure(seed, held_bytes_max=None):
    """Run one life; return the world and the error, None if no promise was broken."""
    log = logging.getLogger("frazil")
    level = log.level
    log.setLevel(logging.CRITICAL)
    live_max, feeds.LIVE_RECORDS_MAX = feeds.LIVE_RECORDS_MAX, 3
    world = World(seed, held_bytes_max)
    held_max, subscriptions.HELD_BYTES_MAX = subscriptions.HELD_BYTES_MAX, world.held_bytes_max
    problems = []

    def stop(loop, context):
        problems.append(context)
        loop.stop()

    world.loop.set_exception_handler(stop)
    world.owed = set()
    try:
        world.loop.run_until_complete(world.live())
        assert not problems, problems[0]
    except Exception as error:  # noqa: BLE001 - a crash of the product is a broken promise, too
        return world, problems[0].get("exception", error) if problems else error
    finally:
        feeds.LIVE_RECORDS_MAX = live_max
        subscriptions.HELD_BYTES_MAX = held_max
        log.setLevel(level)
        for task in asyncio.all_tasks(world.loop):
            task.cancel()
        world.loop.run_until_complete(asyncio.sleep(0))
        world.loop.close()
    return world, None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    world, error = failure(parser.parse_args().seed)
    sizes = (world.cache_bytes, world.held_bytes_max)
    print(world.kind.name, world.policy, world.limits, *sizes, *world.history, sep="\n")
    if error is None:
        print("no promise was broken")
    else:
        traceback.print_exception(error)


if __name__ == "__main__":
    main()
