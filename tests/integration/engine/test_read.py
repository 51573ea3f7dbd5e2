"""Reading: from an offset or a time, in bounded pieces, while others append, and without polling."""

from __future__ import annotations

import datetime as dt
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from frazil.errors import Closed, CorruptionError, InvalidRequest, NotFound
from frazil.log import LogSource
from frazil.topic import Reader
from tests.integration.engine.opening import (
    LOG_ALONE,
    column_of,
    open_small,
    payloads_of,
    rotate,
    rows_of,
)

NOTHING_KEPT = {"retention_age_s": 0.0, "retention_bytes": 0, "memory": LOG_ALONE}


def numbers(count, first=0):
    return [b"%06d" % number for number in range(first, first + count)]


def test_a_read_starts_at_any_offset_and_ends_at_the_limit(engine, topic):
    """An offset in the middle of a frame, a segment or at the head gives exactly the rest."""
    for start in range(0, 60, 20):
        topic.append_many(numbers(20, start))
        rotate(engine)
    for start in (0, 1, 19, 20, 21, 59, 60):
        assert payloads_of(topic, start) == numbers(60 - start, start)
        assert payloads_of(topic, start, limit=7) == numbers(60 - start, start)[:7]
    assert payloads_of(topic, "latest") == []
    assert payloads_of(topic, 1000) == []


def test_pieces_are_bounded_in_bytes(topic):
    """A reader holds about `bytes_max` at once, and at least one frame."""
    for number in range(50):
        topic.append(b"%d" % number + b"x" * 1000)
    whole = [batch.count for batch in topic.read(bytes_max=1 << 20)]
    small = [batch.count for batch in topic.read(bytes_max=5000)]
    assert whole == [50]
    assert max(small) <= 5
    assert sum(small) == 50
    assert [batch.count for batch in topic.read(bytes_max=1)] == [1] * 50


def test_a_time_finds_the_first_record_at_or_after_it(engine, topic):
    """Reading from a time begins with the first frame that is not older."""
    for number in numbers(10):
        topic.append(number)
        time.sleep(0.002)
    rotate(engine)
    for number in numbers(5, 10):
        topic.append(number)
        time.sleep(0.002)
    times = [record["_time"] for record in rows_of(topic)]
    assert times == sorted(times)
    for offset, moment in enumerate(times):
        assert payloads_of(topic, moment) == numbers(15 - offset, offset)
    early = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    assert len(payloads_of(topic, early)) == 15
    assert payloads_of(topic, times[-1] + dt.timedelta(hours=1)) == []


def test_a_read_ends_at_the_head_it_began_with(topic):
    """What is appended during a read is for the next one, so that a read always ends."""
    topic.append_many(numbers(10))
    reader = topic.read()
    topic.append(b"later")
    topic.append_many(numbers(10))
    assert [batch.count for batch in reader] == [10]
    seen = []
    for batch in topic.read(bytes_max=1):
        seen.append(batch.offset)
        topic.append_many(numbers(10))
    assert seen == [0, 10, 11]


def test_an_idle_tail_does_not_poll(engine, topic, monkeypatch):
    """A tail that waits calls the log not once, looks for news once, and keeps its time-out."""
    calls, looks = [], []
    read, has_news = LogSource.read, Reader._has_news

    def counted(self, *arguments, **options):
        calls.append(1)
        return read(self, *arguments, **options)

    def looking(self):
        looks.append(1)
        return has_news(self)

    topic.append(b"x")
    monkeypatch.setattr(LogSource, "read", counted)
    monkeypatch.setattr(Reader, "_has_news", looking)
    began = time.monotonic()
    assert list(topic.tail(timeout_s=0.5)) == []
    assert time.monotonic() - began > 0.45
    assert len(calls) <= 1
    assert len(looks) == 1
    assert engine.topic("t").runtime.state.waiters == []


def test_an_idle_engine_does_not_spin(engine, monkeypatch):
    """The committer's thread sleeps while nothing is due."""
    from frazil.log import Journal

    ticks = []
    tick = Journal.tick

    def counted(self):
        ticks.append(1)
        return tick(self)

    engine.create_topic("t").append(b"x")
    time.sleep(0.1)
    monkeypatch.setattr(Journal, "tick", counted)
    time.sleep(0.4)
    assert len(ticks) <= 2


def test_closing_wakes_a_waiting_tail(tmp_path):
    """A tail that waits ends with `Closed` when the engine is closed under it."""
    db = open_small(tmp_path)
    topic = db.create_topic("t")
    with ThreadPoolExecutor() as pool:
        following = pool.submit(list, topic.tail())
        time.sleep(0.1)
        db.close()
        assert isinstance(following.exception(60), Closed)


def test_a_reader_pins_what_it_has_not_read(tmp_path):
    """Retention does not take records from under an open reader, and does after its end."""
    with open_small(tmp_path, **NOTHING_KEPT) as db:
        topic = db.create_topic("t")
        topic.append_many(numbers(10))
        rotate(db)
        with topic.read() as reader:
            db.upkeep.free()
            assert next(reader).count == 10
        db.upkeep.free()
        assert topic.stats()["start"] == 10


def test_damaged_records_are_an_error_and_never_skipped(tmp_path):
    """A flipped bit in a sealed segment is `CorruptionError` with the range and where to go on."""
    db = open_small(tmp_path)
    topic = db.create_topic("t")
    for number in numbers(3):
        topic.append(number * 50)
    rotate(db)
    path = next(p for p in sorted((tmp_path / "journal").iterdir()) if p.is_file())
    data = bytearray(path.read_bytes())
    at = data.find(b"000001" * 10)
    data[at + 5] ^= 1
    path.write_bytes(data)
    assert payloads_of(topic, limit=1) == [b"000000" * 50]
    with pytest.raises(CorruptionError) as caught:
        payloads_of(topic, 1)
    assert (caught.value.details["offset_first"], caught.value.details["offset_next"]) == (1, 2)
    assert payloads_of(topic, 2) == [b"000002" * 50]
    assert db.upkeep.scrub_segment(db.log.journal.segments[0]) != ""
    assert db.stats()["health"] == "degraded"
    db.close()


def test_old_rows_are_read_under_the_new_columns(tmp_path):
    """Added columns are null, widened ones wider, renamed ones renamed, dropped ones gone."""
    with open_small(tmp_path) as db:
        topic = db.create_topic("t", {"a": "int", "b": "float", "c": "string"})
        topic.append(a=1, b=1.5, c="x")
        rotate(db)
        db.alter_topic("t", add={"d": "date"}, widen={"a": "long", "b": "double"})
        topic.append(a=2**40, b=1e300, c="y", d=dt.date(2024, 1, 1))
        db.alter_topic("t", rename={"c": "e"}, drop=["b"])
        topic.append(a=3, e="z")
        expected = [
            {"a": 1, "e": "x", "d": None},
            {"a": 2**40, "e": "y", "d": dt.date(2024, 1, 1)},
            {"a": 3, "e": "z", "d": None},
        ]
        shown = [{key: row[key] for key in ("a", "e", "d")} for row in rows_of(topic)]
        assert shown == expected
        assert "b" not in rows_of(topic)[0]
        assert topic.describe()["schema_version"] == 3
    with open_small(tmp_path) as db:
        assert [row["a"] for row in rows_of(db.topic("t"))] == [1, 2**40, 3]


@pytest.mark.parametrize(
    "change",
    [
        {"widen": {"a": "string"}},
        {"widen": {"l": "int"}},
        {"drop": ["missing"]},
        {"drop": ["id"]},
        {"rename": {"a": "l"}},
        {"add": {"a": "int"}},
        {"add": {"z": "nothing"}},
        {"colour": "red"},
    ],
)
def test_other_changes_are_refused_with_the_reason(engine, change):
    """What is not a safe change is refused, and the topic is as before."""
    columns = {"id": "long", "a": "int", "l": "long"}
    topic = engine.create_topic("t", columns, primary_key="id")
    before = topic.describe()
    with pytest.raises(InvalidRequest):
        engine.alter_topic("t", **change)
    assert topic.describe() == before
    with pytest.raises(InvalidRequest, match="fixed columns"):
        engine.create_topic("m")
        engine.alter_topic("m", add={"x": "int"})


def test_columns_change_under_eight_publishers(tmp_path):
    """While the columns change, no publish fails and no row is lost or doubled."""
    with open_small(tmp_path) as db:
        topic = db.create_topic("t", {"n": "long", "v": "int"})
        stop = threading.Event()
        counts = [0] * 8

        def publish(thread):
            while not stop.is_set():
                topic.append({"n": thread * 1_000_000 + counts[thread], "v": 1})
                counts[thread] += 1

        with ThreadPoolExecutor(8) as pool:
            publishing = pool.map(publish, range(8))
            for number in range(20):
                db.alter_topic("t", add={f"c{number}": "int"})
                if number == 10:
                    db.alter_topic("t", widen={"v": "long"})
                if number % 4 == 3:
                    db.alter_topic("t", drop=[f"c{number}"])
                time.sleep(0.01)
            stop.set()
            list(publishing)
        wanted = [t * 1_000_000 + n for t in range(8) for n in range(counts[t])]
        assert sorted(column_of(topic, "n")) == wanted
    with open_small(tmp_path) as db:
        assert sorted(column_of(db.topic("t"), "n")) == wanted


def test_a_tail_of_a_deleted_topic_ends(engine):
    """A waiting tail fails when its topic is deleted, instead of waiting for ever."""
    topic = engine.create_topic("gone")
    reader = topic.tail()
    timer = threading.Timer(0.1, lambda: engine.delete_topic("gone"))
    timer.start()
    with pytest.raises(NotFound, match="deleted"):
        next(reader)
    timer.join()


@pytest.mark.parametrize(
    "options",
    [
        *({"limit": -1}, {"limit": "x"}, {"limit": True}, {"bytes_max": -5}, {"bytes_max": "much"}),
        *({"start": -1}, {"start": True}, {"start": "middle"}, {"start": 1.5}, {"start": None}),
    ],
)
def test_wrong_arguments_of_a_read_are_refused(topic, options):
    """A start is an offset, a word or a time, a limit a number, a size bytes or a text such as 1MB."""
    with pytest.raises(InvalidRequest):
        topic.read(**options)
    assert list(topic.read(bytes_max="1MB")) == []
