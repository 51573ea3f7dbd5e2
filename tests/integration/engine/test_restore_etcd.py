"""A broker whose metadata are in etcd: the servers outlive its machine, or are lost with it."""

from __future__ import annotations

import contextlib
import uuid

import pytest

from frazil.errors import Conflict
from tests.integration.engine.objects_world import wait_until
from tests.integration.engine.opening import payloads_of
from tests.integration.engine.restore_scene import Scene, restored
from tests.servers.etcd import EtcdServer, need_etcd

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Run an etcd."""
    need_etcd()
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as found:
        yield found


@pytest.fixture
def scene(tmp_path, server):
    """Return a broker with its metadata in etcd, under a prefix of its own."""
    settings = {
        "metadata.backend": "etcd",
        "metadata.etcd.endpoints": server.endpoint,
        "metadata.etcd.prefix": f"/{uuid.uuid4().hex}",
        "metadata.etcd.lease_ttl_s": 2,
    }
    with contextlib.closing(Scene(tmp_path, **settings)) as found:
        yield found


def publish(topic, numbers):
    """Publish records whose acks say that the store has them."""
    for number in numbers:
        topic.append(payload=b"%d" % number, ack="uploaded")


def test_what_etcd_has_counts_for_more_than_the_backup(scene):
    """Records and places of subscriptions since the backup come from the store and from etcd."""
    topic = scene.engine.create_topic("events")
    publish(topic, range(10))
    scene.engine.subscriptions.create("events", "billing", start="earliest")
    made = scene.engine.objects.backup()
    publish(topic, range(10, 20))
    scene.engine.subscriptions.reset("events", "billing", 15)
    scene.forget_backups_since(made)
    report = scene.lose_and_restore()
    assert restored(report, "events")["end"] == 20
    topic = scene.engine.topic("events")
    assert payloads_of(topic) == [b"%d" % number for number in range(20)]
    (found,) = scene.engine.subscriptions.describe("events")
    assert found["acked_below"] == 15
    publish(topic, range(20, 23))
    assert payloads_of(topic) == [b"%d" % number for number in range(23)]


def test_without_a_backup_etcd_and_the_objects_are_enough(scene):
    """Topics and columns come from footers, registered objects from etcd."""
    publish(scene.engine.create_topic("events"), range(7))
    scene.forget_backups_since(None)
    scene.lose_and_restore()
    assert payloads_of(scene.engine.topic("events")) == [b"%d" % number for number in range(7)]


def test_etcd_may_be_lost_as_well(scene):
    """With empty servers the backup and the objects bring everything back."""
    topic = scene.engine.create_topic("events")
    publish(topic, range(5))
    scene.engine.objects.backup()
    publish(topic, range(5, 8))
    scene.lose_machine()
    scene.overrides["metadata.etcd.prefix"] = f"/{uuid.uuid4().hex}"
    scene.restore()
    scene.open()
    assert payloads_of(scene.engine.topic("events")) == [b"%d" % number for number in range(8)]


def test_a_broker_that_lives_is_not_restored_over(scene, tmp_path):
    """While the lease is held nothing is restored from under its holder."""
    publish(scene.engine.create_topic("events"), range(3))
    scene.machine += 1
    with pytest.raises(Conflict, match="a broker owns these data"):
        scene.restore()
    assert not (tmp_path / "machine-1").exists()
    scene.machine -= 1
    scene.lose_machine()
    wait_until(lambda: scene.restore()["topics"])
