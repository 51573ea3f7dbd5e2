"""Topics, holds and the log by the command line: output, exit codes, and no traceback ever."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest
from typer.testing import CliRunner

import frazil
from frazil.cli.app import app


def values(result):
    return json.loads(result.stdout)


def test_the_version_is_printed():
    """`frazil --version` prints the package's version."""
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"frazil {frazil.__version__}\n")


def test_a_table_topic_with_everything(call):
    """Columns, key, partition spec and options are stored as they were given."""
    call(
        *("topic", "create", "/shop/orders", "--column", "id:long", "--column", "ts:timestamptz"),
        *("--column", "price:decimal(10,2) not null", "--key", "id", "--partition-by", "day(ts)"),
        *("--sync", "periodic"),
        *("--retention-bytes", "20GiB", "--on-full", "block"),
    )
    found = values(call("topic", "describe", "/shop/orders", "--output", "json"))
    assert [(each["name"], each["type"], each["nullable"]) for each in found["columns"]] == [
        ("id", "long", False),
        ("ts", "timestamptz", True),
        ("price", "decimal(10,2)", False),
    ]
    assert found["primary_key"] == ["id"]
    assert found["partition_by"] == ["day(ts)"]
    assert (found["sync"], found["on_full"]) == ("periodic", "block")
    assert (found["retention_age_s"], found["retention_bytes"]) == (None, 20 << 30)
    shown = call("topic", "describe", "/shop/orders").stdout
    assert "decimal(10,2)" in shown
    assert "20GiB" in shown
    assert "for ever" in shown
    refused = call("topic", "alter", "/shop/orders", "--retention-age", "48h", code=2)
    assert "never expire" in refused.stderr


def test_a_keyed_topic_with_limits_of_its_own(call):
    """The meaning of unknown keys and the limits of signals are stored, and can be changed."""
    call(
        *("topic", "create", "t", "--column", "id:long", "--key", "id", "--unknown-key", "error"),
        *("--signal", "flush_age_s=10s", "--signal", "flush_partition_bytes=1MiB"),
    )
    found = values(call("topic", "describe", "t", "-o", "json"))
    assert found["unknown_key"] == "error"
    assert found["signals"] == {"flush_age_s": 10, "flush_partition_bytes": 1 << 20}
    call("topic", "alter", "t", "--signal", "flush_offsets=500", "--unknown-key", "insert")
    found = values(call("topic", "describe", "t", "-o", "json"))
    assert (found["unknown_key"], found["signals"]) == ("insert", {"flush_offsets": 500})


def test_topics_are_listed_and_deleted(call):
    """The list has kinds and counts, by namespace too; deleting needs --yes."""
    call("topic", "create", "/a/one")
    call("topic", "create", "/b/two", "--column", "x:int", "--partitions", 2)
    call("publish", "/a/one", given="x\ny\n")
    found = values(call("--output", "json", "topic", "list"))
    assert [(each["name"], each["kind"], each["partitions"]) for each in found] == [
        ("/a/one", "message", 0),
        ("/b/two", "table", 2),
    ]
    assert found[0]["message_count"] == 2
    assert "/a/one" in call("topic", "list").stdout
    only = values(call("topic", "list", "--namespace", "b", "-o", "json"))
    assert [each["name"] for each in only] == ["/b/two"]
    assert "--yes" in call("topic", "delete", "/a/one", code=2).stderr
    assert values(call("topic", "delete", "/a/one", "--yes", "-o", "json"))["deleted"] == "/a/one"
    call("topic", "describe", "/a/one", code=3)


def test_a_live_topic_is_altered(call):
    """Columns are added, widened, renamed and dropped; old rows read under the new ones."""
    call("topic", "create", "t", "--column", "a:int", "--column", "b:float", "--column", "c:string")
    call("publish", "t", given='{"a":1,"b":0.5,"c":"x"}\n')
    call(
        *("topic", "alter", "t", "--add", "d:long", "--widen", "a:long", "--rename", "b=bb"),
        *("--drop", "c", "--retention-age", "1h", "--sync", "periodic"),
    )
    (row,) = [json.loads(line) for line in call("read", "t").stdout.splitlines()]
    assert {key: row[key] for key in row if key[0] != "_"} == {"a": 1, "bb": 0.5, "d": None}
    found = values(call("topic", "describe", "t", "-o", "json"))
    assert (found["retention_age_s"], found["sync"]) == (3600, "periodic")
    assert "nothing to change" in call("topic", "alter", "t", code=2).stderr
    call("topic", "alter", "t", "--widen", "a:string", code=2)


def test_holds_are_kept(call):
    """A hold is made, moved and dropped; a wrong move has its own exit code."""
    call("topic", "create", "t")
    call("publish", "t", given="a\nb\nc\n")
    assert values(call("topic", "hold", "t", "job", 1, "-o", "json"))["holds"] == {"job": 1}
    call("topic", "hold", "t", "job", 1, code=4)
    assert "job=2" in call("topic", "advance", "t", "job", 2).stdout
    call("topic", "advance", "t", "job", 1, code=4)
    call("topic", "advance", "t", "job", 99, code=2)
    assert values(call("topic", "drop-hold", "t", "job", "-o", "json"))["holds"] == {}
    call("topic", "drop-hold", "t", "job", code=3)


WRONG_TOPICS = [
    (("a b",), "letters, digits"),
    (("/x",), "/namespace/name"),
    (("n" * 300,), "too long"),
    (("t", "--column", "x"), "name:value"),
    (("t", "--column", "x:blob"), "x"),
    (("t", "--column", "x:int", "--column", "x:long"), "twice"),
    (("t", "--column", "x:int", "--key", "y"), "y"),
    (("t", "--column", "x:double", "--key", "x"), "key"),
    (("t", "--key", "y"), "message topic"),
    (("t", "--column", "x:int", "--partition-by", "day(x)"), "day"),
    (("t", "--partitions", "100000"), "partitions_max=256"),
    (("t", "--retention-age", "soon"), "duration"),
    (("t", "--retention-bytes", "-5"), "size"),
    (("t-part-0",), "partition"),
    (("t", "--signal", "flush=1"), "flush"),
    (("t", "--signal", "flush_age_s=soon"), "flush_age_s"),
    (("t", "--signal", "flush_age_s=1s", "--signal", "flush_age_s=2s"), "twice"),
]


@pytest.mark.parametrize(("words", "reason"), WRONG_TOPICS, ids=lambda value: str(value)[:50])
def test_wrong_definitions_are_refused(call, words, reason):
    """Each wrong name, column, key, spec or option is one line that names it, and code 2."""
    result = call("topic", "create", *words, code=2)
    assert reason in result.stderr
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1


def test_a_topic_is_made_once(call):
    """A second creation is a conflict, unless it says that this is fine."""
    call("topic", "create", "t")
    assert "exists" in call("topic", "create", "t", code=4).stderr
    call("topic", "create", "t", "--exist-ok")


def test_reading_makes_no_directory(call, tmp_path):
    """Commands that read say that there is no data; they create nothing."""
    for words in (("topic", "list"), ("read", "t"), ("doctor",), ("log", "ls")):
        assert "no data directory" in call(*words, code=3).stderr
    assert list(tmp_path.iterdir()) == []


def test_wrong_settings_are_refused(call):
    """An unknown setting is one line with the nearest valid one."""
    result = call("--set", "log.snyc=none", "topic", "list", code=2)
    assert "log.sync" in result.stderr
    assert "Traceback" not in result.output


def test_global_options_reach_the_settings(call):
    """`config show` sees --set and --data before and after the command."""
    for words in (
        ("--set", "log.sync=periodic", "config", "show", "-o", "json"),
        ("config", "show", "--set", "log.sync=periodic", "-o", "json"),
        ("--output", "json", "config", "show", "--set", "log.sync=periodic"),
    ):
        found = values(call(*words))
        assert found["log.sync"]["value"] == "periodic"
        assert found["data_dir"]["origin"] == "flag"
        assert found["data_dir"]["value"].endswith("data")


@pytest.fixture
def filled(call, tmp_path):
    """A directory with several sealed segments and three topics."""
    small = ("--set", "log.segment_bytes_max=1200KiB", "--set", "log.write_bytes_max=150KiB")
    small += ("--set", "topics.message_bytes_max=100KiB")
    call("topic", "create", "own")
    call("publish", "own", given="own\n")
    call("publish", "rows", given='{"id":1}\n{"id":2}\n')
    payload = "x" * 50_000
    call(*small, "publish", "big", "--batch", 2, given=f"{payload}\n" * 60)
    with frazil.open(tmp_path / "data") as engine:
        engine.upkeep.seal()
    return call


def test_segments_are_listed(filled):
    """`log ls` has ids, sizes, states, offset ranges and lsn of the journal."""
    segments = values(filled("log", "ls", "-o", "json"))["segments"]
    assert len(segments) >= 3
    assert all(each["sealed"] for each in segments[:-1])
    assert all(a["lsn_last"] + 1 == b["lsn_first"] for a, b in pairwise(segments))
    ranges = [each for segment in segments for each in segment["topics"]]
    big = [(each["first"], each["end"]) for each in ranges if each["topic"] == "/default/big"]
    assert big[0][0] == 0
    assert big[-1][1] == 60
    assert "sealed" in filled("log", "ls").stdout


def test_frames_are_dumped(filled):
    """`log dump` shows frames with their heads, of one topic or segment if asked."""
    rows = values(filled("log", "dump", "--topic", "rows", "-o", "json"))
    data = [row for row in rows if row["kind"] in ("rows", "arrow")]
    assert [(row["offset"], row["records"]) for row in data] == [(0, 2)]
    assert {"kind", "lsn", "synced", "crc", "generation", "time", "size"} <= set(rows[0])
    rows = values(filled("log", "dump", "--segment", 2, "--limit", 5, "-o", "json"))
    assert len(rows) == 5
    assert {row["segment"] for row in rows} == {2}
    assert rows[0]["kind"] == "checkpoint"
    assert "checkpoint" in filled("log", "dump", "--limit", 1).stdout
    assert "no such topic" in filled("log", "dump", "--topic", "nope", code=3).stderr


def test_a_directory_in_use_is_not_looked_into(call, tmp_path):
    """While a process writes, `log` refuses with its pid, `doctor` says so; force reads anyway."""
    with frazil.open(tmp_path / "data") as engine:
        engine.append("t", b"x")
        for words in (("log", "ls"), ("log", "dump"), ("topic", "list")):
            assert re.search(r"pid=\d+", call(*words, code=4).stderr)
        assert values(call("log", "ls", "--force-read", "-o", "json"))["segments"]
        found = values(call("doctor", "-o", "json"))
        assert "pid=" in found["writer"]
