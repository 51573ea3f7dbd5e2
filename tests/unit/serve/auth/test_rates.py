"""The limiter: a steady rate for each client, in bounded memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from frazil.serve.auth.guard import RateLimiter


def test_a_second_is_taken_at_once_and_then_the_rate_holds():
    """A full bucket gives one second's worth; then one comes back every 1/rate."""
    limiter = RateLimiter(rate_s=10, clients_max=5)
    assert [limiter.take("a", 100.0) for _ in range(12)] == [True] * 10 + [False] * 2
    assert limiter.take("a", 100.1)
    assert not limiter.take("a", 100.1)


def test_clients_do_not_share():
    """One client's flood leaves another's bucket full."""
    limiter = RateLimiter(rate_s=5, clients_max=5)
    while limiter.take("loud", 0.0):
        pass
    assert [limiter.take("quiet", 0.0) for _ in range(5)] == [True] * 5


def test_memory_is_bounded_and_nobody_gets_a_new_bucket_by_crowding():
    """Clients beyond the bound share one bucket; a drained one is not forgotten for them."""
    limiter = RateLimiter(rate_s=5, clients_max=3)
    while limiter.take("victim", 0.0):
        pass
    passed = sum(limiter.take(f"x{n}", 0.0) for n in range(1000))
    # And the one that they share.
    assert len(limiter) <= 4
    # Two with buckets of their own, the others five together.
    assert passed == 2 + 5
    assert not limiter.take("victim", 0.0)


def test_an_idle_client_makes_room():
    """When a bucket is full again its client is forgotten for a new one."""
    limiter = RateLimiter(rate_s=5, clients_max=1)
    assert limiter.take("a", 0.0)
    assert [limiter.take("b", 1.0) for _ in range(6)] == [True] * 5 + [False]
    assert len(limiter) == 1


def test_an_idle_client_is_found_behind_busy_ones():
    """Busy clients at the front do not keep a new one from the place of an idle one behind them."""
    limiter = RateLimiter(rate_s=5, clients_max=20)
    for number in range(20):
        assert limiter.take(f"c{number}", 0.0)
    for number in range(19):
        assert limiter.take(f"c{number}", 10.0)
    assert sum(limiter.take("new", 10.0) for _ in range(20)) <= 10
    for _ in range(3):
        limiter.take("new", 10.0)
    # And the bucket that is shared.
    assert len(limiter) <= 21
    assert "c19" not in limiter._full_at
    assert "new" in limiter._full_at


def test_a_slow_rate_gives_one():
    """Below one a second the bucket holds one call."""
    limiter = RateLimiter(rate_s=0.5, clients_max=1)
    assert [limiter.take("a", at) for at in (0.0, 1.0, 2.0, 3.0)] == [True, False, True, False]


@given(st.lists(st.floats(0, 0.5), max_size=300), st.integers(1, 20))
def test_no_second_has_more_than_two_seconds_worth(steps, rate):
    """In any second at most a full bucket and what came in meanwhile passes; idling is no credit."""
    limiter = RateLimiter(rate_s=rate, clients_max=1)
    now, passed = 0.0, []
    for step in steps:
        now += step
        if limiter.take("a", now):
            passed.append(now)
    for start in passed:
        assert sum(start <= at < start + 1 for at in passed) <= 2 * rate + 1


@given(st.lists(st.floats(0, 3), max_size=100))
def test_who_stays_below_the_rate_is_never_refused(pauses):
    """Calls at least 1/rate apart always pass."""
    limiter = RateLimiter(rate_s=7, clients_max=1)
    now = 0.0
    for pause in pauses:
        now += 1 / 7 + 1e-9 + pause
        assert limiter.take("a", now)


@given(
    steps=st.lists(st.tuples(st.floats(0, 3), st.integers(1, 40)), min_size=1, max_size=12),
    rate=st.integers(1, 30),
)
def test_some_at_once_are_as_many_as_one_by_one(steps, rate):
    """What is taken together is what would have been taken one after the other."""
    together = RateLimiter(rate_s=rate, clients_max=4)
    single = RateLimiter(rate_s=rate, clients_max=4)
    now_s = 100.0
    for pause_s, count in steps:
        now_s += pause_s
        expected = sum(single.take("a", now_s) for _ in range(count))
        assert abs(together.take("a", now_s, count) - expected) <= 1
        together = RateLimiter(rate_s=rate, clients_max=4)
        together._full_at = dict(single._full_at)
