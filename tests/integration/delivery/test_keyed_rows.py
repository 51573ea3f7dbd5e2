"""KeyShared subscriptions of table topics: rows go by their primary key."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest

import frazil
from frazil.errors import InvalidRequest
from frazil.subscribe import key_of_row
from tests.integration.delivery.test_embedded import is_quiet, offsets, taken
from tests.integration.engine.opening import open_small
from tests.integration.engine.test_objects_reading import SMALL

COLUMNS = {"id": "long", "region": "string", "v": "long"}
BY_KEY = {"type": "key_shared", "start": "earliest", "max_unacked": 100}


@pytest.fixture
def db(tmp_path):
    engine = open_small(tmp_path)
    yield engine
    engine.close()


def test_rows_of_different_keys_do_not_wait_for_each_other(db):
    """Two consumers share the keys; one change of a key is out at a time, in order."""
    topic = db.create_topic("t", COLUMNS, primary_key="id")
    with topic.subscribe("s", **BY_KEY) as one, topic.subscribe("s") as other:
        for number in range(6):
            topic.upsert(id=number, region="eu", v=0)
        first = [*taken(one, 3), *taken(other, 3)]
        assert sorted(each.value["id"] for each in first) == list(range(6))
        for number in range(6):
            topic.update(number, {"v": 1})
        topic.delete(0)
        assert is_quiet(one)
        assert is_quiet(other)
        one.ack(first)
        again = [*taken(one, 3), *taken(other, 3)]
        owners = {each.value["id"]: each.source for each in first}
        assert {each.value["id"]: each.source for each in again} == owners
        assert {each.value["v"] for each in again} == {1}
        assert is_quiet(one)
        (mine,) = [each for each in again if each.value["id"] == 0]
        mine.ack()
        stream = one if mine.source in one._parts else other
        assert offsets(taken(stream, 1)) == [12]


@pytest.mark.parametrize("flushed", [False, True])
def test_keys_are_the_same_from_log_and_files_and_under_another_name(tmp_path, flushed):
    """Rows written under an older name of the key column belong to the same key."""
    with open_small(tmp_path) as db:
        topic = db.create_topic("t", {"id": "long", "v": "long"}, primary_key="id")
        for number in range(3):
            topic.upsert(id=number, v=0)
        if flushed:
            db.tiers.flush("t")
        db.alter_topic("t", rename={"id": "number"})
        for number in range(3):
            db.topic("t").upsert(number=number, v=1)
    with open_small(tmp_path) as db, db.topic("t").subscribe("s", **BY_KEY) as stream:
        first = taken(stream, 3)
        assert offsets(first) == [0, 1, 2]
        assert is_quiet(stream)
        first[1].ack()
        assert offsets(taken(stream, 1)) == [4]


def test_keys_are_known_from_objects(tmp_path):
    """Rows that only the object store has are dealt by their keys as well."""
    place = {**SMALL, "objects.root": str(tmp_path / "objects")}
    with frazil.open(tmp_path / "data", **place) as db:
        topic = db.create_topic("t", COLUMNS, primary_key=["region", "id"])
        for number in range(4):
            topic.upsert(id=number % 2, region="eu", v=number)
        db.objects.flush("t")
        topic.runtime.history = db.objects.source
        topic.append_many([{"id": 9, "region": "us", "v": n} for n in range(2_500)])
        with topic.subscribe("s", **BY_KEY) as stream:
            first = taken(stream, 2)
            assert offsets(first) == [0, 1]
            assert db.objects.source.frames_read > 0


def test_filters_match_the_texts_of_keys(db):
    """A consumer gets the rows whose key, several columns as a JSON list, matches its patterns."""
    topic = db.create_topic("t", COLUMNS, primary_key=["region", "id"])
    for number in range(4):
        topic.upsert(id=number, region="eu" if number % 2 else "us", v=0)
    with (
        topic.subscribe("s", key_filters=['["eu",*'], **BY_KEY) as eu,
        topic.subscribe("s", key_filters=['["us",*'], **BY_KEY) as us,
    ):
        assert [each.value["id"] for each in taken(eu, 2)] == [1, 3]
        assert [each.value["id"] for each in taken(us, 2)] == [0, 2]


def test_rows_without_a_key_cannot_be_shared_by_key(db):
    """A KeyShared subscription of such a topic is refused, and nothing of it is left."""
    topic = db.create_topic("t", COLUMNS)
    topic.append({"id": 1, "region": "eu", "v": 0})
    parts = db.create_topic("p", COLUMNS, partitions=2)
    for each in (topic, parts):
        with pytest.raises(InvalidRequest, match="no primary key"):
            each.subscribe("s", **BY_KEY)
        with pytest.raises(InvalidRequest, match="no primary key"):
            db.subscriptions.create(each.name, "s", type="key_shared")
        assert each.subscriptions() == []
    with topic.subscribe("s", type="shared", start="earliest") as stream:
        assert offsets(taken(stream, 1)) == [0]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("eu-1", "eu-1"),
        (7, "7"),
        (-7, "-7"),
        (True, "true"),
        (b"\x00\xff", "00ff"),
        (Decimal("1.50"), "1.50"),
        (Decimal("1E+2"), "100"),
        (Decimal("1234567890123456789012345678901.5"), "1234567890123456789012345678901.5"),
        (dt.date(2026, 1, 2), "2026-01-02"),
        (dt.time(1, 2, 3), "01:02:03"),
        (dt.datetime(2026, 1, 2, tzinfo=dt.UTC), "2026-01-02T00:00:00+00:00"),
    ],
)
def test_each_type_of_key_has_a_text(value, text):
    """A key is its value as people write it, and keys of several columns are not mixed up."""
    assert key_of_row({"a": value}, ["a"]) == text
    assert key_of_row({"a": value, "b": '","'}, ["b", "a"]) == f'["\\",\\"","{text}"]'
