"""What hostile, slow and silent clients cost: bounded memory, and nothing for the others."""

from __future__ import annotations

import resource
import socket
import time

import attrs
import pytest

from frazil.serve.h2 import frames as f
from frazil.serve.h2.limits import ServerLimits
from tests.integration.serve.grpc_world import RawClient, assert_answers, eventually, serving

pytestmark = pytest.mark.integration

QUICK = ServerLimits(
    tick_s=0.05, handshake_s=0.3, keepalive_s=0.3, keepalive_timeout_s=0.3, stall_s=0.5
)


@pytest.mark.parametrize("greeting", [b"", f.PREFACE[:10], f.PREFACE])
def test_a_client_that_never_greets_is_closed(greeting):
    """Half a greeting is none: the handshake has a time."""
    with serving(QUICK) as world, RawClient(world, greet=False) as client:
        client.send(greeting)
        assert client.wait_closed() is None
        assert eventually(lambda: world.server.counters.connections == 0)
        assert_answers(world)


def test_a_silent_client_is_asked_and_then_closed():
    """A dead consumer is found by a ping that nobody answers; its calls are cancelled."""
    with serving(QUICK) as world, RawClient(world) as client:
        client.send(client.call(1, "/t.T/Hold", b"dead"))
        assert client.wait(f.PING) is not None
        client.wait_closed()
        assert eventually(lambda: world.handlers.cancelled == [b"dead"])


def test_a_client_that_answers_pings_stays():
    """Silence with answered pings is no death."""
    patient = attrs.evolve(QUICK, keepalive_timeout_s=60)
    with serving(patient) as world, RawClient(world) as client:
        for _ in range(4):
            payload = client.wait(f.PING)
            assert payload is not None
            client.send(f.ping(payload, ack=True))
        assert world.server.counters.connections == 1


def test_a_reader_that_stops_holds_its_stream_back_and_no_other():
    """Its stream stops at the window, calls on the same connection are answered, and it goes on."""
    with serving() as world, RawClient(world) as client:
        client.send(client.call(1, "/t.T/Feed", b"2000"))
        received = 0
        for kind, _, sid, payload in client.frames():
            received += len(payload) if (kind, sid) == (f.DATA, 1) else 0
            if received == 65_535:
                break
        stopped = eventually(lambda: world.handlers.written or 0)
        time.sleep(0.2)
        assert world.handlers.written == stopped < 700
        client.send(f.window_update(0, 1000), client.call(3, "/t.T/Echo", b"hi"))
        assert any(sid == 3 for _, _, sid, _ in client.frames())
        client.send(f.window_update(0, 1 << 26), f.window_update(1, 1 << 26))
        for kind, flags, sid, payload in client.frames():
            received += len(payload) if (kind, sid) == (f.DATA, 1) else 0
            if sid == 1 and flags & f.END_STREAM and kind == f.HEADERS:
                break
        assert received == 2000 * 1029


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_a_client_that_never_reads_costs_no_memory():
    """With windows wide open and a full socket the stream stops; when it stalls it is closed."""
    wide = {f.INITIAL_WINDOW_SIZE: f.WINDOW_LARGEST}
    limits = attrs.evolve(QUICK, stall_s=2.5, keepalive_s=60)
    with serving(limits) as world, RawClient(world, settings=wide) as client:
        before = resident_bytes()
        client.send(f.window_update(0, 1 << 30), client.call(1, "/t.T/Feed"))
        assert eventually(lambda: world.handlers.written > 0)
        seen = -1
        while seen != world.handlers.written:
            seen = world.handlers.written
            time.sleep(0.2)
        assert seen < 25_000
        assert resident_bytes() - before < 40 << 20
        assert_answers(world)
        assert eventually(lambda: world.handlers.cancelled == [b""])


def test_reading_pauses_while_answers_are_not_read():
    """A client that asks and asks and never reads is not read from any more."""
    with serving() as world, RawClient(world) as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.socket.settimeout(1.0)
        client.send(f.window_update(0, 1 << 30), f.settings({f.INITIAL_WINDOW_SIZE: 1 << 30}))
        with pytest.raises(TimeoutError):
            for sid in range(1, 2_000_001, 2):
                client.send(client.call(sid, "/t.T/Large", b"16000"))
        counters = world.server.counters
        assert counters.reading_pauses_total >= 1
        assert counters.calls_total < 20_000
        assert_answers(world)


def test_reading_pauses_while_too_many_bytes_wait():
    """Requests whose answers take long are not taken without end; answers let them in again."""
    limits = ServerLimits(unanswered_bytes_max=100_000)
    with serving(limits) as world, RawClient(world) as client:
        calls = [client.call(sid, "/t.T/Hold", bytes(16_000)) for sid in range(1, 401, 2)]
        client.socket.settimeout(0.5)
        sent = 0
        with pytest.raises(TimeoutError):
            for call in calls * 100:
                client.send(call)
                sent += 1
        held = world.handlers.held
        assert 100_000 < world.run(lambda: world.server.unanswered) < 500_000
        assert len(held) < 40

        def answer_all():
            for call in held:
                call.ok(b"")

        before = len(held)
        world.run(answer_all)
        assert eventually(lambda: len(held) > before)


def test_a_cut_connection_cancels_its_calls():
    """Half-closed and reset sockets leave nothing behind."""
    with serving() as world:
        for how in ("close", "half", "reset"):
            client = RawClient(world)
            client.send(client.call(1, "/t.T/Hold", how.encode()))
            assert eventually(lambda: len(world.handlers.held) > len(world.handlers.cancelled))
            if how == "half":
                client.socket.shutdown(socket.SHUT_WR)
            elif how == "reset":
                linger = b"\1\0\0\0\0\0\0\0"
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            if how != "half":
                client.socket.close()
            assert eventually(lambda: len(world.handlers.held) == len(world.handlers.cancelled))
            assert world.handlers.cancelled[-1] == how.encode()
            client.socket.close()
        assert eventually(lambda: world.server.counters.connections == 0)
        assert world.server.unanswered == 0
