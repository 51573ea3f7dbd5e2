"""The guard of all calls: rate, authentication, authorisation.

The guard runs before every handler. It counts the call and finds the principal from the headers
alone. Then it reads the message for the permissions that the call needs and checks them against the
roles. Each front end defines the needs of its calls. Without authentication calls are only counted.

The protocol defines the statuses and their texts. Refusals are logged, a few a second, never with
the credential. `x-danube-internal-broker` is not read: it grants nothing.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from frazil.errors import InvalidRequest
from frazil.serve.auth.access_file import parse_access
from frazil.serve.auth.credentials import (
    SECRET_BYTES_MIN,
    Authenticator,
    BadCredential,
    Keyring,
    TokenRules,
)
from frazil.serve.auth.files import read_private
from frazil.serve.auth.roles import ANONYMOUS, Principal, Roles
from frazil.serve.danube.statuses import Status, status
from frazil.serve.grpc.codec import CallFailed, Code
from frazil.telemetry import event, warn

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from frazil.clock import Clock
    from frazil.config import AuthSettings, Settings
    from frazil.serve.auth.credentials import Verified
    from frazil.serve.auth.roles import Need

__all__ = [
    "Caller",
    "Credentials",
    "Guard",
    "RateLimiter",
    "Refusal",
    "announce_exposure",
    "client_of",
    "load_credentials",
    "load_guard",
]

Refusal = tuple[Code, str]

TOO_MANY: Final[Refusal] = (Code.RESOURCE_EXHAUSTED, "Too many requests, retry later")
UNKNOWN: Final[Refusal] = (Code.UNIMPLEMENTED, "Operation is not implemented or not supported")
CLIENTS_MAX: Final = 10_000
"""The limit of clients with their own bucket; further clients share one."""
EVENTS_S_MAX: Final = 10


class Caller(Protocol):
    """The parts of a call that the guard reads."""

    @property
    def path(self) -> str:
        """The path of the rpc, `/package.Service/Method`."""

    @property
    def peer(self) -> str:
        """The address of the client, with or without its port."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """The headers of the request, names in lower case."""

    message: bytes
    """The request."""


@attrs.frozen
class Credentials:
    """The accepted credentials and the granted roles; replaced whole when the files change."""

    authenticator: Authenticator
    roles: Roles


@lru_cache(maxsize=4096)
def client_of(peer: str) -> str:
    """Return the address to count requests for: the network for IPv6, as a host has many."""
    host = peer.rpartition(":")[0] if peer.count(":") == 1 or "]:" in peer else peer
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host
    if address.version == 6:
        mapped = address.ipv4_mapped
        return str(mapped) if mapped else str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


class Guard:
    """Refuses calls. Not thread-safe: it belongs to the event loop's thread."""

    def __init__(
        self,
        credentials: Credentials | None,
        *,
        needs: Callable[[str, bytes], list[Need] | None],
        limiter: RateLimiter,
        clock: Clock,
    ) -> None:
        """Make a guard; without credentials it allows every call within the limiter's rate.

        Args:
            credentials: the accepted credentials and the roles, None without authentication.
            needs: returns the permissions that a call of a path needs, None for an unknown path;
                raises `Refused`.
            limiter: the rate limit of each client.
            clock: the time.
        """
        self._credentials = credentials
        self._needs = needs
        self._limiter = limiter
        self._clock = clock
        self._monotonic = clock.monotonic
        self._events = RateLimiter(rate_s=EVENTS_S_MAX, clients_max=1)
        self._refused = dict.fromkeys(("unauthenticated", "denied", "limited"), 0)

    @property
    def enabled(self) -> bool:
        """Whether calls need a credential."""
        return self._credentials is not None

    def replace(self, credentials: Credentials) -> None:
        """Replace keys, secrets and roles, and clear the cache of credentials."""
        assert self.enabled
        self._credentials = credentials
        event("credentials_replaced")

    def stats(self) -> dict[str, int]:
        """Count a refusal."""
        return {**self._refused, "clients": len(self._limiter)}

    def __call__(self, call: Caller) -> Refusal | None:
        """Count a call that begins; return why it may not be served, None if it may."""
        refusal = self.admit(call)
        if refusal is not None or self._credentials is None:
            return refusal
        return self.check(call)

    def free_calls(self, peer: str, count: int) -> int:
        """Count calls of one run; return how many may be served without another check.

        With authentication that is none of them.
        """
        if self._credentials is not None:
            return 0
        return self._limiter.take(client_of(peer), self._monotonic(), count)

    def admit(self, call: Caller) -> Refusal | None:
        """Count a call from its headers alone; return the refusal, None if there is none.

        A caller without a verified credential counts for its address.
        """
        client: Hashable = client_of(call.peer)
        known = self._known(call)
        if known is not None:
            client = known.principal
        if not self._limiter.take(client, self._monotonic()):
            self._refused["limited"] += 1
            return TOO_MANY
        if self._credentials is None or known is not None:
            return None
        found = self._principal(call)
        return None if isinstance(found, Principal) else found

    def foresee(self, call: Caller) -> Refusal | None:
        """Return why a request that still arrives is refused before its last byte.

        A verified caller is counted when the whole request has arrived, others now: they may be
        guessing.
        """
        if self._credentials is None or self._known(call) is not None:
            return None
        return self.admit(call)

    def check(self, call: Caller, wanted: list[Need] | None = None) -> Refusal | None:
        """Return why this call may not be served (any longer), None if it may; nothing is counted.

        A long stream is checked periodically: its token may have expired, or the roles changed.
        `wanted` are the needs of the call if the caller knows them; else the message has them.
        """
        if self._credentials is None:
            return None
        principal = self._principal(call)
        if not isinstance(principal, Principal):
            return principal
        if wanted is None:
            try:
                wanted = self._needs(call.path, call.message)
            except CallFailed as error:
                return error.code, error.text
            if wanted is None:
                return UNKNOWN
        for need in wanted:
            if not self._credentials.roles.authorize(principal, need.action, need.resource):
                return self._deny(call, principal, need)
        return None

    def principal_of(self, call: Caller) -> Principal | None:
        """Return the caller's principal, None if it is not known."""
        if self._credentials is None:
            return ANONYMOUS
        found = self._principal(call)
        return found if isinstance(found, Principal) else None

    def _known(self, call: Caller) -> Verified | None:
        """Return the principal of a cached credential that has not expired."""
        if self._credentials is None:
            return None
        header = call.metadata.get("authorization", "")
        return self._credentials.authenticator.known(header, now_s=self._wall_s())

    def _principal(self, call: Caller) -> Principal | Refusal:
        assert self._credentials is not None
        header = call.metadata.get("authorization")
        if not header:
            return self._refuse(call, status("credentials_missing"), "credentials are missing")
        try:
            found = self._credentials.authenticator.authenticate(header, now_s=self._wall_s())
        except BadCredential as error:
            return self._refuse(call, status("token_invalid"), str(error))
        return found.principal

    def _refuse(self, call: Caller, status: Status, reason: str) -> Refusal:
        self._refused["unauthenticated"] += 1
        if self._events.take("refused", self._monotonic()):
            warn("call_unauthenticated", path=call.path, peer=call.peer, reason=reason)
        return status

    def _deny(self, call: Caller, principal: Principal, need: Need) -> Refusal:
        self._refused["denied"] += 1
        if self._events.take("refused", self._monotonic()):
            warn("call_denied", path=call.path, peer=call.peer, principal=principal)
        action = "any action" if need.action is None else need.action.value
        return status("not_granted", action=action, resource=str(need.resource))

    def _wall_s(self) -> float:
        return self._clock.now_us() / 1e6


LOOKS_MAX: Final = 8
"""The number of buckets checked for one that can be removed."""
_OTHERS: Final = None
"""The client name of the bucket that all further clients share."""


class RateLimiter:
    """Token buckets: each holds one second's calls and refills steadily. The time is an argument.

    A bucket is removed only when it is full again, so no client gets a new bucket by evicting its
    old one. While no bucket can be removed, new clients share one.
    """

    def __init__(self, *, rate_s: float, clients_max: int) -> None:
        assert rate_s > 0
        assert clients_max > 0
        self._one_s = 1 / rate_s
        # A full bucket holds one second's calls; the sum of its parts may be slightly more.
        self._empty_s = max(1.0, self._one_s) + self._one_s / 1000
        self._clients_max = clients_max
        self._full_at: dict[Hashable, float] = {}
        """The time at which each bucket is full again, the least recently checked first."""

    def __len__(self) -> int:
        return len(self._full_at)

    def take(self, client: Hashable, now_s: float, count: int = 1) -> int:
        """Take up to `count` from the client's bucket; return how many."""
        if client not in self._full_at and not self._has_room(now_s):
            client = _OTHERS
        full_at = max(self._full_at.get(client, now_s), now_s)
        taken = min(count, int((self._empty_s - (full_at - now_s)) / self._one_s))
        if taken > 0:
            self._full_at[client] = full_at + taken * self._one_s
        return max(taken, 0)

    def _has_room(self, now_s: float) -> bool:
        if len(self._full_at) < self._clients_max:
            return True
        for _ in range(min(LOOKS_MAX, len(self._full_at))):
            client = next(iter(self._full_at))
            full_at = self._full_at.pop(client)
            if full_at <= now_s:
                return True
            self._full_at[client] = full_at
        return False


SECRETS_MAX: Final = 8


def load_guard(
    settings: Settings, *, needs: Callable[[str, bytes], list[Need] | None], clock: Clock
) -> Guard:
    """Return the guard of the broker's calls; `needs` as the guard has it.

    Raises:
        InvalidRequest: if a file of keys or secrets cannot be used.
    """
    limiter = RateLimiter(rate_s=settings.serve.requests_s_max, clients_max=CLIENTS_MAX)
    credentials = load_credentials(settings.auth) if settings.auth.enabled else None
    return Guard(credentials, needs=needs, limiter=limiter, clock=clock)


def load_credentials(auth: AuthSettings) -> Credentials:
    """Read keys, roles and secrets; again, to replace those of a guard.

    Raises:
        InvalidRequest: if a file cannot be used, with the line or key and without its contents.
    """
    roles, keys = Roles(), Keyring()
    if auth.access_file:
        text = read_private(auth.access_file, what="access file")
        roles, keys = parse_access(text, file=auth.access_file)
    return Credentials(Authenticator(_token_rules(auth), keys), roles)


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
    return TokenRules(secrets, auth.jwt_issuer, auth.jwt_audience)


def announce_exposure(settings: Settings) -> list[str]:
    """Log and return, as texts, the services that other machines can reach unprotected."""
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
