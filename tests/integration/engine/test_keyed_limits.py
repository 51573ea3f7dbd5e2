"""Keyed topics at their limits: nothing of them expires, and each stops itself alone."""

from __future__ import annotations

import time

import pytest

from frazil.errors import InvalidRequest, Overloaded
from tests.integration.engine.opening import open_small
from tests.integration.engine.tier_world import noise

COLUMNS = {"id": "long", "v": "binary"}
QUOTA = 100_000
CAP = 1 << 20


def keyed(world, name="k", **options):
    """Create a keyed topic."""
    return world.db.create_topic(name, COLUMNS, primary_key="id", **options)


def fill(world, topic, count, *, keys=2):
    """Change few keys often, a file for each change, as long as the topic takes it."""
    for number in range(count):
        topic.upsert(id=number % keys, v=noise(number, 20_000))
        world.db.tiers.flush()
        world.round(2)


# -- the quota -----------------------------------------------------------------------------------


def test_a_keyed_topic_stops_itself_at_its_quota_and_no_other(opened):
    """Its files stay about at the quota, far below the cap; other topics publish all the time."""
    world = opened(disk={"bytes_max": CAP})
    topic, other = keyed(world, retention_bytes=QUOTA), world.db.create_topic("a")
    with pytest.raises(Overloaded, match="raise its retention_bytes") as caught:
        fill(world, topic, 100)
    details = caught.value.details
    assert (details["topic"], details["bytes_max"]) == ("/default/k", QUOTA)
    assert QUOTA < details["bytes"] < QUOTA + 30_000
    assert details["retry_after_ms"] > 0
    assert other.append(b"x").offset == 0
    assert len(topic.get_many([0, 1])) == 2
    assert topic.describe()["refused"] is not None
    assert other.describe()["refused"] is None


def test_a_larger_quota_lets_a_keyed_topic_go_on(opened):
    """`alter` raises it, and the next look at the files ends the stop."""
    world = opened()
    topic = keyed(world, retention_bytes=QUOTA)
    with pytest.raises(Overloaded):
        fill(world, topic, 100)
    head = topic.describe()["watermarks"]["head"]
    world.db.alter_topic("k", retention_bytes=10 * QUOTA)
    world.round(2)
    assert topic.upsert(id=1, v=b"x").offset == head


def test_the_parts_of_a_keyed_topic_share_its_quota(opened):
    """What all parts have in files counts, and all of them stop."""
    world = opened()
    topic = keyed(world, partitions=2, retention_bytes=QUOTA)
    with pytest.raises(Overloaded):
        fill(world, topic, 100, keys=50)
    sizes = [
        world.db.tiers.disk.space.held_bytes(part.state.id, 0) for part in world.db.parts_of("k")
    ]
    assert all(0 < size < QUOTA for size in sizes)
    assert all(part.refusal is not None for part in world.db.parts_of("k"))


def test_a_publish_waits_for_room_before_it_is_refused(tmp_path):
    """At the quota it waits for `memory.wait_s`, and goes on if the quota is raised meanwhile."""
    with open_small(tmp_path, memory={"wait_s": 0.3}) as db:
        topic = db.create_topic("k", COLUMNS, primary_key="id", retention_bytes=10_000)
        topic.upsert(id=1, v=noise(1, 20_000))
        db.tiers.flush()
        db.tiers.evict()
        begun = time.monotonic()
        with pytest.raises(Overloaded):
            topic.upsert(id=1, v=b"x")
        assert time.monotonic() - begun >= 0.3


def test_holds_and_defaults_let_no_row_of_a_keyed_topic_go(opened):
    """A hold at its oldest record, `expire` and no age as the defaults: all rows stay."""
    world = opened(retention_age_s=0.0, on_full="expire")
    topic = keyed(world, retention_bytes=QUOTA)
    topic.hold("slow", 0)
    with pytest.raises(Overloaded):
        fill(world, topic, 100)
    world.move()
    assert topic.describe()["holds"] == {"slow": 0}
    assert topic.describe()["watermarks"]["start"] == 0
    facts = topic.describe()
    assert (facts["on_full"], facts["retention_age_s"]) == ("block", None)


def test_what_a_hold_keeps_of_the_log_does_not_stop_a_keyed_topic(opened):
    """Its quota is of files; what was not flushed yet stops nothing, hold or not."""
    world = opened()
    topic = keyed(world, retention_bytes=QUOTA)
    topic.hold("slow", 0)
    for number in range(3):
        topic.upsert(id=number, v=noise(number, 50_000))
    world.db.upkeep.check_quotas()
    assert topic.upsert(id=3, v=b"x").offset == 3


# -- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"on_full": "expire"}, {"retention_age": "1s"}, {"retention_age": 0}]
)
def test_options_that_would_expire_rows_are_refused(opened, options):
    """Neither creating nor altering takes them for a keyed topic; for others they are taken."""
    world = opened()
    with pytest.raises(InvalidRequest, match="never expire"):
        keyed(world, **options)
    keyed(world, on_full="block", retention_bytes=QUOTA)
    with pytest.raises(InvalidRequest, match="never expire"):
        world.db.alter_topic("k", **options)
    keyed(world, "parts", partitions=2)
    with pytest.raises(InvalidRequest, match="never expire"):
        world.db.alter_topic("parts", **options)
    world.db.create_topic("t", COLUMNS, **options)


# -- deletion vectors ----------------------------------------------------------------------------


def test_the_topic_with_the_largest_deletion_vector_stops_at_the_limit(opened):
    """Superseded rows in files are bounded; a keyed topic with few of them goes on."""
    world = opened(memory={"budget_bytes": 16 << 20}, tiers={"vectors_share": 0.01})
    topic, other = keyed(world), keyed(world, "few")
    other.upsert(id=1, v=b"x")
    with pytest.raises(Overloaded, match="deletion vector") as caught:
        for _ in range(100):
            topic.append_many([{"id": n % 10, "v": b""} for n in range(1000)])
            world.db.tiers.flush()
            world.db.tiers.evict()
            world.round(2)
    limit = int((16 << 20) * 0.01)
    assert caught.value.details["bytes_max"] == limit
    assert limit < caught.value.details["bytes"] < 2 * limit
    assert other.upsert(id=1, v=b"y").offset == 1
    sources = world.db.stats()["tiers"]["pressure"]["sources"]
    assert sources["deletion_vectors"] == caught.value.details["bytes"]
