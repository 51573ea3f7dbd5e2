"""Debezium's changes of a key that take a row from one part of a topic to another."""

from __future__ import annotations

import contextlib
import itertools
import threading

import pyarrow as pa
import pytest

from frazil.errors import Conflict, InvalidRequest, NotFound
from tests.integration.engine.opening import LOG_ALONE, open_small

COLUMNS = {"id": "long", "n": "long", "s": "string"}
PARTS = 4


@pytest.fixture
def engine(tmp_path):
    with open_small(tmp_path) as db:
        yield db


def create(engine, **options):
    options = {"partitions": PARTS, **options}
    return engine.create_topic("p", COLUMNS, primary_key="id", **options)


def apart(topic, count):
    """Return keys of which no two that follow each other share a part."""
    keys = [0]
    while len(keys) < count:
        part = topic.part_of_key(keys[-1])
        keys.append(next(k for k in range(keys[-1] + 1, 9999) if topic.part_of_key(k) != part))
    return keys


def moved(old, new, **columns):
    return {"op": "u", "before": {"id": old}, "after": {"id": new, **columns}}


def rows_of(engine):
    return {row[0]: row[1:] for row in engine.query("SELECT id, n, s FROM p").rows()}


def test_a_row_moves_to_another_part_whole(engine):
    """It keeps what the event does not carry; changes before and behind it keep their order."""
    topic = create(engine)
    one, two, three = apart(topic, 3)
    acks = topic.append_changes(
        [
            {"op": "c", "after": {"id": one, "n": 1, "s": "keep me"}},
            {"op": "u", "after": {"id": one, "n": 2}},
            moved(one, two, n=3),
            {"op": "u", "after": {"id": two, "n": 4}},
            moved(two, three),
            {"op": "c", "after": {"id": one, "n": 9}},
            {"op": "u", "after": {"id": three, "n": 5}},
        ]
    )
    assert rows_of(engine) == {one: (9, None), three: (5, "keep me")}
    assert topic.get_many([one, two, three]) == [
        {"id": one, "n": 9, "s": None},
        None,
        {"id": three, "n": 5, "s": "keep me"},
    ]
    assert [ack.part for ack in acks] == sorted({topic.part_of_key(k) for k in (one, two, three)})
    assert sum(ack.offset_last - ack.offset + 1 for ack in acks) == 9


def test_both_changes_are_written_in_one_group(engine):
    """One sync makes the delete and the insert durable, and the insert is the first of them."""
    topic = create(engine)
    one, two = apart(topic, 2)
    topic.upsert(id=one, n=1)
    before = engine.stats()["journal"]["syncs"]
    acks = {ack.part: ack for ack in topic.append_changes([moved(one, two)])}
    assert engine.stats()["journal"]["syncs"] == before + 1
    assert acks[topic.part_of_key(two)].lsn + 1 == acks[topic.part_of_key(one)].lsn


@pytest.mark.parametrize("policy", ["ignore", "insert", "error"])
def test_the_policy_decides_about_an_unknown_row(engine, policy):
    """As for a move within a part: nothing, a row with nulls, or an error with nothing written."""
    topic = create(engine, unknown_key=policy)
    one, two, far = apart(topic, 3)
    if policy == "error":
        with pytest.raises(NotFound):
            topic.append_changes([moved(one, two, n=1)])
        assert engine.stats()["message_count"] == 0
        topic.insert(id=one, n=1)
        topic.insert(id=two, n=2)
        with pytest.raises(Conflict):
            topic.append_changes([moved(one, two, n=3)])
        many = [{"op": "c", "after": {"id": 100 + n, "n": n}} for n in range(20)]
        for wrong, error in ((moved(one, two), Conflict), (moved(99, far), NotFound)):
            with pytest.raises(error):
                topic.append_changes([*many, wrong])
        assert rows_of(engine) == {one: (1, None), two: (2, None)}
    else:
        topic.append_changes([moved(one, two, n=1)])
        assert rows_of(engine) == ({two: (1, None)} if policy == "insert" else {})


def test_a_move_needs_the_memory_tier(tmp_path):
    """Without tiers the row's present image is unknown, and the move is refused."""
    with open_small(tmp_path, memory=LOG_ALONE) as db:
        topic = create(db)
        with pytest.raises(InvalidRequest, match=r"memory\.enabled"):
            topic.append_changes([moved(*apart(topic, 2))])


def test_a_row_in_files_with_nanoseconds_moves_exactly(engine):
    """A row without a form in Python is not rounded on its way."""
    columns = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("ts", pa.timestamp("ns", "UTC"))])
    topic = engine.create_topic("p", columns, primary_key="id", partitions=PARTS)
    one, two = apart(topic, 2)
    times = pa.array([1_234_567_891], pa.timestamp("ns", "UTC"))
    topic.append_arrow(pa.table({"id": pa.array([one]), "n": pa.array([1]), "ts": times}))
    engine.flush("p")
    engine.evict("p")
    topic.append_changes([moved(one, two, n=2)])
    (batch,) = topic.parts[topic.part_of_key(two)].read()
    assert batch.data.column("id").to_pylist() == [two]
    assert batch.data.column("ts").cast(pa.int64()).to_pylist() == [1_234_567_891]
    assert engine.query("SELECT id, n FROM p").rows() == [(two, 2)]


def test_one_of_many_movers_gets_the_row(engine):
    """Threads that move the same row elsewhere at once: one does, the others find none."""
    topic = create(engine, unknown_key="error")
    keys = apart(topic, 7)
    for turn in range(8):
        topic.upsert(id=0, n=turn, s="keep me")
        answers = []
        together = threading.Barrier(6)

        def move(key, answers=answers, together=together):
            together.wait()
            try:
                topic.append_changes([moved(0, key)])
            except NotFound:
                answers.append(None)
            else:
                answers.append(key)

        threads = [threading.Thread(target=move, args=(key,)) for key in keys[1:]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        (winner,) = [key for key in answers if key is not None]
        assert len(answers) == 6
        assert rows_of(engine) == {winner: (turn, "keep me")}
        topic.delete(winner)


def test_a_row_that_moves_is_seen_once_and_loses_no_update(engine):
    """Queries see it in one part at any time; an update that meets it is in the row it becomes."""
    topic = create(engine, unknown_key="error")
    keys = apart(topic, 40)
    topic.upsert(id=0, n=0, s="keep me")
    done = threading.Event()
    seen, counted = set(), []

    def look():
        while not done.is_set():
            seen.add(engine.query("SELECT count(*), min(s) FROM p").rows()[0])

    def count():
        while not done.is_set():
            for row in filter(None, topic.get_many(keys)):
                with contextlib.suppress(NotFound):
                    topic.update(row["id"], {"n": row["n"] + 1})
                    counted.append(row["id"])

    threads = [threading.Thread(target=look), threading.Thread(target=count)]
    for thread in threads:
        thread.start()
    for old, new in itertools.pairwise(keys):
        topic.append_changes([moved(old, new)])
    done.set()
    for thread in threads:
        thread.join(60)
    assert seen == {(1, "keep me")}
    ((key, (n, s)),) = rows_of(engine).items()
    assert (key, s) == (keys[-1], "keep me")
    assert n == len(counted)
