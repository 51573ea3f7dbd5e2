"""A broker that starts: who connects while the log is being recovered waits, and is served then."""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import sys
import urllib.error
import urllib.request

import grpc
import pytest

import frazil
from frazil.errors import Unavailable
from frazil.serve.danube.proto.danube_pb2 import TopicLookupRequest, TopicLookupResponse
from frazil.serve.listening import bind, listen
from tests.crash.broker_process import SETTINGS, environment, wait_until
from tests.servers.running import free_ports
from tests.unit.serve.auth.certificates import CERTIFICATE, write_certificate

pytestmark = pytest.mark.integration

SECONDS_MAX = 60
TOPIC = "/default/kept"
LOOKUP = "/danube.Discovery/TopicLookup"
SLOW_DISK = """
import errno, pathlib, sys, time
from frazil.cli import main
from frazil.fs import RealFileSystem

gate, whole = pathlib.Path(sys.argv.pop(1)), RealFileSystem.open

def slow(self, path, mode):
    while "/journal/" in path and not gate.exists():
        time.sleep(0.01)
    if "/journal/" in path and gate.read_text() == "broken":
        raise OSError(errno.EIO, "the disk is broken", path)
    return whole(self, path, mode)

RealFileSystem.open = slow
main()
"""
"""The command on a disk that gives no file of the journal before the gate, a file, is there."""


class Starting:
    """A broker as a process that recovers its log for as long as the test wants."""

    def __init__(self, tmp_path, *, ports=None, **settings):
        self.tmp_path = tmp_path
        self.port, self.admin_port, self.http_port = ports or free_ports(3)
        self.gate = tmp_path / "gate"
        self.output = tmp_path / "output"
        places = {
            "serve.port": self.port,
            "serve.admin_port": self.admin_port,
            "serve.http_port": self.http_port,
        }
        pairs = {**SETTINGS, **places, **settings}
        given = [word for key, value in pairs.items() for word in ("--set", f"{key}={value}")]
        words = ["serve", "--data", str(tmp_path / "data"), *given, "--output", "json"]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SLOW_DISK, str(self.gate), *words],
                stdout=output,
                stderr=subprocess.PIPE,
                text=True,
                env=environment(),
            )

    def go_on(self, how="whole"):
        """Let the recovery end, or fail."""
        draft = self.tmp_path / "draft"
        draft.write_text(how)
        draft.rename(self.gate)

    def has_listened(self):
        """Whether both ports take connections; the broker must not have ended."""
        assert self.process.poll() is None, self.process.stderr.read()
        return is_open(self.port) and is_open(self.admin_port)

    def health(self, page):
        """Return a page's status and text."""
        try:
            url = f"http://127.0.0.1:{self.http_port}/{page}"
            with urllib.request.urlopen(url, timeout=SECONDS_MAX) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def end(self):
        """Wait for the end; return the exit code and what was said."""
        _, errors = self.process.communicate(timeout=SECONDS_MAX)
        return self.process.returncode, errors

    def close(self):
        """Leave no process behind."""
        if self.process.poll() is None:
            self.process.kill()
        if not self.process.stderr.closed:
            self.process.communicate()


@contextlib.contextmanager
def starting(tmp_path, **settings):
    """Run a broker on a directory with a topic; it recovers until `go_on`."""
    with frazil.open(tmp_path / "data", **SETTINGS) as db:
        db.create_topic(TOPIC).append(b"kept")
    with contextlib.closing(Starting(tmp_path, **settings)) as broker:
        yield broker


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=SECONDS_MAX)


def is_open(port):
    """Whether somebody listens on a port."""
    try:
        connect(port).close()
    except ConnectionRefusedError:
        return False
    return True


def reset(port):
    """Connect, say something and be gone, without a word of farewell."""
    with connect(port) as client:
        client.sendall(b"PRI * HTTP/2.0")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def channel_to(port, *, tls):
    """Return a channel, which trusts the broker's certificate."""
    if not tls:
        return grpc.insecure_channel(f"127.0.0.1:{port}")
    credentials = grpc.ssl_channel_credentials(root_certificates=CERTIFICATE.encode())
    return grpc.secure_channel(f"localhost:{port}", credentials)


def looked_up(channel):
    """Return a call under way."""
    call = channel.unary_unary(
        LOOKUP, TopicLookupRequest.SerializeToString, TopicLookupResponse.FromString
    )
    # Who is refused a connection fails at once.
    return call.future(TopicLookupRequest(request_id=7, topic=TOPIC), timeout=SECONDS_MAX)


@pytest.mark.parametrize("tls", [False, True])
def test_a_call_made_while_the_log_is_recovered_is_answered_then(tmp_path, tls):
    """It waits, beside connections whose clients are gone; until then nothing says ready."""
    settings = {}
    if tls:
        certificate, key = write_certificate(tmp_path)
        settings = {"serve.tls_certificate_file": certificate, "serve.tls_key_file": key}
    with starting(tmp_path, **settings) as broker:
        wait_until(broker.has_listened)
        for _ in range(20):
            reset(broker.port)
            connect(broker.port).close()
        with channel_to(broker.port, tls=tls) as channel:
            answer = looked_up(channel)
            if not tls:
                assert broker.health("readyz") == (503, b"starting\n")
                assert broker.health("healthz")[0] == 200
                assert broker.health("metrics") == (503, b"starting\n")
            assert not answer.done()
            assert broker.output.read_text() == ""
            broker.go_on()
            assert answer.result().request_id == 7
            assert tls or broker.health("metrics")[0] == 200
        wait_until(broker.output.read_text)
        assert f":{broker.port}" in broker.output.read_text()
        broker.process.terminate()
        assert broker.end() == (0, "")


def test_a_start_that_fails_leaves_no_port_and_nobody_waiting(tmp_path):
    """A waiting connection ends; the next one is refused."""
    with starting(tmp_path) as broker:
        wait_until(broker.has_listened)
        with connect(broker.port) as waiting:
            broker.go_on("broken")
            code, errors = broker.end()
            assert code != 0
            assert "the disk is broken" in errors
            with contextlib.suppress(ConnectionResetError):
                assert waiting.recv(1) == b""
        assert not is_open(broker.port)
        assert not is_open(broker.admin_port)
        assert broker.output.read_text() == ""


def test_a_second_process_is_refused_while_the_first_recovers(tmp_path):
    """On the same ports and on others its error has the pid, and the first one goes on."""
    with starting(tmp_path) as broker:
        wait_until(broker.has_listened)
        for ports in (None, (broker.port, broker.admin_port, broker.http_port)):
            with contextlib.closing(Starting(tmp_path, ports=ports)) as second:
                code, errors = second.end()
            assert code == 4
            assert f"pid={broker.process.pid} " in errors
        with channel_to(broker.port, tls=False) as channel:
            answer = looked_up(channel)
            broker.go_on()
            assert answer.result().request_id == 7


def test_a_taken_port_is_reported_before_the_log_is_recovered(tmp_path):
    """Nobody waits for a long recovery to hear that it was in vain."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with starting(tmp_path, ports=(port, *free_ports(2))) as broker:
            code, errors = broker.end()
    assert code == 5
    assert f"port={port} setting=serve.port" in errors


def test_a_port_that_another_socket_listens_on_meanwhile_is_reported():
    """Two may have bound an address; the one that listens second says which setting to change."""
    with bind("127.0.0.1", 0, setting="serve.port") as first:
        port = first.getsockname()[1]
        with bind("127.0.0.1", port, setting="serve.port") as second:
            listen(first, setting="serve.port")
            with pytest.raises(Unavailable, match=f"port={port} setting=serve.port"):
                listen(second, setting="serve.port")
