"""A broker in a process of its own, and what a measure asks of it: topics, producers, consumers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence

import attrs
import grpc

from bench.noop_servers import ROOT, Running
from frazil.serve.danube.proto import danube_admin_pb2 as admin
from frazil.serve.danube.proto import danube_pb2 as wire

CREATE = "/danube.ProducerService/CreateProducer"
SEND = "/danube.ProducerService/SendMessage"
SUBSCRIBE = "/danube.ConsumerService/Subscribe"
RECEIVE = "/danube.ConsumerService/ReceiveMessages"
ACK = "/danube.ConsumerService/Ack"
DISPATCH = "/danube_admin.TopicAdmin/SetSubscriptionDispatchConfig"
UNACKED_MAX = 10_000
SETTINGS = {"log.free_ratio_min": "0", "lake.default": "false"}
"""A disk full of other things must not stop a run, and a lake is another benchmark."""
STOP_S_MAX = 30
_DECODED = re.compile(r"^frazil_\w*decoded\w*(?:\{[^}]*\})? ([0-9.e+]+)$", re.MULTILINE)


@attrs.frozen
class World(Running):
    """A broker that runs; clients find it at its port."""

    admin_port: int
    http_port: int

    @property
    def url(self) -> str:
        """Return where clients connect."""
        return f"http://127.0.0.1:{self.port}"

    def send_body(self, topic: str, *, name: str = "producer-0", reliable: bool = True) -> bytes:
        """Make a producer, and its topic if need be; return it as the load generators take it."""
        asked = wire.ProducerRequest(
            request_id=1, producer_name=name, topic_name=topic, dispatch_strategy=int(reliable)
        )
        made = _ask(self.port, CREATE, asked, wire.ProducerResponse)
        return producer_body(topic, made.producer_id, name, self.url)

    def send_bodies(self, topics: Sequence[str]) -> list[bytes]:
        """Make a producer for each topic."""
        return [self.send_body(topic) for topic in topics]

    def producers(self, topic: str, count: int) -> list[bytes]:
        """Make so many producers of a topic."""
        return [self.send_body(topic, name=f"producer-{number}") for number in range(count)]

    def receive_body(self, topic: str, subscription: str, *, reliable: bool = True) -> bytes:
        """Subscribe from now on; return the request that opens the consumer's stream."""
        if reliable:
            self._widen(topic, subscription)
        asked = wire.ConsumerRequest(
            request_id=1,
            topic_name=topic,
            consumer_name=f"{subscription}-0",
            subscription=subscription,
        )
        made = _ask(self.port, SUBSCRIBE, asked, wire.ConsumerResponse)
        opening = wire.ReceiveRequest(request_id=2, consumer_id=made.consumer_id)
        return opening.SerializeToString()

    def _widen(self, topic: str, subscription: str) -> None:
        config = admin.SubscriptionDispatchConfig(max_unacked_messages=UNACKED_MAX)
        asked = admin.SetSubscriptionDispatchConfigRequest(
            topic=topic, subscription=subscription, dispatch_config=config
        )
        _ask(self.admin_port, DISPATCH, asked, admin.SubscriptionResponse)

    def decoded(self) -> float:
        """Return how many records were decoded for subscriptions."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/metrics") as page:
            found = _DECODED.search(page.read().decode())
        if found is None:
            raise RuntimeError("the metrics have no counter of decoded records")
        return float(found[1])


@contextlib.contextmanager
def running_broker(directory: str, **settings: str) -> Iterator[World]:
    """Start `frazil serve` on a directory, and stop it in good order."""
    environment = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "src")}
    command = [sys.executable, "-m", "frazil.cli", "--data", directory, "--output", "json"]
    for key, value in {**SETTINGS, **settings}.items():
        command += ["--set", f"{key}={value}"]
    command += ["serve", "--port", "0", "--admin-port", "0", "--http-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        try:
            assert child.stdout is not None
            facts = json.loads(child.stdout.readline())
            ports = [int(facts[key].rpartition(":")[2]) for key in ("url", "admin_url", "http_url")]
            yield World(ports[0], child.pid, *ports[1:])
        finally:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                child.kill()


def producer_body(topic: str, producer_id: int, name: str, url: str) -> bytes:
    """Return what all messages of a producer have: the rest is of each message."""
    identity = wire.MsgID(producer_id=producer_id, topic_name=topic, broker_addr=url)
    return wire.StreamMessage(msg_id=identity, producer_name=name).SerializeToString()


def _ask(port: int, path: str, request, reply):
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(
            path,
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )
        return call(request, timeout=60)
