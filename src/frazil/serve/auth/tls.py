"""TLS from files: 1.2 or newer, the key readable by its owner alone."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING

from frazil.errors import InvalidRequest
from frazil.serve.auth.private_files import check_private

if TYPE_CHECKING:
    from frazil.config import ServeSettings

__all__ = ["load_certificate", "server_context"]


def server_context(settings: ServeSettings, *, protocols: Sequence[str]) -> ssl.SSLContext | None:
    """Return the context of a listener, None without a certificate.

    Args:
        settings: `serve.tls_*`.
        protocols: what the listener speaks, for ALPN: `h2` or `http/1.1`.

    Raises:
        InvalidRequest: if a file cannot be used, or others can read the key.
    """
    if not settings.tls:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Compression leaks what it compresses; renegotiation is work that a client orders.
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(list(protocols))
    load_certificate(context, settings)
    if settings.tls_client_ca_file:
        _require_clients(context, settings.tls_client_ca_file)
    return context


def load_certificate(context: ssl.SSLContext, settings: ServeSettings) -> None:
    """Load certificate and key; again, to renew them: connections made afterwards use the new ones.

    Raises:
        InvalidRequest: if they cannot be used. The context keeps what it had.
    """
    certificate, key = settings.tls_certificate_file, settings.tls_key_file
    check_private(key, what="key of the certificate")
    # A pair that does not fit must not replace one that does: it is tried on its own first.
    for target in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):
        try:
            # An empty password refuses an encrypted key; without one OpenSSL asks the terminal.
            target.load_cert_chain(certificate, key, password="")
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or type(error).__name__
            raise InvalidRequest(
                "certificate cannot be used", certificate=certificate, key=key, reason=reason
            ) from None


def _require_clients(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        raise InvalidRequest(
            "authorities of clients cannot be used", path=path, reason=reason
        ) from None
    context.verify_mode = ssl.CERT_REQUIRED
