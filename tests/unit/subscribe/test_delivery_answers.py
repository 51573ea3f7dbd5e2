"""Who waits for the journal: each is told once, and nothing is kept of it."""

from __future__ import annotations

import asyncio

from frazil.subscribe.answers import Answers, answer_each

from frazil.errors import Unavailable
from frazil.subscribe import Cause, Change


def test_all_that_wait_for_quiet_are_woken():
    """One that gives up does not take it from the others."""

    async def work():
        answers = Answers(asyncio.get_running_loop())
        answers.under_way = 2
        some = [asyncio.ensure_future(answers.quiet()) for _ in range(3)]
        await asyncio.sleep(0)
        some[1].cancel()
        answers.written()
        await asyncio.sleep(0)
        assert not some[0].done()
        answers.written()
        async with asyncio.timeout(10):
            await some[0]
            await some[2]
            await answers.quiet()

    asyncio.run(work())


def settling(offset, *after):
    change = Change(Cause.ACK)
    change.offsets, change.ranges = [offset], [(offset, offset + 1)]
    change.after += after
    return change


def test_failures_are_kept_for_those_that_will_be_told_only():
    """While somebody always waits, those of others before it do not pile up."""

    async def work():
        answers, told = Answers(asyncio.get_running_loop()), []
        first = settling(0)
        repeated = settling(1, first)
        for change in (first, repeated):
            answers.add(change, [(answer_each, [told.append])])
        error = Unavailable("the disk is full")
        first.is_open = False
        answers.settle(first, error)
        assert told == [error]
        for offset in range(2, 50):
            other = settling(offset)
            other.is_open = False
            answers.settle(other, error)
        assert list(answers._failures) == [first]
        repeated.is_open = False
        answers.settle(repeated, None)
        assert told == [error, error]
        assert not answers._failures

    asyncio.run(work())
