"""The one gate of all calls: how often, who, and whether they may.

It is the interceptor in front of every handler. From the headers alone it counts the call and
finds out who makes it; only then is the message read, for what the call needs (`RPCS`), and the
roles are asked. Without authentication only the counting is left.

Statuses and their texts are the protocol's. What is refused is told as an event, a few a second,
never with the credential. `x-danube-internal-broker` is not read: it grants nothing.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from frazil.errors import InvalidRequest
from frazil.serve.auth.access_file import Access, parse_access
from frazil.serve.auth.credentials import SECRET_BYTES_MIN, Authenticator, BadCredential, TokenRules
from frazil.serve.auth.files import read_private
from frazil.serve.auth.permissions import RPCS, Need, Owners, needs
from frazil.serve.auth.roles import ANONYMOUS, ANYTHING, Principal, Roles
from frazil.serve.danube.statuses import Refused, Status, status
from frazil.serve.grpc.codec import Code
from frazil.telemetry import event, warn

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from frazil.clock import Clock
    from frazil.config import AuthSettings, Settings
    from frazil.serve.auth.permissions import Owners

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
"""Requests are counted for so many clients; further ones share one count."""
EVENTS_S_MAX: Final = 10


class Caller(Protocol):
    """What the guard looks at of a call."""

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
    """Who is known, and what is granted to them; replaced whole when the files change."""

    authenticator: Authenticator
    roles: Roles


@lru_cache(maxsize=4096)
def client_of(peer: str) -> str:
    """Return the address that requests are counted for: of IPv6 the network, hosts have many."""
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
        owners: Owners,
        limiter: RateLimiter,
        clock: Clock,
    ) -> None:
        """Without credentials everybody may do everything, as often as the limiter lets them."""
        self._credentials = credentials
        self._owners = owners
        self._limiter = limiter
        self._clock = clock
        self._monotonic = clock.monotonic
        self._events = RateLimiter(rate_s=EVENTS_S_MAX, clients_max=1)
        self._unauthenticated = 0
        self._denied = 0

    @property
    def enabled(self) -> bool:
        """Whether callers must say who they are."""
        return self._credentials is not None

    def replace(self, credentials: Credentials) -> None:
        """Use other keys, secrets and roles from now on; what was remembered is forgotten."""
        assert self.enabled
        self._credentials = credentials
        event("credentials_replaced")

    def stats(self) -> dict[str, int]:
        """Count what was refused."""
        return {
            "unauthenticated": self._unauthenticated,
            "denied": self._denied,
            "limited": self._limiter.refusals,
            "clients": len(self._limiter),
        }

    def __call__(self, call: Caller) -> Refusal | None:
        """Count a call that begins, and tell why it may not be served; None if it may."""
        found = self._admitted(call)
        return self._judge(call, found) if isinstance(found, Principal) else found

    def free_calls(self, peer: str, count: int) -> int:
        """Count calls that came together; return how many may be served without a look at them.

        With authentication that is none of them.
        """
        if self._credentials is not None:
            return 0
        return self._limiter.allow_some(client_of(peer), self._monotonic(), count)

    def admit(self, call: Caller) -> Refusal | None:
        """Count a call whose message nobody has read yet, and tell why its caller is sent away.

        It is for listeners that know only from the message which call it is; they `check` it then.
        """
        found = self._admitted(call)
        return None if isinstance(found, Principal) else found

    def foresee(self, call: Caller) -> Refusal | None:
        """Tell why the caller of a request that still arrives is sent away without the rest of it.

        Whoever is known is counted when all of it is here, others now, too: they may be guessing.
        """
        if self._credentials is None:
            return None
        header = call.metadata.get("authorization", "")
        known = self._credentials.authenticator.known(header, now_s=self._wall_s())
        return self.admit(call) if known is None else None

    def _admitted(self, call: Caller) -> Principal | Refusal | None:
        """Count a call; return who makes it or why it is refused, None without authentication."""
        now_s = self._monotonic()
        if self._credentials is None:
            return None if self._limiter.allow(client_of(call.peer), now_s) else TOO_MANY
        header = call.metadata.get("authorization", "")
        known = self._credentials.authenticator.known(header, now_s=self._wall_s())
        # Credentials that are not known to be good count for the address they come from.
        client = client_of(call.peer) if known is None else known.principal
        if not self._limiter.allow(client, now_s):
            return TOO_MANY
        return self._principal(call) if known is None else known.principal

    def check(self, call: Caller) -> Refusal | None:
        """Tell why this call may not be served (any longer), None if it may.

        A long stream asks from time to time: its token may have ended, the roles changed.
        """
        if self._credentials is None:
            return None
        found = self._principal(call)
        return self._judge(call, found) if isinstance(found, Principal) else found

    def authorize(self, call: Caller, wanted: list[Need]) -> Refusal | None:
        """Return why a caller may not do what needs these, None if it may; nothing is counted."""
        if self._credentials is None:
            return None
        found = self._principal(call)
        return self._decide(call, found, wanted) if isinstance(found, Principal) else found

    def _judge(self, call: Caller, principal: Principal) -> Refusal | None:
        rpc = RPCS.get(call.path)
        if rpc is None:
            return UNKNOWN
        try:
            wanted = needs(rpc, call.message, self._owners)
        except Refused as error:
            return _refusal(error.status)
        return self._decide(call, principal, wanted)

    def _decide(self, call: Caller, principal: Principal, wanted: list[Need]) -> Refusal | None:
        assert self._credentials is not None
        for need in wanted:
            if not self._credentials.roles.authorize(principal, need.action, need.resource):
                return self._deny(call, principal, need)
        return None

    def principal_of(self, call: Caller) -> Principal | None:
        """Return who calls, None if that is not known."""
        if self._credentials is None:
            return ANONYMOUS
        found = self._principal(call)
        return found if isinstance(found, Principal) else None

    def knows(self, header: str | None) -> bool:
        """Tell whether an `authorization` header is of somebody who is known and has any grant.

        Without authentication everybody is. It does not count: the listeners that ask have limits
        of their own.
        """
        if self._credentials is None:
            return True
        try:
            found = self._credentials.authenticator.authenticate(header or "", now_s=self._wall_s())
        except BadCredential:
            self._unauthenticated += 1
            return False
        if not self._credentials.roles.authorize(found.principal, None, ANYTHING):
            self._denied += 1
            return False
        return True

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
        self._unauthenticated += 1
        if self._events.allow("refused", self._clock.monotonic()):
            warn("call_unauthenticated", path=call.path, peer=call.peer, reason=reason)
        return _refusal(status)

    def _deny(self, call: Caller, principal: Principal, need: Need) -> Refusal:
        self._denied += 1
        if self._events.allow("refused", self._clock.monotonic()):
            warn("call_denied", path=call.path, peer=call.peer, principal=principal)
        action = "any action" if need.action is None else need.action.value
        return _refusal(status("not_granted", action=action, resource=str(need.resource)))

    def _wall_s(self) -> float:
        return self._clock.now_us() / 1e6


def _refusal(status: Status) -> Refusal:
    return (Code(status.code), status.text)


LOOKS_MAX: Final = 8
"""So many clients are looked at for one that can be forgotten."""


class RateLimiter:
    """Buckets that hold a second's worth and refill steadily. Pure: the time is an argument.

    A client is forgotten only when its bucket is full again, so that nobody gets a new bucket by
    pushing its old one out; while no such client is found, new ones share one bucket.
    """

    def __init__(self, *, rate_s: float, clients_max: int) -> None:
        assert rate_s > 0
        assert clients_max > 0
        self._one_s = 1 / rate_s
        # A full bucket holds a second's worth; the sum of as many parts may be a little above.
        self._empty_s = max(1.0, self._one_s) + self._one_s / 1000
        self._clients_max = clients_max
        self._full_at: dict[Hashable, float] = {}
        """When each bucket would be full again. Those at the front were not looked at longest."""
        self._others_full_at = 0.0
        self.refusals = 0

    def __len__(self) -> int:
        return len(self._full_at)

    def allow(self, client: Hashable, now_s: float) -> bool:
        """Take one from the client's bucket; False, and nothing taken, if it is empty."""
        full_at = self._full_at.get(client)
        if full_at is None:
            if not self._has_room(now_s):
                return self._allow_others(now_s)
            full_at = now_s
        elif full_at < now_s:
            full_at = now_s
        after = full_at + self._one_s
        if after - now_s > self._empty_s:
            self.refusals += 1
            return False
        self._full_at[client] = after
        return True

    def allow_some(self, client: Hashable, now_s: float, count: int) -> int:
        """Take up to `count` from the client's bucket; return how many. The rest is not counted.

        A client that has no bucket of its own gets none this way.
        """
        full_at = self._full_at.get(client)
        if full_at is None:
            if not self._has_room(now_s):
                return 0
            full_at = now_s
        full_at = max(full_at, now_s)
        taken = max(0, min(count, int((self._empty_s - (full_at - now_s)) / self._one_s)))
        self._full_at[client] = full_at + taken * self._one_s
        return taken

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

    def _allow_others(self, now_s: float) -> bool:
        after = max(self._others_full_at, now_s) + self._one_s
        if after - now_s > self._empty_s:
            self.refusals += 1
            return False
        self._others_full_at = after
        return True


SECRETS_MAX: Final = 8


def load_guard(settings: Settings, *, owners: Owners, clock: Clock) -> Guard:
    """Return the guard of the broker's calls.

    Raises:
        InvalidRequest: if a file of keys or secrets cannot be used.
    """
    serve = settings.serve
    limiter = RateLimiter(rate_s=serve.requests_s_max, clients_max=CLIENTS_MAX)
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
    return TokenRules(secrets, auth.jwt_issuer, auth.jwt_audience)


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
