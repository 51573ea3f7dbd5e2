"""Section 1.7 of the protocol's page: a `frazil serve` process with TLS and tokens."""

from __future__ import annotations

import asyncio
import time

import grpc
import jwt
import pytest
from danube import DanubeClientBuilder

from tests.integration.serve.consuming_world import producer_of, reader_of
from tests.integration.serve.protocol_world import (
    Refusal,
    Scene,
    Wire,
    serving,
)
from tests.integration.serve.rpc_inputs import good, rpcs_in_order
from tests.support.rpcs import RPCS, Port
from tests.unit.serve.auth.certificates import CERTIFICATE, write_certificate

pytestmark = pytest.mark.integration

CODES = grpc.StatusCode
SECRET = "a-secret-of-tokens-that-nobody-may-see-0001"
ISSUER = "the-issuer"
ACCESS = """
roles:
  all: [{actions: [produce, consume, admin], namespace: "*", topics: ["*"], subjects: ["*"]}]
  writer: [{actions: [produce], namespace: default, topics: [mine]}]
  reader: [{actions: [consume], namespace: default, topics: [orders, mine]}]
principals:
  user:all: [all]
  service_account:writer: [writer]
  service_account:reader: [reader]
  user:nothing: []
"""
ORDERS, OTHER = "/default/orders", "/default/other"
MINE, FOREIGN = "/default/mine", "/default/foreign"
"""Topics of the test by hand, and of the published client's."""
MISSING = (CODES.UNAUTHENTICATED, "Authentication credentials are missing")
INVALID = (CODES.UNAUTHENTICATED, "Invalid token")


def claims(name, **changes):
    """Return the claims of a good token."""
    found = {
        "iss": ISSUER,
        "exp": time.time() + 3600,
        "sub": name,
        "principal_type": "user" if name in {"all", "nothing"} else "service_account",
        "principal_name": name,
        **changes,
    }
    return {key: value for key, value in found.items() if value is not None}


def token(name, *, secret=SECRET, algorithm="HS256", **changes):
    return jwt.encode(claims(name, **changes), secret, algorithm)


def bearing(text, *, scheme="Bearer"):
    return (("authorization", f"{scheme} {text}"),)


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    path = tmp_path_factory.mktemp("protected")
    certificate, key = write_certificate(path)
    for name, text in (("access.yaml", ACCESS), ("secrets", SECRET)):
        (path / name).touch(0o600)
        (path / name).write_text(text)
    settings = {
        "serve.tls_certificate_file": certificate,
        "serve.tls_key_file": key,
        "auth.enabled": "true",
        "auth.access_file": path / "access.yaml",
        "auth.jwt_secret_file": path / "secrets",
        "auth.jwt_issuer": ISSUER,
    }
    trust = grpc.ssl_channel_credentials(root_certificates=CERTIFICATE.encode())
    with serving(path, **settings) as process:
        connection = Wire(process, credentials=trust)
        yield connection
        connection.close()


class As(Wire):
    """The same connection, whose calls have somebody's token."""

    def __init__(self, connection, name):
        self.process, self.channels = connection.process, connection.channels
        self._metadata = bearing(token(name))

    def ask(self, name, request, **more):
        return super().ask(name, request, **{"metadata": self._metadata, **more})

    def stream(self, consumer_id):
        return super().stream(consumer_id, self._metadata)


REFUSED = {
    "no header": ((), MISSING),
    "the header of other brokers": ((("x-danube-internal-broker", "broker/1"),), MISSING),
    "another scheme": (bearing("dXNlcjphbGw=", scheme="Basic"), INVALID),
    "no token": (bearing("guess"), INVALID),
    "another secret": (bearing(token("all", secret="x" * 40)), INVALID),
    "another issuer": (bearing(token("all", iss="somebody")), INVALID),
    "no issuer": (bearing(token("all", iss=None)), INVALID),
    "expired": (bearing(token("all", exp=time.time() - 3600)), INVALID),
    "no end": (bearing(token("all", exp=None)), INVALID),
    "not signed": (bearing(token("all", secret=None, algorithm="none")), INVALID),
    "another algorithm": (bearing(token("all", secret="x" * 64, algorithm="HS512")), INVALID),
}
"""What a call comes with, and what is said to it."""


@pytest.mark.parametrize("situation", REFUSED)
def test_every_call_needs_a_good_token(broker, situation):
    """On every port that it has, each call says the same."""
    metadata, status = REFUSED[situation]
    asked = {
        (rpc.path, port): broker.status(
            rpc.path, port=port, data=good(rpc.request).SerializeToString(), metadata=metadata
        )
        for rpc in RPCS.values()
        for port in rpc.ports
    }
    assert asked == dict.fromkeys(asked, status)
    assert {path for path, _ in asked} == set(RPCS)


@pytest.mark.parametrize("name", ["nothing", "stranger"])
def test_every_call_needs_a_grant(broker, name):
    """Who is known and granted nothing, or not known at all, is denied every call."""
    metadata = bearing(token(name))
    admin = Scene(As(broker, "all"))
    known = {"producer_id": admin.has_producer(), "consumer_id": admin.has_consumer()}
    known["id"] = known["producer_id"]
    for rpc in RPCS.values():
        data = good(rpc.request, **known).SerializeToString()
        for port in rpc.ports:
            code, text = broker.status(rpc.path, port=port, data=data, metadata=metadata)
            assert code is CODES.PERMISSION_DENIED, (rpc.path, code, text)
            assert text.startswith("no binding grants "), rpc.path


def test_every_call_passes_with_all_grants(broker):
    """On each of its ports, whatever its handler answers then."""
    refusals = {CODES.UNAUTHENTICATED, CODES.PERMISSION_DENIED, CODES.UNIMPLEMENTED}
    for rpc in rpcs_in_order():
        data = good(rpc.request).SerializeToString()
        for port in rpc.ports:
            found = broker.status(rpc.path, port=port, data=data, metadata=bearing(token("all")))
            assert found[0] not in refusals, (rpc.path, found)


@pytest.mark.parametrize("kind", ["service_account", "broker_internal"])
def test_a_name_of_another_kind_is_somebody_else(broker, kind):
    """A broker's own token grants nothing by its kind."""
    metadata = bearing(token("all", principal_type=kind))
    status = broker.status(
        "/danube_admin.BrokerAdmin/ListBrokers", port=Port.ADMIN, metadata=metadata
    )
    assert status[0] in {CODES.PERMISSION_DENIED, CODES.UNAUTHENTICATED}


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_a_good_token_is_taken(broker, scheme):
    """The scheme may be written either way; a principal with all grants is served on both ports."""
    metadata = bearing(token("all"), scheme=scheme)
    for port in Port:
        found = broker.status(
            "/danube_schema.SchemaRegistry/ListSubjects", port=port, metadata=metadata
        )
        assert found == (CODES.OK, "")


def denied(call, *arguments):
    """Return whether a call is denied for want of a grant."""
    with pytest.raises(Refusal) as caught:
        call(*arguments)
    assert caught.value.code is CODES.PERMISSION_DENIED
    return caught.value.text.startswith("no binding grants ")


def test_consume_counts_for_its_topic(broker):
    """Who may consume one topic subscribes, receives, acks and nacks there, and nowhere else."""
    admin = Scene(As(broker, "all"))
    for topic in (ORDERS, OTHER):
        admin.made(topic=topic)
    foreign = admin.ask("ConsumerService.Subscribe", admin.consumer(topic=OTHER)).consumer_id
    reader = Scene(As(broker, "reader"))
    reader.topic = admin.topic = ORDERS
    joined = reader.ask("ConsumerService.Subscribe", reader.consumer())
    stream = reader.wire.stream(joined.consumer_id)
    admin.sent(b"a", b"b")
    assert [next(stream).payload for _ in range(2)] == [b"a", b"b"]
    reader.ask("ConsumerService.Ack", reader.ack(0))
    reader.ask("ConsumerService.Nack", reader.nack(1))
    assert not reader.is_closed(1, joined.consumer_id)
    stream.cancel()
    assert denied(reader.ask, "ConsumerService.Subscribe", reader.consumer(topic=OTHER))
    assert denied(reader.ask, "ConsumerService.Ack", reader.ack(topic=OTHER))
    assert denied(reader.ask, "ConsumerService.Nack", reader.nack(topic=OTHER))
    assert denied(reader.ask, "ProducerService.CreateProducer", reader.producer())
    assert denied(reader.ask, "HealthCheck.HealthCheck", reader.health(1, foreign))
    refused = reader.wire.stream(foreign)
    with pytest.raises(grpc.RpcError):
        next(refused)
    assert refused.code() is CODES.PERMISSION_DENIED


def test_published_clients_show_their_tokens(broker, tmp_path):
    """A producer and a consumer with a token for one topic use it; another is denied to both."""
    certificate, _ = write_certificate(tmp_path)

    async def client_of(name):
        builder = DanubeClientBuilder().service_url(broker.process.url).with_tls(certificate)
        return await builder.with_token(token(name)).build()

    async def scene():
        await producer_of(await client_of("all"), topic=FOREIGN)
        denials = []
        for name, make in (("writer", producer_of), ("reader", reader_of)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await make(await client_of(name), topic=FOREIGN)
            denials.append((caught.value.code(), caught.value.details()))
        producer = await producer_of(await client_of("writer"), topic=MINE)
        reader = await reader_of(await client_of("reader"), topic=MINE)
        await producer.send(b"mine")
        (message,) = await reader.take(1)
        await reader.close()
        await producer.close()
        return denials, message.payload

    denials, payload = asyncio.run(scene())
    assert payload == b"mine"
    for code, text in denials:
        assert code is CODES.PERMISSION_DENIED
        assert text.startswith("no binding grants ")
