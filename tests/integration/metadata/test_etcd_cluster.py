"""A cluster of etcd whose members die in turn, under writers that count."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

from frazil.clock import SystemClock
from frazil.config import EtcdSettings
from frazil.errors import Conflict, Unavailable
from frazil.metadata import LeaseEpoch, Transaction
from frazil.metadata.etcd import EtcdStore
from tests.contract.metadata_homes import swap
from tests.servers.etcd import cluster_of, need_etcd

pytestmark = pytest.mark.integration

KILLS = 3
WAIT_S = 60


def open_store(members):
    endpoints = ",".join(each.endpoint for each in members)
    return EtcdStore.open(EtcdSettings(endpoints=endpoints), clock=SystemClock())


class Counter:
    """A thread that adds one, again and again, and counts the answers."""

    def __init__(self, members, name):
        self.store = open_store(members)
        self.key = f"/{name}"
        self.acked = self.unknown = self.refused = 0
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        with contextlib.closing(self.store) as store:
            while not self.stopping.is_set():
                try:
                    self.add(store)
                except Unavailable:
                    self.refused += 1
                    self.stopping.wait(0.05)

    def add(self, store):
        seen = store.get(self.key)
        number = 0 if seen is None else int(seen.value)
        try:
            swap(store, self.key, b"%d" % (number + 1), expected=seen)
            self.acked += 1
        except Conflict:
            # Nobody else writes the key: only an own attempt without an answer can be the cause.
            assert self.unknown
        except Unavailable as error:
            self.unknown += error.details.get("outcome") == "unknown"
            raise


def test_counters_lose_nothing_while_members_die(tmp_path):
    """Each member is killed in turn: what was acked counts once, what was unknown at most once."""
    need_etcd()
    with cluster_of(tmp_path, 3) as members, contextlib.closing(open_store(members)) as store:
        counters = [Counter(members, name) for name in ("a", "b")]
        lease = store.acquire("broker", "one", 60)
        for counter in counters:
            counter.thread.start()
        try:
            for kill in range(KILLS):
                before = [counter.acked for counter in counters]
                members[kill % 3].kill()
                deadline = time.monotonic() + WAIT_S
                while any(c.acked < b + 5 for c, b in zip(counters, before, strict=True)):
                    assert time.monotonic() < deadline, "no progress with two of three members"
                    time.sleep(0.05)
                members[kill % 3].start()
        finally:
            for counter in counters:
                counter.stopping.set()
            for counter in counters:
                counter.thread.join(WAIT_S)
        for counter in counters:
            assert not counter.thread.is_alive()
            total = int(store.get(counter.key).value)
            assert counter.acked <= total <= counter.acked + counter.unknown
        renewed = store.renew(lease)
        store.commit(Transaction(puts={"/z": b""}, requires=LeaseEpoch("broker", renewed.epoch)))


def test_without_most_members_nothing_is_acked(tmp_path):
    """One member of three acks nothing and says Unavailable; with two all works again."""
    need_etcd()
    with cluster_of(tmp_path, 3) as members, contextlib.closing(open_store(members)) as store:
        swap(store, "/a", b"1", expected=None)
        seen = store.get("/a")
        members[0].kill()
        members[1].kill()
        with pytest.raises(Unavailable):
            swap(store, "/a", b"2", expected=seen)
        with pytest.raises(Unavailable):
            store.get("/a")
        members[1].start()
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                now = store.get("/a")
                swap(store, "/a", b"3", expected=now)
                break
            except (Unavailable, Conflict):
                assert time.monotonic() < deadline
        assert store.get("/a").value == b"3"
