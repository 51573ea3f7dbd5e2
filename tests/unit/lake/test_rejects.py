"""Marks of settled rejects: exact for every reject, and few for many."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from frazil.lake.rejects import Place, Settled

PLACES = st.builds(Place, st.sampled_from([0, 3]), st.integers(0, 9))
STEPS = st.lists(st.tuples(st.sets(PLACES), st.sampled_from(["replayed", "dropped"])), max_size=6)


@given(st.sets(PLACES, min_size=5), STEPS)
def test_each_reject_has_the_state_that_it_got_first(known, steps):
    """Whatever is settled in whatever order: those named are, those not named are not."""
    settled, model = Settled(), dict.fromkeys(known, "open")
    for places, state in steps:
        chosen = places & known
        settled = settled.settle(chosen, state, known)
        model |= {place: state for place in chosen if model[place] == "open"}
    assert {place: settled.state(place) for place in known} == model


@given(st.sets(PLACES, min_size=5), STEPS)
def test_marks_come_back_from_their_text(known, steps):
    """The text in the table's property is all that is needed; ranges are in order and apart."""
    settled = Settled()
    for places, state in steps:
        settled = settled.settle(places & known, state, known)
    assert msgspec.json.decode(msgspec.json.encode(settled), type=Settled) == settled
    for by_part in (settled.replayed, settled.dropped):
        for ranges in by_part.values():
            ends = [number for each in ranges for number in each]
            assert ends == sorted(set(ends))


def test_rejects_in_a_row_are_one_range():
    """Accepted records between two rejects cost nothing; an open reject between them does."""
    known = [Place(-1, offset) for offset in range(0, 100_000, 7)]
    everything = Settled().settle(known, "dropped", known)
    assert everything == Settled(dropped={-1: [(0, known[-1].offset + 1)]})
    two = Settled().settle([known[0], known[2]], "dropped", known)
    assert two == Settled(dropped={-1: [(0, 1), (14, 15)]})
    assert two.settle([known[1]], "dropped", known) == Settled(dropped={-1: [(0, 15)]})
    mixed = two.settle([known[1]], "replayed", known)
    assert mixed == Settled(replayed={-1: [(7, 8)]}, dropped=two.dropped)


def test_later_rejects_are_open():
    """A range ends at its last reject: what comes behind it is not settled by it."""
    settled = Settled().settle([Place(0, 5)], "replayed", [Place(0, 5)])
    assert settled.state(Place(0, 6)) == "open"
    assert settled.state(Place(1, 5)) == "open"
    assert settled.state(Place(0, 5)) == "replayed"


def test_marks_of_rejects_that_are_not_seen_stay():
    """A table that was rolled back hides rejects for a while, not what became of them."""
    settled = Settled().settle([Place(-1, 9)], "dropped", [Place(-1, 9)])
    after = settled.settle([Place(-1, 2)], "dropped", [Place(-1, 2)])
    assert after.state(Place(-1, 9)) == "dropped"
