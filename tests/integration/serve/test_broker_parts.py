"""The parts of a broker put together: every call has a handler, limits are the settings'."""

from __future__ import annotations

import asyncio

import pytest

import frazil
from frazil.cli.serve import lake_news
from frazil.config import load_settings
from frazil.errors import Unavailable
from frazil.serve.broker import connection_limits, server_limits
from frazil.serve.danube import rpcs
from frazil.serve.danube.routes import Services
from frazil.serve.danube.topics import Topics
from frazil.serve.listening import Address, address_of, bind
from tests.support.rpcs import RPCS

pytestmark = pytest.mark.integration
SETTINGS = {"log.ballast_bytes": 0, "log.free_bytes_min": 0, "log.free_ratio_min": 0}
ADDRESSES = {
    "advertised_url": "http://broker:1",
    "admin_url": "http://broker:2",
    "http_url": "http://broker:3",
}


def test_every_call_of_the_protocol_has_a_handler_and_a_rule(tmp_path):
    """Both ports together serve all calls and no other; the guard knows each; kinds fit."""

    async def scene(db):
        parts = Services(db, addresses=ADDRESSES)
        try:
            return parts.data_routes(), parts.admin_routes()
        finally:
            parts.begin_close()
            await parts.close()

    with frazil.open(tmp_path, **SETTINGS) as db:
        data, admin = asyncio.run(scene(db))
    assert set(data) | set(admin) == set(RPCS) == set(rpcs.RPCS)
    assert set(data) & set(admin) == {path for path in RPCS if path.startswith("/danube_schema.")}
    assert not [path for path in data if path.startswith("/danube_admin.")]
    for path, route in {**data, **admin}.items():
        assert route.is_stream is RPCS[path].is_stream, path


def test_limits_are_those_of_the_settings():
    """What a peer may take is set, and a request of the largest size fits."""
    settings = load_settings(
        environment={},
        overrides={
            "serve.connections_max": 7,
            "topics.message_bytes_max": "8MiB",
        },
    )
    found = server_limits(settings)
    assert (found.connections_max, found.message_bytes_max) == (7, 11 << 20)
    assert (found.handshake_s, found.keepalive_s) == (5.0, 20.0)
    assert found.unfinished_bytes_max > found.message_bytes_max


@pytest.mark.parametrize(("places", "admin"), [(1024, 100), (10, 2), (2, 1)])
def test_clients_and_administration_share_the_places_for_connections(places, admin):
    """Together they have as many as are set, and clients cannot take those of administration."""
    settings = load_settings(environment={}, overrides={"serve.connections_max": places})
    clients, administration = connection_limits(settings.serve)

    class Used:
        is_used = True

        def __init__(self, number):
            self.peer = f"10.0.{number >> 8}.{number & 255}:1"

        def idle_s(self):
            return 0.0

    def admitted(limits):
        """Return how many are admitted, each from another address and in use."""
        return sum(limits.admit(Used(number), None) for number in range(places + 1))

    assert (admitted(clients), admitted(administration)) == (places - admin, admin)


def test_a_connection_has_room_for_ten_thousand_streams_and_for_calls_beside_them():
    """By default; nothing has to be set for a client with that many consumers."""
    found = server_limits(load_settings(environment={}))
    assert found.long_calls_max >= 10_000
    assert found.streams_max - found.long_calls_max >= 1_000


def test_addresses_are_taken_or_named():
    """Port 0 becomes a free port; errors of a taken port and an unknown host name the setting."""
    with bind("127.0.0.1", 0, setting="serve.port") as first:
        port = address_of(first).port
        assert port > 0
        first.listen()
        with pytest.raises(Unavailable, match=rf"port={port} setting=serve\.port"):
            bind("127.0.0.1", port, setting="serve.port")
    with pytest.raises(Unavailable, match=r"host=no\.such\.host\.invalid setting=serve\.host"):
        bind("no.such.host.invalid", 0, setting="serve.host")
    assert Address("::1", 5).url(tls=True) == "https://[::1]:5"
    assert Address("127.0.0.1", 5).url(tls=False) == "http://127.0.0.1:5"


def test_news_of_the_lake_are_reported_once(tmp_path):
    """Its start, and the first rows of a table, are one line each; without tables there is none."""
    with frazil.open(tmp_path, **SETTINGS) as db:
        db.lake.by_itself = False
        said = set()
        db.create_topic("plain", lake=False)
        assert lake_news(db, said) == []
        db.create_topic("hello", lake=True)
        assert lake_news(db, said) == ["lake: starting"]
        assert lake_news(db, said) == []
        db.lake.topics["/default/hello"].counts["rows"] = 1_200
        assert lake_news(db, said) == [
            "lake: /default/hello has its first 1,200 rows in default.hello"
        ]
        assert lake_news(db, said) == []


def test_what_cannot_be_a_table_is_a_topic_all_the_same(tmp_path):
    """With tables by default, names that differ in case and topics without storage have none."""

    async def scene(db):
        topics = Topics(db)
        await topics.make("/default/orders", is_reliable=True)
        await topics.make("/default/Orders", is_reliable=True)
        await topics.make("/default/ticks", is_reliable=False)
        await topics.make("/default/wide", is_reliable=True, partitions=2)

    with frazil.open(tmp_path, **SETTINGS, **{"lake.default": True}) as db:
        db.lake.by_itself = False
        asyncio.run(scene(db))
        found = {name: db.describe(name)["lake"] for name in db.topics()}
    assert found == {
        "/default/Orders": False,
        "/default/orders": True,
        "/default/ticks": False,
        "/default/wide": True,
    }
