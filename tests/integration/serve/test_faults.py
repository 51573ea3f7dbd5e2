"""Clients and broker over a wire that is cut, stalled and half closed while they work."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time

import grpc
import pytest
from danube import SubType

from frazil.serve.danube.proto.danube_pb2 import ConsumerRequest, ReceiveRequest
from tests.crash.broker_process import Broker
from tests.crash.broker_world import FIRST, Clients, checked
from tests.integration.serve.consuming_world import make_producer, make_reader
from tests.integration.serve.wire_world import Wire
from tests.integration.serve.wire_world_load import no_time_outs
from tests.integration.serve.wire_world_readers import Methods

pytestmark = pytest.mark.integration

FAULTS = int(os.environ.get("FRAZIL_TEST_CRASH_FAULTS", "8"))
FLOW_S = 0.3
STALL_S = 0.4
TOPIC = "/default/half"


@contextlib.contextmanager
def served(directory, **settings):
    """Run a broker that sends its clients to a wire; yields broker and wire."""
    with contextlib.closing(Broker(directory)) as broker, Wire(broker.port) as wire:
        broker.settings |= {"serve.advertised_url": wire.url, **settings}
        broker.start()
        broker.wait_ready()
        yield broker, wire


def stall(wire, chosen):
    """Hold everything up for a moment."""
    wire.stall()
    time.sleep(chosen.uniform(0, STALL_S))
    wire.flow()


def stall_and_cut(wire, chosen):
    """Hold everything up, then lose it."""
    wire.stall()
    time.sleep(chosen.uniform(0, STALL_S))
    wire.cut()
    wire.flow()


ACTS = {
    "cut": lambda wire, _: wire.cut(),
    "stall": stall,
    "stall and cut": stall_and_cut,
    "server hears the end": lambda wire, _: wire.half_close("server"),
    "client hears the end": lambda wire, _: wire.half_close("client"),
}


@pytest.mark.long
@pytest.mark.timeout(0 if FAULTS > 8 else 240)
def test_no_fault_of_the_wire_breaks_a_promise(tmp_path):
    """Whatever the wire does: nothing lost, nothing acked again, order kept, and work goes on."""
    seed = random.randrange(1 << 32)
    chosen = random.Random(seed)
    print(f"seed {seed}")
    acts = [*ACTS, *chosen.choices(list(ACTS), k=max(0, FAULTS - len(ACTS)))][:FAULTS]
    chosen.shuffle(acts)
    with (
        served(tmp_path) as (broker, wire),
        contextlib.closing(
            Clients(tmp_path, wire.url, admin_port=broker.admin_port, seed=seed)
        ) as clients,
    ):
        clients.begin()
        for act in acts:
            clients.wait_for_work()
            time.sleep(chosen.uniform(0, FLOW_S))
            clients.ledger.note("fault", act)
            ACTS[act](wire, chosen)
        clients.wait_for_work()
        clients.drain()
        opened = wire.opened
        assert broker.stop() == 0, broker.last_words()
    found = checked(tmp_path, tmp_path / "data")
    print(found)
    assert not found["broken"], f"seed {seed}: {found}"
    assert found["events"]["fault"] == FAULTS
    assert opened > FAULTS // 2
    assert found["acked"] + found["dead_letters"] == len(FIRST) * found["records"]
    assert found["dead_letters"] > 0


@pytest.mark.long
def test_a_consumer_behind_a_dead_wire_is_given_up(tmp_path):
    """What a silent connection holds goes to another consumer, without any time for acks."""

    async def scene(broker, wire):
        producer = await make_producer(broker.url, topic=TOPIC)
        no_time_outs(broker, topic=TOPIC, subscription="s")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{wire.port}") as channel:
            methods = Methods(channel)
            made = await methods.subscribe(
                ConsumerRequest(
                    topic_name=TOPIC,
                    consumer_name="cut off",
                    subscription="s",
                    subscription_type=ConsumerRequest.Shared,
                )
            )
            stream = methods.receive(ReceiveRequest(consumer_id=made.consumer_id))
            await stream.initial_metadata()
            await producer.send(b"held")
            held = await stream.read()
            assert held.payload == b"held"
            wire.stall()
            reader = await make_reader(broker.url, topic=TOPIC, name="well", kind=SubType.SHARED)
            (again,) = await reader.take(1)
            await reader.close()
            await producer.close()
            wire.cut()
            wire.flow()
        return held.msg_id.topic_offset, again.msg_id.topic_offset, again.payload

    with contextlib.closing(Broker(tmp_path)) as broker:
        broker.start()
        broker.wait_ready()
        with Wire(broker.port) as wire:
            before, after, payload = asyncio.run(scene(broker, wire))
        assert broker.stop() == 0, broker.last_words()
    assert (before, payload) == (after, b"held")
