"""Signals that move records, or make them due for the lake, are logged, counted and shown."""

from __future__ import annotations

import logging
import time

from frazil.topic import signals
from tests.integration.engine.opening import open_small, wait_until

BUDGET = 32 << 20
TIERS = {"rss_base_bytes": 64 << 30}
"""Other tests of the same process take memory, too: only what is counted is to count."""


def test_the_reason_of_a_flush_is_logged_counted_and_shown(tmp_path, caplog, monkeypatch):
    """Ten records beyond a limit of nine: the event, the topic's count and the engine's name it."""
    caplog.set_level(logging.INFO, logger="frazil")
    monkeypatch.setattr(signals, "COMMIT_SMALL_FILES", 1)
    with open_small(tmp_path, retention_check_s=0.05) as db:
        topic = db.create_topic("t", signals={"flush_offsets": 9})
        topic.append_many([b"record"] * 9)
        time.sleep(0.3)
        assert topic.stats()["tiers"]["signals_fired"] == {}
        topic.append(b"the tenth")
        wait_until(lambda: any(each.message == "topic_flushed" for each in caplog.records))
        assert topic.stats()["tiers"]["flushed"] == 10
        assert topic.stats()["tiers"]["signals_fired"] == {"offsets": 1}
        assert db.stats()["tiers"]["signals_fired"] == {"offsets": 1}
        logged = [each.facts for each in caplog.records if each.message == "topic_flushed"]
        assert [(one["topic"], one["reason"]) for one in logged] == [("/default/t", "offsets")]
        topic.append_many([b"again"] * 10)
        wait_until(lambda: db.stats()["tiers"]["commit_queue"])
        [due] = db.stats()["tiers"]["commit_queue"]
        assert (due["topic"], due["reasons"]) == ("/default/t", ("small_files",))
        assert (due["offset_first"], due["offset_end"], due["files"]) == (0, 20, 2)


def test_what_others_take_of_the_budget_is_made_room_for(tmp_path):
    """Readers' buffers lead into yellow: records are flushed, and publishers no longer delayed."""
    memory = {"budget_bytes": BUDGET}
    with open_small(tmp_path, memory=memory, tiers=TIERS, segment_bytes_max=64 << 20) as db:
        topic = db.create_topic("t")
        for _ in range(100):
            topic.append_many([bytes(1000)] * 60)
        pressure, taken = db.tiers.pressure, [0]
        pressure.add_source("others", lambda: taken[0])
        time.sleep(0.5)
        assert topic.stats()["tiers"]["flushed"] == 0
        pressure.refresh()
        records = pressure.usage_ratio
        assert 0.1 < records < 0.5
        taken[0] = int((0.65 - records) * BUDGET)
        wait_until(lambda: topic.stats()["tiers"]["flushed"] == 6_000 and not pressure.level)
        assert topic.stats()["tiers"]["signals_fired"] == {"memory": 1}


def test_a_few_records_are_not_flushed_for_what_they_do_not_take(tmp_path):
    """Others alone keep memory in yellow: small files would free next to nothing."""
    memory = {"budget_bytes": BUDGET}
    with open_small(tmp_path, memory=memory, tiers=TIERS) as db:
        topic = db.create_topic("t")
        topic.append_many([bytes(1000)] * 20)
        pressure = db.tiers.pressure
        pressure.add_source("others", lambda: int(0.7 * BUDGET))
        wait_until(lambda: pressure.level == 1)
        time.sleep(0.5)
        assert topic.stats()["tiers"]["flushed"] == 0


def test_the_largest_topic_is_flushed_before_publishers_are_delayed(tmp_path):
    """From just below yellow on; the smaller one may stay."""
    memory = {"budget_bytes": BUDGET}
    with open_small(tmp_path, memory=memory, tiers=TIERS, segment_bytes_max=64 << 20) as db:
        small, large = db.create_topic("small"), db.create_topic("large")
        for topic, batches in ((small, 50), (large, 100)):
            for _ in range(batches):
                topic.append_many([bytes(1000)] * 60)
        pressure, taken = db.tiers.pressure, [0]
        pressure.add_source("others", lambda: taken[0])
        pressure.refresh()
        taken[0] = int((0.57 - pressure.usage_ratio) * BUDGET)
        wait_until(lambda: large.stats()["tiers"]["flushed"] == 6_000)
        time.sleep(0.3)
        assert small.stats()["tiers"]["flushed"] == 0
