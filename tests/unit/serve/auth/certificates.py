"""A certificate for localhost that signs itself, for tests alone, until 2120."""

from __future__ import annotations

KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgS/rZGyd/7xAT9/aF
WEEPfAvRix0CLvXCD181bnUAja+hRANCAAREIrGzTkDZHUGjwKKSU1ApCOhpB/OK
QVauZNuKrJSOk5i3+DDSgVj9dfOJJCPkC3b5lFadVTOydAnFGmxOe9tt
-----END PRIVATE KEY-----
"""

CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBezCCASCgAwIBAgIUN95R0Mf31x3aHBFOf8GbJYBy/W8wCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTIwMDEwMTAwMDAwMFoYDzIxMjAwMTAx
MDAwMDAwWjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAREIrGzTkDZHUGjwKKSU1ApCOhpB/OKQVauZNuKrJSOk5i3+DDSgVj9
dfOJJCPkC3b5lFadVTOydAnFGmxOe9tto04wTDAaBgNVHREEEzARgglsb2NhbGhv
c3SHBH8AAAEwDwYDVR0TAQH/BAUwAwEB/zAdBgNVHQ4EFgQU6WMKCnJO+6y4G84b
Xq0M4pneMUMwCgYIKoZIzj0EAwIDSQAwRgIhAOTlBNsi7jNBZoTPMTSjivaDZSYL
fcWkq16zu+q7tEhIAiEAoouLpgMhlMQG7XChs9yTApycZjGiU5f3BTbRBEACiq0=
-----END CERTIFICATE-----
"""

OTHER_CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBeTCCASCgAwIBAgIUbdjReyBScPYe988sz/R2jyrlXt4wCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTIwMDEwMTAwMDAwMFoYDzIxMjAwMTAx
MDAwMDAwWjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAARzw/7yS6QTax9YIu56sB6aH6biX0+whR8zumDjmUAbON7HgQ+93mbS
hrQCWIQAiG5El3A0B8FqJbNf+MkLxyYCo04wTDAaBgNVHREEEzARgglsb2NhbGhv
c3SHBH8AAAEwDwYDVR0TAQH/BAUwAwEB/zAdBgNVHQ4EFgQU/NtmA015Al+jzPix
C9PNxrWIwMUwCgYIKoZIzj0EAwIDRwAwRAIgE3crvydqGAi+oIcK+0a4fG7DAf00
OjssSQqHHbStBf0CIDyPIT29mIkgE8MCVWsyFEee3tVPNp7oiIIuO8TZPiDK
-----END CERTIFICATE-----
"""
"""Of another key, so that it does not fit `KEY`."""


def write_certificate(directory, *, mode=0o600):
    """Write both into a directory; return the paths of the certificate and of its key."""
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    certificate.write_text(CERTIFICATE)
    key.write_text(KEY)
    key.chmod(mode)
    return str(certificate), str(key)
