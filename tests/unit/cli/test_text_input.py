"""Text formats: lines of bounded length, and what each format makes of them."""

from __future__ import annotations

import io

import pytest

from frazil.cli.publish import Wanted, format_of, text_format
from frazil.cli.read import parse_start
from frazil.cli.text_input import CsvRows, TextFormat, parse_envelope, read_lines
from frazil.errors import InvalidRequest


def lines(data, bytes_max=20):
    return read_lines(io.BytesIO(data), bytes_max=bytes_max, passed=lambda _count: None)


def test_lines_have_numbers_and_no_ends():
    """Both line ends are taken off, a mark at the start too; the last line needs no end."""
    found = list(lines(b"\xef\xbb\xbfone\ntwo\r\n\nlast"))
    assert [(line.number, line.raw) for line in found] == [
        *((1, b"one"), (2, b"two"), (3, b""), (4, b"last")),
    ]


def test_a_long_line_is_an_error_and_the_next_is_read():
    """A line above the limit is passed over to its end, however long it is."""
    data = b"a\n" + b"x" * 3_000_000 + b"\nb\n" + b"y" * 20 + b"\n"
    read = []
    found = list(read_lines(io.BytesIO(data), bytes_max=20, passed=read.append))
    assert [bool(line.error) for line in found] == [False, True, False, False]
    assert [line.number for line in found] == [1, 2, 3, 4]
    assert sum(read) == len(data)


def test_csv_rows_keep_their_first_line_number():
    """A row over several lines has the number of its first; broken quotes are an error of theirs."""
    rows = CsvRows(bytes_max=100)
    found = list(rows.lines(lines(b'a,b\n1,"x\ny"\n2,"z"z\n3,w\n')))
    assert rows.names == ["a", "b"]
    assert [(line.number, line.decoded) for line in found if not line.error] == [
        (2, ["1", "x\ny"]),
        (5, ["3", "w"]),
    ]
    assert [line.number for line in found if line.error] == [4]


@pytest.mark.parametrize(
    ("name", "file", "kind", "first", "wanted"),
    [
        ("csv", "x.parquet", "table", b"", "csv"),
        ("auto", "dir.d/x.NDJSON", "", b"", "ndjson"),
        ("auto", "x.parquet", "message", b"", "parquet"),
        ("auto", "x.feather", "", b"", "arrow"),
        ("auto", "x.log", "", b"{", "lines"),
        ("auto", "", "message", b"{", "lines"),
        ("auto", "", "table", b"x", "ndjson"),
        ("auto", "", "", b' {"a":1}', "ndjson"),
        ("auto", "", "", b"plain", "lines"),
    ],
)
def test_the_format_is_found(name, file, kind, first, wanted):
    """It is the one asked for, else by suffix, else by the topic, else by the first byte."""
    assert format_of(Wanted(name), file=file, kind=kind, first=first) == wanted


def test_blank_lines_count_as_records_of_raw_lines_only():
    """NDJSON passes over blank lines, raw lines publish them."""
    rows, raw = (text_format(Wanted(), name, "", 100) for name in ("ndjson", "lines"))
    assert [line.decoded for line in rows.lines(lines(b'{"a":1}\n \n'))] == [{"a": 1}]
    assert [line.decoded for line in raw.lines(lines(b"x\n\n"))] == [b"x", b""]


@pytest.mark.parametrize("payload", ['"p"', '{"base64":"cA=="}'])
def test_envelopes_take_text_or_base64(payload):
    """Both forms that reading writes are read back; fields that start with `_` are ignored."""
    (line,) = TextFormat(parse_envelope).lines(
        lines(b'{"payload":%b,"_offset":1}' % payload.encode(), 100)
    )
    assert line.decoded == {"payload": b"p"}


@pytest.mark.parametrize(
    "text", ["noon", "-", "-5 parsecs", "-1", "-0", "-1.5", "1.5", "", "9" * 23]
)
def test_a_wrong_start_is_refused(text):
    """What is neither word, offset, time nor span is an error."""
    with pytest.raises(InvalidRequest):
        parse_start(text, now_us=0)


def test_starts_are_words_offsets_and_times():
    """A span counts back from now; a time is taken as it is."""
    assert parse_start("latest", now_us=0) == "latest"
    assert parse_start("17", now_us=0) == 17
    assert parse_start("-1m", now_us=60_000_000).isoformat() == "1970-01-01T00:00:00+00:00"
    assert parse_start("2026-01-01", now_us=0).year == 2026
