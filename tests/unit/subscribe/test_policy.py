"""Policies refuse nonsense and say when a record is delivered again."""

from __future__ import annotations

import pytest

from frazil.errors import InvalidRequest
from frazil.subscribe import Backoff, FailurePolicy, Limits, Poison, SubscriptionType


def test_the_defaults_are_those_of_the_protocol():
    """Five redeliveries, 30 s for an ack, 1 s doubling to 60 s, then block; a window of ten."""
    policy = FailurePolicy()
    assert (policy.max_redelivery_count, policy.ack_timeout_ms) == (5, 30_000)
    assert (policy.base_redelivery_delay_ms, policy.max_redelivery_delay_ms) == (1_000, 60_000)
    assert (policy.backoff, policy.poison) == (Backoff.EXPONENTIAL, Poison.BLOCK)
    assert policy.dead_letter_topic is None
    assert policy.attempts_max == 6
    assert Limits().max_unacked_messages == 10


def test_numbers_are_those_of_the_wire():
    """The enums have the protocol's numbers."""
    assert [kind.name for kind in SubscriptionType] == [
        "EXCLUSIVE",
        "SHARED",
        "FAILOVER",
        "KEY_SHARED",
    ]
    assert [int(kind) for kind in SubscriptionType] == [0, 1, 2, 3]
    assert (Backoff.FIXED, Backoff.EXPONENTIAL) == (0, 1)
    assert (Poison.DEAD_LETTER, Poison.BLOCK, Poison.DROP) == (0, 1, 2)


@pytest.mark.parametrize(
    ("attempt", "asked_ms", "delay_ms"),
    [
        *[(1, 0, 1_000), (2, 0, 2_000), (3, 0, 4_000), (7, 0, 60_000), (10**6, 0, 60_000)],
        *[(1, 1_500, 1_500), (3, 1_500, 4_000), (1, 90_000, 60_000)],
    ],
)
def test_delays_double_up_to_the_limit(attempt, asked_ms, delay_ms):
    """The longer of the policy's delay and the one asked for counts, up to the limit."""
    assert FailurePolicy().delay_ms(attempt, asked_ms) == delay_ms


def test_a_fixed_delay_stays():
    """Every attempt waits equally long."""
    policy = FailurePolicy(backoff=Backoff.FIXED, base_redelivery_delay_ms=70)
    assert {policy.delay_ms(attempt) for attempt in range(1, 90)} == {70}


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_redelivery_count": -1},
        {"ack_timeout_ms": -1},
        {"base_redelivery_delay_ms": -1},
        {"max_redelivery_delay_ms": -1},
        {"poison": Poison.DEAD_LETTER},
        {"poison": Poison.DEAD_LETTER, "dead_letter_topic": ""},
    ],
)
def test_nonsense_policies_are_refused(wrong):
    """Negative numbers, and dead letters without a topic, are invalid."""
    with pytest.raises(InvalidRequest):
        FailurePolicy(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_unacked_messages": 0},
        {"max_unacked_messages": 10_001},
    ],
)
def test_nonsense_limits_are_refused(wrong):
    """A window is 1 to 10,000 messages; nothing is unbounded or empty."""
    with pytest.raises(InvalidRequest):
        Limits(**wrong)
