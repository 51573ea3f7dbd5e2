"""Key filters and the owners of keys."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from frazil.subscribe.delivery_state import Member
from frazil.subscribe.key_shared import KeyOwners, key_filter
from frazil.subscribe.policy import Limits


def consumer(name, *, patterns=()):
    return Member(1, name, key_filter(patterns))


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
