"""The journal's state, its groups and its checkpoints, without any file."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from frazil.errors import Conflict, CorruptionError
from frazil.log import format as fmt
from frazil.log.checkpoint import decode_checkpoint, encode_checkpoint, encode_sections
from frazil.log.codec import PLAIN, Sender
from frazil.log.group import Group, judge
from frazil.log.state import (
    STATE_FREED,
    STATE_HOLD,
    STATE_PRODUCER,
    JournalState,
    Sent,
    SpecialRange,
)
from frazil.model import Ack, TopicSpec


@pytest.fixture
def state():
    state = JournalState()
    state.define_topic(TopicSpec(id=1, name="/default/a", kind="message", created_us=1))
    state.define_topic(
        TopicSpec(id=2, name="/default/b", kind="message", created_us=1, sync="periodic")
    )
    return state


def head(kind, **fields):
    blank = dict.fromkeys(fmt.FrameHead._fields, 0)
    return fmt.FrameHead(**{**blank, "kind": kind, "salt": b"", **fields})


def pack(*values):
    return msgspec.msgpack.encode(values)


def group_of(state, **fields):
    state.lsn = fields.pop("lsn", 10)
    return Group(
        state,
        SimpleNamespace(salt=b"saltsalt", generation=1),
        synced=9,
        time_us=fields.pop("time_us", 1_000_000),
        position=128,
        bytes_max=1 << 20,
    )


def encode(group, *entries):
    group.encode([(*e[:5], number, *e[5:]) for number, e in enumerate(entries)])
    return dict(zip(group.waiters, group.results, strict=True))


def test_holds_are_set_moved_and_dropped(state):
    """A hold's frame with no offset removes it."""
    for value in (5, 7, None):
        state.apply(head(fmt.KIND_STATE, topic=1), pack(STATE_HOLD, "lake", value))
        assert state.topics[1].holds == ({} if value is None else {"lake": value})


def test_freeing_never_goes_back(state):
    """The oldest segment only grows."""
    for first in (3, 2):
        state.apply(head(fmt.KIND_STATE), pack(STATE_FREED, "", first))
    assert state.segment_first == 3


def test_applying_a_frame_twice_is_as_good_as_once(state):
    """Recovery may show a frame in the checkpoint and behind it."""
    state.apply(head(fmt.KIND_STATE, topic=1), pack(STATE_PRODUCER, "p", (1, 0)))
    data = head(fmt.KIND_ROWS, topic=1, offset=0, records=2, lsn=5, time=9)
    for _ in range(2):
        state.apply(data, b"", [fmt.Run(1, 0, 0, 2)])
        state.apply(head(fmt.KIND_GAP, topic=1, offset=2), pack(5, "gap", "why"))
    topic = state.topics[1]
    assert topic.next == 5
    assert topic.ranges == [SpecialRange(2, 5, "gap", "why")]
    assert list(topic.producers["p"].window) == [Sent(0, 2, 0, 5, 9)]


@pytest.mark.parametrize("kind", [3, 4, 5, 8, 9])
def test_control_frames_of_junk_or_no_topic_are_corruption(state, kind):
    """A payload that does not decode, or a topic that is not there, is reported as damage."""
    with pytest.raises(CorruptionError, match="control frame"):
        state.apply(head(kind, topic=77), b"\xc1junk")


def test_a_checkpoint_without_a_section_is_corruption(state):
    """A section that is missing or does not decode makes the checkpoint invalid."""
    for data in (b"", encode_sections([(1, b"\xc1")]), b"\x01"):
        with pytest.raises(CorruptionError):
            decode_checkpoint(data)


def test_producers_beyond_the_limit_are_forgotten_by_age(state):
    """The longest silent one goes first."""
    for number in range(3):
        state.add_producer(number + 1, topic=1, name=f"p{number}", epoch=0)
        state.record_sent(number + 1, Sent(0, 1, number, number, number), epoch=0)
    assert state.forget_producers(count_max=2, older_than_us=0) == 1
    assert set(state.topics[1].producers) == {"p1", "p2"}


def test_a_group_changes_nothing_until_it_is_applied(state):
    """A group that is thrown away leaves no trace in the state."""
    before = encode_checkpoint(state, lsn=0)
    topic = state.topics[1]
    group = group_of(state)
    answers = encode(group, (topic, PLAIN, b"x", 0, 1, Sender("p", 0, 0)))
    assert answers[0] == Ack(0, 0, 12)
    assert encode_checkpoint(state, lsn=0) == before


def test_frames_of_a_group_follow_each_other(state):
    """Their sequence numbers are dense, and positions and sizes add up."""
    group = group_of(state)
    encode(
        group,
        (state.topics[1], PLAIN, b"a", 0, 1, None),
        (state.topics[2], PLAIN, (b"b", b"c"), 2, 2, None),
        (state.topics[1], PLAIN, b"d", 0, 1, None),
    )
    data = b"".join(bytes(buffer) for buffer in group.buffers)
    assert len(data) == group.size
    at, lsns = 0, []
    while at < len(data):
        frame = fmt.read_head(data, at)
        assert not fmt.frame_fault(memoryview(data), at, frame)
        lsns.append((frame.kind, frame.lsn))
        at += fmt.FRAME_PREFIX_BYTES + frame.length
    consuming = [lsn for kind, lsn in lsns if kind != fmt.KIND_MARKER]
    assert consuming == list(range(11, 11 + len(consuming)))
    assert group.lsn == consuming[-1]
    assert group.sync


def test_repeats_within_one_group_get_one_record(state):
    """A repeat of a batch in the same group waits for the same ack."""
    topic = state.topics[1]
    group = group_of(state)
    answers = encode(
        group,
        (topic, PLAIN, (b"x", b"y"), 2, 2, Sender("p", 0, 0)),
        (topic, PLAIN, (b"x", b"y"), 2, 2, Sender("p", 0, 0)),
        (topic, PLAIN, (b"z",), 1, 1, Sender("p", 0, 2)),
        (topic, PLAIN, (b"w",), 1, 1, Sender("p", 0, 9)),
    )
    assert answers[0] == answers[1]
    assert answers[2].offset == 2
    assert isinstance(answers[3], Conflict)
    assert sum(count for *_, count in group.data) == 3


WINDOW = [Sent(0, 2, 10, 1, 0), Sent(2, 3, 12, 2, 0)]


@pytest.mark.parametrize(
    ("sequence", "count", "verdict"),
    [
        (5, 1, None),
        (0, 2, WINDOW[0]),
        (2, 3, WINDOW[1]),
        (2, 2, "another batch"),
        (6, 1, "gap in the producer"),
        (1, 1, "older than"),
    ],
)
def test_a_batch_is_judged_by_its_window(sequence, count, verdict):
    """New, a repeat, or a conflict with its reason."""
    got = judge(WINDOW, sequence=sequence, count=count, producer="p")
    if isinstance(verdict, str):
        assert isinstance(got, Conflict)
        assert verdict in got.message
    else:
        assert got == verdict
    assert judge([], sequence=9, count=1, producer="p") is None
