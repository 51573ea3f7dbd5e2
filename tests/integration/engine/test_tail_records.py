"""What a look-up reads of a group of rows that the log holds as one Arrow frame."""

from __future__ import annotations

import datetime as dt
import enum
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from frazil.log import format as fmt
from tests.integration.engine.tier_world import World

ROWS = 100
"""More than become a frame of packed rows."""


@pytest.fixture
def world():
    """An engine whose tiers do nothing by themselves."""
    world = World()
    yield world
    world.db.close()


def test_rows_of_an_arrow_frame_are_looked_up_without_decoding_it(world):
    """The frame's rows are found by key as they were given, and nothing becomes a chunk."""
    topic = world.db.create_topic("t", {"id": "long", "v": "float"}, primary_key="id")
    topic.append({"id": -1, "v": 0.0})
    assert topic.get(-1) == {"id": -1, "v": 0.0}
    topic.append_many([{"id": number, "v": number / 4} for number in range(ROWS)])
    memory = topic.runtime.tiers.memory
    entry = memory.tail[-1]
    assert (entry.kind, entry.count) == (fmt.KIND_ARROW, ROWS)
    settled = memory.settled
    assert topic.get_many(range(ROWS)) == [
        {"id": number, "v": number / 4} for number in range(ROWS)
    ]
    assert memory.settled == settled


def test_rows_look_the_same_before_and_after_they_are_decoded(world):
    """A value that its column rounds is seen rounded at once, in columns with parts as well."""
    plain = world.db.create_topic("plain", {"id": "long", "v": "float"}, primary_key="id")
    nested = world.db.create_topic(
        "nested", {"id": "long", "v": "struct<a: float>"}, primary_key="id"
    )
    plain.append_many([{"id": number, "v": 0.1} for number in range(ROWS)])
    nested.append_many([{"id": number, "v": {"a": 0.1}} for number in range(ROWS)])
    early = [topic.get(7) for topic in (plain, nested)]
    for topic in (plain, nested):
        topic.runtime.tiers.settle(10 * ROWS)
        assert not topic.runtime.tiers.memory.tail
    assert [topic.get(7) for topic in (plain, nested)] == early


class Shade(enum.StrEnum):
    """Texts with names."""

    DARK = "dark"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("decimal(10,2)", Decimal("1.5")),
        ("decimal(10,2)", Decimal("-0")),
        ("decimal(10,2)", Decimal("1E+1")),
        ("decimal(38,10)", 7),
        ("timestamptz", dt.datetime(2026, 11, 16, 4, tzinfo=dt.UTC)),
        ("timestamp[s, UTC]", dt.datetime(2026, 11, 16, 4, tzinfo=ZoneInfo("Europe/Berlin"))),
        ("timestamp", dt.datetime(2026, 10, 25, 2, 30, tzinfo=dt.UTC).replace(tzinfo=None, fold=1)),
        ("timestamp[ns, UTC]", dt.datetime(2026, 11, 16, 4, tzinfo=dt.UTC)),
        ("time", dt.time(2, 30, fold=1)),
        ("float", np.float64(0.1)),
        ("double", np.float32(0.1)),
        ("string", Shade.DARK),
        pytest.param("bytes", memoryview(b"view"), id="bytes-view"),
    ],
    ids=str,
)
@pytest.mark.parametrize("rows", [1, ROWS], ids=["packed", "arrow"])
def test_a_value_is_of_one_form_in_all_tiers(world, kind, value, rows):
    """Its type, digits and zone are the same in the tail, in a chunk and in a file."""
    topic = world.db.create_topic("t", {"id": "long", "v": kind}, primary_key="id")
    topic.append_many([{"id": number, "v": value} for number in range(rows)])
    tiers = topic.runtime.tiers
    assert tiers.memory.tail
    seen = [_shown(topic)]
    tiers.settle(10 * ROWS)
    seen.append(_shown(topic))
    world.db.tiers.flush()
    tiers.evict(before_us=None)
    assert not tiers.memory.chunks
    seen.append(_shown(topic))
    assert len(set(seen)) == 1


def _shown(topic):
    value = topic.get(0)["v"]
    return type(value), repr(value)


def test_a_widened_column_keeps_what_the_log_has_of_a_row_just_written(world):
    """A change of another column gives a rounded float no digits back."""
    topic = world.db.create_topic("t", {"id": "long", "v": "float", "n": "long"}, primary_key="id")
    topic.append({"id": 1, "v": 0.1, "n": 0})
    world.db.alter_topic("t", widen={"v": "double"})
    before = topic.get(1)["v"]
    topic.update(1, {"n": 1})
    assert topic.get(1) == {"id": 1, "v": before, "n": 1}
