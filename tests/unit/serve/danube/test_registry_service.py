"""The routes of the registry are those of the protocol."""

from __future__ import annotations

import asyncio

import frazil
from frazil.serve.danube.admin_calls import Acts
from frazil.serve.danube.registry_service import Schemas, registry_routes
from frazil.serve.danube.services import RPCS
from frazil.serve.danube.topics import Topics

SETTINGS = {"log.ballast_bytes": 0, "log.free_bytes_min": 0, "log.free_ratio_min": 0}
SERVICE = "danube_schema.SchemaRegistry"


def test_every_call_of_the_registry_is_served(tmp_path):
    """There is a route for each of the eleven calls, none for another, and none streams."""

    async def paths(engine):
        schemas = Schemas(engine, Topics(engine))
        try:
            return registry_routes(schemas, Acts())
        finally:
            await schemas.close()

    with frazil.open(tmp_path, **SETTINGS) as engine:
        routes = asyncio.run(paths(engine))
    wanted = {path: rpc.is_stream for path, rpc in RPCS.items() if rpc.service == SERVICE}
    assert {path: route.is_stream for path, route in routes.items()} == wanted
    assert len(wanted) == 11
