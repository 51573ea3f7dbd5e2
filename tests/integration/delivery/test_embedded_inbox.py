"""Deliveries between a subscription and the program that takes them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from frazil.engine import AsyncEngine
from frazil.errors import Conflict, InvalidRequest
from frazil.subscribe import Dispatch
from tests.integration.delivery.delivering import Collector, run
from tests.integration.delivery.delivering import until as until_on_loop
from tests.integration.delivery.test_embedded import (
    AT_ONCE,
    QUIET_S,
    WAIT_S,
    filled,
    in_thread,
    is_quiet,
    offsets,
    taken,
    until,
)
from tests.integration.engine.opening import open_small

SOON_S = 20
"""How long threads that each have a record wait for each other."""
HASTY = {"ack_timeout_ms": 100, **AT_ONCE}
"""A policy under which an ack must come soon."""
PATIENT = {"ack_timeout_ms": 0, **AT_ONCE}
"""One under which it may take for ever."""


@pytest.fixture
def db(tmp_path):
    engine = open_small(tmp_path)
    yield engine
    engine.close()


@pytest.fixture
def prolonged(monkeypatch):
    """Offsets that were given more time, each time counted."""
    found = []
    prolong = Dispatch.prolong

    def noted(self, offset, *, until_ms):
        found.append(offset)
        prolong(self, offset, until_ms=until_ms)

    monkeypatch.setattr(Dispatch, "prolong", noted)
    return found


def lag(topic):
    return topic.subscriptions()[0]["lag_records"]


def waits(stream, count):
    """Wait until so many deliveries wait for the program."""
    until(lambda: len(stream._inbox._waiting) == count)


def test_records_that_come_together_wake_a_thread_each(db):
    """Four threads that wait have one of four records each before any of them asks again."""
    topic = filled(db, 0)
    with topic.subscribe("s", start="earliest") as stream:
        all_have_one = threading.Barrier(4)

        def work():
            (one,) = taken(stream, 1)
            all_have_one.wait(SOON_S)
            return one.offset

        ends = [in_thread(work) for _ in range(4)]
        until(lambda: len(stream._inbox._changed._waiters) == 4)
        topic.append_many([b"%d" % number for number in range(4)])
        assert {end() for end in ends} == {0, 1, 2, 3}


# -- what the program has not taken ------------------------------------------------------------


@pytest.mark.parametrize("kind", ["exclusive", "shared", "failover", "key_shared"])
def test_a_record_that_is_not_taken_does_not_fail(db, prolonged, kind):
    """However long it waits for the program, it is there once, in order, as its first delivery."""
    topic = filled(db, 0)
    for number in range(3):
        topic.append(b"%d" % number, key=str(number))
    policy = {**HASTY, "max_redelivery_count": 0, "poison": "drop"}
    with topic.subscribe("s", type=kind, start="earliest", policy=policy) as stream:
        until(lambda: min(map(prolonged.count, range(3))) >= 3)
        topic.set_subscription("s", policy=PATIENT)
        some = taken(stream, 3)
        assert [(each.offset, each.attempt) for each in some] == [(0, 1), (1, 1), (2, 1)]
        stream.ack(some)
        assert is_quiet(stream)
        assert db.cursors.load("t")["s"].acked_below == 3


def test_a_record_that_is_taken_and_not_acked_comes_again(db):
    """The time for an ack runs from the taking, and runs out."""
    topic = filled(db, 1)
    with topic.subscribe("s", start="earliest", policy=HASTY) as stream:
        (first,) = taken(stream, 1)
        (again,) = taken(stream, 1)
        assert (first.attempt, again.attempt) == (1, 2)


def test_what_another_acked_is_not_handed_out(db):
    """Records that waited too long for one program are another's, and after its ack nobody's."""
    topic = filled(db, 4)
    with topic.subscribe("s", start="earliest", policy=PATIENT) as idle:
        waits(idle, 4)
        with topic.subscribe("s") as busy:
            topic.set_subscription("s", policy=HASTY)
            until(lambda: busy._inbox._waiting)
            topic.set_subscription("s", policy=PATIENT)
            some = taken(busy, 1)
            while (one := busy.receive(QUIET_S)) is not None:
                some.append(one)
            busy.ack(some)
            others = taken(idle, 4 - len(some))
            assert is_quiet(idle)
            assert sorted(offsets(some + others)) == [0, 1, 2, 3]
            assert {each.attempt for each in some + others} == {1}


def test_what_a_client_acked_is_not_handed_out(tmp_path):
    """An ack by offset, as the wire has them, takes a record out of the inbox where it waits."""

    async def work(db, deliveries, settings):
        topic = filled(db, 4)
        db.subscribing.share(deliveries, settings, asyncio.get_running_loop())
        stream = await asyncio.to_thread(topic.subscribe, "s", start="earliest")
        await until_on_loop(lambda: len(stream._inbox._waiting) == 4)
        client = Collector(deliveries.find("/default/t", "s"))
        client.ack(1)
        client.ack(2)
        await until_on_loop(lambda: sorted(client.acked) == [1, 2])
        await client.nack(0)
        assert offsets(await asyncio.to_thread(taken, stream, 1)) == [3]
        assert await asyncio.to_thread(is_quiet, stream)
        await asyncio.to_thread(stream.close)

    run(tmp_path, work)


@pytest.mark.parametrize("how", ["close", "displace"])
def test_a_stream_that_ends_does_not_count_what_was_not_taken(db, how):
    """Programs that come and go leave records that none of them took as they were."""
    topic = filled(db, 3)
    options = {"start": "earliest", "consumer": "me", "policy": AT_ONCE}
    stream = topic.subscribe("s", **options)
    for _ in range(3):
        waits(stream, 3)
        (one,) = taken(stream, 1)
        one.ack()
        topic.append(b"more")
        waits(stream, 3)
        if how == "close":
            stream.close()
        before, stream = stream, topic.subscribe("s", **options)
        before.close()
    some = taken(stream, 3)
    assert {each.attempt for each in some} == {1}
    stream.close()
    with topic.subscribe("s") as stream:
        assert {each.attempt for each in taken(stream, 3)} == {2}


# -- deliveries that are over ------------------------------------------------------------------


def is_over(call, *arguments, **options):
    """Call something of a delivery that is over."""
    with pytest.raises(Conflict, match="the delivery is over"):
        call(*arguments, **options)
    return True


def test_the_ack_of_a_delivery_that_timed_out_is_refused(db):
    """The record is with the program as another delivery, and only that one's ack counts."""
    topic = filled(db, 1)
    with topic.subscribe("s", start="earliest", policy=HASTY) as stream:
        (old,) = taken(stream, 1)
        waits(stream, 1)
        topic.set_subscription("s", policy=PATIENT)
        (again,) = taken(stream, 1)
        assert again.attempt == 2
        assert is_over(old.ack)
        assert is_over(old.nack, reason="late")
        assert is_over(old.extend, 10)
        assert lag(topic) == 1
        again.ack()
        assert lag(topic) == 0
        assert is_over(old.ack)


def test_a_previous_owner_cannot_ack(db):
    """What a stream gave back when it was closed is the next one's, also when that one acked it."""
    topic = filled(db, 2)
    with topic.subscribe("s", start="earliest") as stream:
        old = taken(stream, 2)
    assert is_over(old[0].ack)
    with topic.subscribe("s") as stream:
        some = taken(stream, 2)
        assert is_over(old[0].ack)
        assert is_over(stream.ack, old)
        assert lag(topic) == 2
        stream.ack(some)
        assert is_over(old[1].nack)
        assert lag(topic) == 0


def test_what_a_delivery_said_may_be_said_again(db):
    """A second ack is answered like the first, so is a second nack; the other word is refused."""
    topic = filled(db, 3)
    with topic.subscribe("s", start="earliest", policy=AT_ONCE) as stream:
        acked, given_back, other = taken(stream, 3)
        both = [in_thread(acked.ack) for _ in range(2)]
        assert [end() for end in both] == [None, None]
        acked.ack()
        given_back.nack()
        given_back.nack()
        assert is_over(given_back.ack)
        assert is_over(acked.nack)
        (again,) = taken(stream, 1)
        assert (again.offset, again.attempt) == (1, 2)
        assert is_over(given_back.ack)
        stream.ack([other, acked, other, again])
        assert lag(topic) == 0


def test_acks_of_many_settle_what_they_can(db):
    """The ack reports a delivery that is over, and settles the others all the same."""
    topic = filled(db, 4)
    policy = {"base_redelivery_delay_ms": 3_600_000, "max_redelivery_delay_ms": 3_600_000}
    with topic.subscribe("s", start="earliest", policy=policy) as stream:
        some = taken(stream, 4)
        some[2].nack()
        assert is_over(stream.ack, some)
        assert lag(topic) == 1


def test_deliveries_from_before_a_reset_are_over(db):
    """What came before it has no effect on what comes after it, which is all of it once more."""
    topic = filled(db, 4)
    with topic.subscribe("s", start="earliest") as stream:
        old = taken(stream, 4)
        topic.reset_subscription("s", "earliest")
        waits(stream, 4)
        for each in old:
            assert is_over(each.ack)
        assert is_over(old[0].nack)
        assert lag(topic) == 4
        some = taken(stream, 4)
        assert [(each.offset, each.attempt) for each in some] == [(n, 1) for n in range(4)]
        stream.ack(some)
        assert lag(topic) == 0


def test_what_waits_is_gone_with_a_reset_by_whomever(tmp_path):
    """A broker's reset takes out of a program's inbox what was delivered before it."""

    async def work(db, deliveries, settings):
        topic = filled(db, 4)
        db.subscribing.share(deliveries, settings, asyncio.get_running_loop())
        stream = await asyncio.to_thread(topic.subscribe, "s", start="earliest")
        await until_on_loop(lambda: len(stream._inbox._waiting) == 4)
        await deliveries.reset("/default/t", "s", 2)
        assert offsets(await asyncio.to_thread(taken, stream, 2)) == [2, 3]
        assert await asyncio.to_thread(is_quiet, stream)
        await asyncio.to_thread(stream.close)

    run(tmp_path, work)


# -- more time ---------------------------------------------------------------------------------


def test_a_delivery_may_have_more_time(db):
    """Of two records the one that was given more time stays with the program, the other does not."""
    topic = filled(db, 2)
    with topic.subscribe("s", start="earliest", policy=PATIENT) as stream:
        first, second = taken(stream, 2)
        first.extend(3600)
        topic.set_subscription("s", policy=HASTY)
        again = taken(stream, 3)
        assert [(each.offset, each.attempt) for each in again] == [(1, 2), (1, 3), (1, 4)]
        first.ack()
        assert is_over(second.extend, 3600)
        assert is_over(first.extend, 3600)
        for wrong in (-1, "soon", True, float("nan")):
            with pytest.raises(InvalidRequest, match="seconds"):
                again[-1].extend(wrong)
        assert lag(topic) == 1


def test_more_time_is_never_less(db):
    """What is asked for counts from now on, and takes nothing of the time that the policy gives."""
    topic = filled(db, 1)
    policy = {"ack_timeout_ms": 3_600_000, **AT_ONCE}
    with topic.subscribe("s", start="earliest", policy=policy) as stream:
        (one,) = taken(stream, 1)
        one.extend(0)
        assert is_quiet(stream)
        one.ack()


def test_more_time_ends(db):
    """A record whose extended time is over comes again."""
    topic = filled(db, 1)
    with topic.subscribe("s", start="earliest", policy=PATIENT) as stream:
        (one,) = taken(stream, 1)
        one.extend(0.3)
        topic.set_subscription("s", policy=HASTY)
        (again,) = taken(stream, 1)
        assert again.attempt == 2
        assert is_over(one.ack)


def test_deliveries_under_asyncio_end_and_are_extended_alike(tmp_path):
    """Acks of what is over are refused there, too, and more time is given."""

    async def main():
        async with AsyncEngine(open_small(tmp_path)) as db:
            topic = await db.create_topic("t")
            await topic.append_many([b"0", b"1"])
            async with topic.subscribe("s", start="earliest", policy=PATIENT) as stream:
                first, second = [await stream.receive(WAIT_S) for _ in range(2)]
                await first.extend(3600)
                await topic.set_subscription("s", policy=HASTY)
                again = await stream.receive(WAIT_S)
                assert (again.offset, again.attempt) == (1, 2)
                for call in (second.ack, second.nack):
                    with pytest.raises(Conflict, match="the delivery is over"):
                        await call()
                with pytest.raises(Conflict, match="the delivery is over"):
                    await stream.ack([first, second])
            (facts,) = await topic.subscriptions()
            assert (facts["lag_records"], facts["acked_below"]) == (1, 1)

    asyncio.run(main())


def test_a_program_has_values_of_its_own(db):
    """What it does to attributes, lists and structs of a record another subscription does not see."""
    messages = db.create_topic("m")
    messages.append(b"x", attributes={"a": "1"})
    rows = db.create_topic("rows", {"tags": "list<string>", "at": "struct<x:long>"})
    rows.append({"tags": ["one"], "at": {"x": 1}})
    for name in ("first", "second"):
        with messages.subscribe(name, start="earliest") as stream:
            (one,) = taken(stream, 1)
            assert one.value.attributes == {"a": "1"}
            one.value.attributes["a"] = "2"
        with rows.subscribe(name, start="earliest") as stream:
            (one,) = taken(stream, 1)
            assert (one.value["tags"], one.value["at"]) == (["one"], {"x": 1})
            one.value["tags"].append("two")
            one.value["at"]["x"] = 2
