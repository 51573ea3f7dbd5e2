"""Objects that go, are gone, or come back: readers meanwhile, and what the engine says of it."""

from __future__ import annotations

import pytest

from frazil.errors import Conflict, CorruptionError, InvalidRequest, NotFound
from frazil.metadata import Transaction
from frazil.objects import descriptor as rows
from tests.integration.engine.objects_world import (
    forget_log,
    open_with_objects,
    registered,
    wait_until,
)
from tests.integration.engine.opening import payloads_of

pytestmark = pytest.mark.integration

OPTIONS = {"interval_s": 3600}
COUNT = 4


@pytest.fixture
def db(tmp_path):
    with open_with_objects(tmp_path, objects=OPTIONS, disk={"log_keep_s": 0}) as found:
        # The first look of retention comes soon after the first topic, the next one not in a test.
        found.create_topic("other")
        wait_until(lambda: found.objects.backups.last)
        yield found


def only_in_objects(db, name, **options):
    """Make a topic whose records are in objects alone, one in each; return it."""
    topic = db.create_topic(name, retention_age="0s", **options)
    topic_id = topic.runtime.state.id
    for number in range(COUNT):
        topic.append(b"%d" % number)
        db.objects.upload(db.objects.topics[topic_id])
    db.objects.move_holds()
    forget_log(db, [topic])
    db.tiers.retention.retain()
    assert len(registered(db, topic_id)) == COUNT
    return topic


def meanwhile(monkeypatch, db, act):
    """Have something happen after it was decided which objects go, and before they do."""
    plain, seen = db.objects.catalog.expire, []

    def expire(topic_id, below, **options):
        seen.append(act())
        return plain(topic_id, below, **options)

    monkeypatch.setattr(db.objects.catalog, "expire", expire)
    return seen


def test_who_begins_while_objects_go_begins_behind_them(db, monkeypatch):
    """A reader or subscription that begins meanwhile never learns of records that then vanish."""
    topic = only_in_objects(db, "t", objects_retention_age="0s")
    readers = []

    def begin():
        readers.append(topic.tail(start="earliest", timeout_s=0))
        topic.subscribe("s", start="earliest").close()
        with pytest.raises(InvalidRequest, match=f"start={COUNT}"):
            db.cursors.create(topic.name, "below", 0)
        return topic.runtime.history.range(topic.runtime.state.id).first

    seen = meanwhile(monkeypatch, db, begin)
    db.objects.retention.run()
    assert seen == [COUNT]
    assert topic.append(b"new").offset == COUNT
    (reader,) = readers
    assert [row["payload"] for batch in reader for row in batch.records()] == [b"new"]
    assert reader.gaps == []
    assert db.cursors.load(topic.name)["s"].acked_below == COUNT
    [facts] = topic.subscriptions()
    assert facts["lag_records"] == 1


def test_objects_that_could_not_go_are_read_again(db, monkeypatch):
    """If the metadata refuses, all is as it was before."""
    topic = only_in_objects(db, "t", objects_retention_age="0s")

    def refuse():
        raise Conflict("not now")

    meanwhile(monkeypatch, db, refuse)
    with pytest.raises(Conflict, match="not now"):
        db.objects.retention.run()
    assert payloads_of(topic) == [b"%d" % number for number in range(COUNT)]


def test_what_a_subscription_or_reader_needs_stays(db):
    """Remote retention goes up to the lowest offset that somebody still needs, and no further."""
    topic = only_in_objects(db, "t", objects_retention_bytes=0)
    topic.subscribe("s", start="earliest").close()
    db.cursors.reset(topic.name, "s", 2)
    db.cursors.follow()
    with topic.tail(start=1, timeout_s=0) as reader:
        db.objects.retention.run()
        assert registered(db, topic.runtime.state.id)[0].first == 1
        assert next(iter(reader)).offset == 1
    db.objects.retention.run()
    assert registered(db, topic.runtime.state.id)[0].first == 2
    # It keeps nothing, though somebody still has it.
    too_late = topic.read(0)
    with pytest.raises(NotFound, match="offset_first=2"):
        next(too_late)
    topic.unsubscribe("s")
    db.objects.retention.run()
    assert registered(db, topic.runtime.state.id) == ()


def test_topics_that_are_uploaded_no_more_keep_their_retention(db):
    """What they left in objects grows old like everything else."""
    topic = only_in_objects(db, "t", objects_retention_age="0s")
    db.alter_topic("t", objects=False)
    assert payloads_of(topic) == [b"%d" % number for number in range(COUNT)]
    db.objects.retention.run()
    assert registered(db, topic.runtime.state.id) == ()


def test_one_topic_does_not_keep_the_others_from_letting_go(db):
    """A topic whose rows were changed by somebody else is reported; the next one goes on."""
    first = only_in_objects(db, "a", objects_retention_age="0s")
    second = only_in_objects(db, "b", objects_retention_age="0s")
    key = rows.state_key(first.runtime.state.id)
    store = db.stores.shared
    store.commit(Transaction(puts={key: store.get(key).value}))
    with pytest.raises(Conflict):
        db.objects.retention.run()
    assert registered(db, second.runtime.state.id) == ()
    assert len(registered(db, first.runtime.state.id)) == COUNT
    db.objects.retention.run()
    assert registered(db, first.runtime.state.id) == ()


@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_what_cannot_be_read_is_seen_until_it_is_back(db, tmp_path, harm):
    """A missing or damaged object makes the engine degraded and is named; a copy mends it."""
    topic = only_in_objects(db, "t")
    hit = registered(db, topic.runtime.state.id)[1]
    path = tmp_path / "store" / hit.key
    data = path.read_bytes()
    assert db.stats()["health"] == "ok"
    if harm == "missing":
        path.unlink()
    else:
        broken = bytearray(data)
        broken[8 + hit.length - 1] ^= 1
        path.write_bytes(bytes(broken))
    for _ in range(2):
        with pytest.raises(CorruptionError, match="bring"):
            payloads_of(topic)
    stats = db.stats()
    assert stats["health"] == "degraded"
    [facts] = stats["objects"]["unreadable"]
    assert (facts["event"], facts["key"]) == (f"object_{harm}", hit.key)
    assert (facts["offset_first"], facts["offset_next"]) == (hit.first, hit.end)
    assert stats["objects"]["totals"]["unreadable"] == 1
    path.write_bytes(data)
    assert payloads_of(topic) == [b"%d" % number for number in range(COUNT)]
    assert db.stats()["health"] == "ok"
    assert db.stats()["objects"]["unreadable"] == []
