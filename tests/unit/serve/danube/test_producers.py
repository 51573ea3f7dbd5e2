"""Ids of producers: derived, so that a restart changes none."""

from __future__ import annotations

from frazil.serve.danube.producers import producer_id


def test_ids_are_positive_and_exact_everywhere():
    """An id is above 0 and below 2^53, another one for each topic and name."""
    ids = {
        producer_id(uid, topic, f"p{number}")
        for uid in ("u", "v")
        for topic in ("/n/a", "/n/b")
        for number in range(500)
    }
    assert len(ids) == 2000
    assert 0 < min(ids) <= max(ids) < 2**53


def test_ids_are_the_same_in_every_version():
    """What clients have from an older broker is what a newer one gives."""
    assert producer_id("u", "/n/a", "p") == 4568282373447513
