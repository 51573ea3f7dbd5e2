"""TLS: only from a key that nobody else can read, only 1.2 or newer."""

from __future__ import annotations

import ssl

import pytest

from frazil.config import ServeSettings
from frazil.errors import InvalidRequest
from frazil.serve.auth.files import load_certificate, server_context
from tests.unit.serve.auth.certificates import (
    CERTIFICATE,
    KEY,
    OTHER_CERTIFICATE,
    write_certificate,
)


@pytest.fixture
def settings(tmp_path):
    """Settings with a certificate that can be used."""
    certificate, key = write_certificate(tmp_path)
    return ServeSettings(tls_certificate_file=certificate, tls_key_file=key)


def shake(server, client, *, name="localhost"):
    """Run a handshake in memory and return the client's side of it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server, server_hostname=name)
    waiting = [theirs, ours]
    for _ in range(20):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                continue
        if not waiting:
            return theirs
    raise AssertionError("the handshake does not end")


def trusting():
    return ssl.create_default_context(cadata=CERTIFICATE)


def test_a_client_that_trusts_the_certificate_connects(settings):
    """The handshake succeeds with 1.3 and agrees on HTTP/2."""
    client = trusting()
    client.set_alpn_protocols(["http/1.1", "h2"])
    found = shake(server_context(settings, protocols=["h2"]), client)
    assert found.version() == "TLSv1.3"
    assert found.selected_alpn_protocol() == "h2"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_versions_are_refused(settings):
    """A client that speaks TLS 1.1 at most is turned away, one that speaks 1.2 is not."""
    server = server_context(settings, protocols=["h2"])
    assert server.minimum_version is ssl.TLSVersion.TLSv1_2
    client = trusting()
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    assert shake(server, client).version() == "TLSv1.2"
    old = trusting()
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        shake(server, old)


def test_without_a_certificate_there_is_no_tls():
    """The defaults give no context."""
    assert server_context(ServeSettings(), protocols=["h2"]) is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o700 | 0o010])
def test_a_key_that_others_can_use_is_refused(tmp_path, mode):
    """Any right of group or others is too much, and the refusal says what to do."""
    certificate, key = write_certificate(tmp_path, mode=mode)
    with pytest.raises(InvalidRequest, match="0600") as caught:
        server_context(
            ServeSettings(tls_certificate_file=certificate, tls_key_file=key), protocols=["h2"]
        )
    assert caught.value.details["mode"] == f"{mode:04o}"


@pytest.mark.parametrize("broken", ["certificate.pem", "key.pem"])
def test_a_file_that_is_no_certificate_is_refused_without_its_text(settings, tmp_path, broken):
    """The refusal names the files and quotes neither."""
    path = tmp_path / broken
    text = path.read_text().replace("MI", "M!", 1)
    path.write_text(text)
    with pytest.raises(InvalidRequest, match="certificate cannot be used") as caught:
        server_context(settings, protocols=["h2"])
    assert settings.tls_key_file in str(caught.value)
    assert KEY.splitlines()[2] not in str(caught.value)
    assert caught.value.__cause__ is None


def test_absent_files_are_refused(settings, tmp_path):
    """The error of a missing key or certificate has its path."""
    (tmp_path / "certificate.pem").unlink()
    with pytest.raises(InvalidRequest, match="certificate cannot be used"):
        server_context(settings, protocols=["h2"])
    (tmp_path / "key.pem").unlink()
    with pytest.raises(InvalidRequest, match=r"key of the certificate cannot be read"):
        server_context(settings, protocols=["h2"])


def test_a_renewed_certificate_that_is_broken_leaves_the_old_one(settings, tmp_path):
    """Loading again either succeeds or changes nothing for new connections."""
    server = server_context(settings, protocols=["h2"])
    load_certificate(server, settings)
    for text in ("nothing", OTHER_CERTIFICATE):
        (tmp_path / "certificate.pem").write_text(text)
        with pytest.raises(InvalidRequest):
            load_certificate(server, settings)
        assert shake(server, trusting()).version() == "TLSv1.3"


def test_clients_must_show_a_certificate_where_it_is_asked_for(settings, tmp_path):
    """With authorities of clients set, one without a certificate cannot speak."""
    asking = settings.model_copy(update={"tls_client_ca_file": settings.tls_certificate_file})
    server = server_context(asking, protocols=["h2"])
    assert server.verify_mode is ssl.CERT_REQUIRED
    client = trusting()
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        shake(server, client)
    client.load_cert_chain(settings.tls_certificate_file, settings.tls_key_file)
    assert shake(server, client).version() == "TLSv1.2"
    missing = settings.model_copy(update={"tls_client_ca_file": str(tmp_path / "absent.pem")})
    with pytest.raises(InvalidRequest, match="authorities"):
        server_context(missing, protocols=["h2"])
