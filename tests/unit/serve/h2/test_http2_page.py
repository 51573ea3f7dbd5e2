"""The page about HTTP/2 names tests and limits that exist."""

from __future__ import annotations

import re
from pathlib import Path

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


def test_the_limits_on_the_page_are_the_limits():
    """The numbers of the table are those of the code."""
    limits = ServerLimits()
    rows = {row.split("|")[1].strip(): row.split("|")[2] for row in PAGE.splitlines() if "|" in row}
    assert limits.unfinished_bytes_max == 32 << 20
    assert "32 MiB a connection" in rows["incomplete requests"]
    assert (limits.held_bytes_server_max, limits.streams_server_max) == (256 << 20, 200_000)
    assert "256 MiB in all" in rows["incomplete requests and unread answers"]
    assert limits.request_s == 120
    assert "120 s" in rows["a request that is not complete"]
    assert (limits.unanswered_bytes_max, limits.unanswered_bytes_server_max) == (
        16 << 20,
        256 << 20,
    )
    assert "16 MiB a connection, 256 MiB in all" in rows["requests that wait for their answer"]
    assert (limits.stream_queue_bytes, limits.queued_bytes_max) == (256 << 10, 64 << 20)
    assert (limits.stall_s, limits.keepalive_s, limits.keepalive_timeout_s) == (120, 30, 20)
    assert (limits.header_bytes_max, limits.continuations_max) == (40 << 10, 32)
    assert (limits.streams_max, limits.long_calls_max) == (12_000, 11_000)
    assert limits.connection_queue_bytes == 4 << 20
    assert limits.open_header_bytes_max == 32 << 20
    assert limits.header_bytes_read_max == 64 << 10
    assert (limits.tick_s, limits.controls_max) == (0.5, 1_000)
    assert (limits.window_updates_max, limits.resets_max) == (20_000, 2_000)
