"""Changes in bulk from idempotent producers: what is sent again is written once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from frazil.errors import Conflict, InvalidRequest
from frazil.topic import STEPS_MAX
from tests.integration.engine.opening import open_small

COUNT = 2 * STEPS_MAX + 10
COLUMNS = {"id": "long", "v": "long"}


def create(engine, policy="error", **options):
    return engine.create_topic("t", COLUMNS, primary_key="id", unknown_key=policy, **options)


@pytest.fixture
def topic(engine):
    """Return a strict topic."""
    return create(engine)


def bulk(ids, op, v=1):
    ids = list(ids)
    return pa.table({"id": ids, "v": [v] * len(ids), "_op": [op] * len(ids)})


def events(ids, op):
    """Return Debezium's events of one kind."""
    image = "before" if op == "d" else "after"
    return [{"op": op, image: {"id": each, "v": 1}} for each in ids]


def head(topic):
    return topic.stats()["head"]


@pytest.mark.parametrize("policy", ["ignore", "insert", "error"])
@pytest.mark.parametrize("form", [bulk, events])
def test_a_repeat_of_a_bulk_gets_the_first_ack(tmp_path, form, policy):
    """Inserts, updates and deletes sent twice are written once, also over a restart."""
    words = {bulk: ("insert", "update", "delete"), events: ("c", "u", "d")}[form]
    calls = [(form(range(COUNT), op), number * COUNT) for number, op in enumerate(words)]
    acks = []
    with open_small(tmp_path) as engine:
        topic = create(engine, policy)
        for data, sequence in calls:
            acks.append(topic.append_changes(data, producer="p", sequence=sequence))
            assert topic.append_changes(data, producer="p", sequence=sequence) == acks[-1]
        assert head(topic) == 3 * COUNT
    with open_small(tmp_path) as engine:
        topic = engine.topic("t")
        data, sequence = calls[-1]
        assert topic.append_changes(data, producer="p", sequence=sequence) == acks[-1]
        assert head(topic) == 3 * COUNT
        ack = topic.append_changes(form([7], words[0]), producer="p", sequence=3 * COUNT)
        assert ack.offset == 3 * COUNT


def test_a_repeat_is_not_resolved_against_what_came_since(topic):
    """An update sent again does not undo a later one of another producer."""
    topic.insert(id=1, v=0)
    first = topic.append_changes(bulk([1], "update", v=1), producer="p", sequence=0)
    topic.update(1, {"v": 2})
    again = topic.append_changes(bulk([1], "update", v=1), producer="p", sequence=0)
    assert again == first
    assert topic.get(1) == {"id": 1, "v": 2}


def test_a_repeat_writes_what_was_not_written(topic):
    """Of a bulk whose first write alone was made a repeat makes the others."""
    topic.append_changes(bulk(range(STEPS_MAX), "insert"), producer="p", sequence=0)
    data = bulk(range(COUNT), "insert")
    ack = topic.append_changes(data, producer="p", sequence=0)
    assert (ack.offset, ack.offset_last) == (0, COUNT - 1)
    assert head(topic) == COUNT
    assert topic.append_changes(data, producer="p", sequence=0) == ack


@pytest.mark.parametrize("op", ["insert", "update", "delete"])
def test_a_gap_is_a_conflict_whatever_the_keys_are(topic, op):
    """A sequence that leaves one out, or is forgotten, is refused as such, and so is an old epoch."""
    for number in range(7):
        topic.append_changes(
            bulk([number], "insert"), producer="p", sequence=number, producer_epoch=1
        )
    for key in (0, 99):
        data = bulk([key], op)
        with pytest.raises(Conflict, match="gap"):
            topic.append_changes(data, producer="p", sequence=8, producer_epoch=1)
        with pytest.raises(Conflict, match="older"):
            topic.append_changes(data, producer="p", sequence=0, producer_epoch=1)
        with pytest.raises(Conflict, match="fenced"):
            topic.append_changes(data, producer="p", sequence=7)
    assert head(topic) == 7


def test_a_bulk_that_could_not_be_sent_again_is_refused(topic):
    """More frames than the window remembers are too many for one call of a producer."""
    with pytest.raises(InvalidRequest, match="too large") as caught:
        topic.append_changes(bulk(range(5 * STEPS_MAX + 1), "insert"), producer="p", sequence=0)
    assert caught.value.details["frames"] == 7
    with pytest.raises(InvalidRequest, match="sequence"):
        topic.append_changes(bulk([1, 2], "insert"), producer="p", sequence=2**63 - 1)
    assert head(topic) == 0


def test_many_tries_at_once_write_a_bulk_once(tmp_path):
    """Threads that send the same inserts at the same time all get the one ack."""
    with open_small(tmp_path, write_bytes_max=1 << 20) as engine:
        topic = create(engine)
        for turn in range(10):
            ids = range(turn * 1500, (turn + 1) * 1500)
            together = threading.Barrier(4)

            def send(_number, ids=ids, together=together):
                together.wait()
                return topic.append_changes(bulk(ids, "insert"), producer="p", sequence=ids[0])

            with ThreadPoolExecutor(4) as pool:
                answers = list(pool.map(send, range(4)))
            assert len(set(answers)) == 1, answers
            assert (answers[0].offset, answers[0].offset_last) == (ids[0], ids[-1])
        assert head(topic) == 15_000


def before_piece(monkeypatch, topic, number, call):
    """Make a call before one of the writes of the next bulk of a topic."""
    begin, turns = topic.begin, iter(range(100))

    def counted(*arguments):
        if next(turns) == number:
            call()
        return begin(*arguments)

    monkeypatch.setattr(topic, "begin", counted)


def test_a_key_that_came_in_between_is_a_conflict(topic, monkeypatch):
    """A bulk that another writer's insert ends half way says so, and what was written."""
    before_piece(monkeypatch, topic, 1, lambda: topic.insert(id=COUNT - 1, v=0))
    with pytest.raises(Conflict, match="already") as caught:
        topic.append_changes(bulk(range(COUNT), "insert"))
    # The second write was made: the key is in the third.
    assert caught.value.details["offsets_written"] == "0-999, 1001-2000"


def test_a_sequence_that_another_writer_took_is_a_conflict(engine, monkeypatch):
    """Two writers under one producer's name: the second to use a sequence is refused."""
    topic = create(engine, "ignore")
    other = bulk([1], "update")
    taking = {"producer": "p", "sequence": STEPS_MAX}
    before_piece(monkeypatch, topic, 1, lambda: engine.topic("t").append_changes(other, **taking))
    with pytest.raises(Conflict, match="another batch") as caught:
        topic.append_changes(bulk(range(COUNT), "update"), producer="p", sequence=0)
    assert caught.value.details["offsets_written"] == "0-999"


def test_parts_say_so_too(engine, monkeypatch):
    """A bulk over several parts ends with the conflict of one of them."""
    topic = create(engine, partitions=2)
    key = next(each for each in range(COUNT) if topic.part_of_key(each) == 1)
    before_piece(monkeypatch, topic.parts[1], 0, lambda: engine.topic("t").insert(id=key, v=0))
    with pytest.raises(Conflict, match="already") as caught:
        topic.append_changes(bulk(range(100), "insert"))
    assert caught.value.details["frames_written"] == 1
