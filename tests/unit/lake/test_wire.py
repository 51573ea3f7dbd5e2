"""Messages between engine and worker: framed, versioned; junk is another error than the end."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.errors import Closed, CorruptionError, InvalidRequest
from frazil.lake import wire
from frazil.lake.wire import Answer, Request, decode, encode, receive, send

MESSAGES = [
    Request(7, "commit", {"plan": {"id": "x", "parts": [1, 2]}}),
    Request(1, "ping"),
    Answer(7, "progress", {"step": "looked"}),
    Answer(7, "failed", error="conflict", message="table is another's"),
]


@pytest.fixture
def pair():
    """Two ends of a socket."""
    one, two = socket.socketpair()
    yield one, two
    one.close()
    two.close()


def test_messages_arrive_in_order_and_equal(pair):
    """What is received equals what was sent, however it is cut on its way."""
    one, two = pair
    for message in MESSAGES:
        send(one, message)
    assert [receive(two) for _ in MESSAGES] == MESSAGES
    for byte in encode(MESSAGES[0]):
        one.sendall(bytes([byte]))
    assert receive(two) == MESSAGES[0]


def test_the_end_of_the_other_side_is_an_error(pair):
    """A closed socket is `Closed`, before a message and within one, for both directions."""
    one, two = pair
    one.sendall(encode(MESSAGES[0])[:9])
    one.close()
    with pytest.raises(Closed):
        receive(two)
    with pytest.raises(Closed):
        receive(one)
    with pytest.raises(Closed):
        for _ in range(100):
            send(two, MESSAGES[0])


@pytest.mark.parametrize("length", [0, wire.MESSAGE_BYTES_MAX + 1, 0xFFFFFFFF])
def test_a_wrong_length_is_refused_before_anything_is_read(pair, length):
    """A length of nothing or beyond the limit is damage, not a wait for gigabytes."""
    one, two = pair
    one.sendall(struct.pack(">I", length))
    with pytest.raises(CorruptionError, match="wrong length"):
        receive(two)


@given(st.binary(max_size=200))
def test_junk_is_refused(data):
    """Bytes that are no message are an error of ours, not of the decoder."""
    with pytest.raises(CorruptionError):
        decode(data)


def test_a_message_beyond_the_limit_is_not_sent(monkeypatch):
    """The sender finds out, not the receiver."""
    monkeypatch.setattr(wire, "MESSAGE_BYTES_MAX", 100)
    with pytest.raises(InvalidRequest, match="too large"):
        encode(Request(1, "commit", {"data": "x" * 200}))
