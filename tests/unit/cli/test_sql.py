"""Results of SQL as table, CSV, JSON and Arrow, and values from the command line."""

from __future__ import annotations

import contextlib
import json
from decimal import Decimal

import pyarrow as pa
import pytest

from frazil.cli.batches import BatchWriter, check_format, unique_names
from frazil.cli.sql import (
    explained,
    is_finished,
    parse_params,
    split_statements,
)
from frazil.errors import InvalidRequest

SCHEMA = pa.schema([("a", pa.int64()), ("a", pa.string()), ("s", pa.decimal128(38, 0))])
BATCH = pa.record_batch(
    [[1, None], ["x,y", 'q"'], pa.array([Decimal(10**30), None], pa.decimal128(38, 0))],
    schema=SCHEMA,
)


def write_batches(schema, batches, file_format, **options):
    """Write batches and return how many rows were written."""
    with contextlib.closing(BatchWriter(file_format, schema)) as writer:
        for batch in batches:
            writer.write(batch, **options)
    return writer.rows


@pytest.fixture
def written(capsysbinary):
    """Give what was written to stdout since the last time."""
    return lambda: capsysbinary.readouterr().out


def test_json_is_an_array_with_all_columns(written):
    """JSON is one array over all batches; columns of one name are kept, whole sums are numbers."""
    assert write_batches(SCHEMA, [BATCH, BATCH], "json") == 4
    text = written()
    rows = json.loads(text)
    assert rows[:2] == [
        {"a": 1, "a_1": "x,y", "s": 10**30},
        {"a": None, "a_1": 'q"', "s": None},
    ]
    assert rows[2:] == rows[:2]
    assert len(text.splitlines()) == 4 + 2


def test_an_empty_result_has_a_form_in_each_format(written):
    """Without rows JSON is an empty array, CSV and Arrow still have the columns."""
    assert write_batches(SCHEMA, [], "json") == 0
    assert written() == b"[]\n"
    write_batches(SCHEMA, [], "csv")
    assert written() == b"a,a,s\n"
    write_batches(SCHEMA, [BATCH.slice(0, 0)], "arrow")
    assert pa.ipc.open_stream(written()).read_all().schema == SCHEMA


def test_ndjson_is_the_rows_alone(written):
    """A row a line over all batches, nothing around them; without rows nothing at all."""
    assert write_batches(SCHEMA, [BATCH, BATCH], "ndjson") == 4
    rows = [json.loads(line) for line in written().splitlines()]
    assert rows[:2] == [{"a": 1, "a_1": "x,y", "s": 10**30}, {"a": None, "a_1": 'q"', "s": None}]
    assert len(rows) == 4
    assert write_batches(SCHEMA, [], "ndjson") == 0
    assert written() == b""


def test_a_long_table_is_shown_in_pages(written):
    """Every row is printed, a head for each page; names may come twice."""
    names = pa.schema([("n", pa.int64()), ("n", pa.int64())])
    batch = pa.record_batch([list(range(1500)), list(range(1500))], schema=names)
    assert write_batches(names, [batch], "table") == 1500
    lines = written().decode().splitlines()
    assert sum(1 for line in lines if " n " in line and line.startswith("┃")) == 2
    assert any("1499" in line for line in lines)


def test_writing_ends_between_pages_after_a_cancel(written):
    """After a cancel no further page is written, and JSON is closed."""
    batch = pa.record_batch({"n": list(range(5000))})
    answers = iter([True, False])
    assert write_batches(batch.schema, [batch], "json", go_on=lambda: next(answers)) == 1000
    assert len(json.loads(written())) == 1000


def test_names_become_unique():
    """A name that comes again gets the next number that is free."""
    assert unique_names(["a", "a", "a_1", "a", "b"]) == ["a", "a_2", "a_1", "a_3", "b"]
    assert unique_names([]) == []


def test_params_are_json_scalars_or_text():
    """Numbers, true, false, null and quoted texts are values, anything else is text as it stands."""
    given = ["a=1", "$b=2.5", "c=true", "d=null", 'e="5"', "f=x=y", "g=", "h=NaN", "i=[1]"]
    values = [1, 2.5, True, None, "5", "x=y", "", "NaN", "[1]"]
    assert parse_params(given) == dict(zip("abcdefghi", values, strict=True))
    assert parse_params([]) is None
    for wrong in (["a"], ["=1"], ["a=1", "a=2"]):
        with pytest.raises(InvalidRequest, match="--param"):
            parse_params(wrong)


def test_formats_are_known_by_name():
    """An unknown format is refused with those that exist."""
    assert check_format("csv") == "csv"
    with pytest.raises(InvalidRequest, match=r"table\|csv\|json\|ndjson\|arrow"):
        check_format("xml")


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("select 1; select 2", ["select 1", "select 2"]),
        (";; select 1 ;", ["select 1"]),
        ("select ';', 'it''s; so';", ["select ';', 'it''s; so'"]),
        ("select /* a; */ $$a;b$$;", ["select /* a; */ $$a;b$$"]),
        ("select 'open; select 2;", ["select 'open; select 2;"]),
        ("-- only a note", []),
        ("\\d", ["SHOW TABLES"]),
        ("\\d users;\n", ["DESCRIBE users"]),
    ],
)
def test_semicolons_in_quotes_and_comments_end_nothing(text, statements):
    """A text splits at the semicolons of SQL itself; one with a syntax error stays whole."""
    assert split_statements(text) == statements


@pytest.mark.parametrize(
    ("text", "finished"),
    [
        ("", True),
        ("\\d users", True),
        ("select 1", False),
        ("select 1;", True),
        ("select 1; select", False),
        ("select 'a;", False),
        ("selec 1;", True),
        ("-- a note", True),
        ("/* open", False),
    ],
)
def test_enter_runs_what_is_whole(text, finished):
    """Enter runs commands, nothing and whole statements; else it begins another line."""
    assert is_finished(text) is finished


@pytest.mark.parametrize(
    ("sql", "inner"),
    [
        ("explain select 1", "select 1"),
        ("EXPLAIN ANALYZE select 1", "select 1"),
        ("/* why */ -- so\n explain\nselect 1", "select 1"),
        ("explained", None),
        ("select explain from t", None),
    ],
)
def test_explain_is_taken_off(sql, inner):
    """The statement after EXPLAIN is returned, after comments too; None for other statements."""
    assert explained(sql) == inner
