"""Producer runs in the footers of files: nothing of them changes, and there are never too many."""

from __future__ import annotations

import base64
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.errors import CorruptionError
from frazil.tiers.disk import format as disk_runs
from frazil.tiers.disk.format import SentRun, decode_runs, encode_runs, kept_runs

NUMBER = st.integers(0, 2**63 - 1)
RUNS = st.lists(
    st.builds(SentRun, NUMBER, st.integers(1, 2**32 - 1), NUMBER, st.integers(0, 2**32 - 1), NUMBER)
)


@given(RUNS)
def test_runs_come_back_as_they_were(runs):
    """Whatever the numbers are, also where they go back, decoding gives what was encoded."""
    assert decode_runs(encode_runs(runs)) == runs


def test_runs_that_go_on_take_next_to_nothing():
    """A producer that sends one record after the other costs a fraction of a byte for each."""
    runs = [SentRun(offset, 1, 7, 0, offset) for offset in range(60_000)]
    assert len(encode_runs(runs)) < 6_000


def test_too_many_runs_keep_what_a_window_would_hold(monkeypatch):
    """Of a busy producer the oldest go; a silent one's few stay, though they are older."""
    monkeypatch.setattr(disk_runs, "RUNS_MAX", 100)
    monkeypatch.setattr(disk_runs, "WINDOW_MAX", 5)
    silent = [SentRun(offset, 1, 1, 0, offset) for offset in range(3)]
    busy = [SentRun(offset, 1, 2, 0, offset) for offset in range(3, 200)]
    assert kept_runs(silent + busy) == silent + busy[-5:]
    assert kept_runs(busy[:100]) == busy[:100]


@pytest.mark.parametrize(
    "text",
    [
        "%",
        base64.b64encode(b"junk").decode(),
        base64.b64encode(zlib.compress(b"seven b")).decode(),
        base64.b64encode(zlib.compress(bytes(disk_runs.RUNS_MAX * 40 + 40))).decode(),
    ],
)
def test_junk_is_refused(text):
    """What is no list of runs, or a list that could not have been written, is an error."""
    with pytest.raises(CorruptionError):
        decode_runs(text)
