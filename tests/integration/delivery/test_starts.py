"""Where a new subscription begins."""

from __future__ import annotations

import datetime as dt
import time
from types import SimpleNamespace

import pytest

from frazil.errors import InvalidRequest
from frazil.subscribe.deliveries import _put
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


@pytest.mark.parametrize("start", ["earliest", "time"])
def test_the_oldest_records_may_go_while_a_place_is_looked_up(start):
    """The first that is left is what was meant then."""
    runtime, put = Shrinking(firsts=[3, 6]), []

    def refuse_below(offset):
        if offset < 6:
            raise InvalidRequest("the place is not among the topic's records")
        put.append(offset)

    moment = dt.datetime.now(dt.UTC) if start == "time" else start
    assert _put(runtime, moment, 2, refuse_below) == 6
    assert put == [6]


def test_an_offset_that_is_gone_is_refused():
    """Who names a place means that one; and nothing goes round in circles."""

    def refuse(offset):
        raise InvalidRequest("the place is not among the topic's records", offset=offset)

    with pytest.raises(InvalidRequest):
        _put(Shrinking(firsts=[3]), 2, 2, refuse)
    with pytest.raises(InvalidRequest):
        _put(Shrinking(firsts=[3, 3]), "earliest", 2, refuse)


class Shrinking:
    """A topic whose first record is another one each time somebody looks."""

    def __init__(self, firsts):
        self._firsts = iter(firsts)
        self.history = self
        self.state = SimpleNamespace(id=1)

    def range(self, _topic):
        """Say where it begins now."""
        return SimpleNamespace(first=next(self._firsts))
