"""`frazil doctor --objects` finds what is wrong with a store, and names the setting."""

from __future__ import annotations

import contextlib
import json

import pytest
from typer.testing import CliRunner

from frazil.cli.app import app
from frazil.clock import SystemClock
from frazil.engine import examine_store
from frazil.errors import InvalidRequest
from frazil.objects import open_store
from tests.contract.object_stores import NO_MACHINE, server_of, settings_of
from tests.servers.running import free_port
from tests.servers.seaweed import READER_KEY
from tests.support import SimulatedClock
from tests.support.objects_limits import set_objects_limits
from tests.support.simulated_store import SimulatedStore

pytestmark = pytest.mark.integration

STEPS = ["settings", "list", "write", "create only", "read", "write in parts", "delete"]


@pytest.fixture(autouse=True)
def no_machine(monkeypatch):
    """Let no client ask this machine for credentials."""
    for name, value in NO_MACHINE.items():
        monkeypatch.setenv(name, value)


def server_fixture(kind):
    """Return a fixture: a server of a kind, started once."""

    @pytest.fixture(scope="module", name=kind)
    def started(tmp_path_factory):
        with server_of(kind, tmp_path_factory.mktemp(kind)) as server:
            yield server

    return started


seaweed, moto, gcs, azurite = map(server_fixture, ("seaweed", "moto", "gcs", "azurite"))


def run(overrides, *words):
    """Run the command; return its exit code and what it printed."""
    flags = [part for key, value in overrides.items() for part in ("--set", f"{key}={value}")]
    done = CliRunner().invoke(app, ["doctor", "--objects", *words, *flags])
    assert "Traceback" not in done.output
    return done.exit_code, done.stdout


def judged(overrides):
    """Return exit code and what the command says as JSON."""
    code, text = run(overrides, "--output", "json")
    return code, json.loads(text)


def keys_of(overrides):
    with contextlib.closing(open_store(settings_of(overrides))) as store:
        return [meta.key for meta in store.list("")]


def test_a_store_that_works_passes_every_step(seaweed):
    """All steps are ok, the exit code is 0, and nothing is left behind."""
    code, said = judged(seaweed.settings())
    assert (code, said["ok"]) == (0, True)
    assert [step["name"] for step in said["steps"]] == STEPS
    assert keys_of(seaweed.settings()) == []
    code, text = run(seaweed.settings())
    assert code == 0
    assert "ok" in text


WRONG = {
    "access key": ({"objects.access_key": "nobody"}, "objects.access_key", "list", 2),
    "secret key": ({"objects.secret_key": "wrong"}, "objects.secret_key", "list", 2),
    "rights": ({"objects.access_key": READER_KEY}, "objects.access_key", "write", 2),
    "bucket": ({"objects.root": "s3://no-such-bucket/x"}, "objects.root", "list", 2),
    "scheme": ({"objects.root": "gcs://frazil-test/x"}, "objects.root", "settings", 2),
    "no tls": ({"objects.allow_http": False}, "objects.allow_http", "settings", 2),
    "no url": ({"objects.endpoint": "127.0.0.1:9000"}, "objects.endpoint", "settings", 2),
    "no server": (
        {"objects.endpoint": f"http://127.0.0.1:{free_port()}"},
        "objects.endpoint",
        "list",
        5,
    ),
    "no host": (
        {"objects.endpoint": "http://no-such-host.invalid"},
        "objects.endpoint",
        "list",
        5,
    ),
    "no variable": (
        {"objects.access_key": "${FRAZIL_TEST_NO_SUCH}"},
        "objects.access_key",
        "settings",
        2,
    ),
    "profile": ({"objects.profile": "no-such-profile"}, "objects.profile", "settings", 2),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_setting_is_named(seaweed, what):
    """Each wrong credential, bucket or endpoint is found at its step, with the setting's name."""
    changes, setting, step, exit_code = WRONG[what]
    code, said = judged(seaweed.settings(**changes))
    last = said["steps"][-1]
    assert (last["name"], last["ok"], last["setting"]) == (step, False, setting)
    assert code == exit_code
    assert setting in last["advice"]
    assert f"setting={setting}" in last["error"]
    code, text = run(seaweed.settings(**changes))
    assert code == exit_code
    assert setting in text.replace("\n", "")


def test_a_secret_is_not_in_what_is_said(seaweed):
    """The command prints neither the key nor the secret that it used."""
    overrides = seaweed.settings(
        **{"objects.access_key": "AKIDSESAME", "objects.secret_key": "open-sesame"}
    )
    for words in ((), ("--output", "json")):
        _, text = run(overrides, *words)
        assert "sesame" not in text.lower()


def test_a_paused_server_is_reported_in_time(seaweed):
    """A server that takes connections and says nothing is found by the time-out."""
    set_objects_limits(request_s=1)
    seaweed.pause()
    try:
        code, said = judged(seaweed.settings())
    finally:
        seaweed.resume()
    assert code == 5
    assert said["steps"][-1]["setting"] == "objects.endpoint"


def test_credentials_of_the_environment_are_used(seaweed, monkeypatch):
    """Without keys in the settings those of the environment are taken, references too."""
    given = seaweed.settings()
    access, secret = given["objects.access_key"], given["objects.secret_key"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", access)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    for key, value in (("", ""), ("${AWS_ACCESS_KEY_ID}", "${AWS_SECRET_ACCESS_KEY}")):
        code, said = judged({**given, "objects.access_key": key, "objects.secret_key": value})
        assert (code, said["ok"]) == (0, True)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    code, said = judged({**given, "objects.access_key": "", "objects.secret_key": ""})
    assert said["steps"][-1]["setting"] == "objects.secret_key"
    # Keys of the settings are not mixed with a token that belongs to others.
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of somebody else")
    assert judged(given)[0] == 0


def test_without_any_credentials_it_is_said(seaweed):
    """Neither settings, environment nor machine have a key: the setting is named."""
    code, said = judged(seaweed.settings(**{"objects.access_key": "", "objects.secret_key": ""}))
    assert code == 5
    assert said["steps"][-1]["setting"] == "objects.access_key"


def test_a_profile_and_its_role_are_used(moto, tmp_path, monkeypatch):
    """Credentials come from AWS's files; a profile may name a role, which is assumed."""
    path = tmp_path / "credentials"
    path.write_text("[uploads]\naws_access_key_id = any\naws_secret_access_key = any\n", "utf-8")
    role = (
        "[profile role]\nrole_arn = arn:aws:iam::123456789012:role/up\nsource_profile = uploads\n"
    )
    (tmp_path / "config").write_text(f"{role}region = us-east-1\n", "utf-8")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", moto.endpoint)
    given = {"objects.access_key": "", "objects.secret_key": ""}
    for profile in ("uploads", "role"):
        code, said = judged(moto.settings(**given, **{"objects.profile": profile}))
        assert (code, said["ok"]) == (0, True)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{free_port()}")
    for profile in ("role", "nobody"):
        code, said = judged(moto.settings(**given, **{"objects.profile": profile}))
        assert code != 0
        assert said["steps"][-1]["setting"] == "objects.profile"


AZURE = {
    "key": ({"objects.account_key": "d3Jvbmc="}, "objects.account_key", 2),
    "no key": ({"objects.account_key": "***"}, "objects.account_key", 2),
    "container": ({"objects.root": "azblob://no-such-container/x"}, "objects.root", 2),
    "server": (
        {"objects.endpoint": f"http://127.0.0.1:{free_port()}/devstoreaccount1"},
        "objects.endpoint",
        5,
    ),
}


@pytest.mark.parametrize("what", AZURE)
def test_a_wrong_setting_of_azure_is_named(azurite, what):
    """A wrong key, container or endpoint of Azure is found, with the setting's name."""
    changes, setting, exit_code = AZURE[what]
    code, said = judged(azurite.settings(**changes))
    assert (code, said["steps"][-1]["setting"]) == (exit_code, setting)


GCS = {
    "bucket": ({"objects.root": "gcs://no-such-bucket/x"}, "objects.root", 2),
    "server": (
        {"objects.endpoint": f"http://127.0.0.1:{free_port()}"},
        "objects.endpoint",
        5,
    ),
    "key": (
        {"objects.credentials": "{}"},
        "objects.credentials",
        2,
    ),
    "key file": (
        {"objects.credentials": "no-such-file"},
        "objects.credentials",
        2,
    ),
}


@pytest.mark.parametrize("what", GCS)
def test_a_wrong_setting_of_google_is_named(gcs, what):
    """A wrong key, bucket or endpoint of Google's store is found, with the setting's name."""
    changes, setting, exit_code = GCS[what]
    code, said = judged(gcs.settings(**changes))
    assert (code, said["steps"][-1]["setting"]) == (exit_code, setting)


@pytest.mark.parametrize("kind", ["gcs", "azurite"])
def test_the_emulators_pass_every_step(request, kind):
    """All steps are ok with the stores of Google and Azure, too."""
    code, said = judged(request.getfixturevalue(kind).settings())
    assert (code, said["ok"]) == (0, True)


@pytest.mark.parametrize("path", ["file", "file/below"])
def test_a_directory_that_cannot_be_one_is_named(tmp_path, path):
    """A root that is a file, or below one, is the root's fault."""
    (tmp_path / "file").write_text("x", "utf-8")
    code, said = judged({"objects.store": "fs", "objects.root": str(tmp_path / path)})
    assert code == 2
    assert said["steps"][-1]["setting"] == "objects.root"


def test_no_store_is_no_store():
    """Without a store the setting that chooses one is named."""
    code, said = judged({})
    assert code == 2
    assert said["steps"][-1]["setting"] == "objects.store"


def test_other_options_do_not_go_with_it():
    """--objects and --quick together are refused."""
    assert run({"objects.store": "memory", "objects.root": "m"}, "--quick")[0] == 2


class Replacing(SimulatedStore):
    """A store that ignores conditions, as some that speak S3 do."""

    def put(self, key, data):
        return self.put_stream(key, [data])


def test_a_store_that_replaces_objects_is_refused():
    """Create-only puts that replace are found, and the probe is removed."""
    store = Replacing(SimulatedClock())
    settings = settings_of({"objects.store": "memory", "objects.root": "m"})
    *_, last = examine_store(settings, clock=SystemClock(), opened=lambda _: store)
    assert (last.name, last.setting) == ("create only", "objects.store")
    assert isinstance(last.error, InvalidRequest)
    assert store.objects == {}


@pytest.mark.parametrize(
    ("verb", "fault", "step"),
    [
        ("list", "throttled", "list"),
        ("put", "partial", "write"),
        ("get", "flipped", "create only"),
        ("get", "short", "create only"),
        ("put_stream", "truncated", "write in parts"),
        ("delete", "partial", "delete"),
    ],
)
def test_trouble_is_found_at_its_step(verb, fault, step):
    """Whatever goes wrong, the steps end there and nothing is left behind."""
    store = SimulatedStore(SimulatedClock())
    store.fail(verb, fault)
    settings = settings_of({"objects.store": "memory", "objects.root": "m"})
    steps = list(examine_store(settings, clock=SystemClock(), opened=lambda _: store))
    assert [each.name for each in steps] == STEPS[: STEPS.index(step) + 1]
    assert steps[-1].error is not None
    assert store.objects == {}
