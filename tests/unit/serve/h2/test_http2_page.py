"""The page about HTTP/2 names tests and limits that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from frazil.serve.h2.limits import ServerLimits

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs" / "internals" / "http2.md").read_text("utf-8")
_TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")
_MODULE = re.compile(r"`(serve/[\w/]+\.py)`")


def test_every_test_and_module_named_on_the_page_exists():
    """Each rule has a test that is there under that name."""
    named = _TEST.findall(PAGE)
    assert len(named) > 25
    missing = [
        (file, name)
        for file, name in named
        if f"def {name}(" not in (ROOT / "tests" / file).read_text("utf-8")
    ]
    assert missing == []
    for file in _MODULE.findall(PAGE):
        assert (ROOT / "src" / "frazil" / file).exists(), file


LIMITS = ServerLimits()
TABLE = [
    ("calls under way", f"{LIMITS.streams_max:,} a connection"),
    ("calls under way", f"{LIMITS.streams_server_max:,} in all"),
    ("server streams among them", f"{LIMITS.long_calls_max:,}"),
    ("incomplete requests", f"{LIMITS.unfinished_bytes_max >> 20} MiB a connection"),
    (
        "incomplete requests and unread answers",
        f"{LIMITS.held_bytes_server_max >> 20} MiB in all",
    ),
    ("a request that is not complete", f"{LIMITS.request_s:.0f} s"),
    ("requests that wait for their answer", f"{LIMITS.unanswered_bytes_max >> 20} MiB a conn"),
    ("requests that wait for their answer", f"{LIMITS.unanswered_bytes_server_max >> 20} MiB in"),
    ("unread answers", f"a stream {LIMITS.stream_queue_bytes >> 10} KiB"),
    ("unread answers", f"have {LIMITS.connection_queue_bytes >> 20} MiB"),
    ("unread answers", f"{LIMITS.queued_bytes_max >> 20} MiB a connection"),
    ("a peer that reads nothing while bytes wait", f"{LIMITS.stall_s / 60:.0f} minutes"),
    ("a silent peer", f"after {LIMITS.keepalive_s:.0f} s"),
    ("the headers of a request, unpacked", f"{LIMITS.header_bytes_max >> 10} KiB"),
    (
        "the headers of all calls under way, unpacked",
        f"{LIMITS.open_header_bytes_max >> 20} MiB a connection",
    ),
    (
        "a header block, and what it unpacks to",
        f"{LIMITS.header_bytes_read_max >> 10} KiB, {LIMITS.continuations_max} CONTINUATION",
    ),
    (f"control frames by the tick ({LIMITS.tick_s} s)", f"{LIMITS.controls_max:,}"),
    ("WINDOW_UPDATE by the tick", f"{LIMITS.window_updates_max:,}"),
    ("resets by the tick, theirs and those that they cause", f"{LIMITS.resets_max:,}"),
]


@pytest.mark.parametrize(("row", "text"), TABLE)
def test_the_limits_on_the_page_are_the_limits(row, text):
    """The numbers of the table are those of the code."""
    lines = [line.split("|") for line in PAGE.splitlines() if "|" in line]
    assert text in {line[1].strip(): line[2] for line in lines}[row]
