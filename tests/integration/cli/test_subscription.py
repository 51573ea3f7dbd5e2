"""`frazil subscription` on a directory that nobody has open, and beside a broker that has it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading

import pytest
from typer.testing import CliRunner

from frazil.cli.app import app
from frazil.clock import SystemClock
from tests.integration.engine.opening import open_small
from tests.unit.serve.auth.certificates import OTHER_CERTIFICATE, write_certificate
from tests.unit.serve.auth.world import ACCESS, ISSUER, SECRET, token

pytestmark = pytest.mark.integration

SECONDS_MAX = 60
PORTS = ("--port", "0", "--admin-port", "0", "--http-port", "0")


@pytest.fixture
def call(tmp_path):
    """Run `frazil subscription` on a directory with a topic of ten records."""
    with open_small(tmp_path / "data") as db:
        db.create_topic("orders").append_many([b"%d" % number for number in range(10)])

    def run(*words, code=0, **environment):
        given = ["--data", str(tmp_path / "data"), "subscription", *map(str, words)]
        result = CliRunner().invoke(app, given, env={"FRAZIL_TOKEN": None, **environment})
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return run


@contextlib.contextmanager
def serving(tmp_path, **settings):
    """Run a broker on the directory, in a process of its own, until the end of the block."""
    given = [f"--set={key.replace('__', '.')}={value}" for key, value in settings.items()]
    where = ("--data", str(tmp_path / "data"), "--output", "json")
    command = [sys.executable, "-m", "frazil.cli", "serve", *where, *PORTS, *given]
    errors = tmp_path / "stderr"
    with errors.open("wb") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr)
    timer = threading.Timer(SECONDS_MAX, process.kill)
    timer.start()
    try:
        assert json.loads(process.stdout.readline() or "{}").get("event") == "ready", (
            errors.read_text()
        )
        yield
    finally:
        timer.cancel()
        process.terminate()
        try:
            assert process.wait(SECONDS_MAX) == 0, errors.read_text()
        finally:
            process.kill()
            process.stdout.close()


def values(result):
    return json.loads(result.stdout)


def walk(call):
    """Do everything once, as a user would."""
    call("create", "orders", "billing", "--type", "failover", "--from", "earliest")
    again = call("create", "orders", "billing", code=4)
    assert "subscription exists" in again.stderr
    (found,) = values(call("list", "orders", "-o", "json"))
    assert (found["name"], found["type"], found["lag_records"]) == ("billing", "failover", 10)
    assert "billing" in call("list").stdout
    assert values(call("reset", "orders", "billing", "--to", "4", "--yes", "-o", "json")) == {
        "subscription": "billing",
        "offsets": {"/default/orders": 4},
    }
    for place, offset in (("earliest", 0), ("latest", 10), ("2000-01-01T00:00:00Z", 0), ("-1h", 0)):
        done = call("reset", "orders", "billing", "--to", place, "--yes", "-o", "json")
        assert values(done)["offsets"] == {"/default/orders": offset}
    options = ("--poison", "drop", "--ack-timeout", "5s", "--max-unacked", "7", "-o", "json")
    policy = values(call("policy", "orders", "billing", *options))
    assert (policy["poison"], policy["ack_timeout_ms"], policy["max_unacked"]) == ("drop", 5000, 7)
    assert values(call("policy", "orders", "billing", "-o", "json")) == policy
    refused = call("policy", "orders", "billing", "--poison", "dead_letter", code=2)
    assert "dead_letter_topic" in refused.stderr
    call("drop", "orders", "billing", "--yes")
    assert "no such subscription" in call("drop", "orders", "billing", "--yes", code=3).stderr
    assert values(call("list", "-o", "json")) == []


def test_a_directory_that_nobody_has_open(call):
    """All commands work, and what one does the next one sees."""
    walk(call)


def test_a_directory_that_a_broker_serves(call, tmp_path):
    """The broker does the same, in its own process, and its directory stays its own."""
    with serving(tmp_path):
        walk(call)


def test_what_cannot_be_undone_needs_a_yes(call):
    """Without it nothing happens where nobody can be asked."""
    call("create", "orders", "s", "--from", "3")
    assert "--yes" in call("drop", "orders", "s", code=2).stderr
    assert "--yes" in call("reset", "orders", "s", "--to", "latest", code=2).stderr
    (found,) = values(call("list", "orders", "-o", "json"))
    assert found["acked_below"] == 3


def test_wrong_values_are_reported_with_their_option(call):
    """A place or a topic that does not exist is an error of one line."""
    call("create", "orders", "s")
    call("reset", "orders", "s", "--to", 4, "--yes")
    for place in ("soon", "-1", "-0.5"):
        message = call("reset", "orders", "s", "--to", place, "--yes", code=2).stderr
        assert "--to takes earliest" in message
        assert "a span with its unit" in message
    assert values(call("list", "orders", "-o", "json"))[0]["acked_below"] == 4
    assert "no such topic" in call("list", "nothing", code=3).stderr
    assert (
        "within the topic's records"
        in call("reset", "orders", "s", "--to", 99, "--yes", code=2).stderr
    )
    call("policy", "orders", "s", "--ack-timeout", "soon", code=2)


def test_an_engine_that_is_no_broker_is_not_asked(call, tmp_path):
    """A program that has the directory open keeps the command out, with its pid."""
    with open_small(tmp_path / "data") as db:
        run = tmp_path / "data" / "run"
        run.mkdir(exist_ok=True)
        # Of a broker that was killed long ago.
        (run / "broker.json").write_text('{"pid": 1, "http_url": "http://127.0.0.1:9"}')
        message = call("list", code=4).stderr
        assert "pid=" in message
        assert db.topics() == ["/default/orders"]


def test_a_broker_with_authentication(call, tmp_path):
    """Over TLS, with a token of an administrator by option or environment, and no other."""
    certificate, key = write_certificate(tmp_path)
    for name, text in (("access.yaml", ACCESS), ("secrets", SECRET)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    settings = {
        "auth__enabled": "true",
        "auth__access_file": str(tmp_path / "access.yaml"),
        "auth__jwt_secret_file": str(tmp_path / "secrets"),
        "auth__jwt_issuer": ISSUER,
        "serve__tls_certificate_file": certificate,
        "serve__tls_key_file": key,
    }
    administrator, reader = (
        token(name, SystemClock()).removeprefix("Bearer ") for name in ("admin", "reader")
    )
    with serving(tmp_path, **settings):
        assert "--token" in call("list", code=2).stderr
        assert "reader" not in call("list", "--token", reader, code=2).stdout
        call("create", "orders", "s", "--token", administrator)
        found = values(call("list", "-o", "json", FRAZIL_TOKEN=administrator))
        assert [each["name"] for each in found] == ["s"]
        # Somebody else in the broker's place would not get the token.
        (tmp_path / "certificate.pem").write_text(OTHER_CERTIFICATE)
        assert "does not answer" in call("list", "--token", administrator, code=5).stderr
