"""Chains: the objects of a store that make up a topic."""

from __future__ import annotations

import random

import pytest

from frazil.log import SpecialRange
from frazil.objects.descriptor import Descriptor
from frazil.objects.restore_find import chained


def found(first, end, *, epoch=1, key="", ranges=()):
    """Return the descriptor of an object `[first, end)`."""
    return Descriptor(
        key=key or f"{first}-{end}-{epoch}",
        first=first,
        end=end,
        size=100,
        length=10,
        records=end - first,
        time_first_us=1,
        time_last_us=2,
        epoch=epoch,
        etag="",
        created_us=1,
        ranges=ranges,
    )


def spans(chain):
    """Return the ranges and epochs of a chain's objects."""
    return [(each.first, each.end, each.epoch) for each in chain.descriptors]


def test_objects_follow_each_other_whatever_their_order():
    """A chain is sorted and whole, and an object that is given twice counts once."""
    objects = [found(10, 30), found(0, 10), found(30, 31), found(0, 10)]
    chain = chained(objects)
    assert spans(chain) == [(0, 10, 1), (10, 30, 1), (30, 31, 1)]
    assert (chain.start, chain.end, chain.lost) == (0, 31, ())


def test_the_higher_epoch_wins_then_the_longer_object():
    """Of one owner's attempts the longest counts, of two owners' objects the later one's."""
    parts = [found(0, 5), found(5, 9), found(0, 9)]
    assert spans(chained(parts)) == [(0, 9, 1)]
    later = [found(0, 9), found(0, 4, epoch=2), found(4, 9, epoch=2)]
    assert spans(chained(later)) == [(0, 4, 2), (4, 9, 2)]


def test_an_object_across_the_beginning_of_a_later_owner_is_stale():
    """Who wrote across the place where the next owner began was not the owner any more."""
    objects = [found(0, 10), found(10, 30), found(10, 20), found(20, 25, epoch=2)]
    assert spans(chained(objects)) == [(0, 10, 1), (10, 20, 1), (20, 25, 2)]


def test_a_missing_object_is_a_lost_range_and_the_rest_stays():
    """The hole is named, and the descriptor behind it begins with it as a lost range."""
    chain = chained([found(0, 10), found(15, 20, ranges=(SpecialRange(16, 17, "gap", ""),))])
    assert chain.lost == ((10, 15),)
    assert spans(chain) == [(0, 10, 1), (10, 20, 1)]
    assert [(each.first, each.end, each.kind) for each in chain.descriptors[1].ranges] == [
        (10, 15, "lost"),
        (16, 17, "gap"),
    ]


def test_what_expired_is_left_out_and_a_later_start_is_no_loss():
    """Objects below the start are not wanted; objects that are gone from the front expired."""
    objects = [found(0, 10), found(10, 20), found(20, 30)]
    assert spans(chained(objects, start=10)) == [(10, 20, 1), (20, 30, 1)]
    chain = chained(objects[1:], start=0)
    assert (chain.start, chain.lost) == (10, ())
    assert spans(chained(objects, start=15)) == [(15, 20, 1), (20, 30, 1)]


def test_a_part_of_an_object_has_only_its_own_ranges():
    """Gaps below the part's beginning are left out, one across it is cut."""
    ranges = (SpecialRange(2, 4, "gap", ""), SpecialRange(5, 8, "gap", ""))
    chain = chained([found(0, 10, ranges=ranges)], start=6)
    assert [(each.first, each.end) for each in chain.descriptors[0].ranges] == [(6, 8)]


@pytest.mark.parametrize("seed", range(200))
def test_the_objects_of_owners_after_owners_are_found(seed):
    """Owners upload, retry and are replaced; late writes of former owners are never taken."""
    chance = random.Random(seed)
    registered: list[Descriptor] = []
    store: list[Descriptor] = []
    end = 0
    for epoch in range(1, chance.randint(2, 6)):
        taken = end
        for _ in range(chance.randint(1, 5)):
            size = chance.randint(1, 9)
            registered.append(found(end, end + size, epoch=epoch))
            store.append(registered[-1])
            if size > 1 and chance.random() < 0.3:
                # An earlier attempt arrived late and was never registered.
                store.append(found(end, end + chance.randint(1, size - 1), epoch=epoch))
            end += size
        if epoch > 1 and chance.random() < 0.5:
            # The owner before this one continues from where it lost the lease.
            store.append(found(taken, taken + chance.randint(1, 20), epoch=epoch - 1, key="late"))
    chance.shuffle(store)
    chain = chained(store)
    assert spans(chain) == [(each.first, each.end, each.epoch) for each in registered]
    assert (chain.start, chain.end, chain.lost) == (0, end, ())
    assert all(each.key != "late" for each in chain.descriptors), seed
