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
ODD = [1.5, True, -1, 2**70, b"id", object(), {"id": 1}, [["id"]], [None], "\ud800"]


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


@pytest.mark.parametrize("partitions", [True, False, 1.0, "2", None, [1], -1, 2**70])
def test_partitions_is_a_whole_number_in_range(engine, partitions):
    """A number of partitions that is no int makes no topic."""
    with pytest.raises(InvalidRequest, match="partitions"):
        engine.create_topic("p", partitions=partitions)


@pytest.mark.parametrize("odd", [*ODD, None, "v"])
def test_partition_by_is_a_list_of_names(engine, odd):
    """What is no list of texts is refused, a bare text among them."""
    with pytest.raises(InvalidRequest):
        engine.create_topic("p", COLUMNS, partition_by=odd)


@pytest.mark.parametrize("odd", [*ODD, None])
def test_primary_key_is_a_name_or_a_list_of_names(engine, odd):
    """A primary key of another type is refused."""
    with pytest.raises(InvalidRequest):
        engine.create_topic("p", COLUMNS, primary_key=odd)


@pytest.mark.parametrize("odd", [1, True, b"x", "x", object(), {1: "int"}, {"a": 1}, {"\ud800": 1}])
def test_columns_are_a_schema(engine, odd):
    """Columns of another type are refused."""
    with pytest.raises(InvalidRequest):
        engine.create_topic("p", odd)


@pytest.mark.parametrize("size", TOO_LARGE)
@pytest.mark.parametrize("option", ["retention_bytes", "retention_age"])
def test_a_limit_that_no_frame_can_hold_is_refused(engine, option, size):
    """A retention of 2**63 bytes or microseconds or more is refused, at creation and by alter."""
    with pytest.raises(InvalidRequest, match="too large"):
        engine.create_topic("p", **{option: size})
    with pytest.raises(InvalidRequest, match="too large"):
        engine.alter_topic("t", **{option: size})


@pytest.mark.parametrize("option", ["sync", "on_full"])
@pytest.mark.parametrize("odd", [1, True, b"commit", ["commit"], {}, object(), "\ud800"])
def test_an_option_has_one_of_its_words(engine, option, odd):
    """An option that is no known word is refused."""
    with pytest.raises(InvalidRequest):
        engine.create_topic("p", **{option: odd})


@pytest.mark.parametrize("change", ["add", "widen", "rename"])
@pytest.mark.parametrize("odd", [1, "v", ["v"], [("v", "long")], {1: "long"}, {"v": 7}])
def test_changes_are_mappings_by_column(engine, change, odd):
    """A change of columns that is no mapping of names changes nothing."""
    with pytest.raises(InvalidRequest):
        engine.alter_topic("t", **{change: odd})


@pytest.mark.parametrize("odd", [1, None, "v", b"v", {"v": 1}, [1]])
def test_dropped_columns_are_a_list(engine, odd):
    """Columns to drop are a list of names; one text is not taken as its letters."""
    with pytest.raises(InvalidRequest):
        engine.alter_topic("t", drop=odd)


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
