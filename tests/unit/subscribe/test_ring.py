"""Dealing: how much a consumer gets, and who is next."""

from __future__ import annotations

from frazil.subscribe.backlog import fitting
from frazil.subscribe.places import Consumer
from frazil.subscribe.ring import Ring
from hypothesis import given
from hypothesis import strategies as st


def consumer(messages, size_bytes):
    one = Consumer(1, "one", lambda key: True)
    one.messages, one.size_bytes = messages, size_bytes
    return one


def fitting_one_by_one(sizes, size_bytes):
    count = 0
    for size in sizes:
        if size_bytes <= 0:
            break
        size_bytes -= size
        count += 1
    return count


@given(st.lists(st.integers(0, 50), max_size=20), st.integers(-5, 300))
def test_the_record_that_crosses_the_limit_fits(sizes, size_bytes):
    """As many fit as one by one would, none without room."""
    assert fitting(sizes, size_bytes) == fitting_one_by_one(sizes, size_bytes)


@given(
    sizes=st.lists(st.integers(0, 50), max_size=20),
    messages=st.integers(-1, 25),
    size_bytes=st.integers(-5, 300),
)
def test_an_only_consumer_gets_what_one_by_one_would_give_it(sizes, messages, size_bytes):
    """The same records and the same room left as when each is dealt for itself."""
    offsets = list(range(100, 100 + len(sizes)))
    alone, in_turn = Ring(), Ring()
    alone.add(consumer(messages, size_bytes))
    in_turn.add(consumer(messages, size_bytes))
    dealt, count = alone.deal(offsets, sizes)
    hands, expected = in_turn._deal_in_turn(offsets, sizes)
    assert count == expected
    assert [hand for _, hand in dealt] == [hand for _, hand in hands]
    left = [(each.consumers[0].messages, each.consumers[0].size_bytes) for each in (alone, in_turn)]
    assert left[0] == left[1]
