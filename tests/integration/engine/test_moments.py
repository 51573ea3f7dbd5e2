"""The moment that a query sees: after an ack, or at an offset or a time of the past."""

from __future__ import annotations

import datetime as dt
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from frazil.errors import InvalidRequest, NotFound, Unavailable
from tests.integration.engine.objects_world import wait_until
from tests.integration.engine.opening import open_small
from tests.support import SimulatedClock

COUNT = "select count(*) from t"


def in_sets(engine, topic, count, tick=None):
    """Append records, each in a flush set of its own."""
    for number in range(count):
        if tick is not None:
            tick()
        topic.append(id=number, v=number)
        engine.tiers.flush(topic.name)


@pytest.mark.parametrize("sql", ["select 1", "select * from t, u"])
def test_a_number_must_be_of_one_topic(engine, sql):
    """A minimal offset for a query of no topic, or of two, is refused with what to give."""
    for name in ("t", "u"):
        engine.create_topic(name, {"id": "long"}).append(id=1)
    with pytest.raises(InvalidRequest, match="of which topic"):
        engine.query(sql, min_offset=0)


def test_a_join_waits_for_each_of_its_topics(engine):
    """A mapping gives each topic of a join its own offset; other topics in it are refused."""
    left = engine.create_topic("t", {"id": "long"})
    right = engine.create_topic("u", {"id": "long"})
    acks = {"t": left.append(id=1), "/default/u": right.append(id=1).offset}
    sql = "select count(*) from t join u using (id)"
    assert engine.query(sql, min_offset=acks).rows() == [(1,)]
    threading.Timer(0.2, lambda: right.append_many([{"id": 1}, {"id": 1}])).start()
    assert engine.query(sql, min_offset={"u": 2}).rows() == [(3,)]
    with pytest.raises(InvalidRequest, match="does not"):
        engine.query(COUNT, min_offset={"u": 0})


@pytest.mark.parametrize("key", [(), ("id",)])
def test_a_partitioned_topic_takes_its_acks(engine, key):
    """Acks of parts, one or several, are waited for; a bare number does not say its part."""
    topic = engine.create_topic("t", {"id": "long"}, primary_key=key, partitions=3)
    acks = topic.append_many([{"id": number} for number in range(30)])
    assert engine.query(COUNT, min_offset=acks).rows() == [(30,)]
    assert engine.query(COUNT, min_offset=acks[0]).rows() == [(30,)]
    assert engine.query(COUNT, min_offset={"t": acks}).rows() == [(30,)]
    with pytest.raises(InvalidRequest, match="of which part"):
        engine.query(COUNT, min_offset=0)


def test_an_offset_that_does_not_come_is_an_error(engine):
    """A query gives up on an offset that nobody writes, with the part that lacks it."""
    query = engine.settings.query.model_copy(update={"wait_s": 0.05})
    engine.settings = engine.settings.model_copy(update={"query": query})
    topic = engine.create_topic("t", {"id": "long"}, partitions=2)
    ack = topic.append(id=1)
    with pytest.raises(Unavailable) as caught:
        engine.query(COUNT, min_offset={f"t-part-{ack.part}": 7})
    assert caught.value.details["topic"] == f"/default/t-part-{ack.part}"


def test_what_is_no_longer_held_cannot_be_seen(tmp_path):
    """A moment before the first held record is an error that names that record's offset."""
    clock = SimulatedClock(1)
    with open_small(tmp_path, clock=clock) as engine:
        # Nobody joins the sets meanwhile.
        engine.tiers.stop()
        topic = engine.create_topic("t", {"id": "long", "v": "long"})
        times = []

        def tick():
            times.append(dt.datetime.fromtimestamp(clock.now_us() / 1e6, dt.UTC))
            clock.advance(10)

        in_sets(engine, topic, 6, tick)
        engine.tiers.retention.expire(topic.runtime.tiers, 3)
        assert engine.query(COUNT, as_of_offset=5).rows() == [(2,)]
        stats = engine.topic_stats("t")
        assert (stats["start"], stats["message_count"]) == (3, 3)
        for past in ({"as_of_offset": 2}, {"as_of_time": times[1]}):
            with pytest.raises(NotFound) as caught:
                engine.query(COUNT, **past)
            assert caught.value.details["offset_first"] == 3


def test_below_what_is_committed_only_boundaries_can_be_seen(tmp_path):
    """A keyed topic is seen where sets end; other moments are refused, by offset and by time."""
    clock = SimulatedClock(1)
    with open_small(tmp_path, clock=clock) as engine:
        # Nobody joins the sets meanwhile.
        engine.tiers.stop()
        topic = engine.create_topic("t", {"id": "long", "v": "long"}, primary_key="id")
        times = []
        for _turn in range(3):
            for number in range(4):
                clock.advance(10)
                topic.append(id=number, v=number)
                times.append(dt.datetime.fromtimestamp(clock.now_us() / 1e6, dt.UTC))
            engine.tiers.flush()
        engine.tiers.disk.set_committed(topic.runtime.state.id, 8)
        for offset in (4, 8, 9):
            assert engine.query(COUNT, as_of_offset=offset).rows() == [(4,)]
        for past in ({"as_of_offset": 6}, {"as_of_time": times[5]}):
            with pytest.raises(InvalidRequest) as caught:
                engine.query(COUNT, **past)
            assert caught.value.details["nearest"] == "4, 8"
        assert engine.query(COUNT, as_of_time=times[3]).rows() == [(4,)]


# -- waiting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sql", [COUNT, "select id from t where id = 1"])
@pytest.mark.parametrize("call", ["query", "explain"])
def test_waiting_for_an_offset_ends_with_the_time_of_the_query(engine, sql, call):
    """A query whose time is shorter than the wait for offsets ends with its time."""
    engine.create_topic("t", {"id": "long"}, primary_key="id").append(id=1)
    # A query that waits until `query.wait_s` is over gets another error.
    with pytest.raises(Unavailable, match="took too long"):
        getattr(engine, call)(sql, min_offset=99, timeout_s=0.1)


def test_a_query_that_waits_for_an_offset_takes_no_turn(engine):
    """More queries than may run wait for offsets, and another one is answered at once."""
    topic = engine.create_topic("t", {"id": "long"})
    topic.append(id=1)
    count = engine.settings.query.concurrency_max + 1
    with ThreadPoolExecutor(count) as pool:
        waiting = [pool.submit(engine.query, COUNT, min_offset=1) for _ in range(count)]
        wait_until(lambda: len(engine.queries()._pool._entered) == count)
        assert engine.query(COUNT).rows() == [(1,)]
        assert not any(each.done() for each in waiting)
        topic.append(id=2)
        assert [each.result(60).rows() for each in waiting] == [[(2,)]] * count


def test_waiting_for_an_offset_can_be_cancelled(engine):
    """Cancelling all queries ends those that wait for offsets as well."""
    engine.create_topic("t", {"id": "long"}).append(id=1)
    with ThreadPoolExecutor() as pool:
        asking = pool.submit(engine.query, COUNT, min_offset=99)
        wait_until(lambda: engine.queries()._pool._entered)
        engine.cancel_queries()
        with pytest.raises(Unavailable, match="cancelled"):
            asking.result(60)
    assert engine.queries()._pool._entered == {}
    assert engine.query(COUNT).rows() == [(1,)]


# -- in the past, by topic and part ----------------------------------------------------------------


@pytest.mark.parametrize("key", [(), ("id",)])
def test_the_past_of_a_partitioned_topic_is_given_by_acks(engine, key):
    """Acks of parts include their own records; parts without one are seen as they are now."""
    topic = engine.create_topic("t", {"id": "long"}, primary_key=key, partitions=3)
    first = topic.append_many([{"id": number} for number in range(30)])
    assert {ack.part for ack in first} == {0, 1, 2}
    later = topic.append_many([{"id": number} for number in range(30, 90)])
    assert engine.query(COUNT, as_of_offset=first).rows() == [(30,)]
    assert engine.query(COUNT, as_of_offset={"t": [*later, *first]}).rows() == [(90,)]
    ack = first[0]
    lost = sum(each.offset_last - each.offset + 1 for each in later if each.part == ack.part)
    assert lost > 0
    assert engine.query(COUNT, as_of_offset=ack).rows() == [(90 - lost,)]
    by_part = {f"t-part-{each.part}": each.offset_last for each in first}
    assert engine.query(COUNT, as_of_offset=by_part).rows() == [(27,)]
    with pytest.raises(InvalidRequest, match="as_of_offset must say of which part"):
        engine.query(COUNT, as_of_offset=4)


def test_the_past_of_a_join_is_given_by_topic(engine):
    """Each topic of a join has its own moment, one that is not named the present."""
    left = engine.create_topic("t", {"id": "long"})
    right = engine.create_topic("u", {"id": "long"})
    acks = [(left.append(id=number), right.append(id=number)) for number in range(4)]
    sql = "select (select count(*) from t), (select count(*) from u)"
    assert engine.query(sql, as_of_offset={"t": 1, "u": 3}).rows() == [(1, 3)]
    moment = {"/default/t": acks[2][0]}
    assert engine.query(sql, as_of_offset=moment).rows() == [(3, 4)]
    assert engine.explain(sql, as_of_offset=moment)["tables"][0]["snapshot"][0]["end"] == 3
    with pytest.raises(InvalidRequest, match="as_of_offset must say of which topic"):
        engine.query(sql, as_of_offset=1)
    with pytest.raises(InvalidRequest, match="does not"):
        engine.query(COUNT, as_of_offset={"u": 1})


def test_an_ack_is_seen_in_its_own_past(engine):
    """As of an ack its records are seen, as of its offset they are not."""
    topic = engine.create_topic("t", {"id": "long"}, primary_key="id")
    acks = [topic.append(id=number) for number in range(3)]
    assert engine.query(COUNT, as_of_offset=acks[1]).rows() == [(2,)]
    assert engine.query(COUNT, as_of_offset=acks[1].offset).rows() == [(1,)]


@pytest.mark.parametrize("wrong", [-1, 3, True, "1", 1.5, {"t": None}, [0, "x"]])
def test_a_wrong_moment_is_refused(engine, wrong):
    """What is no offset of the topic's is no moment."""
    engine.create_topic("t", {"id": "long"}).append_many([{"id": 1}, {"id": 2}])
    with pytest.raises(InvalidRequest):
        engine.query(COUNT, as_of_offset=wrong)
