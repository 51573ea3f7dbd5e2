"""What the engine tells about itself: health, background work, and what keeps old segments."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from frazil.cli.app import app
from tests.integration.engine.opening import LOG_ALONE, open_small, rotate


def damage(tmp_path, text):
    """Flip a bit of the segment that has a text."""
    for path in (tmp_path / "journal").glob("*.seg"):
        data = bytearray(path.read_bytes())
        at = data.find(text)
        if at >= 0:
            data[at] ^= 1
            path.write_bytes(data)
            return
    raise AssertionError(text)


def test_every_opening_reports_lost_records(tmp_path):
    """Health is degraded as long as a topic has lost records, and ok once that topic is gone."""
    with open_small(tmp_path) as db:
        topic = db.create_topic("t")
        for number in range(5):
            topic.append(b"record %d " % number * 20)
        assert db.stats()["health"] == "ok"
    damage(tmp_path, b"record 2 record 2")
    reported = []
    for _ in range(3):
        with open_small(tmp_path) as db:
            reported.append((db.stats()["health"], len(db.describe("t")["lost"])))
    assert reported == [("degraded", 1)] * 3
    with open_small(tmp_path) as db:
        db.delete_topic("t")
    with open_small(tmp_path) as db:
        assert db.stats()["health"] == "ok"


def test_the_hold_that_keeps_the_oldest_segment_is_named(tmp_path):
    """Descriptions, statistics and the doctor name the topic and the hold, of others' data too."""
    with open_small(tmp_path, memory=LOG_ALONE) as db:
        small, large = db.create_topic("small"), db.create_topic("large")
        parted = db.create_topic("parted", partitions=2)
        small.append_many([b"x"] * 2)
        large.append(b"x")
        small.hold("a", 1)
        small.hold("b", 2)
        assert db.stats()["journal"]["oldest_kept_by"] == []
        rotate(db)
        large.append(b"y")
        kept = [{"topic": "/default/small", "hold": "a", "offset": 1}]
        assert db.stats()["journal"]["oldest_kept_by"] == kept
        for topic in (small, large, parted):
            assert topic.describe()["oldest_kept_by"] == kept
    words = ["--data", str(tmp_path), "doctor", "--output", "json"]
    report = json.loads(CliRunner().invoke(app, words).stdout)
    assert report["journal"]["oldest_kept_by"] == kept
    assert any("hold a of /default/small" in each["what"] for each in report["findings"])
    alone = CliRunner(env={"FRAZIL_MEMORY__ENABLED": "false"})
    table = alone.invoke(app, ["--data", str(tmp_path), "topic", "describe", "large"])
    assert "a of /default/small" in table.stdout
    with open_small(tmp_path, memory=LOG_ALONE) as db:
        db.topic("small").advance("a", 2)
        assert db.stats()["journal"]["oldest_kept_by"] == []


def test_with_files_the_hold_that_keeps_the_oldest_of_them_is_named(engine):
    """No hold keeps the log then, and none keeps the files of another topic."""
    small, large = engine.create_topic("small"), engine.create_topic("large")
    small.append_many([b"x"] * 2)
    large.append(b"x")
    small.hold("a", 1)
    small.hold("b", 2)
    rotate(engine)
    large.append(b"y")
    assert small.describe()["oldest_kept_by"] == []
    engine.tiers.flush()
    kept = [{"topic": "/default/small", "hold": "a", "offset": 1}]
    assert small.describe()["oldest_kept_by"] == kept
    assert large.describe()["oldest_kept_by"] == []
    assert engine.stats()["journal"]["oldest_kept_by"] == []
    small.advance("a", 2)
    assert small.describe()["oldest_kept_by"] == []
