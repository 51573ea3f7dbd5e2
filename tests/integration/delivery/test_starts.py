"""Where a new subscription begins."""

from __future__ import annotations

import datetime as dt
import time

import pytest

from tests.integration.delivery.test_embedded import filled, is_quiet, offsets, taken
from tests.integration.engine.opening import open_small


@pytest.mark.parametrize(
    ("start", "expected"), [("earliest", 0), ("latest", 10), (7, 7), ("time", 5), (None, 10)]
)
def test_a_subscription_begins_where_it_is_asked_to(tmp_path, start, expected):
    """At the first record, behind the last one, at an offset or a time; unasked, behind the last."""
    with open_small(tmp_path) as db:
        topic = filled(db, 5)
        time.sleep(0.01)
        moment = dt.datetime.now(dt.UTC)
        topic.append_many([b"later"] * 5)
        place = {} if start is None else {"start": moment if start == "time" else start}
        with topic.subscribe("s", max_unacked=20, **place) as stream:
            topic.append(b"last")
            assert offsets(taken(stream, 11 - expected)) == list(range(expected, 11))
            assert is_quiet(stream)
