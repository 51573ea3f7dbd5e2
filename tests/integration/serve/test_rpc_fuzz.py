"""Every call with every field at its limits: a status of the protocol, never a bug, never a hang."""

from __future__ import annotations

import asyncio
import os
import random

import pytest

from tests.integration.serve.rpc_inputs import junk_of, limits_of, rpcs_in_order, under_new_names
from tests.integration.serve.rpc_world import serving

pytestmark = pytest.mark.integration

JUNK = int(os.environ.get("FRAZIL_RPC_JUNK", "20"))
"""Random requests for each call."""


def test_no_request_is_answered_by_a_bug(tmp_path):
    """Every field of every request at its limits; then the broker, started again, serves on."""
    seed = random.randrange(1 << 31)
    print(f"seed {seed}")
    draw = random.Random(seed)

    async def scene():
        wrong = []
        async with serving(tmp_path) as world:
            await world.prepare()
            for rpc in rpcs_in_order():
                for port in rpc.ports:
                    requests = list(limits_of(rpc.request, **world.known))
                    requests += junk_of(draw, rpc.request, JUNK, **world.known)
                    if rpc.name.startswith("Create"):
                        requests += under_new_names(requests)
                    wrong += await world.ask_all(rpc, port, dict.fromkeys(requests))
            assert wrong == []
            await world.check_published_client("/default/real")
            world.check_unharmed()
        async with serving(tmp_path) as world:
            await world.check_published_client("/default/real")
            world.check_unharmed()

    asyncio.run(scene())
