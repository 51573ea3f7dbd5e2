"""What the process of a broker says of itself: one object a line, and never a secret."""

from __future__ import annotations

import asyncio
import json
import signal

import grpc
import pytest

from frazil.serve.danube.proto import danube_admin_pb2 as admin
from tests.integration.serve.test_serve_command import (
    SECONDS_MAX,
    bearer,
    forks,
    protected,
    serving,
)
from tests.unit.serve.auth.certificates import CERTIFICATE
from tests.unit.serve.auth.world import SECRET

pytestmark = pytest.mark.integration
assert forks, "a fixture of the processes"
TOPIC = "/default/orders"
ADMIN = """
roles:
  all: [{actions: [admin], namespace: "*", topics: ["*"]}]
principals:
  user:app: [all]
"""


async def ask(broker, headers):
    """Ask for a topic with each of the headers; return the statuses."""
    credentials = grpc.ssl_channel_credentials(root_certificates=CERTIFICATE.encode())
    port = broker.facts["admin_url"].rpartition(":")[2]
    found = []
    async with grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel:
        call = channel.unary_unary("/danube_admin.TopicAdmin/CreateTopic")
        data = admin.NewTopicRequest(name=TOPIC, dispatch_strategy=1).SerializeToString()
        for header in headers:
            metadata = [("authorization", header)]
            try:
                await call(data, metadata=metadata, timeout=SECONDS_MAX)
                found.append("OK")
            except grpc.aio.AioRpcError as error:
                found.append(error.code().name)
    return found


def test_events_are_objects_with_facts_and_no_secret(tmp_path):
    """Acts and refusals are lines of JSON with who and whence; no token or secret is anywhere."""
    settings = {**protected(tmp_path), "telemetry__log_format": "json"}
    (tmp_path / "access.yaml").write_text(ADMIN)
    headers = [bearer(), bearer("nobody"), bearer() + "x", "Bearer a-guess-of-a-secret"]
    with serving(tmp_path, **settings) as broker:
        statuses = asyncio.run(ask(broker, headers))
        assert statuses == ["OK", "PERMISSION_DENIED", "UNAUTHENTICATED", "UNAUTHENTICATED"]
        broker.signal(signal.SIGTERM)
        assert broker.wait() == 0
        output = broker.text()
    events = [json.loads(line) for line in output.splitlines()]
    by_name = {each["event"]: each for each in events}
    assert {"ready", "broker_ready", "broker_stopping", "broker_stopped"} <= set(by_name)
    assert all({"time", "level"} <= set(each) for each in events if each["event"] != "ready")
    act = by_name["admin_act"]
    assert act["peer"].startswith("127.0.0.1")
    assert {**act, "peer": "", "time": ""} == {
        "time": "",
        "level": "info",
        "event": "admin_act",
        "path": "/danube_admin.TopicAdmin/CreateTopic",
        "principal": "user:app",
        "peer": "",
        "topic": TOPIC,
        "status": "OK",
    }
    assert by_name["call_denied"]["principal"] == "user:nobody"
    assert [each["event"] for each in events].count("call_unauthenticated") == 2
    hidden = [SECRET, "a-guess-of-a-secret"]
    hidden += [part for header in headers for part in header.split()[-1].split(".") if part]
    assert not [each for each in hidden if each in output]
