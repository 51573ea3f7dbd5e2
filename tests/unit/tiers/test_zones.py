"""The zones: marks, hysteresis and the delay, for any settings and any use."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.tiers.zones import GREEN, RED, YELLOW, Zones

MIB = 1 << 20
THOUSAND = Zones(1000)
"""The default marks on a budget of 1000 bytes: 10 bytes are one point."""

LEVELS = st.sampled_from([GREEN, YELLOW, RED])


@st.composite
def rules(draw):
    """Zones of any budget and any marks that can be entered and left."""
    yellow = draw(st.integers(10, 999))
    red = draw(st.integers(yellow + 1, 1000))
    hysteresis = draw(st.integers(0, min(red - yellow, yellow, 501) - 1))
    return Zones(
        draw(st.integers(16 * MIB, 1 << 42)),
        yellow * 1000,
        red * 1000,
        hysteresis * 1000,
        draw(st.integers(0, 1000)),
    )


@st.composite
def rules_and_use(draw):
    """Zones with a use anywhere up to twice the budget, often beside a mark."""
    zones = draw(rules())
    marks = [zones.yellow, zones.red]
    marks += [mark - zones.hysteresis for mark in marks]
    near = st.sampled_from(marks).map(lambda mark: mark * zones.budget_bytes // 1_000_000)
    beside = st.builds(lambda at, by: max(at + by, 0), near, st.integers(-2, 2))
    return zones, draw(st.integers(0, 2 * zones.budget_bytes) | beside)


@pytest.mark.parametrize(
    ("before", "used", "after"),
    [
        (GREEN, 0, GREEN),
        (GREEN, 599, GREEN),
        (GREEN, 600, YELLOW),
        (GREEN, 799, YELLOW),
        (GREEN, 800, RED),
        (GREEN, 5000, RED),
        (YELLOW, 799, YELLOW),
        (YELLOW, 800, RED),
        (YELLOW, 600, YELLOW),
        (YELLOW, 551, YELLOW),
        (YELLOW, 550, GREEN),
        (RED, 799, RED),
        (RED, 751, RED),
        (RED, 750, YELLOW),
        (RED, 600, YELLOW),
        (RED, 551, YELLOW),
        (RED, 550, GREEN),
        (RED, 0, GREEN),
    ],
)
def test_zones_begin_at_their_marks_and_end_five_points_below(before, used, after):
    """Yellow is 60 to 80 points, red 80 and more; 55 and 75 are where they are left."""
    assert THOUSAND.level(before, used) == after


@pytest.mark.parametrize(
    ("used", "delay_s"),
    [(0, 0.0), (550, 0.0), (600, 0.0), (601, 0.0005), (610, 0.005), (700, 0.05), (799, 0.0995)],
)
def test_the_delay_is_five_milliseconds_a_point_above_sixty(used, delay_s):
    """At 70 points a publish is delayed by 50 ms, at 60 and below not at all."""
    assert THOUSAND.delay_s(used) == delay_s


@given(rules_and_use())
def test_the_delay_is_the_formula_for_any_use(given_):
    """(usage% - yellow%) x ms, rounded once to the nearest float, and never negative."""
    zones, used = given_
    points = Fraction(used * 100, zones.budget_bytes) - Fraction(zones.yellow, 10_000)
    wanted_ms = points * zones.delay_ms_per_point
    assert zones.delay_s(used) == float(max(wanted_ms, Fraction(0)) / 1000)


@given(rules_and_use(), LEVELS, st.integers(0, 1 << 42))
def test_zones_are_stable_and_monotone(given_, before, more):
    """The same use keeps a zone; more use or a worse past never gives a lower one."""
    zones, used = given_
    after = zones.level(before, used)
    assert zones.level(after, used) == after
    assert after <= zones.level(before, used + more)
    assert zones.delay_s(used) <= zones.delay_s(used + more)
    levels = [zones.level(past, used) for past in (GREEN, YELLOW, RED)]
    assert levels == sorted(levels)


@given(rules_and_use(), LEVELS)
def test_a_zone_is_kept_within_the_hysteresis_and_left_at_its_end(given_, before):
    """A zone is left downwards exactly when use is its mark less the hysteresis, or less."""
    zones, used = given_
    after = zones.level(before, used)
    marks = {GREEN: Fraction(0), YELLOW: Fraction(zones.yellow), RED: Fraction(zones.red)}
    share = Fraction(used * 1_000_000, zones.budget_bytes)
    assert after >= max(level for level, mark in marks.items() if share >= mark)
    if after > GREEN:
        assert share >= marks[after] or (
            after <= before and share > marks[after] - zones.hysteresis
        )
    if after < before:
        assert share < marks[before]
        assert share <= marks[before] - zones.hysteresis


@given(rules_and_use(), LEVELS)
def test_the_room_ends_where_the_next_zone_begins(given_, before):
    """One byte less than the room keeps the zone, the room itself enters the next one."""
    zones, used = given_
    level = zones.level(before, used)
    room = zones.room_bytes(level, used)
    if level == RED:
        assert room == zones.budget_bytes
        return
    assert room > 0
    assert zones.level(level, used + room - 1) == level
    assert zones.level(level, used + room) > level
