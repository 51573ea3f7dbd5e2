"""Subscriptions in a program: iterated over, acked, given back, ended."""

from __future__ import annotations

import gc
import threading
import time

import pytest

import frazil
from frazil import FailurePolicy
from frazil.errors import Closed, Conflict, InvalidRequest, NotFound, Overloaded, Unavailable
from frazil.subscribe import Poison, cursors
from tests.integration.engine.opening import open_small
from tests.integration.engine.test_failures import FailsWhenTold

WAIT_S = 60
"""How long something that must come is waited for."""
QUIET_S = 0.2
"""How long something that must not come is."""
AT_ONCE = {"base_redelivery_delay_ms": 0, "max_redelivery_delay_ms": 0}


@pytest.fixture
def db(tmp_path):
    engine = open_small(tmp_path)
    yield engine
    engine.close()


def filled(db, count=10, name="t"):
    topic = db.create_topic(name)
    if count:
        topic.append_many([b"%d" % number for number in range(count)])
    return topic


def taken(stream, count):
    """Take so many deliveries; they must come."""
    found = []
    for _ in range(count):
        one = stream.receive(WAIT_S)
        assert one is not None, f"only {len(found)} of {count} came"
        found.append(one)
    return found


def is_quiet(stream):
    return stream.receive(QUIET_S) is None


def until(condition):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def offsets(deliveries):
    return [each.offset for each in deliveries]


def in_thread(work):
    """Run something that waits; return a call that gives what came of it."""
    came = []

    def run():
        try:
            came.append(work())
        except Exception as error:  # noqa: BLE001 - the top of a thread, and what the test looks at
            came.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def ended():
        thread.join(WAIT_S)
        assert not thread.is_alive()
        return came[0]

    return ended


def test_a_closed_stream_gives_back_what_was_not_acked(db):
    """The next consumer gets the records again, as their second delivery."""
    topic = filled(db)
    with topic.subscribe("s", start="earliest") as stream:
        some = taken(stream, 5)
        stream.ack(some[::2])
    with topic.subscribe("s") as stream:
        again = taken(stream, 7)
    assert sorted(offsets(again)) == [1, 3, 5, 6, 7, 8, 9]
    assert {each.offset: each.attempt for each in again if each.offset in (1, 3)} == {1: 2, 3: 2}


def test_a_stream_that_is_forgotten_gives_its_records_back(db):
    """Breaking out of a loop does not keep records from others until they time out."""
    topic = filled(db)
    for delivery in topic.subscribe("s", start="earliest", max_unacked=10):
        assert delivery.offset == 0
        break
    gc.collect()
    until(lambda: topic.subscriptions()[0]["consumers"] == [])
    with topic.subscribe("s") as stream:
        assert sorted(offsets(taken(stream, 10))) == list(range(10))


def test_what_waits_for_a_program_is_bounded(db):
    """A program that takes nothing holds `prefetch` records, or a few of `prefetch_bytes`."""
    topic = filled(db, 0)
    topic.append_many([b"x" * 1000] * 2000)
    for name, options, most in (("n", {"prefetch": 7}, 7), ("b", {"prefetch_bytes": 5000}, 6)):
        with topic.subscribe(name, start="earliest", max_unacked=2000, **options) as stream:
            until(lambda s=stream, few=most - 1: len(s._inbox._waiting) >= few)
            held = next(one for one in topic.subscriptions() if one["name"] == name)
            assert held["unacked"] <= most
            assert len(stream._inbox._waiting) <= most
            for number in range(300):
                (one,) = taken(stream, 1)
                assert one.offset == number
                assert len(stream._inbox._waiting) <= 2 * most


def test_an_exclusive_subscription_has_one_consumer(db):
    """The second one is refused and changes nothing, until the first is gone."""
    topic = filled(db)
    with topic.subscribe("s", type="exclusive", start="earliest", max_unacked=3) as first:
        with pytest.raises(Conflict, match="another consumer"):
            topic.subscribe("s", type="exclusive", max_unacked=8)
        assert topic.subscriptions()[0]["max_unacked"] == 3
        assert offsets(taken(first, 1)) == [0]
    with topic.subscribe("s", type="exclusive") as second:
        assert offsets(taken(second, 1)) == [0]


def test_a_consumer_of_the_same_name_takes_over(db):
    """The one before ends with an error that says so; its records go to the new one."""
    topic = filled(db)
    first = topic.subscribe("s", type="exclusive", start="earliest", consumer="me")
    assert offsets(taken(first, 2)) == [0, 1]
    with topic.subscribe("s", consumer="me") as second:
        assert second.type == "exclusive"
        with pytest.raises(Conflict, match="replaced this one"):
            first.receive(WAIT_S)
        assert sorted(offsets(taken(second, 10))) == list(range(10))
        first.close()
        assert topic.subscriptions()[0]["consumers"] == ["me"]


@pytest.mark.parametrize("how", ["delete", "remove", "close"])
def test_a_waiting_consumer_gets_the_error_that_ended_it(tmp_path, how):
    """Deleting the topic, removing the subscription or closing the engine wakes the consumer."""
    db = open_small(tmp_path)
    topic = filled(db, 2)
    stream = topic.subscribe("s", start="earliest")
    first, second = taken(stream, 2)
    first.ack()
    came = in_thread(stream.receive)
    {"delete": lambda: db.delete_topic("t"), "remove": lambda: topic.unsubscribe("s")}.get(
        how, db.close
    )()
    expected = Closed if how == "close" else NotFound
    assert isinstance(came(), expected)
    with pytest.raises(expected):
        next(stream)
    with pytest.raises(expected):
        second.ack()
    with pytest.raises(expected):
        second.nack()
    stream.close()
    if how != "remove":
        with pytest.raises(expected):
            topic.subscribe("s")
    db.close()


def test_nobody_waits_for_ever_for_an_engine_that_closes(tmp_path):
    """Who subscribes, acks, lists or waits while the engine is closed is answered or refused."""
    for _ in range(3):
        db = open_small(tmp_path)
        topic = db.create_topic("t", exist_ok=True)
        begun = threading.Semaphore(0)

        def work(number, topic=topic, begun=begun):
            while True:
                with topic.subscribe(f"s{number % 3}", start="earliest") as stream:
                    begun.release()
                    one = stream.receive(0.01)
                    if one is not None:
                        one.ack()
                    topic.subscriptions()

        ends = [in_thread(lambda number=number: work(number)) for number in range(6)]
        for _ in range(20):
            assert begun.acquire(timeout=WAIT_S)
            topic.append(b"x")
        db.close()
        for end in ends:
            assert isinstance(end(), Closed)


def test_a_disk_that_fails_is_an_error_for_consumers(tmp_path):
    """The ack that met it is in doubt, others are refused with the cause; closing ends."""
    files = FailsWhenTold()
    with open_small(tmp_path, file_system=files) as db:
        topic = filled(db, 3)
        stream = topic.subscribe("s", start="earliest")
        first, second, third = taken(stream, 3)
        first.ack()
        came = in_thread(stream.receive)
        files.broken = True
        # Whether the ack is the first to meet it, or the engine's own upkeep was.
        with pytest.raises((Closed, Unavailable), match="Input/output error"):
            second.ack()
        with pytest.raises((Closed, Unavailable), match="Input/output error"):
            third.ack()
    assert isinstance(came(), Closed)
    stream.close()
    with open_small(tmp_path) as again, again.topic("t").subscribe("s") as stream:
        # The one in doubt may be settled or not; the one that was refused is not.
        assert offsets(taken(stream, 1)) in ([1], [2])


def test_closing_a_stream_ends_an_iteration_elsewhere(db):
    """A loop in another thread ends without an error, and the stream stays ended."""
    topic = filled(db, 3)
    stream = topic.subscribe("s", start="earliest")
    came = in_thread(lambda: offsets(stream))
    until(lambda: topic.subscriptions()[0]["unacked"] == 3 and not stream._inbox._waiting)
    stream.close()
    assert came() == [0, 1, 2]
    assert list(stream) == []
    stream.close()


def test_an_iteration_ends_after_silence(db):
    """With `timeout_s` a loop over a stream without new records ends."""
    topic = filled(db, 3)
    with topic.subscribe("s", start="earliest", timeout_s=0.2) as stream:
        assert offsets(taken(stream, 3)) == [0, 1, 2]
        assert list(stream) == []
        topic.append(b"more")
        assert offsets(taken(stream, 1)) == [3]


def test_threads_that_share_a_stream_get_each_record_once(db):
    """Four threads take and ack 400 records between them; none comes twice."""
    topic = filled(db, 400)
    with topic.subscribe("s", start="earliest", max_unacked=50, prefetch=8) as stream:
        found, lock = [], threading.Lock()

        def work():
            while len(found) < 400:
                one = stream.receive(0.05)
                if one is not None:
                    one.ack()
                    with lock:
                        found.append(one.offset)

        for ended in [in_thread(work) for _ in range(4)]:
            assert ended() is None
    assert sorted(found) == list(range(400))
    assert topic.subscriptions()[0]["lag_records"] == 0


def test_given_back_records_come_again_until_the_policy_ends_it(db):
    """Attempts count up; a record that failed too often is dropped, as the policy says."""
    topic = filled(db, 2)
    policy = FailurePolicy(max_redelivery_count=2, poison=Poison.DROP, **AT_ONCE)
    with topic.subscribe("s", start="earliest", policy=policy) as stream:
        attempts = []
        while len(attempts) < 3:
            (one,) = taken(stream, 1)
            if one.offset == 0:
                attempts.append(one.attempt)
                one.nack(reason="not today")
            else:
                one.ack()
        assert attempts == [1, 2, 3]
        until(lambda: topic.subscriptions()[0]["lag_records"] == 0)
        assert is_quiet(stream)


def test_dead_letters_go_to_their_topic(db):
    """A message that failed too often is published elsewhere, with the reason."""
    topic = filled(db, 1)
    policy = {"max_redelivery_count": 0, "poison": "dead_letter", "dead_letter_topic": "dead"}
    with topic.subscribe("s", start="earliest", policy=policy) as stream:
        taken(stream, 1)[0].nack(reason="cannot be used")
        until(lambda: "/default/dead" in db.topics())
        with db.topic("dead").subscribe("look", start="earliest") as dead:
            (letter,) = taken(dead, 1)
        assert letter.value.payload == b"0"
        assert letter.value.attributes["x-failure-reason"] == "cannot be used"
        assert letter.value.attributes["x-original-subscription"] == "s"


def test_a_delay_that_is_asked_for_is_kept(db):
    """A record given back for a long time does not come before; a negative time is refused."""
    topic = filled(db, 1)
    policy = {"base_redelivery_delay_ms": 0, "max_redelivery_delay_ms": 3_600_000}
    with topic.subscribe("s", start="earliest", policy=policy) as stream:
        (one,) = taken(stream, 1)
        with pytest.raises(InvalidRequest, match="delay_s"):
            one.nack(delay_s=-1)
        one.nack(delay_s=3600)
        assert is_quiet(stream)
        assert topic.subscriptions()[0]["lag_records"] == 1


def test_one_stream_has_all_parts_of_a_topic(db):
    """Deliveries say of which part they are, and acks go to that part."""
    topic = db.create_topic("p", partitions=3)
    acks = [topic.append(b"%d" % number, key=f"key-{number}") for number in range(30)]
    with topic.subscribe("s", start="earliest", max_unacked=30) as stream:
        some = taken(stream, 30)
        assert {(each.part, each.offset) for each in some} == {(a.part, a.offset) for a in acks}
        assert {each.topic for each in some} == {f"/default/p-part-{n}" for n in range(3)}
        stream.ack([each for each in some if each.part != 1])
    mine = sum(1 for each in some if each.part == 1)
    (facts,) = topic.subscriptions()
    assert (facts["lag_records"], facts["topic"]) == (mine, "/default/p")
    assert [each["lag_records"] for each in facts["parts"]] == [0, mine, 0]
    with topic.subscribe("s") as stream:
        assert {each.part for each in taken(stream, mine)} == {1}
        assert is_quiet(stream)
    with pytest.raises(InvalidRequest, match="one part"):
        topic.reset_subscription("s", 0)
    assert set(topic.reset_subscription("s", "earliest").values()) == {0}
    assert topic.parts[0].subscriptions()[0]["lag_records"] == 30 - mine - len(
        [each for each in some if each.part == 2]
    )


def test_no_part_is_taken_when_one_is_refused(db):
    """A consumer that cannot have all parts of an exclusive subscription has none."""
    topic = db.create_topic("p", partitions=2)
    with topic.parts[1].subscribe("s", type="exclusive"):
        with pytest.raises(Conflict):
            topic.subscribe("s", type="exclusive")
        assert topic.parts[0].subscriptions()[0]["consumers"] == []


def test_key_filters_choose_what_a_consumer_gets(db):
    """Of a `key_shared` subscription each consumer gets the keys it asked for."""
    topic = db.create_topic("t")
    for number in range(8):
        topic.append(b"%d" % number, key=("red-" if number % 2 else "blue-") + str(number))
    options = {"type": "key_shared", "start": "earliest"}
    with (
        topic.subscribe("s", key_filters=["red-*"], **options) as red,
        topic.subscribe("s", key_filters=["blue-*"], **options) as blue,
    ):
        assert sorted(offsets(taken(red, 4))) == [1, 3, 5, 7]
        assert sorted(offsets(taken(blue, 4))) == [0, 2, 4, 6]


def test_what_cannot_be_asked_for_is_refused_with_the_reason(db):
    """Wrong options name themselves, and leave no subscription behind."""
    topic = filled(db)
    for options, word in [
        ({"type": "sharded"}, "type must be one of"),
        ({"start": "soon"}, "earliest"),
        ({"start": 99}, "within the topic's records"),
        ({"max_unacked": 0}, "max_unacked"),
        ({"max_unacked": 10_000_000}, "max_unacked"),
        ({"prefetch": 0}, "prefetch"),
        ({"prefetch_bytes": 0}, "prefetch_bytes"),
        ({"timeout_s": -1}, "timeout_s"),
        ({"key_filters": "red"}, "key_filters"),
        ({"consumer": ""}, "consumer"),
        ({"policy": {"poisn": 1}}, "unknown field"),
        ({"policy": {"poison": "dead_letter"}}, "dead_letter_topic"),
        ({"policy": {"poison": "dead_letter", "dead_letter_topic": "t"}}, "its own subscriptions"),
        ({"policy": {"ack_timeout_ms": "soon"}}, "whole numbers"),
    ]:
        with pytest.raises(InvalidRequest, match=word):
            topic.subscribe("s", **options)
    with pytest.raises(InvalidRequest, match="name"):
        topic.subscribe("")
    assert topic.subscriptions() == []


def test_a_topic_has_a_bounded_number_of_subscriptions(tmp_path, monkeypatch):
    """Beyond the limit a new one is refused, those that exist go on."""
    monkeypatch.setattr(cursors, "SUBSCRIPTIONS_MAX", 2)
    with frazil.open(tmp_path) as db:
        topic = db.create_topic("t", lake=False)
        for name in ("a", "b"):
            topic.subscribe(name).close()
        with pytest.raises(Overloaded, match="too many subscriptions"):
            topic.subscribe("c")
        with topic.subscribe("a") as stream:
            assert stream.name == "a"
        assert [each["name"] for each in topic.subscriptions()] == ["a", "b"]
