"""The client of grpcio is served, over plain text and over TLS."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import sys
import time
import types

import grpc
import pytest

from frazil.serve.process import fastest_loop
from tests.integration.serve.grpc_world import assert_answers, eventually, serving
from tests.unit.serve.auth.certificates import write_certificate

pytestmark = pytest.mark.integration


@pytest.fixture(params=["plain", "tls"])
def world(request, tmp_path):
    tls = write_certificate(tmp_path) if request.param == "tls" else None
    with serving(tls=tls) as found:
        yield found


@pytest.fixture
def channel(world):
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_metadata_size", 1 << 20)]
    with world.channel(*options, ("grpc.absolute_max_metadata_size", 1 << 20)) as found:
        yield found


def failure(call, *arguments, **options):
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, timeout=60, **options)
    return caught.value.code(), caught.value.details()


def test_messages_of_all_sizes_come_back(channel):
    """From nothing to the largest message allowed, in both directions."""
    echo = channel.unary_unary("/t.T/Echo")
    for size in (0, 1, 1000, 16_379, 16_380, 65_536, 1 << 20, 4 << 20):
        message = bytes(range(256)) * (size // 256) + bytes(size % 256)
        assert echo(message, timeout=60) == message
    assert len(channel.unary_unary("/t.T/Large")(b"9000000", timeout=60)) == 9_000_000


def test_statuses_have_their_codes_and_texts(channel):
    """Too large, unknown, a bug of the handler, a deadline: each in its own words."""
    echo = channel.unary_unary("/t.T/Echo")
    text = "message too large, the maximum is 4194304 bytes"
    assert failure(echo, bytes((4 << 20) + 1)) == (grpc.StatusCode.OUT_OF_RANGE, text)
    unknown = failure(channel.unary_unary("/t.T/Nothing"), b"")
    assert unknown == (grpc.StatusCode.UNIMPLEMENTED, "unknown method")
    bug = failure(channel.unary_unary("/t.T/Bug"), b"secret")
    assert bug == (grpc.StatusCode.INTERNAL, "internal error")
    squeezed = failure(echo, bytes(5000), compression=grpc.Compression.Gzip)
    assert squeezed[0] == grpc.StatusCode.UNIMPLEMENTED
    assert echo(b"still here", timeout=60) == b"still here"


def test_metadata_of_any_size_arrives(channel, world):
    """Text, bytes, changing values, and more than fits one frame."""
    echo = channel.unary_unary("/t.T/Echo")
    for number in range(5):
        pairs = (("authorization", f"Bearer {number}"), ("k-bin", bytes([number, 255])))
        echo(b"", metadata=pairs, timeout=60)
        assert world.handlers.metadata[-1]["authorization"] == f"Bearer {number}"
    echo(b"", metadata=(("large", "v" * 30_000),), timeout=60)
    assert world.handlers.metadata[-1]["large"] == "v" * 30_000


def test_thousands_of_calls_at_once_get_their_own_answers(channel):
    """Calls beyond the limit of streams wait in the client; none is lost or mixed up."""
    echo = channel.unary_unary("/t.T/Echo")
    calls = [echo.future(b"%d" % number, timeout=60) for number in range(3000)]
    assert [call.result() for call in calls] == [b"%d" % number for number in range(3000)]


def test_answers_of_one_turn_leave_in_one_write_a_connection(world):
    """Answers to calls of several connections are one write a connection."""
    with world.channel() as first, world.channel() as second:
        holds = [channel.unary_unary("/t.T/Hold") for channel in (first, second)]
        calls = [holds[number % 2].future(b"", timeout=60) for number in range(64)]
        assert eventually(lambda: len(world.handlers.held) == 64)
        time.sleep(0.1)

        def answer_all():
            for call in world.handlers.held:
                call.ok(b"")
            before = world.server.counters.writes_total
            world.loop.call_soon(lambda: writes.append(world.server.counters.writes_total - before))

        writes = []
        world.run(answer_all)
        assert [call.result() for call in calls] == [b""] * 64
        assert writes == [2]


def test_a_deadline_ends_a_call_on_both_sides(channel, world):
    """The client hears DEADLINE_EXCEEDED, the handler that nobody waits."""
    hold = channel.unary_unary("/t.T/Hold")
    with pytest.raises(grpc.RpcError) as caught:
        hold(b"late", timeout=0.3)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert eventually(lambda: world.handlers.cancelled == [b"late"])


def test_coroutines_are_handlers_too(channel, world):
    """They answer with what they return, and are cancelled with their call."""
    slow = channel.unary_unary("/t.T/Slow")
    assert slow(b"0.01", timeout=60) == b"slept"
    assert failure(slow, b"never")[0] == grpc.StatusCode.INTERNAL
    call = slow.future(b"100", timeout=60)
    assert eventually(lambda: world.run(lambda: world.server.counters.calls_total) == 3)
    call.cancel()
    assert eventually(lambda: world.handlers.cancelled == [b"100"])


def test_a_stream_arrives_in_order(channel):
    """Every message once, then the status."""
    feed = channel.unary_stream("/t.T/Feed")
    numbers = [int(message[:10]) for message in feed(b"8000", timeout=60)]
    assert numbers == list(range(1, 8_001))


def test_a_cancelled_stream_notifies_its_handler(channel, world):
    """A consumer that goes away stops its stream."""
    call = channel.unary_stream("/t.T/Feed")(b"", timeout=60)
    assert int(next(call)[:10]) == 1
    call.cancel()
    assert eventually(lambda: world.handlers.cancelled == [b""])
    assert_answers(world)


def test_tls_without_http2_is_refused(tmp_path):
    """A client that does not agree on h2 is closed; one that speaks no TLS as well."""
    tls = write_certificate(tmp_path)
    with serving(tls=tls) as world:
        context = ssl.create_default_context(cafile=tls[0])
        plain = socket.create_connection((world.host, world.port), timeout=60)
        secured = context.wrap_socket(plain, server_hostname="localhost")
        with secured, contextlib.suppress(ConnectionResetError):
            assert secured.recv(100) == b""
        with socket.create_connection((world.host, world.port), timeout=60) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            data = b"x"
            while data:
                try:
                    data = client.recv(100)
                except ConnectionResetError:
                    break
        assert eventually(lambda: world.server.counters.connections == 0)
        assert_answers(world)


class FasterLoop(asyncio.SelectorEventLoop):
    """Stands for uvloop's, which may not be installed here."""


@pytest.mark.parametrize("is_there", [True, False])
def test_uvloop_is_used_where_it_is_installed_and_not_needed(monkeypatch, is_there):
    """The module of that name makes the loop; without one the standard library does."""
    module = types.SimpleNamespace(new_event_loop=FasterLoop) if is_there else None
    monkeypatch.setitem(sys.modules, "uvloop", module)
    loop = fastest_loop()()
    try:
        assert loop.run_until_complete(_one()) == 1
        assert isinstance(loop, FasterLoop) is is_there
    finally:
        loop.close()


async def _one():
    return 1
