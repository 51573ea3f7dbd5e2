"""Calls about subscriptions over the HTTP port of a real broker: who may, and what comes of it."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from danube import SubType

from frazil.clock import SystemClock
from frazil.errors import NotFound
from frazil.serve.http_calls import PATH
from tests.integration.serve import rpc_world
from tests.integration.serve.consuming_world import make_reader
from tests.integration.serve.rpc_world import with_access
from tests.unit.serve.auth.world import ACCESS, token

SECONDS_MAX = 60


class World:
    """A broker on free ports with a topic of ten records, and a client of its HTTP port."""

    def __init__(self, path, *, access=None, **settings):
        if access:
            settings |= with_access(path, access)
        self._serving = rpc_world.serving(path / "data", **settings)

    async def __aenter__(self):
        self.broker = (await self._serving.__aenter__()).broker
        self.url = self.broker.addresses.facts()["http_url"]
        self.client = httpx.AsyncClient(timeout=SECONDS_MAX)
        topic = await asyncio.to_thread(self.broker.engine.create_topic, "orders")
        await asyncio.to_thread(topic.append_many, [b"%d" % number for number in range(10)])
        return self

    async def __aexit__(self, *raised):
        await self.client.aclose()
        if self.broker._state == "ready":
            await self._serving.__aexit__(*raised)

    async def post(self, call, *, subject=None, **options):
        """Post a call; return status and what was answered."""
        fields = {"Content-Type": "application/json"}
        if subject is not None:
            fields["Authorization"] = token(subject, SystemClock())
        data = call if isinstance(call, bytes) else json.dumps(call)
        reply = await self.client.post(self.url + PATH, content=data, headers=fields, **options)
        return reply.status_code, reply.json()


def run(path, work, **options):
    async def main():
        async with World(path, **options) as world:
            await work(world)

    asyncio.run(main())


def named(**fields):
    return {"topic": "orders", "name": "s", **fields}


def test_a_subscription_is_made_reset_configured_and_dropped(tmp_path):
    """Each call answers with what counts then, and the broker delivers by it at once."""

    async def work(world):
        status, made = await world.post(
            {"call": "create", **named(type="failover", start="earliest")}
        )
        assert (status, made["result"]["lag_records"]) == (200, 10)
        topic = world.broker.engine.topic("orders")
        stream = await asyncio.to_thread(topic.subscribe, "s", consumer="me")
        first = await asyncio.to_thread(stream.receive, SECONDS_MAX)
        assert first.offset == 0
        status, found = await world.post({"call": "list", "topic": "orders"})
        assert (status, found["result"][0]["consumers"]) == (200, ["me"])
        assert await world.post({"call": "reset", **named(to=7)}) == (
            200,
            {"result": {"/default/orders": 7}},
        )
        assert (await asyncio.to_thread(stream.receive, SECONDS_MAX)).offset == 7
        status, found = await world.post(
            {"call": "policy", **named(policy={"poison": "drop"}, max_unacked=3)}
        )
        assert (status, found["result"]["poison"], found["result"]["max_unacked"]) == (
            *(200, "drop", 3),
        )
        status, found = await world.post({"call": "drop", **named()})
        assert status == 200
        assert await world.post({"call": "list"}) == (200, {"result": []})
        status, found = await world.post({"call": "drop", **named()})
        assert (status, found["error"]["code"]) == (404, "not_found")
        await asyncio.to_thread(stream.close)

    run(tmp_path, work)


def test_a_client_on_the_network_is_put_elsewhere_and_ended(tmp_path):
    """A reset delivers again to a consumer that is connected; a program may share its work."""

    async def received(reader, count):
        return [int(message.payload) for message in await reader.take(count)]

    async def work(world):
        await world.post({"call": "create", **named(type="shared", start=5)})
        url = world.broker.addresses.facts()["url"]
        reader = await make_reader(url, topic="/default/orders", name="far", kind=SubType.SHARED)
        assert await received(reader, 5) == [5, 6, 7, 8, 9]
        assert (await world.post({"call": "reset", **named(to="earliest")}))[0] == 200
        assert await received(reader, 10) == list(range(10))
        topic = world.broker.engine.topic("orders")
        stream = await asyncio.to_thread(topic.subscribe, "s", consumer="near")
        (facts,) = await asyncio.to_thread(topic.subscriptions)
        assert (facts["consumers"], facts["lag_records"]) == (["far", "near"], 0)
        await asyncio.to_thread(topic.append_many, [b"1"] * 6)
        near, far = [], []
        async with asyncio.timeout(SECONDS_MAX):
            while len(near) + len(far) < 6:
                one = await asyncio.to_thread(stream.receive, 0.05)
                near += [] if one is None else [one.offset]
                if one is not None:
                    await asyncio.to_thread(one.ack)
                far += await received(reader, 0 if reader.queue.empty() else 1)
        assert set(near) < set(range(10, 16))
        assert far == [1] * (6 - len(near))
        assert (await world.post({"call": "drop", **named()}))[0] == 200
        with pytest.raises(NotFound):
            await asyncio.to_thread(stream.receive, SECONDS_MAX)
        await asyncio.to_thread(stream.close)
        await reader.close()

    run(tmp_path, work)


def test_refusals_say_what_is_wrong(tmp_path):
    """A call that cannot be done has the status of its error and a text, and changes nothing."""

    async def work(world):
        await world.post({"call": "create", **named()})
        for call, status, word in [
            ({"call": "create", **named()}, 409, "exists"),
            ({"call": "create", **named(name="x", type="odd")}, 400, "type must be"),
            ({"call": "reset", **named(to=99)}, 400, "within the topic's records"),
            ({"call": "reset", **named(to="soon")}, 400, "ISO 8601"),
            ({"call": "list", "topic": "nothing"}, 404, "no such topic"),
            ({"call": "list", "topic": "/a/b/c/d"}, 400, "name"),
            ({"call": "policy", **named(policy={"odd": 1})}, 400, "unknown field"),
            ({"call": "steal", **named()}, 400, "not a call"),
            ({"call": "drop", **named(more=1)}, 400, "not a call"),
            ([], 400, "not a call"),
            (b"\xff{", 400, "not a call"),
            (b"[" * 60_000, 400, "not a call"),
        ]:
            got, answer = await world.post(call)
            assert (got, word in json.dumps(answer)) == (status, True), (call, got, answer)
        assert len((await world.post({"call": "list"}))[1]["result"]) == 1

    run(tmp_path, work)


def test_only_who_may_administer_the_topic_may_call(tmp_path):
    """Without a token 401, without the grant 403; dead letters need the right to produce there."""

    async def work(world):
        letters = {"poison": "dead_letter", "dead_letter_topic": "/default/dead"}
        calls = [
            {"call": "list"},
            {"call": "list", "topic": "orders"},
            {"call": "create", **named()},
            {"call": "reset", **named(to="earliest")},
            {"call": "policy", **named()},
            {"call": "policy", **named(policy={"poison": "drop"})},
            {"call": "policy", **named(policy=letters)},
            {"call": "drop", **named()},
        ]
        for call in calls:
            assert (await world.post(call))[0] == 401, call
            for subject in ("reader", "writer", "elsewhere", "nothing"):
                assert (await world.post(call, subject=subject))[0] == 403, (call, subject)
        assert await asyncio.to_thread(world.broker.engine.subscriptions.describe, "orders") == []
        for call in calls:
            expected = 403 if call.get("policy") == letters else 200
            assert (await world.post(call, subject="admin"))[0] == expected, call
        assert world.broker.engine.topics() == ["/default/orders"]

    run(tmp_path, work, access=ACCESS)


def test_strangers_learn_nothing_from_what_they_write(tmp_path):
    """Who is unknown gets 401 whatever the body is; only who is known hears what is wrong in it."""

    async def work(world):
        for body in (b"{", b"[]", {"call": "steal"}, {"call": "list", "topic": "/a/b/c"}):
            status, answer = await world.post(body)
            assert (status, "credentials" in answer["error"]["message"]) == (401, True), body
            assert (await world.post(body, subject="admin"))[0] == 400, body
        assert world.broker.guard.stats()["unauthenticated"] == 4

    run(tmp_path, work, access=ACCESS)


def test_metrics_are_for_who_has_any_grant(tmp_path):
    """A good token that nothing is granted to is not enough; health needs none."""

    async def status_of(world, page, subject=None):
        fields = {} if subject is None else {"Authorization": token(subject, SystemClock())}
        return (await world.client.get(world.url + page, headers=fields)).status_code

    async def work(world):
        for subject in (None, "nothing", "stranger"):
            assert await status_of(world, "/metrics", subject) == 401, subject
            assert await status_of(world, "/readyz", subject) == 200
        for subject in ("reader", "elsewhere", "admin"):
            assert await status_of(world, "/metrics", subject) == 200, subject

    run(tmp_path, work, access=ACCESS)


def test_what_a_browser_could_send_is_refused(tmp_path):
    """Forms and plain texts of other sites are no JSON, and no answer allows other origins."""

    async def work(world):
        await world.post({"call": "create", **named()})
        body = json.dumps({"call": "drop", **named()})
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            reply = await world.client.post(
                world.url + PATH, content=body, headers={"Content-Type": kind}
            )
            assert reply.status_code == 415
        asked = await world.client.options(world.url + PATH, headers={"Origin": "http://a.example"})
        assert asked.status_code == 405
        assert "access-control-allow-origin" not in asked.headers
        assert len((await world.post({"call": "list"}))[1]["result"]) == 1

    run(tmp_path, work)


def test_the_broker_says_beside_its_data_where_it_is(tmp_path):
    """While it serves the file names its process and port; then it is gone."""

    async def work(world):
        path = tmp_path / "data" / "run" / "broker.json"
        written = json.loads(path.read_text())
        assert written["http_url"] == world.url
        await world.broker.stop()
        assert not path.exists()
        with pytest.raises(httpx.ConnectError):
            await world.post({"call": "list"})

    run(tmp_path, work)
