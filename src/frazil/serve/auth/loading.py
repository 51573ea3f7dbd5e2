"""The guard that the settings describe, and a word about what they leave open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from frazil.errors import InvalidRequest
from frazil.serve.auth.access_file import Access, parse_access
from frazil.serve.auth.authenticator import Authenticator
from frazil.serve.auth.guard import Credentials, Guard
from frazil.serve.auth.private_files import read_private
from frazil.serve.auth.rates import RateLimiter
from frazil.serve.auth.tokens import SECRET_BYTES_MIN, TokenRules
from frazil.telemetry import warn

if TYPE_CHECKING:
    from frazil.clock import Clock
    from frazil.config import AuthSettings, Settings
    from frazil.serve.auth.rpcs import Owners

__all__ = ["announce_exposure", "load_credentials", "load_guard"]

SECRETS_MAX: Final = 8


def load_guard(settings: Settings, *, owners: Owners, clock: Clock) -> Guard:
    """Return the guard of the broker's calls.

    Raises:
        InvalidRequest: if a file of keys or secrets cannot be used.
    """
    serve = settings.serve
    limiter = RateLimiter(rate_s=serve.requests_s_max, clients_max=serve.clients_max)
    credentials = load_credentials(settings.auth) if settings.auth.enabled else None
    return Guard(credentials, owners=owners, limiter=limiter, clock=clock)


def load_credentials(auth: AuthSettings) -> Credentials:
    """Read keys, roles and secrets; again, to replace those of a guard.

    Raises:
        InvalidRequest: if a file cannot be used, with its place and without its contents.
    """
    access = Access()
    if auth.access_file:
        text = read_private(auth.access_file, what="access file")
        access = parse_access(text, file=auth.access_file)
    return Credentials(Authenticator(_token_rules(auth), access.keys), access.roles)


def _token_rules(auth: AuthSettings) -> TokenRules | None:
    if not auth.jwt_secret_file:
        return None
    path = auth.jwt_secret_file
    lines = read_private(path, what="file of token secrets").splitlines()
    secrets = tuple(line.strip().encode() for line in lines if line.strip())
    if not secrets or len(secrets) > SECRETS_MAX:
        raise InvalidRequest(
            f"file of token secrets must have 1 to {SECRETS_MAX} lines", path=path, got=len(secrets)
        )
    if any(len(secret) < SECRET_BYTES_MIN for secret in secrets):
        raise InvalidRequest(
            f"secret of tokens is shorter than {SECRET_BYTES_MIN} bytes", path=path
        )
    return TokenRules(secrets, auth.jwt_issuer, auth.jwt_audience, auth.jwt_skew_s)


def announce_exposure(settings: Settings) -> list[str]:
    """Tell, as events and in the texts returned, what others can reach without protection."""
    serve = settings.serve
    found = []
    for host in serve.exposed:
        missing = [
            word
            for word, there in (("TLS", serve.tls), ("authentication", settings.auth.enabled))
            if not there
        ]
        if missing:
            lack = " and ".join(missing)
            warn("listening_insecurely", address=host, without=lack)
            found.append(f"insecure: {host} is reachable from elsewhere without {lack}")
    return found
