"""Which objects may go: by age and size, oldest first, never what somebody needs."""

from __future__ import annotations

import pytest

from frazil.objects.descriptor import ObjectsState, TopicObjects
from frazil.objects.retention import expired_below
from tests.unit.objects.test_catalog import descriptor


def picture(count=4):
    """Ten records and 500 bytes an object; all were appended at 2 microseconds."""
    found = [descriptor(10 * n, 10 * n + 10) for n in range(count)]
    return TopicObjects(7, ObjectsState(0, 10 * count), tuple(found))


@pytest.mark.parametrize(
    ("policy", "now_us", "below"),
    [
        ({}, 10**18, 0),
        ({"age_us": 100}, 101, 0),
        ({"age_us": 100}, 102, 40),
        ({"bytes_max": 0}, 0, 40),
        ({"bytes_max": 1}, 0, 30),
        ({"bytes_max": 500}, 0, 30),
        ({"bytes_max": 501}, 0, 20),
        ({"bytes_max": 2_000}, 0, 0),
        ({"age_us": 100, "bytes_max": 1_000}, 102, 40),
    ],
)
def test_age_and_size_let_objects_go(policy, now_us, below):
    """An object goes when it is too old, or when those behind it are enough by themselves."""
    assert expired_below(picture(), now_us=now_us, **policy) == below


def test_a_clock_that_jumped_expires_nothing_by_age():
    """Without a clock to trust only the size counts."""
    assert expired_below(picture(), now_us=None, age_us=1) == 0
    assert expired_below(picture(), now_us=None, age_us=1, bytes_max=1_000) == 20


@pytest.mark.parametrize(("offset", "below"), [(0, 0), (9, 0), (10, 10), (25, 20), (40, 40)])
def test_what_a_reader_or_a_subscription_needs_stays(offset, below):
    """An object with a needed record stays, and so do all behind it."""
    assert expired_below(picture(), now_us=9, age_us=0, needed=offset) == below


def test_a_topic_without_objects_has_nothing_to_expire():
    """An empty picture stays where it is."""
    empty = TopicObjects(7, ObjectsState(5, 5))
    assert expired_below(empty, now_us=0, bytes_max=0) == 5
