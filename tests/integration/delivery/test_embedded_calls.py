"""Subscriptions of a program from outside: listed, put elsewhere, removed, configured."""

from __future__ import annotations

import datetime as dt
import threading
import time

import pytest

from frazil import FailurePolicy
from frazil.errors import Conflict, InvalidRequest, NotFound
from frazil.subscribe import Backoff, Poison
from tests.integration.delivery.test_embedded import (
    filled,
    is_quiet,
    offsets,
    taken,
    until,
)
from tests.integration.engine.opening import open_small

RECORD_BYTES = 1000


@pytest.fixture
def db(tmp_path):
    engine = open_small(tmp_path)
    yield engine
    engine.close()


def facts_of(topic, name="s"):
    (found,) = [each for each in topic.subscriptions() if each["name"] == name]
    return found


def test_a_list_says_how_far_behind_each_subscription_is(tmp_path):
    """Lag is what is not acked: in records, about its bytes, and the age of the oldest."""
    with open_small(tmp_path) as db:
        topic = db.create_topic("t")
        topic.append_many([b"x" * RECORD_BYTES] * 100)
        with topic.subscribe("s", start="earliest", max_unacked=50, consumer="me") as stream:
            some = taken(stream, 50)
            stream.ack(some[:20] + some[30:40])
            # The window is filled up again: twenty that are left, and thirty new ones.
            until(lambda: facts_of(topic)["unacked"] == 50)
            published = some[20].time.timestamp()
            least_s = dt.datetime.now(dt.UTC).timestamp() - published
            facts = facts_of(topic)
            most_s = dt.datetime.now(dt.UTC).timestamp() - published
            assert facts["lag_records"] == 70
            assert (facts["acked_below"], facts["head"]) == (20, 100)
            assert facts["consumers"] == ["me"]
            assert 0.9 * 70 * RECORD_BYTES < facts["lag_bytes"] < 1.2 * 70 * RECORD_BYTES
            # However long it takes: the age lies between a look at the clock before and one behind.
            assert least_s - 0.001 <= facts["lag_seconds"] <= most_s + 0.001
        topic.subscribe("late").close()
        assert facts_of(topic, "late")["lag_records"] == 0
        assert facts_of(topic, "late")["lag_seconds"] == 0.0
    with open_small(tmp_path) as db:
        facts = facts_of(db.topic("t"))
        assert not db.subscribing.is_running
        assert (facts["lag_records"], facts["consumers"], facts["unacked"]) == (70, [], 0)
        assert (facts["type"], facts["max_unacked"]) == ("shared", 50)


def test_bytes_are_counted_once_wherever_they_are(db):
    """Records in files of the disk tier and in the log as well are counted once."""
    topic = db.create_topic("t")
    topic.append_many([bytes([n % 251]) * RECORD_BYTES for n in range(200)])
    db.subscriptions.create("t", "s", start="earliest")
    before = facts_of(topic)["lag_bytes"]
    db.tiers.flush("t")
    after = facts_of(topic)["lag_bytes"]
    assert 0 < after <= before
    topic.append_many([b"y" * RECORD_BYTES] * 100)
    more = facts_of(topic)["lag_bytes"] - after
    assert 0.5 * 100 * RECORD_BYTES < more < 2 * 100 * RECORD_BYTES
    db.subscriptions.reset("t", "s", 250)
    assert 0 < facts_of(topic)["lag_bytes"] <= more


@pytest.mark.parametrize(("to", "expected"), [("earliest", 0), ("latest", 10), (7, 7), ("time", 5)])
def test_a_subscription_is_put_somewhere_else(tmp_path, to, expected):
    """By word, offset or time, back or ahead; it stays there with consumers and without."""
    with open_small(tmp_path) as db:
        topic = filled(db, 5)
        time.sleep(0.01)
        moment = dt.datetime.now(dt.UTC)
        topic.append_many([b"later"] * 5)
        with topic.subscribe("s", start="earliest") as stream:
            stream.ack(taken(stream, 6))
        place = moment if to == "time" else to
        assert topic.reset_subscription("s", place) == {"/default/t": expected}
    with open_small(tmp_path) as db, db.topic("t").subscribe("s") as stream:
        assert offsets(taken(stream, 10 - expected)) == list(range(expected, 10))
        assert is_quiet(stream)


def test_a_consumer_goes_on_from_where_its_subscription_was_put(db):
    """What waited for it is dropped, and what it got before comes again, in order."""
    topic = filled(db)
    with topic.subscribe("s", start="earliest", max_unacked=10) as stream:
        stream.ack(taken(stream, 4))
        until(lambda: facts_of(topic)["unacked"] == 6)
        topic.reset_subscription("s", 2)
        again = taken(stream, 8)
        assert offsets(again) == list(range(2, 10))
        stream.ack(again)
        assert is_quiet(stream)


def test_places_that_do_not_exist_are_refused(db):
    """A reset beyond the head, of no subscription or of no topic changes nothing."""
    topic = filled(db)
    topic.subscribe("s", start=3).close()
    with pytest.raises(InvalidRequest, match="within the topic's records"):
        topic.reset_subscription("s", 11)
    with pytest.raises(NotFound, match="no such subscription"):
        topic.reset_subscription("other", "earliest")
    with pytest.raises(NotFound):
        db.subscriptions.reset("nothing", "s", "earliest")
    assert facts_of(topic)["acked_below"] == 3


def test_a_subscription_that_nobody_consumes_keeps_its_place(tmp_path):
    """Made by a call of its own, once; a removed one is gone with its settings."""
    with open_small(tmp_path) as db:
        filled(db)
        db.subscriptions.create("t", "s", type="failover", start=4)
        with pytest.raises(Conflict):
            db.subscriptions.create("t", "s")
    with open_small(tmp_path) as db:
        topic = db.topic("t")
        assert facts_of(topic)["type"] == "failover"
        assert facts_of(topic)["lag_records"] == 6
        topic.set_subscription("s", max_unacked=77)
        topic.unsubscribe("s")
        with pytest.raises(NotFound):
            topic.unsubscribe("s")
        assert topic.subscriptions() == []
        with topic.subscribe("s") as stream:
            assert stream.type == "shared"
            assert facts_of(topic)["max_unacked"] == 10


def test_policies_are_kept_and_used(tmp_path):
    """A policy may come before its subscription; fields that are not named stay as they are."""
    with open_small(tmp_path) as db:
        topic = filled(db, 2)
        topic.set_subscription("s", policy={"max_redelivery_count": 1, "poison": "drop"})
        found = topic.set_subscription(
            "s", policy={"base_redelivery_delay_ms": 0, "backoff": "fixed"}
        )
        expected = FailurePolicy(
            max_redelivery_count=1,
            poison=Poison.DROP,
            base_redelivery_delay_ms=0,
            backoff=Backoff.FIXED,
        )
        assert found == expected
    with open_small(tmp_path) as db:
        topic = db.topic("t")
        assert topic.subscription_policy("s") == expected
        with topic.subscribe("s", start="earliest") as stream:
            for _ in range(2):
                for one in taken(stream, 2):
                    one.nack()
            until(lambda: facts_of(topic)["lag_records"] == 0)
            # In use at once: the next record is not dropped.
            topic.set_subscription("s", policy={"poison": "block", "max_redelivery_count": 0})
            topic.append(b"stuck")
            taken(stream, 1)[0].nack(reason="bad")
            until(lambda: facts_of(topic)["blocked"] == 1)


def test_a_policy_has_the_full_name_of_its_dead_letter_topic(db):
    """However it is given: as a policy or as a mapping."""
    topic = filled(db, 0)
    given = {"poison": Poison.DEAD_LETTER, "dead_letter_topic": "dead"}
    for policy in (given, FailurePolicy(**given)):
        assert topic.set_subscription("s", policy=policy).dead_letter_topic == "/default/dead"
    with pytest.raises(InvalidRequest, match="topic name"):
        topic.set_subscription("s", policy=FailurePolicy(**{**given, "dead_letter_topic": "a/b"}))


def test_policies_that_cannot_work_are_refused(db):
    """Nothing of a refused policy is kept, and a table's rows have no dead letters."""
    topic = filled(db)
    rows = db.create_topic("rows", {"id": "long"})
    letters = {"poison": "dead_letter", "dead_letter_topic": "dead"}
    with pytest.raises(InvalidRequest, match="takes messages"):
        rows.set_subscription("s", policy=letters)
    with pytest.raises(InvalidRequest, match="takes rows"):
        topic.set_subscription("s", policy={**letters, "dead_letter_topic": "rows"})
    with pytest.raises(InvalidRequest, match="its own"):
        topic.set_subscription("s", policy={**letters, "dead_letter_topic": "t"})
    with pytest.raises(InvalidRequest, match="too long"):
        topic.set_subscription("s", policy={"ack_timeout_ms": 10**15})
    with pytest.raises(NotFound):
        db.subscriptions.alter("nothing", "s", max_unacked=1)
    parts = db.create_topic("p", partitions=2)
    with pytest.raises(InvalidRequest, match="its own"):
        parts.set_subscription("s", policy={**letters, "dead_letter_topic": "p"})
    assert topic.subscription_policy("s") == FailurePolicy()


def test_the_thread_of_subscriptions_ends_with_the_engine(tmp_path):
    """It is started by the first subscription, and none of its threads is left behind."""
    before = set(threading.enumerate())

    def names():
        return {each.name.partition("_")[0] for each in set(threading.enumerate()) - before}

    with open_small(tmp_path) as db:
        topic = filled(db)
        assert topic.subscriptions() == []
        assert "frazil-subscriptions" not in names()
        with topic.subscribe("s", start="earliest") as stream:
            taken(stream, 3)
            assert "frazil-subscriptions" in names()
    until(lambda: not names() & {"frazil-subscriptions", "frazil-feed", "asyncio"})
    assert "frazil-subscriptions" not in names()
