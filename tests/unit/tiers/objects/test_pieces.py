"""Pieces are made while others are sent, in order, and what goes wrong in making them is told."""

from __future__ import annotations

import threading

import pytest

from frazil.errors import CorruptionError
from frazil.tiers.objects.pieces import made_ahead


def test_a_piece_is_made_while_the_one_before_it_is_sent():
    """With the first piece in hand the second is made, and no third."""
    made = []
    second = threading.Event()

    def pieces():
        for number in range(4):
            made.append(number)
            if number == 1:
                second.set()
            yield bytes([number])

    ahead = made_ahead(pieces())
    assert next(ahead) == b"\0"
    assert second.wait(30)
    assert made == [0, 1]
    assert list(ahead) == [b"\1", b"\2", b"\3"]
    assert made == [0, 1, 2, 3]


def test_what_their_maker_raises_comes_behind_the_pieces_before_it():
    """Damage found in the third piece is raised when that is asked for."""

    def pieces():
        yield b"a"
        yield b"b"
        raise CorruptionError("rotten")

    ahead = made_ahead(pieces())
    assert [next(ahead), next(ahead)] == [b"a", b"b"]
    with pytest.raises(CorruptionError):
        next(ahead)


def test_no_thread_is_left_when_the_pieces_are_not_taken():
    """A client that gives up after the first piece leaves nobody behind."""
    before = threading.active_count()
    ahead = made_ahead(bytes([number]) for number in range(9))
    next(ahead)
    ahead.close()
    assert threading.active_count() == before
