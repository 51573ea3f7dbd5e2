"""How often something that goes on is told."""

from __future__ import annotations

import logging

from frazil.subscribe.notices import AGAIN_S, TOLD_MAX, Seldom, tell_notice

from frazil.subscribe import Notice, NoticeKind


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


def test_that_records_are_passed_over_is_told_with_their_number(caplog):
    """At once, and then each minute: not each time, which may be a thousand times a second."""
    now_s = 0.0
    seldom = Seldom(lambda: now_s)

    def skip(records):
        notice = Notice(NoticeKind.SKIPPED, offset=7, records=records)
        tell_notice(notice, seldom=seldom, topic="/default/t", subscription="s")

    with caplog.at_level(logging.INFO, logger="frazil"):
        skip(2)
        skip(3)
        skip(4)
        now_s = AGAIN_S
        skip(5)
    told = [each.facts for each in caplog.records if each.message == "subscription_skipped"]
    assert [facts["records"] for facts in told] == [2, 12]
