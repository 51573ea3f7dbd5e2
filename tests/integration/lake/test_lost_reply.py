"""The catalog's answer, or the request itself, is lost on the way: looked up, not guessed."""

from __future__ import annotations

import pyarrow as pa
import pytest

from frazil.lake.connection import connect
from tests.integration.lake.catalog_proxy import CatalogProxy
from tests.integration.lake.spark_engine import by_pyiceberg, check_rows, opened
from tests.integration.lake.spark_world import MARKS

pytestmark = MARKS

COLUMNS = {"id": "long", "at": "timestamp[ms, UTC]"}
BEYOND_MS = 1 << 60
"""A time that the table cannot hold: its record is rejected."""


class Scene:
    """An engine whose worker reaches its catalog through a proxy."""

    def __init__(self, db, proxies):
        self.db = db
        self.proxies = proxies
        self.wanted = {}
        self.rejected = []
        self.topic = db.create_topic("t", COLUMNS, lake=True)

    @property
    def proxy(self):
        return self.proxies[-1]

    @property
    def catalog(self):
        return connect(self.db.lake.catalog.address())

    def publish(self, count, *, misfit=None):
        """Publish rows; the one at the place `misfit` cannot be converted."""
        ids = [1000 + len(self.wanted) + len(self.rejected) + n for n in range(count)]
        times = [BEYOND_MS if n == misfit else n for n in range(count)]
        data = {
            "id": pa.array(ids, pa.int64()),
            "at": pa.array(times, pa.int64()).view(pa.timestamp("ms", "UTC")),
        }
        first = self.topic.append_arrow(pa.table(data)).offset
        for number, value in enumerate(ids):
            if number == misfit:
                self.rejected.append(first + number)
            else:
                self.wanted[first + number] = value

    def commit(self):
        self.db.lake.flush("t")

    def check(self):
        """Assert that each record is there once, by three readers."""
        check_rows(self.catalog, "t", self.wanted)
        side = by_pyiceberg(self.catalog, "t__rejects")
        assert [row["_offset"] for row in side] == self.rejected
        found = self.db.lake.verify("t")
        assert (found.verdict, found.problems) == ("good", ())
        assert found.compared == len(self.wanted) + len(self.rejected)


@pytest.fixture(scope="module")
def scene(world, tmp_path_factory):
    proxies = []

    def way(address):
        proxies.append(CatalogProxy(address))
        return proxies[-1].address

    with opened(world, tmp_path_factory.mktemp("lost"), way=way) as db:
        made = Scene(db, proxies)
        made.publish(5)
        made.commit()
        yield made
    for proxy in proxies:
        proxy.close()


@pytest.mark.parametrize("fault", ["drop_reply", "drop_request"])
@pytest.mark.parametrize("table", ["t", "t__rejects"])
def test_a_commit_whose_answer_is_lost_is_looked_up(scene, table, fault):
    """Landed or not, it is in the table once, and the commit ends without anybody's help."""
    scene.publish(20, misfit=7)
    before = len(scene.proxy.happened)
    scene.proxy.arm(table, fault)
    scene.commit()
    landed = 200 if fault == "drop_reply" else 0
    assert scene.proxy.happened[before:] == [(fault, landed)]
    scene.check()


def test_several_lost_answers_in_a_row_cost_only_time(scene):
    """Whatever of them landed is found by the look that follows."""
    scene.publish(10)
    before = len(scene.proxy.happened)
    scene.proxy.arm("t", "drop_request", "drop_request", "drop_reply")
    scene.commit()
    assert scene.proxy.happened[before:] == [
        ("drop_request", 0),
        ("drop_request", 0),
        ("drop_reply", 200),
    ]
    scene.check()
