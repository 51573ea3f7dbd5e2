"""The simulated store misbehaves as its table says, and repeats itself by its seed."""

from __future__ import annotations

import pytest

from frazil.errors import Conflict, FrazilError, Unavailable
from tests.support import SimulatedClock
from tests.support.simulated_store import FAULTS, STALL_S, SimulatedStore

BODY = bytes(range(200)) * 5
CALLS = {
    "put": lambda store: store.put("a/key", BODY),
    "put_stream": lambda store: store.put_stream("a/key", [BODY[:300], BODY[300:]]),
    "get": lambda store: store.get("old", start=100, length=200),
    "head": lambda store: store.head("old"),
    "list": lambda store: store.list(""),
    "delete": lambda store: store.delete(["old", "older"]),
}


def make(seed=0, **named):
    store = SimulatedStore(SimulatedClock(seed), seed=seed, **named)
    store.plant("old", BODY)
    store.plant("older", BODY[:10])
    return store


def outcome(store, verb):
    try:
        return repr(CALLS[verb](store))
    except FrazilError as error:
        return str(error)


@pytest.mark.parametrize(
    ("verb", "kind"), [(verb, kind) for verb in FAULTS for kind in FAULTS[verb]]
)
def test_every_fault_shows_and_passes(verb, kind):
    """A planned fault fires once, changes what is seen or stored, and heals."""
    seen = set()
    for seed in range(8):
        store = make(seed)
        store.fail(verb, kind)
        seen.add((outcome(store, verb), len(store.objects), sum(s for _, s in store.written)))
        assert store.fired == {kind: 1}
        store.heal()
        fresh = make(seed)
        assert outcome(store, "head") == outcome(fresh, "head") or verb == "delete"
    plain = make(0)
    assert seen != {(outcome(plain, verb), len(plain.objects), sum(s for _, s in plain.written))}


@pytest.mark.parametrize("kind", ["own_412", "lost_answer"])
def test_a_write_that_happened_is_there_in_spite_of_the_error(kind):
    """Our own 412 and a lost answer leave the whole object."""
    store = make()
    store.fail("put", kind)
    expected = Conflict if kind == "own_412" else Unavailable
    with pytest.raises(expected) as caught:
        store.put("a/key", BODY)
    assert store.objects["a/key"].data == BODY
    assert caught.value.details.get("outcome") == (None if kind == "own_412" else "unknown")


@pytest.mark.parametrize("kind", ["partial", "conflict_409"])
def test_a_write_that_broke_left_nothing(kind):
    """A broken connection and a 409 leave no object; the same put works after."""
    store = make()
    store.fail("put", kind)
    with pytest.raises(Unavailable):
        store.put("a/key", BODY)
    assert "a/key" not in store.objects
    assert store.put("a/key", BODY).size == len(BODY)


@pytest.mark.parametrize("kind", FAULTS["put"])
@pytest.mark.parametrize("seed", range(10))
def test_no_fault_replaces_an_object(kind, seed):
    """A create-only put never changes what is under its key."""
    store = make(seed)
    store.plant("a/key", b"other")
    store.fail("put", kind)
    with pytest.raises((Conflict, Unavailable)):
        # An error that is not seen claims success: then nothing may have been written either.
        store.put("a/key", BODY)
        if kind == "error_in_200":
            raise Unavailable("unseen")
    assert store.objects["a/key"].data == b"other"


def test_a_truncated_write_says_all_is_well():
    """Only a look at the stored size finds it."""
    store = make()
    store.fail("put_stream", "truncated")
    assert store.put_stream("a/key", [BODY]).size == len(BODY)
    assert store.head("a/key").size < len(BODY)


def test_a_storm_refuses_everything_and_ends():
    """For five seconds each call is refused with a time to wait, then none."""
    clock = SimulatedClock()
    store = SimulatedStore(clock)
    store.fail("head", "throttled")
    for _ in range(3):
        with pytest.raises(Unavailable) as caught:
            store.head("x")
        assert caught.value.details["retry_after_ms"] == 1_000
    clock.advance(6)
    assert store.head("x") is None


def test_a_stall_takes_thirty_seconds():
    """Virtual time passes, and the call times out."""
    clock = SimulatedClock()
    store = SimulatedStore(clock)
    store.fail("get", "stall")
    before = clock.monotonic()
    with pytest.raises(Unavailable, match="timed out"):
        store.get("x", start=0, length=1)
    assert clock.monotonic() - before >= STALL_S


def test_a_stale_list_lacks_the_new_and_has_the_deleted():
    """Within its minute a list is as it was."""
    clock = SimulatedClock()
    store = SimulatedStore(clock)
    store.put("gone", b"1")
    clock.advance(3_600)
    store.delete(["gone"])
    store.put("new", b"2")
    store.fail("list", "stale_list")
    assert [meta.key for meta in store.list("")] == ["gone"]
    assert [meta.key for meta in store.list("")] == ["new"]


def test_the_same_seed_fails_the_same_way():
    """Two stores of one seed have the same outcomes; another seed has others."""
    rates = dict.fromkeys(("partial", "own_412", "stall", "missing", "short", "flipped"), 0.1)

    def story(seed):
        store = make(seed, rates=rates)
        return [outcome(store, verb) for _ in range(30) for verb in CALLS]

    assert story(1) == story(1)
    assert story(1) != story(2)
