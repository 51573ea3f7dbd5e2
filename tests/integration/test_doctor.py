"""Whatever happened to a data directory, the doctor says what is wrong and never fails itself."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from typer.testing import CliRunner

import frazil
from frazil.cli.app import app

RECORDS = 100
SMALL = {
    "log.segment_bytes_max": "1200KiB",
    "log.write_bytes_max": "150KiB",
    "topics.message_bytes_max": "100KiB",
    "log.ballast_bytes": 0,
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """A closed directory with sealed segments, a table topic and a small one."""
    path = tmp_path_factory.mktemp("reference") / "data"
    with frazil.open(path, **SMALL) as engine:
        big = engine.create_topic("big")
        rows = engine.create_topic("rows", {"id": "long"})
        own = engine.create_topic("own")
        for number in range(RECORDS):
            big.append_many([b"%05d" % number * 10_000, b"second"])
            rows.append(id=number)
            own.append(b"own %d" % number)
        engine.upkeep.seal()
    return path


@pytest.fixture
def data(reference, tmp_path):
    """A copy of the reference directory to damage."""
    target = tmp_path / "data"
    shutil.copytree(reference, target)
    os.chmod(target, 0o700)
    return target


def examine(data, *words, code=0):
    arguments = ["--data", str(data), "doctor", *words, "--output", "json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    return json.loads(result.stdout)


def tree(path):
    """All files with their bytes, but for the lock that a look takes."""
    return {
        each.relative_to(path): each.read_bytes()
        for each in sorted(path.rglob("*"))
        if each.is_file() and each.name != "LOCK"
    }


def texts(found, level):
    return " | ".join(each["what"] for each in found["findings"] if each["level"] == level)


def segments(data):
    return sorted((data / "journal").glob("*.seg"))


def test_a_whole_directory_is_healthy_and_untouched(data):
    """A clean directory gives `ok`, code 0, and not one byte of it changes."""
    before = tree(data)
    found = examine(data)
    assert found["health"] in ("ok", "warnings")
    assert (found["lost"], found["quarantined"]) == ([], [])
    assert found["metadata"]["state"] == "current"
    assert found["journal"]["segments"] == len(segments(data))
    assert tree(data) == before


def cut(path, share):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


def flip(path, share):
    data = bytearray(path.read_bytes())
    data[int(len(data) * share)] ^= 0x40
    path.write_bytes(data)


def junk(path):
    path.write_bytes(os.urandom(path.stat().st_size))


def directory_instead(path):
    path.unlink()
    path.mkdir()


def foreign_segment(data):
    other = data.with_name("other")
    frazil.open(other, **SMALL).close()
    shutil.copy(segments(other)[0], data / "journal" / f"{99:016x}.seg")


DAMAGE = {
    "middle segment removed": lambda data: segments(data)[1].unlink(),
    "first segment removed": lambda data: segments(data)[0].unlink(),
    "last segment removed": lambda data: segments(data)[-1].unlink(),
    "all segments removed": lambda data: [each.unlink() for each in segments(data)],
    "sealed segment cut": lambda data: cut(segments(data)[1], 0.5),
    "sealed segment empty": lambda data: cut(segments(data)[1], 0),
    "sealed segment random": lambda data: junk(segments(data)[1]),
    "bit flipped in a sealed segment": lambda data: flip(segments(data)[1], 0.5),
    "header of a segment damaged": lambda data: flip(segments(data)[1], 20 / 1_200_000),
    "all segments random": lambda data: [junk(each) for each in segments(data)],
    "segment is a directory": lambda data: directory_instead(segments(data)[1]),
    "metadata's lock is a directory": lambda data: directory_instead(data / "meta.db-lock"),
    "metadata is a link": lambda data: (
        (data / "meta.db").unlink(),
        (data / "meta.db").symlink_to("nowhere"),
    ),
    "lock is a directory": lambda data: directory_instead(data / "LOCK"),
    "journal is a file": lambda data: (
        shutil.rmtree(data / "journal"),
        (data / "journal").write_bytes(b"x"),
    ),
    "foreign journal mixed in": foreign_segment,
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_reported(data, kind):
    """Each kind of damage gives code 8, a finding with advice, and no change by looking."""
    DAMAGE[kind](data)
    before = tree(data)
    found = examine(data, code=8)
    assert found["health"] == "damaged"
    damage = [each for each in found["findings"] if each["level"] == "damage"]
    assert damage
    assert all(each["what"] and each["advice"] for each in damage)
    assert tree(data) == before
    words = ["--data", str(data), "doctor"]
    assert "damage" in CliRunner().invoke(app, words).stdout


@pytest.mark.parametrize("kind", DAMAGE)
def test_other_commands_on_damage_end_without_traceback(data, kind):
    """Opening and verifying a damaged directory works or gives one line with its code."""
    DAMAGE[kind](data)
    for words in (("log", "dump"), ("log", "ls"), ("topic", "list"), ("read", "big")):
        result = CliRunner().invoke(app, ["--data", str(data), *words])
        assert result.exit_code in range(10), (words, result.output)
        assert result.exception is None or isinstance(result.exception, SystemExit), words


def test_lost_offsets_are_named(data):
    """A removed segment is reported as the offsets of each topic that were in it."""
    listed = CliRunner().invoke(app, ["--data", str(data), "log", "ls", "-o", "json"])
    gone = json.loads(listed.stdout)["segments"][1]
    os.unlink(gone["path"])
    found = examine(data, code=8)
    wanted = {(each["topic"], each["first"], each["end"]) for each in gone["topics"]}
    assert {(each["topic"], each["first"], each["end"]) for each in found["lost"]} == wanted
    assert any(topic == "/default/big" for topic, _, _ in wanted)


def test_a_flipped_bit_loses_only_its_frame(data):
    """The doctor reads sealed segments: it names the few offsets of the damaged frame."""
    flip(segments(data)[1], 0.5)
    found = examine(data, code=8)
    assert sum(each["end"] - each["first"] for each in found["lost"]) <= 2
    assert "hash" in texts(found, "damage")
    assert examine(data, "--quick")["health"] != "damaged"


def test_the_first_and_the_last_frame_of_a_topic_are_missed_too(data):
    """Damage at the ends of a topic's stretch in a sealed segment is reported by exact offsets."""
    path = segments(data)[1]
    words = ["log", "dump", "--segment", "2", "--topic", "rows", "-n", "9999", "-o", "json"]
    dumped = json.loads(CliRunner().invoke(app, ["--data", str(data), *words]).stdout)
    frames = [frame for frame in dumped if frame["kind"] in ("rows", "arrow")]
    assert len(frames) > 2
    content = bytearray(path.read_bytes())
    for frame in (frames[0], frames[-1]):
        content[frame["position"] + frame["bytes"] - 8] ^= 1
    path.write_bytes(content)
    found = examine(data, code=8)
    assert [(each["topic"], each["first"], each["end"]) for each in found["lost"]] == [
        ("/default/rows", frame["offset"], frame["offset"] + frame["records"])
        for frame in (frames[0], frames[-1])
    ]


def test_an_old_copy_of_the_log_is_reported(data, reference, tmp_path):
    """Metadata that knows more than the log means that the log lost its end."""
    with frazil.open(data, **SMALL) as engine:
        engine.append("rows", id=RECORDS)
    shutil.rmtree(data / "journal")
    shutil.copytree(reference / "journal", data / "journal")
    found = examine(data, code=8)
    assert found["metadata"]["state"] == "newer"
    assert [(e["topic"], e["first"], e["end"]) for e in found["lost"]] == [
        ("/default/rows", RECORDS, RECORDS + 1)
    ]


METADATA = {
    "missing": (lambda path: path.unlink(), "missing"),
    "random bytes": (junk, "damaged"),
    "cut": (lambda path: cut(path, 0.5), "damaged"),
    "a directory": (directory_instead, "unreadable"),
    "empty": (lambda path: path.write_bytes(b""), "older"),
}


@pytest.mark.parametrize("kind", METADATA)
def test_the_metadata_is_judged_and_made_again_by_opening(data, kind):
    """Missing or damaged metadata loses nothing: it is reported, and the next opening rebuilds it."""
    damage, state = METADATA[kind]
    damage(data / "meta.db")
    code = 8 if kind == "a directory" else 0
    assert examine(data, code=code)["metadata"]["state"] == state
    if kind == "a directory":
        (data / "meta.db").rmdir()
    with frazil.open(data) as engine:
        assert engine.topics() == ["/default/big", "/default/own", "/default/rows"]
        assert engine.topic_stats("rows")["message_count"] == RECORDS
    assert examine(data)["metadata"]["state"] == "current"


def test_a_torn_tail_is_no_damage(data):
    """Half a frame behind the last whole one is reported as the trace of a crash; nothing is lost."""
    with segments(data)[-1].open("ab") as file:
        file.write(b"\x07" * 100)
    found = examine(data)
    assert found["lost"] == []
    assert "never acked" in " ".join(each["advice"] for each in found["findings"])
    assert found["journal"]["bytes_torn"] > 0


def test_quarantined_files_are_listed_with_their_reasons(data):
    """After a damaged segment was put aside, the doctor shows where it is and why."""
    flip(segments(data)[-1], 0.3)
    with frazil.open(data):
        pass
    found = examine(data, code=8)
    assert found["quarantined"]
    assert all(each["reason"]["damage"] for each in found["quarantined"])


def test_rights_of_the_directory_are_reported(data):
    """A directory that others may enter is a warning with the command that mends it."""
    os.chmod(data, 0o755)
    found = examine(data)
    assert "others may enter" in texts(found, "warning")
    assert any("chmod 700" in each["advice"] for each in found["findings"])
