"""What clients do around the death of a broker, one thing at a time."""

from __future__ import annotations

import contextlib

import grpc
import pytest

from frazil.serve.danube.proto.danube_pb2 import (
    AckRequest,
    AckResponse,
    ConsumerRequest,
    ConsumerResponse,
    MsgID,
    ProducerRequest,
    ProducerResponse,
    ReceiveRequest,
    StreamMessage,
)
from tests.crash.broker_process import WAIT_S, Broker, Forks

pytestmark = pytest.mark.integration

TOPIC = "/default/restarts"
KINDS = dict(ConsumerRequest.SubscriptionType.items())
PRODUCERS, CONSUMERS = "/danube.ProducerService", "/danube.ConsumerService"


class Caller:
    """Plain calls on one connection to a broker."""

    def __init__(self, broker):
        self.channel = grpc.insecure_channel(f"127.0.0.1:{broker.port}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()

    def ask(self, path, request, reply):
        """Make a call, as soon as the broker is there, and return its reply."""
        call = self.channel.unary_unary(path, type(request).SerializeToString, reply.FromString)
        return call(request, wait_for_ready=True, timeout=WAIT_S)

    def publish(self, count):
        """Publish so many records, by rising number."""
        request = ProducerRequest(topic_name=TOPIC, producer_name="p", dispatch_strategy=1)
        made = self.ask(f"{PRODUCERS}/CreateProducer", request, ProducerResponse)
        for number in range(count):
            message = StreamMessage(
                msg_id=MsgID(producer_id=made.producer_id, topic_name=TOPIC),
                payload=b"%d" % number,
                producer_name="p",
            )
            self.ask(f"{PRODUCERS}/SendMessage", message, StreamMessage)

    def subscribe(self, kind):
        """Return the consumer's id."""
        request = ConsumerRequest(
            topic_name=TOPIC, consumer_name="c", subscription="s", subscription_type=KINDS[kind]
        )
        return self.ask(f"{CONSUMERS}/Subscribe", request, ConsumerResponse).consumer_id

    def receive(self, consumer_id):
        """Return the consumer's stream."""
        call = self.channel.unary_stream(
            f"{CONSUMERS}/ReceiveMessages",
            ReceiveRequest.SerializeToString,
            StreamMessage.FromString,
        )
        request = ReceiveRequest(consumer_id=consumer_id)
        return call(request, wait_for_ready=True, timeout=WAIT_S)

    def ack(self, message):
        """Ack a record."""
        self.ack_offset(message.msg_id.topic_offset)

    def ack_offset(self, offset):
        """Ack a record that may never have come."""
        place = MsgID(topic_name=TOPIC, topic_offset=offset)
        request = AckRequest(msg_id=place, subscription_name="s")
        self.ask(f"{CONSUMERS}/Ack", request, AckResponse)


@pytest.fixture(scope="module")
def forks():
    """The process that brokers are forks of."""
    with contextlib.closing(Forks()) as made:
        yield made


@pytest.fixture
def broker(tmp_path, forks):
    """A broker that is ready."""
    with contextlib.closing(Broker(tmp_path, forks=forks)) as made:
        made.start()
        made.wait_ready()
        yield made


def take(stream, count):
    """Return the next records of a stream."""
    return [next(stream) for _ in range(count)]


def restart(broker):
    """Kill the broker; the next life is ready when this returns."""
    broker.kill()
    broker.start()
    broker.wait_ready()


@pytest.mark.parametrize("kind", KINDS)
def test_acks_that_come_before_the_stream_count(broker, kind):
    """A consumer that acks what the last life gave it does not get that again from the next."""
    with Caller(broker) as caller:
        caller.publish(0)
        consumer = caller.subscribe(kind)
        stream = caller.receive(consumer)
        caller.publish(6)
        messages = take(stream, 1 if kind == "KeyShared" else 6)
        offsets = [message.msg_id.topic_offset for message in messages]
        assert offsets == list(range(len(messages)))
    restart(broker)
    with Caller(broker) as caller:
        for message in messages[:3]:
            caller.ack(message)
        again = next(caller.receive(consumer))
        assert again.msg_id.topic_offset == min(3, len(messages))


@pytest.mark.parametrize("kind", KINDS)
def test_acks_beyond_the_head_settle_nothing(broker, kind):
    """Acks of records that do not exist yet are answered, after a kill too, and lose none."""
    with Caller(broker) as caller:
        caller.publish(0)
        consumer = caller.subscribe(kind)
        caller.publish(1)
        caller.ack_offset(1)
    restart(broker)
    with Caller(broker) as caller:
        caller.ack_offset(2)
        caller.publish(2)
        assert take_and_ack(caller, caller.receive(consumer), 3) == [0, 1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_the_oldest_unacked_record_comes_first(broker, kind):
    """After a kill the stream of a known id goes on at the first record without an ack."""
    with Caller(broker) as caller:
        caller.publish(0)
        consumer = caller.subscribe(kind)
        stream = caller.receive(consumer)
        caller.publish(6)
        first, second = take_and_ack(caller, stream)
        assert (first, second) == (0, 1)
    restart(broker)
    with Caller(broker) as caller:
        stream = caller.receive(consumer)
        assert take_and_ack(caller, stream) == [2, 3]


def take_and_ack(caller, stream, count=2):
    """Receive and ack so many records; return their offsets."""
    found = []
    for _ in range(count):
        message = next(stream)
        caller.ack(message)
        found.append(message.msg_id.topic_offset)
    return found
