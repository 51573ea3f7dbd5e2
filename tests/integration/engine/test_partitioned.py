"""Publishing to the parts of a partitioned topic."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pyarrow as pa
import pytest

import frazil
from frazil.errors import Conflict, InvalidRequest
from tests.integration.engine.opening import open_small, payloads_of


def test_a_message_goes_by_its_own_key(engine):
    """A `Message` goes to the part of its key, alone and among many, as bytes with the key do."""
    topic = engine.create_topic("p", partitions=8)
    for number in range(8):
        key = f"k{number}"
        part = topic.append(b"x", key=key).part
        message = frazil.Message(b"x", key=key)
        assert topic.append(message).part == part
        assert [ack.part for ack in topic.append_many([message] * 4)] == [part]
        assert topic.append({"payload": b"x", "key": key}).part == part


def test_equal_decimals_share_a_part(engine):
    """A decimal key has one part, with any number of zeros and as Arrow."""
    columns = {"id": "decimal(10,2)", "v": "long"}
    topic = engine.create_topic("p", columns, primary_key="id", partitions=16)
    parts = {topic.append(id=Decimal(text), v=1).part for text in ("1.5", "1.50", "1.500")}
    column = pa.array([Decimal("1.50")], pa.decimal128(10, 2))
    parts |= {ack.part for ack in topic.append_arrow(pa.table({"id": column, "v": [1]}))}
    [part] = parts
    assert topic.parts[part].stats()["message_count"] == 4


def test_a_bad_record_is_named_by_its_place_in_the_call(engine):
    """The error has the number of the first bad record of the whole call; nothing is written."""
    topic = engine.create_topic("p", {"id": "long", "v": "int"}, primary_key="id", partitions=4)
    good = [{"id": number, "v": 1} for number in range(20)]
    for bad in ({"id": "x"}, {"id": 7, "v": "x"}, {"v": 1}, {"id": 7, "other": 1}, b"x"):
        for place in (0, 1, 13, 20):
            records = [*good[:place], bad, *good[place:], {"id": "y"}]
            with pytest.raises(InvalidRequest) as caught:
                topic.append_many(records)
            assert caught.value.details["record"] == place
    assert topic.stats()["message_count"] == 0
    with pytest.raises(InvalidRequest, match="no records"):
        topic.append_many([])


def test_parts_share_their_syncs(engine):
    """A call to many parts costs a few syncs, not one for each part."""
    topic = engine.create_topic("p", {"id": "long"}, primary_key="id", partitions=32)
    rows = [{"id": number} for number in range(500)]
    table = pa.table({"id": list(range(500))})

    def syncs():
        return engine.stats()["journal"]["syncs"]

    before = syncs()
    acks = topic.append_many(rows)
    middle = syncs()
    acks += topic.append_arrow(table)
    assert [ack.part for ack in acks] == [*range(32), *range(32)]
    assert middle - before <= 4
    assert syncs() - middle <= 4
    for ack in acks:
        count = ack.offset_last + 1 - ack.offset
        [batch] = topic.parts[ack.part].read(ack.offset, limit=count)
        assert batch.count == count
    assert topic.stats()["message_count"] == 1000


def test_columns_with_the_names_of_options_come_as_a_dict(engine):
    """A dict's fields are columns whatever their names; the same keywords are options."""
    columns = {"id": "long", "ack": "string", "producer": "string"}
    row = {"id": 1, "ack": "x", "producer": "y"}
    for partitions in (0, 2):
        topic = engine.create_topic(
            f"t{partitions}", columns, primary_key="id", partitions=partitions
        )
        part = topic.append(row).part or 0
        stored = topic.parts[part] if partitions else topic
        [batch] = stored.read()
        assert batch.to_arrow().select(list(columns)).to_pylist() == [row]
        with pytest.raises(InvalidRequest, match="ack level"):
            topic.append(id=1, ack="x")


def test_a_loose_part_is_a_topic_of_its_own(tmp_path):
    """Named like a part it must be asked for; it excludes a whole topic with a part of that name."""
    with open_small(tmp_path) as db:
        with pytest.raises(InvalidRequest):
            db.create_topic("t-part-1")
        loose = db.create_topic("t-part-1", loose_part=True)
        loose.append(b"x")
        with pytest.raises(Conflict, match="t-part-1"):
            db.create_topic("t", partitions=2)
        assert db.topics() == ["/default/t-part-1"]
        db.create_topic("t", partitions=1)
    with open_small(tmp_path) as db:
        assert payloads_of(db.topic("t-part-1")) == [b"x"]
        assert db.topic("t").parts[0].name == "/default/t-part-0"
        db.delete_topic("t-part-1")
        assert db.topics() == ["/default/t"]


def test_topics_are_listed_while_others_are_created(engine):
    """A list never fails because of a topic that is made meanwhile."""
    done = threading.Event()

    def look():
        return [len(engine.topics()) for _ in iter(done.is_set, True)]

    with ThreadPoolExecutor() as pool:
        looking = pool.submit(look)
        for number in range(60):
            engine.create_topic(f"t{number}", exist_ok=True)
        done.set()
        seen = looking.result(60)
    assert seen == sorted(seen)
    assert len(engine.topics()) == 60
