"""Requests of the wrong type or size are refused before anything is written."""

from __future__ import annotations

import unicodedata

import pytest

from frazil.engine.engine import Engine
from frazil.errors import InvalidRequest
from frazil.model import NAME_TEXT_CHARACTERS_MAX
from tests.crash.engine_world import SETTINGS
from tests.support import SimulatedClock, SimulatedFileSystem

COLUMNS = {"id": "long", "v": "int"}
TOO_LARGE = [2**63, 1e30, float(2**64), 2**70]
PARTITIONS = [True, False, 1.0, "2", None, [1], -1, 2**70, 100_000]
NO_SCHEMAS = [
    *(1, True, b"x", "x", object(), {1: "int"}, {"a": 1}, {"\ud800": 1}, {}, {"a": "complex"}),
    *([("a", "int"), ("A", "int")], {f"c{n}": "int" for n in range(1001)}, {"_offset": "long"}),
]
ODD = [1.5, True, -1, 2**70, b"id", object(), {"id": 1}, [["id"]], [None], "\ud800"]
WRONG = [
    *({"partitions": odd} for odd in PARTITIONS),
    *({"columns": COLUMNS, "partition_by": odd} for odd in [*ODD, None, "v", ["day(b)"]]),
    *({"columns": COLUMNS, "primary_key": odd} for odd in [*ODD, None, "b"]),
    *({"columns": odd} for odd in NO_SCHEMAS),
    *(
        {option: odd}
        for option in ("sync", "on_full")
        for odd in (1, True, b"commit", ["commit"], {}, object(), "\ud800", "sometimes")
    ),
    *({"retention_age": "soon"}, {"retention_bytes": -1}, {"colour": "red"}),
    *({"primary_key": "id"}, {"partition_by": ["day(at)"]}),
]
WRONG_CHANGES = [
    *(
        {change: odd}
        for change in ("add", "widen", "rename")
        for odd in (1, "v", ["v"], [("v", "long")], {1: "long"}, {"v": 7})
    ),
    *({"drop": odd} for odd in (1, None, "v", b"v", {"v": 1}, [1])),
]


@pytest.fixture
def engine():
    """Open an engine with one table; it must be whole when the test is over."""
    disk, clock = SimulatedFileSystem(), SimulatedClock()
    engine = Engine(SETTINGS, file_system=disk, clock=clock, threads=False)
    engine.create_topic("t", COLUMNS)
    yield engine
    engine.close()
    again = Engine(SETTINGS, file_system=disk, clock=clock, threads=False)
    assert again.topics() == ["/default/t"]
    assert again.topic("t").schema.names == ["id", "v"]
    assert again.warnings == []
    again.close()


@pytest.mark.parametrize("size", TOO_LARGE)
@pytest.mark.parametrize("option", ["retention_bytes", "retention_age"])
def test_a_limit_that_no_frame_can_hold_is_refused(engine, option, size):
    """A retention of 2**63 bytes or microseconds or more is refused, at creation and by alter."""
    with pytest.raises(InvalidRequest, match="too large"):
        engine.create_topic("p", **{option: size})
    with pytest.raises(InvalidRequest, match="too large"):
        engine.alter_topic("t", **{option: size})


@pytest.mark.parametrize("options", WRONG)
def test_a_wrong_definition_makes_no_topic(engine, options):
    """Partitions, columns, keys and options of a wrong type, and words that do not exist."""
    with pytest.raises(InvalidRequest, match="partitions" if "partitions" in options else None):
        engine.create_topic("p", **options)


@pytest.mark.parametrize("options", WRONG_CHANGES)
def test_a_wrong_change_of_columns_changes_nothing(engine, options):
    """Changes are mappings by column, and columns to drop are a list: one text is none."""
    with pytest.raises(InvalidRequest):
        engine.alter_topic("t", **options)


@pytest.mark.parametrize("name", [1, b"x", None, ["h"], "\ud800", "a\udfff", "/x/\ud800"])
def test_names_are_text_that_can_be_stored(engine, name):
    """Topics and holds have names that UTF-8 can hold."""
    for call in (
        lambda: engine.create_topic(name),
        lambda: engine.topic("t").hold(name, 0),
        lambda: engine.topic("t").advance(name, 0),
        lambda: engine.topic("t").drop(name),
    ):
        with pytest.raises(InvalidRequest):
            call()


def test_a_name_that_is_too_long_is_not_brought_into_normal_form(engine, monkeypatch):
    """That takes hours for megabytes of accents in the wrong order, and anybody can send some."""
    accents = "\u0301\u0323"
    lengths = []
    normalize = unicodedata.normalize

    def counting(form, text):
        lengths.append(len(text))
        return normalize(form, text)

    monkeypatch.setattr(unicodedata, "normalize", counting)
    for name in ("a" + accents * 1_500, f"/default/a{accents * 1_500}"):
        with pytest.raises(InvalidRequest, match="too long"):
            engine.create_topic(name)
        with pytest.raises(InvalidRequest, match="too long"):
            engine.topic(name)
    assert max(lengths, default=0) <= NAME_TEXT_CHARACTERS_MAX
