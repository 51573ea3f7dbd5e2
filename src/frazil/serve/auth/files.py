"""Read secret files. A file that other users can read is refused."""

from __future__ import annotations

import os
import ssl
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from frazil.errors import InvalidRequest
from frazil.fs import read_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.config import ServeSettings

__all__ = ["check_private", "load_certificate", "read_private", "server_context"]

FILE_BYTES_MAX: Final = 1 << 20
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def check_private(path: str, *, what: str) -> None:
    """Refuse a file that others than its owner can use, or that is another user's.

    Raises:
        InvalidRequest: if so, or if it is no file.
    """
    try:
        found = Path(path).stat()
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{what} cannot be read", path=path, reason=_reason(error)) from None
    if not stat.S_ISREG(found.st_mode):
        raise InvalidRequest(f"{what} is not a file", path=path)
    if found.st_mode & _OTHERS:
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        raise InvalidRequest(
            f"{what} can be used by others, set its mode to 0600", path=path, mode=mode
        )
    if found.st_uid not in {0, os.geteuid()}:
        raise InvalidRequest(f"{what} belongs to another user", path=path, owner=found.st_uid)


def read_private(path: str, *, what: str) -> str:
    """Return the text of a small file that its owner alone can read.

    Raises:
        InvalidRequest: if others can, or if it cannot be read, is larger than 1 MiB or not UTF-8.
    """
    check_private(path, what=what)
    try:
        data = read_file(str(Path(path).absolute()), FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{what} cannot be read", path=path, reason=_reason(error)) from None
    if len(data) > FILE_BYTES_MAX:
        raise InvalidRequest(f"{what} is too large", path=path, bytes_max=FILE_BYTES_MAX)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The error would have the file's bytes.
        raise InvalidRequest(f"{what} is not UTF-8", path=path, byte=error.start) from None


def _reason(error: OSError | ValueError) -> str:
    """Return why a file cannot be used: OpenSSL's word, the system's text, or the kind of error."""
    texts = (getattr(error, name, None) for name in ("reason", "strerror"))
    return next(filter(None, texts), type(error).__name__)


def server_context(settings: ServeSettings, *, protocols: Sequence[str]) -> ssl.SSLContext | None:
    """Return the context of a listener, None without a certificate.

    Args:
        settings: `serve.tls_*`.
        protocols: the listener's protocols for ALPN: `h2` or `http/1.1`.

    Raises:
        InvalidRequest: if a file cannot be used, or others can read the key.
    """
    if not settings.tls:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Compression leaks its input; renegotiation lets a client cause work.
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(list(protocols))
    load_certificate(context, settings)
    if settings.tls_client_ca_file:
        _require_clients(context, settings.tls_client_ca_file)
    return context


def load_certificate(context: ssl.SSLContext, settings: ServeSettings) -> None:
    """Load or reload certificate and key; later connections use the new ones.

    Raises:
        InvalidRequest: if they cannot be used. The context then keeps the old ones.
    """
    certificate, key = settings.tls_certificate_file, settings.tls_key_file
    check_private(key, what="key of the certificate")
    # A mismatched pair must not replace a good one: a separate context tries it first.
    for target in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):
        try:
            # An empty password refuses an encrypted key; without one OpenSSL prompts on the
            # terminal.
            target.load_cert_chain(certificate, key, password="")
        except (OSError, ValueError) as error:
            raise InvalidRequest(
                "certificate cannot be used",
                certificate=certificate,
                key=key,
                reason=_reason(error),
            ) from None


def _require_clients(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            "authorities of clients cannot be used", path=path, reason=_reason(error)
        ) from None
    context.verify_mode = ssl.CERT_REQUIRED
