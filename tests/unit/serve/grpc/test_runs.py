"""Calls of one method that come together are handled and answered as a whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.serve.grpc.calls import Calls, Counters
from frazil.serve.grpc.codec import Code
from frazil.serve.grpc.router import Router, Unary
from frazil.serve.h2 import frames as f
from frazil.serve.h2.connection import Connection
from frazil.serve.h2.limits import ServerLimits
from tests.unit.serve.h2.peer import REQUEST, Peer

OTHER = (*REQUEST[:2], (":path", "/t.T/Other"), *REQUEST[3:])
TIMED = (*REQUEST, ("grpc-timeout", "2S"))


class Client(Peer):
    """A peer of a router with one method that takes runs, and one that does not."""

    def __init__(self, many=None, *, guard=None, free_calls=None, settings=None, is_fresh=False):
        super().__init__(greet=False)
        self.seen = []
        self.runs = []
        self.counters = Counters()
        routes = {
            "/t.T/Echo": Unary(self._one, None if many is False else self._many, is_fresh=is_fresh),
            "/t.T/Other": Unary(self._other),
        }
        self.many = many
        router = Router(routes, guard, free_calls)
        self.calls = Calls(router, self.counters, peer="here:1")
        self.connection = Connection(ServerLimits(), self.calls, lambda: None)
        self.calls.sender = self.sender = self.connection.sender
        self.send(f.PREFACE, f.settings(settings or {}))

    def _one(self, call, message):
        self.seen.append(("one", message))
        call.ok(message)

    def _other(self, call, message):
        self.seen.append(("other", message))
        call.ok(message)

    def _many(self, run):
        self.seen.append(("run", *run.messages))
        self.runs.append(run)
        if self.many is None:
            run.ok_all(run.streams, run.messages)
        else:
            self.many(run)

    def send(self, *parts):
        self.alive = self.connection.receive(b"".join(parts))
        self.calls.end_run()
        return self.take()

    def statuses(self, frames):
        """Return the status that each stream ended with."""
        ends = {sid: blocks[-1] for sid, (blocks, *_) in self.answers(frames).items() if blocks}
        return {sid: Code(int(end["grpc-status"])) for sid, end in ends.items()}

    def is_at_rest(self):
        """Return whether nothing is left of any call."""
        table = self.connection.table
        return not table.open and not table.unanswered and not table.header_bytes


def asked(client, *messages, fields=REQUEST):
    """Return the bytes of calls on streams 1, 3, 5, ..."""
    return [client.call(2 * at + 1, each, fields) for at, each in enumerate(messages)]


@pytest.fixture
def client():
    """Return a client whose calls are echoed."""
    return Client()


def test_calls_that_come_together_are_one_run(client):
    """The handler of runs has them all, in their order, and each gets its own answer."""
    answers = client.answers(client.send(*asked(client, b"a", b"b", b"c")))
    assert client.seen == [("run", b"a", b"b", b"c")]
    assert [answers[sid][1] for sid in (1, 3, 5)] == [
        b"\0\0\0\0\1a",
        b"\0\0\0\0\1b",
        b"\0\0\0\0\1c",
    ]
    assert client.counters.calls_total == client.counters.statuses[0] == 3
    assert client.calls.accepted == 3
    assert client.is_at_rest()


def test_a_call_that_comes_alone_is_no_run(client):
    """It goes to the handler of single calls."""
    for sid in (1, 3):
        assert client.statuses(client.send(client.call(sid, b"x"))) == {sid: Code.OK}
    assert client.seen == [("one", b"x"), ("one", b"x")]


def test_a_call_of_another_method_keeps_its_place(client):
    """What came before it is handled before, what came behind it behind."""
    frames = client.send(
        client.call(1, b"a"),
        client.call(3, b"b"),
        client.call(5, b"c", OTHER),
        client.call(7, b"d"),
        client.call(9, b"e"),
    )
    assert client.seen == [("run", b"a", b"b"), ("other", b"c"), ("run", b"d", b"e")]
    assert client.statuses(frames) == dict.fromkeys((1, 3, 5, 7, 9), Code.OK)


def test_a_request_that_is_no_message_fails_alone(client):
    """The others of its run are handled without it."""
    torn = f.frame(f.DATA, f.END_STREAM, 3, b"\0\0\0\0\7hi")
    frames = client.send(client.call(1, b"a"), client.headers(3), torn, client.call(5, b"b"))
    assert client.seen == [("run", b"a", b"b")]
    assert client.statuses(frames) == {1: Code.OK, 3: Code.INVALID_ARGUMENT, 5: Code.OK}
    assert client.is_at_rest()


def test_requests_that_are_no_messages_are_not_accepted(client):
    """A connection that has sent nothing else has not been used."""
    torn = [f.frame(f.DATA, f.END_STREAM, sid, b"\0\0\0\0\7hi") for sid in (1, 3)]
    client.send(client.headers(1), torn[0], client.headers(3), torn[1])
    assert client.calls.accepted == 0
    assert client.is_at_rest()


def test_an_answer_that_waits_for_a_window_is_an_answer():
    """Who resets such a call, or leaves, cancels nothing; the end of the server changes nothing."""
    counted = []
    for many in (None, False):
        client = Client(many, settings={f.INITIAL_WINDOW_SIZE: 0})
        client.send(*asked(client, b"a", b"b", b"c"))
        client.calls.end_all(client.connection.table.open.values())
        client.send(f.reset(1, f.ErrorCode.CANCEL))
        frames = client.send(f.window_update(3, 100))
        assert client.statuses(frames) == {3: Code.OK}
        client.connection.cancel_all()
        assert client.is_at_rest()
        counted.append((client.counters.cancelled_total, client.counters.statuses[0]))
    assert counted == [(0, 3), (0, 3)]


def test_a_call_that_is_reset_at_once_is_not_handled(client):
    """It counts as cancelled, and the others are answered."""
    frames = client.send(*asked(client, b"a", b"b", b"c"), f.reset(3, f.ErrorCode.CANCEL))
    assert client.seen == [("run", b"a", b"c")]
    assert client.statuses(frames) == {1: Code.OK, 5: Code.OK}
    assert client.counters.cancelled_total == 1
    assert client.is_at_rest()


def test_a_call_that_is_reset_later_gets_no_answer():
    """Its place is passed over, whether it would have been a good answer or not."""
    client = Client(lambda run: None)
    client.send(*asked(client, b"a", b"b", b"c"))
    client.send(f.reset(3, f.ErrorCode.CANCEL))
    (run,) = client.runs
    run.ok_all(run.streams[:2], run.messages[:2])
    run.fail_all(run.streams[1:], Code.UNAVAILABLE, "no")
    assert client.statuses(client.take()) == {1: Code.OK, 5: Code.UNAVAILABLE}
    assert client.counters.statuses[Code.OK] == client.counters.statuses[Code.UNAVAILABLE] == 1
    assert client.is_at_rest()


def test_a_call_is_answered_once(client):
    """What comes behind its answer is dropped, and not counted."""
    client.send(*asked(client, b"a", b"b"))
    (run,) = client.runs
    run.ok_all(run.streams, run.messages)
    run.fail_all(run.streams, Code.UNAVAILABLE, "no")
    run.call(run.streams[0]).ok(b"again")
    assert client.take() == []
    assert client.counters.statuses[0] == 2
    assert sum(client.counters.statuses) == 2


def test_one_of_a_run_can_be_handled_apart():
    """The handler of single calls gets it, and what that raises is its own status."""

    def many(run):
        run.apart(1)
        run.ok_all([run.streams[0], run.streams[2]], [b"", b""])

    client = Client(many)
    frames = client.send(*asked(client, b"a", b"b", b"c"))
    assert client.seen == [("run", b"a", b"b", b"c"), ("one", b"b")]
    assert client.statuses(frames) == dict.fromkeys((1, 3, 5), Code.OK)
    assert client.counters.calls_total == 3
    assert client.is_at_rest()


def test_a_bug_is_internal_for_those_that_wait():
    """What was answered before it stays answered."""

    def many(run):
        run.ok_all(run.streams[:1], [b"x"])
        raise KeyError("bug")

    client = Client(many)
    frames = client.send(*asked(client, b"a", b"b", b"c"))
    assert client.statuses(frames) == {1: Code.OK, 3: Code.INTERNAL, 5: Code.INTERNAL}
    assert client.counters.handler_errors_total == 2
    assert client.statuses(client.send(client.call(7, b"d"))) == {7: Code.OK}
    assert client.is_at_rest()


def test_a_guard_sees_each_call_that_is_not_free():
    """So many as it names pass together; it is asked for each of the others."""
    looked_at = []

    def guard(call):
        looked_at.append(call.message)
        return (Code.RESOURCE_EXHAUSTED, "too many") if call.message == b"d" else None

    client = Client(guard=guard, free_calls=lambda peer, count: count - 2)
    frames = client.send(*asked(client, b"a", b"b", b"c", b"d"))
    assert client.seen == [("run", b"a", b"b"), ("one", b"c")]
    assert looked_at == [b"c", b"d"]
    assert client.statuses(frames)[7] is Code.RESOURCE_EXHAUSTED
    strict = Client(guard=guard)
    strict.send(*asked(strict, b"a", b"b"))
    assert strict.seen == [("one", b"a"), ("one", b"b")]


def test_calls_of_a_run_end_with_the_server():
    """When the time to drain is over, waiting calls get a status; late answers are dropped."""
    client = Client(lambda run: None)
    client.send(*asked(client, b"a", b"b"))
    client.calls.end_all(client.connection.table.open.values())
    assert client.statuses(client.take()) == {1: Code.UNAVAILABLE, 3: Code.UNAVAILABLE}
    (run,) = client.runs
    run.ok_all(run.streams, run.messages)
    assert client.take() == []
    assert client.is_at_rest()


def test_calls_of_a_connection_that_is_gone_are_dropped():
    """They count as cancelled; their late answers go nowhere."""
    client = Client(lambda run: None)
    client.send(*asked(client, b"a", b"b"))
    client.connection.cancel_all()
    assert client.counters.cancelled_total == 2
    (run,) = client.runs
    run.ok_all(run.streams, run.messages)
    assert client.counters.statuses[0] == 0
    assert client.is_at_rest()


@given(
    sizes=st.lists(st.integers(0, 200), min_size=2, max_size=8),
    window=st.sampled_from([0, 10, 70, 300, 65_535]),
    table=st.sampled_from([0, 4_096]),
)
def test_a_run_is_answered_with_the_bytes_of_single_calls(sizes, window, table):
    """Whatever the windows and the peer's table are, the client cannot tell the difference."""
    settings = {f.INITIAL_WINDOW_SIZE: window, f.HEADER_TABLE_SIZE: table}
    sent = []
    for many in (None, False):
        client = Client(many, settings=settings)
        messages = [bytes([at]) * size for at, size in enumerate(sizes)]
        first = client.sender.take()
        client.connection.receive(b"".join(asked(client, *messages)))
        client.calls.end_run()
        said = first + client.sender.take()
        for sid in range(1, 2 * len(sizes), 2):
            client.connection.receive(f.window_update(sid, 1_000))
            said += client.sender.take()
        assert client.is_at_rest()
        sent.append((said, client.sender.window, client.sender.data_frames))
    assert sent[0] == sent[1]


def test_new_work_is_refused_when_the_server_ends():
    """Together or alone, no handler sees it; other calls are answered."""
    client = Client(is_fresh=True)
    client.calls.is_ending = True
    run = [client.call(sid) for sid in range(1, 41, 2)]
    answers = client.answers(client.send(*run, client.call(41, b"x", OTHER), client.call(43)))
    found = {sid: heads[-1]["grpc-status"] for sid, (heads, *_) in answers.items()}
    refused = dict.fromkeys([*range(1, 41, 2), 43], str(int(Code.UNAVAILABLE)))
    assert found == {**refused, 41: "0"}
    assert client.seen == [("other", b"x")]
