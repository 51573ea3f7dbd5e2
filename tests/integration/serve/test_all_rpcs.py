"""Every call of the protocol is served where it belongs, and nothing passes by the guard."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from frazil.clock import SystemClock
from tests.integration.serve.rpc_inputs import good, rpcs_in_order
from tests.integration.serve.rpc_world import serving
from tests.support.rpcs import RPCS, SERVICES, Port
from tests.unit.serve.auth.world import ISSUER, SECRET, token

pytestmark = pytest.mark.integration

CODES = grpc.StatusCode
UNKNOWN_METHOD = (CODES.UNIMPLEMENTED, "unknown method")
ACCESS = """
roles:
  all: [{actions: [produce, consume, admin], namespace: "*", topics: ["*"], subjects: ["*"]}]
principals:
  user:all: [all]
  user:nothing: []
"""


def with_access(tmp_path):
    """Return the settings of a broker that asks who calls."""
    paths = {}
    for name, text in (("access.yaml", ACCESS), ("secrets", SECRET)):
        path = tmp_path / name
        path.touch(0o600)
        path.write_text(text)
        paths[name] = str(path)
    return {
        "auth.enabled": True,
        "auth.access_file": paths["access.yaml"],
        "auth.jwt_secret_file": paths["secrets"],
        "auth.jwt_issuer": ISSUER,
    }


def test_every_call_is_served_on_its_ports_alone(tmp_path):
    """A good request of each is answered OK on its ports, and is unknown on the other."""

    async def scene():
        served = {}
        async with serving(tmp_path) as world:
            await world.prepare()
            for rpc in rpcs_in_order():
                for port in Port:
                    data = good(rpc.request, **world.known).SerializeToString()
                    answer = await world.ask(rpc, port, data)
                    served.setdefault(rpc.path, {})[port] = answer
            world.check_unharmed()
        return served

    served = asyncio.run(scene())
    assert set(served) == set(RPCS)
    for path, answers in served.items():
        for port, answer in answers.items():
            if port in RPCS[path].ports:
                assert answer[0] is not CODES.UNIMPLEMENTED, (path, answer)
            else:
                assert answer == UNKNOWN_METHOD, path
    refused = {path: answers for path, answers in served.items() if not is_fine(path, answers)}
    assert refused == {}


NOT_POSSIBLE = {
    "/danube_admin.TopicAdmin/CreateTopic": CODES.ALREADY_EXISTS,
    "/danube_admin.NamespaceAdmin/CreateNamespace": CODES.ALREADY_EXISTS,
    "/danube_admin.NamespaceAdmin/DeleteNamespace": CODES.FAILED_PRECONDITION,
    "/danube_schema.SchemaRegistry/DeleteSchemaVersion": CODES.FAILED_PRECONDITION,
}
"""Good requests that cannot be granted: what they make is there, what they delete is in use."""


def is_fine(path, answers):
    """Tell whether the first port of a call answered as a good request deserves."""
    code, _ = answers[min(RPCS[path].ports)]
    return code in {CODES.OK, NOT_POSSIBLE.get(path)}


def test_services_by_name_only_are_unimplemented(tmp_path):
    """ClusterAdmin, SecurityAdmin, unknown methods and unknown services have that status."""
    empty = [name for name in SERVICES if not any(rpc.service == name for rpc in RPCS.values())]
    paths = [f"/{name}/Anything" for name in (*empty, *SERVICES, "danube.Nothing", "x")]

    async def scene():
        async with serving(tmp_path) as world:
            for port in Port:
                for path in paths:
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await world.channels[port].unary_unary(path)(b"")
                    assert (caught.value.code(), caught.value.details()) == UNKNOWN_METHOD, path

    asyncio.run(scene())
    assert {"danube_admin.ClusterAdmin", "danube_admin.SecurityAdmin"} <= set(empty)


def test_no_call_of_the_broker_passes_by_the_guard(tmp_path):
    """Each call on each of its ports: without credentials, with bad ones, without a grant, with all."""
    clock = SystemClock()
    bad = (
        (),
        (("authorization", "Bearer guess"),),
        (("authorization", token("all", clock, secret="x" * 32)),),
        (("x-danube-internal-broker", "broker/1"),),
    )
    nothing = (("authorization", token("nothing", clock)),)
    everything = (("authorization", token("all", clock)),)

    async def scene():
        asked = 0
        async with serving(tmp_path / "data", **with_access(tmp_path)) as world:
            await world.prepare(everything)
            for rpc in rpcs_in_order():
                data = good(rpc.request, **world.known).SerializeToString()
                for port in rpc.ports:
                    for metadata in bad:
                        code, _ = await world.ask(rpc, port, data, metadata)
                        assert code is CODES.UNAUTHENTICATED, (rpc.path, metadata)
                        asked += 1
                    code, text = await world.ask(rpc, port, data, nothing)
                    assert code is CODES.PERMISSION_DENIED, (rpc.path, code)
                    assert text.startswith("no binding grants ")
                    code, text = await world.ask(rpc, port, data, everything)
                    refusals = {CODES.UNAUTHENTICATED, CODES.PERMISSION_DENIED, CODES.UNIMPLEMENTED}
                    assert code not in refusals, (rpc.path, code, text)
            world.check_unharmed()
        return asked

    assert asyncio.run(scene()) == len(bad) * sum(len(rpc.ports) for rpc in RPCS.values())
