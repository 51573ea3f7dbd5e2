"""The guided run's proof is a proof: it finds what is lost, doubled, changed or out of order."""

from __future__ import annotations

import pyarrow as pa
import pytest

from frazil.cli.demo_ledger import decode_ledger, encode_entry
from frazil.cli.demo_records import Tally, encode_message, encode_row
from tests.support import SimulatedFileSystem


def messages(*pairs):
    return pa.record_batch({"payload": pa.array([encode_message(*p) for p in pairs], pa.binary())})


def rows(*pairs):
    return pa.RecordBatch.from_pylist([encode_row(*pair) for pair in pairs])


@pytest.mark.parametrize("make", [messages, rows])
def test_what_is_whole_passes(make):
    """Records of several writers, each in its own order, from any first number, are fine."""
    tally = Tally(acked_end=12)
    tally.take(make((0, 5), (1, 9), (0, 6)), 10)
    tally.take(make((1, 10)), 13)
    tally.finish()
    assert tally.problems == []
    assert (tally.records, tally.acked, tally.offset_next) == (4, 2, 14)
    assert tally.last == {0: 6, 1: 10}


@pytest.mark.parametrize("make", [messages, rows])
@pytest.mark.parametrize(
    ("pairs", "offset", "acked"),
    [
        (((0, 7),), 1, 2),
        (((0, 5),), 1, 2),
        (((0, 6),), 2, 3),
        (((0, 6),), 1, 3),
    ],
    ids=["one is missing", "one is twice", "an offset is missing", "the end is missing"],
)
def test_what_is_not_whole_is_found(make, pairs, offset, acked):
    """A missing or doubled record, a hole, or an end before the acked one is a problem."""
    tally = Tally(acked_end=acked)
    tally.take(make((0, 5)), 0)
    tally.take(make(*pairs), offset)
    tally.finish()
    assert len(tally.problems) == 1


def test_changed_content_is_found():
    """A flipped bit in a payload or a changed cell fails the checksum."""
    payload = bytearray(encode_message(0, 1))
    payload[-1] ^= 1
    tally = Tally()
    tally.take(pa.record_batch({"payload": pa.array([bytes(payload), b""], pa.binary())}), 0)
    assert len(tally.problems) == 2
    tally = Tally()
    tally.take(pa.RecordBatch.from_pylist([{**encode_row(0, 1), "celsius": 99.0}]), 0)
    assert len(tally.problems) == 1


def test_the_ledger_survives_a_cut():
    """Every whole line counts, the highest wins, and a line cut short is passed over."""
    data = encode_entry("/a/b", 5) + encode_entry("/c/d", 1) + encode_entry("/a/b", 9)
    assert decode_ledger(data) == {"/a/b": 9, "/c/d": 1}
    for size in range(len(data)):
        assert decode_ledger(data[:size]).items() <= {("/a/b", 5), ("/a/b", 9), ("/c/d", 1)}
    assert decode_ledger(data[:-1]) == {"/a/b": 5, "/c/d": 1}
    assert decode_ledger(encode_entry("/a/b", 9) + encode_entry("/a/b", 5)) == {"/a/b": 9}
    assert decode_ledger(b"junk\n\n") == {}


def test_the_ledger_keeps_what_was_noted():
    """What was noted is there after the file is opened again, and after a loss of power."""
    from frazil.cli.demo_ledger import Ledger

    files = SimulatedFileSystem()
    files.make_directory("/d")
    files.sync_directory("/")
    ledger = Ledger(files, "/d/ledger")
    ledger.note({"/a/b": 5})
    ledger.note({"/a/b": 7})
    after = files.crash_clone(1)
    assert Ledger(after, "/d/ledger").ends == {"/a/b": 7}
    ledger.close()
    assert Ledger(files, "/d/ledger").ends == {"/a/b": 7}
