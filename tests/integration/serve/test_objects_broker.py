"""A broker process with a real S3 server: old records for Danube's clients, and bad hours."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import subprocess
import sys

import pytest

from frazil.serve.http_calls import PATH
from tests.crash.broker_process import Broker, environment, wait_until
from tests.integration.serve.consuming_world import make_producer, make_reader
from tests.servers.seaweed import SeaweedServer

pytestmark = pytest.mark.integration

TOPIC = "/default/orders"
RECORDS = 1_000
SECONDS_MAX = 120
SETTINGS = {
    "objects.interval_s": 0.2,
    "objects.object_bytes_max": "1MiB",
}
# More than readers fetch ahead and keep: an outage is noticed.
PAYLOADS = [b"%d:" % number + b"x" * 50_000 for number in range(RECORDS)]


@pytest.fixture
def server(tmp_path):
    with SeaweedServer(tmp_path / "seaweed") as found:
        yield found


@pytest.fixture
def broker(tmp_path, server):
    found = Broker(tmp_path / "broker", settings={**SETTINGS, **server.settings()})
    found.start()
    found.wait_ready()
    yield found
    found.close()


def post(broker, call):
    """Have the broker do a call of its HTTP port; return the result."""
    connection = http.client.HTTPConnection("127.0.0.1", broker.http_port, timeout=SECONDS_MAX)
    connection.request("POST", PATH, json.dumps(call), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    body = json.loads(answer.read())
    connection.close()
    assert answer.status == 200, body
    return body["result"]


async def publish(broker, payloads):
    """Publish with Danube's client, all of it acked on return."""
    producer = await make_producer(broker.url, topic=TOPIC)
    for payload in payloads:
        await asyncio.wait_for(producer.send(payload), SECONDS_MAX)
    await producer.close()


async def consume(broker, count, *, at=None, act=None):
    """Receive and ack with Danube's client; from the record number `at` on something happens."""
    reader = await make_reader(broker.url, topic=TOPIC)
    found, happening = [], None
    while len(found) < count:
        message = await asyncio.wait_for(reader.queue.get(), SECONDS_MAX)
        await reader.consumer.ack(message)
        found.append(message.payload)
        if len(found) == at:
            happening = asyncio.create_task(act())
    await happening
    await reader.close()
    return found


def lose_disk(broker):
    """Kill the broker, lose its directory, and restore it from the store on an empty one."""
    broker.kill()
    shutil.rmtree(broker.directory / "data")
    given = [f"{key}={value}" for key, value in broker.settings.items()]
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from frazil.cli import main; main()", "restore"),
            *("--from", broker.settings["objects.root"]),
            *("--to", str(broker.directory / "data")),
            *(word for each in given for word in ("--set", each)),
        ],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    broker.start()
    broker.wait_ready()


def test_a_client_reads_old_records_over_an_outage_of_the_store(broker, server):
    """With every record in the store alone, a subscription from the beginning gets each once.

    The store dies in the middle: the broker stays ready and takes records, and the consumer goes
    on by itself when the store is back. Nobody starts anything again.
    """
    asyncio.run(publish(broker, PAYLOADS))
    made = post(broker, {"call": "backup"})
    assert made["uploaded"] == {TOPIC: RECORDS}
    lose_disk(broker)
    call = {"call": "create", "topic": TOPIC, "name": "s", "type": "exclusive"}
    post(broker, {**call, "start": "earliest"})
    later = [b"later"]

    async def outage():
        server.kill()
        assert broker.is_ready()
        await publish(broker, later)
        await asyncio.to_thread(wait_until, lambda: "subscription_cannot_read" in said(broker))
        assert broker.is_ready()
        server.start()

    found = asyncio.run(consume(broker, RECORDS + 1, at=200, act=outage))
    assert found == [*PAYLOADS, *later]
    assert broker.stop() == 0


def said(broker):
    return broker.output.read_text(errors="replace")
