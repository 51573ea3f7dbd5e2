"""Publishing: every form of a record, ack levels, limits, idempotent producers."""

from __future__ import annotations

import datetime as dt
import itertools

import pyarrow as pa
import pytest

from frazil import Ack, Message
from frazil.errors import Conflict, InvalidRequest
from tests.integration.engine.opening import (
    LOG_ALONE,
    column_of,
    open_small,
    payloads_of,
    rotate,
    rows_of,
)

COLUMNS = {"id": "long", "name": "string"}


def test_every_form_of_a_message_is_stored(topic):
    """Bytes, bytes-like, dicts, keywords and `Message` all become the same record."""
    forms = [
        (b"x",),
        (bytearray(b"x"),),
        (memoryview(b"x"),),
        ({"payload": b"x"},),
        (Message(b"x"),),
    ]
    acks = [topic.append(*form) for form in forms]
    acks.append(topic.append(payload=b"x"))
    assert [ack.offset for ack in acks] == list(range(6))
    assert [ack.offset_last for ack in acks] == list(range(6))
    assert all(after.lsn > before.lsn for before, after in itertools.pairwise(acks))
    assert payloads_of(topic) == [b"x"] * 6


def test_the_envelope_comes_back_as_it_went(topic):
    """Key, attributes, times, producer and schema ids round-trip, null where not given."""
    time = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)
    envelope = {
        "key": "k",
        "attributes": {"a": "b", "ü": ""},
        "publish_time": time,
        "producer_name": "n",
        "producer_id": 7,
        "schema_id": 8,
        "schema_version": 9,
    }
    topic.append(b"full", **envelope)
    before = dt.datetime.now(dt.UTC)
    topic.append(b"bare")
    after = dt.datetime.now(dt.UTC)
    full, bare = rows_of(topic)
    for key, value in envelope.items():
        wanted = list(value.items()) if key == "attributes" else value
        assert full[key] == wanted, key
    assert {key: bare[key] for key in envelope if key != "publish_time"} == dict.fromkeys(
        key for key in envelope if key != "publish_time"
    )
    assert before <= bare["publish_time"] <= after


def test_rows_come_as_dicts_keywords_and_arrow(engine):
    """A table topic takes rows in any form and gives them back in order."""
    topic = engine.create_topic("t", COLUMNS)
    topic.append({"id": 0, "name": "a"})
    topic.append(id=1, name=None)
    topic.append_many([{"id": 2, "name": "c"}, {"id": 3, "name": "d"}])
    table = pa.table({"name": ["e", None], "id": [4, 5]})
    assert topic.append_arrow(table.to_batches()[0]) == Ack(4, 5, topic.append(id=6).lsn - 1)
    assert column_of(topic, "id") == [0, 1, 2, 3, 4, 5, 6]
    assert column_of(topic, "name") == ["a", None, "c", "d", "e", None, None]


def test_frames_of_other_libraries_are_taken(engine):
    """pandas, Polars and DuckDB objects are published as they are."""
    duckdb = pytest.importorskip("duckdb", reason="duckdb is a development extra")
    pandas = pytest.importorskip("pandas", reason="pandas is a development extra")
    polars = pytest.importorskip("polars", reason="polars is a development extra")
    data = {"id": [1, 2], "name": ["x", "y"]}
    sources = [
        pa.table(data),
        pa.RecordBatchReader.from_batches(pa.table(data).schema, pa.table(data).to_batches()),
        pandas.DataFrame(data),
        polars.DataFrame(data),
        duckdb.sql("select 1::bigint as id, 'x' as name union all select 2, 'y' order by id"),
    ]
    topic = engine.create_topic("t", COLUMNS)
    for number, source in enumerate(sources):
        ack = topic.append_arrow(source)
        assert (ack.offset, ack.offset_last) == (2 * number, 2 * number + 1)
    assert column_of(topic, "id") == [1, 2] * len(sources)
    assert column_of(topic, "name") == ["x", "y"] * len(sources)


@pytest.mark.parametrize(
    "row",
    [
        {"id": "x", "name": "a"},
        {"id": 2**63, "name": "a"},
        {"id": 1, "name": 5},
        {"id": 1, "nmae": "a"},
        {"id": 1, "name": "\ud800"},
        {"id": None, "name": "a"},
        b"bytes",
        "text",
        [1, 2],
    ],
)
def test_a_bad_row_is_refused_whole(engine, row):
    """A row that does not fit is refused, alone and among good ones, and nothing is written."""
    topic = engine.create_topic("t", COLUMNS, primary_key="id")
    with pytest.raises(InvalidRequest):
        topic.append(row)
    good = {"id": 1, "name": "a"}
    with pytest.raises(InvalidRequest, match="record=2"):
        topic.append_many([good, good, row, good])
    assert topic.describe()["watermarks"]["head"] == 0
    assert topic.append(good).offset == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"key": "k" * 2000},
        {"key": 5},
        {"attributes": {str(n): "" for n in range(65)}},
        {"attributes": {"a": "x" * 40_000}},
        {"attributes": {"a": 5}},
        {"publish_time": dt.datetime(2999, 1, 1, tzinfo=dt.UTC)},
        {"producer_id": -1},
        {"schema_version": 2**32},
        {"colour": "red"},
    ],
)
def test_a_bad_envelope_is_refused(topic, fields):
    """Each limit of the envelope has its own error, and nothing is written."""
    with pytest.raises(InvalidRequest):
        topic.append(b"x", **fields)
    assert topic.stats()["head"] == 0


def test_sizes_are_limited(tmp_path):
    """A payload of the limit is stored, one byte more is refused in every form."""
    with open_small(tmp_path, topics={"message_bytes_max": 1000}) as db:
        topic = db.create_topic("t")
        topic.append(b"x" * 1000)
        for call in (
            lambda: topic.append(b"x" * 1001),
            lambda: topic.append(b"x" * 1001, key="k"),
            lambda: topic.append_many([b"", b"x" * 1001]),
            lambda: topic.append_arrow(pa.table({"payload": [b"x" * 1001]})),
        ):
            with pytest.raises(InvalidRequest, match="too large"):
                call()
        for empty in (
            lambda: topic.append_many([]),
            lambda: topic.append_arrow(pa.table({"payload": pa.array([], pa.binary())})),
        ):
            with pytest.raises(InvalidRequest, match="no records"):
                empty()
        assert topic.stats()["head"] == 1


def test_a_large_call_is_several_frames_in_order(engine, topic):
    """More than one write's worth of records is stored whole and in order."""
    payloads = [b"%d" % n + b"x" * 500 for n in range(1000)]
    ack = topic.append_many(payloads)
    assert (ack.offset, ack.offset_last) == (0, 999)
    assert payloads_of(topic) == payloads
    table = engine.create_topic("u", {"s": "string"})
    values = [f"{n}" * 100 for n in range(2000)]
    assert table.append_arrow(pa.table({"s": values})).offset_last == 1999
    assert column_of(table, "s") == values


def test_ack_levels_without_a_tier_are_refused(topic):
    """`uploaded`, `committed` and unknown levels are refused before anything is written."""
    for level in ("uploaded", "committed", "sometime", ""):
        with pytest.raises(InvalidRequest, match="ack"):
            topic.append(b"x", ack=level)
        with pytest.raises(InvalidRequest, match="ack"):
            topic.append_many([b"x"], ack=level)
    assert topic.stats()["head"] == 0


def test_a_commit_topic_syncs_whatever_is_asked(topic):
    """On a `commit` topic `received` is served as `fsynced`."""
    for level in (None, "received", "fsynced"):
        ack = topic.append(b"x", ack=level)
        assert topic.stats()["durable"] == ack.offset + 1


def test_the_periodic_mode_answers_before_the_sync(tmp_path):
    """`received` answers without a sync, which readers wait for; `fsynced` syncs first."""
    with open_small(tmp_path, sync_interval_s=3600.0, marker_delay_s=60.0) as db:
        topic = db.create_topic("t", sync="periodic")
        topic.append(b"0")
        syncs = db.stats()["journal"]["syncs"]
        for number in range(20):
            topic.append(b"%d" % number)
        assert db.stats()["journal"]["syncs"] == syncs
        assert payloads_of(topic) == []
        topic.append(b"last", ack="fsynced")
        assert topic.stats()["durable"] == len(payloads_of(topic)) == 22


def test_the_periodic_mode_syncs_by_itself(tmp_path):
    """In `periodic` mode an idle topic becomes durable within the interval."""
    import time

    with open_small(tmp_path, sync_interval_s=0.05) as db:
        topic = db.create_topic("t", sync="periodic")
        topic.append(b"x")
        deadline = time.monotonic() + 5
        while topic.stats()["durable"] < 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert topic.stats()["durable"] == 1


def test_close_drains_what_waits(tmp_path):
    """Every record that was sent before `close` is there after the next opening."""
    db = open_small(tmp_path)
    topic = db.create_topic("t", sync="periodic")
    pending = [topic.send(b"%d" % number) for number in range(500)]
    db.close()
    assert [each.result(5).offset for each in pending] == list(range(500))
    with open_small(tmp_path) as db:
        assert payloads_of(db.topic("t")) == [b"%d" % number for number in range(500)]


# -- idempotent producers ------------------------------------------------------------------------


def test_a_repeat_gets_the_first_ack(tmp_path):
    """A repeat within the window returns the first ack, also after a restart."""
    with open_small(tmp_path) as db:
        topic = db.create_topic("t")
        first = [topic.append(b"%d" % n, producer="p", sequence=n) for n in range(5)]
        again = [topic.append(b"%d" % n, producer="p", sequence=n) for n in range(5)]
        assert again == first
        many = topic.append_many([b"5", b"6"], producer="p", sequence=5)
        assert topic.append_many([b"5", b"6"], producer="p", sequence=5) == many
    with open_small(tmp_path) as db:
        topic = db.topic("t")
        assert topic.append_many([b"5", b"6"], producer="p", sequence=5) == many
        assert topic.append(b"7", producer="p", sequence=7).offset == 7
        assert topic.append(b"0", producer="other", sequence=0).offset == 8
        assert len(payloads_of(topic)) == 9


def test_a_repeat_is_known_after_its_segment_is_gone(tmp_path):
    """The window outlives the segment that held the first record, and a restart after that."""
    options = {"retention_age_s": 0.0, "retention_bytes": 0, "memory": LOG_ALONE}
    with open_small(tmp_path, **options) as db:
        topic = db.create_topic("t")
        first = topic.append(b"x", producer="p", sequence=0)
        rotate(db)
        db.upkeep.free()
        assert topic.stats()["start"] == 1
        assert topic.append(b"x", producer="p", sequence=0) == first
    with open_small(tmp_path, **options) as db:
        assert db.topic("t").append(b"x", producer="p", sequence=0) == first
        assert db.topic("t").stats()["head"] == 1


def test_a_newer_epoch_fences_the_older(tmp_path):
    """After a publish with a higher epoch the lower one is refused, also after a restart."""
    with open_small(tmp_path) as db:
        topic = db.create_topic("t")
        topic.append(b"a", producer="p", sequence=0, producer_epoch=1)
        topic.append(b"b", producer="p", sequence=0, producer_epoch=2)
        with pytest.raises(Conflict, match="fenced"):
            topic.append(b"c", producer="p", sequence=1, producer_epoch=1)
    with open_small(tmp_path) as db:
        topic = db.topic("t")
        with pytest.raises(Conflict, match="fenced"):
            topic.append(b"c", producer="p", sequence=1, producer_epoch=1)
        assert payloads_of(topic) == [b"a", b"b"]


def test_repeats_in_flight_get_one_ack(topic):
    """Many sends of one batch at once store one record and all get its ack."""
    for sequence in range(30):
        sent = [topic.send(b"x", producer="p", sequence=sequence) for _ in range(8)]
        assert len({each.result(5) for each in sent}) == 1
    assert topic.stats()["head"] == 30
