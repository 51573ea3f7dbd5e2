"""Topics without storage: who gets a record, who never does, and what is counted."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from frazil.errors import Conflict, NotFound
from frazil.schema import Message
from frazil.serve.danube.unreliable import Unreliable
from frazil.subscribe import SubscriptionType

EXCLUSIVE, SHARED = SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED
FAILOVER, KEY_SHARED = SubscriptionType.FAILOVER, SubscriptionType.KEY_SHARED
PLENTY = {"messages": 1 << 20, "size_bytes": 1 << 30}


class Topic:
    """What the dispatch of a topic without storage asks of it: its name."""

    name = "/default/t"


class Reader:
    """A stream that keeps what it gets."""

    def __init__(self, consumer_id, name=None):
        self.consumer_id = consumer_id
        self.name = name or f"c{consumer_id}"
        self.records = []
        self.batches = 0
        self.is_displaced = False
        self.error = None

    def deliver(self, records, attempts):
        assert attempts is None
        self.batches += 1
        self.records += records

    def displaced(self):
        self.is_displaced = True

    def ended(self, error):
        self.error = error

    @property
    def payloads(self):
        return [record.value.payload for record in self.records]


def run(scene, **limits):
    """Run a scene with topics that are not stored."""

    async def play():
        world = Unreliable(asyncio.get_running_loop())
        vars(world).update(limits)
        try:
            return await scene(world)
        finally:
            world.close()

    return asyncio.run(play())


def publish(world, payloads, key=None):
    for payload in payloads:
        world.publish(Topic, Message(payload, key, producer_name="p"))


async def turns(count=3):
    for _ in range(count):
        await asyncio.sleep(0)


async def until(check):
    for _ in range(10_000):
        if check():
            return
        await asyncio.sleep(0.005)
    pytest.fail("it did not come about in time")


def join(subscription, consumer_id, filters=(), room=PLENTY):
    reader = Reader(consumer_id)
    subscription.attach(reader, filters)
    if room:
        subscription.ready(reader, **room)
    return reader


def numbers(count):
    return [b"%d" % number for number in range(count)]


def test_every_subscription_gets_all_and_in_order():
    """Fan-out: each Exclusive subscription has every record, in one write, as one shared object."""

    async def scene(world):
        readers = [
            join(world.open("/default/t", f"s{number}", kind=EXCLUSIVE), number)
            for number in range(1, 4)
        ]
        publish(world, numbers(50))
        assert not any(reader.records for reader in readers)
        await turns()
        return readers, world

    readers, world = run(scene)
    assert [reader.payloads for reader in readers] == [numbers(50)] * 3
    assert [reader.batches for reader in readers] == [1, 1, 1]
    assert readers[0].records[7] is readers[2].records[7]
    assert {record.offset for record in readers[0].records} == {0}
    assert all(record.value.publish_time for record in readers[0].records)
    assert (world.delivered, world.dropped, world.unheard) == (150, 0, 0)


def test_shared_is_even_to_the_record():
    """36 records to three consumers are twelve each."""

    async def scene(world):
        subscription = world.open("/default/t", "s", kind=SHARED)
        readers = [join(subscription, number) for number in (1, 2, 3)]
        publish(world, numbers(36))
        await turns()
        return [reader.payloads for reader in readers]

    found = run(scene)
    assert [len(payloads) for payloads in found] == [12, 12, 12]
    assert sorted(itertools.chain(*found)) == sorted(numbers(36))


def test_what_an_expected_consumer_would_have_got_is_not_lost():
    """A record between Subscribe and the stream waits; without a stream it goes to the others."""

    async def scene(world):
        subscription = world.open("/default/t", "s", kind=FAILOVER)
        subscription.expect(1, "c1")
        publish(world, [b"early"])
        await turns()
        reader = join(subscription, 2)
        await turns()
        assert reader.payloads == []
        subscription.dismiss(1)
        subscription.dismiss(2)
        await turns()
        return reader.payloads, list(subscription._names), world.bytes_queued

    assert run(scene) == ([b"early"], [2], 0)


def test_a_consumer_that_never_streams_is_given_up():
    """After the time of an idle subscription the others get what it kept."""

    async def scene(world):
        subscription = world.open("/default/t", "s", kind=FAILOVER)
        subscription.expect(1, "c1")
        reader = join(subscription, 2)
        publish(world, [b"for the first"])
        await until(lambda: reader.records)
        return reader.payloads, list(subscription._names)

    assert run(scene, idle_s=0.05) == ([b"for the first"], [2])


def test_exclusive_has_one_consumer():
    """A second one is refused while the first streams or is expected, and taken afterwards."""

    async def scene(world):
        subscription = world.open("/default/t", "s", kind=EXCLUSIVE)
        subscription.expect(1, "c1")
        with pytest.raises(Conflict):
            subscription.expect(2, "c2")
        first = join(subscription, 1)
        with pytest.raises(Conflict):
            join(subscription, 2)
        subscription.detach(first)
        second = join(subscription, 2)
        subscription.detach(first)
        publish(world, [b"x"])
        await turns()
        return first.payloads, second.payloads

    assert run(scene) == ([], [b"x"])


def test_patterns_choose_the_keys():
    """A key goes to a consumer whose pattern has it; one that nobody takes is counted and gone."""

    async def scene(world):
        subscription = world.open("/default/t", "s", kind=KEY_SHARED)
        subscription.expect(1, "c1", ["asia-*"])
        europe = join(subscription, 1, ["eu-*"])
        america = join(subscription, 2, ["us-?", "p"])
        for key in ("eu-west", "us-1", "asia-1", "us-12", None):
            publish(world, [str(key).encode()], key)
        await turns()
        return europe.payloads, america.payloads, world.unheard

    assert run(scene) == ([b"eu-west"], [b"us-1", b"None"], 2)


def test_a_full_queue_of_records_drops_or_passes_on():
    """Exclusive drops what finds no room; Shared gives it to the next; both count the rest."""

    async def scene(world):
        alone = world.open("/default/t", "alone", kind=EXCLUSIVE)
        stopped = join(alone, 1, room=None)
        publish(world, numbers(10))
        assert world.dropped == 6
        alone.ready(stopped, **PLENTY)
        await turns()
        world.drop("/default/t", "alone")
        shared = world.open("/default/t", "shared", kind=SHARED)
        slow, fast = join(shared, 2, room=None), join(shared, 3)
        for number in range(10):
            publish(world, [b"%d" % number])
            await turns()
        shared.detach(fast)
        publish(world, [b"%d" % number for number in range(10, 15)])
        dropped = world.dropped - 6
        shared.ready(slow, **PLENTY)
        await turns()
        return stopped.payloads, slow.payloads, fast.payloads, dropped

    stopped, slow, fast, dropped = run(scene, queue_records_max=4)
    assert stopped == numbers(4)
    assert fast == numbers(10)
    assert slow == [b"10", b"11", b"12", b"13"]
    assert dropped == 1


def test_memory_is_bounded_in_bytes():
    """Queues end at their bytes, one by one and together; a huge record goes alone."""

    async def scene(world):
        readers = [
            join(world.open("/default/t", f"s{number}", kind=EXCLUSIVE), number, room=None)
            for number in range(1, 6)
        ]
        publish(world, [b"x" * 1000] * 20)
        one, all_of_them = world.bytes_queued, world.dropped
        for number, reader in enumerate(readers, start=1):
            world.find("/default/t", f"s{number}").detach(reader)
        assert world.bytes_queued == 0
        huge = join(world.find("/default/t", "s1"), 7)
        publish(world, [b"y" * 9_000, b"y"])
        await turns()
        return one, all_of_them, [len(payload) for payload in huge.payloads]

    queued, dropped, huge = run(scene, queue_bytes_max=4_000, bytes_max=16_000)
    # Three records of 1,257 bytes fit in a queue, twelve in all of them.
    assert queued == 12 * (1_000 + len("p") + 256)
    assert dropped == 5 * 20 - 12
    assert huge == [9_000]


def test_another_stream_of_a_consumer_takes_its_place():
    """The old stream ends as displaced; waiting records go to the new one."""

    async def scene(world):
        subscription = world.open("/default/t", "s", kind=EXCLUSIVE)
        old = join(subscription, 1, room=None)
        publish(world, [b"a"])
        new = join(subscription, 1)
        subscription.ready(old, **PLENTY)
        subscription.detach(old)
        publish(world, [b"b"])
        await turns()
        return old.is_displaced, old.payloads, new.is_displaced, new.payloads

    assert run(scene) == (True, [], False, [b"a", b"b"])


def test_an_idle_subscription_goes_and_a_used_one_stays():
    """Without a consumer for its time it is removed and `on_idle` is called; a consumer keeps it."""

    async def scene(world):
        gone = []
        world.on_idle = lambda topic, name: gone.append((topic, name))
        used = world.open("/default/t", "used", kind=SHARED)
        left = world.open("/default/t", "left", kind=SHARED)
        world.open("/default/t", "never", kind=SHARED)
        join(used, 1)
        left.detach(join(left, 2))
        assert world.open("/default/t", "used", kind=EXCLUSIVE) is used
        await until(lambda: len(gone) == 2)
        publish(world, [b"x"])
        return sorted(gone), world.names("/default/t"), world.dropped

    gone, names, dropped = run(scene, idle_s=0.05)
    assert gone == [("/default/t", "left"), ("/default/t", "never")]
    assert names == ["used"]
    assert dropped == 0


def test_a_deleted_topic_ends_its_streams():
    """They end with the reason, and records find nobody."""

    async def scene(world):
        subscription = world.open("/default/t", "s", kind=EXCLUSIVE)
        reader = join(subscription, 1)
        publish(world, [b"x"])
        world.forget_topic("/default/t")
        publish(world, [b"y"])
        await turns()
        return reader, world.unheard, world.find("/default/t", "s")

    reader, unheard, found = run(scene)
    assert isinstance(reader.error, NotFound)
    assert (reader.payloads, unheard, found) == ([], 1, None)


@pytest.mark.parametrize(
    "message",
    [
        Message(b"x" * 32_000),
        Message(b"", attributes={"a": "x" * 32_000}),
        Message(b"", attributes={"x" * 32_000: ""}),
        Message(b"", key="x" * 32_000),
        Message(b"", producer_name="x" * 32_000),
    ],
    ids=["payload", "attribute", "attribute's name", "key", "producer"],
)
def test_a_queue_counts_all_that_a_message_is_made_of(message):
    """A queue takes 31 messages of 32 kB, wherever in them the bytes are."""
    most = 31 * 32_321

    async def scene(world):
        world.open("/default/t", "s", kind=EXCLUSIVE).expect(1, "c1")
        for _ in range(40):
            world.publish(Topic, message)
        return world.bytes_queued, world.dropped

    queued, dropped = run(scene, queue_bytes_max=most)
    assert dropped == 40 - 31
    assert 31 * 32_000 < queued <= most


def test_an_attribute_without_a_text_takes_room_too():
    """Sixty-four attributes of a byte each are more than their bytes."""

    async def scene(world):
        world.open("/default/t", "s", kind=EXCLUSIVE).expect(1, "c1")
        world.publish(Topic, Message(b"", attributes={str(number): "" for number in range(64)}))
        return world.bytes_queued

    assert run(scene) > 64 * 64
