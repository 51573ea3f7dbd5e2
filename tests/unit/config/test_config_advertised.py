"""The URL that look-ups answer: one that clients can connect to, or the settings are refused."""

from __future__ import annotations

import pytest

from frazil.config import load_settings
from frazil.errors import InvalidRequest

TLS = {"serve.tls_certificate_file": "c.pem", "serve.tls_key_file": "k.pem"}
PROXY = {"serve.insecure": True}


def load(url, settings):
    found = load_settings(environment={}, overrides={"serve.advertised_url": url, **settings})
    return found.serve.advertised_url


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("", {}),
        ("", TLS),
        ("http://broker.example.com:6650", {}),
        ("http://broker_1", {}),
        ("http://192.0.2.1:1", {}),
        ("http://[2001:db8::1]:65535", {}),
        ("https://broker.example.com:6650", TLS),
        ("https://[::1]", TLS),
        ("https://broker.example.com", PROXY),
        ("http://broker.example.com", PROXY),
    ],
)
def test_urls_of_a_host_are_taken(url, settings):
    """Names, addresses of both kinds, with a port or without, are kept as they are written."""
    assert load(url, settings) == url


@pytest.mark.parametrize(
    "url",
    [
        *("broker", "broker:6650", "tcp://broker:6650", "HTTP://broker", "http:/broker"),
        *("http://", "http://:6650", "http://broker:", "http://broker:0", "http://broker:65536"),
        *("http://broker:x", "http://broker:6650/", "http://broker/path", "http://broker?q"),
        *("http://user@broker", "http://a b", " http://broker", "http://broker\n"),
        *("http://[::1", "http://::1", "http://[1:2]", "http://[127.0.0.1]", "http://\u00e4"),
    ],
)
def test_what_is_no_url_of_a_host_is_refused(url):
    """Schemes of others, missing hosts, bad ports, paths and credentials are reported with the key."""
    for settings in ({}, TLS, PROXY):
        with pytest.raises(InvalidRequest, match=r"must be http://host\[:port\]") as caught:
            load(url, settings)
        assert caught.value.details["key"] == "serve.advertised_url"


@pytest.mark.parametrize(
    ("url", "settings", "words"),
    [
        ("http://broker:6650", TLS, "begin with https://, because a certificate is set"),
        ("http://broker", TLS | PROXY, "begin with https://, because a certificate is set"),
        ("https://broker", {}, r"begin with http://, because no certificate.*serve\.insecure=true"),
    ],
)
def test_the_scheme_is_that_of_the_certificate(url, settings, words):
    """Clients are not sent to a port that speaks otherwise, unless a proxy is said to be there."""
    with pytest.raises(InvalidRequest, match=words):
        load(url, settings)
