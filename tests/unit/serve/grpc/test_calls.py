"""Handlers answer calls; whatever they do wrong stays with their call."""

from __future__ import annotations

import gc
import logging
import weakref

import pytest

from frazil.serve.grpc.calls import TOO_SLOW, Calls, Counters
from frazil.serve.grpc.codec import CallFailed, Code
from frazil.serve.grpc.router import Router, Stream, Unary
from frazil.serve.h2 import frames as f
from frazil.serve.h2.connection import Connection
from frazil.serve.h2.limits import ServerLimits
from tests.unit.serve.h2.peer import REQUEST, Peer, prefixed

GO_ON = f.window_update(0, 1 << 20)


class Client(Peer):
    """A peer whose connection serves a router."""

    def __init__(self, handler, guard=None, *, stream=False, limits=None, foresee=None):
        super().__init__()
        route = Stream(handler) if stream else Unary(handler)
        self.counters = Counters()
        plain = Unary(lambda call, message: call.ok(message))
        router = Router({"/t.T/Echo": route, "/t.T/Plain": plain}, guard, None, foresee)
        self.calls = Calls(
            *(router, self.counters),
            peer="here:1",
            long_calls_max=(limits or ServerLimits()).long_calls_max,
        )
        self.connection = Connection(limits or ServerLimits(), self.calls, lambda: None)
        self.calls.sender = self.sender = self.connection.sender
        self.send(f.PREFACE, f.settings({}))

    def status(self, *parts, sid=1):
        """Send bytes; return the status and the text of a stream's answer."""
        last = self.answers(self.send(*parts))[sid][0][-1]
        return Code(int(last["grpc-status"])), last.get("grpc-message", "")


@pytest.fixture
def client():
    """Return a client whose calls are answered with nothing."""
    return Client(lambda call, message: call.ok(b""))


def test_a_call_has_path_metadata_message_and_peer():
    """Path, metadata, message and peer are there for the handler."""
    seen = []
    client = Client(lambda call, message: seen.append((call, message)) or call.ok(b"x"))
    fields = [*REQUEST, ("authorization", "t")]
    assert client.status(client.call(1, b"hello", fields))[0] == Code.OK
    [(call, message)] = seen
    assert message == call.message == b"hello"
    assert call.path == "/t.T/Echo"
    assert call.metadata == {"authorization": "t"}
    assert call.peer == "here:1"
    assert not call.is_open


def test_a_bug_in_a_handler_is_internal_for_its_call_alone(caplog):
    """The next call is answered; the log has the kind of error and not its text."""

    def handler(call, message):
        if message == b"bad":
            raise KeyError("the secret")
        call.ok(message)

    client = Client(handler)
    with caplog.at_level(logging.WARNING, logger="frazil"):
        assert client.status(client.call(1, b"bad")) == (Code.INTERNAL, "internal error")
    assert client.status(client.call(3, b"good"), sid=3)[0] == Code.OK
    [record] = caplog.records
    assert record.facts["error"] == "KeyError"
    assert "secret" not in str(record.facts)
    assert client.counters.handler_errors_total == 1
    assert client.counters.statuses[Code.INTERNAL] == client.counters.statuses[Code.OK] == 1


def test_a_bug_after_the_answer_changes_nothing():
    """A call has one status, whatever its handler does afterwards."""

    def handler(call, message):
        call.ok(b"done")
        raise ValueError

    client = Client(handler)
    assert client.status(client.call(1)) == (Code.OK, "")


def test_a_bug_in_a_stream_ends_it_behind_its_messages():
    """What was written before is delivered."""

    def handler(call, message):
        call.write(prefixed(b"first"))
        raise ValueError

    client = Client(handler, stream=True)
    lists, data, _ = client.answers(client.send(client.call(1)))[1]
    assert data == prefixed(b"first")
    assert lists[-1]["grpc-status"] == "13"


def test_a_handler_may_raise_its_status():
    """`CallFailed` is an answer."""

    def handler(call, message):
        raise CallFailed(Code.NOT_FOUND, "no such topic 100%")

    client = Client(handler)
    assert client.status(client.call(1)) == (Code.NOT_FOUND, "no such topic 100%25")


def test_the_guard_runs_before_every_handler():
    """What it returns is the status; what it raises is a bug; with None the handler runs."""
    asked = []

    def guard(call):
        asked.append(call.message)
        if call.message == b"bug":
            raise ValueError
        return (Code.UNAUTHENTICATED, "who are you") if call.message == b"no" else None

    client = Client(lambda call, message: call.ok(b""), guard)
    assert client.status(client.call(1, b"no")) == (Code.UNAUTHENTICATED, "who are you")
    assert client.status(client.call(3, b"bug"), sid=3)[0] == Code.INTERNAL
    assert client.status(client.call(5, b"yes"), sid=5)[0] == Code.OK
    assert asked == [b"no", b"bug", b"yes"]


def test_a_request_without_message_never_reaches_the_handler(client):
    """The framing is checked before."""
    empty = client.headers(1, flags=f.END_HEADERS | f.END_STREAM)
    assert client.status(empty)[0] == Code.UNIMPLEMENTED
    cut = client.headers(3) + f.frame(f.DATA, f.END_STREAM, 3, b"\0\0\0\0\x09abc")
    assert client.status(cut, sid=3)[0] == Code.INVALID_ARGUMENT


def test_what_is_no_call_is_answered_plainly(client):
    """A GET gets a status of HTTP and the connection stays."""
    fields = [(":method", "GET"), *REQUEST[1:]]
    frames = client.send(client.headers(1, fields, f.END_HEADERS | f.END_STREAM))
    assert client.answers(frames)[1] == ([{":status": "405"}], b"", True)
    assert client.status(client.call(3), sid=3)[0] == Code.OK


def test_a_message_too_large_has_a_status(client):
    """A message too large is OUT_OF_RANGE, which clients do not retry."""
    limit = ServerLimits().message_bytes_max
    data = [f.frame(f.DATA, 0, 1, bytes(16_384))] * (limit // 16_384 + 1)
    frames = client.send(client.headers(1), *data)
    assert client.answers(frames)[1][0][0]["grpc-status"] == "11"


def test_the_handler_is_notified_of_a_client_that_goes_away():
    """`on_cancel` is called once, and a bug in it harms nobody."""
    cancelled = []

    def handler(call, message):
        def gone():
            cancelled.append(message)
            raise ValueError

        call.on_cancel = gone

    client = Client(handler)
    client.send(client.call(1, b"a"), f.reset(1, 8), f.reset(1, 8))
    assert cancelled == [b"a"]
    assert client.alive
    assert client.counters.cancelled_total == 1


def test_a_stream_writes_on_when_it_may():
    """`on_ready` is called after a False, never from inside `write`, and all arrives in order."""
    inside, written = [], []

    def handler(call, message):
        def go():
            assert not inside
            while len(written) < 2000:
                inside.append(1)
                written.append(len(written))
                more = call.write(prefixed(b"%04d" % written[-1] + bytes(1000)))
                inside.clear()
                if not more:
                    return
            call.finish()

        call.on_ready = go
        go()

    client = Client(handler, stream=True)
    frames = client.send(f.settings({f.INITIAL_WINDOW_SIZE: 1 << 30}), GO_ON * 4, client.call(1))
    for _ in range(200):
        client.calls.on_ready(client.sender.ready())
        frames += client.take()
    lists, data, ended = client.answers(frames)[1]
    size = 5 + 1004
    assert [int(data[i + 5 : i + 9]) for i in range(0, len(data), size)] == list(range(2000))
    assert lists[-1] == {"grpc-status": "0"}
    assert ended


def test_a_bug_when_ready_ends_the_stream():
    """The client gets the status; the connection stays."""

    def handler(call, message):
        def go():
            raise ValueError

        call.on_ready = go
        call.write(prefixed(bytes(300_000)))

    client = Client(handler, stream=True)
    client.send(f.settings({f.INITIAL_WINDOW_SIZE: 1 << 30}), GO_ON, client.call(1))
    frames = client.take()
    client.calls.on_ready(client.sender.ready())
    assert client.answers(frames + client.take())[1][0][-1]["grpc-status"] == "13"


def test_a_stream_does_not_keep_a_large_request():
    """A stream may stay open for ever; its request must not, unless it is small."""
    held = []

    def handler(call, message):
        held.append((call, len(message)))
        call.begin()

    client = Client(handler, stream=True)
    client.send(client.call(1, bytes(10_000)), client.call(3, b"small"))
    [(call, size), (other, _)] = held
    assert size == 10_000
    assert call.message == b""
    assert call.is_open
    assert other.message == b"small"


def test_streams_end_when_the_server_goes():
    """Streams get UNAVAILABLE at once, other calls at the last moment; handlers are notified."""
    cancelled = []

    def handler(call, message):
        call.begin()
        call.on_cancel = lambda: cancelled.append(call)

    client = Client(handler, stream=True)
    client.send(client.call(1))
    client.calls.end_all(client.connection.table.open.values(), only_streams=True)
    assert client.answers(client.take())[1][0][-1]["grpc-status"] == "14"
    assert len(cancelled) == 1
    other = Client(lambda call, message: None)
    other.send(other.call(1))
    other.calls.end_all(other.connection.table.open.values(), only_streams=True)
    assert other.take() == []
    other.calls.end_all(other.connection.table.open.values())
    assert other.answers(other.take())[1][0][-1]["grpc-status"] == "14"


def test_who_will_be_refused_has_no_body_kept():
    """From its first piece on, by the headers alone; the guard sees the others when all is here."""
    asked, seen = [], []

    def guard(call):
        seen.append(call.path)

    def foresee(call):
        asked.append((call.path, call.peer, call.message))
        if "bug" in call.metadata:
            raise ValueError
        known = call.metadata.get("authorization") == "good"
        return None if known else (Code.UNAUTHENTICATED, "who are you")

    client = Client(lambda call, message: call.finish(), guard, stream=True, foresee=foresee)
    piece = prefixed(bytes(200))
    fields = [*REQUEST, ("authorization", "good")]
    for sid, head in ((1, REQUEST), (3, [*REQUEST, ("bug", "1")])):
        begun = client.headers(sid, head) + f.frame(f.DATA, 0, sid, piece[:100])
        expected = (Code.UNAUTHENTICATED, "who are you") if sid == 1 else (13, "internal error")
        assert client.status(begun, sid=sid) == expected
        client.send(f.frame(f.DATA, f.END_STREAM, sid, piece[100:]))
    assert client.connection.table.unfinished == 0
    assert client.calls.long_calls == client.calls.accepted == 0
    assert seen == []
    client.send(client.headers(5, fields), f.frame(f.DATA, 0, 5, piece[:100]))
    assert client.connection.table.unfinished == 100
    assert client.status(f.frame(f.DATA, f.END_STREAM, 5, piece[100:]), sid=5)[0] == Code.OK
    assert asked == [("/t.T/Echo", "here:1", b"")] * 3
    assert seen == ["/t.T/Echo"]
    assert client.counters.calls_total == 3
    assert client.calls.long_calls == 0


@pytest.mark.parametrize("change", [(":path", "/t.T/None"), ("content-type", "text/plain")])
def test_what_no_handler_answers_has_no_body_kept(change, client):
    """An unknown method, or no gRPC at all, is answered with the first piece of its body."""
    fields = [change if name == change[0] else (name, value) for name, value in REQUEST]
    frames = client.send(client.headers(1, fields), f.frame(f.DATA, 0, 1, bytes(100)))
    lists, _, ended = client.answers(frames)[1]
    assert ended
    assert (lists[0].get("grpc-status"), lists[0][":status"]) in {("12", "200"), (None, "415")}
    assert client.connection.table.open == {}


def test_requests_that_arrive_too_slowly_have_a_status(client):
    """They are refused by it, and what was kept of them is let go of."""
    client.send(client.headers(1), f.frame(f.DATA, 0, 1, bytes(100)))
    client.calls.refuse_late(list(client.connection.table.open.values()))
    answer = client.answers(client.take())[1][0][0]
    assert (answer["grpc-status"], answer["grpc-message"]) == ("4", TOO_SLOW)
    assert client.connection.table.unfinished == 0


@pytest.mark.parametrize("end", ["answer", "failure", "cancel"])
def test_an_ended_call_is_freed_at_once(end):
    """Nothing of a call is left to the collector of cycles, which would stop the server for it."""
    held = []
    client = Client(lambda call, message: held.append(call))
    client.send(client.call(1))
    gone = weakref.ref(held[0])
    gc.disable()
    try:
        if end == "answer":
            held[0].ok(b"")
        elif end == "failure":
            held[0].fail(Code.ABORTED, "")
        else:
            client.send(f.reset(1, 8))
        held.clear()
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("size", [9_000, 30_000, 60_000])
def test_metadata_that_is_too_large_is_refused_on_its_stream_alone(size):
    """The call gets RESOURCE_EXHAUSTED; a call before it, and one after it, are answered."""
    held = []
    client = Client(lambda call, _: held.append(call), limits=ServerLimits(header_bytes_max=8_192))
    client.send(client.call(1))
    block = client.encoder.encode([*REQUEST, ("x-big", "~" * size)], huffman=False)
    pieces = [block[at : at + 16_000] for at in range(0, len(block), 16_000)]
    kinds = [f.HEADERS, *[f.CONTINUATION] * (len(pieces) - 1)]
    large = b"".join(
        f.frame(kind, f.END_HEADERS * (piece is pieces[-1]), 3, piece)
        for kind, piece in zip(kinds, pieces, strict=True)
    )
    data = f.frame(f.DATA, f.END_STREAM, 3, prefixed(b"hi"))
    # A block that is dear to read is the last one of its turn.
    client.send(large)
    code, text = client.status(data, sid=3)
    assert (code, text) == (Code.RESOURCE_EXHAUSTED, "the request's metadata is too large")
    assert client.alive
    client.send(client.call(5))
    for call in held:
        call.ok(b"fine")
    assert {sid: each[1][5:] for sid, each in client.answers(client.take()).items()} == {
        1: b"fine",
        5: b"fine",
    }


def test_streams_of_messages_leave_room_for_other_calls():
    """One too many is refused; a plain call is answered; one that ends makes room for another."""
    opened = []

    def feed(call, _message):
        call.begin()
        opened.append(call)

    client = Client(feed, stream=True, limits=ServerLimits(long_calls_max=2))
    plain = [(name, "/t.T/Plain" if name == ":path" else value) for name, value in REQUEST]
    assert len(client.answers(client.send(client.call(1), client.call(3)))) == 2
    for sid in (5, 7):
        code, text = client.status(client.call(sid), sid=sid)
        assert (code, text) == (
            Code.RESOURCE_EXHAUSTED,
            "too many streams on this connection, open another one",
        )
    assert client.status(client.call(9, b"x", plain), sid=9)[0] == Code.OK
    opened[0].finish(Code.OK)
    client.send(f.reset(3, 8))
    client.answers(client.send(client.call(11), client.call(13)))
    assert [call.is_open for call in opened] == [False, False, True, True]
    assert client.status(client.call(15), sid=15)[0] == Code.RESOURCE_EXHAUSTED
    assert client.calls.long_calls == 2
