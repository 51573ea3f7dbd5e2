"""`ack="committed"` to several parts: a table that is late leaves nobody without the offsets."""

from __future__ import annotations

import asyncio

import pytest

from frazil.engine import AsyncPartitionedTopic
from frazil.errors import Unavailable
from tests.integration.engine.lake_engine import opened

pytestmark = pytest.mark.integration

PARTS = 4
ROWS = [{"id": number} for number in range(40)]


def late_parts(error):
    """Return by part the ranges of an error's acks; its text must say the same."""
    found = {each.part: (each.offset, each.offset_last) for each in error.details["acks"]}
    texts = [f"{part}: {first}-{last}" for part, (first, last) in found.items()]
    assert error.details["parts_written"] == ", ".join(texts)
    assert error.details["parts_written"] in str(error)
    return found


async def append_in_loop(topic):
    await AsyncPartitionedTopic(topic).append_many(ROWS, ack="committed")


def test_a_late_call_to_several_parts_tells_every_ack(tmp_path):
    """All 40 records are found at the offsets that the error names, from threads and in a loop."""
    with opened(tmp_path) as (db, _stand_in):
        topic = db.create_topic("spread", {"id": "long"}, lake=True, partitions=PARTS)
        db.lake.pause()
        with pytest.raises(Unavailable, match="not all committed") as caught:
            topic.append_many(ROWS, ack="committed")
        first = late_parts(caught.value)
        assert sorted(first) == list(range(PARTS))
        assert sum(last - begin + 1 for begin, last in first.values()) == len(ROWS)
        assert caught.value.details["outcome"] == "fsynced"
        assert caught.value.details["topic"] == "/default/spread"
        assert caught.value.details["parts_late"] == "0, 1, 2, 3"
        found = {
            runtime.part: (0, runtime.state.durable - 1)
            for runtime in db.lake.topics["/default/spread"].runtimes
        }
        assert first == found

        with pytest.raises(Unavailable, match="paused") as caught:
            asyncio.run(append_in_loop(topic))
        again = late_parts(caught.value)
        assert {part: begin for part, (begin, _last) in again.items()} == {
            part: last + 1 for part, (_begin, last) in first.items()
        }


def test_parts_that_the_table_has_are_not_called_late(tmp_path):
    """The error names a part as late only while its rows are missing in the table."""
    with opened(tmp_path) as (db, _stand_in):
        topic = db.create_topic("half", {"id": "long"}, lake=True, partitions=PARTS)
        db.lake.pause()
        waits = db.lake.topics["/default/half"].waits
        waits.moved({0: 100, 2: 100})
        with pytest.raises(Unavailable) as caught:
            topic.append_many(ROWS, ack="committed")
        assert sorted(late_parts(caught.value)) == list(range(PARTS))
        assert caught.value.details["parts_late"] == "1, 3"
