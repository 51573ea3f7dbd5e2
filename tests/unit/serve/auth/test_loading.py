"""The guard from settings: what its files must be, and that no secret is ever shown."""

from __future__ import annotations

import io
import logging
import os
import pickle
import traceback

import pytest

from frazil import telemetry
from frazil.config import load_settings
from frazil.errors import InvalidRequest
from frazil.serve.auth.files import read_private
from frazil.serve.auth.guard import announce_exposure, load_credentials, load_guard
from frazil.serve.danube.proto import danube_pb2 as data
from frazil.serve.danube.rpcs import RPCS
from frazil.serve.grpc.codec import Code
from tests.support import SimulatedClock
from tests.unit.serve.auth.world import ACCESS, ISSUER, KEY, NEEDS, SECRET, FakeCall, token

CREATE = "/danube.ProducerService/CreateProducer"


@pytest.fixture
def log(monkeypatch):
    """All events, down to the least important."""
    stream = io.StringIO()
    monkeypatch.setattr(telemetry.LOGGER, "handlers", [])
    monkeypatch.setattr(telemetry.LOGGER, "propagate", False)
    before = telemetry.LOGGER.level
    telemetry.configure(stream, log_level="debug", log_format="json")
    yield stream
    telemetry.LOGGER.setLevel(before)


def private(path, text, mode=0o600):
    """Write a file with a mode."""
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def settings_of(tmp_path, *, access=ACCESS, secrets=SECRET, **overrides):
    """Return settings with both files in place."""
    return load_settings(
        environment={},
        overrides={
            "auth.enabled": True,
            "auth.access_file": private(tmp_path / "access.yaml", access),
            "auth.jwt_secret_file": private(tmp_path / "secrets", secrets),
            "auth.jwt_issuer": ISSUER,
            **overrides,
        },
    )


def create(header):
    """Return a call that creates a producer on /default/orders."""
    message = data.ProducerRequest(topic_name="/default/orders").SerializeToString()
    return FakeCall(CREATE, message, {"authorization": header})


@pytest.fixture
def clock():
    """Return a clock that stands still."""
    return SimulatedClock(step_us=0)


def test_the_guard_takes_what_the_files_say(tmp_path, clock):
    """Tokens of the secret file and keys of the access file open what the roles grant."""
    guard = load_guard(settings_of(tmp_path), needs=NEEDS, clock=clock)
    assert guard.enabled
    assert guard(create(token("writer", clock))) is None
    assert guard(create(f"Bearer {KEY.text}")) is None
    assert guard(create(token("reader", clock)))[0] is Code.PERMISSION_DENIED


def test_the_defaults_let_everybody_in(tmp_path):
    """Without authentication no file is needed, and the rate is the settings'."""
    settings = load_settings(environment={}, overrides={"serve.requests_s_max": 2})
    guard = load_guard(settings, needs=NEEDS, clock=SimulatedClock(step_us=0))
    assert not guard.enabled
    found = [guard(FakeCall(path)) for path in list(RPCS)[:3]]
    assert found[:2] == [None, None]
    assert found[2][0] is Code.RESOURCE_EXHAUSTED


def test_the_skew_and_the_audience_are_used(tmp_path, clock):
    """A token that ended 20 s ago is taken, one of 40 s ago is not; nor is one for another audience."""
    for lives_s, code in ((-40, Code.UNAUTHENTICATED), (-20, None)):
        old = token("writer", clock, lives_s=lives_s)
        found = load_guard(settings_of(tmp_path), needs=NEEDS, clock=clock)(create(old))
        assert (found and found[0]) == code
    settings = settings_of(tmp_path, **{"auth.jwt_audience": "broker"})
    guard = load_guard(settings, needs=NEEDS, clock=clock)
    assert guard(create(token("writer", clock)))[0] is Code.UNAUTHENTICATED


@pytest.mark.parametrize("name", ["access.yaml", "secrets"])
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_files_that_others_can_use_are_refused(tmp_path, name, mode):
    """Keys and secrets must be their owner's alone, also against writing."""
    settings = settings_of(tmp_path)
    (tmp_path / name).chmod(mode)
    with pytest.raises(InvalidRequest, match="0600"):
        load_credentials(settings.auth)


def test_files_that_are_none_are_refused(tmp_path):
    """Errors of a directory, an absent, a large and a binary file have the path."""
    large = private(tmp_path / "large", "x" * ((1 << 20) + 1))
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\xff")
    binary.chmod(0o600)
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path, tmp_path / "absent", large, binary, tmp_path / "pipe", "a\0b"):
        with pytest.raises(InvalidRequest, match="a file of ours") as caught:
            read_private(str(path), what="a file of ours")
        assert caught.value.details["path"] == str(path)
        assert caught.value.__cause__ is None


@pytest.mark.parametrize("text", ["", "\n\n", "short", f"{SECRET}\nshort", "\n".join([SECRET] * 9)])
def test_secrets_that_are_weak_or_too_many_are_refused(tmp_path, text):
    """Each line is a secret of at least 32 bytes, and there are one to eight."""
    with pytest.raises(InvalidRequest, match="secret"):
        load_credentials(settings_of(tmp_path, secrets=text).auth)


def test_an_exposed_address_is_reported(log):
    """Only an address beyond this machine without TLS or authentication is, with what it lacks."""
    open_to_all = {"serve.host": "0.0.0.0", "serve.insecure": True}
    found = announce_exposure(load_settings(environment={}, overrides=open_to_all))
    assert found == ["insecure: 0.0.0.0 is reachable from elsewhere without TLS and authentication"]
    assert "listening_insecurely" in log.getvalue()
    assert announce_exposure(load_settings(environment={})) == []


def secrets_of(clock):
    """Return what must never be seen, and headers that hold it."""
    good, forged = token("writer", clock), token("writer", clock, secret="another-secret" * 3)
    headers = [
        good,
        forged,
        token("nothing", clock),
        token("writer", clock, lives_s=-100),
        token("writer", clock, issuer="x"),
        f"Bearer {KEY.text}",
        f"Bearer {KEY.text[:-1]}0",
        f"Basic {KEY.text}",
        f"{good}\n{good}",
        f"Bearer {SECRET}",
    ]
    parts = [piece for header in headers for piece in header.split(" ", 1)[1].split(".")]
    return [SECRET, KEY.digest, KEY.text[-32:-1], *(p for p in parts if len(p) > 20)], headers


def test_no_secret_is_in_logs_errors_or_statuses(tmp_path, log, clock):
    """Calls with good, bad and forged credentials leave no part of one anywhere that is shown."""
    hidden, headers = secrets_of(clock)
    settings = settings_of(tmp_path)
    guard = load_guard(settings, needs=NEEDS, clock=clock)
    shown = [repr(guard), repr(vars(guard)), repr(settings), str(settings.values())]
    for header in headers:
        for path in RPCS:
            clock.advance(1.0)
            shown.append(repr(guard(FakeCall(path, b"", {"authorization": header}))))
            shown.append(repr(guard(create(header))))
    shown += [repr(load_credentials(settings.auth)), repr(guard.stats())]
    shown.append(log.getvalue())
    assert "call_unauthenticated" in log.getvalue()
    assert "call_denied" in log.getvalue()
    for secret in hidden:
        assert not [text for text in shown if secret in text]


@pytest.mark.parametrize("broken", ["access.yaml", "secrets"])
def test_no_secret_is_in_the_refusal_of_a_file(tmp_path, broken):
    """A file that cannot be read is refused without a line of it, in the whole chain of errors."""
    settings = settings_of(tmp_path)
    path = tmp_path / broken
    kept = path.read_bytes()
    for text in (kept[:-9] + b"\xff", kept.replace(b":", b"", 1), b"]" + kept, kept[:20]):
        private(path, "")
        path.write_bytes(text)
        try:
            load_credentials(settings.auth)
        except InvalidRequest as error:
            seen = "".join(traceback.format_exception(error)) + repr(pickle.dumps(error))
            assert SECRET not in seen
            assert KEY.digest not in seen


def test_a_flood_of_bad_calls_does_not_flood_the_log(tmp_path, log, clock):
    """A thousand refusals in a second are ten lines, and all are counted."""
    guard = load_guard(settings_of(tmp_path), needs=NEEDS, clock=clock)
    for _ in range(1000):
        guard(FakeCall(CREATE))
    assert len(log.getvalue().splitlines()) == 10
    assert guard.stats()["unauthenticated"] == 1000
    assert logging.getLevelName(telemetry.LOGGER.level) == "DEBUG"


def test_a_caller_cannot_write_lines_of_its_own(tmp_path, log, clock):
    """Line breaks in what the caller sent do not break a line of the log."""
    guard = load_guard(settings_of(tmp_path), needs=NEEDS, clock=clock)
    guard(FakeCall("/x\nevil", b"", {"authorization": "Bearer a\nb"}, peer="p\nq"))
    assert len(log.getvalue().splitlines()) == 1
