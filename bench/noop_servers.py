"""Servers without an engine: Frazil's own, grpcio's with threads, grpcio's on asyncio.

Each answers a call that does nothing, and a stream of as many messages as its request says. The own
one also relays what a producer of the published client sends to a consumer of it, so that the
client's own time can be measured.
`python bench/noop_servers.py own|sync|aio` prints the port and serves until it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import struct
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import attrs

KINDS = ("own", "sync", "aio")
PATH = "/bench.Noop/Call"
STREAM_PATH = "/bench.Noop/Stream"
SHARED_PATH = "/bench.Noop/Shared"
"""A stream whose messages are made once for all clients; the own server has it."""
ANSWER = bytes(10)
TOPIC = "/default/bench"
PRODUCER = "producer-0"
PRODUCER_ID = 1 << 50
TIME_US = 1_800_000_000_000_000
PAYLOAD_BYTES = 1024
_THREADS = 8
_TICKS = os.sysconf("SC_CLK_TCK")
_REQUEST = struct.Struct(">Q")
_PREFIX = struct.Struct(">BI")
_SHARED = 10_000
"""As many messages as a window holds: fewer would stay in the processor's caches."""
_BATCH = 64
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@attrs.frozen
class Running:
    """A server in a process of its own."""

    port: int
    process: int

    def cpu_seconds(self) -> float:
        """Return the CPU time the process has used, in user and system mode."""
        with open(f"/proc/{self.process}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def switches(self) -> int:
        """Return the context switches of all threads of the process."""
        found = 0
        for task in os.listdir(f"/proc/{self.process}/task"):
            with open(f"/proc/{self.process}/task/{task}/status", encoding="ascii") as file:
                found += sum(int(line.split()[1]) for line in file if "ctxt_switches" in line)
        return found

    def resident_bytes(self) -> int:
        """Return how much memory the process has in RAM now."""
        with open(f"/proc/{self.process}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def running(kind: str, *libraries: str) -> Iterator[Running]:
    """Start a server, and end it afterwards; `libraries` are directories that it also has."""
    paths = os.pathsep.join((os.path.join(ROOT, "src"), *libraries))
    environment = {**os.environ, "PYTHONPATH": paths}
    command = [sys.executable, os.path.abspath(__file__), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        try:
            assert child.stdout is not None
            yield Running(int(child.stdout.readline()), child.pid)
        finally:
            child.kill()


@contextlib.contextmanager
def installed(package: str) -> Iterator[str]:
    """Install a package into a directory of its own: the environment itself stays as users have it."""
    with tempfile.TemporaryDirectory() as directory:
        install = (sys.executable, "-m", "pip", "install", "--quiet", "--target", directory)
        subprocess.run([*install, package], check=True)
        yield directory


def stream_request(messages: int, subscription: str) -> bytes:
    """Return a stream's request."""
    return _REQUEST.pack(messages) + subscription.encode()


def main(kind: str) -> None:
    {"own": _own, "sync": _sync, "aio": _aio}[kind]()


# -- Frazil's own --------------------------------------------------------------------------------


def _own() -> None:
    from frazil.serve.grpc.router import Router, Stream, Unary
    from frazil.serve.grpc.server import Server
    from frazil.serve.process import fastest_loop

    def answer(call, _message):
        call.ok(ANSWER)

    async def serve() -> None:
        routes = {PATH: Unary(answer), STREAM_PATH: Stream(_fresh), SHARED_PATH: Stream(_shared())}
        router = Router(routes)
        server = Server(router)
        port = (await server.start("127.0.0.1", 0))[1]
        router.routes = {**routes, **_relaying(f"http://127.0.0.1:{port}")}
        print(port, flush=True)
        await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        runner.run(serve())


def _encoder():
    from frazil.serve.danube.messages import DeliveryEncoder

    return DeliveryEncoder(topic_name=TOPIC, broker_addr="http://127.0.0.1:6650")


@functools.cache
def _distinct() -> list:
    """Return messages like those of the load: each has a payload, time and attribute of its own."""
    from frazil.schema import Message

    return [
        Message(
            os.urandom(PAYLOAD_BYTES),
            None,
            {"number": str(number)},
            TIME_US + 1000 * number,
            PRODUCER,
            PRODUCER_ID,
            None,
            None,
        )
        for number in range(_SHARED)
    ]


def _fresh(call, request: bytes) -> None:
    """Stream messages that are put together one by one, as a broker does."""
    encode, some = _encoder().body, _distinct()
    _pump(
        call, request, lambda first, end: [encode(n, some[n % _SHARED]) for n in range(first, end)]
    )


def _shared():
    encode = _encoder().body
    bodies = [encode(number + (1 << 15), each) for number, each in enumerate(_distinct())]

    def stream(call, request: bytes) -> None:
        """Stream messages that are there already."""
        _pump(call, request, lambda first, end: [bodies[n % _SHARED] for n in range(first, end)])

    return stream


def _pump(call, request: bytes, bodies) -> None:
    from frazil.serve.danube.messages import subscription_field

    (count,) = _REQUEST.unpack_from(request)
    name = subscription_field(request[_REQUEST.size :].decode())
    at = 1

    def write() -> None:
        nonlocal at
        while at <= count:
            end = min(at + _BATCH, count + 1)
            heads = ((_PREFIX.pack(0, len(body) + len(name)), body) for body in bodies(at, end))
            data = b"".join(head + name + body for head, body in heads)
            at = end
            if not call.write(data):
                return

    call.on_ready = write
    write()


def _discovery(url: str):
    """Return the look-ups of a broker that has every topic, as a whole."""
    from frazil.serve.danube.proto import danube_pb2 as wire
    from frazil.serve.grpc.router import Unary

    def look_up(call, message):
        asked = wire.TopicLookupRequest.FromString(message)
        kind = wire.TopicLookupResponse.LookupType.Connect
        found = wire.TopicLookupResponse(
            request_id=asked.request_id, response_type=kind, connect_url=url, broker_url=url
        )
        call.ok(found.SerializeToString())

    def parts(call, message):
        asked = wire.TopicLookupRequest.FromString(message)
        found = wire.TopicPartitionsResponse(request_id=asked.request_id, partitions=[asked.topic])
        call.ok(found.SerializeToString())

    return {
        "/danube.Discovery/TopicLookup": Unary(look_up),
        "/danube.Discovery/TopicPartitions": Unary(parts),
    }


def _relaying(url: str):
    """Return what a producer and a consumer of the published client need: a relay without a log.

    A message is answered, and given to the consumer that opened its stream last, or to the next
    one.
    """
    from frazil.serve.danube.messages import parse_send, request_id_reply
    from frazil.serve.danube.proto import danube_pb2 as wire
    from frazil.serve.grpc.router import Stream, Unary

    consumers: list = []
    waiting: deque[bytes] = deque()
    offsets = itertools.count(1)

    def create(call, message):
        asked = wire.ProducerRequest.FromString(message)
        made = wire.ProducerResponse(
            request_id=asked.request_id,
            producer_id=PRODUCER_ID,
            producer_name=asked.producer_name,
        )
        call.ok(made.SerializeToString())

    def send(call, message):
        call.ok(request_id_reply(parse_send(message)[0]))
        sent = wire.StreamMessage.FromString(message)
        sent.msg_id.topic_offset, sent.subscription_name = next(offsets), "s"
        data = sent.SerializeToString()
        waiting.append(_PREFIX.pack(0, len(data)) + data)
        give()

    def give():
        while consumers and waiting:
            consumers[-1].write(waiting.popleft())

    def subscribe(call, message):
        asked = wire.ConsumerRequest.FromString(message)
        made = wire.ConsumerResponse(
            request_id=asked.request_id, consumer_id=1, consumer_name=asked.consumer_name
        )
        call.ok(made.SerializeToString())

    def ack(call, message):
        call.ok(request_id_reply(wire.AckRequest.FromString(message).request_id))

    def receive(call, _message):
        call.on_cancel = lambda: consumers.remove(call)
        consumers.append(call)
        give()

    return {
        **_discovery(url),
        "/danube.ProducerService/CreateProducer": Unary(create),
        "/danube.ProducerService/SendMessage": Unary(send),
        "/danube.ConsumerService/Subscribe": Unary(subscribe),
        "/danube.ConsumerService/ReceiveMessages": Stream(receive),
        "/danube.ConsumerService/Ack": Unary(ack),
        "/danube.HealthCheck/HealthCheck": Unary(lambda call, _message: call.ok(b"")),
    }


# -- grpcio --------------------------------------------------------------------------------------


def _handlers(method, stream):
    """Return grpcio's form of a router, with messages as bytes."""
    import grpc

    _, service, name = PATH.split("/")
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(method),
        STREAM_PATH.rpartition("/")[2]: grpc.unary_stream_rpc_method_handler(stream),
    }
    return grpc.method_handlers_generic_handler(service, handlers)


def _messages(request: bytes) -> Iterator[bytes]:
    """Build the messages of a stream one by one, as a server on grpcio has to."""
    from frazil.serve.danube.proto.danube_pb2 import MsgID, StreamMessage

    (count,) = _REQUEST.unpack_from(request)
    name, payload = request[_REQUEST.size :].decode(), os.urandom(PAYLOAD_BYTES)
    for number in range(1, count + 1):
        yield StreamMessage(
            msg_id=MsgID(
                producer_id=PRODUCER_ID,
                topic_name=TOPIC,
                broker_addr="http://127.0.0.1:6650",
                topic_offset=number,
            ),
            payload=payload,
            publish_time=TIME_US // 1000 + number,
            producer_name=PRODUCER,
            subscription_name=name,
            attributes={"number": str(number)},
        ).SerializeToString()


def _sync() -> None:
    import grpc

    def stream(request, _context):
        yield from _messages(request)

    server = grpc.server(ThreadPoolExecutor(_THREADS))
    handlers = _handlers(lambda _message, _context: ANSWER, stream)
    server.add_generic_rpc_handlers((handlers,))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    threading.Event().wait()


def _aio() -> None:
    import grpc.aio

    async def answer(_message, _context):
        return ANSWER

    async def stream(request, context):
        for message in _messages(request):
            await context.write(message)

    async def serve() -> None:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((_handlers(answer, stream),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        print(port, flush=True)
        await server.wait_for_termination()

    asyncio.run(serve())


if __name__ == "__main__":
    main(sys.argv[1])
