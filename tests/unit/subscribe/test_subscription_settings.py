"""The settings of subscriptions: durable, in memory, and gone with their topic."""

from __future__ import annotations

import threading

import attrs
import pytest

from frazil.engine import Engine
from frazil.errors import CorruptionError, InvalidRequest
from frazil.model import topic_uid
from frazil.subscribe import Backoff, FailurePolicy, Poison, SubscriptionType
from frazil.subscribe.settings import DURATION_MS_MAX, Stored, SubscriptionSettings
from frazil.topic import StateTag
from tests.crash.engine_world import SETTINGS
from tests.support import SimulatedClock, SimulatedFileSystem

POLICY = FailurePolicy(
    max_redelivery_count=0,
    ack_timeout_ms=200,
    base_redelivery_delay_ms=50,
    max_redelivery_delay_ms=DURATION_MS_MAX,
    backoff=Backoff.FIXED,
    poison=Poison.DEAD_LETTER,
    dead_letter_topic="/default/dead",
)
STORED = Stored(kind=SubscriptionType.KEY_SHARED, policy=POLICY, max_unacked_messages=10_000)


class Place:
    """A disk, and the engines that are opened on it one after the other."""

    def __init__(self):
        self.disk = SimulatedFileSystem()
        self.clock = SimulatedClock()

    def open(self, *, threads=False):
        return Engine(SETTINGS, file_system=self.disk, clock=self.clock, threads=threads)


@pytest.fixture
def place():
    """Return a new disk."""
    return Place()


def loaded(engine):
    settings = SubscriptionSettings(engine)
    settings.load()
    return settings


def put(settings, uid, name, stored):
    settings.change(uid, name, **attrs.asdict(stored, recurse=False))


def uid_of(topic):
    return topic_uid(topic.runtime.state.spec)


def test_what_was_set_is_read_back_after_a_restart(place):
    """Every field survives, under names with slashes too; what was deleted stays deleted."""
    with place.open() as engine:
        uid = uid_of(engine.create_topic("t"))
        settings = loaded(engine)
        put(settings, uid, "a/b ö", STORED)
        put(settings, uid, "gone", STORED)
        put(settings, uid, "early", Stored())
        settings.delete(uid, "gone")
        settings.delete(uid, "never there")
    with place.open() as engine:
        settings = loaded(engine)
        assert settings.get(uid, "a/b ö") == settings.find(uid, "a/b ö") == STORED
        assert settings.get(uid, "gone") == Stored()
        assert settings.find(uid, "gone") is None
        assert settings.find(uid, "early") == Stored()
        assert sorted(settings.names(uid)) == ["a/b ö", "early"]
        assert settings.names("another") == []


def test_what_counts_without_a_setting_is_what_the_protocol_names():
    """The defaults are those that clients expect, and no type is known."""
    assert Stored() == Stored(
        kind=None,
        policy=FailurePolicy(
            max_redelivery_count=5,
            ack_timeout_ms=30_000,
            base_redelivery_delay_ms=1_000,
            max_redelivery_delay_ms=60_000,
            backoff=Backoff.EXPONENTIAL,
            poison=Poison.BLOCK,
        ),
        max_unacked_messages=10,
    )


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"max_unacked_messages": 0}, "max_unacked_messages is out of range"),
        ({"max_unacked_messages": 10_001}, "max_unacked_messages is out of range"),
        (
            {"policy": FailurePolicy(ack_timeout_ms=DURATION_MS_MAX + 1)},
            "ack_timeout_ms is too long",
        ),
        (
            {"policy": FailurePolicy(base_redelivery_delay_ms=1 << 64)},
            "base_redelivery_delay_ms is too long",
        ),
        (
            {"policy": FailurePolicy(max_redelivery_delay_ms=1 << 63)},
            "max_redelivery_delay_ms is too long",
        ),
    ],
)
def test_what_is_out_of_range_is_refused_and_changes_nothing(place, fields, reason):
    """A wrong value is refused with its name, and what counted before still does."""
    with place.open() as engine:
        uid = uid_of(engine.create_topic("t"))
        settings = loaded(engine)
        put(settings, uid, "s", STORED)
        with pytest.raises(InvalidRequest, match=reason):
            settings.change(uid, "s", **fields)
        assert settings.get(uid, "s") == STORED


def test_changes_of_different_fields_at_the_same_time_are_all_kept(place):
    """Threads that set one field each, of the same subscription, never undo each other."""
    with place.open(threads=True) as engine:
        uid = uid_of(engine.create_topic("t"))
        settings = loaded(engine)
        changes = (
            {"kind": SubscriptionType.SHARED},
            {"policy": POLICY},
            {"max_unacked_messages": 77},
        )
        for number in range(20):
            start = threading.Barrier(len(changes))

            def change(fields, name=f"s{number}", start=start):
                start.wait()
                settings.change(uid, name, **fields)

            threads = [threading.Thread(target=change, args=(fields,)) for fields in changes]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        wanted = Stored(kind=SubscriptionType.SHARED, policy=POLICY, max_unacked_messages=77)
        names = [f"s{number}" for number in range(20)]
        assert [settings.get(uid, name) for name in names] == [wanted] * 20
        again = loaded(engine)
        assert [again.get(uid, name) for name in names] == [wanted] * 20


def test_a_deleted_topic_takes_its_settings_along(place):
    """What was set for it is gone, durably, also if the process ended before it learned of that."""
    with place.open() as engine:
        first, second, third = (uid_of(engine.create_topic(name)) for name in ("a", "b", "c"))
        settings = loaded(engine)
        for uid in (first, second, third):
            put(settings, uid, "s", STORED)
            put(settings, uid, "s2", STORED)
        engine.delete_topic("a")
        settings.forget_topic(first)
        assert settings.find(first, "s") is settings.find(first, "s2") is None
        # Nobody learns of this one.
        engine.delete_topic("b")
    with place.open() as engine:
        settings = loaded(engine)
        assert settings.find(second, "s") is None
        assert settings.get(third, "s") == settings.get(third, "s2") == STORED
        kept = engine.states.items(StateTag.SUBSCRIPTION)
        assert set(kept) == {f"{third}/s", f"{third}/s2"}


def test_settings_may_go_with_their_topic_while_they_are_deleted(place, monkeypatch):
    """The topic is deleted just when one subscription is: both find what they wanted."""
    with place.open() as engine:
        uid = uid_of(engine.create_topic("a"))
        settings = loaded(engine)
        put(settings, uid, "s", STORED)
        honest = engine.states.delete

        def delete(tag, key):
            honest(tag, key)
            settings.forget_topic(uid)

        monkeypatch.setattr(engine.states, "delete", delete)
        settings.delete(uid, "s")
        assert settings.find(uid, "s") is None
        assert engine.states.items(StateTag.SUBSCRIPTION) == {}


def test_the_parts_of_a_topic_keep_their_settings_at_a_restart(place):
    """The identity that parts share is that of a topic which exists."""
    with place.open() as engine:
        whole = engine.create_topic("t", partitions=2)
        uids = {uid_of(part) for part in whole.parts}
        assert len(uids) == 1
        uid = uids.pop()
        put(loaded(engine), uid, "s", STORED)
    with place.open() as engine:
        assert loaded(engine).get(uid, "s") == STORED


@pytest.mark.parametrize("value", [b"", b"\xc1", b"\x81\xa4kind\x09", b"\x83"])
def test_values_that_nobody_wrote_are_reported_as_damage(place, value):
    """A setting that cannot be read is never taken for another one."""
    with place.open() as engine:
        uid = uid_of(engine.create_topic("t"))
        engine.states.put(StateTag.SUBSCRIPTION, f"{uid}/s", value)
        with pytest.raises(CorruptionError, match="cannot be read"):
            loaded(engine)
