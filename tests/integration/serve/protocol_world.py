"""A `frazil serve` process, asked row by row of a table that follows the page of the protocol.

A row is one call in one situation: the page's section, the call, what is asked, and the answer as
the page has it, code and text or every field of the reply. Codes and texts are written out here and
in the tables and are never taken from the product: the page is the specification.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import grpc

from frazil.serve.danube.proto import danube_admin_pb2 as admin
from frazil.serve.danube.proto import danube_pb2 as wire
from frazil.serve.danube.proto import danube_schema_pb2 as schema
from tests.support.few import FEW_COMMAND
from tests.support.rpcs import RPCS, Port

SECONDS_MAX = 60
STEP_S = 0.01
ID_MAX = 1 << 53
ASKED = 7
"""The request id of every row; it comes back where the reply has one."""
READY = '{"event": "ready"'
SETTINGS = {
    "log.ballast_bytes": 0,
    "log.free_bytes_min": 0,
    "log.free_ratio_min": 0,
    "lake.default": "false",
}
LIMITS = {
    "topics.message_bytes_max": 2000,
}
FEW = {"PRODUCERS_MAX": 2, "CONSUMERS_MAX": 3, "SUBSCRIPTIONS_MAX": 3, "DRAIN_S": 5.0}
"""So small that every limit is reached by a few calls."""
CALLS = {f"{rpc.service.rpartition('.')[2]}.{rpc.name}": rpc for rpc in RPCS.values()}
OK = grpc.StatusCode.OK
EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)
OBJECT = b'{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}'
INVALID_NAME = (
    "The topic: {name} has an invalid format, should be: /namespace_name/topic_name"  # the page's
)
TAKEN = (
    "Not able to subscribe to the topic {s.topic} due to Not allowed to add the Consumer: {name}, "
    "the Exclusive subscription can't be shared with other consumers"
)


# -- the process -----------------------------------------------------------------------------------


class ServeProcess:
    """A broker as its users start it; `facts` is the line that it prints when clients are served."""

    def __init__(self, directory, *, ports=(0, 0, 0), **settings):
        self.directory = directory
        pairs = {**SETTINGS, **settings}
        given = [word for key, value in pairs.items() for word in ("--set", f"{key}={value}")]
        names = ("--port", "--admin-port", "--http-port")
        places = [word for name, port in zip(names, ports, strict=True) for word in (name, port)]
        command = [sys.executable, "-c", FEW_COMMAND, json.dumps(FEW), "serve"]
        command += ["--data", directory / "data", *places, *given, "--output", "json"]
        self.errors = directory / "stderr"
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [str(word) for word in command],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        line = self.process.stdout.readline()
        assert line.startswith(READY), (line, self.errors.read_text())
        self.facts = json.loads(line)
        self.url = self.facts["url"]

    @property
    def ports(self):
        """Where it listens, for a next life in the same place."""
        return [
            int(self.facts[name].rpartition(":")[2]) for name in ("url", "admin_url", "http_url")
        ]

    def end(self, number=signal.SIGTERM):
        """End this life; return the exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self):
        """Wait for the end; return the exit code."""
        code = self.process.wait(SECONDS_MAX)
        self.process.stdout.close()
        return code

    def close(self):
        """Leave no process behind."""
        if self.process.poll() is None:
            self.process.kill()
        self.wait()


@contextlib.contextmanager
def serving(directory, **settings):
    """Run a broker until the end of the block."""
    directory.mkdir(parents=True, exist_ok=True)
    process = ServeProcess(directory, **settings)
    try:
        yield process
    finally:
        process.close()


def wait_until(holds):
    """Wait for a condition; AssertionError if it does not come."""
    deadline = time.monotonic() + SECONDS_MAX
    while not (found := holds()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(STEP_S)
    return found


# -- calls -----------------------------------------------------------------------------------------


class Refusal(Exception):
    """How a call failed: code and text."""

    def __init__(self, error):
        self.code, self.text = error.code(), error.details()
        super().__init__(f"{self.code}: {self.text}")


class Wire:
    """Both ports of a broker, asked with plain gRPC and the generated messages."""

    def __init__(self, process, *, credentials=None):
        self.process = process
        options = [("grpc.use_local_subchannel_pool", 1)]
        urls = {Port.DATA: process.facts["url"], Port.ADMIN: process.facts["admin_url"]}
        self.channels = {}
        for port, url in urls.items():
            target = url.partition("://")[2]
            self.channels[port] = (
                grpc.insecure_channel(target, options)
                if credentials is None
                else grpc.secure_channel(target, credentials, options)
            )

    def ask(self, name, request, *, port=None, metadata=()):
        """Return the reply of a call; Refusal if it fails."""
        rpc = CALLS[name]
        port = min(rpc.ports) if port is None else port
        call = self.channels[port].unary_unary(
            rpc.path, lambda message: message.SerializeToString(), rpc.reply.FromString
        )
        try:
            return call(request, timeout=SECONDS_MAX, metadata=metadata)
        except grpc.RpcError as error:
            raise Refusal(error) from error

    def stream(self, consumer_id, metadata=()):
        """Open a consumer's stream; the headers have come on return."""
        rpc = CALLS["ConsumerService.ReceiveMessages"]
        call = self.channels[Port.DATA].unary_stream(
            rpc.path, lambda message: message.SerializeToString(), rpc.reply.FromString
        )
        request = wire.ReceiveRequest(request_id=ASKED, consumer_id=consumer_id)
        found = call(request, timeout=SECONDS_MAX, metadata=metadata)
        found.initial_metadata()
        return found

    def status(self, path, *, port, data=b"", metadata=()):
        """Return how a call of bytes to a path ends; a stream that opens is OK."""
        rpc = RPCS.get(path)
        channel = self.channels[port]
        try:
            if rpc is not None and rpc.is_stream:
                call = channel.unary_stream(path)(data, timeout=SECONDS_MAX, metadata=metadata)
                call.initial_metadata()
                if not call.is_active():
                    raise call
                call.cancel()
            else:
                channel.unary_unary(path)(data, timeout=SECONDS_MAX, metadata=metadata)
        except grpc.RpcError as error:
            return error.code(), error.details()
        return OK, ""

    def close(self):
        for channel in self.channels.values():
            channel.close()


# -- rows ------------------------------------------------------------------------------------------


class Fails(NamedTuple):
    """The status that a row ends with. `text` is the whole of it, or with dots its beginning.

    `{s.topic}` and the like stand for what the row's scene has.
    """

    code: grpc.StatusCode
    text: str


class Gives(dict):
    """The reply of a row: every field, each a value or a function of scene and value."""


ABSENT = None
"""A field with presence that is not there."""


class Row(NamedTuple):
    """One call in one situation."""

    page: str
    rpc: str
    situation: str
    request: object
    """Makes the request, after it has brought the situation about."""
    answer: Fails | Gives

    @property
    def id(self):
        words = re.sub(r"[^\w]+", "-", self.situation).strip("-")
        return f"{self.page}:{self.rpc}:{words}"


_numbers = itertools.count()


class Scene:
    """What one row is about: a topic and a subject of its own, and how to bring situations about."""

    def __init__(self, connection, port=None):
        number = next(_numbers)
        self.wire = connection
        self.port = port
        self.url = connection.process.facts["advertised_url"]
        self.topic = f"/default/row-{number}"
        self.subject = f"subject-{number}"
        self.name = f"name-{number}"
        self.producer_id = self.consumer_id = self.schema_id = 0
        self.before_s = int(time.time())
        self.streams = []

    def ask(self, name, request):
        return self.wire.ask(name, request)

    # -- topics and producers

    def made(self, *, topic=None, is_reliable=True, partitions=0, subject=None):
        """Make a topic, or one in parts; return its name."""
        topic = topic or self.topic
        facts = {"dispatch_strategy": int(is_reliable), "schema_subject": subject}
        if partitions:
            request = admin.PartitionedTopicRequest(base_name=topic, partitions=partitions, **facts)
            self.ask("TopicAdmin.CreatePartitionedTopic", request)
        else:
            self.ask("TopicAdmin.CreateTopic", admin.NewTopicRequest(name=topic, **facts))
        return topic

    def deleted(self, topic=None):
        self.ask("TopicAdmin.DeleteTopic", admin.TopicRequest(name=topic or self.topic))

    def producer(self, name="p", *, topic=None, is_reliable=True, **more):
        """Return a request for a producer."""
        return wire.ProducerRequest(
            request_id=ASKED,
            producer_name=name,
            topic_name=topic or self.topic,
            dispatch_strategy=int(is_reliable),
            **more,
        )

    def producer_of(self, topic):
        """Return a request for a producer of a topic, whatever its name."""
        return wire.ProducerRequest(request_id=ASKED, producer_name="p", topic_name=topic)

    def has_producer(self, name="p", **more):
        """Have a producer; return its id."""
        request = self.producer(name, **more)
        self.producer_id = self.ask("ProducerService.CreateProducer", request).producer_id
        return self.producer_id

    def record(self, payload=b"x", *, topic=None, producer="p", **more):
        """Return a record of the producer that there is."""
        identity = wire.MsgID(producer_id=self.producer_id, topic_name=topic or self.topic)
        return wire.StreamMessage(
            request_id=ASKED,
            msg_id=identity,
            payload=payload,
            publish_time=int(time.time() * 1000),
            producer_name=producer,
            **more,
        )

    def sent(self, *payloads, **more):
        """Publish records, by a producer that is made if need be."""
        if not self.producer_id:
            self.has_producer()
        for payload in payloads:
            self.ask("ProducerService.SendMessage", self.record(payload, **more))

    # -- consumers

    def consumer(self, name="c", *, subscription="s", kind=EXCLUSIVE, topic=None, filters=()):
        """Return a request for a consumer."""
        return wire.ConsumerRequest(
            request_id=ASKED,
            topic_name=topic or self.topic,
            consumer_name=name,
            subscription=subscription,
            subscription_type=kind,
            key_filters=filters,
        )

    def has_consumer(self, name="c", **more):
        """Have a consumer of a topic, which is made if need be; return its id."""
        with contextlib.suppress(Refusal):
            self.made()
        found = self.ask("ConsumerService.Subscribe", self.consumer(name, **more))
        self.consumer_id = found.consumer_id
        return self.consumer_id

    def stream(self, consumer_id=None):
        """Open the stream of a consumer; it is cancelled at the end of the row."""
        found = self.wire.stream(consumer_id or self.consumer_id)
        self.streams.append(found)
        return found

    def delivered(self, *payloads, **more):
        """Have a consumer that was sent records; return what it received."""
        self.has_consumer(**more)
        stream = self.stream()
        self.sent(*payloads)
        return [next(stream) for _ in payloads]

    def ack(self, offset=0, *, topic=None, subscription="s"):
        identity = wire.MsgID(topic_name=topic or self.topic, topic_offset=offset)
        return wire.AckRequest(request_id=ASKED, msg_id=identity, subscription_name=subscription)

    def nack(self, offset=0, *, topic=None, subscription="s", **more):
        identity = wire.MsgID(topic_name=topic or self.topic, topic_offset=offset)
        return wire.NackRequest(
            request_id=ASKED, msg_id=identity, subscription_name=subscription, **more
        )

    def health(self, client, identity):
        return wire.HealthCheckRequest(request_id=ASKED, client=client, id=identity)

    def is_closed(self, client, identity):
        """Return whether a health check answers CLOSE."""
        return self.ask("HealthCheck.HealthCheck", self.health(client, identity)).status == 1

    # -- schemas

    def definition(self, data=OBJECT, *, kind="json_schema", subject=None, **more):
        """Return a request that registers a schema."""
        return schema.RegisterSchemaRequest(
            subject=subject or self.subject, schema_type=kind, schema_definition=data, **more
        )

    def registered(self, *definitions, **more):
        """Have versions of the subject; return its id."""
        for data in definitions or (OBJECT,):
            found = self.ask("SchemaRegistry.RegisterSchema", self.definition(data, **more))
            self.schema_id = found.schema_id
        return self.schema_id

    def configured(self, policy="enforce", *, is_checked=False):
        """Have a topic with a producer, whose records are checked against the subject."""
        self.registered()
        self.has_producer()
        request = schema.ConfigureTopicSchemaRequest(
            topic_name=self.topic,
            schema_subject=self.subject,
            validation_policy=policy,
            enable_payload_validation=is_checked,
        )
        self.ask("SchemaRegistry.ConfigureTopicSchema", request)

    # -- the answer

    def check(self, row):
        """Ask, and compare the answer with the row's."""
        try:
            request = row.request(self)
            if isinstance(row.answer, Fails):
                self._check_refusal(row, request)
            else:
                self._check_reply(row.answer, self._reply(row.rpc, request))
        finally:
            for stream in self.streams:
                stream.cancel()

    def _reply(self, name, request):
        if CALLS[name].is_stream:
            return next(self.stream(request.consumer_id))
        return self.wire.ask(name, request, port=self.port)

    def _check_refusal(self, row, request):
        try:
            reply = self._reply(row.rpc, request)
        except Refusal as error:
            code, text = error.code, error.text
        except grpc.RpcError as error:
            code, text = error.code(), error.details()
        else:
            raise AssertionError(f"it was not refused: {reply}")
        wanted = row.answer.text.format(s=self)
        assert code is row.answer.code, (code, text)
        if wanted.endswith("…"):
            assert text.startswith(wanted[:-1]), text
        else:
            assert text == wanted

    def _check_reply(self, wanted, reply):
        fields = {field.name for field in reply.DESCRIPTOR.fields}
        assert set(wanted) == fields, "the row names every field of the reply"
        for name, value in wanted.items():
            found = getattr(reply, name)
            if reply.DESCRIPTOR.fields_by_name[name].is_repeated:
                found = dict(found) if hasattr(found, "keys") else list(found)
            if value is ABSENT:
                assert not reply.HasField(name), name
            elif callable(value):
                assert value(self, found), (name, found)
            else:
                assert found == value, name


def is_id(_scene, value):
    """Ids are positive in every language, and exact where numbers are doubles."""
    return 1 <= value < ID_MAX
