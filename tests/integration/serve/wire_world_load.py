"""Load on a broker whose memory is measured: a producer, fast readers, readers that stopped."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading

import grpc

from frazil.serve.danube.proto.danube_admin_pb2 import (
    PoisonPolicy,
    SetSubscriptionFailurePolicyRequest,
    SubscriptionFailurePolicy,
    SubscriptionResponse,
)
from frazil.serve.danube.proto.danube_pb2 import AckRequest, ConsumerRequest, ReceiveRequest
from tests.crash.broker_process import Broker, Peer
from tests.integration.serve.consuming_world import make_producer
from tests.integration.serve.wire_world_readers import Methods, number_of, payload_of

IN_FLIGHT = 8
TOPIC = "/default/fan"
SETTINGS = {"memory.enabled": "false", "memory.budget_bytes": 32 << 20}
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": str(16 << 10)}
"""Memory that held a payload goes back to the system when it is free.

Left to itself the C library keeps an amount that depends on what else was free at that moment.
"""
OPTIONS = [("grpc.max_receive_message_length", -1)]
LOOK_S = 0.005


@contextlib.contextmanager
def served(directory, *, is_small=True, **settings):
    """Run a broker with a small budget and no more memory than it uses, or with what is default."""
    chosen = {**SETTINGS, **settings} if is_small else settings
    variables = GIVE_BACK if is_small else {}
    with contextlib.closing(Broker(directory, settings=chosen, variables=variables)) as broker:
        broker.start()
        broker.wait_ready()
        yield broker
        assert broker.stop() == 0, broker.last_words()


class Peak:
    """The most memory that a broker has while this is entered, looked at again and again."""

    def __init__(self, broker):
        self._broker = broker
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.looks = 0
        self.bytes = 0

    def _look(self):
        while not self._over.wait(LOOK_S):
            self.bytes = max(self.bytes, self._broker.memory_bytes())
            self.looks += 1

    def __enter__(self):
        self.bytes = self._broker.memory_bytes()
        self._thread.start()
        return self

    def __exit__(self, *_error):
        self._over.set()
        self._thread.join()


def measured(broker, fast, count, sending, *, looks_min):
    """Publish while the `count` readers of `fast` read all; return the most memory meanwhile."""
    with Peak(broker) as peak:
        asyncio.run(sending)
        answer = json.loads(fast.process.stdout.readline())
    fast.close()
    assert answer["whole"] == count, answer
    assert peak.looks > looks_min
    return peak.bytes


async def publish(url, *, first, count, size, reliable=True):
    """Publish numbered records with the published client, some at once, answered in order."""
    producer = await make_producer(url, topic=TOPIC, reliable=reliable)
    for begin in range(first, first + count, IN_FLIGHT):
        numbers = range(begin, min(begin + IN_FLIGHT, first + count))
        await asyncio.gather(*(producer.send(payload_of(each, size)) for each in numbers))
    await producer.close()


def subscribed(broker, subscription):
    """Subscribe, and leave it at that."""
    with grpc.insecure_channel(f"127.0.0.1:{broker.port}") as channel:
        return Methods(channel).subscribe(request_for(subscription))


def request_for(subscription):
    """Return the request of a subscription's one consumer."""
    return ConsumerRequest(topic_name=TOPIC, consumer_name="c", subscription=subscription)


def no_time_outs(broker, *, topic, subscription):
    """Let a subscription's records wait for their acks for ever, however long a test takes."""
    with grpc.insecure_channel(f"127.0.0.1:{broker.admin_port}") as channel:
        call = channel.unary_unary(
            "/danube_admin.TopicAdmin/SetSubscriptionFailurePolicy",
            SetSubscriptionFailurePolicyRequest.SerializeToString,
            SubscriptionResponse.FromString,
        )
        policy = SubscriptionFailurePolicy(max_redelivery_count=5, poison_policy=PoisonPolicy.Block)
        request = SetSubscriptionFailurePolicyRequest(
            topic=topic, subscription=subscription, failure_policy=policy
        )
        assert call(request).success


@contextlib.contextmanager
def stopped(broker, subscription):
    """Subscribe and open a stream that nobody reads; yields its calls and the stream."""
    no_time_outs(broker, topic=TOPIC, subscription=subscription)
    with grpc.insecure_channel(f"127.0.0.1:{broker.port}", options=OPTIONS) as channel:
        methods = Methods(channel)
        made = methods.subscribe(request_for(subscription))
        stream = methods.receive(ReceiveRequest(consumer_id=made.consumer_id))
        stream.initial_metadata()
        yield methods, stream
        stream.cancel()


def read_all(methods, stream, subscription, count):
    """Read and ack what a stopped reader has missed; return offsets and numbers."""
    found = []
    for message in stream:
        found.append((message.msg_id.topic_offset, number_of(message.payload)))
        methods.ack(AckRequest(msg_id=message.msg_id, subscription_name=subscription))
        if len(found) == count:
            return found
    return found


def readers(broker, count, records, *, name="fast", acks=True):
    """Start a process of readers; it has opened all streams when this returns."""
    module = "tests.integration.serve.wire_world_readers"
    said = "acks" if acks else "none"
    return Peer(module, str(broker.port), TOPIC, name, str(count), str(records), said)
