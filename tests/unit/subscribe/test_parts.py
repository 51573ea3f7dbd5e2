"""The small parts of dispatch: filters, alarms, backlog, ring, owners of keys."""

from __future__ import annotations

from collections import Counter

import pytest
from frazil.subscribe.alarms import Alarms
from frazil.subscribe.backlog import Backlog, fitting
from frazil.subscribe.key_filter import key_filter
from frazil.subscribe.key_owners import KeyOwners
from frazil.subscribe.places import Consumer
from frazil.subscribe.ring import Ring
from hypothesis import given
from hypothesis import strategies as st

from frazil.subscribe.policy import Limits

MUCH = 1 << 40


def consumer(name, *, messages=MUCH, size_bytes=MUCH, patterns=()):
    made = Consumer(1, name, key_filter(patterns))
    made.messages, made.size_bytes = messages, size_bytes
    return made


def glob(pattern, key):
    """The definition of a match, without any cleverness."""
    if not pattern:
        return not key
    if pattern[0] == "*":
        return glob(pattern[1:], key) or (bool(key) and glob(pattern, key[1:]))
    return bool(key) and pattern[0] in {"?", key[0]} and glob(pattern[1:], key[1:])


@given(st.text("ab*?.[\n", max_size=7), st.text("ab.[\n", max_size=8))
def test_patterns_match_as_defined(pattern, key):
    """A star stands for any characters, a question mark for one, all else for itself."""
    assert key_filter([pattern])(key) == glob(pattern, key)


def test_any_of_several_patterns_is_enough():
    """A key needs to match one pattern; without patterns every key matches."""
    accepts = key_filter(["eu-*", "us-?"])
    assert [accepts(key) for key in ("eu-1", "us-1", "us-10", "x")] == [True, True, False, False]
    assert key_filter([])("anything")


def test_no_pattern_takes_for_ever():
    """Many stars and a long key that almost matches are decided, not tried in all ways there are."""
    # To try all of them, 20,000 over 30, would go on until the test's time is over.
    assert not key_filter(["*a" * 30 + "b"])("a" * 20_000)


def test_alarms_ring_once_in_order_of_their_times():
    """An alarm that was moved rings at its new time only; one taken back does not ring."""
    alarms = Alarms()
    alarms.set(5, 100)
    alarms.set(3, 100)
    alarms.set(7, 50)
    alarms.set(7, 200)
    alarms.set(9, 60)
    assert alarms.clear(9) == 60
    assert alarms.clear(9) is None
    assert (len(alarms), alarms.first_ms(), alarms.due_ms(7)) == (3, 100, 200)
    assert alarms.ring(99) == []
    assert alarms.ring(100) == [3, 5]
    assert alarms.ring(1_000) == [7]
    assert alarms.first_ms() is None


def test_alarms_taken_back_take_no_memory():
    """However many are set and cleared, the heap stays small."""
    alarms = Alarms()
    for offset in range(10_000):
        alarms.set(offset, 10**6)
        alarms.clear(offset)
    assert len(alarms._heap) <= 66


@pytest.mark.parametrize(
    ("size_bytes", "count"), [(0, 0), (1, 1), (10, 1), (11, 2), (30, 3), (99, 3)]
)
def test_the_record_that_crosses_a_limit_fits(size_bytes, count):
    """Records fit until the limit is reached, and one larger than it fits alone."""
    assert fitting([10, 10, 10], size_bytes) == count


def test_a_backlog_gives_back_what_it_was_given():
    """Slices come in order; what is not dropped stays; old entries are let go."""
    backlog = Backlog()
    taken, offset = [], 0
    for _ in range(3_000):
        backlog.add(range(offset, offset + 3), [1, 1, 1])
        offset += 3
        offsets, sizes = backlog.peek(messages=2, size_bytes=10)
        assert len(sizes) == 2
        backlog.drop(2)
        taken += offsets
    assert taken == list(range(6_000))
    assert (len(backlog), backlog.head) == (3_000, 6_000)
    assert len(backlog._offsets) < 7_000
    assert backlog.peek(messages=9, size_bytes=9, below=6_004)[0] == [6_000, 6_001, 6_002, 6_003]


@given(st.lists(st.integers(1, 7), max_size=20), st.integers(1, 5))
def test_a_ring_deals_exactly_evenly(bursts, among):
    """After any bursts the hands differ by one at most, and each hand ascends."""
    ring = Ring()
    for name in range(among):
        ring.add(consumer(str(name)))
    counts, offset = Counter(), 0
    for burst in bursts:
        dealt, count = ring.deal(list(range(offset, offset + burst)), [1] * burst)
        offset += burst
        assert count == burst
        for each, offsets in dealt:
            assert offsets == sorted(offsets)
            counts[each.name] += len(offsets)
        values = [counts[str(name)] for name in range(among)]
        assert max(values) - min(values) <= 1


def test_a_consumer_without_room_does_not_hold_up_a_ring():
    """Its turn passes to the next; what nobody takes is not dealt."""
    ring = Ring()
    for name, messages in (("a", 1), ("b", 0), ("c", 2)):
        ring.add(consumer(name, messages=messages))
    dealt, count = ring.deal([0, 1, 2, 3, 4], [1] * 5)
    assert {each.name: offsets for each, offsets in dealt} == {"a": [0], "c": [1, 2]}
    assert (count, ring.room) == (3, 0)


def test_leaving_a_ring_keeps_the_turns_of_the_others():
    """Who was next is next."""
    ring = Ring()
    members = [consumer(name) for name in "abc"]
    for member in members:
        ring.add(member)
    ring.deal([0, 1], [1, 1])
    ring.remove(members[0])
    ring.remove(members[0])
    assert [each.name for each, _ in ring.deal([2, 3], [1, 1])[0]] == ["c", "b"]


def test_a_new_key_goes_to_the_consumer_with_fewest():
    """Keys spread evenly, stay where they are at a join, and the joiner gets the next ones."""
    owners = KeyOwners(1_000)
    members = {name: consumer(name) for name in "ab"}
    first = {f"k{at}": owners.find(f"k{at}", members).name for at in range(10)}
    assert Counter(first.values()) == {"a": 5, "b": 5}
    members["c"] = consumer("c")
    assert {key: owners.find(key, members).name for key in first} == first
    assert [owners.find(f"n{at}", members).name for at in range(5)] == ["c"] * 5


def test_keys_move_only_when_their_owner_is_gone():
    """Keys of one that left are spread over the others; a returning one has what was not moved."""
    owners = KeyOwners(1_000)
    members = {name: consumer(name) for name in "ab"}
    owned = {key: owners.find(key, members).name for key in "pqrs"}
    gone = members.pop("a")
    moved = next(key for key in "pqrs" if owned[key] == "a")
    assert owners.find(moved, members).name == "b"
    members["a"] = gone
    again = {key: owners.find(key, members).name for key in "pqrs"}
    assert again == {**owned, moved: "b"}


def test_keys_are_given_to_those_that_accept_them():
    """A filter keeps keys away, and a key that nobody accepts has no owner."""
    owners = KeyOwners(1_000)
    members = {"a": consumer("a", patterns=["eu-*"]), "b": consumer("b", patterns=["us-*"])}
    assert {owners.find(f"eu-{at}", members).name for at in range(4)} == {"a"}
    assert owners.find("x", members) is None


def test_keys_beyond_the_limit_belong_by_hash():
    """No more keys are remembered than the limit; others still have one owner each."""
    owners = KeyOwners(10)
    members = {name: consumer(name) for name in "abc"}
    chosen = {f"k{at}": owners.find(f"k{at}", members).name for at in range(300)}
    assert len(owners) == 10
    assert {key: owners.find(key, members).name for key in chosen} == chosen
    assert set(Counter(chosen.values())) == {"a", "b", "c"}
    assert min(Counter(chosen.values()).values()) > 50
    # Keys of one that is gone make room for others.
    del members["a"]
    owners.find("another", members)
    assert len(owners) <= 10
    assert owners.find("another", members).name in "bc"


def test_a_subscription_remembers_a_hundred_thousand_keys():
    """That is the limit without any setting; a key beyond it still has its one owner."""
    owners = KeyOwners(Limits().keys_max)
    members = {name: consumer(name) for name in "ab"}
    for at in range(100_100):
        owners.find(f"k{at}", members)
    assert len(owners) == 100_000
    assert len({owners.find("k100050", members).name for _ in range(10)}) == 1
