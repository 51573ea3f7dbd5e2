"""Clients that hold what a server has room for: the others are served, whoever pays for it.

The ticks of most servers here are the tests' own, so that no test depends on time.
"""

from __future__ import annotations

import asyncio
import contextlib

import attrs
import grpc
import pytest

from frazil.serve.grpc.calls import TOO_SLOW
from frazil.serve.grpc.codec import Code
from frazil.serve.grpc.router import Router
from frazil.serve.h2 import frames as f
from frazil.serve.h2.limits import ServerLimits
from tests.integration.serve import rpc_world
from tests.integration.serve.flood_world import flooded
from tests.integration.serve.grpc_world import (
    SECONDS_MAX,
    RawClient,
    assert_answers,
    eventually,
    serving,
)
from tests.integration.serve.test_all_rpcs import with_access
from tests.unit.serve.auth.world import make_guard, token
from tests.unit.serve.h2.peer import REQUEST, prefixed

pytestmark = pytest.mark.integration

NEVER = 3_600.0
PIECE = bytes(16_000)
PIECES = 20
HELD = PIECES * len(PIECE)
HOGS = 6
LARGE = 1_000_000
REFUSED = (Code.RESOURCE_EXHAUSTED, "too many unfinished requests")
CREATE = "/danube.ProducerService/CreateProducer"
LIST = "/danube_admin.BrokerAdmin/ListBrokers"
ROOM = ServerLimits(
    tick_s=NEVER, arriving_s=1_000 * NEVER, unfinished_bytes_server_max=HOGS * (HELD + 10_000)
)
"""There is room for what the hogs hold, and not for the request of anybody else."""
LOOKING = attrs.evolve(ROOM, arriving_s=NEVER)
"""With every tick the requests that arrive are looked at."""


def headers(client, sid, path="/t.T/Echo", **metadata):
    """Return the headers of a call without its body."""
    fields = [(name, path if name == ":path" else value) for name, value in REQUEST]
    block = client.encoder.encode([*fields, *metadata.items()])
    return f.frame(f.HEADERS, f.END_HEADERS, sid, block)


def part(sid, data=PIECE, flags=0):
    return f.frame(f.DATA, flags, sid, data)


def tick(world):
    """Let a tick pass on all connections."""

    def run():
        for shell in tuple(world.server._shells):
            shell.tick(world.server.clock.monotonic())

    world.run(run)


def rest(world):
    """Let ticks pass until what is here, and is not added to, rests."""
    tick(world)
    tick(world)


def tables(world):
    return [shell.connection.table for shell in world.server._shells if shell._is_live]


def unfinished(world):
    return world.run(lambda: sum(table.unfinished for table in tables(world)))


def data_bytes(world):
    """Return how much has come of requests."""
    return world.run(lambda: sum(shell.connection.data_bytes for shell in world.server._shells))


@contextlib.contextmanager
def hogging(world, count=HOGS, pieces=PIECES, **metadata):
    """Yield clients with one large request each that never ends."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(world)) for _ in range(count)]
        for client in clients:
            client.send(headers(client, 1, **metadata), *([part(1)] * pieces))
        yield clients


def echo(world, message, metadata=()):
    """Return a call's answer, or its status."""
    with world.channel() as channel:
        call = channel.unary_unary("/t.T/Echo")
        try:
            return call(message, timeout=SECONDS_MAX, metadata=metadata)
        except grpc.RpcError as error:
            return error.code(), error.details()


def statuses(client, last):
    """Return the statuses of calls and their texts, those that come until one call has its own."""
    found = {}
    for kind, _, sid, payload in client.frames():
        if kind == f.HEADERS:
            fields = dict(client.decoder.decode(payload))
            if "grpc-status" in fields:
                found[sid] = Code(int(fields["grpc-status"])), fields.get("grpc-message", "")
        if last in found:
            break
    return found


def status(client, sid):
    """Return the status of a call and its text; None if the connection ends before."""
    return statuses(client, sid).get(sid)


def test_others_send_large_requests_while_hogs_hold_theirs():
    """Who holds most is refused, not who came last; again and again, as long as there are hogs."""
    with serving(ROOM) as world, hogging(world) as hogs:
        assert eventually(lambda: unfinished(world) == HOGS * HELD)
        # A client that sends more than any hog, on its way, weighs less than what rests.
        rest(world)
        for _ in range(5):
            assert echo(world, bytes(LARGE)) == bytes(LARGE)
        assert unfinished(world) < HOGS * HELD
        refused = world.run(lambda: world.server.counters.statuses[Code.RESOURCE_EXHAUSTED])
        assert 0 < refused <= HOGS
        told = 0
        for hog in hogs:
            hog.send(hog.call(3, "/t.T/Echo", b"hi"))
            told += statuses(hog, 3).get(1) == REFUSED
        assert told == refused
        assert world.run(lambda: world.server.unfinished) <= ROOM.unfinished_bytes_server_max


def test_who_sends_large_requests_all_the_time_is_served_beside_hogs():
    """It has a part of one here at every tick, larger than any hog's; but it does not rest."""
    with serving(ROOM) as world, hogging(world), RawClient(world) as client:
        assert eventually(lambda: unfinished(world) == HOGS * HELD)
        rest(world)
        refused = [0]
        came = HOGS * HELD
        # Each is larger than what the one before made room for.
        for sid, times in ((1, 2), (3, 4), (5, 6)):
            message = prefixed(bytes(times * HELD + len(PIECE) - 5))
            parts = [message[at : at + len(PIECE)] for at in range(0, len(message), len(PIECE))]
            client.send(headers(client, sid), *(part(sid, data) for data in parts[:-1]))
            came += times * HELD
            assert eventually(lambda came=came: data_bytes(world) == came)
            tick(world)
            client.send(f.window_update(0, 8 << 20), f.window_update(sid, 8 << 20))
            client.send(part(sid, parts[-1], f.END_STREAM))
            came += len(PIECE)
            assert status(client, sid) == (Code.OK, "")
            refused.append(world.server.counters.statuses[Code.RESOURCE_EXHAUSTED])
        assert refused == sorted(set(refused))
        assert refused[-1] <= HOGS


def test_a_request_that_is_the_largest_of_all_is_the_one_that_is_refused():
    """Many connections with a little each do not lose it to one that takes everything."""
    with serving(ROOM) as world, hogging(world) as small:
        assert eventually(lambda: unfinished(world) == HOGS * HELD)
        with RawClient(world) as large:
            large.send(headers(large, 1), *([part(1)] * 2 * PIECES))
            assert status(large, 1) == REFUSED
        for client in small:
            client.send(part(1, flags=f.END_STREAM))
            assert client.wait(f.HEADERS) is not None


def test_who_has_no_credentials_has_no_request_kept():
    """It is refused with its first piece, whatever it holds up; others send what they like."""
    guard, clock = make_guard()
    good = (("authorization", token("admin", clock)),)
    with serving(ROOM) as world:
        routes = world.server.router.routes
        world.server.router = Router(routes, _only_callers(guard), None, guard.foresee)
        with hogging(world) as strangers, hogging(world, authorization="Bearer x") as guessing:
            for client, text in ((strangers[0], "missing"), (guessing[0], "Invalid")):
                code, found = status(client, 1)
                assert code is Code.UNAUTHENTICATED
                assert text in found
            refusals = 2 * HOGS
            counters = world.server.counters
            assert eventually(lambda: counters.statuses[Code.UNAUTHENTICATED] == refusals)
            assert unfinished(world) == 0
            assert echo(world, bytes(LARGE), good) == bytes(LARGE)
            assert counters.statuses[Code.RESOURCE_EXHAUSTED] == 0


def _only_callers(guard):
    """Return a guard that asks who calls and not for grants: the paths here are the tests' own."""

    def check(call):
        return guard.admit(call)

    return check


def test_others_with_credentials_send_large_requests_while_hogs_with_some_hold_theirs():
    """Whoever is known may hold much, and loses it when others need the room."""
    guard, clock = make_guard()
    hog, good = (token(name, clock) for name in ("nothing", "admin"))
    with serving(ROOM) as world:
        routes = world.server.router.routes
        world.server.router = Router(routes, _only_callers(guard), None, guard.foresee)
        with hogging(world, authorization=hog):
            assert eventually(lambda: unfinished(world) == HOGS * HELD)
            rest(world)
            for _ in range(3):
                assert echo(world, bytes(LARGE), (("authorization", good),)) == bytes(LARGE)


def test_the_broker_keeps_no_request_of_strangers(tmp_path):
    """On both ports a large request without credentials is refused before it is here."""

    async def scene():
        async with rpc_world.serving(tmp_path / "data", **with_access(tmp_path)) as world:
            return await asyncio.to_thread(_ask_both, world)

    def _ask_both(world):
        found = []
        addresses = world.broker.addresses
        for address, path in ((addresses.data, CREATE), (addresses.admin, LIST)):
            with RawClient(address) as client:
                client.send(headers(client, 1, path), part(1))
                found.append(status(client, 1)[0])
        return found

    assert asyncio.run(scene()) == [Code.UNAUTHENTICATED] * 2


@pytest.mark.parametrize("body", [b"", PIECE])
def test_streams_whose_request_never_comes_end(body):
    """With and without a part of it, with a status; the connection goes on."""
    with serving(LOOKING) as world, RawClient(world) as client:
        streams = range(1, 201, 2)
        client.send(*(headers(client, sid) for sid in streams))
        client.send(*(part(sid, body) for sid in streams if body))
        expected = len(streams) * len(body)
        assert eventually(lambda: any(len(table.open) == 100 for table in tables(world)))
        assert eventually(lambda: unfinished(world) == expected)
        assert world.run(lambda: world.server.unfinished) > expected + 100 * 256
        tick(world)
        assert world.run(lambda: len(tables(world)[0].open)) == 100
        tick(world)
        assert status(client, 1) == (Code.DEADLINE_EXCEEDED, TOO_SLOW)
        assert world.run(lambda: len(tables(world)[0].open)) == 0
        client.send(client.call(201, "/t.T/Echo", b"hi"))
        assert status(client, 201) == (Code.OK, "")
        assert eventually(lambda: world.run(lambda: world.server.unfinished) == 0)


def test_a_slow_upload_that_keeps_the_rate_is_served():
    """The largest message, as slowly as may be, beside others that wait for it.

    On a connection where nothing comes requests are refused meanwhile.
    """
    limits = ServerLimits(tick_s=NEVER, arriving_s=NEVER)
    least = limits.arriving_bytes_min
    with serving(limits) as world, RawClient(world) as client, RawClient(world) as stopped:
        client.send(headers(client, 1), headers(client, 3))
        stopped.send(headers(stopped, 1))
        message = prefixed(bytes(limits.message_bytes_max))
        for first in range(0, len(message) - least, least):
            data = message[first : first + least]
            client.send(*(part(1, data[at : at + 16_384]) for at in range(0, least, 16_384)))
            came = first + least
            assert eventually(lambda came=came: unfinished(world) == came)
            tick(world)
        assert status(stopped, 1) == (Code.DEADLINE_EXCEEDED, TOO_SLOW)
        client.send(f.window_update(0, 8 << 20), f.window_update(1, 8 << 20))
        client.send(part(1, message[came:], f.END_STREAM))
        assert status(client, 1) == (Code.OK, "")
        client.send(part(3, prefixed(b"at last"), f.END_STREAM))
        assert status(client, 3) == (Code.OK, "")


def test_a_client_that_is_not_read_from_has_its_time_when_it_is():
    """What the server holds up itself is not taken for slowness."""
    limits = ServerLimits(tick_s=NEVER, arriving_s=NEVER, unanswered_bytes_max=10_000)
    with serving(limits) as world, RawClient(world) as client:
        client.send(headers(client, 1), client.call(3, "/t.T/Hold", bytes(15_000)))
        assert eventually(lambda: world.server.counters.reading_pauses_total)
        for _ in range(4):
            tick(world)
        assert world.run(lambda: list(tables(world)[0].open)) == [1, 3]
        world.run(lambda: world.handlers.held[0].ok(b""))
        client.send(part(1, prefixed(b"late"), f.END_STREAM))
        assert status(client, 1) == (Code.OK, "")


def test_ten_thousand_consumers_are_not_cut():
    """Neither by looks at what arrives, nor by the sums while others hold too much of both kinds."""
    count = 10_000
    limits = ServerLimits(
        tick_s=NEVER,
        arriving_s=NEVER,
        unfinished_bytes_server_max=500_000,
        held_bytes_server_max=1_000_000,
    )
    closed = {f.INITIAL_WINDOW_SIZE: 0}
    with serving(limits) as world, RawClient(world) as consumer:
        for first in range(0, count, 100):
            sids = range(2 * first + 1, 2 * (first + 100), 2)
            consumer.send(*(consumer.call(sid, "/t.T/Wait") for sid in sids))
        begun = 0
        for kind, _, _, payload in consumer.frames():
            assert kind not in {f.RST_STREAM, f.GOAWAY}
            if kind == f.HEADERS:
                consumer.decoder.decode(payload)
                begun += 1
            if begun == count:
                break
        with hogging(world, 3), RawClient(world, settings=closed) as unread:
            unread.send(*(unread.call(sid, "/t.T/Echo") for sid in range(1, 2_001, 2)))
            counters = world.server.counters
            assert eventually(lambda: counters.statuses[Code.RESOURCE_EXHAUSTED])
            assert eventually(lambda: counters.connections_cut_total == 1)
            for _ in range(4):
                tick(world)
        assert world.run(lambda: max(len(table.open) for table in tables(world))) == count
        assert world.handlers.cancelled == []
        last = 2 * count + 1
        consumer.send(consumer.call(last, "/t.T/Echo", b"here"))
        assert status(consumer, last) == (Code.OK, "")
        assert_answers(world)


def test_small_answers_without_a_window_are_bounded_together():
    """They cost more than their bytes: who has most of them is cut off, and memory stays small."""
    limits = {"held_bytes_server_max": 16 << 20}
    streams = 4_000
    with flooded(**limits) as (world, bystander), contextlib.ExitStack() as stack:
        before = world.resident_bytes()
        for _ in range(12):
            client = RawClient(world, settings={f.INITIAL_WINDOW_SIZE: 0})
            stack.enter_context(client)
            calls = b"".join(client.call(sid, "/t.T/Echo") for sid in range(1, 2 * streams, 2))
            with contextlib.suppress(OSError):
                client.send(calls)
        assert eventually(lambda: world.facts()["connections_cut_total"] >= 8)
        assert world.facts()["held"] <= limits["held_bytes_server_max"]
        assert world.resident_bytes() - before < 3 * limits["held_bytes_server_max"]
        bystander.wait_for(20)


def test_streams_without_a_request_are_bounded_together():
    """They cost more than their bytes: the requests are refused of who has most of them."""
    limits = {"unfinished_bytes_server_max": 4 << 20}
    streams = 4_000
    with flooded(**limits) as (world, bystander), contextlib.ExitStack() as stack:
        for _ in range(8):
            client = stack.enter_context(RawClient(world))
            client.send(*(headers(client, sid) for sid in range(1, 2 * streams, 2)))
        assert eventually(lambda: world.facts()["statuses"][8] >= 3 * streams)
        assert world.facts()["unfinished"] <= limits["unfinished_bytes_server_max"]
        bystander.wait_for(20)
