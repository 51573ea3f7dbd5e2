"""What moved records, and what waits for the lake, is told, counted and shown."""

from __future__ import annotations

import logging
import time

from tests.integration.engine.opening import open_small


def wait_until(condition, seconds=20.0):
    """Wait until something is so, for a while."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_reason_of_a_flush_is_told_counted_and_shown(tmp_path, caplog):
    """Ten records beyond a limit of nine: the event, the topic's count and the engine's name it."""
    caplog.set_level(logging.INFO, logger="frazil")
    with open_small(tmp_path, retention_check_s=0.05) as db:
        topic = db.create_topic("t", signals={"flush_offsets": 9, "commit_small_files": 1})
        topic.append_many([b"record"] * 9)
        time.sleep(0.3)
        assert topic.stats()["tiers"]["signals_fired"] == {}
        topic.append(b"the tenth")
        wait_until(lambda: any(each.message == "topic_flushed" for each in caplog.records))
        assert topic.stats()["tiers"]["flushed"] == 10
        assert topic.stats()["tiers"]["signals_fired"] == {"offsets": 1}
        assert db.stats()["tiers"]["signals_fired"] == {"offsets": 1}
        told = [each.facts for each in caplog.records if each.message == "topic_flushed"]
        assert [(one["topic"], one["reason"]) for one in told] == [("/default/t", "offsets")]
        topic.append_many([b"again"] * 10)
        wait_until(lambda: db.stats()["tiers"]["commit_queue"])
        [due] = db.stats()["tiers"]["commit_queue"]
        assert (due["topic"], due["reasons"]) == ("/default/t", ("small_files",))
        assert (due["offset_first"], due["offset_end"], due["files"]) == (0, 20, 2)
