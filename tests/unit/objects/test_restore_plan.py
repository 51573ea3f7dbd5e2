"""The plan of a restored journal: from a backup, from footers, from both."""

from __future__ import annotations

import pytest

from frazil.log import JournalState, encode_checkpoint
from frazil.log import format as fmt
from frazil.model import TopicSpec
from frazil.objects.backup import Backup
from frazil.objects.descriptor import descriptor_of
from frazil.objects.format import Footer
from frazil.objects.restore_find import FoundObjects
from frazil.objects.restore_plan import plan_restore, take_runs

BROKER = bytes(range(16))
MARGIN = 1000


def spec_of(topic_id, name, **fields):
    """Return a topic's definition."""
    known = {"kind": "message", "created_us": topic_id, "uid": f"uid{topic_id}", **fields}
    return TopicSpec(id=topic_id, name=f"/default/{name}", **known)


def backup_of(state=None, *, epoch=1):
    """Return a backup of a journal's state; an empty one without it."""
    checkpoint = b"" if state is None else encode_checkpoint(state, lsn=state.lsn)
    return Backup(broker=BROKER, epoch=epoch, seq=1, created_us=1, checkpoint=checkpoint, topics=())


def footer_of(spec, first, end, *, epoch=1, **fields):
    """Return the footer of an object of a topic."""
    known = {"schemas": {}, "producers": {}, "uid": spec.uid, **fields}
    return Footer(
        broker=BROKER, epoch=epoch, created_us=1, content_sha256=b"", lsn_last=0,
        topic=spec.id, spec=spec, first=first, end=end, records=end - first, frames=1,
        time_first_us=1, time_last_us=1, length=8, **known,
    )  # fmt: skip


def add_object(found, footer, *, named=False):
    """Add an object to the found ones."""
    key = f"{footer.topic}-{footer.first}-{footer.epoch}"
    found.candidates[footer.topic].append(descriptor_of(footer, key=key, size=1, etag=""))
    if not named:
        found.footers[footer.topic].append(footer)
        found.unnamed.add(key)
    found.epoch_last = max(found.epoch_last, footer.epoch)


def planned(backup, found, *, local_all=False):
    """Plan a restore with a fixed margin."""
    return plan_restore(backup, found, local_all=local_all, offset_margin=MARGIN)


def state_with(*specs, following=0):
    """Return a journal's state with topics that end at an offset."""
    state = JournalState()
    for spec in specs:
        topic = state.define_topic(spec)
        topic.next = topic.durable = following
    return state


@pytest.mark.parametrize(
    ("fields", "holds", "local_from"),
    [
        ({}, {}, None),
        ({"kind": "table", "primary_key": (1,)}, {}, 0),
        ({"kind": "table", "lake": True}, {"lake": 20}, 20),
        ({"kind": "table", "lake": True}, {"lake": 50}, None),
        ({"kind": "table", "lake": True}, {}, 0),
    ],
)
def test_only_what_must_lie_on_the_machine_is_fetched(fields, holds, local_from):
    """Keyed topics whole, topics of the lake from where it has come; others stay in the store."""
    spec = spec_of(1, "a", **fields)
    state = state_with(spec, following=50)
    state.topics[1].holds.update(holds)
    state.topics[1].schemas[1] = b"schema"
    found = FoundObjects()
    add_object(found, footer_of(spec, 0, 50), named=True)
    (topic,) = planned(backup_of(state), found).topics
    assert topic.local_from == local_from
    (topic,) = planned(backup_of(state), found, local_all=True).topics
    assert topic.local_from == 0


def head_at(offset, *, lsn=9):
    """Return a frame's head at an offset."""
    fields = dict.fromkeys(fmt.FrameHead._fields, 0)
    return fmt.FrameHead(**{**fields, "offset": offset, "lsn": lsn, "time": 1})


def test_runs_are_taken_once_and_never_backwards():
    """What a window has is not added again; a higher epoch begins afresh, a lower one is old."""
    state = state_with(spec_of(1, "a"))
    producer = state.add_producer(7, topic=1, name="p", epoch=1)
    take_runs(state, head_at(0), [fmt.Run(7, 1, 0, 2), fmt.Run(7, 1, 2, 2)])
    take_runs(state, head_at(0, lsn=0), [fmt.Run(7, 1, 0, 2), fmt.Run(0, 0, 0, 2)])
    assert [(sent.sequence, sent.offset) for sent in producer.window] == [(0, 0), (2, 2)]
    take_runs(state, head_at(4), [fmt.Run(7, 2, 0, 1)])
    take_runs(state, head_at(5), [fmt.Run(7, 1, 9, 1), fmt.Run(8, 1, 0, 1)])
    assert (producer.epoch, [sent.offset for sent in producer.window]) == (2, [4])


def test_objects_of_another_topic_with_the_same_number_are_left_out():
    """The identity made at creation tells: records of a stranger never become a topic's own."""
    spec = spec_of(1, "a")
    found = FoundObjects()
    add_object(found, footer_of(spec, 0, 5), named=True)
    add_object(found, footer_of(spec_of(1, "b", uid="stranger"), 5, 9))
    plan = planned(backup_of(state_with(spec, following=5)), found)
    assert plan.topics[0].chain.end == 5
    assert any("another topic" in warning for warning in plan.warnings)


def test_parts_without_their_parent_get_one():
    """Parts that only objects know come back with the topic they are parts of."""
    parts = [
        spec_of(11 + index, f"p-part-{index}", part_of=10, part_index=index, uid="p")
        for index in range(3)
    ]
    found = FoundObjects()
    for part in (parts[0], parts[2]):
        add_object(found, footer_of(part, 0, 4))
    plan = planned(backup_of(), found)
    topics = plan.state.topics
    assert (topics[10].spec.name, topics[10].spec.partitions) == ("/default/p", 3)
    assert topics[12].spec.part_index == 1
    assert any("at least 3 parts" in warning for warning in plan.warnings)
