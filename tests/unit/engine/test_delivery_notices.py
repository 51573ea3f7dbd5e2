"""How often something that goes on is told."""

from __future__ import annotations

from frazil.engine.delivery.notices import AGAIN_S, TOLD_MAX, Seldom


def test_what_goes_on_is_told_at_once_and_then_once_in_a_while():
    """The second time comes after a while, with how often it happened; other things have their own."""
    now_s = 0.0
    seldom = Seldom(lambda: now_s)
    assert seldom.times("full") == 1
    assert [seldom.times("full") for _ in range(9)] == [0] * 9
    assert seldom.times("gone") == 1
    now_s = AGAIN_S
    assert seldom.times("full") == 10
    assert seldom.times("full") == 0


def test_different_things_do_not_pile_up():
    """However many different things happen, a bounded number of them is remembered."""
    seldom = Seldom(lambda: 0.0)
    assert all(seldom.times(str(number)) == 1 for number in range(5 * TOLD_MAX))
    assert len(seldom._told_s) <= TOLD_MAX
