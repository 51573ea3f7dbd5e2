"""Connections by address: bounded for each, and forgotten when they are closed."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from frazil.serve.auth.connections import ConnectionCounts


def test_one_address_cannot_take_the_room_of_others():
    """The connection beyond is refused, whatever its port; another address connects."""
    counts = ConnectionCounts(client_max=2)
    assert [counts.opened(f"192.0.2.1:{port}") for port in range(4)] == [True, True, False, False]
    assert counts.opened("192.0.2.2:1")
    counts.closed("192.0.2.1:0")
    assert counts.opened("192.0.2.1:9")
    assert counts.refusals == 2


def test_a_network_of_ipv6_is_one_client():
    """A host that takes a new address for each connection is still one."""
    counts = ConnectionCounts(client_max=2)
    found = [counts.opened(f"[2001:db8::{host:x}]:1") for host in range(1, 5)]
    assert found == [True, True, False, False]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=200))
def test_the_counts_are_those_of_a_list(steps):
    """Any order of openings and closings counts right, and closed ones leave nothing behind."""
    counts, model = ConnectionCounts(client_max=3), Counter()
    for opens, host in steps:
        peer = f"192.0.2.{host}:7"
        if opens:
            assert counts.opened(peer) == (model[host] < 3)
            model[host] = min(model[host] + 1, 3)
        elif model[host]:
            counts.closed(peer)
            model[host] -= 1
    assert len(counts) == sum(1 for number in model.values() if number)


def test_all_connections_together_are_bounded():
    """The limit of all counts whoever they are of, and a closed one makes room."""
    counts = ConnectionCounts(client_max=5, connections_max=3)
    found = [counts.opened(f"192.0.2.{host}:1") for host in range(5)]
    assert found == [True, True, True, False, False]
    counts.closed("192.0.2.0:1")
    assert counts.opened("192.0.2.9:1")
    assert not counts.opened("192.0.2.8:1")
    assert (len(counts), counts.refusals) == (3, 3)
