"""What is published by the command line comes back by it, and bad rows are named and kept out."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import frazil

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", None, "ü"]})


def lines_of(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


def ids(call, topic, *options):
    return [row["id"] for row in lines_of(call("read", topic, *options))]


def published(call, topic, *arguments, code=0, given=None):
    result = call("publish", topic, *arguments, "--output", "json", code=code, given=given)
    return json.loads(result.stdout)


def test_ndjson_makes_a_table_topic_and_comes_back(call):
    """Rows on stdin create a topic with their columns; reading gives them back in order."""
    report = published(call, "t", given='{"id":1,"x":1.5}\n\n{"id":2,"x":null}\n')
    assert (report["accepted"], report["rejected"], report["created"]) == (2, 0, True)
    assert (report["offset_first"], report["offset_last"]) == (0, 1)
    rows = lines_of(call("read", "t"))
    assert [(row["_offset"], row["id"], row["x"]) for row in rows] == [(0, 1, 1.5), (1, 2, None)]


def test_lines_make_a_message_topic_and_come_back(call):
    """Lines are payloads, empty ones too; bytes that are no text come back as base64, or raw."""
    report = published(call, "m", given=b"one\n\n\xff\r\nlast")
    assert report["accepted"] == 4
    payloads = [row["payload"] for row in lines_of(call("read", "m"))]
    assert payloads == ["one", "", {"base64": "/w=="}, "last"]
    assert call("read", "m", "--format", "raw").stdout_bytes == b"one\n\n\xff\nlast\n"


def test_csv_is_read_by_type(call, tmp_path):
    """Columns of a CSV file get types; a cell over two lines is one cell; an empty one is null."""
    file = tmp_path / "x.csv"
    file.write_text('id,x,ok,at,note\n1,1.5,true,2026-01-01T00:00:00Z,"a\nb"\n2,,false,,\n')
    assert published(call, "c", file)["accepted"] == 2
    first, second = lines_of(call("read", "c"))
    assert (first["id"], first["x"], first["ok"], first["note"]) == (1, 1.5, True, "a\nb")
    assert first["at"] == "2026-01-01T00:00:00Z"
    assert (second["x"], second["at"], second["note"]) == (None, None, "")


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
def test_arrow_and_parquet_files(call, tmp_path, kind):
    """Parquet files, Arrow files and Arrow streams are published in batches."""
    file = tmp_path / ("x.parquet" if kind == "parquet" else "x.arrow")
    if kind == "parquet":
        pq.write_table(ROWS, file)
    else:
        make = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with make(str(file), ROWS.schema) as writer:
            writer.write_table(ROWS)
    assert published(call, "t", file, "--batch", 2)["accepted"] == 3
    rows = lines_of(call("read", "t"))
    assert [(row["id"], row["name"]) for row in rows] == [(1, "a"), (2, None), (3, "ü")]


TABLE_CASES = [
    ("not json", b"nonsense", "JSON is invalid"),
    ("nan", b'{"id":1,"x":NaN}', "JSON is invalid"),
    ("infinity", b'{"id":1,"x":-Infinity}', "JSON is invalid"),
    ("beyond 64 bit", b'{"id":9223372036854775808}', "beyond 64 bit"),
    ("far beyond 64 bit", b'{"id":' + b"9" * 30 + b"}", "beyond 64 bit"),
    ("invalid utf-8", b'{"id":1,"s":"\xff"}', "invalid"),
    ("duplicate column", b'{"id":1,"id":2}', "twice"),
    ("wrong type", b'{"id":"one"}', "id"),
    ("fraction for an integer", b'{"id":1.5}', "id"),
    ("null in a key", b'{"id":null}', "id"),
    ("missing key", b'{"x":1.0}', "id"),
    ("unknown column", b'{"id":1,"y":2}', "y"),
    ("not an object", b"[1]", "must be an object"),
    ("bad timestamp", b'{"id":1,"at":"yesterday"}', "at"),
    ("too large", b'{"id":1,"s":"' + b"x" * 1_100_000 + b'"}', "too large"),
    ("line too long", b'{"id":1,"s":"' + b"x" * 2_200_000 + b'"}', "line is too long"),
]


@pytest.fixture
def table(call):
    """A table topic with a key and columns of several types."""
    columns = ("id:long", "x:double", "s:string", "at:timestamptz")
    words = [word for column in columns for word in ("--column", column)]
    call("topic", "create", "t", *words, "--key", "id")
    return call


@pytest.mark.parametrize(
    ("bad", "reason"),
    [case[1:] for case in TABLE_CASES],
    ids=[case[0] for case in TABLE_CASES],
)
def test_a_bad_row_is_named_and_the_good_ones_are_kept(table, bad, reason):
    """Each kind of bad row is rejected with its line and reason; skipping keeps the others."""
    given = b'{"id":1}\n' + bad + b'\n{"id":3}\n'
    report = published(table, "t", "--on-error", "skip", given=given)
    assert (report["accepted"], report["rejected"]) == (2, 1)
    assert report["errors"][0]["line"] == 2
    assert reason in report["errors"][0]["reason"]
    assert ids(table, "t") == [1, 3]


@pytest.mark.parametrize("bad", [b"nonsense", b'{"id":null}', b'{"id":1,"at":"x"}'])
def test_stop_publishes_nothing_of_the_bad_batch(table, bad):
    """With stop the batches before the bad row are there, and nothing of its own batch."""
    rows = [b'{"id":%d}' % number for number in range(10)]
    rows[7] = bad
    report = published(table, "t", "--batch", 3, given=b"\n".join(rows), code=2)
    assert (report["accepted"], report["rejected"], report["stopped"]) == (6, 1, True)
    assert report["errors"][0]["line"] == 8
    assert ids(table, "t") == [0, 1, 2, 3, 4, 5]


def test_the_first_bad_row_in_the_file_is_named_first(table):
    """Rows that fail late checks are reported in the order of the file, too."""
    given = b'{"id":1}\n{"id":null}\n{"id":2,"at":"x"}\nnonsense\n'
    report = published(table, "t", "--on-error", "skip", given=given)
    assert [error["line"] for error in report["errors"]] == [2, 3, 4]
    assert published(table, "t", given=given, code=2)["errors"][0]["line"] == 2


def test_rejected_rows_go_to_a_file(table, tmp_path):
    """The reject file has file, line, reason and the row as it was, also if it is no text."""
    rejects = tmp_path / "rejects.ndjson"
    given = b'{"id":1}\nbad\n\xff\xfe\n{"id":2}\n'
    report = published(table, "t", "--reject-file", rejects, given=given)
    assert (report["accepted"], report["rejected"]) == (2, 2)
    found = [json.loads(line) for line in rejects.read_text().splitlines()]
    assert [(each["line"], each["original"]) for each in found] == [
        (2, "bad"),
        (3, {"base64": "//4="}),
    ]
    assert all(each["reason"] for each in found)


def test_bad_rows_of_parquet_are_named_by_row(table, tmp_path):
    """A null in the key of a Parquet row is rejected by its number; the others are published."""
    file = tmp_path / "x.parquet"
    pq.write_table(pa.table({"id": [1, None, 3, None]}), file)
    report = published(table, "t", file, "--on-error", "skip")
    assert (report["accepted"], [error["line"] for error in report["errors"]]) == (2, [2, 4])
    assert ids(table, "t") == [1, 3]
    report = published(table, "t", file, code=2)
    assert (report["accepted"], report["errors"][0]["line"]) == (0, 2)


FILES = [
    ("cut parquet", "x.parquet", lambda data: data[: len(data) // 2], "damaged or cut short"),
    ("empty parquet", "x.parquet", lambda _: b"", "damaged or cut short"),
    ("junk arrow", "x.arrow", lambda _: b"junk" * 100, "damaged or cut short"),
    ("duplicate header", "x.csv", lambda _: b"id,id\n1,2\n", "column comes twice"),
]


@pytest.mark.parametrize(
    ("name", "change", "reason"), [case[1:] for case in FILES], ids=[case[0] for case in FILES]
)
def test_a_broken_file_is_refused_by_name(table, tmp_path, name, change, reason):
    """A file that cannot be read as its format gives one line with its name; nothing is written."""
    file = tmp_path / name
    pq.write_table(pa.table({"id": list(range(10_000))}), file)
    file.write_bytes(change(file.read_bytes()))
    result = table("publish", "t", file, code=2)
    assert reason in result.stderr
    assert name in result.stderr
    assert ids(table, "t") == []


def test_rows_that_disagree_make_no_topic(call):
    """An absent topic is not created from rows of different types; the line is named."""
    result = call("publish", "t", code=2, given='{"a":1}\n{"a":2}\n{"a":"x"}\n{"a":3}\n')
    assert "line=3" in result.stderr
    assert json.loads(call("topic", "list", "--output", "json").stdout) == []


MESSAGES = [
    ("future time", '{"payload":"p","publish_time":"2999-01-01T00:00:00Z"}', "future"),
    ("attributes", json.dumps({"payload": "p", "attributes": {"a": "x" * 40_000}}), "too large"),
    ("attribute type", '{"payload":"p","attributes":{"a":1}}', "attribute"),
    ("key size", json.dumps({"payload": "p", "key": "k" * 2000}), "key is too large"),
    ("key type", '{"payload":"p","key":5}', "key"),
    ("no payload", '{"key":"k"}', "payload"),
    ("unknown field", '{"payload":"p","color":"red"}', "unknown field"),
    ("payload size", json.dumps({"payload": "x" * 1_100_000}), "too large"),
]


@pytest.mark.parametrize(
    ("bad", "reason"), [case[1:] for case in MESSAGES], ids=[case[0] for case in MESSAGES]
)
def test_a_bad_envelope_is_named(call, bad, reason):
    """Each kind of bad envelope is rejected with its line; the good message is kept."""
    good = '{"payload":"p","key":"k","attributes":{"a":"b"},"_offset":7}'
    report = published(call, "m", "--envelope", "--on-error", "skip", given=f"{good}\n{bad}\n")
    assert (report["accepted"], report["errors"][0]["line"]) == (1, 2)
    assert reason in report["errors"][0]["reason"]
    (row,) = lines_of(call("read", "m"))
    assert (row["payload"], row["key"], row["attributes"]) == ("p", "k", {"a": "b"})


def test_a_field_can_be_the_key_of_a_message(call):
    """NDJSON into a message topic keeps the line as payload and takes the key from a field."""
    published(call, "m", "--key-column", "user", given='{"user": "ann", "n": 1}\n')
    (row,) = lines_of(call("read", "m"))
    assert (row["payload"], row["key"]) == ('{"user": "ann", "n": 1}', "ann")


def test_a_named_producer_publishes_each_row_once(call, tmp_path):
    """A file published again under the same producer adds only what is new, over any distance."""
    file = tmp_path / "x.txt"
    file.write_text("".join(f"{n}\n" for n in range(50)))
    assert published(call, "m", file, "--producer", "p", "--batch", 3)["accepted"] == 50
    file.write_text("".join(f"{n}\n" for n in range(60)))
    report = published(call, "m", file, "--producer", "p", "--batch", 7)
    assert (report["accepted"], report["already_published"]) == (10, 50)
    payloads = call("read", "m", "--format", "raw").stdout.split()
    assert payloads == [str(n) for n in range(60)]


def test_a_run_that_stopped_goes_on_behind_what_it_published(table, tmp_path):
    """A producer's second run, with the bad row mended, publishes the rest and nothing twice."""
    file = tmp_path / "x.ndjson"
    rows = [f'{{"id":{n}}}' for n in range(10)]
    file.write_text("\n".join([*rows[:7], "bad", *rows[8:]]))
    assert published(table, "t", file, "--producer", "p", "--batch", 3, code=2)["accepted"] == 6
    file.write_text("\n".join(rows))
    report = published(table, "t", file, "--producer", "p", "--batch", 3)
    assert (report["accepted"], report["already_published"]) == (4, 6)
    assert ids(table, "t") == list(range(10))


def test_reading_starts_at_the_given_offset_or_time(table):
    """An offset, a limit, a time and a span choose what is read."""
    published(table, "t", given="".join(f'{{"id":{n}}}\n' for n in range(5)))
    assert ids(table, "t", "--from", 3) == [3, 4]
    assert ids(table, "t", "--limit", 2) == [0, 1]
    assert ids(table, "t", "--from", "latest") == []
    assert ids(table, "t", "--from", "-5m") == [0, 1, 2, 3, 4]
    assert ids(table, "t", "--from", "2000-01-01T00:00:00Z", "--limit", 1) == [0]
    assert ids(table, "t", "--from", "2999-01-01") == []
    assert "--from takes" in table("read", "t", "--from", "noon", code=2).stderr


def test_table_and_csv_output(table):
    """CSV has a header with offset, time and operation; a table shows the values."""
    published(table, "t", given='{"id":1,"x":2.5,"s":"a,b"}\n')
    header, row = table("read", "t", "--format", "csv").stdout.splitlines()
    assert header == "_offset,_time,_op,id,x,s,at"
    assert row.endswith(',upsert,1,2.5,"a,b",')
    assert "a,b" in table("read", "t", "--format", "table").stdout
    assert "raw payloads" in table("read", "t", "--format", "raw", code=2).stderr


def test_changes_have_the_name_of_their_operation(table, tmp_path):
    """A keyed topic's records have their operation, in all formats; a delete has nulls but for its key."""
    with frazil.open(tmp_path / "data") as db:
        topic = db.topic("t")
        topic.insert(id=1, x=0.5)
        topic.update(1, {"s": "new"})
        topic.delete(1)
    rows = lines_of(table("read", "t"))
    assert [row["_op"] for row in rows] == ["insert", "update", "delete"]
    assert (rows[0]["x"], rows[0]["s"]) == (0.5, None)
    assert (rows[2]["id"], rows[2]["x"], rows[2]["s"]) == (1, None, None)
    report = pa.ipc.open_stream(table("read", "t", "--format", "arrow").stdout_bytes).read_all()
    assert report.schema.names == ["_offset", "_time", "_op", "id", "x", "s", "at"]
    assert report.column("_op").to_pylist() == ["insert", "update", "delete"]


@pytest.mark.parametrize("bad", [b'{"id":"x"}', b'{"v":1}', b'{"id":5,"v":"x"}', b"nonsense"])
def test_a_bad_row_of_a_keyed_topic_with_parts_is_named_alone(call, bad):
    """Rows of all parts are good rows: one bad row takes none of them with it."""
    columns = ("--column", "id:long", "--column", "v:int", "--key", "id")
    call("topic", "create", "k", *columns, "--partitions", 8)
    rows = [b'{"id":%d,"v":1}' % number for number in range(20)]
    given = b"\n".join([*rows[:6], bad, *rows[6:]])
    report = published(call, "k", "--on-error", "skip", given=given)
    assert (report["accepted"], report["rejected"]) == (20, 1)
    assert report["errors"][0]["line"] == 7
    assert sorted(ids(call, "k")) == list(range(20))
    report = published(call, "k", given=given, code=2)
    assert (report["accepted"], report["errors"][0]["line"]) == (0, 7)


def test_a_partitioned_topic_is_read_whole(call):
    """All parts are read, each record with the number of its part."""
    call("topic", "create", "p", "--partitions", 3)
    assert published(call, "p", given="\n".join("abcdefghi"))["accepted"] == 9
    rows = lines_of(call("read", "p"))
    assert sorted(row["payload"] for row in rows) == list("abcdefghi")
    assert {row["_part"] for row in rows} == {0, 1, 2}
    refused = call("publish", "p", "--producer", "x", given="a\n", code=2)
    assert "one part" in refused.stderr


WRONG = [
    (("publish", "bad name"), "letters, digits"),
    (("publish", "m", "--on-error", "reject-file"), "belong together"),
    (("publish", "m", "--ack", "uploaded"), "tier"),
    (("publish", "m", "--ack", "soon"), "unknown ack level"),
    (("read", "a/b/c"), "shape"),
]


@pytest.mark.parametrize(("words", "reason"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_calls_say_what_is_wrong(call, words, reason):
    """A wrong name or option is one line on stderr and exit code 2."""
    call("topic", "create", "m")
    result = call(*words, given="x\n", code=2)
    assert reason in result.stderr
    assert "Traceback" not in result.output


def test_no_topic_is_made_when_that_is_off(call):
    """Without auto-creation a publish to an absent topic is refused with code 3."""
    call("topic", "create", "other")
    result = call("--set", "topics.auto_create=false", "publish", "t", given="x\n", code=3)
    assert "no such topic" in result.stderr


def test_lost_records_end_reading_unless_skipped(table, tmp_path):
    """Reading a damaged range gives code 8 and its offsets; --skip-lost goes on behind it."""
    for number in range(3):
        published(table, "t", given=f'{{"id":{number},"s":"marker-{number}"}}\n')
    (segment,) = (tmp_path / "data" / "journal").glob("*.seg")
    data = segment.read_bytes()
    assert data.count(b"marker-1") == 1
    segment.write_bytes(data.replace(b"marker-1", b"marker-X"))
    result = table("read", "t", code=8)
    assert [row["id"] for row in lines_of(result)] == [0]
    assert "lost" in result.stderr
    result = table("read", "t", "--skip-lost")
    assert [row["id"] for row in lines_of(result)] == [0, 2]
    assert "lost: " in result.stderr
