"""The signals: each fires beyond its limit and not at it, alone or together, per topic."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from frazil.config import Settings, describe, load_settings
from frazil.errors import InvalidRequest
from frazil.topic import (
    LIMIT_NAMES,
    DiskFacts,
    Fired,
    Limits,
    MemoryFacts,
    checked_limits,
    disk_signals,
    memory_signals,
)

PAGE = Path(__file__).resolve().parents[3] / "docs" / "internals" / "tiers.md"
_ROW = re.compile(r"^\| `(\w+)` \| .* (above|than|at least) \| `(\w+)` \| `(.+)` \|$", re.MULTILINE)

MIB = 1 << 20
QUIET = MemoryFacts(0.1, MIB, 1.0, 10, 0)
STAGED = DiskFacts(MIB, 1.0, 1, 0, MIB)
LIMITS = Limits.of(Settings())

MEMORY_MARKS = [
    ("memory", "usage_ratio", 0.8, 0.8000001),
    ("partition", "partition_bytes_max", 128 * MIB - 1, 128 * MIB),
    ("age", "age_s", 300.0, 300.001),
    ("offsets", "offsets_unflushed", 100_000, 100_001),
    ("changes", "changes_unflushed", 10_000, 10_001),
]
DISK_MARKS = [
    ("partition", "partition_bytes_max", 128 * MIB - 1, 128 * MIB),
    ("age", "since_commit_s", 60.0, 60.001),
    ("small_files", "small_files", 10, 11),
    ("deletes", "deletes_pending", 10_000, 10_001),
    ("bytes", "staged_bytes", 10**9, 10**9 + 1),
]


@pytest.mark.parametrize(("reason", "fact", "calm", "beyond"), MEMORY_MARKS)
def test_each_memory_signal_fires_beyond_its_limit_alone(reason, fact, calm, beyond):
    """The last calm value fires nothing; the next one fires that signal with value and limit."""
    assert memory_signals(QUIET._replace(**{fact: calm}), LIMITS) == ()
    (fired,) = memory_signals(QUIET._replace(**{fact: beyond}), LIMITS)
    assert (fired.reason, fired.value) == (reason, beyond)
    assert fired.limit in {calm, beyond}


@pytest.mark.parametrize(("reason", "fact", "calm", "beyond"), DISK_MARKS)
def test_each_disk_signal_fires_beyond_its_limit_alone(reason, fact, calm, beyond):
    """The last calm value fires nothing; the next one fires that signal with value and limit."""
    assert disk_signals(STAGED._replace(**{fact: calm}), LIMITS) == ()
    (fired,) = disk_signals(STAGED._replace(**{fact: beyond}), LIMITS)
    assert (fired.reason, fired.value) == (reason, beyond)
    assert fired.limit in {calm, beyond}


def test_a_topic_with_nothing_to_move_fires_nothing():
    """Full memory or an old commit tells nothing about a topic without records to move."""
    assert memory_signals(MemoryFacts(1.0, 0, 9e9, 0, 0), LIMITS) == ()
    assert memory_signals(MemoryFacts(1.0, 0, 0.0, 1, 0), LIMITS) == (Fired("memory", 1.0, 0.8),)
    assert disk_signals(DiskFacts(0, 9e9, 0, 0, 0), LIMITS) == ()
    assert disk_signals(DiskFacts(1, 61.0, 1, 0, 1), LIMITS) == (Fired("age", 61.0, 60.0),)


def test_a_topics_own_limits_are_used_instead():
    """A limit of the topic replaces the setting's, the others stay; names of the other tier too."""
    own = {"flush_offsets": 5.0, "flush_interval": 2.0}
    limits = Limits.of(Settings(), own)
    assert limits == LIMITS._replace(flush_offsets=5, flush_interval=2.0)
    assert memory_signals(QUIET, limits) == (Fired("offsets", 10, 5),)
    assert disk_signals(STAGED._replace(since_commit_s=3.0), limits) == (Fired("age", 3.0, 2.0),)
    assert type(limits.flush_offsets) is int


def test_limits_follow_the_settings():
    """Every limit is a setting of its tier, and a changed setting changes the limit."""
    paths = {info.path.rpartition(".")[2] for info in describe()}
    assert set(LIMIT_NAMES) <= paths
    settings = load_settings(
        environment={},
        overrides={
            "memory.flush_age_s": 2,
            "disk.commit_partition_bytes": 7,
            "lake.writer.flush_interval": 5,
        },
    )
    limits = Limits.of(settings)
    assert (limits.flush_age_s, limits.commit_partition_bytes, limits.flush_interval) == (2, 7, 5)


def test_a_topics_limits_take_the_units_of_the_settings():
    """Texts with units become numbers, numbers stay."""
    given = {"flush_age_s": "2m", "commit_partition_bytes": "64MB", "flush_offsets": 9}
    assert checked_limits(given) == {
        "flush_age_s": 120.0,
        "commit_partition_bytes": 64_000_000,
        "flush_offsets": 9,
    }
    assert checked_limits({}) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("flush_age_s", 0),
        ("flush_offsets", 1.5),
        ("flush_offsets", "many"),
        ("flush_offsets", True),
        ("commit_partition_bytes", None),
    ],
)
def test_a_wrong_limit_is_refused_with_what_is_allowed(name, value):
    """The refusal names the limit, the value and the range of the setting."""
    with pytest.raises(InvalidRequest, match="refused") as caught:
        checked_limits({name: value})
    info = next(each for each in describe() if each.path.endswith(f".{name}"))
    assert caught.value.details["key"] == name
    assert caught.value.details["allowed"] == info.limits()


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("flush_ofsets", "flush_offsets"),
        ("budget_bytes", None),
        ("commit_partition_byte", "commit_partition_bytes"),
        ("nope", None),
        (5, None),
    ],
)
def test_an_unknown_limit_is_refused_with_the_nearest(name, nearest):
    """A topic cannot have what is no signal's limit, the budget for one."""
    with pytest.raises(InvalidRequest, match="no such limit") as caught:
        checked_limits({name: 1})
    nearest_known = caught.value.details["nearest"]
    assert nearest_known in LIMIT_NAMES if nearest is None else nearest_known == nearest
    assert caught.value.details["known"] == ", ".join(LIMIT_NAMES)
    assert caught.value.details["key"] == name


def test_the_page_has_every_signal_with_its_default():
    """The tables of tiers.md name all reasons in order, their limits, and the defaults."""
    rows = _ROW.findall(PAGE.read_text("utf-8"))
    shown = {info.path.rpartition(".")[2]: info.shown(info.default) for info in describe()}
    reasons = [mark[0] for mark in (*MEMORY_MARKS, *DISK_MARKS)]
    assert [reason for reason, _, _, _ in rows] == reasons
    assert [(limit, default) for _, _, limit, default in rows if limit in shown] == [
        (name, shown[name]) for name in LIMIT_NAMES
    ]
    reached = {reason for reason, word, _, _ in rows if word == "at least"}
    assert reached == {"partition"}
