"""Engines whose metadata are in etcd and whose records go to an object store: what is left without a disk."""

from __future__ import annotations

import contextlib
import shutil
import time

import pytest

from frazil.clock import SystemClock
from frazil.config.objects import ObjectsSettings
from frazil.config.sections import MetadataSettings
from frazil.engine import Engine
from frazil.errors import Closed, Conflict, FrazilError, Unavailable
from frazil.fs import RealFileSystem
from frazil.metadata import LEASE, Transaction, entries
from frazil.metadata.etcd import EtcdStore
from tests.integration.engine.objects_world import registered, wait_until
from tests.integration.engine.opening import small_settings
from tests.servers.etcd import EtcdServer, need_etcd
from tests.support.objects_limits import set_objects_limits

pytestmark = pytest.mark.integration

TTL_S = 2
COLUMNS = {"id": "long not null"}


@pytest.fixture
def etcd(tmp_path):
    need_etcd()
    with EtcdServer(tmp_path / "etcd") as server:
        yield server


@pytest.fixture
def opened(tmp_path, etcd):
    """Open engines on one store and one etcd, whose lease is short."""

    def begin(directory="data", *, ack_s=None, **objects):
        set_objects_limits(ack_s=ack_s)
        section = etcd.settings(timeout_s=1, lease_ttl_s=TTL_S)
        own = {
            "store": "fs",
            "root": str(tmp_path / "store"),
            "interval_s": 0.05,
            **objects,
        }
        changes = {
            "metadata": MetadataSettings(backend="etcd", etcd=section),
            "objects": ObjectsSettings(**own),
        }
        settings = small_settings(tmp_path / directory).model_copy(update=changes)
        return Engine(settings, file_system=RealFileSystem(), clock=SystemClock())

    return begin


def ids(db, name="t"):
    return [row["id"] for batch in db.topic(name).read() for row in batch.data.to_pylist()]


def test_new_machine_serves_what_was_uploaded(tmp_path, etcd, opened):
    """With the disk gone, etcd and the store alone have every record acked as uploaded."""
    db = opened(interval_s=3600)
    topic = db.create_topic("t", COLUMNS)
    for number in range(5):
        assert topic.append(id=number, ack="uploaded").offset == number
    (topic_id,) = [runtime.state.id for runtime in db.runtimes]
    assert list(entries(db.stores.shared, f"/objects/{topic_id:08x}/"))
    assert not list(entries(db.stores.local, "/objects/"))
    row = db.stores.shared.get(f"/topics/{topic_id:08x}")
    db.close()
    shutil.rmtree(tmp_path / "data")
    with contextlib.closing(
        EtcdStore.open(etcd.settings(timeout_s=20), clock=SystemClock())
    ) as shared:
        # As if the machine had burnt: the end that only a clean close notes is not known.
        assert shared.get(row.key).value != row.value
        shared.commit(Transaction(puts={row.key: row.value}))
    with opened() as again:
        assert again.ownership.epoch == 2
        assert ids(again) == [0, 1, 2, 3, 4]
        assert again.topic("t").append(id=5, ack="uploaded").offset == 5
        assert ids(again) == [0, 1, 2, 3, 4, 5]
        found = registered(again, topic_id)
        assert {each.epoch for each in found} == {1, 2}


def test_etcd_that_is_away_holds_uploads_up_and_loses_none(etcd, opened):
    """While etcd is killed `uploaded` acks wait or fail; then everything is registered once."""
    with opened(ack_s=1) as db:
        topic = db.create_topic("t", COLUMNS)
        acked = [topic.append(id=0, ack="uploaded").offset]
        etcd.kill()
        with pytest.raises((Unavailable, Closed)):
            while True:
                topic.append(id=1, ack="uploaded")
        with pytest.raises(Unavailable):
            while True:
                db.create_topic(f"other-{time.monotonic_ns()}", COLUMNS)
        etcd.start()

        def publishes():
            with contextlib.suppress(FrazilError):
                acked.append(topic.append(id=2, ack="uploaded").offset)
            return len(acked) > 1

        wait_until(publishes)
        wait_until(lambda: not db.metadata_failed)
        db.create_topic("after", COLUMNS)
        topic_id = topic.runtime.state.id
        wait_until(lambda: db.objects.catalog.topic(topic_id).uploaded > acked[-1])
        registered(db, topic_id)
        found = ids(db)
        assert found[0] == 0
        assert found[-1] == 2
        assert set(found) <= {0, 1, 2}


def test_engine_that_was_replaced_registers_nothing(etcd, opened):
    """After another has the lease, an engine neither acks nor registers, and is closed for good."""
    db = opened()
    topic = db.create_topic("t", COLUMNS)
    topic.append(id=0, ack="uploaded")
    fenced = []
    db.on_fenced = fenced.append
    keep = db.ownership.keep
    # The thread sleeps as the whole process would.
    db.ownership.keep = lambda: None
    with contextlib.closing(
        EtcdStore.open(etcd.settings(timeout_s=20), clock=SystemClock())
    ) as other:

        def taken():
            with contextlib.suppress(Conflict):
                return other.acquire(LEASE, "another", 600)

        wait_until(lambda: other.held(LEASE) is None)
        assert taken().epoch == 2
        before = list(entries(other, "/objects/"))
        with pytest.raises(Unavailable):
            topic.append(id=1)
        db.ownership.keep = keep
        wait_until(lambda: fenced)
        with pytest.raises(Closed):
            topic.append(id=2)
        with contextlib.suppress(FrazilError):
            db.close()
        assert list(entries(other, "/objects/")) == before
        assert other.held(LEASE).holder == "another"


def test_two_engines_of_one_machine_are_kept_apart(opened):
    """A second directory with the same metadata waits for the first lease and is then refused."""
    with opened() as db:
        with pytest.raises(Conflict):
            opened("other")
        db.create_topic("t", COLUMNS).append(id=0, ack="uploaded")
