"""Brokers as processes with a real etcd: its loss, their pauses, and who owns the data after."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time

import pytest

from frazil.clock import SystemClock
from frazil.errors import Conflict
from frazil.metadata import LEASE
from frazil.metadata.etcd import EtcdStore
from frazil.topic import cursor_path, known_cursors, known_topics
from tests.crash.broker_process import Broker, Forks, wait_until
from tests.integration.serve.consuming_world import TOPIC, connect, payloads, producer_of, reader_of
from tests.servers.etcd import EtcdServer, need_etcd

pytestmark = pytest.mark.integration

TTL_S = 2
SECONDS_MAX = 60
SETTINGS = {
    "metadata.backend": "etcd",
    "metadata.etcd.lease_ttl_s": TTL_S,
    "log.ballast_bytes": 0,
    "log.free_bytes_min": 0,
    "log.free_ratio_min": 0,
    "lake.default": "false",
}


@pytest.fixture(scope="module")
def forks():
    """Run the process that brokers are forks of."""
    need_etcd()
    found = Forks(etcd_timeout_s=1, retention_check_s=0.1)
    yield found
    found.close()


@pytest.fixture
def etcd(tmp_path):
    need_etcd()
    with EtcdServer(tmp_path / "etcd") as server:
        yield server


@pytest.fixture
def broker_in(tmp_path, etcd, forks):
    """Start brokers that share the server and its keys, each in a directory of its own."""
    made = []

    def begin(name, *, ready=True, **changes):
        settings = {**SETTINGS, "metadata.etcd.endpoints": etcd.endpoint, **changes}
        broker = Broker(tmp_path / name, settings=settings, forks=forks)
        made.append(broker)
        broker.start()
        if ready:
            broker.wait_ready()
        return broker

    yield begin
    for broker in made:
        with contextlib.suppress(ProcessLookupError):
            if broker.pid is not None:
                os.kill(broker.pid, signal.SIGCONT)
        broker.close()


@pytest.fixture
def shared(etcd):
    """Look into etcd beside the broker."""
    with contextlib.closing(
        EtcdStore.open(etcd.settings(timeout_s=20), clock=SystemClock())
    ) as store:
        yield store


def client_calls(broker, act):
    """Run calls of a client against a broker."""

    async def run():
        return await asyncio.wait_for(act(await connect(broker.url)), SECONDS_MAX)

    return asyncio.run(run())


async def receive(client, count, *, last):
    """Read and ack until the payload `last` came; return all payloads."""
    reader = await reader_of(client)
    found = []
    while len(found) < count or (last is not None and last not in found):
        found += payloads(await reader.take(1))
    await reader.close()
    return found


def publish(broker, payloads, *, seconds=15):
    """Publish and return those that were acked in time."""

    async def act(client):
        producer = await producer_of(client)
        acked = []
        for payload in payloads:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(producer.send(payload), seconds)
                acked.append(payload)
        with contextlib.suppress(Exception):
            await producer.close()
        return acked

    return client_calls(broker, act)


def publish_until(broker, payload):
    """Publish again and again until it is acked."""

    def acked():
        try:
            return publish(broker, [payload])
        except Exception:  # noqa: BLE001 - whatever the client makes of a broker in trouble
            return False

    return wait_until(acked, seconds=SECONDS_MAX, what="an ack")


def subscribe(broker):
    """Make the subscription: it has what is published from then on."""

    async def act(client):
        await (await producer_of(client)).close()
        return await receive(client, 0, last=None)

    assert client_calls(broker, act) == []


def test_metadata_are_in_etcd_and_the_next_life_goes_on(broker_in, shared):
    """Topics and cursors are in etcd at their paths; a killed broker's next life has everything."""
    broker = broker_in("one")
    subscribe(broker)
    assert publish(broker, [b"0", b"1", b"2"]) == [b"0", b"1", b"2"]
    assert client_calls(broker, lambda client: receive(client, 2, last=None))[:2] == [b"0", b"1"]
    path = cursor_path("s", TOPIC)
    assert path == "/persistent_storage/iceberg/subscriptions/s/default/t"
    wait_until(lambda: any(c["s"].acked_below >= 2 for c in known_cursors(shared).values()))
    assert shared.get(path) is not None
    topics, ends = known_topics(shared)
    (topic_id,) = [spec.id for spec, _ in topics.values() if spec.name == TOPIC]
    assert list(known_cursors(shared)) == [topic_id]
    first = shared.held(LEASE)
    broker.kill()
    broker.start()
    broker.wait_ready()
    # The same directory on the same machine: it need not wait for its own lease to run out.
    assert shared.held(LEASE).epoch == first.epoch + 1
    assert shared.held(LEASE).since == first.epoch
    assert publish(broker, [b"3"]) == [b"3"]
    assert client_calls(broker, lambda client: receive(client, 1, last=b"3"))[-1] == b"3"
    assert broker.stop() == 0
    assert shared.held(LEASE) is None
    assert ends[topic_id] <= known_topics(shared)[1][topic_id] == 4


def test_second_broker_is_kept_out(broker_in, shared):
    """While one broker renews its lease another directory cannot take the same metadata.

    Nor does it let clients wait, who would find the owner elsewhere.
    """
    broker_in("one")
    second = broker_in("two", ready=False, **{"telemetry.log_level": "info"})
    wait_until(lambda: "lease_awaited" in second.last_words())
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", second.port), timeout=SECONDS_MAX)
    assert second.wait() != 0
    assert "lease is held by another" in second.last_words()
    assert shared.held(LEASE).epoch == 1


@pytest.mark.parametrize("trouble", ["kill", "pause"])
def test_etcd_that_goes_and_comes_back(broker_in, etcd, shared, trouble):
    """Until the deadline publishing goes on, past it nothing is acked, then all goes on again."""
    broker = broker_in("one")
    subscribe(broker)
    acked = publish(broker, [b"before"])
    begun = time.monotonic()
    getattr(etcd, trouble)()
    during = publish(broker, [b"at once"])
    # A slow machine may need longer for this than the lease lasts.
    assert during == [b"at once"] or time.monotonic() - begun > TTL_S / 2
    acked += during

    wait_until(lambda: publish_none(broker), seconds=SECONDS_MAX)
    assert publish_none(broker)
    if trouble == "kill":
        etcd.start()
    else:
        etcd.resume()
    publish_until(broker, b"after")
    acked.append(b"after")
    wait_until(lambda: known_topics(shared)[1], seconds=SECONDS_MAX)
    found = client_calls(broker, lambda client: receive(client, len(acked), last=b"after"))
    assert [payload for payload in found if payload in acked] == acked
    assert "broker_fenced" not in broker.last_words()
    assert broker.stop() == 0


def publish_none(broker):
    """Tell that a publish is not acked."""
    try:
        return publish(broker, [b"refused"], seconds=3) == []
    except Exception:  # noqa: BLE001 - a client may not even get its producer
        return True


def test_paused_broker_goes_on_when_nobody_came(broker_in, shared):
    """A broker that slept past its lease takes it again, under a new epoch, and loses nothing."""
    broker = broker_in("one")
    subscribe(broker)
    assert publish(broker, [b"0"]) == [b"0"]
    os.kill(broker.pid, signal.SIGSTOP)
    wait_until(lambda: shared.held(LEASE) is None, seconds=SECONDS_MAX)
    os.kill(broker.pid, signal.SIGCONT)
    publish_until(broker, b"1")
    held = shared.held(LEASE)
    assert (held.epoch, held.since) == (2, 1)
    found = client_calls(broker, lambda client: receive(client, 2, last=b"1"))
    assert found[0] == b"0"
    assert broker.stop() == 0


def test_paused_broker_is_fenced_when_another_came(broker_in, shared):
    """A broker that slept while another took over acks nothing more, says so, and ends."""
    broker = broker_in("one")
    assert publish(broker, [b"0"]) == [b"0"]

    async def act(client):
        producer = await producer_of(client)
        os.kill(broker.pid, signal.SIGSTOP)
        sending = asyncio.ensure_future(producer.send(b"in flight"))
        await asyncio.to_thread(take_over)
        os.kill(broker.pid, signal.SIGCONT)
        with contextlib.suppress(Exception):
            await asyncio.wait_for(sending, 30)
            return "acked"
        return "refused"

    def take_over():
        def taken():
            try:
                return shared.acquire(LEASE, "another machine", 600)
            except Conflict:
                return None

        assert wait_until(taken, seconds=SECONDS_MAX).epoch == 2

    assert client_calls(broker, act) == "refused"
    assert broker.wait() == 7
    assert "another broker has taken over" in broker.last_words()
    assert shared.held(LEASE).holder == "another machine"


def test_empty_directory_takes_over_what_etcd_has(broker_in, shared):
    """A broker that lost its disk knows its topics, and gives no offset out twice."""
    broker = broker_in("one")
    assert publish(broker, [b"0", b"1", b"2"]) == [b"0", b"1", b"2"]
    assert broker.stop() == 0
    before = known_topics(shared)
    assert list(before[1].values()) == [3]
    again = broker_in("two")
    assert shared.held(LEASE).epoch == 2
    assert publish(again, [b"3"]) == [b"3"]
    assert again.stop() == 0
    after = known_topics(shared)
    assert after[0].keys() == before[0].keys()
    # At least: the empty directory cannot know how far offsets were reserved.
    assert next(iter(after[1].values())) >= 4


def test_directory_of_another_is_refused(broker_in):
    """A broker with data of its own does not take the metadata of another's."""
    assert broker_in("one").stop() == 0
    own = broker_in("two", **{"metadata.etcd.prefix": "/two"})
    assert publish(own, [b"0"]) == [b"0"]
    assert own.stop() == 0
    wrong = broker_in("two", ready=False)
    assert wrong.wait() == 2
    assert "metadata.etcd.prefix" in wrong.last_words()
