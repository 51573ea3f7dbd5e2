"""The wire that breaks breaks as it says."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from tests.integration.serve.wire_world import Wire

pytestmark = pytest.mark.integration
WAIT_S = 30


@contextlib.contextmanager
def echo():
    """Run a server that sends back what it gets, and `bye` at the end of it; yields its port."""
    ended = []

    def answer(connection):
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(1 << 16):
                connection.sendall(data)
            ended.append("eof")
            connection.sendall(b"bye")

    def listen():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        yield listener.getsockname()[1], ended
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(WAIT_S)


def read(connection, size):
    """Read so many bytes."""
    found = b""
    while len(found) < size:
        data = connection.recv(size - len(found))
        assert data, f"ended after {found!r}"
        found += data
    return found


def connect(wire):
    """Return a connection through the wire that has worked once."""
    connection = socket.create_connection(("127.0.0.1", wire.port), WAIT_S)
    connection.sendall(b"hello")
    assert read(connection, 5) == b"hello"
    return connection


def test_a_cut_resets_both_sides_and_new_connections_work():
    """The client sees a reset, and the next connection is whole."""
    with echo() as (port, ended), Wire(port) as wire:
        with connect(wire) as connection:
            assert wire.cut() == 1
            with pytest.raises(ConnectionResetError):
                connection.recv(1)
        connect(wire).close()
        assert wire.opened == 2
        assert len(ended) <= 1


def test_a_stalled_wire_keeps_everything_until_it_flows():
    """Nothing comes while the wire is stalled, and nothing is lost by it."""
    with echo() as (port, _), Wire(port) as wire, connect(wire) as connection:
        wire.stall()
        connection.sendall(b"patience")
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(WAIT_S)
        wire.flow()
        assert read(connection, 8) == b"patience"


def test_a_half_closed_wire_ends_one_direction_only():
    """The server hears the end of the client's words, and its own still arrive."""
    with echo() as (port, ended), Wire(port) as wire, connect(wire) as connection:
        wire.half_close("server")
        assert read(connection, 3) == b"bye"
        assert connection.recv(1) == b""
        assert ended == ["eof"]
