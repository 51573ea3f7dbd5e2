"""Events go where they are configured to, as text or JSON, and cannot break a line."""

from __future__ import annotations

import io
import json
import logging

import pytest

from frazil import telemetry


@pytest.fixture(autouse=True)
def _restored():
    handlers, level = list(telemetry.LOGGER.handlers), telemetry.LOGGER.level
    propagate = telemetry.LOGGER.propagate
    yield
    telemetry.LOGGER.handlers[:] = handlers
    telemetry.LOGGER.setLevel(level)
    telemetry.LOGGER.propagate = propagate


def configured(log_format="text", log_level="info"):
    """Return the stream that events are written to from now on."""
    stream = io.StringIO()
    telemetry.configure(stream, log_level=log_level, log_format=log_format)
    return stream


def test_events_are_text_with_facts():
    """An event is one line with its name and facts; a line break in a fact stays on it."""
    stream = configured()
    telemetry.event("segment_sealed", segment=3, note="a\nb")
    [line] = stream.getvalue().splitlines()
    assert line.endswith("INFO segment_sealed segment=3 note=a\\nb")


@pytest.mark.parametrize(
    "name",
    [
        "s status=OK principal=user:root",
        's" status=OK x="',
        "s\\ status=OK",
        "s\\",
        's \\" status="OK',
        "s\u2003status=OK",
        "s\tstatus=OK",
        "s\nINFO admin_act status=OK",
        "status=OK",
        "",
    ],
)
def test_no_fact_can_be_taken_for_another(name):
    """Whatever a client calls its things, a reader of the line finds each fact as it was given."""
    stream = configured()
    telemetry.event("admin_act", principal="user:m", subscription=name, status="NOT_FOUND", n=3)
    (line,) = stream.getvalue().splitlines()
    _, _, rest = line.partition(" INFO admin_act ")
    found, decoder = {}, json.JSONDecoder()
    while rest:
        key, _, rest = rest.partition("=")
        if rest.startswith('"'):
            found[key], end = decoder.raw_decode(rest)
            rest = rest[end:].removeprefix(" ")
        else:
            found[key], _, rest = rest.partition(" ")
    shown = name if name.isprintable() else ascii(name)[1:-1]
    wanted = {"principal": "user:m", "subscription": shown, "status": "NOT_FOUND", "n": "3"}
    assert found == wanted


def test_events_are_json_when_asked():
    """With the JSON format each line is an object with time, level, event and facts."""
    stream = configured("json")
    telemetry.warn("publishing_stopped", free_bytes=7, error=ValueError("x" * 1000))
    found = json.loads(stream.getvalue())
    assert found["event"] == "publishing_stopped"
    assert found["level"] == "warning"
    assert found["free_bytes"] == 7
    assert len(found["error"]) == telemetry.FACT_CHARACTERS_MAX


def test_events_below_the_level_are_left_out():
    """The level decides what is written, and a second call replaces the first stream."""
    first, second = configured(), configured(log_level="warning")
    telemetry.event("engine_opened")
    telemetry.warn("segment_damaged")
    assert first.getvalue() == ""
    assert "segment_damaged" in second.getvalue()
    assert "engine_opened" not in second.getvalue()


def test_a_library_is_silent_by_itself(capsys):
    """Without `configure` nothing is printed: the process's owner decides."""
    telemetry.LOGGER.handlers[:] = [logging.NullHandler()]
    telemetry.LOGGER.propagate = False
    telemetry.warn("segment_damaged")
    assert capsys.readouterr() == ("", "")
