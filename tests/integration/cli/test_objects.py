"""`frazil objects` on a directory with an object store beside it."""

from __future__ import annotations

import json
import os
import time

import pytest
from typer.testing import CliRunner

import frazil
from frazil.cli.app import app
from frazil.objects import KeyParts, object_key
from tests.support.log_limits import set_log_limits

pytestmark = pytest.mark.integration

TOPIC = "/default/events"


class Place:
    """A data directory and its store."""

    def __init__(self, path):
        self.data = path / "data"
        self.store = path / "objects"

    @property
    def settings(self):
        return {"objects.store": "fs", "objects.root": str(self.store)}

    def call(self, *words, code=0):
        """Run `frazil`; return stdout and stderr."""
        options = [f"--set={key}={value}" for key, value in self.settings.items()]
        line = ["--data", str(self.data), *options, *map(str, words)]
        result = CliRunner().invoke(app, line)
        assert result.exit_code == code, (result.output, result.exception)
        return result.stdout, result.stderr

    def printed(self, *words):
        """Run `frazil` and return its JSON."""
        return json.loads(self.call("--output", "json", *words)[0])

    def keys(self):
        """Return the keys of the objects that hold frames."""
        found = self.store.rglob("*.frz")
        return sorted(str(each.relative_to(self.store)) for each in found)


@pytest.fixture
def place(tmp_path):
    made = Place(tmp_path)
    with frazil.open(made.data, **made.settings) as db:
        topic = db.create_topic(TOPIC)
        for count in (5, 3):
            topic.append_many([b"record"] * count)
            db.objects.flush(TOPIC)
        made.broker = db.log.journal.journal_id
    return made


def test_objects_are_listed_by_topic_and_one_by_one(place):
    """`ls` tells how far each topic is uploaded; of one topic it tells every object."""
    (topic,) = place.printed("objects", "ls")
    assert (topic["topic"], topic["start"], topic["uploaded"]) == (TOPIC, 0, 8)
    assert (topic["objects"], topic["lag_records"]) == (2, 0)
    objects = place.printed("objects", "ls", TOPIC)
    assert [(each["offset_first"], each["offset_last"]) for each in objects] == [(0, 4), (5, 7)]
    assert sorted(each["key"] for each in objects) == place.keys()
    table, _ = place.call("objects", "ls")
    assert "0 .. 8" in table
    table, _ = place.call("objects", "ls", TOPIC)
    assert "5 .. 7" in table


def test_collecting_changes_nothing_without_yes(place):
    """A stray is listed, condemned only with --yes, and deleted by the run after that."""
    stray = object_key(KeyParts(place.broker, 1, "abc", 0, 1, "00000000"))
    path = place.store / stray
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"left behind")
    assert place.printed("objects", "collect")["spared"] == 1
    old = time.time() - 30 * 86_400
    os.utime(path, (old, old))
    kept = place.keys()
    for _ in range(2):
        found = place.printed("objects", "collect")
        assert found["dry_run"]
        assert [each["key"] for each in found["condemned"]] == [stray]
    assert place.keys() == kept
    found = place.printed("objects", "collect", "--yes")
    assert [each["key"] for each in found["condemned"]] == [stray]
    assert place.keys() == kept
    table, notes = place.call("objects", "collect")
    assert stray in table
    assert "--yes" in notes
    found = place.printed("objects", "collect", "--yes")
    assert [each["key"] for each in found["deleted"]] == [stray]
    assert place.keys() == [key for key in kept if key != stray]


def test_reading_from_earliest_takes_what_only_objects_have(tmp_path):
    """`frazil read --from earliest` gives every record, once, in order, the local ones last."""
    place = Place(tmp_path)
    set_log_limits(retention_check_s=0.05)
    small = {
        "log.segment_bytes_max": "2MiB",
        "log.write_bytes_max": "256KiB",
        "log.retention_age_s": 0,
        "log.ballast_bytes": 0,
        "topics.message_bytes_max": "128KiB",
        "disk.log_keep_s": 0,
        "memory.enabled": False,
    }
    with frazil.open(place.data, **place.settings, **small) as db:
        topic = db.create_topic(TOPIC)
        for _ in range(60):
            topic.append_many([b"x" * 1_000] * 100)
        db.objects.flush(TOPIC)
        deadline = time.monotonic() + 60
        while topic.runtime.state.start == 0:
            assert time.monotonic() < deadline, "retention freed nothing"
            time.sleep(0.05)
        assert 0 < topic.runtime.state.start < 6_000
    lines = place.call("read", TOPIC, "--from", "earliest")[0].splitlines()
    assert [json.loads(line)["_offset"] for line in lines] == list(range(6_000))


def test_a_directory_without_a_store_says_so(tmp_path):
    """Without `objects.store` there is nothing to list, and the setting is named."""
    with frazil.open(tmp_path / "data"):
        pass
    line = ["--data", str(tmp_path / "data"), "objects", "ls"]
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 2
    assert "objects.store" in result.stderr
