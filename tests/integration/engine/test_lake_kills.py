"""The program around an engine is killed during a commit, or changes its topics meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from frazil.errors import InvalidRequest, Unavailable
from frazil.lake import STEPS
from tests.integration.engine.lake_engine import (
    COLUMNS,
    ids_of,
    opened,
    rows_of,
    status_of,
    wait_until,
)
from tests.support.log_limits import set_log_limits

pytestmark = pytest.mark.integration

PROGRAM = Path(__file__).with_name("lake_killed.py")
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("step", ["looked", "staged", "committing", "committed", "never"])
def test_a_program_killed_at_a_step_doubles_and_loses_nothing(tmp_path, step):
    """The next one finds the plan, looks, and goes on from where the table stands."""
    assert step in STEPS or step == "never"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    process = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path), step],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )
    assert process.returncode == -9, process.stderr
    assert process.stdout == "20\n"
    with opened(tmp_path) as (db, stand_in):
        plan = status_of(db, "t")["plan"]
        assert (plan is None) == (step == "never")
        db.topic("t").append_many([{"id": n} for n in range(20, 24)])
        db.lake.flush()
        assert not stand_in.commits or plan in {None, stand_in.commits[0].plan.id}
        rows = rows_of(db, "t")
        assert sorted(row["id"] for row in rows) == list(range(24))
        places = [(row["_part"], row["_offset"]) for row in rows]
        assert places == [(part, n) for part in (0, 1) for n in range(12)]


def test_a_lake_can_be_left_while_it_commits(tmp_path):
    """Topics are changed and deleted under a running commit; nobody waits for anybody for ever."""
    with opened(tmp_path) as (db, stand_in):
        stand_in.slow_s = 1.0
        for name in ("left", "deleted", "other"):
            db.create_topic(name, COLUMNS, lake=True).append(id=1, text="")
        for name in ("left", "deleted", "other"):
            db.lake.topics[f"/default/{name}"].waits.ask(-1, 1)
        wait_until(lambda: len(stand_in.commits) + stand_in.waiting >= 3)
        db.alter_topic("left", lake=False, confirm=True)
        db.delete_topic("deleted")
        db.lake.flush("other")
        assert ids_of(db, "other") == [1]
        assert db.topic("left").describe()["holds"] == {}
        assert set(db.lake.status()["topics"]) == {"/default/other"}
        db.alter_topic("left", lake=True)
        db.topic("left").append(id=2, text="", ack="committed")
        assert ids_of(db, "left") == [1, 2]
        assert db.lake.status()["error"] == ""


def test_records_that_expired_at_a_quota_are_passed(tmp_path):
    """A topic that may lose its oldest records goes on in the table behind the declared gap."""
    set_log_limits(retention_check_s=0.05)
    with opened(tmp_path, **{"lake.catalog.port": 0}) as (db, _stand_in):
        topic = db.create_topic(
            "full", COLUMNS, lake=True, on_full="expire", retention_bytes="100kB"
        )
        topic.append(id=0, text="", ack="committed")
        db.lake.pause("full")
        for number in range(1, 60):
            topic.append(id=number, text=os.urandom(2000).hex())
            db.tiers.flush("full")
        wait_until(lambda: topic.describe()["gaps"])
        wait_until(lambda: topic.describe()["watermarks"]["start"] > 1)
        gap_end = max(gap["end"] for gap in topic.describe()["gaps"])
        db.lake.resume("full")
        db.lake.flush("full", timeout_s=60)
        found = ids_of(db, "full")
        assert found[0] == 0
        assert found[1] >= gap_end > 1
        assert found[1:] == list(range(found[1], 60))
        assert topic.describe()["watermarks"]["committed"] == 60


def test_a_wait_that_nobody_needs_any_more_leaves_nothing(tmp_path):
    """A publish that gave up is forgotten; closing wakes the callers that still wait."""
    with opened(tmp_path, **{"lake.ack_timeout_s": "200ms"}) as (db, stand_in):
        topic = db.create_topic("given_up", COLUMNS, lake=True)
        stand_in.refuse = Unavailable("not now")
        with pytest.raises(Unavailable) as caught:
            topic.append(id=0, text="", ack="committed")
        assert caught.value.details["outcome"] == "fsynced"
        assert "longer than 0.2 s" in str(caught.value)
        with pytest.raises(InvalidRequest, match="unknown ack"):
            topic.append(id=1, text="", ack="comitted")
        waits = db.lake.topics["/default/given_up"].waits
        woken = threading.Event()
        assert waits.watch(-1, 1, woken.set)
    assert woken.is_set()
