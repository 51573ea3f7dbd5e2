"""`frazil serve` as a process: its output, its clients, and what signals do to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request

import grpc
import pytest
from hpack import Encoder

import frazil
from frazil.clock import SystemClock
from frazil.serve.broker import DRAIN_S
from frazil.serve.danube.proto import danube_pb2 as wire
from frazil.serve.h2 import frames as f
from tests.crash.broker_process import Forks, wait_until
from tests.integration.serve.consuming_world import until
from tests.servers.running import free_port
from tests.unit.serve.auth.certificates import CERTIFICATE, RENEWED_CERTIFICATE, write_certificate
from tests.unit.serve.auth.world import ISSUER, SECRET, token
from tests.unit.serve.h2.peer import REQUEST, prefixed

pytestmark = pytest.mark.integration

SECONDS_MAX = 60
COMMAND = (sys.executable, "-m", "frazil.cli")
READY = '{"event": "ready"'
SETTINGS = {
    "log.ballast_bytes": 0,
    "log.free_bytes_min": 0,
    "log.free_ratio_min": 0,
    "lake.default": "false",
}
CREATE = "/danube.ProducerService/CreateProducer"
SUBSCRIBE = "/danube.ConsumerService/Subscribe"
SEND = "/danube.ProducerService/SendMessage"
RECEIVE = "/danube.ConsumerService/ReceiveMessages"
TOPIC = "/default/orders"


def words(directory, *options, **settings):
    """Return a command line with free ports."""
    pairs = {**SETTINGS, **{key.replace("__", "."): value for key, value in settings.items()}}
    given = [word for key, value in pairs.items() for word in ("--set", f"{key}={value}")]
    ports = ["--port", "0", "--admin-port", "0", "--http-port", "0"]
    return ["serve", "--data", str(directory), *ports, *given, *options]


@pytest.fixture(scope="module", autouse=True)
def forks():
    """Run the process that most brokers are forks of: to import everything takes a second."""
    found = Forks()
    Process.forks = found
    yield found
    found.close()


class Process:
    """A broker that runs; `facts` is what it said when it was ready."""

    forks: Forks

    def __init__(self, command, tmp_path):
        self.output = tmp_path / "output"
        before = self.text().count(READY)
        self.pid = self.forks.start(self.output, [*command, "--output", "json"])
        self._code = None
        wait_until(lambda: self.text().count(READY) > before or self.has_ended())
        assert not self.has_ended(), self.text()
        lines = [line for line in self.text().splitlines() if line.startswith(READY)]
        self.facts = json.loads(lines[-1])
        self.url = self.facts["url"]
        self.target = self.url.partition("://")[2]

    def text(self):
        """Return what this broker and those before it have said."""
        return self.output.read_text() if self.output.exists() else ""

    def has_ended(self):
        if self._code is None:
            self._code = self.forks.poll(self.pid)
        return self._code is not None

    def signal(self, number):
        os.kill(self.pid, number)

    def wait(self):
        """Wait for the end; return the exit code."""
        wait_until(self.has_ended)
        return self._code

    def close(self):
        if not self.has_ended():
            self.signal(signal.SIGKILL)
        self.wait()


@contextlib.contextmanager
def serving(tmp_path, *options, **settings):
    """Run a broker until the end of the block."""
    process = Process(words(tmp_path / "data", *options, **settings), tmp_path)
    try:
        yield process
    finally:
        process.close()


def run(*arguments):
    """Run a program that ends by itself."""
    return subprocess.run(
        arguments, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )


def page(url, *, header=None, context=None):
    """Return status and text of a page."""
    request = urllib.request.Request(url)
    if header is not None:
        request.add_header("authorization", header)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS_MAX, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


# -- starting and stopping -----------------------------------------------------------------------


def test_the_greeting_can_be_pasted(tmp_path):
    """The client program and the commands in it work as they are."""
    command = [*COMMAND, *words(tmp_path / "data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            lines = []
            while not lines or lines[-1] != "END\n":
                lines.append(process.stdout.readline())
                assert lines[-1], "".join(lines)
            text = "".join(lines)
            shown = run("sh", "-c", re.search(r"[^\n]* - <<'END'\n.*END\n", text, re.DOTALL)[0])
            assert shown.stdout == "0 b'hello from a client'\n", shown.stderr
            watch = re.search(r"^ +(\S+ top --data .*)$", text, re.MULTILINE)[1]
            top = run("sh", "-c", f"{watch} --once")
            assert top.returncode == 0, top.stderr
            url = re.search(r"curl (\S+)", text)[1]
            assert page(url) == (200, "ok\n")
        finally:
            process.terminate()
        assert process.wait(SECONDS_MAX) == 0


def test_a_greeting_that_cannot_be_written_ends_nothing(tmp_path):
    """On a full disk, or without a reader of its output, the broker serves and stops in order."""
    command = [*COMMAND, *words(tmp_path / "data"), "--http-port", str(http_port := free_port())]
    with open("/dev/full", "w", encoding="utf-8") as full:
        process = subprocess.Popen(command, stdout=full, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: is_served(f"http://127.0.0.1:{http_port}/readyz"))
    finally:
        process.terminate()
        _, output = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0, output
    assert "greeting_not_written" in output
    assert "bug" not in output


def is_served(url):
    """Return whether a page says that all is well."""
    try:
        return page(url) == (200, "ok\n")
    except urllib.error.URLError:
        return False


def test_sigterm_answers_what_is_under_way_and_ends_streams(tmp_path):
    """Every send is answered or refused as unavailable; what was answered is there afterwards."""

    async def send_all(channel, producer_id, count):
        call = channel.unary_unary("/danube.ProducerService/SendMessage")

        async def one(number):
            message = wire.StreamMessage(
                request_id=number,
                msg_id=wire.MsgID(producer_id=producer_id, topic_name=TOPIC),
                payload=b"%d" % number,
                producer_name="p",
            )
            try:
                await call(message.SerializeToString(), timeout=SECONDS_MAX)
            except grpc.aio.AioRpcError as error:
                return error.code()
            return number

        return await asyncio.gather(*(one(number) for number in range(count)))

    async def scene(broker):
        async with grpc.aio.insecure_channel(broker.target) as channel:
            request = wire.ProducerRequest(
                topic_name=TOPIC, producer_name="p", dispatch_strategy=1
            ).SerializeToString()
            made = wire.ProducerResponse.FromString(await channel.unary_unary(CREATE)(request))
            stream = channel.unary_stream(RECEIVE)(await subscribed(channel))
            await stream.initial_metadata()
            sending = asyncio.create_task(send_all(channel, made.producer_id, 1000))
            await asyncio.wait_for(stream.read(), SECONDS_MAX)
            broker.signal(signal.SIGTERM)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async with asyncio.timeout(SECONDS_MAX):
                    while await stream.read() is not grpc.aio.EOF:
                        pass
            return caught.value.code(), await sending

    with serving(tmp_path) as broker:
        code, answers = asyncio.run(scene(broker))
        assert broker.wait() == 0
    assert code is grpc.StatusCode.UNAVAILABLE
    answered = {each for each in answers if isinstance(each, int)}
    refused = {each for each in answers if not isinstance(each, int)}
    assert answered
    assert refused <= {grpc.StatusCode.UNAVAILABLE}
    with frazil.open(tmp_path / "data") as db:
        records = [record for batch in db.topic(TOPIC).read() for record in batch.records()]
    assert answered <= {int(record["payload"]) for record in records}


async def subscribed(channel):
    """Return the request of a stream for a subscription that begins here."""
    request = wire.ConsumerRequest(
        topic_name=TOPIC, consumer_name="c", subscription="s", subscription_type=0
    ).SerializeToString()
    found = wire.ConsumerResponse.FromString(await channel.unary_unary(SUBSCRIBE)(request))
    return wire.ReceiveRequest(consumer_id=found.consumer_id).SerializeToString()


def silent_consumer(broker):
    """Return a connection with an open stream whose window is full, and that reads nothing more."""

    async def prepare():
        async with grpc.aio.insecure_channel(broker.target) as channel:
            request = wire.ProducerRequest(topic_name=TOPIC, producer_name="p", dispatch_strategy=1)
            found = await channel.unary_unary(CREATE)(request.SerializeToString())
            made = wire.ProducerResponse.FromString(found)
            asked = await subscribed(channel)
            for number in range(4):
                message = wire.StreamMessage(
                    request_id=number,
                    msg_id=wire.MsgID(producer_id=made.producer_id, topic_name=TOPIC),
                    payload=bytes(100_000),
                    producer_name="p",
                )
                await channel.unary_unary(SEND)(message.SerializeToString())
            return asked

    asked = asyncio.run(prepare())
    host, _, port = broker.target.rpartition(":")
    silent = socket.create_connection((host, int(port)), timeout=SECONDS_MAX)
    fields = [(name, RECEIVE if name == ":path" else value) for name, value in REQUEST]
    silent.sendall(
        f.PREFACE
        + f.settings({})
        + f.frame(f.HEADERS, f.END_HEADERS, 1, Encoder().encode(fields))
        + f.frame(f.DATA, f.END_STREAM, 1, prefixed(asked))
    )
    # All that the windows allow has come, and there is more behind it.
    taken = 0
    while taken < f.WINDOW_DEFAULT:
        taken += len(silent.recv(1 << 16))
    return silent


def test_the_end_waits_no_longer_than_the_drain(tmp_path):
    """A client with an open stream, a full window and no mind to read does not keep the broker."""
    with serving(tmp_path, telemetry__log_level="info") as broker, silent_consumer(broker):
        begun = time.monotonic()
        broker.signal(signal.SIGTERM)
        assert broker.wait() == 0
        # It was waited for, and then cut off.
        assert time.monotonic() - begun >= DRAIN_S
        assert "calls_cut_off" in broker.text()


# -- who may connect, and do what ----------------------------------------------------------------


def test_other_machines_need_a_flag_or_protection(tmp_path):
    """An address beyond this machine is refused; with the flag it is used, with a warning."""
    done = run(*COMMAND, *words(tmp_path / "data", "--host", "0.0.0.0"))
    assert done.returncode == 2
    assert "needs TLS and authentication, or serve.insecure=true" in done.stderr
    with serving(tmp_path, "--host", "0.0.0.0", "--insecure") as broker:
        output = broker.text()
        assert (
            "insecure: 0.0.0.0 is reachable from elsewhere without TLS and authentication" in output
        )
        port = broker.facts["http_url"].rpartition(":")[2]
        assert page(f"http://127.0.0.1:{port}/readyz")[0] == 200
        assert socket.gethostname() in broker.facts["advertised_url"]


ACCESS = """
roles:
  both: [{{actions: [produce, consume], namespace: default, topics: [{topics}]}}]
principals:
  user:app: [both]
"""


def protected(tmp_path):
    """Return the settings of a broker with TLS and tokens, whose files are in place."""
    certificate, key = write_certificate(tmp_path)
    for name, text in (("access.yaml", ACCESS.format(topics="orders")), ("secrets", SECRET)):
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_text(text)
    return {
        "serve__tls_certificate_file": certificate,
        "serve__tls_key_file": key,
        "auth__enabled": "true",
        "auth__access_file": str(tmp_path / "access.yaml"),
        "auth__jwt_secret_file": str(tmp_path / "secrets"),
        "auth__jwt_issuer": ISSUER,
        "telemetry__log_level": "info",
    }


def bearer(name="app"):
    return token(name, SystemClock())


def secured(broker):
    """Return a channel that trusts the broker's certificate."""
    credentials = grpc.ssl_channel_credentials(root_certificates=CERTIFICATE.encode())
    return grpc.aio.secure_channel(f"localhost:{broker.target.rpartition(':')[2]}", credentials)


def test_who_has_no_credentials_does_not_stay_connected(tmp_path):
    """A connection that says hello over TLS and makes no call is closed by the broker."""
    context = ssl.create_default_context(cadata=CERTIFICATE)
    context.set_alpn_protocols(["h2"])
    with serving(tmp_path, **protected(tmp_path)) as broker:
        port = int(broker.target.rpartition(":")[2])
        with (
            socket.create_connection(("localhost", port), timeout=SECONDS_MAX) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as silent,
        ):
            silent.sendall(f.PREFACE + f.settings({}))
            received = b""
            with contextlib.suppress(ConnectionError, ssl.SSLEOFError):
                while data := silent.recv(1 << 16):
                    received += data
            assert b"no call was accepted" in received


def presented(broker):
    """Return the certificate that a new connection is shown."""
    port = int(broker.target.rpartition(":")[2])
    return ssl.get_server_certificate(("localhost", port), timeout=SECONDS_MAX)


def test_sighup_changes_who_may_and_the_certificate(tmp_path):
    """Streams whose grant is gone end, a new certificate is shown, and a bad file changes nothing."""
    settings = protected(tmp_path)
    access = tmp_path / "access.yaml"

    async def scene(broker):
        header = (("authorization", bearer()),)
        async with secured(broker) as channel:

            async def code():
                request = wire.ProducerRequest(
                    topic_name=TOPIC, producer_name="p", dispatch_strategy=1
                )
                try:
                    await channel.unary_unary(CREATE)(request.SerializeToString(), metadata=header)
                except grpc.aio.AioRpcError as error:
                    return error.code()
                return grpc.StatusCode.OK

            assert await code() is grpc.StatusCode.OK
            request = wire.ConsumerRequest(
                topic_name=TOPIC, consumer_name="c", subscription="s", subscription_type=0
            ).SerializeToString()
            found = await channel.unary_unary(SUBSCRIBE)(request, metadata=header)
            consumer_id = wire.ConsumerResponse.FromString(found).consumer_id
            asked = wire.ReceiveRequest(consumer_id=consumer_id).SerializeToString()
            stream = channel.unary_stream(RECEIVE)(asked, metadata=header)
            await stream.initial_metadata()
            access.write_text("roles: [not, what, it, was]")
            broker.signal(signal.SIGHUP)
            await until(lambda: "credentials_not_replaced" in broker.text())
            assert await code() is grpc.StatusCode.OK
            access.write_text(ACCESS.format(topics="others"))
            broker.signal(signal.SIGHUP)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await asyncio.wait_for(stream.read(), SECONDS_MAX)
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            assert await code() is grpc.StatusCode.PERMISSION_DENIED

    with serving(tmp_path, **settings) as broker:
        asyncio.run(scene(broker))
        assert presented(broker) == CERTIFICATE
        (tmp_path / "certificate.pem").write_text(RENEWED_CERTIFICATE)
        broker.signal(signal.SIGHUP)
        asyncio.run(until(lambda: presented(broker) == RENEWED_CERTIFICATE))
        output = broker.text()
        assert "certificate_replaced" in output
        assert SECRET not in output
        assert "not, what" not in output
