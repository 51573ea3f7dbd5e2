"""The broker's settings: loopback unless it is safe or somebody said so, and no secret in them."""

from __future__ import annotations

import pytest

from frazil.config import Settings, describe, load_settings
from frazil.config.serve import is_loopback
from frazil.errors import InvalidRequest

TLS = {"serve.tls_certificate_file": "c.pem", "serve.tls_key_file": "k.pem"}
AUTH = {"auth.enabled": True, "auth.access_file": "access.yaml"}


def load(**overrides):
    """Load from overrides alone; `serve__host` stands for `serve.host`."""
    paths = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_settings(environment={}, overrides=paths)


def test_nothing_is_reachable_from_elsewhere_by_default():
    """All three listeners are on loopback, and authentication and TLS are off."""
    serve = Settings().serve
    assert serve.hosts == ("127.0.0.1",) * 2
    assert serve.exposed == ()
    assert (serve.port, serve.admin_port) == (6650, 50051)
    assert not serve.tls
    assert not Settings().auth.enabled


@pytest.mark.parametrize("name", ["host", "admin_host"])
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "broker.example", "127.1"])
@pytest.mark.parametrize("half", [{}, TLS, AUTH], ids=["neither", "tls", "auth"])
def test_an_address_beyond_this_machine_needs_both(name, host, half):
    """TLS alone or authentication alone does not open a listener to others; both do."""
    key = f"serve.{name}"
    with pytest.raises(InvalidRequest, match="needs TLS and authentication") as caught:
        load(**{**half, key: host})
    assert caught.value.details["key"] == key
    assert load(**TLS, **AUTH, **{key: host}).serve.exposed == (host,)


def test_the_insecure_flag_opens_a_listener_and_shows():
    """With the flag an address is used without either, and the settings say which ones are."""
    settings = load(serve__host="0.0.0.0", serve__insecure=True)
    assert settings.serve.exposed == ("0.0.0.0",)
    assert settings.secured


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LOCALHOST"])
def test_addresses_of_this_machine_need_nothing(host):
    """Every form of loopback is taken as it is."""
    assert is_loopback(host)
    assert load(serve__host=host).serve.exposed == ()


@pytest.mark.parametrize(
    ("changes", "key", "against"),
    [
        (
            {"serve.tls_certificate_file": "c.pem"},
            "serve.tls_certificate_file",
            "serve.tls_key_file",
        ),
        ({"serve.tls_key_file": "k.pem"}, "serve.tls_certificate_file", "serve.tls_key_file"),
        (
            {"serve.tls_client_ca_file": "ca.pem"},
            "serve.tls_client_ca_file",
            "serve.tls_certificate_file",
        ),
        ({"serve.port": 50051}, "serve.port", "serve.admin_port"),
        ({"serve.admin_port": 6650}, "serve.port", "serve.admin_port"),
        ({"serve.http_port": 6650}, "serve.port", "serve.http_port"),
        ({"serve.http_port": 50051}, "serve.admin_port", "serve.http_port"),
        ({"auth.enabled": True}, "auth.enabled", "auth.access_file"),
        ({"auth.jwt_secret_file": "secret"}, "auth.jwt_secret_file", "auth.jwt_issuer"),
    ],
)
def test_contradictions_are_refused(changes, key, against):
    """Values that exclude each other are named with both keys."""
    with pytest.raises(InvalidRequest, match="contradict") as caught:
        load(**changes)
    assert caught.value.details["key"] == key
    assert caught.value.details["against"] == against


def test_free_ports_do_not_clash():
    """Port 0 is any free one, so all listeners may have it; so may two addresses one port."""
    assert load(serve__port=0, serve__admin_port=0, serve__http_port=0).serve.port == 0
    assert load(serve__admin_host="127.0.0.2", serve__admin_port=6650).serve.admin_port == 6650


def test_secrets_are_named_by_files_alone():
    """No setting of the broker takes a secret itself: what looks like one is the path of a file."""
    words = ("secret", "password", "token", "key", "credential")
    sensitive = [
        info.path
        for info in describe()
        if info.path.startswith(("serve.", "auth.")) and any(word in info.path for word in words)
    ]
    assert sensitive == ["serve.tls_key_file", "auth.jwt_secret_file"]
