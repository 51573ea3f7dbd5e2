"""Records between their reading and their first delivery."""

from __future__ import annotations

from frazil.subscribe.held import Held
from frazil.subscribe.record import Record
from hypothesis import given
from hypothesis import strategies as st


def records(offsets):
    return [Record(offset, b"%d" % offset, 0, size=offset + 1) for offset in offsets]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 6)),
        st.tuples(st.just("next"), st.integers(1, 8)),
        st.tuples(st.just("take"), st.lists(st.integers(0, 30), max_size=5, unique=True)),
        st.tuples(st.just("drop"), st.lists(st.integers(0, 30), max_size=5)),
        st.tuples(st.just("trim"), st.integers(0, 120)),
        st.tuples(st.just("clear"), st.none()),
    ),
    max_size=25,
)


@given(STEPS)
def test_it_is_a_dict_whatever_the_order(steps):
    """Portions in order, out of order, twice, or never held: each record is given out once."""
    held, model, end = Held(is_counted=True), {}, 0
    for step, argument in steps:
        if step == "add":
            offsets = list(range(end, end + argument))
            end += argument + 1
            some = records(offsets)
            held.add(offsets, some)
            model.update(zip(offsets, some, strict=True))
        elif step == "next":
            offsets = sorted(model)[:argument]
            assert held.take(offsets) == [model.pop(offset) for offset in offsets]
        elif step == "take":
            assert held.take(argument) == [model.pop(offset, None) for offset in argument]
        elif step == "drop":
            held.drop(argument)
            for offset in argument:
                model.pop(offset, None)
        elif step == "trim":
            held.trim(argument)
            while sum(record.size for record in model.values()) > argument:
                del model[max(model)]
        else:
            held.clear()
            model.clear()
        assert held.size_bytes == sum(record.size for record in model.values())
        assert len(held) == len(model)
        assert {each.offset for each in held} == set(model)


def test_what_is_trimmed_is_not_kept():
    """Beyond a number of bytes the oldest stay, which go first; nothing else refers to the rest."""
    held = Held(is_counted=True)
    offsets = list(range(4))
    held.add(offsets, records(offsets))
    held.trim(3)
    assert ([each.offset for each in held], held.size_bytes) == ([0, 1], 3)
    assert not held._records
    assert [each and each.offset for each in held.take([2, 1, 0])] == [None, 1, 0]


def test_what_was_given_out_is_not_kept():
    """A subscription's memory does not grow with what is unacked."""
    held = Held()
    offsets = list(range(4))
    held.add(offsets, records(offsets))
    held.take([0, 1, 2, 3])
    assert not held._records
    assert offsets == [0, 1, 2, 3]
